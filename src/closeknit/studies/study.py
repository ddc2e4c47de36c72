"""A study: data sets x sizes x objectives x seeds x folds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from closeknit import catalogue
from closeknit.config import RunConfig
from closeknit.data import Examples, check_classes
from closeknit.errors import ConfigError, did_you_mean
from closeknit.studies.search import SearchConfig, Space, check_space, grid_size, named_space

SELECTIONS = ("nested", "paper")


@dataclass(frozen=True)
class Source:
    """A data set of a study: all of it, or only some of its classes."""

    source: str
    name: str = ""  # in tables; by default the data set's own
    labels: tuple[str, ...] = ()  # only rows of these classes
    classes: int = 0  # only so many classes, drawn at random; fewer are always among more
    parts: tuple[str, ...] = ()  # the parts to take together; by default the one to train on

    def load(self, config: RunConfig) -> tuple[str, Examples]:
        """The name and the rows of the data set."""
        found = catalogue.load(self.source, config.data)
        examples = found.together(self.parts) if self.parts else found.training
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
                raise ConfigError(
                    f"{found.name} has no class {label}{did_you_mean(label, examples.classes)}"
                )
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
    """The objectives that are compared, and the data sets they are compared on.

    `objectives` holds a whole configuration for each name in the tables.
    """

    data: tuple[Source, ...]
    objectives: dict[str, RunConfig]
    sizes: tuple[int, ...] = (1000,)  # rows, drawn anew for each seed; 0 is all
    folds: int = 5
    seeds: tuple[int, ...] = (2, 16, 128, 2048)
    baseline: str = ""  # the first objective, unless named
    search: SearchConfig | None = None
    # search spaces that override the named one; an empty space leaves the objective as it is
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
            raise ConfigError(
                f'data is {self.data!r}; give a tuple of sources, like (Source("trec"),)'
            )
        configs = self.objectives.values() if isinstance(self.objectives, Mapping) else ()
        if not configs or not all(isinstance(config, RunConfig) for config in configs):
            raise ConfigError(f"objectives is {self.objectives!r}; give a RunConfig for each name")
        if len({config.data for config in configs}) > 1:
            raise ConfigError(
                "the objectives differ in their settings of data; all of a study see the same rows"
            )
        for what, numbers in (("seeds", self.seeds), ("sizes", self.sizes)):
            if not all(isinstance(number, int) for number in as_list(numbers, what)):
                raise ConfigError(f"{what} is {numbers!r}; give whole numbers (0 is all rows)")
            if any(number < 0 for number in numbers):
                raise ConfigError(
                    f"{what} are {', '.join(map(str, numbers))}; none may be negative"
                )
            if len(set(numbers)) < len(numbers):
                raise ConfigError(f"{what} are {', '.join(map(str, numbers))}; one is given twice")
        if max(self.seeds) >= 2**32:
            raise ConfigError(f"the seed {max(self.seeds)} is too large; seeds are below {2**32}")
        if self.folds < 2:
            raise ConfigError(f"{self.folds} folds were asked for; at least 2 are needed")
        if self.selection not in SELECTIONS:
            raise ConfigError(
                f"selection is {self.selection}{did_you_mean(self.selection, SELECTIONS)}"
            )
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
                continue  # this objective is not searched
            check_space(space, f"search.spaces.{name}")
            if self.search and self.search.method == "grid":
                grid_size(space)
            for (
                setting,
                values,
            ) in space.items():  # every value must be one that the objective takes
                if setting == "train.seed" or setting.startswith("data."):
                    raise ConfigError(
                        f"search.spaces.{name} has {setting}; rows and seeds are those of the study and cannot be searched for"
                    )
                ends = [values["low"], values["high"]] if isinstance(values, Mapping) else values
                for value in ends:
                    with_options(self.objectives[name], {setting: value})

    @property
    def reference(self) -> str:
        """The objective that the others are compared with."""
        return self.baseline or next(iter(self.objectives))

    def space(self, name: str) -> Space:
        """The settings that are searched for an objective of the study."""
        if name in self.spaces or self.search is None:
            return self.spaces.get(name, {})
        return named_space(self.search.space, self.objectives[name].objective.name)


def with_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The configuration with other settings (`train.lr`) and other options of the objective (`gamma`)."""
    tables = config.to_dict()
    for setting, value in options.items():
        table, dot, key = setting.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
        else:
            tables["objective"][setting] = value
    return RunConfig.from_dict(tables)


def as_list(value: Any, where: str) -> list[Any]:
    """The values of a list or tuple; anything else is refused."""
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} is {value!r}; give a list")
    return list(value)
