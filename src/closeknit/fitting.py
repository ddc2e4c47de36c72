"""Fit: one classifier from labelled examples: builds the task, drains the loop, keeps the best state."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from . import checkpoint
from .config import RunConfig
from .data import Examples, check_classes, split
from .encoder import load_encoder
from .errors import ConfigError
from .evaluation import outputs
from .heads import build_heads
from .metrics import classification_scores
from .model import Model, label_numbers
from .objectives import build_objective
from .processes import World, seeded, this_world
from .samplers import batches_per_epoch, length_grouped
from .tasks import Step, Task, batches_of
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
    ) -> None:
        self.config, self.folder, self.resume = config, folder, resume
        self.world = world or this_world()
        check_classes(examples)
        options, seed = config.train, config.train.seed
        if validation is None and options.validation > 0:
            kept, held_out = split(examples.required_labels, options.validation, seed)
            examples, validation = examples.select(kept), examples.select(held_out)
        if validation is None and options.patience:
            raise ConfigError(
                "train.patience needs a validation part: give the data one, "
                "or set train.validation to the share of rows to hold out"
            )
        names = list(labels) if labels is not None else examples.classes
        with seeded(self.world, seed, _ENCODER):
            encoder, tokeniser = load_encoder(
                config.encoder.name,
                pooling=config.encoder.pooling,
                max_length=config.encoder.max_length,
                dropout=config.encoder.dropout,
                lora_rank=config.encoder.lora_rank,
                vocabulary=examples,
            )
        with seeded(self.world, seed, _OBJECTIVE):
            objective = build_objective(
                config.objective.name, encoder.dim, len(names), config.objective.options
            )
        with seeded(self.world, seed, _HEADS):
            heads = build_heads(encoder, len(names), objective.views)
        self.model = Model(encoder, heads, tokeniser, names, config, paired=examples.pairs is not None)
        tokens = self.model.tokens(examples)
        plan = length_grouped(tokens.lengths, options.batch_size, seed)
        self.per_epoch = batches_per_epoch(len(examples), options.batch_size)
        batch = batches_of(tokens, label_numbers(examples, names), plan, self.per_epoch, self.world)
        task = Task("classify", batch, self.per_epoch, objective, heads)
        self.training = train(encoder, [task], options, world=self.world)
        self.objective = objective
        self.rows = len(examples)
        self.validation = None
        if validation is not None:
            self.validation = self.model.tokens(validation), label_numbers(validation, names)
        self.best: dict[str, Tensor] | None = None
        self.best_score, self.waited = -1.0, 0
        self.history: list[dict[str, Any]] = []
        self.epoch_loss = 0.0

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
            if step.number % self.per_epoch == 0:
                step = self._end_of_epoch(step)
            if self.folder is not None and time.monotonic() - saved >= self.config.train.checkpoint_seconds:
                self.save_state()
                saved = time.monotonic()
            yield step
        self._finish()

    @property
    def done(self) -> bool:
        patience = self.config.train.patience
        return self.training.number >= self.steps or (patience > 0 and self.waited >= patience)

    def _end_of_epoch(self, step: Step) -> Step:
        record: dict[str, Any] = {
            "epoch": len(self.history) + 1,
            "loss": self.epoch_loss / self.per_epoch,
        }
        self.epoch_loss = 0.0
        if self.validation is not None:
            tokens, expected = self.validation
            logits, _ = outputs(self.model.encoder, self.model.heads, tokens)
            scores = classification_scores(expected, logits.argmax(axis=1), self.model.labels)
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
        self.history.append(record)
        return step

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


def fit_model(examples: Examples, config: RunConfig, **options: Any) -> Model:
    """Train to the end without looking at the steps."""
    fit = Fit(examples, config, **options)
    for _ in fit:
        pass
    return fit.model
