"""Fit: one classifier from labelled examples: builds the task, drains the loop, keeps the best
state.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.classification.config import RunConfig
from closeknit.classification.model import Model
from closeknit.console import say
from closeknit.data.class_names import descriptive_class_names
from closeknit.data.distinct_texts import note_of_repeated_rows, split_for_run
from closeknit.data.examples import Examples, label_numbers
from closeknit.data.splits import check_classes, check_metric
from closeknit.encoders.augmentation import dropout_for_views, dropout_note
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import NearestCentroid, NearestRows, build_heads
from closeknit.encoders.inference import outputs
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.encoders.tokens import Tokens, truncation_note
from closeknit.errors import ConfigError
from closeknit.metrics import classification_scores, confusion
from closeknit.models.fit import Fit, Stage
from closeknit.models.memory import Lane, Stock
from closeknit.objectives import build_objective
from closeknit.objectives.copies import TextFunction
from closeknit.objectives.joint import Joint
from closeknit.training import randomness
from closeknit.training.batches import (
    ChangedTexts,
    DeviceBatches,
    Plan,
    batches_per_epoch,
    labels_of,
    rows_that_meet,
    with_second_copies,
)
from closeknit.training.config import TrainConfig
from closeknit.training.loop import Training, train
from closeknit.training.processes import World, of_first, this_world
from closeknit.training.randomness import seeded
from closeknit.training.session import Loop, Record
from closeknit.training.task import Task


class ClassifierFit(Fit[Model]):
    """One training of a text classifier: iterate over it to train, then take `model`.

    With a `folder`, checkpoints are written there, and `resume=True` continues from the newest one,
    to the same weights as a run that was never interrupted. With a validation part (given, or a
    share of the rows by `train.validation`) every epoch ends with an evaluation, and the best state
    is kept.

    `split_rows` is for resuming a run that was begun when rows with the same text could be divided
    between training and validation.

    `stock` holds what many runs on the same texts share; `lane` lets runs follow each other in the
    same memory. `second_view` is the function of `objective.second_view = "function"`.
    """

    def __init__(
        self,
        examples: Examples,
        config: RunConfig,
        *,
        validation: Examples | None = None,
        labels: Sequence[str] | None = None,
        folder: Path | None = None,
        resume: bool = False,
        world: World | None = None,
        stock: Stock | None = None,
        lane: Lane | None = None,
        second_view: TextFunction | None = None,
        split_rows: bool = False,
        log: Callable[[str], None] = say,
    ) -> None:
        self.log = log
        self.world = world or this_world()
        check_classes(examples)
        self._note_repeated_rows(examples, validation)
        examples, validation = _hold_out(examples, validation, config.train, lane, split_rows)
        names = list(labels) if labels is not None else examples.classes
        if validation is not None:
            check_metric(config.train.metric, names, validation)
        options = config.train.settled(len(examples), len(names))
        self.config = config = dataclasses.replace(config, train=options)
        self.rows = len(examples)
        examples = self._with_class_names(examples, names, lane)
        if config.encoder.name == "textcnn":
            stock = lane = None  # TextCNN knows the words of its training rows only
        main_log = self.log if self.world.main else None
        self.model, self.objective = new_model(examples, names, config, self.world, stock, main_log)
        self.config = config = self.model.config
        self.objective.set_text_function(second_view)
        self.examples = examples
        if stock is not None and lane is None:
            self.model.encoder = copy.deepcopy(self.model.encoder)
        self.tokens = self.model.tokens(examples)
        self._note_truncation()
        self.y = label_numbers(examples, names)
        self.per_epoch = batches_per_epoch(len(self.y), options.batch_size)
        training = self._training(lane)
        self.validation: tuple[Tokens, npt.NDArray[np.int64]] | None = None
        if validation is not None:
            self.validation = self.model.tokens(validation), label_numbers(validation, names)
        self.confusion: Tensor | None = None  # of the last evaluation
        self.stages = [Stage(self._session(training, folder, resume), after=self._finish)]
        self._warn_of_idle_adaptation()

    def _note_repeated_rows(self, examples: Examples, validation: Examples | None) -> None:
        """Say how many rows of a given validation part are training rows too."""
        if validation is None or not self.world.main:
            return
        note = note_of_repeated_rows(examples, validation, "validation")
        if note is not None:
            self.log(note)

    def _note_truncation(self) -> None:
        """Record and say which share of the training texts is longer than `max_length`."""
        share = self.tokens.truncated_share(self.rows)
        self.model.metrics["truncated"] = round(share, 4)
        if share and self.world.main:
            self.log(truncation_note(share, self.config.encoder.max_length))

    def _with_class_names(
        self, examples: Examples, names: Sequence[str], lane: Lane | None
    ) -> Examples:
        """The examples and, with `train.class_names`, the names of the classes as further texts."""
        times = self.config.train.class_names
        self.names: list[str] = []  # the classes whose names are learnt as texts
        if not times or examples.pairs is not None:
            return examples
        present = set(examples.classes)
        self.names = [name for name in descriptive_class_names(names) if name in present]
        if lane is not None:
            lane.add_names(self.names * times)
        return examples.with_class_names(self.names * times)

    def _training(self, lane: Lane | None) -> Training:
        if lane is not None:
            return self._training_in(lane)
        targets = labels_of(self.y, self.world.device, self.objective.copies)
        return self._new_training(self._batches(targets))

    def _session(self, training: Training, folder: Path | None, resume: bool) -> Loop:
        options = self.config.train
        every = options.evaluate_every if self.validation is not None else 0
        every = every or self.per_epoch
        patience = options.patience
        if patience is None:  # the papers count epochs, whatever the number of evaluations in one
            patience = self.objective.patience * max(1, round(self.per_epoch / every))
        return Loop(
            training,
            every=every,
            evaluate=self._evaluate if self.validation is not None else None,
            metric=options.metric,
            patience=patience,
            observe=self._observe,
            folder=folder,
            resume=resume,
            world=self.world,
        )

    def _batches(
        self, targets: Callable[[Tensor], Tensor], **shared: Any
    ) -> DeviceBatches | ChangedTexts:
        starts = [0] * self.objective.copies
        batches = DeviceBatches(
            self.tokens, targets, self._plan(), self.per_epoch, self.world, starts=starts, **shared
        )
        return with_second_copies(
            batches,
            self.objective.second_copies,
            self.examples,
            self.tokens,
            self.model.tokeniser,
            self.config.train.seed,
        )

    def _new_training(self, batch: DeviceBatches | ChangedTexts) -> Training:
        task = Task("classify", batch, self.per_epoch, self.objective, self.model.heads)
        return train(self.model.encoder, [task], self.config.train, world=self.world, log=self.log)

    def _training_in(self, lane: Lane) -> Training:
        """A training in the memory of the run before, if that was of the same kind; the model is
        then that memory.
        """
        shelf, labels = lane.stock.on_device(
            self.config.encoder, self.model.labels, self.world.device
        )
        targets = labels_of(labels, self.world.device, self.objective.copies)
        batch = self._batches(targets, shelf=shelf, rows=lane.rows)
        learners = nn.ModuleDict({"encoder": self.model.encoder})
        learners["classify_heads"] = self.model.heads
        learners["classify_objective"] = self.objective
        kind = _kind(self.config, self.model.labels, learners)
        known = lane.trainings.get(kind)
        if known is not None:
            training = known
            training.restart(learners, batch, self.per_epoch, self.config.train)
            self.model.encoder = training.encoder
            self.model.heads = training.tasks[0].heads
            self.objective = training.tasks[0].objective
        else:
            lane.make_room(self.world.device)
            self.model.encoder = copy.deepcopy(self.model.encoder)
            training = lane.trainings[kind] = self._new_training(batch)
        return training

    def _plan(self) -> Plan:
        """Which rows meet: of similar length, and of the same class where the objective compares
        rows.
        """
        options = self.config.train
        k = self.objective.rows_of_a_class if options.positives is None else options.positives
        log = self.log if self.world.main else None
        return rows_that_meet(self.y, self.tokens.lengths, options.batch_size, options.seed, k, log)

    def _warn_of_idle_adaptation(self) -> None:
        adaptation = self.objective.adaptation
        if adaptation is None or not self.world.main:
            return
        if self.validation is None:
            self.log(
                "the label distance stays as it is: learning it needs a validation part (train.validation=0.1)"
            )
            return
        evaluations = -(-self.steps // self.session.every)
        progress = [
            min(1.0, n * self.session.every / self.steps) for n in range(1, evaluations + 1)
        ]
        if not any(adaptation.due(n, share) for n, share in enumerate(progress, 1)):
            self.log(
                f"the label distance will not be updated: {evaluations} evaluations, an update every "
                f"{adaptation.every}; lower objective.update_every or train.evaluate_every"
            )

    def _evaluate(self) -> dict[str, float]:
        """Scores on the validation part."""
        assert self.validation is not None
        tokens, expected = self.validation
        self._learn_neighbours()
        logits, _ = outputs(self.model.encoder, self.model.heads, tokens)
        predicted = logits.argmax(axis=1)
        scores = classification_scores(expected, predicted, self.model.labels, logits)
        scores.pop("per_class")
        confused = torch.from_numpy(confusion(expected, predicted, len(self.model.labels)))
        self.confusion = of_first({"confusion": confused}, self.world)["confusion"]
        return scores

    def _observe(self, evaluation: int, progress: float) -> Record:
        """Let the objective learn from what was confused; the record of what it has learned."""
        adaptation = self.objective.adaptation
        if self.confusion is None or adaptation is None:
            return {}
        if not self.objective.observe(self.confusion, evaluation, progress):
            return {}
        return {"label_distance": adaptation.objective.learned()}

    def _learn_neighbours(self) -> None:
        """Where no term trains the logits, let the training rows themselves say which class is
        near.
        """
        head = self.model.heads["logits"]
        if isinstance(head, NearestCentroid | NearestRows):
            pooled = torch.from_numpy(outputs(self.model.encoder, None, self.tokens)[1])
            head.learn(pooled.to(self.world.device), torch.from_numpy(self.y).to(self.world.device))

    def _finish(self) -> None:
        self._learn_neighbours()
        served = {"weighting"}  # the training only
        self.model.heads = nn.ModuleDict(
            {k: v for k, v in self.model.heads.items() if k not in served}
        )
        self.model.objective = {
            key: value.detach().cpu() for key, value in self.objective.state_dict().items()
        }
        self.model.metrics["history"] = self.session.history
        if self.session.best is not None:
            best = max(self.session.history, key=lambda record: record[self.config.train.metric])
            self.model.metrics["validation"] = {
                name: value
                for name, value in best.items()
                if name not in ("loss", "label_distance")
            }
        self.training.learners.eval()


def _kind(config: RunConfig, labels: Sequence[str], learners: nn.Module) -> object:
    """Runs of one kind differ in nothing that a captured update is bound to."""
    free = {
        "seed": 0,
        "epochs": 1,
        "lr": None,
        "lr_scale": 1.0,
        "head_lr": None,
        "objective_lr": None,
    }
    train = dataclasses.replace(config.train, **free, warmup=0.0, schedule="constant")  # type: ignore[arg-type]
    shapes = [tuple(tensor.shape) for tensor in (*learners.parameters(), *learners.buffers())]
    return config.encoder, repr(config.objective), train, tuple(labels), tuple(shapes)


def _hold_out(
    examples: Examples,
    validation: Examples | None,
    options: TrainConfig,
    lane: Lane | None,
    split_rows: bool,
) -> tuple[Examples, Examples | None]:
    """The training rows and the validation rows; `train.validation` holds out a share of the
    distinct texts where none are given.
    """
    if validation is None and options.validation > 0:
        kept, held_out = split_for_run(
            examples, options.validation, options.seed, split_rows=split_rows
        )
        if lane is not None:
            lane.rows = lane.rows[kept]
        return examples.select(kept), examples.select(held_out)
    if validation is None and (options.patience or options.evaluate_every):
        raise ConfigError(
            "train.patience and train.evaluate_every need a validation part: give the data one, "
            "or set train.validation to the share of rows to hold out"
        )
    return examples, validation


def new_model(
    examples: Examples,
    labels: list[str],
    config: RunConfig,
    world: World,
    stock: Stock | None = None,
    log: Callable[[str], None] | None = None,
) -> tuple[Model, Joint]:
    """An untrained classifier for these rows, and the objective that will train it.

    Encoder, objective and heads draw from streams of their own: two objectives under one seed start
    from the same classifier. An encoder from a stock is the stock's own. Where the objective
    compares two views of a text and the encoder has no dropout, the configuration of the model has
    a rate for it, and `log` says so.
    """
    seed = config.train.seed
    counts = Counter(examples.required_labels)
    encoder, tokeniser = _load_encoder(examples, config, world, stock)
    with seeded(world, seed, randomness.OBJECTIVE):
        objective = build_objective(
            config.objective.name,
            encoder.dim,
            len(labels),
            config.objective.options,
            labels=labels,
            counts=[counts[label] for label in labels],
        )
    if objective.copies > 1:
        name = config.objective.name
        rate = dropout_for_views(
            encoder,
            config.encoder.dropout,
            name,
            second_view=objective.second_copies.second_view,
        )
        if rate is not None:
            if log is not None:
                log(dropout_note(encoder, rate, name))
            dropping = dataclasses.replace(config.encoder, dropout=rate)
            config = dataclasses.replace(config, encoder=dropping)
            encoder, tokeniser = _load_encoder(examples, config, world, stock)
    with seeded(world, seed, randomness.HEADS):
        heads = build_heads(
            encoder, len(labels), objective.views, config.encoder.classifier_dropout
        )
    if objective.classifier == "centroid":
        heads["logits"] = NearestCentroid(encoder.dim, len(labels))
    elif objective.classifier == "knn":
        heads["logits"] = NearestRows(encoder.dim, len(labels), len(examples))
    return Model(
        encoder, heads, tokeniser, labels, config, paired=examples.pairs is not None
    ), objective


def _load_encoder(
    examples: Examples, config: RunConfig, world: World, stock: Stock | None
) -> tuple[Encoder, Tokeniser]:
    if stock is not None:
        return stock.take(config.encoder, config.train.seed, world)
    with seeded(world, config.train.seed, randomness.ENCODER):
        return config.encoder.load(examples)
