"""Splits use every row once, keep classes in proportion, and depend on the seed alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit import data
from closeknit.errors import DataError

labelled = st.lists(st.sampled_from("abcd"), min_size=12, max_size=120).filter(
    lambda labels: len(set(labels)) > 1 and min(Counter(labels).values()) >= 3
)


@given(labelled, st.integers(0, 2**31))
def test_folds_test_every_row_once_in_the_right_proportions(labels, seed):
    parts = data.folds(labels, 3, seed)
    assert sorted(np.concatenate([test for _, test in parts])) == list(range(len(labels)))
    for train, test in parts:
        assert not set(train) & set(test)
        assert len(train) + len(test) == len(labels)
        for label, count in Counter(labels).items():
            assert abs(sum(labels[i] == label for i in test) - count / 3) < 1


@given(labelled, st.integers(0, 2**31), st.floats(0.05, 0.5))
def test_a_split_parts_the_rows_and_leaves_every_class_in_training(labels, seed, fraction):
    kept, held_out = data.split(labels, fraction, seed)
    assert sorted([*kept, *held_out]) == list(range(len(labels)))
    assert {labels[i] for i in kept} == set(labels)
    assert len(held_out) == max(1, round(fraction * len(labels)))
    again = data.split(labels, fraction, seed)
    assert np.array_equal(held_out, again[1])


@given(labelled, st.integers(0, 2**31), st.data())
def test_a_subset_keeps_proportions_to_within_a_row(labels, seed, draw):
    n = draw.draw(st.integers(1, len(labels)))
    rows = data.subset(labels, n, seed)
    assert len(rows) == len(set(rows)) == n
    for label, count in Counter(labels).items():
        assert abs(sum(labels[i] == label for i in rows) - count * n / len(labels)) < 1 + 1e-9


@given(labelled, st.integers(0, 2**31))
def test_few_shot_takes_n_of_each_class(labels, seed):
    rows = data.few_shot(labels, 3, seed)
    assert Counter(labels[i] for i in rows) == dict.fromkeys(set(labels), 3)


def test_other_seeds_give_other_rows():
    labels = ["a", "b"] * 50
    assert not np.array_equal(data.subset(labels, 20, 1), data.subset(labels, 20, 2))
    assert not np.array_equal(data.folds(labels, 5, 1)[0][1], data.folds(labels, 5, 2)[0][1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.folds(["a"] * 9, 3, 0), "one class only"),
        (lambda: data.folds([], 3, 0), "has no rows"),
        (
            lambda: data.folds(["a"] * 9 + ["b"] * 2, 3, 0),
            r"at least 3 rows of each class; too few of b \(2\)",
        ),
        (lambda: data.folds(["a", "b"] * 9, 1, 0), "at least 2"),
        (lambda: data.subset(["a", "b"], 3, 0), "there are 2"),
        (lambda: data.few_shot(["a", "a", "b"], 2, 0), r"too few of b \(1\)"),
        (lambda: data.split(["a", "b"], 1.0, 0), "between 0 and 1"),
        (lambda: data.split(["a", "b"], 0.5, 0), "cannot be held out"),
    ],
)
def test_impossible_splits_are_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()
