"""Gains over several data sets, where each data set counts as one observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from closeknit.data.catalogue import text_pool
from closeknit.studies.statistics.lines import SIZE_GROUPS, Line, size_group
from closeknit.studies.statistics.paired_tests import Difference, corrected_t_test, holm

LEAST_DATA_SETS = 3  # independent ones; with fewer, nothing is tested over data sets


@dataclass(frozen=True)
class OverallGain:
    """The gain of an objective over the baseline, where each data set counts as one observation."""

    group: str  # S, M, L or XL
    objective: str
    data_sets: int  # with different names
    pools: int  # independent observations: data sets that share texts count once
    gain: Difference  # Student's t-test over the mean gains of the pools
    p_signed_rank: float  # Wilcoxon's signed-rank test, which does not assume a normal distribution
    p_holm: float  # of the t-test, corrected for the number of objectives
    comparisons: int = 0  # more than the data sets where some were compared at several sizes


def gains_over_data_sets(
    gains: Mapping[str, Sequence[tuple[str, float]]],
    group: str = "",
    least: int = 1,
    pool_of: Callable[[str], str] = text_pool,
) -> list[OverallGain]:
    """Test for each name whether its gains, given as (data set, gain), differ from 0.

    Data sets that share no texts have independent gains, so a plain t-test is right for them. Data
    sets that share texts count once together, with the mean of their gains: those taken from one
    source, and those that the catalogue knows to be cut from the same texts, like R8 and R52. A
    name with fewer than `least` such observations is left out. `pool_of` names the texts that a
    data set was taken from. Holm's correction is applied over the names.
    """
    from scipy import stats

    observations: dict[str, list[float]] = {}
    for name, named_gains in gains.items():
        pools: dict[str, list[float]] = {}
        for data_set, gain in named_gains:
            pools.setdefault(pool_of(data_set), []).append(gain)
        if len(pools) >= least:
            observations[name] = [float(np.mean(values)) for values in pools.values()]
    differences = [corrected_t_test(values, 0.0) for values in observations.values()]
    corrected = iter(holm([one.p_value for one in differences if one.is_tested]))

    overall = []
    for (name, values), difference in zip(observations.items(), differences, strict=True):
        p_holm = next(corrected) if difference.is_tested else 1.0
        p_signed_rank = float(stats.wilcoxon(values).pvalue) if any(values) else 1.0
        overall.append(
            OverallGain(
                group=group,
                objective=name,
                data_sets=len({data_set for data_set, _ in gains[name]}),
                pools=len(values),
                gain=difference,
                p_signed_rank=p_signed_rank,
                p_holm=p_holm,
                comparisons=len(gains[name]),
            )
        )
    return overall


def _pool(line: Line) -> str:
    """The texts that the data set of a line was taken from."""
    source = line.source or line.data
    if line.catalogue is None:  # earlier versions took a data set by the name of its folder too
        return text_pool(source)
    return text_pool(line.catalogue) if line.catalogue else source


def overall_gains(lines: Sequence[Line]) -> list[OverallGain]:
    """The gains over the data sets of each size group that has three independent ones."""
    overall: list[OverallGain] = []
    pools = {line.data: _pool(line) for line in lines}
    for group in SIZE_GROUPS:
        gains: dict[str, list[tuple[str, float]]] = {}
        for line in lines:
            if line.gain is not None and size_group(line.size) == group:
                gains.setdefault(line.objective, []).append((line.data, line.gain.mean))
        overall += gains_over_data_sets(gains, group, LEAST_DATA_SETS, pools.__getitem__)
    return overall
