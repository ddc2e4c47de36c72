"""Pairs with scores are read from files, folders and the hub, and checked."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from closeknit.data import ScoredPairs, load_scored_pairs, read_scored_pairs
from closeknit.errors import DataError
from conftest import write_pairs


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    "header", [("text1", "text2"), ("text", "text2"), ("sentence1", "sentence2")]
)
def test_pairs_are_read_from_every_kind_of_file(tmp_path, suffix, header):
    rows = [("one, with a comma", "two", 1.5), ("three", "four", 4.0)]
    path, names = tmp_path / f"some{suffix}", (*header, "score")
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    elif suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        columns = {
            name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        parquet.write_table(pyarrow.table(columns), path)
    else:
        write_pairs(path, rows, names)
    pairs = read_scored_pairs(path)
    assert (pairs.first, pairs.second) == (["one, with a comma", "three"], ["two", "four"])
    assert pairs.scores.tolist() == [1.5, 4.0] and pairs.scores.dtype == np.float64
    assert (pairs.name, pairs.groups, len(pairs)) == ("some", None, 2)


def test_columns_of_other_names_and_groups(tmp_path):
    path = write_pairs(
        tmp_path / "x.csv",
        [("p", "q", "2", "news"), ("r", "s", "3", "web")],
        ("l", "r", "gold", "kind"),
    )
    pairs = read_scored_pairs(path, first="l", second="r", score="gold", group="kind")
    assert (pairs.first, pairs.groups, pairs.scores.tolist()) == (
        ["p", "r"],
        ["news", "web"],
        [2.0, 3.0],
    )
    usual = write_pairs(
        tmp_path / "y.csv", [("p", "q", 2, "news")], ("text1", "text2", "score", "subset")
    )
    assert read_scored_pairs(usual).groups == ["news"]


def test_a_folder_gives_its_test_part_or_the_one_that_is_asked_for(tmp_path):
    for part, text in (("train", "t"), ("test", "e")):
        write_pairs(tmp_path / "mine" / f"{part}.csv", [(text, "x", 1)])
    assert read_scored_pairs(tmp_path / "mine").first == ["e"]
    assert read_scored_pairs(tmp_path / "mine").name == "mine"
    train = read_scored_pairs(tmp_path / "mine", "train")
    assert (train.first, train.name) == (["t"], "mine train")
    write_pairs(tmp_path / "only" / "validation.csv", [("v", "x", 1)])
    assert read_scored_pairs(tmp_path / "only").first == ["v"]
    write_pairs(tmp_path / "held" / "test.csv", [("h", "x", 1)])
    assert read_scored_pairs(tmp_path / "held").first == ["h"]
    with pytest.raises(DataError, match="no part validation or all; it has test; name the file"):
        read_scored_pairs(
            tmp_path / "held", prefer="validation"
        )  # nothing is chosen by a test part unasked


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    good = write_pairs(tmp_path / "good.csv", [("a", "b", 1)])
    wrong = {
        "has no column score; it has text1, text2": ([("a", "b")], ("text1", "text2")),
        "has no column text2; it has text1, score": ([("a", 1)], ("text1", "score")),
        "the score in row 2 is 'high'": (
            [("a", "b", 1), ("a", "b", "high")],
            ("text1", "text2", "score"),
        ),
        "the score in row 1 is 'nan'": ([("a", "b", "nan")], ("text1", "text2", "score")),
        "empty text in row 2": ([("a", "b", 1), ("a", " ", 1)], ("text1", "text2", "score")),
    }
    for message, (rows, header) in wrong.items():
        with pytest.raises(DataError, match=message):
            read_scored_pairs(write_pairs(tmp_path / "wrong.csv", rows, header))
    for second, message in (
        ("5", "not a string but int in row 1"),
        ('"\\ud83d"', "half a character .* in row 1"),
    ):
        (tmp_path / "odd.jsonl").write_text(f'{{"text1": "a", "text2": {second}, "score": 1}}')
        with pytest.raises(DataError, match=message):
            read_scored_pairs(tmp_path / "odd.jsonl")
    with pytest.raises(DataError, match="has no column gold"):
        read_scored_pairs(good, score="gold")
    with pytest.raises(DataError, match=r"did you mean good\.csv"):
        read_scored_pairs(tmp_path / "goood.csv")
    with pytest.raises(DataError, match="it has no part train"):
        read_scored_pairs(good, "train")


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match="it holds nothing"):
        read_scored_pairs(tmp_path / "mine")
    write_pairs(tmp_path / "mine" / "train.csv", [("a", "b", 1)])
    write_pairs(tmp_path / "mine" / "validation.csv", [("a", "b", 1)])
    with pytest.raises(
        DataError, match="no part test or all; it has train, validation; name the file"
    ):
        read_scored_pairs(tmp_path / "mine")
    with pytest.raises(DataError, match="no part test; it has train, validation"):
        read_scored_pairs(tmp_path / "mine", "test")
    write_pairs(tmp_path / "mine" / "train.tsv", [("a", "b", 1)])
    with pytest.raises(DataError, match=r"train\.csv and train\.tsv; keep one"):
        read_scored_pairs(tmp_path / "mine", "train")


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="2 first texts and 1 second texts"):
        ScoredPairs(["a", "b"], ["c"], np.zeros(2))
    with pytest.raises(DataError, match="1 first texts and 2 groups"):
        ScoredPairs(["a"], ["c"], np.zeros(1), groups=["x", "y"])
    with pytest.raises(DataError, match="no pairs"):
        ScoredPairs([], [], np.zeros(0))


class HubRows(dict):
    @property
    def column_names(self):
        return list(self)


def test_the_benchmark_comes_from_the_hub_where_the_folder_lacks_it(monkeypatch):
    asked = []

    def load_dataset(name, *, split):
        asked.append((name, split))
        return HubRows(sentence1=["a b", "c"], sentence2=["a b", "d"], score=[1.0, 0.2])

    monkeypatch.delenv("CLOSEKNIT_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    pairs = load_scored_pairs("stsb")
    assert asked == [("sentence-transformers/stsb", "test")]
    assert (pairs.name, pairs.first, pairs.scores.tolist()) == ("stsb", ["a b", "c"], [1.0, 0.2])
