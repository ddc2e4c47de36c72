"""Study files: a study from a TOML file and from the options of the command line."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closeknit.config import RunConfig, read_toml
from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives import OBJECTIVES, objective_options
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, Study, as_list

TABLES = ("study", "objectives", "search", "data", "encoder", "train")
STUDY_SETTINGS = (
    "data",
    "sizes",
    "objectives",
    "folds",
    "seeds",
    "baseline",
    "selection",
    "hard_sets",
)
DEFAULT_OBJECTIVES = ("cross_entropy", "triple_entropy")

Tables = Mapping[str, Mapping[str, Any]]


def read_study(path: Path | None, given: Mapping[str, Any], changes: Tables) -> Study:
    """A study from a TOML file, overridden by the options of the command line.

    `given` holds settings of [study], and `search` (an empty one: no search, whatever the file
    says). `changes` holds tables of settings for all objectives, options of those objectives that
    have them (`objective`), and options of a single objective under its name.
    """
    tables = _read_tables(path)
    search_options = given.get("search")
    if search_options == {}:
        tables.pop("search", None)
    settings = _study_settings(tables, given)
    variants: dict[str, Any] = tables.get("objectives", {})
    listed = _checked_names(tables.get("study", {}).get("objectives") or [], variants)
    names = _checked_names(
        settings.get("objectives") or list(variants) or list(DEFAULT_OBJECTIVES), variants
    )
    _check_changes(changes, names, variants)
    search, spaces = _search_tables(tables)
    if given.get("objectives"):
        _drop_unused_baseline(settings, names)
        spaces = _spaces_in_use(spaces, names, known={*variants, *listed})
    else:
        _check_every_variant_is_used(variants, names)
    _check_types(settings)
    searched = "search" in tables or bool(search_options)
    if settings.get("selection") == "paper" and not searched and search_options is None:
        raise ConfigError(
            'selection = "paper" is a way to choose settings, but none are searched for; '
            "add --search, or [search] to the file"
        )
    shared = _shared_tables(tables)
    return Study(
        **_optional_settings(settings),
        data=tuple(_source(value) for value in as_list(settings.get("data", ()), "study.data")),
        objectives={
            name: _variant(name, variants.get(name, {}), shared, changes) for name in names
        },
        search=_search_config({**search, **(search_options or {})}) if searched else None,
        spaces=spaces,
    )


# ---------------------------------------------------------------- tables of the file


def _read_tables(path: Path | None) -> dict[str, Any]:
    tables: dict[str, Any] = read_toml(path) if path is not None else {}
    for table, values in tables.items():
        if table not in TABLES:
            raise ConfigError(f"{path}: unknown table [{table}]{did_you_mean(table, TABLES)}")
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path}: {table} is not a table; write [{table}] and its settings below"
            )
    return tables


def _study_settings(tables: Tables, given: Mapping[str, Any]) -> dict[str, Any]:
    """The table [study], overridden by the command line."""
    settings = dict(tables.get("study", {}))
    for key, value in given.items():
        if value is not None and key != "search":
            settings[key] = value
    for key in settings:
        if key not in STUDY_SETTINGS:
            raise ConfigError(f"unknown setting study.{key}{did_you_mean(key, STUDY_SETTINGS)}")
    return settings


def _shared_tables(tables: Tables) -> dict[str, dict[str, Any]]:
    """The tables that hold for all objectives."""
    shared = {table: dict(tables.get(table, {})) for table in ("data", "encoder", "train")}
    shared["train"].setdefault("positives", 0)  # every objective gets the same batches
    return shared


def _search_tables(tables: Tables) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table [search] without its spaces, and the tables [search.spaces.NAME]."""
    search = dict(tables.get("search", {}))
    spaces = search.pop("spaces", {})
    if not isinstance(spaces, dict) or not all(
        isinstance(space, dict) for space in spaces.values()
    ):
        raise ConfigError(
            f"search.spaces is {spaces!r}; write a table for each objective: [search.spaces.NAME]"
        )
    return search, spaces


# ---------------------------------------------------------------- objectives by name


