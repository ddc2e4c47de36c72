from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data import Examples
from closeknit.multitask.mistakes import (
    Mistake,
    class_mistakes,
    read_mistakes,
    score_mistakes,
    word_overlap,
    write_mistakes,
)

# ---------------------------------------------------------------- words in common


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("The cat sat", "the CAT ran!", 2 / 4),
        ("a a a b", "b, a", 1.0),  # a word counts once
        ("lost card", "new parcel", 0.0),
        ("naïve café", "Café", 1 / 2),
        ("don't", "don t", 1.0),  # words are letters and digits
        ("", "", 0.0),
        ("?!", "...", 0.0),
        ("", "word", 0.0),
    ],
)
def test_word_overlap_worked_by_hand(first, second, share):
    assert word_overlap(first, second) == word_overlap(second, first) == pytest.approx(share)


words = st.lists(st.sampled_from("card lost late parcel Card LATE".split()))


@given(words, words)
def test_word_overlap_is_the_share_of_all_words(first, second):
    lower_first, lower_second = [one.lower() for one in first], [one.lower() for one in second]
    both = [one for one in dict.fromkeys(lower_first) if one in lower_second]
    everything = list(dict.fromkeys(lower_first + lower_second))
    expected = len(both) / len(everything) if everything else 0.0
    assert word_overlap(" ".join(first), ", ".join(second)) == pytest.approx(expected)


# ---------------------------------------------------------------- wrong answers


def test_only_wrong_classes_are_told_and_the_surest_first():
    examples = Examples(["a", "b", "c", "d"], labels=["sad", "glad", "sad", "glad"])
    chances = np.array([[0.4, 0.6], [0.1, 0.9], [0.05, 0.95], [0.7, 0.3]], dtype=np.float32)
    found = class_mistakes(examples, ["sad", "glad"], chances)
    assert [(one.text, one.expected, one.predicted) for one in found] == [
        ("c", "sad", "glad"),
        ("d", "glad", "sad"),
        ("a", "sad", "glad"),
    ]
    assert [one.size for one in found] == pytest.approx([0.95, 0.7, 0.6])
    assert {(one.text2, one.overlap) for one in found} == {("", None)}


def test_a_wrong_class_of_a_pair_tells_its_words_in_common():
    examples = Examples(["lost card", "late"], ["card stolen", "late"], ["other", "same"])
    chances = np.array([[0.8, 0.2], [0.9, 0.1]], dtype=np.float32)
    (one,) = class_mistakes(examples, ["same", "other"], chances)
    assert one == Mistake(
        "lost card", "card stolen", "other", "same", pytest.approx(0.8), pytest.approx(1 / 3)
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3)),
        min_size=1,
    )
)
def test_class_mistakes_are_all_rows_whose_likeliest_class_is_wrong(rows):
    labels = ["x", "y", "z"]
    examples = Examples(
        [str(row) for row in range(len(rows))], labels=[labels[own] for own, _ in rows]
    )
    found = class_mistakes(
        examples, labels, np.array([chances for _, chances in rows], dtype=np.float32)
    )
    wrong = [
        str(row) for row, (own, chances) in enumerate(rows) if chances.index(max(chances)) != own
    ]
    assert sorted(one.text for one in found) == sorted(wrong)
    sizes = [one.size for one in found]
    assert sizes == sorted(sizes, reverse=True)
    for one in found:
        chances = rows[int(one.text)][1]
        assert one.size == max(chances) and one.predicted == labels[chances.index(max(chances))]


def pairs_with_scores(*scores: float) -> Examples:
    texts = [f"text {number}" for number in range(len(scores))]
    return Examples(texts, [f"{text} again" for text in texts], scores=list(scores))


def test_scores_far_off_are_told_and_the_farthest_first():
    examples = pairs_with_scores(0.0, 5.0, 2.0, 3.0, 4.0)
    given_scores = np.array(
        [1.0, 2.5, 3.5, 3.25, 0.0], dtype=np.float32
    )  # off by 1, 2.5, 1.5, 0.25 and 4
    found = score_mistakes(examples, given_scores)
    assert [(one.text, one.expected, one.predicted, one.size) for one in found] == [
        ("text 4", "4.00", "0.00", 4.0),
        ("text 1", "5.00", "2.50", 2.5),
        ("text 2", "2.00", "3.50", 1.5),
    ]  # a fifth of the range is 1, and exactly 1 is not more
    assert found[0].text2 == "text 4 again" and found[0].overlap == pytest.approx(2 / 3)
    assert [one.text for one in score_mistakes(examples, given_scores, share=0.5)] == ["text 4"]
    assert len(score_mistakes(examples, given_scores, share=0.0)) == 5


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5, width=32)), min_size=1),
    st.floats(0.05, 0.9),
)
def test_score_mistakes_are_all_rows_off_by_more_than_the_share(rows, share):
    truth, answers = [own for own, _ in rows], [own for _, own in rows]
    found = score_mistakes(
        pairs_with_scores(*truth), np.array(answers, dtype=np.float32), share=share
    )
    reach = share * (max(truth) - min(truth))
    off = {f"text {row}": abs(own - given_score) for row, (own, given_score) in enumerate(rows)}
    assert {one.text for one in found} == {text for text, size in off.items() if size > reach}
    assert [one.size for one in found] == sorted((off[one.text] for one in found), reverse=True)


# ---------------------------------------------------------------- files

texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [
        '"quoted"',
        'a "b", c',
        "two\nlines",
        "dos\r\nlines",
        "old\rmac",
        ",,,",
        '"',
        "'",
        " ",
        "",
        "\x00",
        "=1+1",
        "ü 漢 🙂",
    ]
)
mistakes = st.builds(
    Mistake,
    texts,
    texts,
    texts,
    texts,
    st.integers(0, 50_000).map(lambda n: n / 10_000),
    st.none() | st.integers(0, 10_000).map(lambda n: n / 10_000),
)


@given(st.lists(mistakes, max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("mistakes") / "task.csv"
    write_mistakes(path, found)
    assert read_mistakes(path) == found


def test_numbers_are_written_with_four_digits(tmp_path):
    path = tmp_path / "task.csv"
    write_mistakes(path, [Mistake("a", "b", "c", "d", 2 / 3, 1 / 3)])
    assert path.read_text() == "text,text2,expected,predicted,size,overlap\na,b,c,d,0.6667,0.3333\n"


@pytest.fixture
def usual_limit():
    """The limit that csv starts with, which other readers may have raised by now."""
    before = csv.field_size_limit(131_072)
    yield 131_072
    csv.field_size_limit(before)


def test_texts_of_any_length_are_read(tmp_path, usual_limit):
    long = Mistake("word " * usual_limit, 'a "quote"\n' * usual_limit, "sad", "glad", 0.5, 0.25)
    write_mistakes(tmp_path / "task.csv", [long])
    assert read_mistakes(tmp_path / "task.csv") == [long]


def test_a_file_that_is_missing_or_of_another_make_has_no_mistakes(tmp_path):
    path: Path = tmp_path / "task.csv"
    assert read_mistakes(path) == []
    for content in ("", "text,label\na,b\n", "text,text2,expected,predicted,size\na,b,c,d,1\n"):
        path.write_text(content)
        assert read_mistakes(path) == []


def test_a_damaged_line_is_not_passed_over(tmp_path):
    path: Path = tmp_path / "task.csv"
    for line in ("a,b,c,d,half,", "a,b,c", "a,b,c,d,1,2,3"):
        path.write_text(",".join(Mistake.columns()) + f"\n{line}\n")
        with pytest.raises(ValueError, match=r"convert|values to unpack"):
            read_mistakes(path)
