"""Scores of an embedding: similarity of pairs, geometry, classes and retrieval. Without torch.

Everything here takes an encoder as a function from a list of texts to rows (n, d), one per text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from closeknit import metrics
from closeknit.data.examples import Examples
from closeknit.data.scored_pairs import SUITES, ScoredPairs, read_suites
from closeknit.data.splits import check_classes
from closeknit.errors import ConfigError, DataError, ModelError, did_you_mean

Vectors = npt.NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]

MEASURES = ("spearman", "pearson", "spearman_of_groups", "alignment", "uniformity", "anisotropy")
_GEOMETRY = ("alignment", "uniformity", "anisotropy")  # shown as they are; all others times 100


@dataclass(frozen=True)
class Score:
    """One value of a measure on a data set, and the number of pairs or texts that it is over."""

    data: str
    measure: str
    value: float
    n: int


# ---------------------------------------------------------------- measures


def sts_scores(encode: Encode, pairs: ScoredPairs) -> dict[str, float]:
    """Spearman and Pearson correlation of the cosines of pairs with their scores; `n` pairs.

    All pairs of a set are ranked together, as in SimCSE. If the set has groups,
    `spearman_of_groups` is the plain mean over the groups, as in some other papers. The two
    numbers differ by several points.
    """
    first, second = _encode_columns(encode, [pairs.first, pairs.second])
    cosines = metrics.pair_cosines(first, second)
    scores = {
        "spearman": metrics.spearman(cosines, pairs.scores),
        "pearson": metrics.pearson(cosines, pairs.scores),
        "n": len(pairs),
    }
    if pairs.groups is not None:
        group_of = np.asarray(pairs.groups)
        per_group = [
            metrics.spearman(cosines[group_of == group], pairs.scores[group_of == group])
            for group in np.unique(group_of)
        ]
        scores["spearman_of_groups"] = float(np.mean(per_group))
    return scores


def geometry_scores(
    encode: Encode,
    pairs: ScoredPairs,
    texts: Sequence[str],
    *,
    above: float | None = None,
    most: int = 5000,
    seed: int = 0,
) -> dict[str, float]:
    """Alignment of the pairs that people find similar; uniformity and anisotropy of texts.

    Similar pairs have a score above `above`. The default is four fifths of the range of the scores:
    for STS-B, with scores from 0 to 5, it is 4. Equal texts count once. If there are more than
    `most` texts, that many are drawn with `seed`. `positives` is the number of similar pairs, and
    `texts` the number of texts.
    """
    low = float(pairs.scores.min())
    high = float(pairs.scores.max())
    limit = low + 4 / 5 * (high - low) if above is None else above
    # A score stored in single precision can miss the limit slightly: 0.8 is then 0.80000001.
    similar = np.flatnonzero(pairs.scores > limit + 1e-6 * (high - low))
    if not len(similar):
        raise DataError(
            f"{pairs.name}: no pair is scored above {limit:g}; the scores go from {low:g} to {high:g}"
        )
    chosen = list(dict.fromkeys(texts))
    if len(chosen) < 2:
        raise DataError(
            f"{len(chosen)} texts were given; uniformity needs at least two that differ"
        )
    if len(chosen) > most:
        drawn = np.random.default_rng(seed).choice(len(chosen), most, replace=False)
        chosen = [chosen[i] for i in np.sort(drawn)]
    similar_first = [pairs.first[i] for i in similar]
    similar_second = [pairs.second[i] for i in similar]
    first, second, z = _encode_columns(encode, [similar_first, similar_second, chosen])
    return {
        "alignment": metrics.alignment(first, second),
        "uniformity": metrics.uniformity(z),
        "anisotropy": metrics.anisotropy(z),
        "positives": len(similar),
        "texts": len(chosen),
    }


def labelled_scores(
    encode: Encode, train: Examples, test: Examples, *, k: int = 10
) -> dict[str, float]:
    """Accuracy of the k nearest neighbours and of a linear probe on the vectors; `n` test rows."""
    for part in (train, test):
        if not len(part):
            raise DataError(f"{part.name} is empty: there is no text")
        if part.pairs is not None:
            raise DataError(
                f"{part.name} holds pairs of texts; an embedding is scored on single texts"
            )
    check_classes(train, what="a probe")
    z, test_z = _encode_columns(encode, [train.texts, test.texts])
    y = np.asarray(train.required_labels)
    test_y = np.asarray(test.required_labels)
    return {
        "knn_accuracy": metrics.knn_accuracy(z, y, test_z, test_y, k=k),
        "probe_accuracy": metrics.probe_accuracy(z, y, test_z, test_y),
        "n": len(test),
    }


def retrieval_scores(encode: Encode, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """How well queries find their answers: mrr, recall@1, recall@5 and recall@10; `n` queries.

    Each query is compared with all answers. Equal answers are one document, and equal queries are
    one query with several answers.
    """
    if not pairs:
        raise DataError("there are no pairs of query and answer")
    answers = list(dict.fromkeys(answer for _, answer in pairs))
    number_of = {answer: number for number, answer in enumerate(answers)}
    relevant: dict[str, list[int]] = {}
    for query, answer in pairs:
        relevant.setdefault(query, []).append(number_of[answer])
    queries, documents = _encode_columns(encode, [list(relevant), answers])
    scores = metrics.retrieval_scores(queries, documents, list(relevant.values()))
    return {**scores, "n": len(relevant)}


def _encode_columns(encode: Encode, columns: Sequence[Sequence[str]]) -> list[Vectors]:
    """The vectors of each column of texts; a text that occurs several times is encoded once."""
    texts = list(dict.fromkeys(text for column in columns for text in column))
    vectors = np.asarray(encode(texts))
    if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
        raise ModelError(
            f"the encoder returned vectors of the shape {vectors.shape} for {len(texts)} texts; "
            "expected one row per text"
        )
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        text = texts[int(wrong[0])]
        others = f"; {len(wrong) - 1} more vectors are not finite" if len(wrong) > 1 else ""
        raise ModelError(f"the vector that the encoder made of {text[:60]!r} is not finite{others}")
    row_of = {text: row for row, text in enumerate(texts)}
    return [vectors[[row_of[text] for text in column]] for column in columns]


# ---------------------------------------------------------------- suites


def _print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def evaluate_suite(
    encode: Encode,
    names: str | Path | Sequence[str | Path],
    *,
    measures: Sequence[str] = ("spearman",),
    log: Callable[[str], None] = _print_to_stderr,
) -> list[Score]:
    """Scores on suites, data sets of suites, and files or folders of scored pairs, in that order.

    A known data set that is not available is skipped, and `log` gets a message. This is an error
    only if nothing else was asked for. Geometry is measured on the texts of the set itself.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(f"unknown measure {measure}{did_you_mean(measure, MEASURES)}")
    sets = read_suites(names, log=log)  # errors in any of them are reported before scoring starts
    return [score for pairs in sets for score in _score_set(encode, pairs, measures)]


