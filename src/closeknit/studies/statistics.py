"""Statistics of result rows: means, paired tests, and the optimism of chosen settings.

Nothing here trains or loads a model. `study_tables` writes these numbers as tables and sentences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from closeknit.data.catalogue import text_pool

SIGNIFICANCE = 0.05  # a corrected p-value below it counts as a clear difference
SIZE_GROUPS = ("S", "M", "L", "XL")
LEAST_DATA_SETS = 3  # independent ones; with fewer, nothing is tested over data sets


class Scored(Protocol):
    """What the statistics need to know of a run."""

    @property
    def data(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def objective(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def fold(self) -> int: ...
    @property
    def folds(self) -> int: ...
    @property
    def weighted_f1(self) -> float: ...
    @property
    def accuracy(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def source(self) -> str: ...


@dataclass(frozen=True)
class Difference:
    """A mean difference over paired runs, its 95 % confidence interval, and its p-value."""

    mean: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Line:
    """The means of one objective on one data set at one size, and its gain over the baseline."""

    data: str
    size: int
    objective: str
    runs: int
    f1_mean: float
    f1_std: float
    accuracy_mean: float
    seconds: float
    gain: Difference | None
    p_holm: float | None
    pairs: int = 0  # runs that the baseline has too
    source: str = ""  # the data set that this one was taken from, if known

    @property
    def outcome(self) -> str:
        """`win` or `loss` if the gain is significant after Holm's correction, else `tie`."""
        if self.gain is None or self.p_holm is None or self.p_holm >= SIGNIFICANCE:
            return "tie"
        return "win" if self.gain.mean > 0 else "loss"


def size_group(size: int) -> str:
    """The group of a number of rows in the TripleEntropy paper.

    S is about 1,000 rows, M 4,000, L 10,000, and XL more than 50,000.
    """
    if size < 2_500:
        return "S"
    if size < 7_000:
        return "M"
    return "L" if size < 50_000 else "XL"


# ---------------------------------------------------------------- tests


