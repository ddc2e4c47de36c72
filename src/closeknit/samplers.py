"""Which rows meet in a batch. A sampler is a function of an epoch's number: it has no state to save."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Plan = Callable[[int], list[Rows]]  # epoch number -> the batches of that epoch, as row numbers


def length_grouped(lengths: npt.NDArray[np.int64], batch_size: int, seed: int, *, pool: int = 8) -> Plan:
    """Shuffled batches of texts of similar length, so that padding is rare.

    Every epoch all rows are shuffled and dealt into pools of `pool` batches; rows are sorted by
    length inside a pool only, and the batches are shuffled again. Which rows meet therefore
    changes from epoch to epoch. Every row is used once; the last batch may be smaller.
    """

    def plan(epoch: int) -> list[Rows]:
        generator = np.random.default_rng((seed, epoch))
        order = generator.permutation(len(lengths))
        batches: list[Rows] = []
        for start in range(0, len(order), pool * batch_size):
            dealt = order[start : start + pool * batch_size]
            # a descending pool puts the odd, smaller batch among the short texts
            dealt = dealt[np.argsort(-lengths[dealt], kind="stable")]
            batches += [dealt[i : i + batch_size] for i in range(0, len(dealt), batch_size)]
        return [batches[i] for i in generator.permutation(len(batches))]

    return plan


def batches_per_epoch(rows: int, batch_size: int) -> int:
    return -(-rows // batch_size)
