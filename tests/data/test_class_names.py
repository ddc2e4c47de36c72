"""Class names are turned into words, and names that describe nothing are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data.class_names import class_name_as_words, descriptive_class_names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Refund_not_showing_up", "refund not showing up"),
        ("GetWeather", "get weather"),
        ("Sci/Tech", "sci tech"),
        ("not-hate", "not hate"),
        ("very  negative ", "very negative"),
        ("ABBR", "abbr"),
        ("Größe.Preis", "größe preis"),
    ],
)
def test_class_names_become_words(name, words):
    assert class_name_as_words(name) == words


def test_names_that_describe_nothing_are_left_out():
    for names in (["0", "1"], ["LABEL_0", "LABEL_1"], ["a", "☀"]):
        assert descriptive_class_names(names) == []
    assert descriptive_class_names(["bad", "good", "grade 1", "grade 2", "7"]) == ["bad", "good"]
    assert descriptive_class_names(["1 star", "2 stars", "3 stars"]) == []
    assert descriptive_class_names(["好", "坏", "w2"]) == ["好", "坏"]
    assert descriptive_class_names(["covid19", "flu"]) == ["covid19", "flu"]


@given(st.lists(st.text(max_size=6), unique=True, max_size=8))
def test_descriptive_names_are_words_of_one_class_only(classes):
    found = descriptive_class_names(classes)
    letters = ["".join(filter(str.isalpha, class_name_as_words(name))) for name in found]
    assert len(set(letters)) == len(letters) and all(len(own) > 1 or own > "z" for own in letters)
    assert [name for name in classes if name in found] == found
