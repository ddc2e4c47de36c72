"""Finds updates that are not finite, and explains why a training cannot continue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from closeknit.training.task import Batch, Step, Task


def describe_not_finite(
    step: Step, tasks: Sequence[Task], taken: dict[str, int], lr: float, precision: str
) -> str:
    """What went wrong in a step that was not finite, on which rows, and what to try."""
    turn = [task for task in tasks if task.name in step.losses]
    bad = [task for task in turn if not math.isfinite(step.losses[task.name])] or turn
    task = bad[0]
    loss = step.losses[task.name]
    rows = task.batch(taken[task.name], 0, 1).rows
    shown = ", ".join(str(row + 1) for row in sorted(rows)[:8]) + (" …" if len(rows) > 8 else "")
    what = "the gradient is not finite" if math.isfinite(loss) else f"the loss became {loss}"
    causes = [
        f"a learning rate that is too high (lr {lr:g}; try a third of it)",
        "too large a scale or too small a gamma or temperature of the objective",
    ]
    if precision != "fp32":
        causes[-1] += f", or {precision} precision (try train.precision=fp32)"
    return (
        f"step {step.number}: {what}, on training rows {shown}. Nothing of this step was applied. "
        f"Likely causes: {', '.join(causes)}"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a GPU or of the machine is full."""
    text = str(error)
    return (
        isinstance(error, torch.cuda.OutOfMemoryError | MemoryError)
        or "can't allocate memory" in text
        or "out of memory" in text
    )


def memory_advice(batch: Batch, chunk_size: int, parts: int) -> str:
    """What was too large for the memory, and which settings make it smaller.

    Gradient caching (`chunk_size`) comes first, because it changes no objective. It does not split
    pairs of texts, so a run of several tasks works through its batches in parts instead.
    """
    rows, width = batch.inputs["input_ids"].shape
    at_once = min(chunk_size, rows) if chunk_size else rows
    found = f"memory is full with {at_once} texts of up to {width} tokens at once."
    if at_once == 1:
        return f"{found} Lower encoder.max_length"
    return (
        f"{found} Encode fewer at once, with the same result: train.chunk_size={at_once // 2} "
        f"(for several tasks: train.accumulate={2 * parts}). "
        "Or lower encoder.max_length or train.batch_size"
    )


# A loss scale of fp16 begins at 2^16 and is halved after each update that it made overflow. After
# so many in a row it is below 0.1, and the gradient is not finite for another reason.
MOST_SKIPPED_IN_A_ROW = 20


@dataclass
class SkippedUpdates:
    """The updates in fp16 that were not applied, because their gradient was not finite."""

    total: int = 0
    in_a_row: int = 0

    def add(self, step: Step) -> None:
        """Count an update, if it was skipped."""
        if math.isfinite(step.grad_norm):
            self.in_a_row = 0
        else:
            self.total += 1
            self.in_a_row += 1

    def hopeless(self, updates: int, *, last: bool) -> bool:
        """Whether training has to stop after so many updates; `last` says that none follows."""
        return self.in_a_row >= MOST_SKIPPED_IN_A_ROW or (last and 0 < updates == self.in_a_row)

    def describe(self, number: int, lr: float) -> str:
        """What went wrong, and what to try."""
        return (
            f"step {number}: in fp16 the gradient was not finite in {self.in_a_row} updates in a "
            "row, although the loss scale was halved each time. None of these updates was applied. "
            "Use train.precision=bf16 or fp32; otherwise try a third of the learning rate "
            f"(lr {lr:g}), or a smaller scale or a larger gamma or temperature of the objective"
        )


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
