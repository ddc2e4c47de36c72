"""Changed texts: what changes, what stays, and that seed, epoch and row decide everything."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data.text_changes import (
    BUNDLED_SYNONYMS,
    ChangedByFunction,
    MaskedSpans,
    Synonyms,
    read_synonyms,
)
from closeknit.errors import ConfigError, DataError

TEXTS = [
    "the big company cannot find my lost package today",
    "Where do I get a REFUND for the broken phone?",
    "Please help me, the delivery was very late and the item is damaged",
]
WORDS = {"big": ("large", "huge"), "lost": ("missing",), "refund": ("reimbursement",)}
CHANGES = {
    "span": MaskedSpans(5, "[MASK]", 3),
    "synonyms": Synonyms(read_synonyms(BUNDLED_SYNONYMS), 0.5, 3),
    "function": ChangedByFunction(lambda texts: [f"{random.random()} {text}" for text in texts], 3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_seed_epoch_row_and_side_decide_the_change(name):
    change = CHANGES[name]
    rows = [4, 0, 7]
    changed = change(TEXTS, rows, 1)
    random.random()  # what others draw does not matter
    assert change(TEXTS, rows, 1) == changed
    others = [change(TEXTS, rows, 2), change(TEXTS, rows, 1, 1), change(TEXTS, [5, 1, 8], 1)]
    assert all(other != changed for other in others)


@pytest.mark.parametrize("name", ["span", "synonyms"])
def test_a_text_is_changed_in_the_same_way_in_any_company(name):
    change = CHANGES[name]
    together = change(TEXTS, [4, 0, 7], 1)
    assert [
        change([text], [row], 1)[0] for text, row in zip(TEXTS, [4, 0, 7], strict=True)
    ] == together


def test_a_function_leaves_the_generators_of_others_alone():
    def draw(texts):
        np.random.rand(3)
        return [f"{text} {random.random()}" for text in texts]

    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.rand()
    random.seed(5)
    np.random.seed(5)
    ChangedByFunction(draw, 1)(TEXTS, [0, 1, 2], 0)
    assert (random.random(), np.random.rand()) == expected


def oracle_replaced(text, words, share, generator):
    """Word by word, without a pattern: letters make words."""
    parts, word = [], ""
    for letter in text:
        if letter.isalpha():
            word += letter
        else:
            parts += [word, letter]
            word = ""
    parts.append(word)
    known = [i for i, part in enumerate(parts) if part.lower() in words]
    if not known:
        return text
    amount = max(1, round(share * len(known)))
    for place in sorted(generator.permutation(len(known))[:amount].tolist()):
        options = words[parts[known[place]].lower()]
        new = options[int(generator.integers(len(options)))]
        old = parts[known[place]]
        if len(old) > 1 and old == old.upper():
            new = new.upper()
        elif old[0] == old[0].upper():
            new = new[0].upper() + new[1:]
        parts[known[place]] = new
    return "".join(parts)


@given(
    st.lists(st.sampled_from(["big", "Lost", "REFUND", "card", "I", ",", " "]), max_size=12),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 1000),
)
def test_words_with_synonyms_are_replaced(words, share, seed):
    text = " ".join(words)
    found = Synonyms(WORDS, share, 0).replaced(text, np.random.default_rng(seed))
    assert found == oracle_replaced(text, WORDS, share, np.random.default_rng(seed))


def test_a_synonym_is_written_like_the_word():
    change = Synonyms(WORDS, 1.0, 0)
    assert change(["Lost: my REFUND, lost!"], [0], 0) == ["Missing: my REIMBURSEMENT, missing!"]
    assert change(["nothing known"], [0], 0) == ["nothing known"]


def test_the_bundled_list_can_be_read():
    words = read_synonyms(BUNDLED_SYNONYMS)
    assert len(words) > 500
    assert "parcel" in words["package"] and "package" in words["parcel"]
    assert all(word not in others for word, others in words.items())


def test_each_word_of_a_line_may_replace_each_other(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("Big\tlarge\nbig\thuge\tlarge\n", encoding="utf-8")
    assert read_synonyms(path) == {
        "big": ("large", "huge"),
        "large": ("Big", "big", "huge"),
        "huge": ("big", "large"),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("big\tlarge\n\nold\tancient\n", "line 2 of the synonym file .* is empty"),
        ("big\tlarge\nold\n", r"line 2 of the synonym file .* holds one word \(old\)"),
        ("big\t\tlarge\n", "line 1 of the synonym file .* has an empty field"),
        ("big\tBig\n", "line 1 of the synonym file .* holds a word twice"),
        ("", "is empty; write a group of words per line"),
    ],
)
def test_a_bad_synonym_file_is_refused_with_the_line(tmp_path, content, message):
    path = tmp_path / "mine.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_synonyms(path)


def test_a_synonym_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_synonyms(tmp_path / "none.tsv")
    path = tmp_path / "bytes.tsv"
    path.write_bytes(b"big\xff\tlarge")
    with pytest.raises(ConfigError, match="cannot be read as UTF-8"):
        read_synonyms(path)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (["one"], "returned 1 rows for 3 texts; it must return one text for each"),
        ("one text", "returned a str"),
        (None, "returned a NoneType"),
        (["a", "b", 3], "returned 3 among its texts"),
    ],
)
def test_what_a_function_returns_is_checked(returned, message):
    with pytest.raises(DataError, match=message):
        ChangedByFunction(lambda texts: returned, 0)(TEXTS, [0, 1, 2], 0)