def corrected_t_test(differences: npt.ArrayLike, test_share: float) -> Difference:
    """The corrected resampled t-test of Nadeau and Bengio over paired differences.

    Runs on different folds share training rows, so their plain variance of the mean is too small.
    The sample variance is multiplied by 1/n + test rows/training rows instead of 1/n. `test_share`
    is the share of rows tested, 1/k for k folds.
    """
    from scipy import stats

    d = np.asarray(differences, dtype=np.float64)
    n = len(d)
    mean = float(np.mean(d))
    if n < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    variance = float(np.var(d, ddof=1))
    error = math.sqrt(variance * (1.0 / n + test_share / (1.0 - test_share)))
    if error == 0.0:
        return Difference(mean, mean, mean, 1.0 if mean == 0.0 else 0.0)
    p = 2.0 * float(stats.t.sf(abs(mean) / error, n - 1))
    half = error * float(stats.t.ppf(0.975, n - 1))
    return Difference(mean, mean - half, mean + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values after Holm's step-down correction for m tests, in the given order.

    The smallest is multiplied by m, the next by m - 1, and so on; none becomes smaller than the
    one before it.
    """
    m = len(p_values)
    corrected = [0.0] * m
    highest = 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (m - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


# ---------------------------------------------------------------- one data set


def summarise(rows: Sequence[Scored], baseline: str) -> list[Line]:
    """One line for each data set, size and objective, in the order of the rows, the baseline first.

    Gains are paired by seed and fold. Holm's correction is applied per objective, over all data
    sets and sizes on which the objective is tested.
    """
    lines: list[Line] = []
    for data, size in dict.fromkeys((row.data, row.size) for row in rows):
        cell = [row for row in rows if (row.data, row.size) == (data, size)]
        objectives = dict.fromkeys(row.objective for row in cell)
        for objective in sorted(objectives, key=lambda name: name != baseline):
            lines.append(_line(cell, objective, baseline))
    return _with_holm(lines)


def _line(cell: Sequence[Scored], objective: str, baseline: str) -> Line:
    """The line of an objective, from all rows of one data set at one size."""
    baseline_f1 = {
        (row.seed, row.fold): row.weighted_f1 for row in cell if row.objective == baseline
    }
    rows = [row for row in cell if row.objective == objective]
    differences = [
        row.weighted_f1 - baseline_f1[row.seed, row.fold]
        for row in rows
        if (row.seed, row.fold) in baseline_f1
    ]
    gain = None
    if objective != baseline and differences:
        gain = corrected_t_test(differences, 1.0 / rows[0].folds)
    f1 = np.array([row.weighted_f1 for row in rows])
    return Line(
        data=rows[0].data,
        size=rows[0].size,
        objective=objective,
        runs=len(rows),
        f1_mean=float(f1.mean()),
        f1_std=float(f1.std(ddof=1)) if len(f1) > 1 else 0.0,
        accuracy_mean=float(np.mean([row.accuracy for row in rows])),
        seconds=float(np.mean([row.seconds for row in rows])),
        gain=gain,
        p_holm=None,
        pairs=len(differences),
        source=rows[0].source,
    )


def _with_holm(lines: Sequence[Line]) -> list[Line]:
    """The lines with their corrected p-values; the tests of one objective are one family."""
    corrected_lines = list(lines)
    for objective in dict.fromkeys(line.objective for line in lines):
        family = [
            (i, line.gain.p_value)
            for i, line in enumerate(lines)
            if line.objective == objective and line.gain
        ]
        p_values = holm([p_value for _, p_value in family])
        for (i, _), p_value in zip(family, p_values, strict=True):
            corrected_lines[i] = dataclasses.replace(lines[i], p_holm=p_value)
    return corrected_lines


def standings(lines: Sequence[Line]) -> dict[str, tuple[int, int, int]]:
    """Wins, ties and losses of each objective over data sets and sizes.

    A difference that is not significant is a tie.
    """
    counts: dict[str, tuple[int, int, int]] = {}
    tested = [line for line in lines if line.gain is not None]
    for objective in dict.fromkeys(line.objective for line in tested):
        outcomes = [line.outcome for line in tested if line.objective == objective]
        counts[objective] = (outcomes.count("win"), outcomes.count("tie"), outcomes.count("loss"))
    return counts


# ---------------------------------------------------------------- over data sets


@dataclass(frozen=True)
class OverallGain:
    """The gain of an objective over the baseline, where each data set counts as one observation."""

    group: str  # S, M, L or XL
    objective: str
    data_sets: int
    pools: int  # independent observations: data sets that share texts count once
    gain: Difference  # Student's t-test over the mean gains of the pools
    p_signed_rank: float  # Wilcoxon's signed-rank test, which does not assume a normal distribution
    p_holm: float  # of the t-test, corrected for the number of objectives


def gains_over_data_sets(
    gains: Mapping[str, Sequence[tuple[str, float]]], group: str = "", least: int = 1
) -> list[OverallGain]:
    """Test for each name whether its gains, given as (data set, gain), differ from 0.

    Data sets that share no texts have independent gains, so a plain t-test is right for them. Data
    sets that share texts count once together, with the mean of their gains: those taken from one
    source, and those that the catalogue knows to be cut from the same texts, like R8 and R52. A
    name with fewer than `least` such observations is left out. Holm's correction is applied over
    the names.
    """
    from scipy import stats

    observations: dict[str, list[float]] = {}
    for name, named_gains in gains.items():
        pools: dict[str, list[float]] = {}
        for data_set, gain in named_gains:
            pools.setdefault(text_pool(data_set), []).append(gain)
        if len(pools) >= least:
            observations[name] = [float(np.mean(values)) for values in pools.values()]
    differences = [corrected_t_test(values, 0.0) for values in observations.values()]
    corrected = holm([difference.p_value for difference in differences])

    overall = []
    for (name, values), difference, p_holm in zip(
        observations.items(), differences, corrected, strict=True
    ):
        p_signed_rank = float(stats.wilcoxon(values).pvalue) if any(values) else 1.0
        data_sets = len(gains[name])
        overall.append(
            OverallGain(group, name, data_sets, len(values), difference, p_signed_rank, p_holm)
        )
    return overall


def overall_gains(lines: Sequence[Line]) -> list[OverallGain]:
    """The gains over the data sets of each size group that has three independent ones."""
    overall: list[OverallGain] = []
    for group in SIZE_GROUPS:
        gains: dict[str, list[tuple[str, float]]] = {}
        for line in lines:
            if line.gain is not None and size_group(line.size) == group:
                gain = (line.source or line.data, line.gain.mean)
                gains.setdefault(line.objective, []).append(gain)
        overall += gains_over_data_sets(gains, group, least=LEAST_DATA_SETS)
    return overall


# ---------------------------------------------------------------- optimism of chosen settings


@dataclass(frozen=True)
class Optimism:
    """The score of settings that were chosen on the reported folds, beside an unbiased estimate."""

    data: str
    size: int
    objective: str
    reported: float
    honest: float


def trials_of_last_search(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The trials of the last search of each run; the trials of an abandoned search are left out."""
    place_names = ("data", "size", "objective", "seed", "fold")
    placed = [(repr([trial.get(name) for name in place_names]), dict(trial)) for trial in trials]
    last_run = {place: trial.get("run") for place, trial in placed}
    return [trial for place, trial in placed if trial.get("run") == last_run[place]]


def optimism(rows: Sequence[Scored], trials: Iterable[Mapping[str, Any]]) -> list[Optimism]:
    """How much of each reported score comes from choosing the settings on the reported folds.

    The honest estimate leaves out each fold in turn: the settings that are best on all other folds
    are scored on the one left out. Only settings that were tried on every fold take part.
    """
    fold_scores: dict[tuple[str, int, str], dict[str, dict[tuple[int, int], float]]] = {}
    for trial in trials:
        cell = (str(trial["data"]), int(trial["size"]), str(trial["objective"]))
        settings = repr(sorted(trial["options"].items()))
        of_settings = fold_scores.setdefault(cell, {}).setdefault(settings, {})
        of_settings[trial["seed"], trial["fold"]] = trial["score"]

    estimates: list[Optimism] = []
    for (data, size, objective), scores_by_settings in fold_scores.items():
        reported = {
            (row.seed, row.fold): row.weighted_f1
            for row in rows
            if (row.data, row.size, row.objective) == (data, size, objective)
        }
        folds = sorted(reported)
        tried_everywhere = [
            [scores[fold] for fold in folds]
            for scores in scores_by_settings.values()
            if set(folds) <= scores.keys()
        ]
        if len(folds) >= 2 and tried_everywhere:
            mean = float(np.mean([reported[fold] for fold in folds]))
            honest = _left_out_score(np.array(tried_everywhere))
            estimates.append(Optimism(data, size, objective, mean, honest))
    return estimates


def _left_out_score(scores: npt.NDArray[np.float64]) -> float:
    """The mean score on each fold of the settings that are best on all other folds."""
    on_other_folds = scores.sum(1, keepdims=True) - scores  # (settings, folds)
    chosen = on_other_folds.argmax(0)  # (folds,)
    return float(scores[chosen, np.arange(scores.shape[1])].mean())
