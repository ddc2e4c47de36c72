"""A study: data sets x sizes x objectives x seeds x folds, described in Python or in a TOML file."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .config import RunConfig, read_toml
from .data import catalogue
from .data.examples import Examples
from .data.splits import check_classes
from .errors import ConfigError, did_you_mean
from .objectives import OBJECTIVES, objective_options
from .search import SearchConfig, Space, check_space, grid_size, named_space

SELECTIONS = ("nested", "paper")


@dataclass(frozen=True)
class Source:
    """A data set of a study, whole or some of its classes only."""

    source: str
    name: str = ""  # in tables; by default the data set's own
    labels: tuple[str, ...] = ()  # only rows of these classes
    classes: int = 0  # only so many classes, drawn at random; fewer are always among more
    parts: tuple[str, ...] = ()  # the parts to take together; by default the one to train on

    def load(self, config: RunConfig) -> tuple[str, Examples]:
        found = catalogue.load(self.source, config.data)
        examples = found.merged(self.parts) if self.parts else found.training
        examples = dataclasses.replace(examples, name=self.name or found.name)
        chosen = list(self.labels)
        if self.labels and self.classes:
            raise ConfigError(f"{self.source}: give labels or a number of classes, not both")
        if self.classes:
            order = np.random.default_rng(0).permutation(examples.classes)
            if not 2 <= self.classes <= len(order):
                raise ConfigError(
                    f"{self.classes} classes of {found.name} were asked for; it has {len(order)}"
                )
            chosen = [str(label) for label in order[: self.classes]]
        for label in chosen:
            if label not in examples.classes:
                raise ConfigError(f"{found.name} has no class {label}{did_you_mean(label, examples.classes)}")
        if chosen:
            kept = set(chosen)
            examples = examples.select(
                row for row, label in enumerate(examples.required_labels) if label in kept
            )
        name = self.name or found.name + (f"-{len(chosen)}-classes" if chosen else "")
        check_classes(examples)
        return name, dataclasses.replace(examples, name=name)


@dataclass(frozen=True)
class Study:
    """What is compared on what. `objectives` gives each a whole configuration under the name it has in tables."""

    data: tuple[Source, ...]
    objectives: dict[str, RunConfig]
    sizes: tuple[int, ...] = (1000,)  # rows, drawn anew for each seed; 0 is all
    folds: int = 5
    seeds: tuple[int, ...] = (2, 16, 128, 2048)
    baseline: str = ""  # the first objective, unless named
    search: SearchConfig | None = None
    # of objectives whose own one is not meant; an empty one leaves an objective as it is
    spaces: dict[str, Space] = field(default_factory=dict)
    selection: str = "nested"
    hard_sets: dict[str, list[list[str]]] = field(
        default_factory=dict
    )  # data set -> sets of classes to score apart

    def __post_init__(self) -> None:
        for what, values in (
            ("data", self.data),
            ("objectives", self.objectives),
            ("seeds", self.seeds),
            ("sizes", self.sizes),
        ):
            if not values:
                raise ConfigError(f"a study needs {what}; none was given")
        if not all(isinstance(one, Source) for one in self.data):
            raise ConfigError(f'data is {self.data!r}; give a tuple of sources, like (Source("trec"),)')
        configs = self.objectives.values() if isinstance(self.objectives, Mapping) else ()
        if not configs or not all(isinstance(config, RunConfig) for config in configs):
            raise ConfigError(f"objectives is {self.objectives!r}; give a RunConfig for each name")
        if len({config.data for config in configs}) > 1:
            raise ConfigError(
                "the objectives differ in their settings of data; all of a study see the same rows"
            )
        for what, numbers in (("seeds", self.seeds), ("sizes", self.sizes)):
            if not all(isinstance(number, int) for number in _list(numbers, what)):
                raise ConfigError(f"{what} is {numbers!r}; give whole numbers (0 is all rows)")
            if any(number < 0 for number in numbers):
                raise ConfigError(f"{what} are {', '.join(map(str, numbers))}; none may be negative")
            if len(set(numbers)) < len(numbers):
                raise ConfigError(f"{what} are {', '.join(map(str, numbers))}; one is given twice")
        if max(self.seeds) >= 2**32:
            raise ConfigError(f"the seed {max(self.seeds)} is too large; seeds are below {2**32}")
        if self.folds < 2:
            raise ConfigError(f"{self.folds} folds were asked for; at least 2 are needed")
        if self.selection not in SELECTIONS:
            raise ConfigError(f"selection is {self.selection}{did_you_mean(self.selection, SELECTIONS)}")
        if self.baseline and self.baseline not in self.objectives:
            near = did_you_mean(self.baseline, self.objectives)
            raise ConfigError(f"the baseline {self.baseline} is not among the objectives{near}")
        for name in self.spaces:
            if name not in self.objectives:
                raise ConfigError(
                    f"search.spaces.{name}: no such objective{did_you_mean(name, self.objectives)}"
                )
        for name in self.objectives if self.search else ():
            space = self.space(name)
            if name in self.spaces and space == {}:
                continue  # nothing of it is searched for
            check_space(space, f"search.spaces.{name}")
            if self.search and self.search.method == "grid":
                grid_size(space)
            for setting, values in space.items():  # every value must be one that the objective takes
                if setting == "train.seed" or setting.startswith("data."):
                    raise ConfigError(
                        f"search.spaces.{name} has {setting}; rows and seeds are those of the study and cannot be searched for"
                    )
                ends = [values["low"], values["high"]] if isinstance(values, Mapping) else values
                for value in ends:
                    with_options(self.objectives[name], {setting: value})

    @property
    def reference(self) -> str:
        return self.baseline or next(iter(self.objectives))

    def space(self, name: str) -> Space:
        """What is searched for an objective of the study."""
        if name in self.spaces or self.search is None:
            return self.spaces.get(name, {})
        return named_space(self.search.space, self.objectives[name].objective.name)


def with_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The configuration with `train.lr`-like settings and options of the objective changed."""
    tables = config.to_dict()
    for setting, value in options.items():
        table, dot, key = setting.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
        else:
            tables["objective"][setting] = value
    return RunConfig.from_dict(tables)


