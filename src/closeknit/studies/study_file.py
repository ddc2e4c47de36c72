"""Study files: a study described in TOML, with what the command line gives on top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from closeknit.classification.config import DataConfig, RunConfig
from closeknit.console import say
from closeknit.encoders.config import EncoderConfig
from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives import OBJECTIVES, objective_options
from closeknit.objectives.config import objective_schema
from closeknit.settings import check_values, file_schema, not_a_table, read_toml, table_schema
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, Study, StudyTable
from closeknit.training.config import TrainConfig

_TABLES = ("study", "objectives", "search", "data", "encoder", "train")


def read_study(
    path: Path | None, given: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> Study:
    """A study from a TOML file, with what the command line gives on top.

    `given` are settings of [study], and `search` with settings of [search] (empty: no search,
    whatever the file says). `changes` are tables of settings for all objectives, options of the
    objectives that have them (`objective`), and options of one objective under its name.
    """
    tables = _read_tables(path)
    if given.get("search") == {}:
        tables.pop("search", None)
    table = _study_table(tables.get("study", {}), given)
    variants: dict[str, Any] = tables.get("objectives", {})
    named_in_file = _checked_names(tables.get("study", {}).get("objectives") or [], variants)
    names = _checked_names(
        table.objectives or list(variants) or ["cross_entropy", "triple_entropy"], variants
    )
    _check_changes(changes, names, variants)
    _refuse_folds_of_other_designs(table, {**tables.get("study", {}), **_stated(given)})
    searched = "search" in tables or bool(given.get("search"))
    if table.selection == "paper" and not searched and given.get("search") is None:
        raise ConfigError(
            "the selection paper is a way to choose settings, and none are searched for; add --search, or [search] to the file"
        )
    spaces, search = _search(tables.get("search", {}), given.get("search") or {})
    baseline = table.baseline
    if given.get("objectives"):  # the file's settings for other objectives do not count now
        baseline = baseline if baseline in names else ""
        known = {*variants, *named_in_file}
        spaces = {
            name: space for name, space in spaces.items() if name in names or name not in known
        }
    else:
        _refuse_unused(variants, names)
    base = {name: dict(tables.get(name, {})) for name in ("data", "encoder", "train")}
    base["train"].setdefault("positives", 0)  # the same batches for every objective
    return Study(
        data=tuple(_source(value) for value in table.data),
        objectives={name: _variant(name, variants.get(name, {}), base, changes) for name in names},
        sizes=tuple(_sizes(table.sizes)),
        folds=table.folds,
        seeds=tuple(table.seeds),
        baseline=baseline,
        search=search if searched else None,
        spaces=spaces,
        selection=table.selection,
        hard_sets=table.hard_sets,
        test=table.test,
        shots=tuple(table.shots),
        shared_texts=table.shared_texts,
        equal_texts=table.equal_texts,
    )


def _read_tables(path: Path | None) -> dict[str, Any]:
    """The tables of a study file; others than those of a study are refused."""
    tables = read_toml(path) if path is not None else {}
    for table, values in tables.items():
        if table not in _TABLES:
            raise ConfigError(f"{path}: unknown table [{table}]{did_you_mean(table, _TABLES)}")
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {not_a_table(table)}")
    return tables


def _study_table(file: Mapping[str, Any], given: Mapping[str, Any]) -> StudyTable:
    """The table [study] of the file with the settings of the command line on top."""
    check_values(StudyTable, file)  # what the command line replaces is checked too
    on_top = _stated(given)
    if "shots" in on_top:  # the file's sizes do not count now
        file = {key: value for key, value in file.items() if key != "sizes"}
    if "sizes" in on_top:
        file = {key: value for key, value in file.items() if key != "shots"}
    return StudyTable.from_dict({**file, **on_top})


def _stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of [study] that the command line gives."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in given.items()
        if value is not None and key != "search"
    }


def _refuse_folds_of_other_designs(table: StudyTable, stated: Mapping[str, Any]) -> None:
    """Refuse a number of folds where the test rows do not come from folds."""
    if "folds" in stated and (table.shots or table.test in ("official", "rest")):
        raise ConfigError(
            f"folds is {table.folds}, and this study has no folds: each seed has one training part "
            "and one test part; leave folds out"
        )


def _check_changes(
    changes: Mapping[str, Mapping[str, Any]], names: list[str], variants: Mapping[str, Any]
) -> None:
    """Refuse changes of tables and options that no objective of the study has.

    An option that only some objectives have makes them unlike the others, so this is said.
    """
    known = ("data", "encoder", "train", "objective", *names)
    for table in changes:
        if table not in known:
            raise ConfigError(
                f"--set {table}.…: there is no table {table}{did_you_mean(table, known)}"
            )
    for option in changes.get("objective", {}):
        without = [name for name in names if option not in objective_options(_kind(name, variants))]
        if option == "name" or len(without) == len(names):
            raise ConfigError(
                f"--set objective.{option}: none of {', '.join(names)} has this option"
            )
        if without:
            say(
                f"--set objective.{option}: {', '.join(without)} has no such option and stays as it is"
            )


def _search(
    file: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], SearchConfig]:
    """The search spaces of the file by objective, and the settings of the search."""
    spaces = file.get("spaces", {})
    if not isinstance(spaces, dict) or not all(
        isinstance(space, dict) for space in spaces.values()
    ):
        raise ConfigError(
            f"search.spaces is {spaces!r}; write a table for each objective: [search.spaces.NAME]"
        )
    settings = {key: value for key, value in file.items() if key != "spaces"}
    return spaces, SearchConfig.from_dict({**settings, **given})


def _refuse_unused(variants: Mapping[str, Any], names: list[str]) -> None:
    """Refuse a table [objectives.NAME] that is not among the objectives of the study."""
    for name in variants:
        if name not in names:
            raise ConfigError(
                f"[objectives.{name}] is not among the objectives{did_you_mean(name, names)}"
            )


def _checked_names(names: list[str], variants: Mapping[str, Any]) -> list[str]:
    """The names of the objectives in a study; unknown names and names given twice are refused."""
    for name, times in Counter(names).items():
        if name not in variants and name not in OBJECTIVES:
            near = did_you_mean(name, [*variants, *OBJECTIVES])
            raise ConfigError(f"unknown objective {name}{near}")
        if times > 1:
            raise ConfigError(f"the objective {name} is given twice")
    return names


def _variant(
    name: str,
    table: Any,
    base: Mapping[str, Any],
    changes: Mapping[str, Mapping[str, Any]],
) -> RunConfig:
    """The configuration of one objective of a study.

    `table` holds its options, and under `train` and `encoder` the settings for it alone; `base` are
    the tables for all objectives, and `changes` come from the command line.
    """
    options = _options(name, table)
    known = objective_options(options["name"])
    for_all = {key: value for key, value in changes.get("objective", {}).items() if key in known}
    tables = {
        key: {**values, **table.get(key, {}), **changes.get(key, {})}
        for key, values in base.items()
    }
    for key, setting, instead in (("train", "seed", "seeds"), ("data", "test", "folds")):
        if setting in tables[key]:
            raise ConfigError(
                f"{key}.{setting} has no meaning in a study, which has {instead} of its own: study.{instead}, or --{instead}"
            )
    objective = {**options, **for_all, **changes.get(name, {})}
    return RunConfig.from_dict({**tables, "objective": objective})


def _options(name: str, table: Any) -> dict[str, Any]:
    """The name and the options of an objective in its table [objectives.NAME]."""
    if not isinstance(table, dict):
        raise ConfigError(f"[objectives.{name}] is not a table")
    for inner in ("train", "encoder"):
        if not isinstance(table.get(inner, {}), dict):
            raise ConfigError(
                f"objectives.{name}.{inner} is {table[inner]!r}; write a table like {{lr = 3e-5}}"
            )
    options = {key: value for key, value in table.items() if key not in ("train", "encoder")}
    if not isinstance(options.get("name", name), str):
        raise ConfigError(f"objectives.{name}.name is {options['name']!r}; it must be a text")
    return {"name": name, **options}


def _kind(name: str, variants: Mapping[str, Any]) -> str:
    """The objective behind a name of the study."""
    table = variants.get(name, {})
    return str(table.get("name", name)) if isinstance(table, dict) else name


def _sizes(values: list[int | str]) -> list[int]:
    """Numbers of rows, where `all` is 0."""
    numbers = [0 if value == "all" else value for value in values]
    for number in numbers:
        if isinstance(number, str):
            raise ConfigError(
                f"study.sizes is {values}; it must be a list of whole numbers, or all"
            )
    return [int(number) for number in numbers]


def _source(value: Any) -> Source:
    """A data set of a study, given by its name or by a table."""
    if isinstance(value, str):
        return Source(value)
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        raise ConfigError(
            f'study.data has {value!r}; give a name, or a table like {{source = "trec", classes = 4}}'
        )
    return Source.from_dict(value)


# ---------------------------------------------------------------- editors


def study_schema() -> dict[str, Any]:
    """The JSON schema of a study file, for editors."""
    study = table_schema(StudyTable)
    study["properties"]["data"]["items"] = {"anyOf": [{"type": "string"}, table_schema(Source)]}
    search = table_schema(SearchConfig)
    spaces = {"type": "object", "additionalProperties": _space_schema()}
    search["properties"]["spaces"] = {"type": "object", "additionalProperties": spaces}
    tables = {
        "study": study,
        "objectives": _variants_schema(),
        "search": search,
        "data": table_schema(DataConfig),
        "encoder": {"$ref": "#/definitions/encoder"},
        "train": {"$ref": "#/definitions/train"},
    }
    definitions = {
        "encoder": table_schema(EncoderConfig),
        "train": table_schema(TrainConfig),
        **{f"objective-{name}": _variant_schema(name) for name in OBJECTIVES},
    }
    schema = file_schema("A study of closeknit compare", tables)
    return {**schema, "definitions": definitions}


def _space_schema() -> dict[str, Any]:
    """What is searched for one setting: a list of values, or a range."""
    ends = {"low": {"type": "number"}, "high": {"type": "number"}, "log": {"type": "boolean"}}
    numbers = {"type": "object", "properties": ends, "required": ["low", "high"]}
    return {"anyOf": [{"type": "array"}, {**numbers, "additionalProperties": False}]}


def _variants_schema() -> dict[str, Any]:
    """[objectives.NAME]: options of the objective NAME, or of the objective that `name` says."""
    references = {name: {"$ref": f"#/definitions/objective-{name}"} for name in OBJECTIVES}
    named = [{"allOf": [one, {"required": ["name"]}]} for one in references.values()]
    return {
        "type": "object",
        "properties": {name: {"anyOf": [one, *named]} for name, one in references.items()},
        "additionalProperties": {"anyOf": named},
    }


def _variant_schema(name: str) -> dict[str, Any]:
    """The options of an objective in a study, with settings of [train] and [encoder] for it
    alone.
    """
    schema = objective_schema(name, needs_name=False)
    schema["properties"]["train"] = {"$ref": "#/definitions/train"}
    schema["properties"]["encoder"] = {"$ref": "#/definitions/encoder"}
    return schema
