"""A multi-task run in one frozen dataclass: tasks, schedule, shared layer, pretraining; read from TOML or a recipe's name."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from closeknit.config import EncoderConfig, ObjectiveConfig, build_table, read_tables, read_toml
from closeknit.data.tables import Columns, holds_data
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.multitask.heads import HEADS
from closeknit.schedules import ScheduleConfig
from closeknit.train_config import TrainConfig

KINDS = ("classify", "pair_classify", "pair_score")
METRICS = {
    "classify": ("accuracy", "weighted_f1", "macro_f1"),
    "pair_classify": ("accuracy", "weighted_f1", "macro_f1"),
    "pair_score": ("pearson", "spearman"),
}
RECIPES = Path(__file__).parent.parent / "recipes" / "multitask"


@dataclass(frozen=True)
class TaskConfig:
    """One task: its data, what is asked of a text or a pair, and the head that answers."""

    data: Any = ""  # a file, folder or catalogue name; or a table of parts, each a file or a list of files
    kind: str = "classify"  # classify single texts, pair_classify, or pair_score
    head: str = ""  # linear, paired or dense_paired; default linear for texts, dense_paired for pairs
    activation: bool = True  # tanh inside dense_paired and paired
    weight: float = 1.0  # of its loss
    metric: str = ""  # default accuracy, for scores pearson
    rows: int = 0  # train on so many rows, drawn at random; 0 is all
    leaks: str = "drop"  # training rows that are also in the validation or test part: drop or keep
    objective: str = "cross_entropy"  # of classify; any that trains a head
    options: dict[str, Any] = field(default_factory=dict)  # of the objective
    text: str | None = None
    text2: str | None = None
    label: str | None = None
    score: str | None = None
    empty: str = "error"

    def __post_init__(self) -> None:
        heads = ("linear",) if self.kind == "classify" else HEADS
        for name, known in (
            ("kind", KINDS),
            ("head", ("", *heads)),
            ("metric", ("", *METRICS.get(self.kind, ()))),
            ("leaks", ("drop", "keep")),
        ):
            value = getattr(self, name)
            if value not in known:
                near = did_you_mean(str(value), [one for one in known if one])
                of = f" for {self.kind}" if name in ("head", "metric") else ""
                raise ConfigError(f"{name} is {value}{of}{near}")
        if not 0 < self.weight < math.inf:
            raise ConfigError(f"weight is {self.weight}; it must be a number above 0")
        if self.rows < 0:
            raise ConfigError(f"rows is {self.rows}; it must not be negative")
        if self.kind != "classify" and (self.objective != "cross_entropy" or self.options):
            raise ConfigError(
                f"objective and options are for tasks that classify single texts, not for {self.kind}"
            )
        ObjectiveConfig(self.objective, self.options)  # refuses what it does not know
        self.columns  # noqa: B018  checks data.empty

    @property
    def columns(self) -> Columns:
        return Columns(self.text, self.text2, self.label, self.empty, self.score)

    @property
    def target(self) -> str:
        return "score" if self.kind == "pair_score" else "label"

    @property
    def measure(self) -> str:
        """The metric that is meant."""
        return self.metric or METRICS[self.kind][0]

    @property
    def shape(self) -> str:
        """The head that is meant."""
        return self.head or ("linear" if self.kind == "classify" else "dense_paired")


@dataclass(frozen=True)
class SharedConfig:
    """What stands between the encoder and all heads."""

    layer: bool = True  # a linear layer with tanh that all tasks share
    dropout: float = 0.1  # on the pooled vector
    layer_dropout: float = 0.0  # after the shared layer

    def __post_init__(self) -> None:
        for name in ("dropout", "layer_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"shared.{name} is {getattr(self, name)}; it must be from 0 to below 1")


@dataclass(frozen=True)
class PretrainConfig:
    """A stage before the tasks that teaches the encoder sentences; settings left at None are the method's own."""

    data: str = ""  # texts, pairs or triplets; none: no such stage
    method: str = "simcse"  # simcse, mirror or multiple_negatives
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    temperature: float | None = None
    rows: int = 0  # so many, drawn at random; 0 is all
    positives: str = ""  # pairs with a label: only rows of this one belong together
    negatives: str = ""  # and the second text of rows of this one is a hard negative of the first

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ConfigError(f"pretrain.rows is {self.rows}; it must not be negative")
        if self.negatives and not self.positives:
            raise ConfigError("pretrain.negatives needs pretrain.positives: what belongs together")
        if self.negatives and self.negatives == self.positives:
            raise ConfigError(
                f"pretrain.positives and pretrain.negatives are both {self.positives}; a label is one or the other"
            )
        for one in dataclasses.fields(self) if not self.data else ():
            if getattr(self, one.name) != one.default:
                raise ConfigError(f"pretrain.{one.name} is set, but pretrain.data is not: what to learn from")

    def tables(self) -> dict[str, dict[str, Any]]:
        """The settings as a run that learns an embedding has them."""
        train = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr}
        method = {"name": self.method, "temperature": self.temperature}
        return {
            "method": {key: value for key, value in method.items() if value is not None},
            "train": {key: value for key, value in train.items() if value is not None},
        }


