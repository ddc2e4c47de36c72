"""TrainConfig: the options of the loop, checked where they are made, and the rule that settles those left open."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from .errors import ConfigError, did_you_mean

SCHEDULES = ("linear", "cosine", "constant")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
METRICS = ("weighted_f1", "accuracy", "macro_f1")

EPOCHS_OF_1000 = 6  # rows of a few classes, where epochs are left open; fewer rows have more
FEW_CLASSES = 8  # more need more epochs, with the root of their number, half as many again at the most
LR_SCALE_OF_1000 = 1.5  # rows and more, where it is left open; falls with the root of their number
LR_SCALE_OF_TWO = 0.5  # classes: what it falls to; rises with the root of their number to 1


@dataclass(frozen=True)
class TrainConfig:
    """The loop's own options. Learning rates left at None follow `lr`.

    A batch of `batch_size` rows is one update, whatever the number of processes that share it and
    of `accumulate` parts it is worked through in.
    """

    epochs: int = 10  # passes over the rows; 0: by the number of rows and classes, 3 to 30
    batch_size: int = 64  # rows of an update; 0: by the number of rows, 16 or 32
    lr: float | None = None  # encoder; None: 5e-5 at 768 dimensions, more for narrower ones; TextCNN 1e-3
    lr_scale: float = 1.0  # times the rate where lr is None; 0: by the number of rows and classes, 0.5 to 1.5
    head_lr: float | None = None  # heads; None: 10 times lr, TextCNN: lr
    objective_lr: float | None = None  # what an objective owns; None: as head_lr
    weight_decay: float = 0.01
    warmup: float = 0.06  # share of the steps in which the rate rises
    schedule: str = "linear"
    clip: float = 1.0
    accumulate: int = 1
    chunk_size: int = 0  # rows encoded at once, with the gradients of the whole batch; 0: all of them
    precision: str = "auto"  # bf16 on a GPU that has it, else fp32
    seed: int = 2
    validation: float = 0.0  # share of the training rows held out when there is no validation part
    evaluate_every: int = 0  # steps between evaluations on the validation part; 0: an epoch
    patience: int | None = (
        None  # stop after so many evaluations without gain; 0: never; None: as the objective says
    )
    class_names: int = 0  # times an epoch shows the name of each class as one of its texts
    positives: int | None = (
        None  # rows of a class that meet in a batch; None: 2 where the objective needs them
    )
    metric: str = "weighted_f1"  # what the best state is chosen by
    deterministic: bool = True  # the same bits for the same seed on a GPU too
    graphs: bool = True  # whole updates as CUDA graphs on a GPU
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ConfigError(f"train.accumulate is {self.accumulate}; it must be at least 1")
        for name in ("lr", "head_lr", "objective_lr", "clip"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"train.{name} is {value}; it must be a finite number above 0")
        for name in (
            "epochs",
            "batch_size",
            "weight_decay",
            "patience",
            "positives",
            "evaluate_every",
            "seed",
            "checkpoint_seconds",
            "chunk_size",
            "class_names",
        ):
            if not (getattr(self, name) or 0) >= 0:  # nor NaN
                raise ConfigError(f"train.{name} is {getattr(self, name)}; it must not be negative")
        if not (self.lr_scale >= 0 and math.isfinite(self.lr_scale)):
            raise ConfigError(f"train.lr_scale is {self.lr_scale}; it must be 0 or above it")
        for name in ("warmup", "validation"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"train.{name} is {getattr(self, name)}; it must be from 0 to below 1")
        for name, known in (
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
            ("metric", METRICS),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"train.{name} is {getattr(self, name)}{did_you_mean(str(getattr(self, name)), known)}"
                )
        if self.positives == 1 or 0 < self.batch_size < (self.positives or 0):
            raise ConfigError(
                f"train.positives is {self.positives}; it must be 0, or from 2 to the batch size"
            )
        if self.accumulate > self.batch_size > 0:
            raise ConfigError(
                f"train.accumulate is {self.accumulate}, more than the {self.batch_size} rows of a batch"
            )

    def settled(self, rows: int, classes: int) -> TrainConfig:
        """With epochs, batch size and scale of the rate for so many rows and classes, where they were left open."""
        epochs = self.epochs
        if not epochs:
            many = min(1.5, max(1.0, (classes / FEW_CLASSES) ** 0.5))
            epochs = int(min(30.0, max(3.0, EPOCHS_OF_1000 * (1000 / rows) ** 0.4 * many)))
        batch_size = self.batch_size or (16 if rows < 256 else 32)
        least = min(1.0, LR_SCALE_OF_TWO * (classes / 2) ** 0.5)
        scale = self.lr_scale or round(max(least, LR_SCALE_OF_1000 * min(1.0, rows / 1000) ** 0.5), 2)
        return dataclasses.replace(self, epochs=epochs, batch_size=batch_size, lr_scale=scale)

    def require_settled(self) -> None:
        """Refuse what was left open, where no rule says what it should be, and what only a classifier of one task has."""
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.lr_scale > 0:
            raise ConfigError(f"train.lr_scale is {self.lr_scale}; it must be above 0")
        for name in ("class_names", "positives", "metric"):
            if getattr(self, name) and getattr(self, name) != getattr(TrainConfig, name):
                raise ConfigError(f"train.{name} is for one task with classes; leave it out here")
