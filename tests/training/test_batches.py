from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from closeknit.training.batches import (
    batches_per_epoch,
    k_per_class,
    length_grouped,
    rows_without_positive,
)

lengths = st.lists(st.integers(1, 128), min_size=1, max_size=300).map(np.array)


@given(lengths, st.integers(1, 64), st.integers(0, 2**31), st.integers(0, 50))
def test_every_row_is_used_once_an_epoch(row_lengths, batch_size, seed, epoch):
    plan = length_grouped(row_lengths, batch_size, seed)
    batches = plan(epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(row_lengths)))
    assert len(batches) == batches_per_epoch(len(row_lengths), batch_size)
    assert sum(len(batch) < batch_size for batch in batches) <= 1
    assert all(np.array_equal(a, b) for a, b in zip(batches, plan(epoch), strict=True))


def test_grouping_wastes_little_on_padding_and_still_mixes():
    generator = np.random.default_rng(0)
    row_lengths = generator.integers(5, 100, 2000)
    plan = length_grouped(row_lengths, 32, seed=2)

    def padded(batches):
        return sum(len(batch) * row_lengths[batch].max() for batch in batches)

    shuffled = generator.permutation(2000).reshape(-1, 32) if 2000 % 32 == 0 else np.array_split(
        generator.permutation(2000), 63
    )  # fmt: skip
    assert padded(plan(0)) < 1.15 * row_lengths.sum() < padded(shuffled)
    met = {frozenset(batch.tolist()) for batch in plan(0)}
    assert not met & {frozenset(batch.tolist()) for batch in plan(1)}
    other = length_grouped(row_lengths, 32, seed=3)
    assert not np.array_equal(plan(0)[0], other(0)[0])


labels = st.lists(st.integers(0, 6), min_size=2, max_size=200).map(np.array)


@given(labels, st.integers(4, 64), st.integers(2, 4), st.integers(0, 2**31), st.integers(0, 9))
@example(np.array([0] * 5 + [1] * 3), 6, 3, 0, 0)
@example(np.array([0] * 5 + [1] * 3), 6, 3, 1, 1)
def test_every_row_meets_another_of_its_class(y, batch_size, k, seed, epoch):
    row_lengths = np.random.default_rng(seed).integers(3, 60, len(y))
    plan = k_per_class(y, row_lengths, batch_size, seed, k=k)
    batches = plan(epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(y)))
    assert len(batches) == batches_per_epoch(len(y), batch_size)
    assert all(np.array_equal(a, b) for a, b in zip(batches, plan(epoch), strict=True))
    counts = np.bincount(y)
    alone = sum(
        counts[y[row]] > 1 and (y[batch] == y[row]).sum() == 1 for batch in batches for row in batch
    )
    assert alone == 0
    assert rows_without_positive(y) == (counts == 1).sum()


def test_batches_of_classes_are_about_as_large_as_asked():
    generator = np.random.default_rng(0)
    y, row_lengths = generator.integers(0, 20, 1000), generator.integers(3, 60, 1000)
    plan = k_per_class(y, row_lengths, 64, seed=2)
    assert all(56 <= len(batch) <= 72 for batch in plan(0))
    padded = sum(len(batch) * row_lengths[batch].max() for batch in plan(0))
    assert padded < 1.9 * row_lengths.sum()
    assert not np.array_equal(np.sort(plan(0)[0]), np.sort(plan(1)[0]))
