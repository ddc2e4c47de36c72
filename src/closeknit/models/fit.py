"""Fit: one training of one model, in one or several stages. Every product builds its fit on this
class.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from closeknit.training.loop import Training
from closeknit.training.processes import World
from closeknit.training.session import Loop
from closeknit.training.task import Step

AModel = TypeVar("AModel")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Stage:
    """One part of a fit: a training session, and what happens before, around and after it."""

    session: Loop
    before: Callable[[], None] = _nothing
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    after: Callable[[], None] = _nothing

    @property
    def steps(self) -> int:
        return self.session.training.steps


class Fit(Generic[AModel]):
    """One training of one model: iterate over it to train, then take `model`.

    A product builds the model, its tasks and its stages. The last stage is the main one: `session`
    and `training` belong to it. The steps of all stages are numbered in one sequence.
    """

    model: AModel
    world: World
    stages: list[Stage]

    @property
    def session(self) -> Loop:
        return self.stages[-1].session

    @property
    def training(self) -> Training:
        return self.session.training

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def __iter__(self) -> Iterator[Step]:
        finished = 0
        for stage in self.stages:
            stage.before()
            with stage.around():
                for step in stage.session:
                    yield dataclasses.replace(step, number=step.number + finished)
            stage.after()
            finished += stage.steps

    def save_state(self) -> None:
        """Write a checkpoint of every stage that has begun; call it between two steps."""
        for stage in self.stages:
            if stage.session.training.number:
                stage.session.save_state()

    def run(self) -> AModel:
        """Train to the end and return the model."""
        for _ in self:
            pass
        return self.model
