"""Loop: a training with evaluations, the best state, checkpoints and early stopping around it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from . import training_checkpoints as checkpoint
from .processes import World
from .tasks import Step
from .training import NotFinite, Training

Scores = dict[str, float]


class Loop:
    """Iterate over it to train to the end.

    Every `every` steps the mean loss goes into `history`, with the scores of `evaluate` where there is one. The state with
    the best `metric` is kept, and `patience` evaluations without a better one end the training. `observe` is
    called after each evaluation with its number and the share of the training that is done. With a `folder` the state is
    saved there from time to time, and `resume=True` goes on from the newest one, to the same weights as a run that was
    never interrupted.
    """

    def __init__(
        self,
        training: Training,
        *,
        every: int,
        evaluate: Callable[[], Scores] | None = None,
        metric: str = "",
        patience: int = 0,
        observe: Callable[[int, float], None] | None = None,
        folder: Path | None = None,
        resume: bool = False,
        world: World,
    ) -> None:
        self.training, self.every, self.metric, self.patience = training, every, metric, patience
        self.evaluate, self.observe, self.folder, self.resume, self.world = (
            evaluate,
            observe,
            folder,
            resume,
            world,
        )
        self.best: dict[str, Tensor] | None = None
        self.best_score, self.waited = -float("inf"), 0
        self.history: list[dict[str, Any]] = []
        self.epoch_loss = 0.0
        self.task_losses: dict[str, list[float]] = {}  # sum and number of updates, since the last record
        # updates whose losses are in neither yet, and records that wait for them, with the number of their update
        self.unread: list[Step | tuple[int, dict[str, Any]]] = []
        self.saved = time.monotonic()  # when the last checkpoint was written

    @property
    def done(self) -> bool:
        return self.training.number >= self.training.steps or 0 < self.patience <= self.waited

    def __iter__(self) -> Iterator[Step]:
        if self.resume:
            self._take_up()
        self.saved = time.monotonic()
        while not self.done:
            try:
                step = self._next()
            except NotFinite as error:
                if self.folder is None:
                    raise
                self.save_state()
                raise NotFinite(f"{error}. The last good state is kept in {self.folder}") from None
            yield step
        self._read_losses()
        if self.best is not None:
            self.training.learners.load_state_dict(self.best)
        self.training.learners.eval()

    def _next(self) -> Step:
        """One more update, with the evaluation and the checkpoint that are due after it."""
        step = next(iter(self.training))
        self.unread.append(step)
        if step.number % self.every == 0 or step.number == self.training.steps:
            step = self._evaluate(step)
        waited = time.monotonic() - self.saved
        if self.folder is not None and waited >= self.training.config.checkpoint_seconds:
            self.save_state()
            self.saved = time.monotonic()
        return step

    def _evaluate(self, step: Step) -> Step:
        """Note the loss; score, keep the best state, and let others learn from it."""
        record: dict[str, Any] = {"epoch": step.epoch}
        self.unread.append((step.number, record))  # its loss is read when something else waits for the device
        if self.evaluate is not None:
            self._read_losses()
            scores = self.evaluate()
            record |= scores
            step = dataclasses.replace(step, scores=scores)
            if scores[self.metric] > self.best_score:
                self.keep(scores[self.metric])
            else:
                self.waited += 1
            if self.observe is not None:
                self.observe(len(self.history) + 1, step.number / self.training.steps)
        self.history.append(record)
        return step

    def _read_losses(self) -> None:
        """Add up what the updates since the last reading have lost."""
        self.training.look()
        for step in self.unread:
            if isinstance(step, tuple):
                self._close(*step)
            elif step.number <= self.training.number:  # one that was not finite is as if it had not been
                self.epoch_loss += step.loss
                for task, loss in step.losses.items():
                    total, updates = self.task_losses.get(task, (0.0, 0))
                    self.task_losses[task] = [total + loss, updates + 1]
        self.unread = []

    def _close(self, number: int, record: dict[str, Any]) -> None:
        """The mean losses since the record before; one of an update that is as if it had not been is no record."""
        if number > self.training.number:
            self.history = [other for other in self.history if other is not record]
            return
        record["loss"] = self.epoch_loss / (number % self.every or self.every)
        if len(self.training.tasks) > 1:
            record |= {f"loss/{task}": total / updates for task, (total, updates) in self.task_losses.items()}
        self.epoch_loss, self.task_losses = 0.0, {}

    def keep(self, score: float) -> None:
        """Take the state as it is now for the best so far."""
        self.best_score, self.waited = score, 0
        learners = self.training.learners.state_dict()
        self.best = {key: value.detach().clone() for key, value in learners.items()}  # no wait for a GPU

    def save_state(self) -> None:
        """Write a checkpoint now; between two steps, never during one."""
        if self.folder is None or not self.world.main:
            return
        tensors, facts = self.training.state()
        self._read_losses()
        tensors |= {f"best/{key}": value for key, value in (self.best or {}).items()}
        facts |= {
            "best_score": self.best_score if self.best is not None else None,
            "waited": self.waited,
            "history": self.history,
            "epoch_loss": self.epoch_loss,
            "task_losses": self.task_losses,
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
        if self.best is not None:
            self.best_score = facts["best_score"]
        self.waited, self.history, self.epoch_loss = facts["waited"], facts["history"], facts["epoch_loss"]
        self.task_losses = facts["task_losses"]
