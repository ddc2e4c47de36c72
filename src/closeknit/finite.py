"""Finding updates that were not finite, on a GPU without waiting for each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from closeknit.tasks import Step

CHECK_EVERY = (
    32  # updates between two checks on a GPU: each check waits for everything that is queued
)


@dataclass
class Position:
    """Where a run stands: the number of updates done, and of batches taken from each task."""

    number: int
    taken: dict[str, int]

    def copy(self) -> Position:
        return Position(self.number, dict(self.taken))


@dataclass(frozen=True)
class FlagReading:
    """A copy of the flag to the host that was started after an update, and its end."""

    number: int
    flag: Tensor
    done: torch.cuda.Event


class FiniteCheck:
    """Keeps the steps that were not checked yet, and finds the first one that was not finite.

    `not_finite` lies on the device. Where `flagged`, updates set it to 1 when they are not finite,
    and from then on none is applied. So it is enough to look at it now and then, which a GPU does
    every `check_every` updates, one interval late, so that nothing waits for the device.
    """

    def __init__(self, device: torch.device, *, scales_gradients: bool) -> None:
        self.not_finite = torch.zeros((), device=device)
        self.scales_gradients = scales_gradients  # then a gradient that is not finite is no error
        self.flagged = device.type in ("cpu", "cuda") and not scales_gradients
        self.check_finite_later = self.flagged and device.type == "cuda"
        self.check_every = CHECK_EVERY if self.check_finite_later else 1
        self.unchecked: list[
            tuple[Position, Step]
        ] = []  # where the run stood before each step, and the step
        self.last_finite_check: FlagReading | None = None

    def add(self, before: Position, step: Step) -> None:
        """Remember a step, and where the run stood before it."""
        self.unchecked.append((before, step))

    def restart(self) -> None:
        """Forget all steps, for another run."""
        self.not_finite.zero_()
        self.unchecked = []
        self.last_finite_check = None

    def check_if_due(self, number: int, *, last: bool) -> tuple[Position, Step] | None:
        """After an update: what `check` or `check_late` finds, if it is time to check."""
        if last or (len(self.unchecked) >= self.check_every and not self.check_finite_later):
            return self.check()
        if self.check_finite_later and number % self.check_every == 0:
            return self.check_late(number)
        return None

    def check(self) -> tuple[Position, Step] | None:
        """The first step since the last check that was not finite, and the position before it."""
        unchecked = self.unchecked
        self.unchecked = []
        self.last_finite_check = None
        if not unchecked or (self.flagged and not bool(self.not_finite)):
            return None
        for before, step in unchecked:
            finite = all(math.isfinite(loss) for loss in step.losses.values())
            if not finite or not (math.isfinite(step.grad_norm) or self.scales_gradients):
                self.not_finite.zero_()
                return before, step
        return None

    def check_late(self, number: int) -> tuple[Position, Step] | None:
        """As `check`, by the flag as it was at the call before: nothing waits for the device."""
        reading = self.last_finite_check
        if reading is not None:
            reading.done.synchronize()  # the device passed this point long ago
            failed = self.check() if bool(reading.flag) else None
            if failed is not None:
                return failed
            self.unchecked = [
                (before, step) for before, step in self.unchecked if step.number > reading.number
            ]
        flag = torch.empty((), pin_memory=True)
        flag.copy_(self.not_finite, non_blocking=True)
        done = torch.cuda.current_stream().record_event()
        self.last_finite_check = FlagReading(number, flag, done)
        return None
