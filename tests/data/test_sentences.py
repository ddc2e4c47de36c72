"""Sentences are read from Python, files and the catalogue, and their rows are grouped."""

from __future__ import annotations

import numpy as np
import pytest

from closeknit.data import read_sentences, sentences_from
from closeknit.errors import DataError


@pytest.mark.parametrize(
    "labels", [(0, 1, 2), (-1, 0, 1), ("1.0", "0.0", "0.0"), ("entailment", "neutral", 2)]
)
def test_pairs_with_a_verdict_are_not_learnt_as_if_they_belonged_together(tmp_path, labels):
    rows = "".join(f"a{i},b{i},{label}\n" for i, label in enumerate(labels))
    (tmp_path / "nli.csv").write_text("sentence1,sentence2,label\n" + rows)
    with pytest.raises(DataError, match="a column label that says which of them belong together"):
        read_sentences(str(tmp_path / "nli.csv"))


def test_rows_that_share_a_text_or_a_label_are_one_group():
    rows = sentences_from([("a", "b"), ("c", "b"), ("c", "d"), ("e", "f")])
    assert rows.groups[0] == rows.groups[1] == rows.groups[2] != rows.groups[3]
    labelled = sentences_from(["a", "b", "c"], ["x", "y", "x"])
    assert labelled.groups[0] == labelled.groups[2] != labelled.groups[1]
    thanks = sentences_from(["hi", "thanks", "bye", "thanks"], ["x", "x", "y", "y"])
    assert thanks.groups.tolist() == [0, 0, 1, 1]  # a text of two classes does not make them one
    assert len(set(sentences_from(["a", "b", "a"]).groups)) == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "is empty"),
        ("one text", "give a list"),
        (["a", ""], "row 2 is empty"),
        (["a", 3], "not a string but int"),
        (["a", "b \ud83d"], "half a character .* in row 2"),
        ([("a", "b"), ("c",)], "row 2 does not have 2 texts"),
        ([("a", "b", "c", "d")], "pairs of texts or triplets"),
        ({"a", "b"}, "is a set; give a list"),
    ],
)
def test_values_that_are_not_rows_are_refused(rows, words):
    with pytest.raises(DataError, match=words):
        sentences_from(rows)


@pytest.mark.parametrize("label", [None, "", float("nan")])
def test_rows_without_a_label_do_not_count_as_one_class(label):
    with pytest.raises(DataError, match="2 of 3 rows have no label"):
        sentences_from(["a", "b", "c"], ["x", label, label])


def test_files_are_read_by_the_usual_names_or_yours(tmp_path):
    (tmp_path / "lines.txt").write_text("one\ntwo\n\nthree\n")
    assert read_sentences(str(tmp_path / "lines.txt")).columns == (["one", "two", "three"],)
    (tmp_path / "t.csv").write_text("anchor,positive,negative\na,b,c\nd,e,f\n")
    assert read_sentences(str(tmp_path / "t.csv")).columns == (["a", "d"], ["b", "e"], ["c", "f"])
    (tmp_path / "q.csv").write_text("ask,reply,kind\na,b,x\nc,d,x\n")
    found = read_sentences(
        str(tmp_path / "q.csv"), columns={"text": "ask", "text2": "reply", "label": "kind"}
    )
    assert found.columns == (["a", "c"], ["b", "d"]) and found.groups[0] == found.groups[1]
    with pytest.raises(DataError, match="no column text; it has ask, reply, kind"):
        read_sentences(str(tmp_path / "q.csv"))
    with pytest.raises(DataError, match="no column aks"):
        read_sentences(str(tmp_path / "q.csv"), columns={"text": "aks"})
    (tmp_path / "n.csv").write_text("text,negative\na,b\n")
    with pytest.raises(DataError, match="no column text2"):
        read_sentences(str(tmp_path / "n.csv"))
    with pytest.raises(
        DataError, match="no column text except the one that is named for another purpose"
    ):
        read_sentences(str(tmp_path / "lines.txt"), columns={"label": "text"})
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "test.csv").write_text("text,text2\na,b\n")
    assert len(read_sentences(str(tmp_path / "held"), prefer="test")) == 1
    with pytest.raises(DataError, match="no part train or all; it has test; name the file to read"):
        read_sentences(str(tmp_path / "held"))  # nothing is learnt from a test part unasked
    with pytest.raises(DataError, match="neither a file"):
        read_sentences("nothere")
    assert len(read_sentences("messages")) > 100
    with pytest.raises(DataError, match="columns can only be named for a file"):
        read_sentences("messages", columns={"label": "label"})
    (tmp_path / "judged.csv").write_text("text,text2,label\na,b,0\nc,d,1\n")
    with pytest.raises(DataError, match="do not belong together"):
        read_sentences(str(tmp_path / "judged.csv"))
    assert (
        len(
            read_sentences(str(tmp_path / "judged.csv"), columns={"text": "text", "text2": "text2"})
        )
        == 2
    )
    assert sentences_from(np.array([["a", "b"], ["c", "d"]])).columns == (["a", "c"], ["b", "d"])


def test_a_folder_gives_one_file_and_never_a_guess_between_two(tmp_path):
    (tmp_path / "stories.csv").write_text("text\na\n")
    assert read_sentences(str(tmp_path)).columns == (
        ["a"],
    )  # the only data file, whatever its name
    (tmp_path / "poems.csv").write_text("text\nb\n")
    with pytest.raises(
        DataError, match=r"it holds poems\.csv, stories\.csv; name the file to read"
    ):
        read_sentences(str(tmp_path))
    (tmp_path / "train.txt").write_text("c\n")
    assert read_sentences(str(tmp_path)).columns == (["c"],)
    (tmp_path / "train.csv").write_text("text\nd\n")
    with pytest.raises(DataError, match=r"holds train\.csv and train\.txt; keep one of them"):
        read_sentences(str(tmp_path))


def test_pairs_with_a_score_are_not_learnt_as_if_they_belonged_together(tmp_path):
    (tmp_path / "scored.csv").write_text("text,text2,score\na,b,5\nc,d,0\n")
    with pytest.raises(DataError, match="a column score: pairs with a low score would be learnt"):
        read_sentences(str(tmp_path / "scored.csv"))
    named = {"text": "text", "text2": "text2"}
    assert len(read_sentences(str(tmp_path / "scored.csv"), columns=named)) == 2
