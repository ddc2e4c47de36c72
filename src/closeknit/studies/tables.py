"""Statistics of a study as tables in Markdown and CSV, and as sentences."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from closeknit.studies.statistics import (
    ACCURACY,
    F1,
    SIGNIFICANCE,
    SIZE_GROUPS,
    Difference,
    Figure,
    Line,
    Optimism,
    OverallGain,
    overall_gains,
    published_for,
    size_group,
    standings,
)

HOW_TESTED_ON_FOLDS = (
    "Each gain is tested with the corrected resampled t-test of Nadeau and Bengio over runs paired by seed and fold, "
    "because folds share training rows."
)
HOW_TESTED_ON_ONE_PART = (
    "Each gain is tested over seeds and test rows together, on the same test rows for both objectives: the variance of "
    "the mean difference is that over test rows (jackknife) plus that over seeds, because several seeds on the same test "
    "rows are no independent draws of rows, and rows alone say nothing about another seed. The statement holds for "
    "training rows from this training part."
)
HOW_CORRECTED = (
    "Its p-value is corrected with Holm's method over data sets and sizes. Over data "
    "sets, the mean gains are tested with a t-test, corrected with Holm's method over objectives; data sets that share "
    "texts count once together."
)


_OPTIMISTIC = "optimistic: the settings were chosen on the same folds that are reported."
EQUAL_DIFFERENCES = (
    "it cannot be told whether this is chance, because all runs differ by the same amount, so that "
    "nothing is known of the spread"
)
SIMILAR_TEXTS = (
    "Similar texts, different labels: accuracy on the test rows whose nearest training text has another label. Nearest "
    "is by the words alone (cosine of tf-idf vectors), so these rows are the same for all objectives."
)
CONFIDENCE = (
    "Confidence: the mean entropy of the predicted probabilities in bits. 0 is certain; a lower value is no better by "
    "itself. Differences to the baseline are tested like the gains, with Holm's correction over this table."
)


def means_in_words(lines: Sequence[Line]) -> str:
    """Over which runs the means are, where some runs are left out; empty if none are."""
    shown: list[str] = []
    for data, size in dict.fromkeys((line.data, line.size) for line in lines):
        cell = [line for line in lines if (line.data, line.size) == (data, size)]
        where = f"{data} ({cell[0].rows_in_words} rows)" if not cell[0].shots else data
        left_out = [f"{one.left_out} of {one.objective}" for one in cell if one.left_out]
        if left_out:
            runs = "the 1 run" if cell[0].runs == 1 else f"the {cell[0].runs} runs"
            shown.append(f"on {where} over {runs} that all have, without {', '.join(left_out)}")
        shown += [
            f"{one.objective} on {where} has no seed and fold that all others have, so its mean is "
            f"over {one.runs} runs of its own and cannot be compared"
            for one in cell
            if one.alone
        ]
    if not shown:
        return ""
    return (
        "Means are over the seeds and folds that all objectives of a data set have: "
        + "; ".join(shown)
        + ". Each gain is over all runs that an objective shares with the baseline. Finish the "
        "missing runs to use all of them."
    )


def optimistic_in_words(lines: Sequence[Line]) -> str:
    """Whose scores are optimistic, and why; empty if no settings were chosen on reported folds."""
    names = list(dict.fromkeys(line.objective for line in lines if line.optimistic))
    if not names:
        return ""
    if all(line.optimistic for line in lines):
        return f"These scores are {_OPTIMISTIC}"
    others = "The settings of the others were not."
    return f"The scores of {' and '.join(names)} are {_OPTIMISTIC} {others}"


def how_tested(lines: Sequence[Line]) -> str:
    """Which test was made, and why."""
    on_folds = all(line.test == "folds" for line in lines)
    return f"{HOW_TESTED_ON_FOLDS if on_folds else HOW_TESTED_ON_ONE_PART} {HOW_CORRECTED}"


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
    "test",
    "shots",
    "near_other_label_rows",
    "near_other_label_accuracy",
    "entropy_bits",
)

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
        f"{line.data} ({_size_in_words(line)}); {_significance_in_words(line, comparisons)}."
    )


def _size_in_words(line: Line) -> str:
    return f"{line.shots} rows per class" if line.shots else f"{line.size:,} rows"


def _significance_in_words(line: Line, comparisons: int | None) -> str:
    if line.pairs < 2 or line.gain is None:
        return "one paired run is not enough for a test"
    if not line.gain.is_tested and line.lacks_predictions:
        return "the stored predictions that a test needs are missing"
    runs = f"{line.pairs} paired runs"
    if line.test != "folds":
        runs = f"{line.pairs} seeds and {line.test_rows:,} test rows"
    if not line.gain.is_tested:
        return f"with {runs}, {EQUAL_DIFFERENCES}"
    p_value = line.gain.p_value if line.p_holm is None else line.p_holm
    p = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
    if comparisons is not None and comparisons > 1:
        p += f" after Holm's correction for {comparisons} comparisons"
    elif p_value > line.gain.p_value:
        p += " after correction for several comparisons"
    if p_value < SIGNIFICANCE:
        return f"with {runs}, chance alone is unlikely to explain this, {p}"
    return f"with {runs}, this could be chance, {p}"


def overall_in_words(overall: OverallGain, baseline: str) -> str:
    """One sentence on the mean gain of an objective over data sets."""
    verb, preposition = _direction(overall.gain)
    counted = ""
    if overall.comparisons > overall.data_sets:
        counted = (
            f" ({overall.comparisons} comparisons, because some are compared at several sizes)"
        )
    if overall.pools < overall.data_sets:
        counted += f" (counted as {overall.pools}, because some share texts)"
    points = abs(100 * overall.gain.mean)
    gain = (
        f"Over {overall.data_sets} data sets of size {overall.group}{counted}, {overall.objective} {verb} {points:.2f} "
        f"points {preposition} {baseline} on average"
    )
    if not overall.gain.is_tested:
        return f"{gain}; {EQUAL_DIFFERENCES}."
    chance = "this could be chance"
    if overall.p_holm < SIGNIFICANCE:
        chance = "chance alone is unlikely to explain this"
    correction = ""
    if overall.p_holm > overall.gain.p_value:
        correction = " after correction for several objectives"
    bounds = f"{100 * overall.gain.low:+.2f} to {100 * overall.gain.high:+.2f}"
    return (
        f"{gain} (95 % interval {bounds}); {chance}: "
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
            gain[0] = line.gain.mean
            if line.gain.is_tested:
                gain[1:] = [line.gain.low, line.gain.high, line.gain.p_value]
        p_holm = "" if line.p_holm is None else line.p_holm
        scores = [line.f1_mean, line.f1_std if line.runs > 1 else ""]
        near: list[Any] = ["", ""]
        if line.near is not None:
            near = [line.near.rows, "" if line.near.accuracy is None else line.near.accuracy]
        entropy = "" if line.confidence is None else line.confidence.entropy
        more = [line.test, line.shots, *near, entropy]
        first = [line.data, line.size, line.objective, line.runs]
        writer.writerow([*first, *scores, *gain, p_holm, *more])
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
            mean_and_spread(line) + (" (alone)" if line.alone else "") if line else ""
            for line in in_order
        ]
        means = [100 * line.f1_mean for line in in_order if line and not line.alone]
        average = f"{sum(means) / len(means):.2f}" if len(means) == len(cells) else ""
        rows.append(_table_row(_escaped(objective), *scores, average))
    any_line = {(line.data, line.size): line for line in lines}
    figures = [[one for one in published_for(any_line[cell]) if one.metric == F1] for cell in cells]
    return "\n".join(rows + _published_rows(figures))


def _published_rows(figures: Sequence[Sequence[Figure]]) -> list[str]:
    """A row for each encoder and objective with printed figures; one list of them per column."""
    names = dict.fromkeys(
        (one.paper, one.encoder, one.objective) for column in figures for one in column
    )
    rows = []
    for paper, encoder, objective in names:
        cells = []
        for column in figures:
            found = [one for one in column if (one.encoder, one.objective) == (encoder, objective)]
            notes = [f" ({one.note})" if one.note else "" for one in found]
            cells.append(
                "".join(f"{one.score:.2f}{note}" for one, note in zip(found, notes, strict=True))
            )
        rows.append(_table_row(f"*{objective}, published, {encoder} ({paper} paper)*", *cells, ""))
    return rows


def accuracy_table(lines: Sequence[Line]) -> str:
    """Accuracy beside the accuracy that papers print; empty if they print none for this data.

    The papers test on official test parts, after training on all training rows.
    """
    any_line = {(line.data, line.size): line for line in lines}
    printed = {
        cell: [one for one in published_for(line) if one.metric == ACCURACY]
        for cell, line in any_line.items()
    }
    cells = [cell for cell in any_line if printed[cell]]
    if not cells:
        return ""
    rows = [
        _table_row("accuracy", *(f"{_escaped(data)} ({size:,})" for data, size in cells), ""),
        "|---|" + "---|" * (len(cells) + 1),
    ]
    for objective in dict.fromkeys(line.objective for line in lines):
        means = {
            (line.data, line.size): _points(line.accuracy_mean)
            for line in lines
            if line.objective == objective
        }
        scores = [means.get(cell, "") for cell in cells]
        rows.append(_table_row(_escaped(objective), *scores, ""))
    rows += _published_rows([printed[cell] for cell in cells])
    about = (
        "Published accuracy, on official test parts and after training on all training rows, with "
        "other encoders (20 Newsgroups with headers). It is no weighted F1."
    )
    return f"{about}\n\n" + "\n".join(rows)


def near_table(lines: Sequence[Line]) -> str:
    """Accuracy on the test rows whose nearest training text has another label; empty if unknown."""
    known = [(line, line.near) for line in lines if line.near is not None]
    if not known:
        return ""
    rows = [
        "| data | rows | objective | such test rows per run | accuracy on them | accuracy on all |",
        "|---|---|---|---|---|---|",
    ]
    for line, near in known:
        rows.append(
            _table_row(
                _escaped(line.data),
                line.rows_in_words,
                _escaped(line.objective),
                f"{near.rows:,}",
                "" if near.accuracy is None else _points(near.accuracy),
                _points(line.accuracy_mean),
            )
        )
    return f"{SIMILAR_TEXTS}\n\n" + "\n".join(rows)


def confidence_table(lines: Sequence[Line]) -> str:
    """The mean entropy of the predictions in bits, with its test; empty if unknown."""
    known = [(line, line.confidence) for line in lines if line.confidence is not None]
    if not known:
        return ""
    rows = [
        "| data | rows | objective | entropy (bits) | difference (95 % interval) | p | p, Holm |",
        "|---|---|---|---|---|---|---|",
    ]
    for line, confidence in known:
        difference = confidence.difference
        cells = ["", "", ""]
        if difference is not None:
            cells[0] = f"{difference.mean:+.3f}"
            if difference.is_tested:
                cells[0] += f" ({difference.low:+.3f} to {difference.high:+.3f})"
                cells[1:] = [f"{difference.p_value:.3f}", f"{confidence.p_holm:.3f}"]
        rows.append(
            _table_row(
                _escaped(line.data),
                line.rows_in_words,
                _escaped(line.objective),
                f"{confidence.entropy:.3f}",
                *cells,
            )
        )
    return f"{CONFIDENCE}\n\n" + "\n".join(rows)


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
            if line.gain.is_tested and line.p_holm is not None:
                gain += f" ({100 * line.gain.low:+.2f} to {100 * line.gain.high:+.2f})"
                gain += f", {line.pairs} pairs" if line.pairs != line.runs else ""
                p_value = f"{line.gain.p_value:.3f}"
                p_holm = f"{line.p_holm:.3f}"
        rows.append(
            _table_row(
                _escaped(line.data),
                line.rows_in_words,
                _escaped(line.objective),
                str(line.runs),
                mean_and_spread(line),
                _points(line.accuracy_mean),
                gain,
                p_value,
                p_holm,
                f"{line.seconds:.1f}",
            )
        )
    return "\n".join(rows)


def markdown_report(
    lines: Sequence[Line], baseline: str, optimistic: Sequence[Optimism] = ()
) -> str:
    """All tables and sentences of a study in Markdown.

    `optimistic` are the unbiased estimates where settings were chosen on the reported folds; there
    are none if no trials are stored.
    """
    parts = []
    if any(line.optimistic for line in lines):
        estimates = [_escaped(optimism_in_words(estimate)) for estimate in optimistic]
        parts.append(" ".join([f"**{_escaped(optimistic_in_words(lines))}**", *estimates]))
    parts += [paper_table(lines), markdown_table(lines), _standings_list(lines, baseline)]
    over_data_sets = [overall_in_words(overall, baseline) for overall in overall_gains(lines)]
    parts.append("\n".join(f"- {_escaped(sentence)}" for sentence in over_data_sets))
    gains = [gain_in_words(line, baseline) for line in lines if line.gain is not None]
    parts.append("\n".join(f"- {_escaped(sentence)}" for sentence in gains))
    parts.append(_escaped(means_in_words(lines)))
    parts.append(how_tested(lines))
    parts += [accuracy_table(lines), near_table(lines), confidence_table(lines)]
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


def mean_and_spread(line: Line) -> str:
    """The mean score with its standard deviation over runs; one run has no deviation."""
    mean = _points(line.f1_mean)
    return mean if line.runs < 2 else f"{mean} ± {_points(line.f1_std)}"


def _table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _points(score: float) -> str:
    return f"{100 * score:.2f}"


def _escaped(text: str) -> str:
    """The text on one line, with Markdown's special characters escaped."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