def _checked_names(names: Any, variants: Mapping[str, Any]) -> list[str]:
    """The names of the objectives of a study; each is known and given once."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"study.objectives is {names!r}; give a list of names")
    for name, times in Counter(names).items():
        if name not in variants and name not in OBJECTIVES:
            raise ConfigError(
                f"unknown objective {name}{did_you_mean(name, [*variants, *OBJECTIVES])}"
            )
        if times > 1:
            raise ConfigError(f"the objective {name} is given twice")
    return list(names)


def _check_changes(changes: Tables, names: Sequence[str], variants: Mapping[str, Any]) -> None:
    """Refuse changes (`--set`) of tables and options that no objective of the study has."""
    known = ("data", "encoder", "train", "objective", *names)
    for table in changes:
        if table not in known:
            near = did_you_mean(table, known)
            raise ConfigError(f"--set {table}.…: there is no table {table}{near}")
    for option in changes.get("objective", {}):
        if option == "name" or not any(
            option in objective_options(_kind(name, variants)) for name in names
        ):
            raise ConfigError(
                f"--set objective.{option}: none of {', '.join(names)} has this option"
            )


def _drop_unused_baseline(settings: dict[str, Any], names: Sequence[str]) -> None:
    """Forget the baseline of the file where the command line leaves this objective out."""
    if settings.get("baseline") not in names:
        settings.pop("baseline", None)


def _spaces_in_use(
    spaces: Mapping[str, Any], names: Sequence[str], known: set[str]
) -> dict[str, Any]:
    """The search spaces without those of known objectives that the command line leaves out.

    A space for an unknown name stays: the study refuses it.
    """
    return {name: space for name, space in spaces.items() if name in names or name not in known}


def _check_every_variant_is_used(variants: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in variants:
        if name not in names:
            raise ConfigError(
                f"[objectives.{name}] is not among the objectives{did_you_mean(name, names)}"
            )


def _kind(name: str, variants: Mapping[str, Any]) -> str:
    """The objective behind a name of the study."""
    variant = variants.get(name, {})
    return str(variant.get("name", name)) if isinstance(variant, dict) else name


def _variant(name: str, variant: Any, shared: Tables, changes: Tables) -> RunConfig:
    """The configuration of one objective: the shared tables, overridden by its own and by `--set`."""
    if not isinstance(variant, dict):
        raise ConfigError(f"[objectives.{name}] is not a table")
    for table in ("train", "encoder"):
        if not isinstance(variant.get(table, {}), dict):
            raise ConfigError(
                f"objectives.{name}.{table} is {variant[table]!r}; write a table like {{lr = 3e-5}}"
            )
    options = {key: value for key, value in variant.items() if key not in ("train", "encoder")}
    if not isinstance(options.get("name", name), str):
        raise ConfigError(f"objectives.{name}.name is {options['name']!r}; it must be a text")
    known = objective_options(options.get("name", name))
    for_all = {key: value for key, value in changes.get("objective", {}).items() if key in known}
    tables = {
        table: {**values, **variant.get(table, {}), **changes.get(table, {})}
        for table, values in shared.items()
    }
    for table, key, instead in (("train", "seed", "seeds"), ("data", "test", "folds")):
        if key in tables[table]:
            raise ConfigError(
                f"{table}.{key} has no meaning in a study, which has its {instead}: use study.{instead}, or --{instead}"
            )
    objective = {"name": name, **options, **for_all, **changes.get(name, {})}
    return RunConfig.from_dict({**tables, "objective": objective})


# ---------------------------------------------------------------- checks of values


def _check_types(settings: Mapping[str, Any]) -> None:
    for key, kind, word in (
        ("folds", int, "a whole number"),
        ("hard_sets", dict, "a table of lists"),
        ("baseline", str, "a name"),
        ("selection", str, "a name"),
    ):
        if not isinstance(settings.get(key, kind()), kind):
            raise ConfigError(f"study.{key} is {settings[key]!r}; it must be {word}")
    for data, sets in settings.get("hard_sets", {}).items():
        if not isinstance(sets, list) or not all(_is_names(one) for one in sets):
            raise ConfigError(
                f"study.hard_sets.{data} is {sets!r}; give a list of sets of classes, "
                'like [["refund", "chargeback"]]'
            )


def _optional_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of [study] that have defaults, where they are given."""
    found: dict[str, Any] = {}
    for key in ("sizes", "seeds", "folds", "baseline", "selection", "hard_sets"):
        if key in settings:
            value = settings[key]
            found[key] = tuple(_numbers(value, key)) if key in ("sizes", "seeds") else value
    return found


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _numbers(value: Any, name: str) -> list[int]:
    values = as_list(value, f"study.{name}")
    numbers = [0 if one == "all" and name == "sizes" else one for one in values]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(f"study.{name} is {value!r}; give a list of whole numbers")
    return numbers


def _source(value: Any) -> Source:
    """A data set of a study file: a name, or a table."""
    if isinstance(value, str):
        return Source(value)
    fields = {f.name for f in dataclasses.fields(Source)}
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        raise ConfigError(
            f'study.data has {value!r}; give a name, or a table like {{source = "trec", classes = 4}}'
        )
    for key in value:
        if key not in fields:
            raise ConfigError(f"unknown setting study.data.{key}{did_you_mean(key, fields)}")
    lists = {key: value.get(key, []) for key in ("labels", "parts")}
    named = isinstance(value.get("name", ""), str) and all(map(_is_names, lists.values()))
    if not named or not isinstance(value.get("classes", 0), int):
        raise ConfigError(
            f"study.data has {value!r}; name is a text, classes a whole number, labels and parts are lists of texts, "
            'like ["0", "1"]'
        )
    return Source(**{**value, **{key: tuple(values) for key, values in lists.items()}})


def _search_config(settings: Mapping[str, Any]) -> SearchConfig:
    kinds = {f.name: type(f.default) for f in dataclasses.fields(SearchConfig)}
    for key, value in settings.items():
        if key not in kinds:
            raise ConfigError(f"unknown setting search.{key}{did_you_mean(key, kinds)}")
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise ConfigError(
                f"search.{key} is {value!r}; it must be a {'text' if kinds[key] is str else 'whole number'}"
            )
    return SearchConfig(**settings)
