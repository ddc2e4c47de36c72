"""A study: data sets x sizes x objectives x seeds x folds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from closeknit.classification.config import RunConfig
from closeknit.data import catalogue
from closeknit.data.examples import Examples
from closeknit.data.splits import check_classes
from closeknit.errors import ConfigError, did_you_mean
from closeknit.settings import SettingsTable, check_values, setting
from closeknit.studies.search import SearchConfig, Space, check_space, grid_size, named_space

SELECTIONS = ("nested", "paper")
SIZES = (1000,)
SEEDS = (2, 16, 128, 2048)


@dataclass(frozen=True)
class Source(SettingsTable, table="study.data"):
    """A data set of a study, whole or some of its classes only."""

    source: str = setting(help="A file, a folder or a catalogue name.")
    name: str = setting("", default_text="the data set's", help="Name of the data set in tables.")
    labels: tuple[str, ...] = setting(
        (), example='["0", "1"]', help="Only rows of these classes. Empty is all classes."
    )
    classes: int = setting(
        0,
        at_least=0,
        help="Only this many classes, drawn at random; fewer classes are always among more. 0 is all.",
    )
    parts: tuple[str, ...] = setting(
        (),
        example='["train", "test"]',
        help="The parts to take together. Empty is the part to train on.",
    )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "") -> Self:
        """The data set of a table in a study file."""
        lists = {
            key: tuple(values[key])
            for key in ("labels", "parts")
            if isinstance(values.get(key), list)
        }
        check_values(cls, values, name)
        return super().from_dict({**values, **lists}, name)

    def load(self, config: RunConfig) -> tuple[str, Examples]:
        """The name of the data set in tables, and its rows."""
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
class StudyTable(SettingsTable, table="study"):
    """The table [study] of a study file."""

    data: list[Any] = setting(
        default_factory=list,
        example='["trec", { source = "mr", classes = 2 }]',
        help="Data sets: files, folders or catalogue names, or tables that take a part of one.",
    )
    sizes: list[int | str] = setting(
        default_factory=lambda: list(SIZES),
        example='[1000, "all"]',
        help="Numbers of rows, drawn anew for each seed. 0 or `all` is all rows.",
    )
    objectives: list[str] = setting(
        default_factory=list,
        default_text="those of the file",
        help="Names of the objectives: of tables [objectives.NAME], or of objectives.",
    )
    folds: int = setting(5, at_least=2, help="Folds of the cross-validation for each seed.")
    seeds: list[int] = setting(
        default_factory=lambda: list(SEEDS), help="Seeds; each draws other rows and other folds."
    )
    baseline: str = setting(
        "", default_text="the first", help="The objective that the others are compared with."
    )
    selection: str = setting(
        "nested",
        choices=SELECTIONS,
        help="Where searched settings are chosen: on parts of each training fold (`nested`), or on the "
        "reported folds (`paper`).",
    )
    hard_sets: dict[str, list[list[str]]] = setting(
        default_factory=dict,
        example='[["refund", "chargeback"]]',
        help="For a data set by name: sets of classes that are easily confused and scored apart.",
    )


@dataclass(frozen=True)
class Study:
    """What is compared on what; `objectives` gives each name in the tables a whole
    configuration.
    """

    data: tuple[Source, ...]
    objectives: dict[str, RunConfig]
    sizes: tuple[int, ...] = SIZES  # rows, drawn anew for each seed; 0 is all
    folds: int = StudyTable.folds
    seeds: tuple[int, ...] = SEEDS
    baseline: str = ""  # the first objective, unless named
    search: SearchConfig | None = None
    # Search spaces that replace the named one; an empty space leaves an objective as it is.
    spaces: dict[str, Space] = field(default_factory=dict)
    selection: str = StudyTable.selection
    # Data set -> sets of classes to score apart.
    hard_sets: dict[str, list[list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("data", "objectives", "seeds", "sizes"):
            if not getattr(self, what):
                raise ConfigError(f"a study needs {what}; none was given")
        if not all(isinstance(source, Source) for source in self.data):
            raise ConfigError(
                f'data is {self.data!r}; give a tuple of sources, like (Source("trec"),)'
            )
        self._check_objectives()
        self._check_numbers("seeds", self.seeds)
        self._check_numbers("sizes", self.sizes)
        if max(self.seeds) >= 2**32:
            raise ConfigError(f"the seed {max(self.seeds)} is too large; seeds are below {2**32}")
        check_values(StudyTable, {"folds": self.folds, "selection": self.selection})
        if self.baseline and self.baseline not in self.objectives:
            near = did_you_mean(self.baseline, self.objectives)
            raise ConfigError(f"the baseline {self.baseline} is not among the objectives{near}")
        for name in self.spaces:
            if name not in self.objectives:
                near = did_you_mean(name, self.objectives)
                raise ConfigError(f"search.spaces.{name}: no such objective{near}")
        if self.search is not None:
            for name in self.objectives:
                self._check_space(name, self.search)

    def _check_objectives(self) -> None:
        """Refuse objectives without a configuration, and those that would see other rows."""
        configs = self.objectives.values() if isinstance(self.objectives, Mapping) else ()
        if not configs or not all(isinstance(config, RunConfig) for config in configs):
            raise ConfigError(f"objectives is {self.objectives!r}; give a RunConfig for each name")
        if len({config.data for config in configs}) > 1:
            raise ConfigError(
                "the objectives differ in their settings of data; all of a study see the same rows"
            )

    def _check_numbers(self, what: str, numbers: Any) -> None:
        """Refuse seeds or sizes that are not whole numbers, negative, or given twice."""
        if not isinstance(numbers, list | tuple):
            raise ConfigError(f"{what} is {numbers!r}; give a list")
        if not all(isinstance(number, int) for number in numbers):
            raise ConfigError(f"{what} is {numbers!r}; give whole numbers (0 is all rows)")
        given = f"{what} are {', '.join(map(str, numbers))}"
        if any(number < 0 for number in numbers):
            raise ConfigError(f"{given}; none may be negative")
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"{given}; one is given twice")

    def _check_space(self, name: str, search: SearchConfig) -> None:
        """Refuse a search space with a value that its objective does not take."""
        space = self.space(name)
        if name in self.spaces and space == {}:
            return  # nothing of it is searched for
        check_space(space, f"search.spaces.{name}")
        if search.method == "grid":
            grid_size(space)
        for searched, values in space.items():
            if searched == "train.seed" or searched.startswith("data."):
                raise ConfigError(
                    f"search.spaces.{name} has {searched}; rows and seeds are those of the study and cannot be searched for"
                )
            ends = [values["low"], values["high"]] if isinstance(values, Mapping) else values
            for value in ends:
                with_options(self.objectives[name], {searched: value})

    @property
    def reference(self) -> str:
        """The objective that the others are compared with."""
        return self.baseline or next(iter(self.objectives))

    def space(self, name: str) -> Space:
        """What is searched for an objective of the study."""
        if name in self.spaces or self.search is None:
            return self.spaces.get(name, {})
        return named_space(self.search.space, self.objectives[name].objective.name)


def with_options(config: RunConfig, options: Mapping[str, Any]) -> RunConfig:
    """The configuration with other settings, named like `train.lr`, and other options of its
    objective.
    """
    tables = config.to_dict()
    for name, value in options.items():
        table, dot, key = name.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
        else:
            tables["objective"][name] = value
    return RunConfig.from_dict(tables)
