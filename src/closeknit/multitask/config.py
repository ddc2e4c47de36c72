"""MultiTaskConfig: everything that decides the outcome of training several tasks, but for the
data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from closeknit.data.tables import Columns, holds_data
from closeknit.embeddings.config import METHODS
from closeknit.encoders.config import EncoderConfig
from closeknit.errors import ConfigError, did_you_mean
from closeknit.multitask.heads import HEADS
from closeknit.objectives.config import ObjectiveConfig
from closeknit.settings import (
    Changes,
    Configuration,
    SettingsTable,
    given_options,
    parse_changes,
    read_toml,
    set_value,
    setting,
    settings_of,
)
from closeknit.training.config import TrainConfig
from closeknit.training.schedules import ScheduleConfig

KINDS = ("classify", "pair_classify", "pair_score")
METRICS = {
    "classify": ("accuracy", "weighted_f1", "macro_f1", "mcc", "auc"),
    "pair_classify": ("accuracy", "weighted_f1", "macro_f1", "mcc", "auc"),
    "pair_score": ("pearson", "spearman"),
}
RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class TaskConfig(SettingsTable, table="task"):
    """One task: its data, what is asked of a text or a pair, and the head that answers."""

    data: Any = setting(
        "",
        help="A file, a folder of parts, a catalogue name, or a table of parts like "
        '`{ train = ["a.csv", "b.csv"], validation = "c.csv" }`.',
    )
    kind: str = setting(
        "classify",
        choices=KINDS,
        help="`classify`: the class of a single text. `pair_classify`: the class of a pair. "
        "`pair_score`: the score of a pair, answered in the range of the training rows.",
    )
    head: str = setting(
        "",
        default_text="by kind",
        choices=("", *HEADS),
        help="Head of the task: `linear` for texts; `linear`, `paired` or `dense_paired` (the default) "
        "for pairs.",
    )
    activation: bool = setting(True, help="Whether `paired` and `dense_paired` have a tanh inside.")
    weight: float = setting(1.0, above=0, help="Weight of the task's loss.")
    metric: str = setting(
        "",
        default_text="by kind",
        choices=("", *dict.fromkeys(name for names in METRICS.values() for name in names)),
        help="Metric of the task: `accuracy` (the default), `weighted_f1`, `macro_f1`, `mcc` or, for "
        "two classes, `auc` for classes; `pearson` (the default) or `spearman` for scores.",
    )
    rows: int = setting(
        0, at_least=0, help="Train on this many rows, drawn at random. 0 is all rows."
    )
    leaks: str = setting(
        "drop",
        choices=("drop", "keep"),
        help="What happens to training rows whose words are also a row of the validation or test part, "
        "given or held out, of this task or another, whatever the case, the punctuation and the order "
        "of the pair: `drop` leaves them out, and the command says how many.",
    )
    objective: str = setting(
        "cross_entropy",
        help="Objective of a `classify` task: any that trains a head (not `clld`, which learns from "
        "the confusions of single-task training).",
    )
    options: dict[str, Any] = setting(default_factory=dict, help="Options of the objective.")
    text: str | None = setting(None, default_text="the usual", help="Column that holds the text.")
    text2: str | None = setting(
        None, default_text="the usual", help="Column that holds the second text of a pair."
    )
    label: str | None = setting(None, default_text="the usual", help="Column that holds the class.")
    score: str | None = setting(None, default_text="the usual", help="Column that holds the score.")
    empty: str = setting(
        "error",
        choices=("error", "drop"),
        help="What happens to rows with a blank text or without a score: `error` refuses them, `drop` "
        "leaves them out.",
    )

    def check_relations(self) -> None:
        """Refuse a head, a metric or an objective that the kind of task does not have."""
        heads = ("linear",) if self.kind == "classify" else HEADS
        for name, value, known in (
            ("head", self.head, heads),
            ("metric", self.metric, METRICS[self.kind]),
        ):
            if value and value not in known:
                raise ConfigError(f"{name} is {value} for {self.kind}{did_you_mean(value, known)}")
        if self.kind != "classify" and (self.objective != "cross_entropy" or self.options):
            raise ConfigError(
                f"objective and options are for tasks that classify single texts, not for {self.kind}"
            )
        try:
            ObjectiveConfig(self.objective, self.options)  # refuses unknown names and options
        except ConfigError as error:
            raise ConfigError(str(error).replace("objective.", "options.")) from None

    @property
    def columns(self) -> Columns:
        """The columns to read."""
        return Columns(self.text, self.text2, self.label, self.empty, self.score)

    @property
    def target(self) -> str:
        """The column that holds what is to be learnt."""
        return "score" if self.kind == "pair_score" else "label"

    @property
    def measure(self) -> str:
        """The metric with its default resolved."""
        return self.metric or METRICS[self.kind][0]

    @property
    def shape(self) -> str:
        """The head with its default resolved."""
        return self.head or ("linear" if self.kind == "classify" else "dense_paired")


@dataclass(frozen=True)
class SharedConfig(SettingsTable, table="shared"):
    """What stands between the encoder and all heads."""

    layer: bool = setting(
        True, help="Whether a linear layer with tanh stands between the encoder and every head."
    )
    dropout: float = setting(0.1, at_least=0, below=1, help="Dropout rate on the pooled vector.")
    layer_dropout: float = setting(
        0.0, at_least=0, below=1, help="Dropout rate after the shared layer."
    )


@dataclass(frozen=True)
class PretrainConfig(SettingsTable, table="pretrain"):
    """A stage before the tasks that teaches the encoder sentences; None is the method's default."""

    data: str = setting(
        "", help="Texts, pairs or triplets to learn from. Without them there is no such stage."
    )
    method: str = setting("simcse", choices=METHODS, help="Method that learns the sentences.")
    epochs: int | None = setting(
        None, at_least=1, default_text="by method", help="Passes over the rows of this stage."
    )
    batch_size: int | None = setting(
        None, at_least=1, default_text="by method", help="Rows per update of this stage."
    )
    lr: float | None = setting(
        None, above=0, default_text="by method", help="Learning rate of this stage."
    )
    temperature: float | None = setting(
        None, above=0, default_text="by method", help="Temperature of the method's loss."
    )
    rows: int = setting(
        0, at_least=0, help="Learn from this many rows, drawn at random. 0 is all rows."
    )
    positives: str = setting(
        "", help="For pairs with a label: the label of the pairs that belong together."
    )
    negatives: str = setting(
        "", help="The label of pairs whose second text is a hard negative of the same first text."
    )

    def check_relations(self) -> None:
        """Refuse settings of a stage without data, and labels that contradict each other."""
        if self.negatives and not self.positives:
            raise ConfigError("pretrain.negatives needs pretrain.positives: what belongs together")
        if self.negatives and self.negatives == self.positives:
            raise ConfigError(
                f"pretrain.positives and pretrain.negatives are both {self.positives}; a label is one or the other"
            )
        changed = self.changed_from_defaults()
        if changed and not self.data:
            raise ConfigError(
                f"pretrain.{next(iter(changed))} is set, but pretrain.data is not: what to learn from"
            )

    def tables(self) -> dict[str, dict[str, Any]]:
        """The settings as the tables of a run that learns an embedding."""
        train = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr}
        method = {"name": self.method, "temperature": self.temperature}
        return {"method": dict(given_options(method)), "train": dict(given_options(train))}


