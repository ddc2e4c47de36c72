"""Held-out rows have other texts than the training rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data import Examples, split
from closeknit.data.distinct_texts import (
    note_of_repeated_rows,
    row_keys,
    rows_without,
    split_distinct,
)

# Texts of few words, so that many are the same; the label of a text is often another one too.
some_rows = st.lists(
    st.tuples(st.sampled_from([f"text {n}" for n in range(12)]), st.sampled_from("ab")),
    min_size=12,
    max_size=60,
).filter(lambda rows: all(len({t for t, y in rows if y == label}) >= 3 for label in "ab"))


@given(some_rows, st.integers(0, 2**31), st.floats(0.05, 0.4))
def test_a_text_is_on_one_side_of_the_split_only(rows, seed, share):
    texts, labels = map(list, zip(*rows, strict=True))
    examples = Examples(texts, labels=labels)
    kept, held_out = split_distinct(examples, share, seed)
    assert sorted([*kept, *held_out]) == list(range(len(rows)))
    assert not {texts[row] for row in kept} & {texts[row] for row in held_out}
    assert {labels[row] for row in kept} == {"a", "b"}
    again = split_distinct(examples, share, seed)
    assert np.array_equal(kept, again[0]) and np.array_equal(held_out, again[1])


@given(st.lists(st.sampled_from("abc"), min_size=12, max_size=60), st.integers(0, 2**31))
def test_where_all_texts_differ_the_rows_are_split_as_before(labels, seed):
    examples = Examples([f"text {row}" for row in range(len(labels))], labels=labels)
    expected = split(labels, 0.25, seed)
    found = split_distinct(examples, 0.25, seed)
    assert np.array_equal(found[0], expected[0]) and np.array_equal(found[1], expected[1])


def test_a_class_whose_texts_would_all_be_held_out_keeps_one():
    """Every text of class b also stands in the data with class a, which comes first."""
    texts = [f"text {row % 8}" for row in range(16)]
    labels = ["a"] * 8 + ["b"] + ["a"] * 7
    for seed in range(20):
        kept, _ = split_distinct(Examples(texts, labels=labels), 0.5, seed)
        assert "b" in {labels[row] for row in kept}


def test_case_punctuation_and_the_order_of_a_pair_do_not_make_another_row():
    assert row_keys(Examples(["Good movie!", "good movie", "a good movie"])) == [
        ("good movie",),
        ("good movie",),
        ("a good movie",),
    ]
    assert row_keys(Examples(["one", "two"], ["two", "one"])) == [("one", "two")] * 2
    assert row_keys(Examples(["!", "?"])) == [("!",), ("?",)]  # nothing but marks is left whole
    held_out = Examples(["Good, movie"])
    assert rows_without(Examples(["bad", "good movie"]), [held_out]).tolist() == [0]
    assert rows_without(Examples(["a"], ["b"]), [held_out]).tolist() == [0]


def test_rows_in_two_parts_are_counted():
    training = Examples(["one", "two"])
    assert note_of_repeated_rows(training, Examples(["three", "One"]), "test") is None
    note = note_of_repeated_rows(training, Examples(["two", "three", "two"]), "validation")
    assert note is not None and note.startswith("2 of the 3 validation rows are among the training")
    assert "choose the best epoch" in note