def _score_set(encode: Encode, pairs: ScoredPairs, measures: Sequence[str]) -> list[Score]:
    """The scores on one set of pairs, whose texts are encoded once for all measures."""
    vectors: dict[str, Vectors] = {}

    def encode_once(texts: list[str]) -> Vectors:
        if not vectors:
            (rows,) = _encode_columns(encode, [pairs.texts])
            vectors.update(zip(pairs.texts, rows, strict=True))
        return np.stack([vectors[text] for text in texts])

    values: dict[str, float] = {}
    if any(measure not in _GEOMETRY for measure in measures):
        values |= sts_scores(encode_once, pairs)
    if any(measure in _GEOMETRY for measure in measures):
        values |= geometry_scores(encode_once, pairs, pairs.texts)
    counts = {"alignment": "positives", "uniformity": "texts", "anisotropy": "texts"}
    return [
        Score(pairs.name, measure, values[measure], int(values[counts.get(measure, "n")]))
        for measure in measures
        if measure in values  # a set without groups has no mean over groups
    ]


def score_rows(data: str, values: dict[str, float]) -> list[Score]:
    """The values of `sts_scores`, `labelled_scores` or `retrieval_scores` as rows of a table."""
    count = int(values["n"])
    return [Score(data, name, value, count) for name, value in values.items() if name != "n"]


# ---------------------------------------------------------------- tables


def scores_table(scores: dict[str, list[Score]]) -> str:
    """A Markdown table with a row per data set and measure, and a column per model.

    Below stands the mean of each suite. Accuracies and correlations are multiplied by 100. A mean
    is shown only if a model has scores on all sets of the suite that occur in the table, so that
    all means of a row are over the same sets.
    """
    cells: dict[tuple[str, str], dict[str, Score]] = {}
    for model, rows in scores.items():
        for row in rows:
            cell = cells.setdefault((row.data, row.measure), {})
            if cell.setdefault(model, row) != row:
                raise DataError(f"{model} has two different values of {row.measure} on {row.data}")
    lines = [
        "| " + " | ".join(["data", "measure", "n", *map(_escaped, scores)]) + " |",
        "| --- | --- | ---: |" + " ---: |" * len(scores),
    ]
    for (data, measure), by_model in cells.items():
        counts = dict.fromkeys(score.n for score in by_model.values())
        shown = [
            _format_value(measure, by_model[model].value) if model in by_model else "–"
            for model in scores
        ]
        n = " / ".join(f"{count:,}" for count in counts)
        lines.append(_table_line(_escaped(data), measure, n, shown))
    for suite in SUITES:
        lines += _mean_of_suite(suite, cells, list(scores))
    return "\n".join(lines) + "\n"


def _mean_of_suite(
    suite: str, cells: dict[tuple[str, str], dict[str, Score]], models: Sequence[str]
) -> list[str]:
    """The line with the means of a suite, if the table has at least two sets of it."""
    members = SUITES[suite]
    present = [cells[data, "spearman"] for data in members if (data, "spearman") in cells]
    if len(present) < 2:
        return []
    means: list[str] = []
    for model in models:
        values = [by_model[model].value for by_model in present if model in by_model]
        is_complete = len(values) == len(present)
        means.append(_format_value("spearman", float(np.mean(values))) if is_complete else "–")
    title = f"{suite.upper() if suite == 'sts' else suite} average"
    return [_table_line(title, "spearman", f"{len(present)} of {len(members)} sets", means)]


def _table_line(data: str, measure: str, n: str, values: Sequence[str]) -> str:
    label = measure if measure in _GEOMETRY else f"{measure} × 100"
    return f"| {data} | {label} | {n} | {' | '.join(values)} |"


def _format_value(measure: str, value: float) -> str:
    return f"{value:.3f}" if measure in _GEOMETRY else f"{100 * value:.2f}"


def _escaped(name: str) -> str:
    return name.replace("|", "\\|")
