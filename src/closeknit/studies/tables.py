"""Statistics of a study as tables in Markdown and CSV, and as sentences."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from closeknit.studies.statistics import (
    SIGNIFICANCE,
    SIZE_GROUPS,
    Difference,
    Line,
    Optimism,
    OverallGain,
    overall_gains,
    size_group,
    standings,
)

OPTIMISTIC = (
    "These scores are optimistic: the settings were chosen on the same folds that are reported."
)
HOW_TESTED = (
    "Each gain is tested with the corrected resampled t-test of Nadeau and Bengio over runs paired by seed and fold, "
    "because folds share training rows. Its p-value is corrected with Holm's method over data sets and sizes. Over data "
    "sets, the mean gains are tested with a t-test, corrected with Holm's method over objectives; data sets that share "
    "texts count once together."
)
CSV_COLUMNS = (
    "data",
    "size",
    "objective",
    "runs",
    "weighted_f1_mean",
    "weighted_f1_std",
    "delta",
    "delta_low",
    "delta_high",
    "p_value",
    "p_holm",
)

# Weighted F1 in points with RoBERTa-base, as (cross-entropy, TripleEntropy).
# Source: tables II to V of the TripleEntropy paper.
_PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "S": {
        "sst2": (88.63, 89.09), "imdb": (81.00, 81.45), "subj": (94.61, 94.70), "mpqa": (87.75, 87.93),
        "mrpc": (78.01, 79.12), "trec": (79.80, 82.09), "cr": (91.57, 92.16), "mr": (85.89, 86.39),
    },
    "M": {"mrpc": (83.11, 84.39), "trec": (96.19, 97.19), "cr": (93.28, 93.58)},
    "L": {
        "sst2": (92.63, 92.79), "imdb": (85.12, 85.23), "subj": (96.83, 97.15), "mpqa": (91.08, 91.30),
        "mr": (89.09, 89.29),
    },
    "XL": {"sst2": (94.89, 94.95), "imdb": (87.10, 87.12)},
}  # fmt: skip


def published(data: str, size: int) -> dict[str, float]:
    """The published weighted F1 in points by objective, with RoBERTa-base.

    The table is empty if nothing is published for this data.
    """
    name = "".join(letter for letter in data.lower() if letter.isalnum())
    scores = _PUBLISHED[size_group(size)].get(name)
    if scores is None:
        return {}
    return dict(zip(("cross_entropy", "triple_entropy"), scores, strict=True))


# ---------------------------------------------------------------- sentences


def gain_in_words(line: Line, baseline: str, comparisons: int | None = None) -> str:
    """One sentence that says how large a gain is, and whether chance could explain it.

    `comparisons` is the number of tests for which the p-value is corrected; it is named if given.
    """
    if line.gain is None:
        if line.objective == baseline:
            return f"{line.objective} is the baseline."
        return f"{line.objective} has no paired runs yet."
    verb, preposition = _direction(line.gain)
    points = abs(100 * line.gain.mean)
    return (
        f"{line.objective} {verb} {points:.2f} points of weighted F1 {preposition} {baseline} on "
        f"{line.data} ({line.size:,} rows); {_significance_in_words(line, comparisons)}."
    )


def _significance_in_words(line: Line, comparisons: int | None) -> str:
    if line.pairs < 2 or line.gain is None:
        return "one paired run is not enough for a test"
    p_value = line.gain.p_value if line.p_holm is None else line.p_holm
    p = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
    if comparisons is not None and comparisons > 1:
        p += f" after Holm's correction for {comparisons} comparisons"
    elif p_value > line.gain.p_value:
        p += " after correction for several comparisons"
    if p_value < SIGNIFICANCE:
        return f"with {line.pairs} paired runs, chance alone is unlikely to explain this, {p}"
    return f"with {line.pairs} paired runs, this could be chance, {p}"


def overall_in_words(overall: OverallGain, baseline: str) -> str:
    """One sentence on the mean gain of an objective over data sets."""
    verb, preposition = _direction(overall.gain)
    counted = ""
    if overall.pools < overall.data_sets:
        counted = f" (counted as {overall.pools}, because some share texts)"
    chance = "this could be chance"
    if overall.p_holm < SIGNIFICANCE:
        chance = "chance alone is unlikely to explain this"
    correction = ""
    if overall.p_holm > overall.gain.p_value:
        correction = " after correction for several objectives"
    points = abs(100 * overall.gain.mean)
    bounds = f"{100 * overall.gain.low:+.2f} to {100 * overall.gain.high:+.2f}"
    return (
        f"Over {overall.data_sets} data sets of size {overall.group}{counted}, {overall.objective} {verb} {points:.2f} "
        f"points {preposition} {baseline} on average (95 % interval {bounds}); {chance}: "
        f"p = {overall.p_holm:.2g}{correction} (Wilcoxon's signed-rank test, uncorrected: p = {overall.p_signed_rank:.2g})."
    )


def _direction(gain: Difference) -> tuple[str, str]:
    """The verb and the preposition for a gain or a loss."""
    return ("gains", "over") if gain.mean >= 0 else ("loses", "against")


def optimism_in_words(estimate: Optimism) -> str:
    """One sentence with the score as reported, the unbiased estimate, and their difference."""
    difference = 100 * (estimate.reported - estimate.honest)
    return (
        f"{estimate.objective} on {estimate.data} ({estimate.size:,} rows): {100 * estimate.reported:.2f} as reported, "
        f"{100 * estimate.honest:.2f} if each fold is left out of the choice, {difference:+.2f} points."
    )


# ---------------------------------------------------------------- tables


def csv_table(lines: Sequence[Line]) -> str:
    """The lines as CSV with scores from 0 to 1; cells without a value are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for line in lines:
        gain: list[Any] = ["", "", "", ""]
        if line.gain is not None:
            gain = [line.gain.mean, line.gain.low, line.gain.high, line.gain.p_value]
        p_holm = "" if line.p_holm is None else line.p_holm
        scores = [line.f1_mean, line.f1_std]
        writer.writerow([line.data, line.size, line.objective, line.runs, *scores, *gain, p_holm])
    return text.getvalue()


