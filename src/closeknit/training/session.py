"""A training with evaluations, the best state, checkpoints and early stopping around it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from closeknit.errors import ConfigError
from closeknit.training import checkpoints as checkpoint
from closeknit.training.loop import NotFinite, Training
from closeknit.training.processes import (
    ProcessLost,
    World,
    failing_together,
    of_first,
    state_of_first,
    texts_of_all,
)
from closeknit.training.task import Step

Scores = dict[str, float]
Record = dict[str, Any]


@dataclass
class LossSums:
    """The losses since the last record, summed up."""

    total: float = 0.0
    tasks: dict[str, list[float]] = field(default_factory=dict)  # sum and number of updates

    def add(self, step: Step) -> None:
        """Add the losses of one update."""
        self.total += step.loss
        for task, loss in step.losses.items():
            task_total, updates = self.tasks.get(task, (0.0, 0))
            self.tasks[task] = [task_total + loss, updates + 1]

    def means(self, updates: int, *, of_tasks: bool) -> Record:
        """The mean loss of so many updates, and with `of_tasks` those of the tasks."""
        means = {"loss": self.total / updates}
        if of_tasks:
            for task, (total, task_updates) in self.tasks.items():
                means[f"loss/{task}"] = total / task_updates
        return means


@dataclass(frozen=True)
class OpenRecord:
    """A record of the history whose losses were not read yet, and the number of its update."""

    number: int
    record: Record


class Loop:
    """Iterate over it to train to the end.

    Every `every` steps the mean loss goes into `history`, with the scores of `evaluate` if it is
    given. The state with the best `metric` is kept, and `patience` evaluations without a better
    one end the training. `observe` is called after each evaluation with its number and the share
    of the training that is done; what it returns goes into the record. With a `folder` the state is
    saved there from time to time. `resume=True` resumes from the newest one, and ends with the same
    weights as a run that was never interrupted.
    """

    def __init__(
        self,
        training: Training,
        *,
        every: int,
        evaluate: Callable[[], Scores] | None = None,
        metric: str = "",
        patience: int = 0,
        observe: Callable[[int, float], Record] | None = None,
        folder: Path | None = None,
        resume: bool = False,
        world: World,
    ) -> None:
        self.training = training
        self.every = every
        self.metric = metric
        self.patience = patience
        self.evaluate = evaluate
        self.observe = observe
        self.folder = folder
        self.resume = resume
        self.world = world
        self.best: dict[str, Tensor] | None = None
        self.best_score = -float("inf")
        self.evaluations_without_gain = 0
        self.history: list[Record] = []
        self.losses = LossSums()
        # Reading a loss waits for a GPU, so losses are read together with something else that
        # waits.
        self.unread_steps: list[Step] = []
        self.open_records: list[OpenRecord] = []
        self.last_saved = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether the training has come to its end, or early stopping ends it."""
        patience_used_up = 0 < self.patience <= self.evaluations_without_gain
        return self.training.number >= self.training.steps or patience_used_up

    def __iter__(self) -> Iterator[Step]:
        if self.resume:
            self._load_checkpoint()
        self._take_weights_of_first_process()
        self.last_saved = time.monotonic()
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
        self.training.end()
        if self.best is not None:
            self.training.learners.load_state_dict(self.best)
        self.training.learners.eval()

    def _next(self) -> Step:
        """One more update, with the evaluation and the checkpoint that are due after it."""
        try:
            step = next(iter(self.training))
        except ProcessLost:
            self.save_state()  # nothing of the step in progress was applied
            raise
        self.unread_steps.append(step)
        if step.number % self.every == 0 or step.number == self.training.steps:
            step = self._evaluate(step)
        since_saved = time.monotonic() - self.last_saved
        if self.folder is not None and since_saved >= self.training.config.checkpoint_seconds:
            self.save_state()
            self.last_saved = time.monotonic()
        return step

    def _evaluate(self, step: Step) -> Step:
        """Begin a record; score, keep the best state, and call `observe`."""
        record: Record = {"epoch": step.epoch}
        self.open_records.append(OpenRecord(step.number, record))
        if self.evaluate is not None:
            self._read_losses()
            scores = self.scores_of_first_process(self.evaluate())
            record |= scores
            step = dataclasses.replace(step, scores=scores)
            if scores[self.metric] > self.best_score:
                self.keep(scores[self.metric])
            else:
                self.evaluations_without_gain += 1
            if self.observe is not None:
                share_done = step.number / self.training.steps
                record |= self.observe(len(self.history) + 1, share_done)
        self.history.append(record)
        return step

    def _read_losses(self) -> None:
        """Read the losses of all updates that were not read yet, and complete the records that wait
        for them.
        """
        self.training.check_finite()
        open_records = {opened.number: opened.record for opened in self.open_records}
        for step in self.unread_steps:
            rolled_back = step.number > self.training.number  # it was not finite, or came after one
            if not rolled_back:
                self.losses.add(step)
            if step.number in open_records:
                self._close(step.number, open_records[step.number], drop=rolled_back)
        self.unread_steps = []
        self.open_records = []

    def _close(self, number: int, record: Record, *, drop: bool) -> None:
        """Complete a record by the mean losses since the record before; drop it if its update was
        rolled back.
        """
        if drop:
            self.history = [other for other in self.history if other is not record]
            return
        updates = number % self.every or self.every
        record |= self.losses.means(updates, of_tasks=len(self.training.tasks) > 1)
        self.losses = LossSums()

    def keep(self, score: float) -> None:
        """Keep the present state as the best so far."""
        self.best_score = score
        self.evaluations_without_gain = 0
        learners = self.training.learners.state_dict()
        # copies on the device: nothing waits for a GPU
        self.best = {key: value.detach().clone() for key, value in learners.items()}

    def save_state(self) -> None:
        """Write a checkpoint now; between two steps, never during one."""
        if self.folder is None or not self.world.main:
            return
        tensors, facts = self.training.state()
        self._read_losses()
        tensors |= {f"best/{key}": value for key, value in (self.best or {}).items()}
        facts |= {
            "best_score": self.best_score if self.best is not None else None,
            "waited": self.evaluations_without_gain,
            "history": self.history,
            "epoch_loss": self.losses.total,
            "task_losses": self.losses.tasks,
        }
        checkpoint.save(self.folder, self.training.number, tensors, facts)

    # -- several processes

    def _take_weights_of_first_process(self) -> None:
        """Train the same weights everywhere, also where machines have different encoder files."""
        if self.world.size > 1:
            learners = self.training.learners
            learners.load_state_dict(of_first(learners.state_dict(), self.world))
            self.training.engine.weights_changed()

    def scores_of_first_process(self, scores: Scores) -> Scores:
        """The scores of the first process, which decide for all.

        Other kinds of processors round in other ways, and processes that disagree about the best
        state or about an early stop would wait for each other forever.
        """
        if self.world.size == 1:
            return scores
        own = {name: torch.tensor(score, dtype=torch.float64) for name, score in scores.items()}
        return {name: float(score) for name, score in of_first(own, self.world).items()}

    def _saved_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state in the newest checkpoint, if there is one.

        The first process writes checkpoints, so it also reads them and sends them to the others,
        which may have another disk.
        """
        if self.folder is None:
            return None
        newest, *others = texts_of_all(checkpoint.newest(self.folder) or "", self.world)
        for rank, name in enumerate(others, 1):
            if name not in ("", newest):
                raise ConfigError(
                    f"the processes disagree on where to resume: process {rank} finds {name} in "
                    f"{self.folder}, and process 0 finds {newest or 'no checkpoint'}. Let the "
                    "machine with the right checkpoints start process 0, and remove that folder on "
                    "the others"
                )
        with failing_together(self.world):
            saved = checkpoint.load(self.folder) if self.world.main else None
        return state_of_first(saved, self.world)

    def _load_checkpoint(self) -> None:
        """Take up the newest checkpoint of the folder, if there is one."""
        saved = self._saved_state()
        if saved is None:
            return
        tensors, facts = saved
        self.training.load_state(tensors, facts)
        best = {
            key.removeprefix("best/"): value
            for key, value in tensors.items()
            if key.startswith("best/")
        }
        self.best = best or None
        if self.best is not None:
            self.best_score = facts["best_score"]
        self.evaluations_without_gain = facts["waited"]
        self.history = facts["history"]
        self.losses = LossSums(facts["epoch_loss"], facts["task_losses"])
