"""Files of tensors and facts, their formats, and the checkpoints of a run."""

from __future__ import annotations

import json

import pytest
import torch

from closeknit import __version__
from closeknit.errors import ConfigError, ModelError
from closeknit.storage import (
    NewerFormatError,
    check_format,
    lock_folder,
    read_json,
    read_stamped,
    read_tensors,
    stamp,
    tensor_names,
    write_json,
    write_tensors,
)
from closeknit.training import checkpoints as training_checkpoints

TENSORS = {"weight": torch.tensor([1.0, 2.0])}


def test_tensors_that_share_memory_come_back_apart(tmp_path):
    weight = torch.arange(4.0)
    write_tensors(tmp_path / "a.safetensors", {"one": weight, "two": weight, "part": weight[:2]})
    assert tensor_names(tmp_path / "a.safetensors") == ["one", "part", "two"]
    read = read_tensors(tmp_path / "a.safetensors")
    assert read["one"].tolist() == read["two"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert read["part"].tolist() == [0.0, 1.0]
    assert read["one"].data_ptr() != read["two"].data_ptr()


def test_a_missing_or_damaged_file_is_named(tmp_path):
    tensors, facts = tmp_path / "a.safetensors", tmp_path / "a.json"
    for read, path in ((read_tensors, tensors), (tensor_names, tensors), (read_json, facts)):
        with pytest.raises(ModelError, match=f"{path.name} is missing"):
            read(path)
        path.write_bytes(b'{"a"')
        with pytest.raises(ModelError, match=f"{path.name} is damaged or cut short"):
            read(path)
        path.unlink()


def test_json_is_written_whole_and_leaves_nothing_beside_it(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Übung"})
    write_json(tmp_path / "a.json", {"name": "second"})
    assert read_json(tmp_path / "a.json") == {"name": "second"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_in_use_is_refused_until_it_is_free(tmp_path):
    with (
        lock_folder(tmp_path / "lock", tmp_path),
        pytest.raises(ConfigError, match="another run is using"),
    ):
        lock_folder(tmp_path / "lock", tmp_path)
    lock_folder(tmp_path / "lock", tmp_path).close()


# ---------------------------------------------------------------- formats


def test_stamped_facts_come_back_without_their_stamp(tmp_path):
    identity = {"run": {"train": {"seed": 2}}, "data": {"rows": 7}}
    write_json(tmp_path / "run.json", stamp(identity, 2))
    assert read_json(tmp_path / "run.json") == {"format": 2, "closeknit": __version__, **identity}
    assert read_stamped(tmp_path / "run.json", 2, "the run") == (identity, 2)
    assert read_stamped(tmp_path / "run.json", 3, "the run") == (identity, 2)


def test_facts_without_a_stamp_are_of_the_first_format(tmp_path):
    write_json(tmp_path / "run.json", {"data": {"rows": 7}})
    assert read_stamped(tmp_path / "run.json", 2, "the run") == ({"data": {"rows": 7}}, 1)
    assert check_format({}, 1, "the run") == 1


@pytest.mark.parametrize(
    ("writer", "named"),
    [
        ({"closeknit": "9.1.0"}, "Closeknit 9.1.0"),
        ({"versions": {"closeknit": "9.1.0", "torch": "3"}}, "Closeknit 9.1.0"),
        ({}, "a newer Closeknit"),
        ({"closeknit": 9}, "a newer Closeknit"),
        ({"closeknit": "9\n\x1b[2J"}, "a newer Closeknit"),
        ({"versions": ["closeknit"]}, "a newer Closeknit"),
    ],
)
def test_a_newer_format_is_refused_and_its_writer_named(writer, named):
    with pytest.raises(NewerFormatError) as refused:
        check_format({"format": 3, **writer}, 2, "the run in runs/a")
    assert str(refused.value) == (
        f"the run in runs/a has format 3 and was written by {named}; this version, {__version__}, "
        f"reads formats up to 2. Use {named} to read it"
    )


@pytest.mark.parametrize("number", [0, -1, "2", 1.0, True, None, [1]])
def test_a_format_that_is_no_number_from_1_is_damage(number):
    with pytest.raises(ModelError, match="the run is damaged: it has format") as refused:
        check_format({"format": number}, 2, "the run")
    assert not isinstance(refused.value, NewerFormatError)


def test_facts_that_are_no_table_are_damage(tmp_path):
    write_json(tmp_path / "run.json", [1, 2])
    with pytest.raises(ModelError, match=r"run.json is damaged: it does not hold a table of facts"):
        read_stamped(tmp_path / "run.json", 2, "the run")


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_carries_its_format_and_the_version_that_wrote_it(tmp_path):
    training_checkpoints.save(tmp_path, 3, TENSORS, {"number": 3})
    written = json.loads((tmp_path / "step-000000003" / "state.json").read_text())
    assert written == {"format": 2, "closeknit": __version__, "number": 3}
    tensors, facts = training_checkpoints.load(tmp_path)
    assert tensors["weight"].tolist() == [1.0, 2.0]
    assert facts == {"number": 3}


def test_a_checkpoint_of_the_first_format_is_read(tmp_path):
    training_checkpoints.save(tmp_path, 3, TENSORS, {})
    write_json(tmp_path / "step-000000003" / "state.json", {"number": 3, "history": [1]})
    assert training_checkpoints.load(tmp_path)[1] == {"number": 3, "history": [1]}


def test_a_newer_checkpoint_is_refused_although_an_older_one_could_be_read(tmp_path):
    training_checkpoints.save(tmp_path, 3, TENSORS, {"number": 3})
    newer = tmp_path / "step-000000005"
    newer.mkdir()
    write_tensors(newer / "state.safetensors", TENSORS)
    write_json(newer / "state.json", {"format": 3, "closeknit": "9.1.0", "number": 5})
    with pytest.raises(NewerFormatError, match=r"step-000000005 has format 3 .* Closeknit 9\.1\.0"):
        training_checkpoints.load(tmp_path)


def test_every_format_is_brought_forward_step_by_step(monkeypatch):
    """As it will be when there is a third format."""
    upgrades = {1: lambda facts: {**facts, "one": True}, 2: lambda facts: {**facts, "two": True}}
    monkeypatch.setattr(training_checkpoints, "FORMAT", 3)
    monkeypatch.setattr(training_checkpoints, "_UPGRADES", upgrades)
    assert training_checkpoints.migrate({}, 1) == {"one": True, "two": True}
    assert training_checkpoints.migrate({}, 2) == {"two": True}
    assert training_checkpoints.migrate({}, 3) == {}


def test_every_older_format_has_an_upgrade():
    assert sorted(training_checkpoints._UPGRADES) == list(range(1, training_checkpoints.FORMAT))


def test_a_run_resumes_from_a_checkpoint_of_the_first_format(tiny, small, tmp_path):
    """To the same weights as without the interruption."""
    from closeknit.classification.config import RunConfig
    from closeknit.classification.fit import ClassifierFit
    from closeknit.data import from_python
    from conftest import losses_of

    config = RunConfig.from_dict(
        {
            "encoder": {"name": tiny(), "max_length": 16},
            "objective": {"name": "triple_entropy"},
            "train": {"epochs": 2, "batch_size": 12, "lr": 1e-3, "checkpoint_seconds": 0.0},
        }
    )
    examples = from_python(*small)
    whole = losses_of(ClassifierFit(examples, config))
    losses_of(ClassifierFit(examples, config, folder=tmp_path), until=3)
    (path,) = tmp_path.glob("step-*/state.json")
    facts = json.loads(path.read_text())
    first_format = {
        key: value for key, value in facts.items() if key not in ("format", "closeknit")
    }
    path.write_text(json.dumps(first_format))
    resumed = losses_of(ClassifierFit(examples, config, folder=tmp_path, resume=True))
    done = first_format["number"]
    assert 0 < done < len(whole)
    assert resumed == whole[done:]