def paper_table(lines: Sequence[Line]) -> str:
    """A Markdown table laid out like those of the TripleEntropy paper.

    Columns are grouped by size. The published scores of the paper follow where there are some.
    """
    cells = sorted(
        dict.fromkeys((line.data, line.size) for line in lines),
        key=lambda cell: SIZE_GROUPS.index(size_group(cell[1])),
    )
    by_place = {(line.data, line.size, line.objective): line for line in lines}
    objectives = list(dict.fromkeys(line.objective for line in lines))
    headers = [f"{size_group(size)}: {_escaped(data)} ({size:,})" for data, size in cells]
    rows = [_table_row("weighted F1", *headers, "average"), "|---|" + "---|" * (len(cells) + 1)]
    for objective in objectives:
        in_order = [by_place.get((*cell, objective)) for cell in cells]
        scores = [
            f"{_points(line.f1_mean)} ± {_points(line.f1_std)}" if line else "" for line in in_order
        ]
        means = [100 * line.f1_mean for line in in_order if line]
        average = f"{sum(means) / len(means):.2f}" if len(means) == len(cells) else ""
        rows.append(_table_row(_escaped(objective), *scores, average))
    figures = [published(*cell) for cell in cells]
    for objective in objectives:
        if any(objective in known for known in figures):
            scores = [f"{known[objective]:.2f}" if objective in known else "" for known in figures]
            name = f"*{objective}, published, RoBERTa-base (another encoder)*"
            rows.append(f"| {name} | " + " | ".join(scores) + " | |")
    return "\n".join(rows)


def markdown_table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table with gains and tests; scores are in points (times 100)."""
    rows = [
        "| data | rows | objective | runs | weighted F1 | accuracy | gain (95 % interval) | p | p, Holm "
        "| seconds per run |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        gain = p_value = p_holm = ""
        if line.gain is not None:
            gain = f"{100 * line.gain.mean:+.2f}"
            if math.isfinite(line.gain.low):  # a single pair has no interval
                gain += f" ({100 * line.gain.low:+.2f} to {100 * line.gain.high:+.2f})"
            p_value = f"{line.gain.p_value:.3f}"
            p_holm = f"{line.p_holm:.3f}"
        rows.append(
            _table_row(
                _escaped(line.data),
                f"{line.size:,}",
                _escaped(line.objective),
                str(line.runs),
                f"{_points(line.f1_mean)} ± {_points(line.f1_std)}",
                _points(line.accuracy_mean),
                gain,
                p_value,
                p_holm,
                f"{line.seconds:.1f}",
            )
        )
    return "\n".join(rows)


def markdown_report(
    lines: Sequence[Line], baseline: str, optimistic: Sequence[Optimism] | None = None
) -> str:
    """All tables and sentences of a study in Markdown.

    `optimistic` is given if settings were chosen on the reported folds; it may be empty if no
    trials are stored.
    """
    parts = []
    if optimistic is not None:
        estimates = [_escaped(optimism_in_words(estimate)) for estimate in optimistic]
        parts.append(" ".join([f"**{OPTIMISTIC}**", *estimates]))
    parts += [paper_table(lines), markdown_table(lines), _standings_list(lines, baseline)]
    over_data_sets = [overall_in_words(overall, baseline) for overall in overall_gains(lines)]
    parts.append("\n".join(f"- {_escaped(sentence)}" for sentence in over_data_sets))
    gains = [gain_in_words(line, baseline) for line in lines if line.gain is not None]
    parts.append("\n".join(f"- {_escaped(sentence)}" for sentence in gains))
    parts.append(HOW_TESTED)
    return "\n\n".join(part for part in parts if part) + "\n"


def _standings_list(lines: Sequence[Line], baseline: str) -> str:
    counts = [
        f"- {_escaped(objective)}: {wins} wins, {ties} ties, {losses} losses"
        for objective, (wins, ties, losses) in standings(lines).items()
    ]
    if not counts:
        return ""
    return (
        f"Against {_escaped(baseline)}, over data sets and sizes (a difference with p ≥ 0.05 after Holm's correction is a "
        "tie):\n\n" + "\n".join(counts)
    )


def _table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _escaped(text: str) -> str:
    """The text on one line, with Markdown's special characters escaped."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
