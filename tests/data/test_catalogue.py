"""Data sets are found by their names, and the bundled messages are as they should be."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from pathlib import Path

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

    entry = catalogue.CATALOGUE["tweet_eval_emotion"]
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["anger", "joy"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["grr", "yay"], "label": [0, 1]}, features=features)
    assert catalogue._examples_from_hub(rows, entry, "tweets").labels == ["anger", "joy"]


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


def test_emoint_is_read_with_the_column_names_of_its_source():
    import datasets

    entry = catalogue.CATALOGUE["emoint"]
    rows = datasets.Dataset.from_dict(
        {
            "id": [1, 2],
            "tweet": ["so angry", "so afraid"],
            "class": ["anger", "fear"],
            "sentiment_intensity": ["high", "low"],
        }
    )
    found = catalogue._examples_from_hub(rows, entry, "emoint")
    assert found.labels == ["anger", "fear"] and found.texts == ["so angry", "so afraid"]


def newsgroups(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("text,label\nFrom: me,sci.med\nFrom: you,sci.space\n")


def test_20_newsgroups_has_a_name_for_each_of_its_two_forms(tmp_path, monkeypatch, capsys):
    newsgroups(tmp_path / "20newsgroups")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    found = catalogue.load("20newsgroups_headers")
    assert found.name == "20newsgroups_headers" and len(found.training) == 2
    assert capsys.readouterr().err == ""
    assert catalogue.load("20newsgroups").training.texts == found.training.texts
    assert "20newsgroups stands for two data sets; here it is 20newsgroups_headers" in (
        capsys.readouterr().err
    )
    assert catalogue.describe_source("20newsgroups_bare").startswith("hub")
    names = ("20newsgroups", "20newsgroups_headers", "20newsgroups_bare")
    assert len({catalogue.text_pool(name) for name in names}) == 1


def test_messages_with_headers_are_not_on_the_hub(monkeypatch):
    monkeypatch.delenv("CLOSEKNIT_DATA", raising=False)
    with pytest.raises(DataError, match="20newsgroups_headers is not on the hub"):
        catalogue.load("20newsgroups_headers")


@pytest.mark.parametrize(
    ("source", "is_name"), [("trec", True), ("trec.csv", False), ("treck", False)]
)
def test_a_name_of_the_catalogue_is_known_as_one(source, is_name):
    assert catalogue.is_catalogue_name(source) is is_name


def test_a_users_folder_of_the_same_name_is_not_the_catalogues(tmp_path, monkeypatch):
    newsgroups(tmp_path / "cr")
    monkeypatch.chdir(tmp_path)
    assert not catalogue.is_catalogue_name("cr")


def test_a_users_folder_with_a_name_of_the_catalogue_keeps_all_its_rows(
    tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "mine" / "goemotions"
    folder.mkdir(parents=True)
    (folder / "all.csv").write_text("text,label\na,joy\nb,neutral\n,joy\n")
    with pytest.raises(DataError, match=r"blank|empty"):  # of the catalogue, it would be left out
        catalogue.load(folder)
    (folder / "all.csv").write_text("text,label\na,joy\nb,neutral\n")
    assert catalogue.load(folder).training.labels == ["joy", "neutral"]
    assert capsys.readouterr().err == ""
    monkeypatch.chdir(folder.parent)
    assert catalogue.load("goemotions").training.labels == ["joy", "neutral"]
    assert "goemotions is the folder here, not the data set of the" in capsys.readouterr().err
    monkeypatch.setenv("CLOSEKNIT_DATA", str(folder.parent))
    for source in ("goemotions", folder):
        assert catalogue.is_catalogue_name(str(source))
        assert catalogue.load(source).training.labels == ["joy"]


def test_a_folder_beside_a_name_of_the_catalogue_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "messages").mkdir()
    (tmp_path / "messages" / "march.csv").write_text("text,label\na,x\nb,y\n")
    monkeypatch.chdir(tmp_path)
    assert len(catalogue.load("messages").training.classes) == 12
    said = capsys.readouterr().err
    assert "messages is the data set of the catalogue (bundled); the folder messages here" in said
    with pytest.raises(DataError, match="has no data files"):
        catalogue.load("./messages")
    (tmp_path / "messages" / "train.csv").write_text("text,label\na,x\nb,y\n")
    assert catalogue.load("messages").training.classes == ["x", "y"]
    assert "messages is the folder here" in capsys.readouterr().err


# ---------------------------------------------------------------- real data


@pytest.fixture
def real_data(request) -> Path:
    """The folder of real data sets: that of CLOSEKNIT_DATA, or one beside this checkout."""
    folder = os.environ.get("CLOSEKNIT_DATA")
    return Path(folder) if folder else request.getfixturevalue("shared")


KNOWN = json.loads(Path(__file__).with_name("known_data_sets.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KNOWN)
def test_a_data_set_is_the_one_that_its_name_promises(name, real_data, monkeypatch):
    """Rows of each part, classes, and the first text.

    The figures are those of the publications, less the rows without a text. `note` says where
    they differ from a publication, and why.
    """
    if catalogue._folder_of(name, real_data) is None:
        pytest.skip(f"{name} is not in {real_data}")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(real_data))
    known = KNOWN[name]
    target = "score" if catalogue.CATALOGUE[name].scored else "label"
    found = catalogue.load(name, target=target)
    assert {part: len(rows) for part, rows in found.parts.items()} == known["rows"]
    first = found.parts.get("train") or next(iter(found.parts.values()))
    assert hashlib.sha256(first.texts[0].encode()).hexdigest().startswith(known["first"])
    if "classes" in known:
        assert {len(rows.classes) for rows in found.parts.values()} <= {known["classes"]}
    for part in found.parts.values():
        assert set(known.get("labels", [])) <= set(part.labels or [])


def test_real_data_sets_load(shared, monkeypatch):
    monkeypatch.setenv("CLOSEKNIT_DATA", str(shared))  # elsewhere a folder `cr` is the user's own
    found = catalogue.load(shared / "trec")
    assert [len(found.parts[p]) for p in ("train", "test")] == [5452, 500]
    assert len(catalogue.load(shared / "cr").training) == 3771  # 3,775 less four blank rows
    assert len(catalogue.load(shared / "goemotions").training) == 23485
    assert catalogue.load(shared / "mrpc").training.pairs is not None
