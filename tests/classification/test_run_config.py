from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.classification.config import RunConfig, read_config
from closeknit.classification.run import parts_of
from closeknit.data import from_python
from closeknit.data.examples import DataSet
from closeknit.errors import ConfigError, DataError
from closeknit.settings import differences
from closeknit.training.config import TrainConfig


def test_a_file_then_changes(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[objective]\nname = "triple_entropy"\ncenters = 4\n[train]\nepochs = 3\nlr = 1e-4\n'
    )
    run = read_config(
        path, ["train.epochs=5", "objective.gamma=0.2", "encoder.dropout=none", "data.text=message"]
    )
    assert (run.train.epochs, run.train.lr) == (5, 1e-4)
    assert run.objective.options == {"centers": 4, "gamma": 0.2}
    assert run.data.text == "message"
    assert run.encoder.dropout is None


def test_another_objective_takes_none_of_the_files_options(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[objective]\nname = "triple_entropy"\ncenters = 4\n')
    assert read_config(path, ['objective.name="cross_entropy"']).objective.options == {}


def test_options_wait_for_the_name_of_their_objective(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[objective]\ncenters = 4\n")
    assert read_config(path, ['objective.name="triple_entropy"']).objective.options == {
        "centers": 4
    }
    late = read_config(None, ["objective.centers=5", "objective.name=triple_entropy"])
    assert late.objective.options == {"centers": 5}


@given(
    st.fixed_dictionaries(
        {
            "epochs": st.integers(1, 99),
            "lr": st.none() | st.floats(1e-7, 1.0),
            "schedule": st.sampled_from(["linear", "cosine"]),
        }
    ),
    st.fixed_dictionaries(
        {"name": st.none() | st.text(max_size=20), "max_length": st.integers(8, 512)}
    ),
)
def test_a_run_survives_its_own_toml(train, encoder):
    import tomllib

    run = RunConfig.from_dict({"train": train, "encoder": encoder})
    again = RunConfig.from_dict(tomllib.loads(run.to_toml()))
    assert again == run


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.stps=3"], "unknown setting train.stps"),
        (["train.epoch=3"], r"did you mean train\.epochs\?"),
        (["trian.epochs=3"], r"unknown table \[trian\]; did you mean train"),
        (["epochs=3"], "write it as table.setting=value"),
        (["train.epochs"], "write it as table.setting=value"),
        (["train.epochs=many"], "it must be a whole number"),
        (["train.epochs=2.5"], "it must be a whole number"),
        (["train.lr=fast"], "it must be a number or none"),
        (["train.epochs=true"], "it must be a whole number"),
        (["objective.name=suncon"], "unknown objective suncon"),
        (["objective.centers=3"], "unknown setting objective.centers for auto"),
        (["data.test=1.5"], "data.test is 1.5"),
        (
            ["data.text=0"],
            "it must be a text or none; a number is one in quotes: 'data.text=\"0\"'",
        ),
        (["data.empty=ignore"], "data.empty"),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises((ConfigError, DataError), match=words):
        read_config(None, changes)


def test_a_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        read_config(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("[train\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_config(tmp_path / "bad.toml")
    (tmp_path / "flat.toml").write_text("train = 3\n")
    with pytest.raises(ConfigError, match="train is not a table"):
        read_config(tmp_path / "flat.toml")
    with pytest.raises(ConfigError, match="train is not a table"):
        read_config(tmp_path / "flat.toml", ["train.epochs=2"])
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    with pytest.raises(
        ConfigError, match="a file with settings is expected here, not a file of texts"
    ):
        read_config(tmp_path / "rows.csv", [])


def test_differences_are_named_one_by_one():
    changes = ["objective.name=cross_entropy", "train.lr=1e-4", "encoder.pooling=mean"]
    a, b = RunConfig().to_dict(), read_config(None, changes).to_dict()
    assert differences(RunConfig, a, b) == [
        "encoder.pooling was first and is mean",
        "train.lr was None and is 0.0001",
    ]
    assert differences(RunConfig, a, a) == []


def test_auto_comes_with_settings_that_yield_to_given_ones():
    run = read_config(None, [])
    assert (run.objective.name, run.encoder.pooling, run.train.epochs, run.train.batch_size) == (
        "auto",
        "mean",
        0,
        0,
    )
    own = read_config(None, ["encoder.pooling=first", "train.epochs=4"])
    assert (own.encoder.pooling, own.train.epochs, own.train.batch_size) == ("first", 4, 0)
    plain = read_config(None, ["objective.name=cross_entropy"])
    assert (plain.encoder.pooling, plain.train.epochs, plain.train.batch_size) == ("first", 10, 64)
    assert (
        read_config(None, ["encoder.name=textcnn"]).encoder.pooling == "first"
    )  # its own, that is
    assert RunConfig.from_dict(run.to_dict()) == run
    assert (
        RunConfig.from_dict({}).objective.name == "cross_entropy"
    )  # a saved run names its objective


@given(rows=st.integers(2, 200_000), more=st.integers(0, 100_000), classes=st.integers(2, 300))
def test_open_epochs_and_batches_follow_the_number_of_rows(rows, more, classes):
    few, many = (
        TrainConfig(epochs=0, batch_size=0).settled(n, classes) for n in (rows, rows + more)
    )
    assert 3 <= many.epochs <= few.epochs <= 30
    assert 16 <= few.batch_size <= many.batch_size <= 32
    assert TrainConfig(epochs=7, batch_size=5).settled(rows, classes) == TrainConfig(
        epochs=7, batch_size=5
    )
    two = TrainConfig(epochs=0).settled(rows, 2).epochs
    assert two <= few.epochs <= 1.5 * (two + 1)


@given(rows=st.integers(2, 200_000), more=st.integers(0, 100_000), classes=st.integers(2, 300))
def test_an_open_scale_of_the_rate_rises_with_the_number_of_rows_and_of_classes(
    rows, more, classes
):
    few, many = (TrainConfig(lr_scale=0).settled(n, classes).lr_scale for n in (rows, rows + more))
    assert 0.5 <= few <= many <= 1.5
    assert TrainConfig(lr_scale=0).settled(rows, 2).lr_scale <= few
    assert TrainConfig(lr_scale=0.7).settled(rows, classes).lr_scale == 0.7


def test_open_epochs_at_the_sizes_that_were_measured():
    found = [
        TrainConfig(epochs=0, batch_size=0).settled(rows, 6) for rows in (16, 96, 800, 1000, 10_000)
    ]
    assert [(one.epochs, one.batch_size) for one in found] == [
        (30, 16),
        (15, 16),
        (6, 32),
        (6, 32),
        (3, 32),
    ]
    assert [TrainConfig(epochs=0).settled(800, classes).epochs for classes in (2, 8, 20, 77)] == [
        6,
        6,
        9,
        9,
    ]
    sizes = [(16, 2), (128, 2), (48, 6), (96, 12), (384, 6), (800, 2), (800, 77), (1000, 2)]
    scales = [TrainConfig(lr_scale=0).settled(rows, classes).lr_scale for rows, classes in sizes]
    assert scales == [0.5, 0.54, 0.87, 1.0, 0.93, 1.34, 1.34, 1.5]


def test_a_run_is_another_one_when_what_it_left_open_comes_to_something_else(monkeypatch):
    from closeknit.studies.jobs import Job
    from closeknit.training import config as train_config

    def keys() -> list[str]:
        rows = np.arange(800), np.arange(800, 1000)
        plain, auto = ({"objective": {"name": name}} for name in ("cross_entropy", "auto"))
        return [
            Job.key_of(RunConfig.from_dict(tables), 6, "texts", *rows) for tables in (plain, auto)
        ]

    plain, auto = keys()
    monkeypatch.setattr(train_config, "EPOCHS_OF_1000", 9)
    assert keys()[0] == plain and keys()[1] != auto


def test_epochs_stay_open_only_where_a_rule_settles_them():
    from closeknit.embeddings.config import EmbeddingConfig
    from closeknit.multitask.config import MultiTaskConfig

    with pytest.raises(ConfigError, match=r"train\.epochs is 0; it must be at least 1"):
        EmbeddingConfig.from_dict({"train": {"epochs": 0}})
    with pytest.raises(ConfigError, match=r"train\.batch_size is 0; it must be at least 1"):
        MultiTaskConfig.from_dict({"tasks": {"a": {"data": "x.csv"}}, "train": {"batch_size": 0}})
    for name in ("class_names", "positives"):
        with pytest.raises(ConfigError, match=rf"train\.{name} is for one task with classes"):
            EmbeddingConfig.from_dict({"train": {name: 3}})


def test_a_held_out_test_part_has_other_texts_than_the_training_rows(small):
    """Every text of `small` stands in the data twice."""
    data = DataSet("small", {"all": from_python(*small)})
    parts = parts_of(data, RunConfig.from_dict({}), announce=False)
    assert parts.test is not None and len(parts.test) + len(parts.train) == len(small[0])
    assert not set(parts.train.texts) & set(parts.test.texts)


def test_class_weights_by_name_survive_a_file(tmp_path):
    given = ["objective.name=cross_entropy", 'objective.class_weights={"10" = 2.0, "2" = 1.0}']
    run = read_config(None, given)
    path = tmp_path / "run.toml"
    path.write_text(run.to_toml())
    assert read_config(path) == run
    assert run.objective.options["class_weights"] == {"10": 2.0, "2": 1.0}
