"""A study: data sets x sizes x objectives x seeds x folds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from closeknit.classification.config import RunConfig
from closeknit.data import catalogue
from closeknit.data.examples import DataSet, Examples, concatenate
from closeknit.data.splits import check_classes
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.settings import SettingsTable, check_values, setting
from closeknit.studies.search import SearchConfig, Space, check_space, grid_size, named_space

SELECTIONS = ("nested", "paper")
DESIGNS = ("folds", "official", "rest")
EQUAL_TEXTS = ("together", "divided")
SHARED_TEXTS = ("refuse", "drop", "keep")
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
        name, examples, _ = self._load(config, official=False)
        return name, examples

    def load_with_test_part(self, config: RunConfig) -> tuple[str, Examples, int]:
        """The name of the data set in tables, its training rows with the rows of its test part
        behind them, and how many test rows these are.
        """
        return self._load(config, official=True)

    def _load(self, config: RunConfig, *, official: bool) -> tuple[str, Examples, int]:
        found = catalogue.load(self.source, config.data)
        training = found.merged(self.parts) if self.parts else found.training
        chosen = self._chosen_classes(found.name, training)
        examples, test_rows = training, 0
        if official:
            examples, test_rows = self._with_test_part(found, training)
        if chosen:
            labels = examples.required_labels
            first_test_row = len(labels) - test_rows
            kept = [row for row, label in enumerate(labels) if label in chosen]
            test_rows = sum(row >= first_test_row for row in kept)
            examples = examples.select(kept)
        name = self.name or found.name + (f"-{len(chosen)}-classes" if chosen else "")
        examples = dataclasses.replace(examples, name=name)
        check_classes(examples.select(range(len(examples) - test_rows)))
        if official and not test_rows:
            raise DataError(f"{name}: the test part has no row of the chosen classes")
        return name, examples, test_rows

    def _with_test_part(self, found: DataSet, training: Examples) -> tuple[Examples, int]:
        """The training rows with those of the test part behind them, and how many these are."""
        test = found.parts.get("test")
        if test is None:
            raise DataError(
                f"{found.name} has no part test; it has {', '.join(found.parts)}. Give it one, or "
                "compare on folds: leave --test official out"
            )
        if "test" in self.parts:
            raise ConfigError(
                f"{self.source}: parts has test, and the official test part is not trained on; "
                "leave it out of parts"
            )
        return concatenate([("train", training), ("test", test)], found.name), len(test)

    def _chosen_classes(self, name: str, examples: Examples) -> list[str]:
        """The classes that are kept; empty if all are."""
        if self.labels and self.classes:
            raise ConfigError(f"{self.source}: give labels or a number of classes, not both")
        chosen = list(self.labels)
        if self.classes:
            order = np.random.default_rng(0).permutation(examples.classes)
            if not 2 <= self.classes <= len(order):
                raise ConfigError(
                    f"{self.classes} classes of {name} were asked for; it has {len(order)}"
                )
            chosen = [str(label) for label in order[: self.classes]]
        for label in chosen:
            if label not in examples.classes:
                raise ConfigError(
                    f"{name} has no class {label}{did_you_mean(label, examples.classes)}"
                )
        return chosen


@dataclass(frozen=True)
class StudyTable(SettingsTable, table="study"):
    """The table [study] of a study file."""

    data: list[Any] = setting(
        default_factory=list,
        example='["trec", { source = "mr", classes = 2 }]',
        help="Data sets: files, folders or catalogue names, or tables that take a part of one.",
    )
    sizes: list[int | str] = setting(
        default_factory=list,
        default_text='`[1000]`, or `all` with `test = "official"`',
        example='[1000, "all"]',
        help="Numbers of rows, drawn anew for each seed: all rows of a cross-validation, or the "
        "training rows beside an official test part. 0 or `all` is all rows.",
    )
    test: str = setting(
        "",
        choices=("", *DESIGNS),
        default_text="`folds`, or `rest` with `shots`",
        help="Where the test rows come from: `folds` of a cross-validation, the `official` test part "
        "of the data set, or the `rest` of the rows that are not drawn for training (with `shots`).",
    )
    shots: list[int] = setting(
        default_factory=list,
        at_least=1,
        example="[8, 16, 64]",
        help="Training rows of each class, drawn anew for each seed; in place of `sizes`.",
    )
    shared_texts: str = setting(
        "",
        choices=("", *SHARED_TEXTS),
        default_text="`refuse`, or `drop` for data sets of the catalogue",
        help="What happens to texts of an official test part that also stand in the training rows: "
        "`refuse` stops, `drop` leaves them out of the training rows, `keep` trains on them.",
    )
    equal_texts: str = setting(
        "",
        choices=("", *EQUAL_TEXTS),
        default_text="`together`; `divided` in a folder with older runs",
        help="Rows with the same text, up to case and punctuation: `together` keeps them in the same "
        "fold of a cross-validation or search, `divided` lets a text be tested that was trained on.",
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
    sizes: tuple[int, ...] = ()  # rows, drawn anew for each seed; 0 is all; empty: the default
    folds: int = StudyTable.folds
    seeds: tuple[int, ...] = SEEDS
    baseline: str = ""  # the first objective, unless named
    search: SearchConfig | None = None
    # Search spaces that replace the named one; an empty space leaves an objective as it is.
    spaces: dict[str, Space] = field(default_factory=dict)
    selection: str = StudyTable.selection
    # Data set -> sets of classes to score apart.
    hard_sets: dict[str, list[list[str]]] = field(default_factory=dict)
    test: str = ""  # one of DESIGNS; empty: the default
    shots: tuple[int, ...] = ()  # training rows of each class, in place of sizes
    shared_texts: str = ""  # one of SHARED_TEXTS; empty: the default
    equal_texts: str = ""  # one of EQUAL_TEXTS; empty: that of the folder, or `together`

    def __post_init__(self) -> None:
        self._settle_design()
        for what in ("data", "objectives", "seeds"):
            if not getattr(self, what):
                raise ConfigError(f"a study needs {what}; none was given")
        if not all(isinstance(source, Source) for source in self.data):
            raise ConfigError(
                f'data is {self.data!r}; give a tuple of sources, like (Source("trec"),)'
            )
        self._check_objectives()
        self._check_numbers("seeds", self.seeds)
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

    def _settle_design(self) -> None:
        """Fill in the default test rows and sizes, and refuse a design that contradicts itself."""
        values = {
            "test": self.test,
            "shared_texts": self.shared_texts,
            "equal_texts": self.equal_texts,
        }
        check_values(StudyTable, values)
        self._check_numbers("shots", self.shots)
        self._check_numbers("sizes", self.sizes)
        if self.shots and self.sizes:
            raise ConfigError(
                "shots and sizes are both given; shots are the training rows of each class, so "
                "give one of the two"
            )
        if min(self.shots, default=1) < 1:
            raise ConfigError(f"shots are {', '.join(map(str, self.shots))}; give at least 1")
        test = self.test or ("rest" if self.shots else "folds")
        if test == "folds" and self.shots:
            raise ConfigError(
                "shots draws training rows of each class, and folds have rows of their own; give "
                "test as official or rest"
            )
        if test == "rest" and not self.shots:
            raise ConfigError(
                "test is rest, the rows that shots leaves over; give shots, like 8,16,64"
            )
        if self.shared_texts and test != "official":
            raise ConfigError(
                "shared_texts is about the official test part; give test as official too"
            )
        default = () if self.shots else (0,) if test == "official" else SIZES
        object.__setattr__(self, "test", test)
        object.__setattr__(self, "sizes", self.sizes or default)

    @property
    def splits_per_seed(self) -> int:
        """The number of folds, or 1 where a seed has one training part and one test part."""
        return self.folds if self.test == "folds" else 1

    @property
    def keeps_equal_texts_together(self) -> bool:
        """Whether rows with the same text are in the same fold."""
        return self.equal_texts != "divided"

    def what_with_shared_texts(self, source: str) -> str:
        """What happens to texts that two official parts of this data set share."""
        if self.shared_texts:
            return self.shared_texts
        return "drop" if catalogue.is_catalogue_name(source) else "refuse"

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

    def selection_of(self, name: str) -> str:
        """How the settings of an objective are chosen: `fixed` where nothing is searched for."""
        return self.selection if self.search is not None and self.space(name) else "fixed"

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
