"""Test rows whose nearest training text has another label."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeknit.data import from_python
from closeknit.data.nearest import near_other_label, scores_near_other_label
from closeknit.errors import DataError


def test_a_text_with_one_word_changed_is_near_another_label():
    training = from_python(
        ["a satisfying end", "the cast is poor", "一本好书"], ["good", "bad", "good"]
    )
    test = from_python(
        ["an unsatisfying end", "the cast is good", "nothing shared", "一本坏书"],
        ["bad", "good", "bad", "bad"],
    )
    assert near_other_label(training, test).tolist() == [True, True, False, True]


def test_of_equally_near_texts_one_with_the_label_suffices():
    training = from_python(["the same words", "the same words"], ["a", "b"])
    test = from_python(["the same words"] * 2, ["b", "c"])
    assert near_other_label(training, test).tolist() == [False, True]


def test_both_texts_of_a_pair_count():
    training = from_python([("one two", "three four"), ("one two", "five six")], ["no", "yes"])
    test = from_python([("one two", "five six"), ("one two", "three four")], ["no", "no"])
    assert near_other_label(training, test).tolist() == [True, False]
    with pytest.raises(DataError, match="single texts"):
        near_other_label(training, from_python(["one"], ["no"]))


def test_texts_without_words_have_no_neighbour():
    training = from_python(["!!!", "???"], ["a", "b"])
    assert not near_other_label(training, from_python(["!!!"], ["b"])).any()


words = st.lists(st.sampled_from("card lost found money back late".split()), min_size=1, max_size=5)
rows = st.lists(st.tuples(words, st.sampled_from("ab")), min_size=1, max_size=8)


@settings(max_examples=30)
@given(rows, rows)
def test_it_agrees_with_the_definition(training, test):
    texts = [text for text, _ in training]
    n = len(texts)
    idf = {
        word: math.log((1 + n) / (1 + sum(word in text for text in texts))) + 1
        for word in {word for text in texts for word in text}
    }

    def vector(text):
        weights = {w: (1 + math.log(text.count(w))) * idf[w] for w in set(text) if w in idf}
        length = math.sqrt(sum(weight**2 for weight in weights.values()))
        return {word: weight / length for word, weight in weights.items()}

    expected = []
    for text, label in test:
        own = vector(text)
        cosines = [
            sum(own.get(word, 0.0) * weight for word, weight in vector(other).items())
            for other in texts
        ]
        best = max(cosines)
        near = {known for (_, known), c in zip(training, cosines, strict=True) if c > best - 1e-9}
        expected.append(best > 0 and label not in near)
    found = near_other_label(
        from_python([" ".join(text) for text, _ in training], [label for _, label in training]),
        from_python([" ".join(text) for text, _ in test], [label for _, label in test]),
    )
    assert found.tolist() == expected


def test_scores_are_those_of_the_chosen_rows():
    near = np.array([True, False, True, True])
    found = scores_near_other_label(
        near, np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0]), ["a", "b"]
    )
    assert found == {
        "rows": 3,
        "accuracy": pytest.approx(2 / 3),
        "weighted_f1": pytest.approx(2 / 3),
    }
    assert scores_near_other_label(~near & near, near * 1, near * 1, ["a", "b"]) == {"rows": 0}