@dataclass(frozen=True)
class TrialConfig(SettingsTable, table="trial"):
    """A small version of a run, to see that it works."""

    scale: float = setting(
        1.0, above=0, at_most=1, help="Share of the rows of every part that the trial takes."
    )


@dataclass(frozen=True)
class MultiTaskConfig(Configuration):
    """Everything that decides the outcome of a multi-task run, but for the data themselves."""

    tasks: dict[str, TaskConfig]
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    shared: SharedConfig = field(default_factory=SharedConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=5, validation=0.1))
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    trial: TrialConfig = field(default_factory=TrialConfig)

    def check_relations(self) -> None:
        """Refuse names that tasks cannot have, and tables that contradict each other."""
        if not self.tasks:
            raise ConfigError(
                "there is no task; describe at least one as [tasks.NAME] with data and kind"
            )
        for name in self.tasks:
            _check_task_name(name)
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

    def only(self, task: str) -> MultiTaskConfig:
        """The same run with one of its tasks alone."""
        schedule = ScheduleConfig(name="together")
        return dataclasses.replace(self, tasks={task: self.tasks[task]}, schedule=schedule)

    def scaled(self, scale: float) -> MultiTaskConfig:
        """A trial of the run: this share of the epochs, at least one, and of the rows of every
        part.
        """
        settings_of(TrialConfig)["scale"].check(scale, "--scale")
        trial = TrialConfig(scale * self.trial.scale)

        def fewer(epochs: int) -> int:
            return max(1, round(epochs * scale))

        train = dataclasses.replace(self.train, epochs=fewer(self.train.epochs))
        pretrain = self.pretrain
        if pretrain.epochs is not None:
            pretrain = dataclasses.replace(pretrain, epochs=fewer(pretrain.epochs))
        return dataclasses.replace(self, train=train, pretrain=pretrain, trial=trial)


