"""The scores of encoders as rows: of one suite, and of several models as a table. Without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from closeknit.data.scored_pairs import SUITES, ScoredPairs, read_suites
from closeknit.embeddings.scores import (
    Encode,
    Vectors,
    encode_columns,
    geometry_scores,
    sts_scores,
)
from closeknit.errors import ConfigError, DataError, did_you_mean

MEASURES = ("spearman", "pearson", "spearman_of_groups", "alignment", "uniformity", "anisotropy")
_GEOMETRY = ("alignment", "uniformity", "anisotropy")  # shown as they are; all others times 100


@dataclass(frozen=True)
class Score:
    """One value of a measure on a data set, and the number of pairs or texts that it is over."""

    data: str
    measure: str
    value: float
    n: int
    kind: str = ""  # of the evaluation; scores of one kind and measure have a mean in the table


# Kind of evaluation, data set and measure -> model -> its score.
Cells = dict[tuple[str, str, str], dict[str, Score]]

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

    A known data set that is not available is skipped, and so are pairs that all have one score;
    `log` gets a message. This is an error only if nothing is left. Geometry is measured on the
    texts of the set itself.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(f"unknown measure {measure}{did_you_mean(measure, MEASURES)}")
    sets = read_suites(names, log=log)  # errors in any of them are reported before scoring starts
    return [score for pairs in sets for score in score_pairs(encode, pairs, measures)]


def score_pairs(encode: Encode, pairs: ScoredPairs, measures: Sequence[str]) -> list[Score]:
    """The scores on one set of pairs, whose texts are encoded once for all measures."""
    vectors: dict[str, Vectors] = {}

    def encode_once(texts: list[str]) -> Vectors:
        if not vectors:
            (rows,) = encode_columns(encode, [pairs.texts])
            vectors.update(zip(pairs.texts, rows, strict=True))
        return np.stack([vectors[text] for text in texts])

    values: dict[str, float] = {}
    if any(measure not in _GEOMETRY for measure in measures):
        values |= sts_scores(encode_once, pairs)
    if any(measure in _GEOMETRY for measure in measures):
        values |= geometry_scores(encode_once, pairs, pairs.texts)
    counts = {"alignment": "positives", "uniformity": "texts", "anisotropy": "texts"}
    return [
        Score(pairs.name, measure, values[measure], int(values[counts.get(measure, "n")]), "pairs")
        for measure in measures
        if measure in values  # a set without groups has no mean over groups
    ]


def score_rows(data: str, values: dict[str, float], kind: str = "") -> list[Score]:
    """The values of a function of `closeknit.embeddings.scores` as rows of a table."""
    count = int(values["n"])
    return [Score(data, name, value, count, kind) for name, value in values.items() if name != "n"]


# ---------------------------------------------------------------- tables


def scores_table(scores: dict[str, list[Score]]) -> str:
    """A Markdown table with a row per data set and measure, and a column per model.

    Below stands the mean of each suite, and of each kind of evaluation with several data sets, such
    as several languages. Accuracies and correlations are multiplied by 100. A mean is shown only if
    a model has scores on all of its sets that occur in the table, so that all means of a row are
    over the same sets.
    """
    cells: Cells = {}
    for model, rows in scores.items():
        for row in rows:
            cell = cells.setdefault((row.kind, row.data, row.measure), {})
            if cell.setdefault(model, row) != row:
                raise DataError(f"{model} has two different values of {row.measure} on {row.data}")
    lines = [
        "| " + " | ".join(["data", "measure", "n", *map(_escaped, scores)]) + " |",
        "| --- | --- | ---: |" + " ---: |" * len(scores),
    ]
    for (_, data, measure), by_model in cells.items():
        counts = dict.fromkeys(score.n for score in by_model.values())
        shown = [
            _format_value(measure, by_model[model].value) if model in by_model else "–"
            for model in scores
        ]
        n = " / ".join(f"{count:,}" for count in counts)
        lines.append(_table_line(_escaped(data), measure, n, shown))
    correlations = {
        data: cell for (_, data, measure), cell in cells.items() if measure == "spearman"
    }
    for suite, members in SUITES.items():
        present = [correlations[data] for data in members if data in correlations]
        title = f"{suite.upper() if suite == 'sts' else suite} average"
        of_all = f"{len(present)} of {len(members)} sets"
        lines += _mean_line(title, "spearman", of_all, present, list(scores))
    for (kind, measure), found in _several_sets(cells).items():
        lines += _mean_line(f"{kind} average", measure, f"{len(found)} sets", found, list(scores))
    return "\n".join(lines) + "\n"


def _several_sets(cells: Cells) -> dict[tuple[str, str], list[dict[str, Score]]]:
    """The cells of each kind and measure; the sets of suites have means of their own."""
    in_suites = {data for members in SUITES.values() for data in members}
    found: dict[tuple[str, str], list[dict[str, Score]]] = {}
    for (kind, data, measure), by_model in cells.items():
        if kind == "pairs" and (data in in_suites or measure != "spearman"):
            continue
        if kind:
            found.setdefault((kind, measure), []).append(by_model)
    return found


def _mean_line(
    title: str,
    measure: str,
    count: str,
    cells: Sequence[Mapping[str, Score]],
    models: Sequence[str],
) -> list[str]:
    """The line with the mean of each model over several sets; no line for fewer than two sets."""
    if len(cells) < 2:
        return []
    means: list[str] = []
    for model in models:
        values = [by_model[model].value for by_model in cells if model in by_model]
        is_complete = len(values) == len(cells)
        means.append(_format_value(measure, float(np.mean(values))) if is_complete else "–")
    return [_table_line(title, measure, count, means)]


def _table_line(data: str, measure: str, n: str, values: Sequence[str]) -> str:
    label = measure if measure in _GEOMETRY else f"{measure} × 100"
    return f"| {data} | {label} | {n} | {' | '.join(values)} |"


def _format_value(measure: str, value: float) -> str:
    return f"{value:.3f}" if measure in _GEOMETRY else f"{100 * value:.2f}"


def _escaped(name: str) -> str:
    return name.replace("|", "\\|")