# ---------------------------------------------------------------- study files

_STUDY_KEYS = ("data", "sizes", "objectives", "folds", "seeds", "baseline", "selection", "hard_sets")


def read_study(
    path: Path | None, given: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> Study:
    """A study from a TOML file, with what the command line gives on top.

    `given` are settings of [study] and `search` (empty: none, whatever the file says); `changes` are tables of settings for all
    objectives, options of those that have them (`objective`), and options of one by its name.
    """
    tables: dict[str, Any] = read_toml(path) if path is not None else {}
    known = ("study", "objectives", "search", "data", "encoder", "train")
    for table, values in tables.items():
        if table not in known:
            raise ConfigError(f"{path}: unknown table [{table}]{did_you_mean(table, known)}")
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {table} is not a table; write [{table}] and its settings below")
    if given.get("search") == {}:
        tables.pop("search", None)
    study = {**tables.get("study", {}), **{k: v for k, v in given.items() if v is not None and k != "search"}}
    for key in study:
        if key not in _STUDY_KEYS:
            raise ConfigError(f"unknown setting study.{key}{did_you_mean(key, _STUDY_KEYS)}")
    base = {table: dict(tables.get(table, {})) for table in ("data", "encoder", "train")}
    base["train"].setdefault("positives", 0)  # the same batches for every objective
    variants: dict[str, Any] = tables.get("objectives", {})
    listed = _checked_names(tables.get("study", {}).get("objectives") or [], variants)
    names = _checked_names(
        study.get("objectives") or list(variants) or ["cross_entropy", "triple_entropy"], variants
    )
    tables_known = ("data", "encoder", "train", "objective", *names)
    for table in changes:
        if table not in tables_known:
            near = did_you_mean(table, tables_known)
            raise ConfigError(f"--set {table}.…: there is no table {table}{near}")
    for option in changes.get("objective", {}):
        if option == "name" or not any(option in objective_options(_kind(name, variants)) for name in names):
            raise ConfigError(f"--set objective.{option}: none of {', '.join(names)} has this option")
    search_table = dict(tables.get("search", {}))
    spaces = search_table.pop("spaces", {})
    if not isinstance(spaces, dict) or not all(isinstance(own, dict) for own in spaces.values()):
        raise ConfigError(
            f"search.spaces is {spaces!r}; write a table for each objective: [search.spaces.NAME]"
        )
    if given.get("objectives"):  # some of the file's, or others; what it says of the rest is not meant now
        known_here = {*variants, *listed}
        if study.get("baseline") not in names:
            study.pop("baseline", None)
        spaces = {name: own for name, own in spaces.items() if name in names or name not in known_here}
    else:
        for name in variants:
            if name not in names:
                raise ConfigError(
                    f"[objectives.{name}] is not among the objectives{did_you_mean(name, names)}"
                )
    settings = {**search_table, **(given.get("search") or {})}
    for key, kind, word in (
        ("folds", int, "a whole number"),
        ("hard_sets", dict, "a table of lists"),
        ("baseline", str, "a name"),
        ("selection", str, "a name"),
    ):
        if not isinstance(study.get(key, kind()), kind):
            raise ConfigError(f"study.{key} is {study[key]!r}; it must be {word}")
    for data, sets in study.get("hard_sets", {}).items():
        if not isinstance(sets, list) or not all(_is_names(one) for one in sets):
            raise ConfigError(
                f'study.hard_sets.{data} is {sets!r}; give a list of sets of classes, like [["refund", "chargeback"]]'
            )
    searched = "search" in tables or bool(given.get("search"))
    if study.get("selection") == "paper" and not searched and given.get("search") is None:
        raise ConfigError(
            "the selection paper is a way to choose settings, and none are searched for; add --search, or [search] to the file"
        )
    more: dict[str, Any] = {
        key: tuple(_numbers(study[key], key)) if key in ("sizes", "seeds") else study[key]
        for key in ("sizes", "seeds", "folds", "baseline", "selection", "hard_sets")
        if key in study
    }
    return Study(
        data=tuple(_source(one) for one in _list(study.get("data", ()), "study.data")),
        objectives={name: _variant(name, variants.get(name, {}), base, changes) for name in names},
        search=_search_config(settings) if searched else None,
        spaces=spaces,
        **more,
    )


def _checked_names(names: Any, variants: Mapping[str, Any]) -> list[str]:
    """The objectives of a study by their names there: each known, and once."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"study.objectives is {names!r}; give a list of names")
    for name, times in Counter(names).items():
        if name not in variants and name not in OBJECTIVES:
            raise ConfigError(f"unknown objective {name}{did_you_mean(name, [*variants, *OBJECTIVES])}")
        if times > 1:
            raise ConfigError(f"the objective {name} is given twice")
    return list(names)


def _variant(
    name: str, own: Any, base: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> RunConfig:
    """One objective of a study file: its options, and under `train` and `encoder` what differs for it alone."""
    if not isinstance(own, dict):
        raise ConfigError(f"[objectives.{name}] is not a table")
    for table in ("train", "encoder"):
        if not isinstance(own.get(table, {}), dict):
            raise ConfigError(
                f"objectives.{name}.{table} is {own[table]!r}; write a table like {{lr = 3e-5}}"
            )
    options = {key: value for key, value in own.items() if key not in ("train", "encoder")}
    if not isinstance(options.get("name", name), str):
        raise ConfigError(f"objectives.{name}.name is {options['name']!r}; it must be a text")
    known = objective_options(options.get("name", name))
    shared = {key: value for key, value in changes.get("objective", {}).items() if key in known}
    tables = {
        table: {**values, **own.get(table, {}), **changes.get(table, {})} for table, values in base.items()
    }
    for table, key, instead in (("train", "seed", "seeds"), ("data", "test", "folds")):
        if key in tables[table]:
            raise ConfigError(
                f"{table}.{key} has no meaning in a study, which has {instead} of its own: study.{instead}, or --{instead}"
            )
    objective = {"name": name, **options, **shared, **changes.get(name, {})}
    return RunConfig.from_dict({**tables, "objective": objective})


def _kind(name: str, variants: Mapping[str, Any]) -> str:
    """The objective behind a name of the study."""
    own = variants.get(name, {})
    return str(own.get("name", name)) if isinstance(own, dict) else name


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} is {value!r}; give a list")
    return list(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _numbers(value: Any, name: str) -> list[int]:
    numbers = [0 if one == "all" and name == "sizes" else one for one in _list(value, f"study.{name}")]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(f"study.{name} is {value!r}; give a list of whole numbers")
    return numbers


def _source(value: Any) -> Source:
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
    return Source(**{**value, **{key: tuple(own) for key, own in lists.items()}})


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
