"""Data sets are found by their names, and the bundled messages are as they should be."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from closeknit.data import catalogue
from closeknit.errors import DataError


def test_the_bundled_messages_have_a_fixed_test_part():
    found = catalogue.load("messages")
    assert {name: len(part) for name, part in found.parts.items()} == {"train": 528, "test": 264}
    for part, rows in (("train", 44), ("test", 22)):
        assert set(Counter(found.parts[part].labels).values()) == {rows}
    assert len(found.training.classes) == 12


def test_no_two_messages_are_near_duplicates():
    """No pair shares a quarter of its five-letter pieces, nor half of its words."""
    found = catalogue.load("messages")
    texts = [text for part in found.parts.values() for text in part.texts]
    assert len(set(texts)) == len(texts) >= 12 * 60

    def pieces(text):
        clean = " ".join(re.findall(r"\w+", text.lower()))
        return {clean[i : i + 5] for i in range(len(clean) - 4)}, set(clean.split())

    made = [pieces(text) for text in texts]
    for i, (letters, words) in enumerate(made):
        for j in range(i):
            for own, other, limit in ((letters, made[j][0], 0.25), (words, made[j][1], 0.5)):
                assert len(own & other) <= limit * len(own | other), (texts[i], texts[j])


def test_messages_do_not_begin_alike():
    found = catalogue.load("messages")
    texts = [text.lower() for part in found.parts.values() for text in part.texts]
    openings = Counter(" ".join(text.split()[:3]) for text in texts)
    assert openings.most_common(1)[0][1] <= 8


def test_unknown_names_and_paths_are_told_apart(tmp_path):
    with pytest.raises(DataError, match="did you mean messages"):
        catalogue.load("mesages")
    with pytest.raises(DataError, match="does not exist"):
        catalogue.load(str(tmp_path / "no" / "file.csv"))
    with pytest.raises(DataError, match="no data files"):
        catalogue.load(str(tmp_path))


def test_a_local_folder_of_the_catalogues_layout_is_used(tmp_path, monkeypatch):
    (tmp_path / "cr").mkdir()
    (tmp_path / "cr" / "all.csv").write_text("text,label\nfine,positive\n,positive\nbad,negative\n")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    assert catalogue.load("cr").training.texts == ["fine", "bad"]  # its blank rows are known
    assert catalogue.describe_source("cr") == str(tmp_path / "cr")
    assert catalogue.describe_source("trec").startswith("hub")


def test_goemotions_keeps_rows_with_one_emotion(tmp_path, monkeypatch):
    (tmp_path / "goemotions").mkdir()
    (tmp_path / "goemotions" / "train.csv").write_text(
        "text,label\na,joy\nb,joy|fear\nc,neutral\nd,fear\n"
    )
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    assert catalogue.load("goemotions").training.labels == ["joy", "fear"]


def test_hub_rows_become_examples():
    import datasets

    entry = catalogue.CATALOGUE["emoint"]
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["anger", "joy"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["grr", "yay"], "label": [0, 1]}, features=features)
    assert catalogue._examples_from_hub(rows, entry, "emoint").labels == ["anger", "joy"]


def test_what_the_hub_does_not_give_is_said(monkeypatch):
    import datasets

    def refuse(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.delenv("CLOSEKNIT_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"trec could not be loaded from the hub .*no route.*CLOSEKNIT_DATA"
    ):
        catalogue.load("trec")
    with pytest.raises(DataError, match="isear is not on the hub"):
        catalogue.load("isear")


def test_real_data_sets_load(shared):
    found = catalogue.load(shared / "trec")
    assert [len(found.parts[p]) for p in ("train", "test")] == [5452, 500]
    assert len(catalogue.load(shared / "cr").training) == 3771  # 3,775 less four blank rows
    assert len(catalogue.load(shared / "goemotions").training) == 23485
    assert catalogue.load(shared / "mrpc").training.pairs is not None
