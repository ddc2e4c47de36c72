"""Fit: one classifier from labelled examples: builds the task, drains the loop, keeps the best state."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from . import checkpoint
from .config import EncoderConfig, RunConfig
from .data import Examples, check_classes, split
from .encoder import Encoder, load_encoder
from .errors import ConfigError
from .evaluation import outputs
from .heads import NearestCentroid, NearestRows, build_heads
from .metrics import classification_scores, confusion
from .model import Model, label_numbers
from .objectives import Joint, build_objective
from .processes import World, seeded, this_world
from .progress import say
from .samplers import Plan, batches_per_epoch, k_per_class, length_grouped, rows_without_positive
from .tasks import Step, Task, batches_of
from .tokens import RememberingTokeniser, Tokeniser
from .training import NotFinite, train

# Tell apart the random numbers that are made of one seed for different ends.
_ENCODER, _HEADS, _OBJECTIVE = 2, 3, 4


class Fit:
    """One run: iterate over it to train, then take `model`.

    With a `folder`, the state is saved there from time to time, and `resume=True` goes on from the
    newest one, to the same weights as a run that was never interrupted. With a validation part (given,
    or a share of the rows by `train.validation`) every epoch ends with an evaluation, and the best
    state is kept.
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
        tell: Callable[[str], None] = say,
    ) -> None:
        self.config, self.folder, self.resume, self.tell = config, folder, resume, tell
        self.lock: IO[str] | None = None  # held by whoever gave the folder
        self.world = world or this_world()
        check_classes(examples)
        options = config.train
        if validation is None and options.validation > 0:
            kept, held_out = split(examples.required_labels, options.validation, options.seed)
            examples, validation = examples.select(kept), examples.select(held_out)
        if validation is None and (options.patience or options.evaluate_every):
            raise ConfigError(
                "train.patience and train.evaluate_every need a validation part: give the data one, "
                "or set train.validation to the share of rows to hold out"
            )
        names = list(labels) if labels is not None else examples.classes
        self.model, self.objective = new_model(examples, names, config, self.world, stock)
        self.tokens, self.y = self.model.tokens(examples), label_numbers(examples, names)
        self.per_epoch = batches_per_epoch(len(examples), options.batch_size)
        copies = self.objective.copies
        batch = batches_of(self.tokens, self.y, self._plan(), self.per_epoch, self.world, copies=copies)
        task = Task("classify", batch, self.per_epoch, self.objective, self.model.heads)
        self.training = train(self.model.encoder, [task], options, world=self.world)
        self.rows = len(examples)
        self.validation = None
        if validation is not None:
            self.validation = self.model.tokens(validation), label_numbers(validation, names)
        self.best: dict[str, Tensor] | None = None
        self.best_score, self.waited = -1.0, 0
        self.history: list[dict[str, Any]] = []
        self.epoch_loss = 0.0
        self.patience = self.objective.patience if options.patience is None else options.patience
        self._warn_of_idle_adaptation()

    def _plan(self) -> Plan:
        """Which rows meet: of similar length, and of the same class where the objective compares rows."""
        options, lengths = self.config.train, self.tokens.lengths
        k = options.positives
        if k is None:
            k = 2 if self.objective.needs_positives and self.objective.copies == 1 else 0
        if k == 0:
            return length_grouped(lengths, options.batch_size, options.seed)
        alone = rows_without_positive(self.y)
        if alone and self.world.main:
            self.tell(
                f"rows without another of their class, which the contrast leaves out: {alone} of {len(self.y)}"
            )
        return k_per_class(self.y, lengths, options.batch_size, options.seed, k=min(k, options.batch_size))

    def _warn_of_idle_adaptation(self) -> None:
        adaptation = self.objective.adaptation
        if adaptation is None or not self.world.main:
            return
        if self.validation is None:
            self.tell(
                "the label distance stays as it is: learning it needs a validation part (train.validation=0.1)"
            )
            return
        evaluations = self.steps // self._evaluation_steps
        progress = [n * self._evaluation_steps / self.steps for n in range(1, evaluations + 1)]
        if not any(adaptation.due(n, share) for n, share in enumerate(progress, 1)):
            self.tell(
                f"the label distance will not be updated: {evaluations} evaluations, an update every "
                f"{adaptation.every}; lower objective.update_every or train.evaluate_every"
            )

    @property
    def steps(self) -> int:
        return self.training.steps

    def __iter__(self) -> Iterator[Step]:
        if self.resume:
            self._take_up()
        saved = time.monotonic()
        while not self.done:
            try:
                step = next(iter(self.training))
            except NotFinite as error:
                if self.folder is None:
                    raise
                self.save_state()
                raise NotFinite(f"{error}. The last good state is kept in {self.folder}") from None
            self.epoch_loss += step.loss
            if step.number % self._evaluation_steps == 0:
                step = self._evaluate(step)
            if self.folder is not None and time.monotonic() - saved >= self.config.train.checkpoint_seconds:
                self.save_state()
                saved = time.monotonic()
            yield step
        self._finish()

    @property
    def done(self) -> bool:
        return self.training.number >= self.steps or 0 < self.patience <= self.waited

    @property
    def _evaluation_steps(self) -> int:
        every = self.config.train.evaluate_every
        return every if every and self.validation is not None else self.per_epoch

    def _evaluate(self, step: Step) -> Step:
        """Score on the validation part, keep the best state, let the objective learn from the confusions."""
        record: dict[str, Any] = {
            "epoch": step.epoch,
            "loss": self.epoch_loss / self._evaluation_steps,
        }
        self.epoch_loss = 0.0
        if self.validation is not None:
            tokens, expected = self.validation
            self._learn_neighbours()
            logits, _ = outputs(self.model.encoder, self.model.heads, tokens)
            predicted = logits.argmax(axis=1)
            scores = classification_scores(expected, predicted, self.model.labels)
            scores.pop("per_class")
            record |= scores
            step = dataclasses.replace(step, scores=scores)
            if scores[self.config.train.metric] > self.best_score:
                self.best_score, self.waited = scores[self.config.train.metric], 0
                self.best = {
                    key: value.detach().cpu().clone()
                    for key, value in self.training.learners.state_dict().items()
                }
            else:
                self.waited += 1
            counts = torch.from_numpy(confusion(expected, predicted, len(self.model.labels)))
            self.objective.observe(counts, len(self.history) + 1, step.number / self.steps)
        self.history.append(record)
        return step

    def _learn_neighbours(self) -> None:
        """Where no term trains the logits, let the training rows themselves say which class is near."""
        head = self.model.heads["logits"]
        if isinstance(head, NearestCentroid | NearestRows):
            pooled = torch.from_numpy(outputs(self.model.encoder, None, self.tokens)[1])
            head.learn(pooled.to(self.world.device), torch.from_numpy(self.y).to(self.world.device))

    def save_state(self) -> None:
        """Write a checkpoint now; between two steps, never during one."""
        if self.folder is None or not self.world.main:
            return
        tensors, facts = self.training.state()
        tensors |= {f"best/{key}": value for key, value in (self.best or {}).items()}
        facts |= {
            "best_score": self.best_score,
            "waited": self.waited,
            "history": self.history,
            "epoch_loss": self.epoch_loss,
        }
        checkpoint.save(self.folder, self.training.number, tensors, facts)

    def _take_up(self) -> None:
        found = checkpoint.load(self.folder) if self.folder is not None else None
        if found is None:
            return
        tensors, facts = found
        self.training.load_state(tensors, facts)
        best = {key.removeprefix("best/"): value for key, value in tensors.items() if key.startswith("best/")}
        self.best = best or None
        self.best_score, self.waited = facts["best_score"], facts["waited"]
        self.history, self.epoch_loss = facts["history"], facts["epoch_loss"]

    def _finish(self) -> None:
        if self.best is not None:
            self.training.learners.load_state_dict(self.best)
        self._learn_neighbours()
        if "weighting" in self.model.heads:  # it served the training only
            del self.model.heads["weighting"]
        self.model.objective = {
            key: value.detach().cpu() for key, value in self.objective.state_dict().items()
        }
        self.model.metrics["history"] = self.history
        if self.best is not None:
            best = max(self.history, key=lambda record: record[self.config.train.metric])
            self.model.metrics["validation"] = {k: v for k, v in best.items() if k != "loss"}
        self.training.learners.eval()

    def forget_state(self) -> None:
        """Remove the checkpoints of a run that is finished and saved."""
        if self.folder is not None and self.world.main:
            shutil.rmtree(self.folder, ignore_errors=True)
            if self.lock is not None:
                self.lock.close()


