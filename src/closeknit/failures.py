"""What a training says when it cannot go on: a loss that is not finite, or a full memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from closeknit.tasks import Batch, Step, Task


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


def memory_advice(batch: Batch, accumulate: int) -> str:
    """What was too large for the memory, and which settings make it smaller."""
    rows, width = batch.inputs["input_ids"].shape
    return (
        f"memory is full with {rows} texts of up to {width} tokens at once. Lower "
        "encoder.max_length or train.batch_size, or keep the batch and work through it in parts: "
        f"train.accumulate={2 * accumulate}"
    )
