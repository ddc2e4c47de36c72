"""The statistics of a study in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from closeknit.studies.statistics.lines import Line
from closeknit.studies.statistics.optimism import Optimism
from closeknit.studies.statistics.overall import OverallGain
from closeknit.studies.statistics.paired_tests import SIGNIFICANCE, Difference

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


def truncated_shares(lines: Sequence[Line]) -> dict[str, str]:
    """The share of the training texts that were cut, for each data set that has such texts."""
    largest: dict[str, float] = {}
    for line in lines:
        if line.truncated:
            largest[line.data] = max(line.truncated, largest.get(line.data, 0.0))
    return {
        data: f"{100 * share:.0f} %" if share >= 0.005 else "less than 1 %"
        for data, share in largest.items()
    }


def truncation_in_words(lines: Sequence[Line]) -> str:
    """One sentence that says for each data set how many training texts were cut; or nothing."""
    shares = truncated_shares(lines)
    if not shares:
        return ""
    of_data_sets = ", ".join(f"{data} {share}" for data, share in shares.items())
    return f"Training texts that are longer than encoder.max_length and were cut: {of_data_sets}."


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
