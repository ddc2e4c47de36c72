"""MultiTaskConfig: everything that decides the outcome of training several tasks, but for the
data.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from closeknit.data.tables import Columns
from closeknit.embeddings.config import METHODS
from closeknit.encoders.config import EncoderConfig
from closeknit.errors import ConfigError, did_you_mean
from closeknit.multitask.heads import HEADS, OUTPUT_ACTIVATIONS, SIMILARITIES
from closeknit.multitask.paraphrases import MULTIPLE_NEGATIVES, ranking_loss
from closeknit.objectives.config import ObjectiveConfig
from closeknit.settings import (
    Configuration,
    SettingsTable,
    given_options,
    numbered,
    setting,
    settings_of,
)
from closeknit.training.config import TrainConfig
from closeknit.training.schedules import ScheduleConfig

KINDS = ("classify", "pair_classify", "pair_score")
METRICS = {
    "classify": ("accuracy", "weighted_f1", "macro_f1"),
    "pair_classify": ("accuracy", "weighted_f1", "macro_f1"),
    "pair_score": ("pearson", "spearman"),
}


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
        help="Head of the task: `linear` for texts; `linear`, `joined`, `paired` or `dense_paired` "
        "(the default) for pairs.",
    )
    activation: bool = setting(True, help="Whether `paired` and `dense_paired` have a tanh inside.")
    output_activation: str = setting(
        "none",
        since=2,
        choices=OUTPUT_ACTIVATIONS,
        help="Activation after the linear layer of the heads `linear` and `joined`. It limits what "
        "the head can answer: with `relu`, a task of two classes never answers the first of them.",
    )
    weight: float = setting(
        1.0,
        above=0,
        help="Factor on the task's gradient, and so on its pull on what the tasks share, relative to "
        "the other tasks. Where an update takes a batch of one task, its gradient is clipped before. "
        "The task's own head is hardly changed by it, because AdamW divides by the size of the "
        "gradients. `schedule.weights` gives a task more updates instead.",
    )
    metric: str = setting(
        "",
        default_text="by kind",
        choices=("", *dict.fromkeys(name for names in METRICS.values() for name in names)),
        help="Metric of the task: `accuracy` (the default), `weighted_f1` or `macro_f1` for classes; "
        "`pearson` (the default) or `spearman` for scores.",
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
        "the confusions of single-task training). Of a `pair_classify` task with two classes: "
        "`cross_entropy` or `multiple_negatives`, which compares the vectors of the two texts and "
        "has no head.",
    )
    options: dict[str, Any] = setting(
        default_factory=dict,
        help="Options of the objective. `multiple_negatives` has `similarity` (`cosine` or `dot`) and "
        "`scale` (20 for `cosine`, 1 for `dot`).",
    )
    positive: str = setting(
        "",
        since=2,
        default_text="yes, 1, true, …",
        help="For `multiple_negatives`: the label of the pairs that belong together.",
    )
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
        if self.output_activation != "none" and self.shape not in ("linear", "joined"):
            raise ConfigError(
                f"output_activation is {self.output_activation}, but it is for the heads linear and "
                f"joined, not for {self.shape}"
            )
        if self.ranks:
            self._check_ranking()
            return
        if self.positive:
            raise ConfigError(
                f"positive is {self.positive}, but it is for objective = {MULTIPLE_NEGATIVES}"
            )
        if self.kind != "classify" and (self.objective != "cross_entropy" or self.options):
            raise ConfigError(
                "objective and options are for tasks that classify single texts, not for "
                f"{self.kind}; a pair_classify task may have the objective {MULTIPLE_NEGATIVES}"
            )
        try:
            ObjectiveConfig(self.objective, self.options)  # refuses unknown names and options
        except ConfigError as error:
            raise ConfigError(str(error).replace("objective.", "options.")) from None

    def _check_ranking(self) -> None:
        """Refuse settings that multiple negatives ranking does not have."""
        if self.kind != "pair_classify":
            raise ConfigError(
                f"objective is {MULTIPLE_NEGATIVES}, which is for pair_classify, not for {self.kind}"
            )
        if self.head:
            raise ConfigError(
                f"head is {self.head}, but {MULTIPLE_NEGATIVES} has no head: it compares the vectors "
                "of the two texts; leave head out"
            )
        ranking_loss(self.options)

    @property
    def ranks(self) -> bool:
        """Whether the task is learnt by multiple negatives ranking."""
        return self.objective == MULTIPLE_NEGATIVES

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
        if self.ranks:
            return "similarity"
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
    similarity: str = setting(
        "cosine",
        since=2,
        choices=SIMILARITIES,
        help="For `multiple_negatives`: what compares two vectors, the cosine or the dot product.",
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
        if self.similarity != "cosine" and self.method != "multiple_negatives":
            raise ConfigError(
                f"pretrain.similarity is {self.similarity}, but it is for multiple_negatives, not "
                f"for {self.method}"
            )
        changed = self.changed_from_defaults()
        if changed and not self.data:
            raise ConfigError(
                f"pretrain.{next(iter(changed))} is set, but pretrain.data is not: what to learn from"
            )

    def tables(self) -> dict[str, dict[str, Any]]:
        """The settings as the tables of a run that learns an embedding."""
        train = {"epochs": self.epochs, "batch_size": self.batch_size, "lr": self.lr}
        method: dict[str, Any] = {"name": self.method, "temperature": self.temperature}
        if self.similarity != "cosine":
            method["similarity"] = self.similarity
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
    pretrain: tuple[PretrainConfig, ...] = (PretrainConfig(),)  # one stage after the other
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
        if len(self.pretrain) > 1 and len(self.stages) < len(self.pretrain):
            place = next(place for place, stage in enumerate(self.pretrain) if not stage.data)
            raise ConfigError(
                f"{numbered('pretrain', place)}.data is not given; every stage of several needs "
                "data to learn from"
            )
        if self.encoder.frozen and self.stages:
            raise ConfigError(
                "encoder.frozen and [pretrain] contradict each other: one leaves the weights as they are"
            )
        if self.encoder.name == "textcnn" and self.stages:
            raise ConfigError(
                "[pretrain] starts from a pretrained encoder; textcnn has no weights to start from"
            )

    @property
    def stages(self) -> tuple[PretrainConfig, ...]:
        """The stages before the tasks; empty where there is none."""
        return tuple(stage for stage in self.pretrain if stage.data)

    @property
    def untrained(self) -> list[str]:
        """The tasks that `schedule.order` leaves out: they are scored and not trained."""
        return self.schedule.untrained(list(self.tasks))

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
        pretrain = tuple(
            stage
            if stage.epochs is None
            else dataclasses.replace(stage, epochs=fewer(stage.epochs))
            for stage in self.pretrain
        )
        return dataclasses.replace(self, train=train, pretrain=pretrain, trial=trial)


def _check_task_name(name: Any) -> None:
    """Refuse names that cannot stand in a file, in a table of scores or for a module of the
    heads.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ConfigError(f"a task cannot be called {name}; use letters of a to z, digits, - and _")
    if name in ("average", "loss", "epoch", "parts") or hasattr(nn.ModuleDict(), name):
        raise ConfigError(f"a task cannot be called {name}; choose another name")