class Stock:
    """What many runs on the same texts share: the encoder's weights as they were loaded, the tokenised texts."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self._encoders: dict[tuple[EncoderConfig, int], Encoder] = {}
        self._tokenisers: dict[tuple[str | None, int], Tokeniser] = {}

    def take(self, config: EncoderConfig, seed: int, world: World) -> tuple[Encoder, Tokeniser]:
        """A copy of the encoder as this seed would load it, and a tokeniser that knows the texts."""
        tokens = config.name, config.max_length
        if (config, seed) not in self._encoders:  # seeds differ where an encoder has weights to draw
            with seeded(world, seed, _ENCODER):
                encoder, tokeniser = _load_encoder(config, None)
            self._encoders = {(config, seed): encoder}
            if tokens not in self._tokenisers:
                self._tokenisers[tokens] = RememberingTokeniser(tokeniser, self.examples)
        return copy.deepcopy(self._encoders[config, seed]), self._tokenisers[tokens]


def _load_encoder(config: EncoderConfig, vocabulary: Examples | None) -> tuple[Encoder, Tokeniser]:
    return load_encoder(
        config.name,
        pooling=config.pooling,
        max_length=config.max_length,
        dropout=config.dropout,
        lora_rank=config.lora_rank,
        vocabulary=vocabulary,
    )


def new_model(
    examples: Examples, labels: list[str], config: RunConfig, world: World, stock: Stock | None = None
) -> tuple[Model, Joint]:
    """An untrained classifier for these rows, and the objective that will train it.

    Encoder, objective and heads draw from streams of their own: two objectives under one seed start
    from the same classifier.
    """
    seed, counts = config.train.seed, Counter(examples.required_labels)
    if (
        stock is not None and config.encoder.name != "textcnn"
    ):  # which has the words of its training rows only
        encoder, tokeniser = stock.take(config.encoder, seed, world)
    else:
        with seeded(world, seed, _ENCODER):
            encoder, tokeniser = _load_encoder(config.encoder, examples)
    with seeded(world, seed, _OBJECTIVE):
        objective = build_objective(
            config.objective.name,
            encoder.dim,
            len(labels),
            config.objective.options,
            labels=labels,
            counts=[counts[label] for label in labels],
        )
    with seeded(world, seed, _HEADS):
        heads = build_heads(encoder, len(labels), objective.views)
    if objective.classifier == "centroid":
        heads["logits"] = NearestCentroid(encoder.dim, len(labels))
    elif objective.classifier == "knn":
        heads["logits"] = NearestRows(encoder.dim, len(labels), len(examples))
    return Model(encoder, heads, tokeniser, labels, config, paired=examples.pairs is not None), objective


def fit_model(examples: Examples, config: RunConfig, **options: Any) -> Model:
    """Train to the end without looking at the steps."""
    fit = Fit(examples, config, **options)
    for _ in fit:
        pass
    return fit.model
