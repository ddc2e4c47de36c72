"""Which rows meet in a batch. A sampler is a function of an epoch's number: it has no state to save."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Plan = Callable[[int], list[Rows]]  # epoch number -> the batches of that epoch, as row numbers


def length_grouped(
    lengths: npt.NDArray[np.int64], batch_size: int, seed: int, *, pool: int = 8
) -> Plan:
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


def k_per_class(
    labels: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    batch_size: int,
    seed: int,
    *,
    k: int = 2,
    pool: int = 8,
) -> Plan:
    """Shuffled batches in which every row meets at least one other row of its class, where it has any.

    Every epoch the rows of each class are dealt into groups of k (the last may have more, never one
    alone); groups are dealt into pools, sorted by length inside a pool, and laid into batches of
    about `batch_size` rows, less than 2 k more. Every row is used once.
    """
    amount = batches_per_epoch(len(labels), batch_size)

    def plan(epoch: int) -> list[Rows]:
        generator = np.random.default_rng((seed, epoch))
        groups: list[Rows] = []
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            groups += np.array_split(rows, max(1, len(rows) // k))
        dealt = [groups[i] for i in generator.permutation(len(groups))]
        batches: list[list[Rows]] = [[] for _ in range(amount)]
        widest = np.array([lengths[group].max() for group in dealt])
        per_pool = -(-len(dealt) * pool // amount) if amount > pool else len(dealt)
        order = np.concatenate(
            [
                start + np.argsort(-widest[start : start + per_pool], kind="stable")
                for start in range(0, len(dealt), per_pool)
            ]
        )
        # along that order, a batch is full when its share of all rows is reached
        sizes = np.cumsum([len(dealt[i]) for i in order])
        for i, reached in zip(order, sizes, strict=True):
            place = min(int((reached - 1) * amount / len(labels)), amount - 1)
            batches[place].append(dealt[i])
        made = [batch for batch in batches if batch]
        while (
            len(made) < amount
        ):  # a group that filled two batches' share: halve the largest, between groups where there are two
            largest = max(range(len(made)), key=lambda i: sum(map(len, made[i])))
            batch = made.pop(largest)
            if len(batch) == 1:
                batch = list(np.array_split(batch[0], 2))
            made += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
        return [np.concatenate(made[i]) for i in generator.permutation(amount)]

    return plan


def rows_that_meet(
    labels: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    batch_size: int,
    seed: int,
    k: int,
    tell: Callable[[str], None] | None = None,
) -> Plan:
    """Batches of texts of similar length, in which k rows of a class meet where k is not 0."""
    if k == 0:
        return length_grouped(lengths, batch_size, seed)
    alone = rows_without_positive(labels)
    if alone and tell is not None:
        tell(
            f"rows without another of their class, which the contrast leaves out: {alone} of {len(labels)}"
        )
    return k_per_class(labels, lengths, batch_size, seed, k=min(k, batch_size))


def rows_without_positive(labels: npt.NDArray[np.int64]) -> int:
    """How many rows have no other row of their class in all the data."""
    return int((np.unique(labels, return_counts=True)[1] == 1).sum())
