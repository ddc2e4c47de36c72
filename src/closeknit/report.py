"""Result rows -> tables and paired tests; never runs a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Scored(Protocol):
    """What a table needs to know of a run."""

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


@dataclass(frozen=True)
class Difference:
    """A mean difference over paired runs, its 95 % interval, and how likely chance alone is."""

    mean: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Line:
    """One objective over all its runs, against the baseline."""

    objective: str
    runs: int
    f1_mean: float
    f1_std: float
    accuracy_mean: float
    seconds: float
    gain: Difference | None


def corrected_t_test(differences: npt.ArrayLike, test_share: float) -> Difference:
    """The corrected resampled t-test of Nadeau and Bengio over paired differences.

    Runs on folds share training rows, so their plain variance is too small. It is multiplied by
    1/n + test rows/training rows instead of 1/n. `test_share` is the share of rows tested: 1/k.
    """
    from scipy import stats

    d = np.asarray(differences, dtype=np.float64)
    n, mean = len(d), float(np.mean(d))
    if n < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    error = math.sqrt(float(np.var(d, ddof=1)) * (1.0 / n + test_share / (1.0 - test_share)))
    if error == 0.0:
        return Difference(mean, mean, mean, 1.0 if mean == 0.0 else 0.0)
    p = 2.0 * float(stats.t.sf(abs(mean) / error, n - 1))
    half = error * float(stats.t.ppf(0.975, n - 1))
    return Difference(mean, mean - half, mean + half, p)


def summarise(rows: Sequence[Scored], baseline: str) -> list[Line]:
    """One line an objective, in the order of the rows; gains are paired by seed and fold."""
    lines: list[Line] = []
    base = {(row.seed, row.fold): row.weighted_f1 for row in rows if row.objective == baseline}
    for objective in dict.fromkeys(row.objective for row in rows):
        own = [row for row in rows if row.objective == objective]
        f1 = np.array([row.weighted_f1 for row in own])
        gain = None
        if objective != baseline:
            paired = [
                row.weighted_f1 - base[row.seed, row.fold] for row in own if (row.seed, row.fold) in base
            ]
            gain = corrected_t_test(paired, 1.0 / own[0].folds) if paired else None
        lines.append(
            Line(
                objective,
                len(own),
                float(f1.mean()),
                float(f1.std(ddof=1)) if len(f1) > 1 else 0.0,
                float(np.mean([row.accuracy for row in own])),
                float(np.mean([row.seconds for row in own])),
                gain,
            )
        )
    return lines


def markdown_table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table, scores in points (times 100)."""
    out = [
        "| objective | runs | weighted F1 | accuracy | gain (95 % interval) | p | s a run |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        gain, p = "baseline", ""
        if line.gain is not None:
            gain = f"{100 * line.gain.mean:+.2f} ({100 * line.gain.low:+.2f} to {100 * line.gain.high:+.2f})"
            p = f"{line.gain.p_value:.3f}"
        out.append(
            f"| {line.objective} | {line.runs} | {100 * line.f1_mean:.2f} ± {100 * line.f1_std:.2f} "
            f"| {100 * line.accuracy_mean:.2f} | {gain} | {p} | {line.seconds:.1f} |"
        )
    return "\n".join(out)


def in_words(line: Line, baseline: str) -> str:
    """What a gain means, in one plain sentence."""
    if line.gain is None:
        return f"{line.objective} is the baseline."
    direction = "gains" if line.gain.mean >= 0 else "loses"
    verdict = "more than chance would explain" if line.gain.p_value < 0.05 else "which could well be chance"
    return (
        f"{line.objective} {direction} {abs(100 * line.gain.mean):.2f} points of weighted F1 over {baseline} "
        f"in {line.runs} paired runs, {verdict} (p = {line.gain.p_value:.2f})."
    )
