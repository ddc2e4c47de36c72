"""TrainConfig: the options of the training loop, and the rule that settles those left open."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from closeknit.errors import ConfigError
from closeknit.settings import SettingsTable, setting

SCHEDULES = ("linear", "cosine", "constant")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
METRICS = ("weighted_f1", "accuracy", "macro_f1", "mcc", "auc")

# Epochs left open: this many for 1,000 rows of a few classes, more for fewer rows.
EPOCHS_OF_1000 = 6
# More classes than these need more epochs: by the root of their number, up to half as many again.
FEW_CLASSES = 8
# lr_scale left open: this for 1,000 rows and more, falling with the root of the number of rows.
LR_SCALE_OF_1000 = 1.5
# It falls to this for two classes; the limit rises to 1 with the root of the number of classes.
LR_SCALE_OF_TWO = 0.5


# Settings that are open where they are 0; they depend on the number of rows and classes.
OPEN_SETTINGS = ("epochs", "batch_size", "lr_scale")


@dataclass(frozen=True)
class TrainConfig(SettingsTable, table="train"):
    """The options of the training loop. Learning rates left at None follow `lr`.

    A mini-batch of `batch_size` rows is one update, whatever the number of processes that share it
    and the number of parts (`accumulate`) that it is computed in.
    """

    epochs: int = setting(
        10,
        at_least=0,
        help="Passes over the training rows. 0, the default of `auto`, follows the number of rows: "
        "6 for 1,000 rows, 15 for 100, 30 for 16, and 3 for 6,000 and more; with more than 8 classes "
        "up to half as many again.",
    )
    batch_size: int = setting(
        64,
        at_least=0,
        help="Rows per update, whatever the number of processes. 0, the default of `auto`, is 16 for "
        "fewer than 256 rows and 32 otherwise.",
    )
    lr: float | None = setting(
        None,
        above=0,
        help="Learning rate of the encoder. None is 5e-5 for an encoder of 768 dimensions, inversely "
        "proportional to the dimensions for others (1e-4 for 384), 20 times as much with "
        "`encoder.lora_rank`, and 1e-3 for TextCNN.",
    )
    lr_scale: float = setting(
        1.0,
        at_least=0,
        help="Factor on the learning rate where `lr` is none. 0, the default of `auto`, is 1.5 for "
        "1,000 rows and more; for fewer rows it falls with the root of their number, to 0.5 with two "
        "classes and to 1 with eight.",
    )
    head_lr: float | None = setting(
        None,
        above=0,
        help="Learning rate of the classification head. None is ten times `lr` (for TextCNN: `lr`). "
        "With `encoder.lora_rank` and no `lr` it is ten times the rate of full fine-tuning.",
    )
    objective_lr: float | None = setting(
        None,
        above=0,
        help="Learning rate of the parameters of the objective, like SoftTriple's centers. "
        "None is `head_lr`.",
    )
    weight_decay: float = setting(
        0.01,
        at_least=0,
        help="Weight decay of AdamW. Biases, normalisation weights and centers do not decay.",
    )
    warmup: float = setting(
        0.06, at_least=0, below=1, help="Share of the updates in which the learning rates rise."
    )
    schedule: str = setting(
        "linear",
        choices=SCHEDULES,
        help="Learning-rate schedule: how the learning rates fall after the warm-up.",
    )
    clip: float = setting(
        1.0, above=0, help="Largest norm of the gradient; a longer one is clipped."
    )
    accumulate: int = setting(
        1,
        at_least=1,
        help="Parts of a mini-batch that are computed one after the other: the same update in less "
        "memory. An objective that compares rows with each other compares those of a part only; "
        "`chunk_size` saves memory without this difference.",
    )
    chunk_size: int = setting(
        0,
        at_least=0,
        help="Texts that are encoded at once (gradient caching). The objective still sees the whole "
        "mini-batch, so that the gradients are the same in less memory. 0 is all texts.",
    )
    precision: str = setting(
        "auto",
        choices=PRECISIONS,
        help="Number format of the computation. `auto` is bf16 on a GPU that has it, otherwise fp32.",
    )
    seed: int = setting(2, at_least=0, help="Seed of every random number of the run.")
    validation: float = setting(
        0.0,
        at_least=0,
        below=1,
        help="Share of the training rows that is held out when the data has no validation part. Rows "
        "with the same text are never divided between the two.",
    )
    evaluate_every: int = setting(
        0,
        at_least=0,
        help="Updates between evaluations on the validation part; the last update is always followed "
        "by one. 0 is one evaluation per epoch.",
    )
    patience: int | None = setting(
        None,
        at_least=0,
        help="Evaluations without gain after which the run stops early. 0 is never. None is 10 epochs "
        "for `clld`, however often a run is evaluated, and 0 for the other objectives.",
    )
    class_names: int = setting(
        0,
        at_least=0,
        help="How often per epoch the name of each class is shown as a text of that class, "
        '`Refund_not_showing_up` as "refund not showing up". The default of `auto` is 3. Names that '
        "say nothing (`0`, `LABEL_1`) are left out, and pairs of texts have no class names as texts.",
    )
    positives: int | None = setting(
        None,
        at_least=0,
        help="Rows of a class that meet in a mini-batch. 0 makes mini-batches by text length alone. "
        "None is 2 for objectives that compare rows with each other.",
    )
    metric: str = setting(
        "weighted_f1",
        choices=METRICS,
        help="Metric that chooses the best epoch. `mcc` is Matthews' correlation; `auc`, the area "
        "under the ROC curve, is for two classes.",
    )
    deterministic: bool = setting(
        True, help="Whether the same seed gives the same bits on a GPU too."
    )
    graphs: bool = setting(True, help="Whether whole updates are captured as CUDA graphs on a GPU.")
    checkpoint_seconds: float = setting(
        60.0,
        at_least=0,
        finite=False,
        changes_result=False,
        help="Seconds between saved states of the run. 0 saves after every update.",
    )

    def check_relations(self) -> None:
        """Refuse settings that contradict the batch size."""
        if self.positives == 1 or 0 < self.batch_size < (self.positives or 0):
            raise ConfigError(
                f"train.positives is {self.positives}; it must be 0, or from 2 to the batch size"
            )
        if self.accumulate > self.batch_size > 0:
            raise ConfigError(
                f"train.accumulate is {self.accumulate}, more than the {self.batch_size} rows of a batch"
            )

    @property
    def open_settings(self) -> list[str]:
        """The settings that are open, to be resolved by `settled`."""
        return [name for name in OPEN_SETTINGS if not getattr(self, name)]

    def settled(self, rows: int, classes: int) -> TrainConfig:
        """The same with open settings resolved for this number of rows and classes.

        Open are those of `OPEN_SETTINGS` that are 0.
        """
        epochs = self.epochs
        if not epochs:
            more_classes = min(1.5, max(1.0, (classes / FEW_CLASSES) ** 0.5))
            epochs = int(min(30.0, max(3.0, EPOCHS_OF_1000 * (1000 / rows) ** 0.4 * more_classes)))
        batch_size = self.batch_size or (16 if rows < 256 else 32)
        least = min(1.0, LR_SCALE_OF_TWO * (classes / 2) ** 0.5)
        scale = self.lr_scale
        if not scale:
            scale = round(max(least, LR_SCALE_OF_1000 * min(1.0, rows / 1000) ** 0.5), 2)
        return dataclasses.replace(self, epochs=epochs, batch_size=batch_size, lr_scale=scale)

    def require_settled(self) -> None:
        """Refuse open settings where no rule resolves them, and settings of classifiers of one
        task.
        """
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"train.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.lr_scale > 0:
            raise ConfigError(f"train.lr_scale is {self.lr_scale}; it must be above 0")
        for name in ("class_names", "positives", "metric"):
            if getattr(self, name) and getattr(self, name) != getattr(TrainConfig, name):
                raise ConfigError(f"train.{name} is for one task with classes; leave it out here")