@dataclass(frozen=True)
class TrialConfig:
    """A small version of a run, to see that it works."""

    scale: float = 1.0  # this share of the rows of every part

    def __post_init__(self) -> None:
        if not 0.0 < self.scale <= 1.0:
            raise ConfigError(f"--scale is {self.scale}; it must be above 0 and at most 1")


@dataclass(frozen=True)
class MultiTaskConfig:
    """Everything that decides the outcome of a multi-task run, but for the data themselves."""

    tasks: dict[str, TaskConfig]
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    shared: SharedConfig = field(default_factory=SharedConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=5, validation=0.1))
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    trial: TrialConfig = field(default_factory=TrialConfig)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("there is no task; describe at least one as [tasks.NAME] with data and kind")
        for name in self.tasks:
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
                raise ConfigError(f"a task cannot be called {name}; use letters of a to z, digits, - and _")
            if name in ("average", "loss", "epoch", "parts") or hasattr(nn.ModuleDict(), name):
                raise ConfigError(f"a task cannot be called {name}; choose another name")
        self.schedule.check(list(self.tasks))
        self.train.require_settled()
        if self.train.chunk_size:
            raise ConfigError("train.chunk_size is for contrastive batches; use train.accumulate")
        if self.encoder.frozen and self.pretrain.data:
            raise ConfigError(
                "encoder.frozen and [pretrain] contradict each other: one leaves the weights as they are"
            )
        if self.encoder.name == "textcnn" and self.pretrain.data:
            raise ConfigError(
                "[pretrain] starts from a pretrained encoder; textcnn has no weights to start from"
            )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Flat tables, every default spelt out; those of tasks are called tasks.NAME."""
        tables = {name: dataclasses.asdict(getattr(self, name)) for name in _TABLES}
        return {**{f"tasks.{name}": dataclasses.asdict(task) for name, task in self.tasks.items()}, **tables}

    @staticmethod
    def from_dict(tables: Mapping[str, Any]) -> MultiTaskConfig:
        """The configuration of these tables; unknown names and wrong types are refused."""
        tasks: dict[str, Any] = {}
        for table, values in tables.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"{table} is not a table; write [{table}] and its settings below")
            if table.startswith("tasks."):
                tasks[table.removeprefix("tasks.")] = values
            elif table == "tasks":
                tasks |= values
            elif table not in _TABLES:
                raise ConfigError(f"unknown table [{table}]{did_you_mean(table, ['tasks', *_TABLES])}")
        for name, values in tasks.items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"tasks.{name} is not a table; write [tasks.{name}] and its settings below")
        made = {
            table: build_table(kind, table, {**_DEFAULTS.get(table, {}), **tables.get(table, {})})
            for table, kind in _TABLES.items()
        }
        return MultiTaskConfig({name: _task(name, values) for name, values in tasks.items()}, **made)

    def only(self, task: str) -> MultiTaskConfig:
        """The same run with one of its tasks alone."""
        schedule = dataclasses.replace(ScheduleConfig(), name="together")
        return dataclasses.replace(self, tasks={task: self.tasks[task]}, schedule=schedule)

    def scaled(self, scale: float) -> MultiTaskConfig:
        """A trial of it: this share of the epochs, one at least, and of the rows when they are read."""
        trial = TrialConfig(scale * self.trial.scale)

        def fewer(epochs: int) -> int:
            return max(1, round(epochs * scale))

        train = dataclasses.replace(self.train, epochs=fewer(self.train.epochs))
        pretrain = self.pretrain
        if pretrain.epochs is not None:
            pretrain = dataclasses.replace(pretrain, epochs=fewer(pretrain.epochs))
        return dataclasses.replace(self, train=train, pretrain=pretrain, trial=trial)


_TABLES: dict[str, Any] = {
    "encoder": EncoderConfig,
    "schedule": ScheduleConfig,
    "shared": SharedConfig,
    "train": TrainConfig,
    "pretrain": PretrainConfig,
    "trial": TrialConfig,
}
_DEFAULTS: dict[str, dict[str, Any]] = {"train": {"epochs": 5, "validation": 0.1}}


def _task(name: str, values: Mapping[str, Any]) -> TaskConfig:
    try:
        made: TaskConfig = build_table(TaskConfig, f"tasks.{name}", values)
    except (ConfigError, DataError) as error:
        text = str(error).replace("data.empty", "empty").replace("objective.", "options.")
        raise ConfigError(text if f"tasks.{name}" in text else f"tasks.{name}: {text}") from None
    return made


def recipes() -> dict[str, Path]:
    """The studies that ship with Closeknit, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def read_multitask(source: str, changes: Sequence[str] = ()) -> MultiTaskConfig:
    """A run from a TOML file or a recipe's name, with `table.setting=value` changes on top; `tasks.NAME.setting` too."""
    known = recipes()
    if source in known:
        path = known[source]
    elif Path(source).is_dir():
        raise ConfigError(f"{source} is a folder; name a study file in TOML, or a recipe: {', '.join(known)}")
    elif Path(source).suffix == ".toml" or Path(source).exists():
        path = Path(source)
    else:
        raise ConfigError(f"{source} is neither a file nor a recipe{did_you_mean(source, known)}")
    try:
        return MultiTaskConfig.from_dict(_placed(_changed(read_toml(path), changes), path.parent))
    except ConfigError as error:
        raise ConfigError(str(error) if str(path) in str(error) else f"{source}: {error}") from None


