from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.config import RunConfig, differences, read_config
from closeknit.errors import ConfigError, DataError


def test_a_file_then_changes(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[objective]\nname = "triple_entropy"\ncenters = 4\n[train]\nepochs = 3\nlr = 1e-4\n')
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


@given(
    st.fixed_dictionaries(
        {
            "epochs": st.integers(1, 99),
            "lr": st.none() | st.floats(1e-7, 1.0),
            "schedule": st.sampled_from(["linear", "cosine"]),
        }
    ),
    st.fixed_dictionaries({"name": st.none() | st.text(max_size=20), "max_length": st.integers(8, 512)}),
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
        (["train.epoch=3"], "did you mean epochs"),
        (["trian.epochs=3"], r"unknown table \[trian\]; did you mean train"),
        (["epochs=3"], "write it as table.setting=value"),
        (["train.epochs"], "write it as table.setting=value"),
        (["train.epochs=many"], "it must be a whole number"),
        (["train.epochs=2.5"], "it must be a whole number"),
        (["train.lr=fast"], "it must be a number or none"),
        (["train.epochs=true"], "it must be a whole number"),
        (["objective.name=suncon"], "unknown objective suncon"),
        (["objective.centers=3"], "unknown setting objective.centers for cross_entropy"),
        (["data.test=1.5"], "data.test is 1.5"),
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


def test_differences_are_named_one_by_one():
    a, b = RunConfig().to_dict(), read_config(None, ["train.lr=1e-4", "encoder.pooling=mean"]).to_dict()
    assert differences(a, b) == ["encoder.pooling was first and is mean", "train.lr was None and is 0.0001"]
    assert differences(a, a) == []
