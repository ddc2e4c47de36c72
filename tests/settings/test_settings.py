"""Settings are declared once: what follows for checks, files, keys, documentation and editors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.classification.config import RunConfig, read_config
from closeknit.data import from_python
from closeknit.embeddings.config import EmbeddingConfig
from closeknit.errors import ConfigError
from closeknit.multitask.config import MultiTaskConfig
from closeknit.multitask.study_file import read_multitask, recipes
from closeknit.objectives import OBJECTIVES
from closeknit.objectives import config as objective_config
from closeknit.settings import (
    Configuration,
    SettingsTable,
    changed_tables,
    differences,
    json_schema,
    parse_changes,
    parse_value,
    setting,
    settings_markdown,
    settings_of,
    to_toml,
)
from closeknit.studies.designs import Fold, StudyData
from closeknit.studies.jobs import Job
from closeknit.studies.plan import JobPlanner
from closeknit.studies.search import Candidate, SearchConfig
from closeknit.studies.study_file import read_study
from closeknit.training.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Oven(SettingsTable, table="oven"):
    degrees: float = setting(180.0, above=0, help="Temperature.")
    minutes: int | None = setting(None, at_least=1, help="Time.")
    mode: str = setting("fan", choices=("fan", "grill"), help="Mode.")
    share: float = setting(0.5, at_least=0, below=1, help="Share.")
    trays: list[str] = setting(default_factory=list, example='["top"]', help="Trays.")
    weights: dict[str, float] = setting(default_factory=dict, above=0, help="Weights.")
    endless: float = setting(1.0, at_least=0, finite=False, help="Seconds.")

    def check_relations(self) -> None:
        if self.mode == "grill" and self.minutes is None:
            raise ConfigError("oven.mode is grill, which needs oven.minutes")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"degrees": 0}, "oven.degrees is 0; it must be above 0"),
        ({"degrees": math.inf}, "oven.degrees is inf; it must be a finite number above 0"),
        ({"degrees": math.nan}, "oven.degrees is nan; it must be a finite number above 0"),
        ({"degrees": "hot"}, 'oven.degrees is "hot"; it must be a number'),
        ({"degrees": None}, "oven.degrees is null; it must be a number"),
        ({"degrees": True}, "oven.degrees is true; it must be a number"),
        ({"minutes": 0}, "oven.minutes is 0; it must be at least 1"),
        ({"minutes": 2.0}, "oven.minutes is 2.0; it must be a whole number or none"),
        ({"mode": "gril"}, "oven.mode is gril; did you mean grill?"),
        (
            {"mode": 3},
            "oven.mode is 3; it must be a text; a number is one in quotes: 'oven.mode=\"3\"'",
        ),
        ({"share": 1.0}, "oven.share is 1.0; it must be from 0 to below 1"),
        ({"share": math.nan}, "oven.share is nan; it must be from 0 to below 1"),
        ({"trays": "top"}, 'oven.trays is "top"; it must be a list of texts, like ["top"]'),
        ({"trays": [1]}, 'oven.trays is [1]; it must be a list of texts, like ["top"]'),
        ({"weights": {"a": 0.0}}, "oven.weights.a is 0.0; it must be a finite number above 0"),
        ({"weights": {"a": "b"}}, 'oven.weights.a is "b"; it must be a number'),
        ({"endless": math.nan}, "oven.endless is nan; it must not be negative"),
        ({"endless": -1.0}, "oven.endless is -1.0; it must not be negative"),
        ({"mode": "grill"}, "oven.mode is grill, which needs oven.minutes"),
    ],
)
def test_a_wrong_value_is_refused_from_python_and_from_a_file_alike(values, message):
    for make in (Oven.from_dict, lambda values: Oven(**values)):
        with pytest.raises(ConfigError) as caught:
            make(values)
        assert str(caught.value) == message


def test_none_on_the_command_line_is_the_choice_of_that_name():
    """`--set method.noise=none` is read as None, and this setting has a choice that is called so."""
    from closeknit.settings import changed_tables, parse_changes

    changes = parse_changes(["method.noise=none", "method.head=none", "method.mask=none"])
    method = EmbeddingConfig.from_dict(
        changed_tables({"method": {"name": "mirror"}}, changes)
    ).method
    assert (method.noise, method.head, method.mask) == ("none", "none", None)
    config = read_multitask("exp12", ["schedule.surgery=none", "tasks.sst.output_activation=none"])
    assert config.schedule.surgery == config.tasks["sst"].output_activation == "none"
    with pytest.raises(ConfigError, match=r"method\.name is null; it must be a text"):
        EmbeddingConfig.from_dict({"method": {"name": None}})


def test_right_values_are_kept_as_they_are():
    values = {
        "degrees": 200,
        "minutes": 5,
        "trays": ["top"],
        "weights": {"a": 2},
        "endless": math.inf,
    }
    oven = Oven.from_dict(values)
    assert {**oven.to_dict(), **values} == oven.to_dict()
    assert isinstance(oven.degrees, int)  # a whole number stays one: its key must not change
    assert oven.changed_from_defaults() == values
    assert Oven(minutes=np.int64(3)).minutes == 3
    assert Oven().trays is not Oven().trays


def test_an_unknown_setting_is_answered_with_the_nearest_one():
    with pytest.raises(
        ConfigError, match=r"^unknown setting oven\.minuts; did you mean oven\.minutes\?$"
    ):
        Oven.from_dict({"minuts": 3})
    with pytest.raises(
        ConfigError, match=r"^unknown setting first\.x; known: degrees, endless, minutes"
    ):
        Oven.from_dict({"x": 3}, "first")
    with pytest.raises(ConfigError, match=r"^oven is not a table; write \[oven\]"):
        Oven.from_dict(3)


def test_a_required_setting_is_asked_for():
    @dataclass(frozen=True)
    class Cake(SettingsTable, table="cake"):
        flour: str = setting(help="Flour.")

    with pytest.raises(ConfigError, match="cake has no setting flour; it is required"):
        Cake.from_dict({})
    assert "| `flour` | required | text | Flour. |" in settings_markdown(Cake)


# ---------------------------------------------------------------- files and --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("1e-4", 1e-4),
        ("true", True),
        ("none", None),
        ("None", None),
        ('"3"', "3"),
        ("message", "message"),
        ("a/b c.csv", "a/b c.csv"),
        ("[1, 2]", [1, 2]),
        ("{ a = 1 }", {"a": 1}),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_is_read_once(text, value):
    found = parse_value(text)
    assert found == value and type(found) is type(value)


def test_changes_are_applied_in_order():
    changes = parse_changes(["train.lr = 1e-4", "data.text=a=b", "train.lr=2e-4"])
    assert changes == [("train.lr", 1e-4), ("data.text", "a=b"), ("train.lr", 2e-4)]
    tables = {"train": {"seed": 3}}
    assert changed_tables(tables, changes) == {
        "train": {"seed": 3, "lr": 2e-4},
        "data": {"text": "a=b"},
    }
    for text in ("train", "train.lr", "lr=3", ".lr=3", "train.=3"):
        with pytest.raises(ConfigError, match=r"write it as table\.setting=value"):
            parse_changes([text])


def test_options_of_a_command_stay_what_they_are_and_yield_to_set():
    options = {
        "encoder.name": "models/😀 \\ 3",
        "train.epochs": 7,
        "train.lr": None,
        "train.seed": 4,
    }
    run = read_config(None, ["train.seed=5"], options=options)
    assert run.encoder.name == "models/😀 \\ 3"
    assert (run.train.epochs, run.train.lr, run.train.seed) == (7, None, 5)
    tasks = read_multitask(
        "exp14", ["tasks.sts.rows=9"], options={"tasks.sts.data": "3", "train.seed": None}
    )
    assert (tasks.tasks["sts"].data, tasks.tasks["sts"].rows) == ("3", 9)


values = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_tables_survive_toml(table):
    assert tomllib.loads(to_toml({"table": table})) == {"table": table}


# ---------------------------------------------------------------- keys

# Keys of runs that were stored by the first format. They must never change: kept studies would not
# be recognised. A setting that is added to a table needs since=2, an option of an objective an entry
# in LATER_OPTIONS.
KEYS = {
    "auto": "4f8a17059c6b5e1d084d",
    "cross_entropy": "237e97bd386aba7f6128",
    "triple_entropy": "30f87284268c228e61eb",
    "soft_triple": "c990bd308556478011e7",
    "proxy_nca": "c9926393f81f04a89955",
    "contrastive": "51ccdf167aef7d1f31cf",
    "triplet": "d21e98618dd326af3846",
    "supcon": "e8d3a2815665b0b41ff2",
    "lcl": "1f1ae95a20a95a80a0e2",
    "clld": "6cf51e8f5c2ed0c9b4d7",
    "joint": "f5aaea3bf0a35282dfd7",
}
# What runs had by default in the first format, where a later version has another default.
DEFAULTS_THEN = {
    "clld": {
        "objective": {"update_every": 10, "ce_copies": "all"},
        "train": {"validation": 0.0},
    }
}
ROWS = np.arange(40), np.arange(40, 50)


def key_of(config: RunConfig) -> str:
    return Job.key_of(config, 3, "texts", *ROWS)


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_the_first_format_stay(name):
    then = DEFAULTS_THEN.get(name, {})
    tables = {**then, "objective": {"name": name, **then.get("objective", {})}}
    assert key_of(RunConfig.from_dict(tables)) == KEYS[name]


def test_the_key_of_a_run_with_many_settings_stays():
    tables = {
        "objective": {"name": "supcon", "temperature": 0.1},
        "train": {"lr": 1e-4, "epochs": 3, "weight_decay": 0, "seed": 16},
        "encoder": {"pooling": "mean", "dropout": 0.2},
        "data": {"text": "message", "test": 0},
    }
    key = Job.key_of(RunConfig.from_dict(tables), 5, "texts", *ROWS, "supcon", "trial")
    assert key == "fa04e0afd4325b1e4797"


@pytest.mark.parametrize(
    ("selection", "keys"),
    [
        ("nested", ["af73b61bceacc1cae2a3", "bce7d363ddc38b7dc8de"]),
        ("paper", ["fcf38c5cd05576a3d495", "cb2acb4b1e68b78ff461"]),
    ],
)
def test_the_keys_of_a_study_with_a_search_stay(selection, keys):
    classes = [f"class {i % 3}" for i in range(60)]
    examples = from_python([f"text {i}" for i in range(60)], classes, name="small")
    options = {
        "data": ["small"],
        "objectives": ["supcon", "triple_entropy"],
        "selection": selection,
        "search": {"method": "random", "trials": 5},
    }
    study = read_study(None, options, {"encoder": {"name": "textcnn"}})
    planner = JobPlanner(study, StudyData({"small": examples}, {"small": "print"}))
    fold = Fold("small", 60, 2, 0, np.arange(48), np.arange(48, 60), True)
    assert [planner.run_key(fold, name) for name in study.objectives] == keys
    trial = planner._trial_job(
        fold, "supcon", study.objectives["supcon"], Candidate(0, {"train.lr": 1e-4}, 0), "r"
    )
    assert trial.key == "c2fb6956a25ca6585d0d"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"train": {"validation": 0.0}}, {"train": {"validation": 0.1}}),
        ({"encoder": {"lora_rank": 4}, "train": {"lr": 1e-3}}, {"encoder": {"lora_rank": 4}}),
        (
            {"train": {"accumulate": 2}},
            {"train": {"accumulate": 2}, "objective": {"class_weights": "balanced"}},
        ),
        (
            {"train": {"accumulate": 2}},
            {"train": {"accumulate": 2}, "objective": {"name": "triple_entropy"}},
        ),
    ],
)
def test_a_rule_that_changed_counts_in_the_key_of_the_runs_it_changes(before, now):
    """Kept runs that it cannot change are recognised, the others are computed again."""

    def rules(tables):
        tables = {"objective": {"name": "cross_entropy", **tables.get("objective", {})}, **{
            name: table for name, table in tables.items() if name != "objective"}}  # fmt: skip
        return RunConfig.from_dict(tables).key_content().get("rules")

    assert rules(before) is None
    assert rules(now)


@dataclass(frozen=True)
class LaterTrain(TrainConfig, table="train"):
    ema: float = setting(0.0, at_least=0, since=2, help="Added later.")
    faster: bool = setting(True, since=2, before=False, help="Added later, with another behaviour.")


@dataclass(frozen=True)
class LaterRun(RunConfig):
    train: LaterTrain = field(default_factory=LaterTrain)


def test_a_setting_that_is_added_changes_the_key_only_where_it_is_used():
    plain = {"objective": {"name": "supcon"}, "train": {"faster": False}}
    assert key_of(LaterRun.from_dict(plain)) == KEYS["supcon"]
    used = {**plain, "train": {"faster": False, "ema": 0.5}}
    assert key_of(LaterRun.from_dict(used)) != KEYS["supcon"]
    # with its default this one does something else than runs did before
    assert key_of(LaterRun.from_dict({"objective": {"name": "supcon"}})) != KEYS["supcon"]


def test_an_option_that_is_added_to_an_objective_changes_the_key_only_where_it_is_used(monkeypatch):
    stored = RunConfig.from_dict({"objective": {"name": "supcon"}}).to_dict()
    before = objective_config.objective_options("supcon")

    def with_extra(name):
        return {**before, "extra": 0.0}

    monkeypatch.setattr(objective_config, "objective_options", with_extra)
    supcon = RunConfig.from_dict({"objective": {"name": "supcon"}})
    assert key_of(supcon) != KEYS["supcon"]  # as long as the option is not declared as a later one
    later = {**objective_config.LATER_OPTIONS["supcon"], "extra": 0.0}
    monkeypatch.setattr(objective_config, "LATER_OPTIONS", {"supcon": later})
    assert key_of(supcon) == KEYS["supcon"]
    assert differences(RunConfig, stored, supcon.to_dict()) == []
    used = RunConfig.from_dict({"objective": {"name": "supcon", "extra": 0.5}})
    assert key_of(used) != KEYS["supcon"]
    assert differences(RunConfig, stored, used.to_dict()) == ["objective.extra was 0.0 and is 0.5"]


def test_a_stored_run_without_a_later_setting_is_resumed():
    stored = json.loads(json.dumps(RunConfig().to_dict()))
    same = LaterRun.from_dict({"train": {"faster": False}})
    assert differences(LaterRun, stored, same.to_dict()) == []
    assert differences(LaterRun, stored, LaterRun().to_dict()) == [
        "train.faster was False and is True"
    ]
    stored["train"]["removed"] = 3
    assert differences(RunConfig, stored, RunConfig().to_dict()) == [
        "train.removed was 3 and is None"
    ]


def test_only_settings_that_change_the_result_count_as_differences():
    now = RunConfig.from_dict({"train": {"checkpoint_seconds": 5.0, "clip": 2.0}}).to_dict()
    assert differences(RunConfig, RunConfig().to_dict(), now) == ["train.clip was 1.0 and is 2.0"]
    task = {"data": "a.csv"}
    one, two = (
        MultiTaskConfig.from_dict({"tasks": tasks}).to_dict()
        for tasks in ({"a": task}, {"b": task})
    )
    assert "tasks.b.data was None and is a.csv" in differences(MultiTaskConfig, one, two)
    del one["tasks.a"]["leaks"]
    stored = MultiTaskConfig.from_dict({"tasks": {"a": task}}).to_dict()
    assert differences(MultiTaskConfig, one, stored) == []


def test_the_key_of_a_search_takes_only_later_settings_that_are_used():
    @dataclass(frozen=True)
    class Later(SearchConfig, table="search"):
        patience: int = setting(0, since=2, help="Added later.")

    assert Later().key_content() == dataclasses.asdict(SearchConfig())
    assert Later(patience=2).key_content() == {**dataclasses.asdict(SearchConfig()), "patience": 2}


# ---------------------------------------------------------------- documentation and editors


@pytest.fixture(scope="module")
def documents():
    spec = importlib.util.spec_from_file_location(
        "settings_pages", ROOT / "docs" / "settings_pages.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_and_schemas_are_those_of_the_source(documents):
    shown = set()
    for path, text in [*documents.pages(), *documents.schemas()]:
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not current: make docs"
        shown |= {name for _, name, _ in documents.MARKED.findall(text)}
    assert shown == set(documents.TABLES)


def test_every_setting_is_explained_in_a_sentence(documents):
    for kind in documents.TABLES.values():
        for name, one in settings_of(kind).items():
            assert one.rule.help[0].isupper() or one.rule.help[0] == "`", (kind, name)
            assert one.rule.help.endswith("."), (kind, name)


def schema(name: str):
    found = json.loads((ROOT / "docs" / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(found)
    return jsonschema.Draft7Validator(found)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "studies").glob("*.toml")), ids=lambda path: path.stem
)
def test_study_files_follow_their_schema(path):
    schema("study").validate(tomllib.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", recipes().values(), ids=lambda path: path.stem)
def test_recipes_follow_their_schema(path):
    schema("multitask").validate(tomllib.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_whole_run_file_follows_its_schema(name):
    schema("run").validate(
        tomllib.loads(RunConfig.from_dict({"objective": {"name": name}}).to_toml())
    )


def test_a_whole_file_for_embeddings_follows_its_schema():
    schema("embed").validate(tomllib.loads(EmbeddingConfig().to_toml()))


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("run", {"trian": {}}),
        ("run", {"train": {"stps": 3}}),
        ("run", {"train": {"epochs": -1}}),
        ("run", {"train": {"epochs": 2.5}}),
        ("run", {"train": {"warmup": 1.0}}),
        ("run", {"train": {"schedule": "cosin"}}),
        ("run", {"objective": {"name": "supcon", "centers": 3}}),
        ("run", {"objective": {"name": "suncon"}}),
        ("run", {"tasks": {}}),
        ("embed", {"method": {"tempreature": 1.0}}),
        ("embed", {"objective": {"name": "supcon"}}),
        ("multitask", {"tasks": {"mood": {"kinds": "classify"}}}),
        ("multitask", {"schedule": {"weights": {"mood": 0}}}),
        ("multitask", {"shared": {"dropout": "high"}}),
        ("study", {"study": {"szes": [3]}}),
        ("study", {"study": {"data": [{"source": "trec", "clases": 3}]}}),
        ("study", {"study": {"data": [{"classes": 3}]}}),
        ("study", {"objectives": {"wide": {"name": "triple_entropy", "centres": 3}}}),
        ("study", {"objectives": {"wide": {"centers": 3}}}),
        ("study", {"objectives": {"supcon": {"train": {"lrr": 1e-4}}}}),
        ("study", {"search": {"trails": 3}}),
        ("study", {"search": {"spaces": {"supcon": {"train.lr": {"low": 1e-5, "hihg": 1e-4}}}}}),
    ],
)
def test_schemas_refuse_unknown_names_and_wrong_values(name, tables):
    with pytest.raises(jsonschema.ValidationError):
        schema(name).validate(tables)


def test_a_schema_of_any_configuration_can_be_made():
    @dataclass(frozen=True)
    class Kitchen(Configuration):
        oven: Oven = field(default_factory=Oven)
        shelves: dict[str, Oven] = field(default_factory=dict)

    validator = jsonschema.Draft7Validator(json_schema(Kitchen, "A kitchen"))
    kitchen = Kitchen.from_dict({"oven": {"minutes": 3}, "shelves": {"low": {"mode": "fan"}}})
    assert list(kitchen.to_dict()) == ["oven", "shelves.low"]
    assert Kitchen.from_dict(kitchen.to_dict()) == kitchen
    assert not list(validator.iter_errors(tomllib.loads(kitchen.to_toml())))
    assert list(validator.iter_errors({"shelves": {"low": {"mdoe": "fan"}}}))
    with pytest.raises(
        ConfigError, match=r"unknown setting shelves\.low\.mdoe; did you mean shelves\.low\.mode"
    ):
        Kitchen.from_dict({"shelves": {"low": {"mdoe": "fan"}}})
    with pytest.raises(ConfigError, match=r"unknown table \[ovn\]; did you mean oven"):
        Kitchen.from_dict({"ovn": {}})
    with pytest.raises(ConfigError, match=r"shelves\.low: oven\.mode is grill"):
        Kitchen.from_dict({"shelves": {"low": {"mode": "grill"}}})