def _check_task_name(name: Any) -> None:
    """Refuse names that cannot stand in a file, in a table of scores or for a module of the
    heads.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ConfigError(f"a task cannot be called {name}; use letters of a to z, digits, - and _")
    if name in ("average", "loss", "epoch", "parts") or hasattr(nn.ModuleDict(), name):
        raise ConfigError(f"a task cannot be called {name}; choose another name")


def recipes() -> dict[str, Path]:
    """The studies that ship with Closeknit, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def read_multitask(
    source: str, changes: Sequence[str] = (), *, options: Mapping[str, Any] | None = None
) -> MultiTaskConfig:
    """A run from a TOML file or from the recipe of this name.

    Over the file go the `options` of a command (by `table.setting` or `tasks.NAME.setting`; None is
    not given), and over these the changes of `--set`, written as `table.setting=value`.
    """
    path = _study_file(source)
    try:
        tables = read_toml(path)
        _change(tables, [*given_options(options or {}), *parse_changes(changes)])
        return MultiTaskConfig.from_dict(_placed(tables, path.parent))
    except ConfigError as error:
        raise ConfigError(str(error) if str(path) in str(error) else f"{source}: {error}") from None


def _study_file(source: str) -> Path:
    """The file that a study is read from: a recipe of this name, or the file itself."""
    known = recipes()
    if source in known:
        return known[source]
    if Path(source).is_dir():
        raise ConfigError(
            f"{source} is a folder; name a study file in TOML, or a recipe: {', '.join(known)}"
        )
    if Path(source).suffix == ".toml" or Path(source).exists():
        return Path(source)
    raise ConfigError(f"{source} is neither a file nor a recipe{did_you_mean(source, known)}")


def _placed(tables: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The tables with absolute paths, so that a saved model finds its data again.

    Files and folders are looked for in the current folder, then beside the study file.
    """

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

    tasks = tables.get("tasks")
    stages = list(tasks.values()) if isinstance(tasks, dict) else []
    for stage in [*stages, tables.get("pretrain")]:
        if isinstance(stage, dict) and "data" in stage:
            stage["data"] = place(stage["data"])
    return tables


def _change(tables: dict[str, Any], changes: Changes) -> None:
    """Change the tables; tasks and the weights of tasks have names of three parts."""
    for name, value in changes:
        path = name.split(".")
        if path[0] == "tasks":
            _check_task_path(path, tables.get("tasks", {}))
        elif path[:2] != ["schedule", "weights"]:
            path = name.split(".", 1)
        set_value(tables, path, value)


def _check_task_path(path: list[str], tasks: Any) -> None:
    """Refuse a change of a task that does not exist or that names no setting."""
    name = ".".join(path)
    if len(path) != 3 or not isinstance(tasks, dict):
        raise ConfigError(f"cannot set {name}; write it as tasks.NAME.setting=value")
    if path[1] not in tasks:
        raise ConfigError(
            f"cannot set {name}: there is no task {path[1]}{did_you_mean(path[1], tasks)}"
        )