def _placed(tables: dict[str, Any], beside: Path) -> dict[str, Any]:
    """Files and folders, from here or from beside the study file, by their whole paths: a saved model finds them again."""

    def place(source: Any) -> Any:
        if isinstance(source, dict):
            return {part: place(files) for part, files in source.items()}
        if isinstance(source, list):
            return [place(file) for file in source]
        if isinstance(source, str) and source:
            plain = not Path(source).suffix and "/" not in source  # may be a name of the catalogue
            for path in (Path(source), beside / source):
                if holds_data(path) if plain else path.exists():
                    return str(path.resolve())
        return source

    for task in tables.get("tasks", {}).values() if isinstance(tables.get("tasks"), dict) else ():
        if isinstance(task, dict) and "data" in task:
            task["data"] = place(task["data"])
    pretrain = tables.get("pretrain")
    if isinstance(pretrain, dict) and "data" in pretrain:
        pretrain["data"] = place(pretrain["data"])
    return tables


def _changed(tables: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Changes of tasks go into their tables, the others where `read_tables` puts them."""
    tasks = tables.get("tasks", {})
    plain: list[str] = []
    for change in changes:
        parts = [part.strip() for part in change.partition("=")[0].split(".")]
        if parts[:2] == ["schedule", "weights"] and len(parts) == 3:
            schedule = tables["schedule"] = _table(tables, "schedule", "schedule")
            weights = _table(schedule, "weights", "schedule.weights")
            schedule["weights"] = read_tables({"weights": weights}, [change.partition(".")[2]])["weights"]
            continue
        if parts[0] != "tasks":
            plain.append(change)
            continue
        if len(parts) != 3 or not isinstance(tasks, dict):
            raise ConfigError(f"cannot read --set {change}; write it as tasks.NAME.setting=value")
        name = parts[1]
        if name not in tasks:
            raise ConfigError(f"--set {change}: there is no task {name}{did_you_mean(name, tasks)}")
        own = _table(tasks, name, f"tasks.{name}")
        tasks[name] = read_tables({name: own}, [change.partition(".")[2]])[name]
    return read_tables(tables, plain)


def _table(tables: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    """A copy of the table that is there, or an empty one."""
    found = tables.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is not a table; write [{name}] and its settings below")
    return dict(found)
