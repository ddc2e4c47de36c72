"""Controls for the scores of a training: what the training texts share with the evaluation, scores
before and after, and a second training on random strings.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closeknit.data.scored_pairs import ScoredPairs, read_suites
from closeknit.data.sentences import Sentences
from closeknit.embeddings.evaluated_texts import overlaps, without_evaluated
from closeknit.embeddings.score_tables import Score
from closeknit.embeddings.scores import Encode, sts_scores
from closeknit.errors import ConfigError

CONTROLS = ("random",)
_LETTERS = np.array(list(string.ascii_lowercase))
_MOST_DRAWS = 100  # of a random string that another text has already
_LEAST_GAIN = 1.0  # points; the share of a smaller gain says nothing
_OUTCOMES = {"before": "before", "control": "random strings", "after": "texts"}

Evaluation = dict[str, list[Score]]  # "before", "after" and, with a control, "control"


# ---------------------------------------------------------------- the evaluation sets


def evaluation_sets(evaluate: Any, *, log: Callable[[str], None]) -> list[ScoredPairs]:
    """The scored pairs that were asked for: suites, files and folders by name, or `ScoredPairs`."""
    if evaluate is None:
        return []
    listed = [evaluate] if isinstance(evaluate, str | Path | ScoredPairs) else list(evaluate)
    given = [entry for entry in listed if isinstance(entry, ScoredPairs)]
    names = [entry for entry in listed if not isinstance(entry, ScoredPairs)]
    return [*given, *(read_suites(names, log=log) if names else [])]


def check_control(control: str | None, exclude: bool, sets: Sequence[ScoredPairs]) -> None:
    """Refuse an unknown control, and a control or an exclusion without evaluation sets."""
    if control is not None and control not in CONTROLS:
        raise ConfigError(f"control is {control}; it must be {' or '.join(CONTROLS)}")
    for wanted, name in ((control, "a control"), (exclude, "the exclusion of evaluated texts")):
        if wanted and not sets:
            raise ConfigError(
                f"{name} needs evaluation sets, and none is named; name suites or files of scored "
                "pairs with --evaluate (in Python evaluate=), or validation pairs"
            )


def training_rows(
    sentences: Sentences,
    sets: Sequence[ScoredPairs],
    *,
    exclude: bool,
    log: Callable[[str], None],
) -> tuple[Sentences, dict[str, Any]]:
    """The rows to train on, and facts for the metrics: `overlap`, and `excluded` if it was asked.

    `log` is told which share of each evaluation set the given texts contain.
    """
    if not sets:
        return sentences, {}
    texts = [text for column in sentences.columns for text in column]
    shared = overlaps(texts, sets)
    facts: dict[str, Any] = {"overlap": [dataclasses.asdict(overlap) for overlap in shared]}
    found = [str(overlap) for overlap in shared if overlap.contained]
    if found:
        log(f"evaluation texts among the training texts: {', '.join(found)}")
    if not exclude:
        if found:
            log(
                "the encoder learns from texts that it is scored on; --exclude-evaluated drops them"
            )
        return sentences, facts
    kept, excluded = without_evaluated(sentences, sets)
    log(
        f"{excluded.rows:,} of {len(sentences):,} rows were dropped, because they hold "
        f"{excluded.texts:,} texts of the evaluation; {len(kept):,} rows are left"
    )
    return kept, {**facts, "excluded": dataclasses.asdict(excluded)}


# ---------------------------------------------------------------- random strings


def random_strings(texts: Iterable[str], seed: int) -> list[str]:
    """A string without meaning for each text: every character but white space becomes a random
    letter from a to z.

    The number of strings, their lengths and the lengths of their words are those of the texts.
    Equal texts become equal strings, and different texts different strings: if a string has been
    drawn for another text already, it is drawn again, and a very short one gets one letter more.
    The strings depend on the texts and on the seed alone.
    """
    generator = np.random.default_rng(seed)
    string_of: dict[str, str] = {}
    taken: set[str] = set()
    result: list[str] = []
    for text in texts:
        if text not in string_of:
            shape = text
            drawn = _random_string(shape, generator)
            draws = 1
            while drawn in taken:
                if draws % _MOST_DRAWS == 0:
                    shape += "a"
                drawn = _random_string(shape, generator)
                draws += 1
            string_of[text] = drawn
            taken.add(drawn)
        result.append(string_of[text])
    return result


def _random_string(shape: str, generator: np.random.Generator) -> str:
    letters = _LETTERS[generator.integers(len(_LETTERS), size=len(shape))]
    return "".join(
        character if character.isspace() else str(letter)
        for character, letter in zip(shape, letters, strict=True)
    )


def random_sentences(sentences: Sentences, seed: int) -> Sentences:
    """The same rows and groups with a random string in the place of each text."""
    rows = len(sentences)
    texts = [text for column in sentences.columns for text in column]
    drawn = random_strings(texts, seed)
    columns = tuple(drawn[start : start + rows] for start in range(0, len(drawn), rows))
    return Sentences(columns, sentences.groups, f"random strings like {sentences.name}")


# ---------------------------------------------------------------- scores


def spearman_on(encode: Encode, sets: Sequence[ScoredPairs]) -> list[Score]:
    """Spearman's correlation on each set of scored pairs."""
    return [
        Score(pairs.name, "spearman", sts_scores(encode, pairs)["spearman"], len(pairs))
        for pairs in sets
    ]


def evaluation_record(evaluation: Evaluation) -> dict[str, list[dict[str, Any]]]:
    """The scores as `metrics.json` holds them."""
    return {name: list(map(dataclasses.asdict, rows)) for name, rows in evaluation.items()}


def evaluation_table(evaluation: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A Markdown table of the record of an evaluation: the scores before and after the training,
    in points, and with a control how much of the gain the random strings gave.

    The control's share is left out where the texts gave less than a point.
    """
    outcomes = [name for name in _OUTCOMES if name in evaluation]
    with_control = "control" in evaluation
    head = ["data", "pairs", *(_OUTCOMES[name] for name in outcomes), "gain"]
    if with_control:
        head.append("share of the gain with random strings")
    lines = [
        "| " + " | ".join(head) + " |",
        "| --- |" + " ---: |" * (len(head) - 1),
    ]
    values = {name: [100 * float(row["value"]) for row in evaluation[name]] for name in outcomes}
    for number, row in enumerate(evaluation["after"]):
        scores = {name: values[name][number] for name in outcomes}
        lines.append(_line_of_gain(str(row["data"]), f"{row['n']:,}", scores))
    if len(evaluation["after"]) > 1:
        means = {name: float(np.mean(values[name])) for name in outcomes}
        lines.append(_line_of_gain("mean", "", means))
    return "\n".join(lines) + "\n"


def _line_of_gain(data: str, pairs: str, scores: Mapping[str, float]) -> str:
    gain = scores["after"] - scores["before"]
    cells = [data, pairs, *(f"{value:.1f}" for value in scores.values()), f"{gain:+.1f}"]
    if "control" in scores:
        of_control = scores["control"] - scores["before"]
        cells.append(f"{100 * of_control / gain:.0f} %" if gain >= _LEAST_GAIN else "–")
    return "| " + " | ".join(cells) + " |"
