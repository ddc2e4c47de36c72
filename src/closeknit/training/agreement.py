"""Whether tasks agree: the cosines between their gradients for the parameters that they share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from closeknit.training.gradients import (
    BatchGradients,
    SeparateGradients,
    cosines_of_products,
    products_of,
    tasks_held_at_once,
)
from closeknit.training.processes import average, average_gradients
from closeknit.training.randomness import DropoutSeeds
from closeknit.training.task import Task


def gradient_agreement(
    tasks: Sequence[Task],
    shared: Sequence[nn.Parameter],
    gradients: BatchGradients,
    seeds: DropoutSeeds,
    *,
    batches: int,
    parts: int,
) -> dict[tuple[str, str], float]:
    """The cosine between the gradients of every two tasks, on their first few batches.

    Nothing is updated, and the caller has switched dropout off. The batches are the same every
    time, so that the values can be compared. A batch comes in so many `parts`.
    """
    measured = _Measured(shared, gradients, seeds, batches, parts)
    values = cosines_of_products(measured.products(tasks)).tolist()
    return {
        (tasks[i].name, tasks[j].name): values[i][j]
        for i in range(len(tasks))
        for j in range(i + 1, len(tasks))
    }


class _Measured:
    """Gradients of the first few batches of tasks."""

    def __init__(
        self,
        shared: Sequence[nn.Parameter],
        gradients: BatchGradients,
        seeds: DropoutSeeds,
        batches: int,
        parts: int,
    ) -> None:
        self.shared = list(shared)
        self.gradients = gradients
        self.world = gradients.world
        self.seeds = seeds
        self.batches = batches
        self.parts = parts

    def products(self, tasks: Sequence[Task]) -> Tensor:
        """The products (T, T) of the tasks' gradients for the parameters they share.

        As many gradients as fit into a fixed amount of memory are held at once. Those of the tasks
        that follow are computed again for every group of tasks that is held.
        """
        held = tasks_held_at_once(self.shared, len(tasks))
        products = torch.zeros(len(tasks), len(tasks), dtype=torch.float64)
        separate = SeparateGradients(self.shared, held)
        for start in range(0, len(tasks), held):
            group = tasks[start : start + held]
            for row, task in enumerate(group):
                self._compute(task)
                separate.take(row)
            rows = slice(start, start + len(group))
            average(separate.rows, self.world)
            products[rows, rows] = products_of(separate.rows[: len(group)]).double().cpu()
            for column in range(start + len(group), len(tasks)):
                self._compute(tasks[column])
                average_gradients(self.shared, self.world)
                found = separate.products_with_present()[: len(group)].cpu()
                products[rows, column] = products[column, rows] = found
                self._forget()
        return products

    def _compute(self, task: Task) -> None:
        """Let the parameters have the gradients of a task's first few batches."""
        for number in range(min(self.batches, task.per_epoch)):
            self._add(task, number)

    def _add(self, task: Task, number: int) -> None:
        """Add the gradients of a batch, weighted by its number of rows."""
        drawn = [task.batch(number, part, self.parts) for part in range(self.parts)]
        pieces = [batch.to(self.world.device) for batch in drawn if len(batch.rows)]
        rows = float(sum(len(batch.rows) for batch in pieces))
        shares_of_pieces = self.gradients.shares_of_parts(task, pieces)
        for batch, shares in zip(pieces, shares_of_pieces, strict=True):
            self.gradients.of_batch(task, batch, rows, self.seeds, shares)

    def _forget(self) -> None:
        for parameter in self.shared:
            parameter.grad = None
