"""Paired tests: is the difference between two objectives more than chance?

Two designs need two tests. Runs on folds share training rows (`corrected_t_test`). Runs on one test
part share test rows (`seeds_and_rows_test`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from closeknit.metrics import Floats, Integers, confusion

_SMALLEST_P = 1e-12  # of a test over seeds and rows
_SMALLEST_ERROR = 1e-9  # a smaller standard error is rounding: the differences do not vary
SIGNIFICANCE = 0.05  # a corrected p-value below it counts as a clear difference


@dataclass(frozen=True)
class Difference:
    """A mean difference over paired runs, its 95 % confidence interval, and its p-value.

    Where nothing can be tested, the interval is infinite and the p-value is 1: there is a single
    run, predictions are missing, or the differences do not vary, so that their spread is unknown.
    """

    mean: float
    low: float
    high: float
    p_value: float

    @property
    def is_tested(self) -> bool:
        """Whether there is a test of this difference."""
        return math.isfinite(self.low)

    @staticmethod
    def untested(mean: float) -> Difference:
        """A difference that cannot be tested."""
        return Difference(mean, -math.inf, math.inf, 1.0)


@dataclass(frozen=True)
class PairedRun:
    """Two runs of one seed on the same test rows.

    `values` are the differences of the two runs row by row. Their mean is about `difference`, the
    difference of the two scores, and their spread says how much it depends on each row.
    """

    rows: Integers  # (n,) row numbers, so that rows of several seeds can be matched
    values: Floats  # (n,)
    difference: float


# ---------------------------------------------------------------- folds


def corrected_t_test(differences: npt.ArrayLike, test_share: float) -> Difference:
    """The corrected resampled t-test of Nadeau and Bengio over paired differences.

    Runs on different folds share training rows, so their plain variance of the mean is too small.
    The sample variance is multiplied by 1/n + test rows/training rows instead of 1/n. `test_share`
    is the share of rows tested, 1/k for k folds. Differences that are all equal are not tested: a
    few runs with the same difference do not show that it never varies.
    """
    from scipy import stats

    d = np.asarray(differences, dtype=np.float64)
    n = len(d)
    mean = float(np.mean(d))
    if n < 2:
        return Difference.untested(mean)
    variance = float(np.var(d, ddof=1))
    error = math.sqrt(variance * (1.0 / n + test_share / (1.0 - test_share)))
    if error < _SMALLEST_ERROR:
        return Difference.untested(mean)
    p = 2.0 * float(stats.t.sf(abs(mean) / error, n - 1))
    half = error * float(stats.t.ppf(0.975, n - 1))
    return Difference(mean, mean - half, mean + half, p)


# ---------------------------------------------------------------- one test part, several seeds


def seeds_and_rows_test(runs: Sequence[PairedRun]) -> Difference:
    """The test for several seeds on (nearly) the same test rows.

    Two things are samples here: the seeds (with the training rows that they draw) and the test
    rows. Several seeds on the same rows are no independent draws of rows, so a t-test over seeds
    alone would ignore the choice of the rows, and McNemar's test or a bootstrap over rows alone
    would ignore the seeds. The variance of the mean difference is the sum of both parts:

        V = V_rows + V_seeds
        V_rows  = N / (N - 1) * sum_i (1/S sum_s (d_si - mean_s) / n_s)^2   over the N test rows
        V_seeds = variance of the S differences / S

    d_si is the difference of row i under seed s, 0 where the row was not tested. The noise that
    belongs to one row under one seed is in both parts, so V is too large rather than too small.
    The quantile of t is the mean of those with N - 1 and with S - 1 degrees of freedom, weighted
    with the two parts (Cochran and Cox): with few seeds the test is careful unless rows dominate.
    """
    from scipy import stats
    from scipy.optimize import brentq

    seeds = len(runs)
    differences = np.array([run.difference for run in runs], dtype=np.float64)
    mean = float(differences.mean())
    if seeds < 2 or min(len(run.rows) for run in runs) < 2:
        return Difference.untested(mean)
    names, codes = np.unique(np.concatenate([run.rows for run in runs]), return_inverse=True)
    deviations = [(run.values - run.values.mean()) / (seeds * len(run.rows)) for run in runs]
    shares = np.bincount(codes, weights=np.concatenate(deviations), minlength=len(names))
    of_rows = float(len(names) / (len(names) - 1) * np.sum(shares**2))
    of_seeds = float(np.var(differences, ddof=1)) / seeds
    variance = of_rows + of_seeds
    if variance < _SMALLEST_ERROR**2:  # every row and every seed agree
        return Difference.untested(mean)

    def half_width(p: float) -> float:
        """Half the width of the interval that leaves out a share p."""
        quantile_of_rows = float(stats.t.isf(p / 2, len(names) - 1))
        quantile_of_seeds = float(stats.t.isf(p / 2, seeds - 1))
        mixed = of_rows * quantile_of_rows + of_seeds * quantile_of_seeds
        return mixed / math.sqrt(variance)

    half = half_width(0.05)
    if half_width(_SMALLEST_P) <= abs(mean):
        p = _SMALLEST_P
    else:
        p = float(brentq(lambda value: half_width(value) - abs(mean), _SMALLEST_P, 1.0, xtol=1e-15))
    return Difference(mean, mean - half, mean + half, p)


def weighted_f1(counts: Floats) -> float:
    """Weighted F1 of a confusion matrix (C, C) with a row per expected class."""
    support = counts.sum(axis=1)  # (C,)
    expected_and_predicted = support + counts.sum(axis=0)
    f1 = 2.0 * np.diag(counts) / np.maximum(expected_and_predicted, 1.0)
    return float(f1 @ support / support.sum())


def row_values(
    expected: Integers, predicted: Integers, score: Callable[[Floats], float] = weighted_f1
) -> Floats:
    """What each test row (n,) contributes to a score of the whole: the values of the jackknife.

        value_i = n * score(all rows) - (n - 1) * score(all rows but i)

    For accuracy this is 1 for a right row and 0 for a wrong one. The score sees a confusion matrix
    only, so rows with the same expected and predicted class have the same value.
    """
    n = len(expected)
    classes, codes = np.unique(np.concatenate([expected, predicted]), return_inverse=True)
    right = codes[:n].astype(np.int64)
    answer = codes[n:].astype(np.int64)
    counts = confusion(right, answer, len(classes)).astype(np.float64)
    whole = score(counts)
    values = np.full(n, whole, dtype=np.float64)
    if n < 2:
        return values
    cells, cell_of_row = np.unique(right * len(classes) + answer, return_inverse=True)
    of_cells = np.empty(len(cells), dtype=np.float64)
    for number, cell in enumerate(cells.tolist()):
        without = counts.copy()
        without[divmod(cell, len(classes))] -= 1.0
        of_cells[number] = n * whole - (n - 1) * score(without)
    values[:] = of_cells[cell_of_row]
    return values


# ---------------------------------------------------------------- several comparisons


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
