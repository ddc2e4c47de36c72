"""The list of files in a saved model never makes Closeknit touch anything but the files of that
model.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from pathlib import Path

import pytest

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.model import Model
from closeknit.data import from_python
from closeknit.errors import ModelError
from closeknit.json_lines import append_json_line
from closeknit.models.folder import is_known, is_plain, remove_listed
from closeknit.studies.results import Result, read_results, result_record

ESCAPES = [
    "../notes.md",
    "..",
    ".",
    "",
    "/",
    "/x.csv",
    "//x.csv",
    "../../x.md",
    "1_Pooling/../../notes.md",
    "1_Pooling/",
    "1_Pooling/..",
    "..\\notes.md",
    "C:\\notes.md",
    "config.json/../../notes.md",
    "model.safetensors\x00.md",
]


@pytest.fixture
def trained(tiny, small) -> Model:
    config = RunConfig.from_dict(
        {
            "encoder": {"name": tiny(), "max_length": 16},
            "train": {"epochs": 1, "batch_size": 12},
        }
    )
    return ClassifierFit(from_python(*small), config).run()


@pytest.fixture
def place(trained, tmp_path) -> Path:
    """A saved model between files of the user: beside the folder, in the folder, and elsewhere."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "notes.md").write_text("mine", encoding="utf-8")
    trained.save(home / "model")
    (home / "model" / "mine.txt").write_text("mine", encoding="utf-8")
    return home


def add_to_list(folder: Path, *names: str) -> None:
    path = folder / "closeknit.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["files"] |= dict.fromkeys(names, 4)
    path.write_text(json.dumps(facts), encoding="utf-8")


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder that does not belong to the model, with what it holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name in ("notes.md", "mine.txt", "kept") or path.parent.name == "kept"
    }


@pytest.mark.parametrize("name", ESCAPES)
def test_an_entry_that_leads_elsewhere_removes_nothing_when_a_model_is_saved_again(
    trained, place, name
):
    add_to_list(place / "model", name)
    before = everything_in(place)
    trained.save(place / "model")
    assert everything_in(place) == before
    Model.load(place / "model")


@pytest.mark.parametrize("name", ESCAPES)
def test_an_entry_that_leads_elsewhere_is_refused_when_a_model_is_loaded(place, name):
    add_to_list(place / "model", name)
    with pytest.raises(ModelError, match="list of files has the entry"):
        Model.load(place / "model")


@pytest.mark.parametrize("name", ESCAPES)
def test_train_with_overwrite_touches_nothing_outside(closeknit, tiny, small_csv, tmp_path, name):
    short = ("--epochs", "1", "--set", "encoder.max_length=16")
    arguments = ("train", small_csv, "--encoder", tiny(), *short, "--out", "home/model")
    closeknit(*arguments)
    (tmp_path / "home" / "notes.md").write_text("mine", encoding="utf-8")
    add_to_list(tmp_path / "home" / "model", name)
    closeknit(*arguments, "--overwrite")
    assert (tmp_path / "home" / "notes.md").read_text(encoding="utf-8") == "mine"
    assert small_csv.exists()
    Model.load(tmp_path / "home" / "model")


def test_a_file_of_the_user_stays_even_if_the_list_names_it(trained, place):
    add_to_list(place / "model", "mine.txt")
    trained.save(place / "model")
    assert (place / "model" / "mine.txt").read_text(encoding="utf-8") == "mine"


def test_what_a_symbolic_link_points_to_stays(trained, place):
    weights = place / "model" / "model.safetensors"
    elsewhere = place / "weights-elsewhere"
    weights.rename(elsewhere)
    weights.symlink_to(elsewhere)
    held = elsewhere.read_bytes()
    trained.save(place / "model")
    assert elsewhere.read_bytes() == held
    assert not weights.is_symlink()
    Model.load(place / "model")


def test_a_linked_folder_is_not_followed(trained, place):
    elsewhere = place / "kept"
    (place / "model" / "1_Pooling").rename(elsewhere)
    (place / "model" / "1_Pooling").symlink_to(elsewhere)
    before = everything_in(place)
    trained.save(place / "model")
    assert everything_in(place) == before
    assert not (place / "model" / "1_Pooling").is_symlink()


def test_a_folder_in_the_place_of_a_file_stays(tmp_path):
    (tmp_path / "vocab.txt").mkdir()
    (tmp_path / "vocab.txt" / "kept").write_text("mine", encoding="utf-8")
    remove_listed(tmp_path, ["vocab.txt"])
    assert (tmp_path / "vocab.txt" / "kept").exists()


def test_files_of_the_user_inside_a_folder_of_the_model_stay(trained, place):
    mine = place / "model" / "1_Pooling" / "mine.txt"
    mine.write_text("mine", encoding="utf-8")
    add_to_list(place / "model", "1_Pooling/mine.txt")
    trained.save(place / "model")
    assert mine.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    "name",
    [
        "Config.json",
        "CONFIG.JSON",
        "1_pooling/config.json",
        "1_Pooling/Config.json",
        "ｃonfig.json",  # a wide letter
        unicodedata.normalize("NFD", "é.csv"),
        unicodedata.normalize("NFC", "é.csv"),
        "mistakes/é.csv",
        "config.json ",
        " config.json",
        "config.json\n",
    ],
)
def test_a_name_in_another_case_or_unicode_form_is_not_known(tmp_path, name):
    assert not is_known(name)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine", encoding="utf-8")
    remove_listed(tmp_path, [name])
    assert path.exists()


def test_a_listed_name_does_not_remove_a_file_that_differs_by_case(tmp_path):
    (tmp_path / "Vocab.TXT").write_text("mine", encoding="utf-8")
    remove_listed(tmp_path, ["vocab.txt"])
    assert (tmp_path / "Vocab.TXT").exists()


@pytest.mark.parametrize("name", [None, 3, ["config.json"], {"config.json": 1}])
def test_an_entry_that_is_no_text_is_not_known(name):
    assert not is_known(name)
    assert not is_plain(name)


def test_a_list_of_files_that_is_no_table_is_refused(place):
    path = place / "model" / "closeknit.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**facts, "files": ["model.safetensors"]}), encoding="utf-8")
    with pytest.raises(ModelError, match="not a table of sizes"):
        Model.load(place / "model")


def test_every_file_that_is_saved_is_known(trained, tmp_path):
    trained.save(tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "closeknit.json").read_text(encoding="utf-8"))
    assert facts["files"]
    assert [name for name in facts["files"] if not is_known(name)] == []


def test_old_files_of_another_kind_of_model_go(tiny, small, trained, tmp_path):
    config = RunConfig.from_dict({"encoder": {"name": "textcnn"}, "train": {"epochs": 1}})
    trained.save(tmp_path / "model")
    ClassifierFit(from_python(*small), config).run().save(tmp_path / "model")
    held = {path.name for path in (tmp_path / "model").iterdir()}
    assert "vocabulary.json" in held
    assert not {"tokenizer.json", "config.json", "modules.json", "1_Pooling"} & held


def test_a_result_whose_key_is_a_path_is_skipped(tmp_path):
    """The details of a run are read from a file that is named by the key."""
    good = Result(
        "data", 8, "supcon", {}, "tiny", 2, 0, 5, "fixed", 0.5, 0.5, 0.5, 1.0, 4, {}, "0f3a"
    )
    path = tmp_path / "results.jsonl"
    for key in ("0f3a", "../../secret", "/secret", "", "a/b"):
        append_json_line(path, result_record(dataclasses.replace(good, key=key)))
    assert [result.key for result in read_results(path)] == ["0f3a"]
