"""What the training loop is given, tasks and their batches, and what it gives back, steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.objectives.joint import Joint

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """R rows that one step works on: this process's share of them, ready for the encoder."""

    inputs: dict[str, Tensor]  # what the encoder takes
    labels: Tensor  # (R,)
    rows: RowNumbers  # which rows of the data the whole batch holds, on all processes
    filler: bool = False  # this process had no row left: it is given one, which counts for nothing
    first: int = 0  # of a chunk: the place of its first row in the batch
    whole: int = 0  # of a chunk: the number of rows of the batch

    @property
    def is_second_copy(self) -> Tensor:
        """Which rows (R,) are second copies, where every text is encoded twice: the second half."""
        place = torch.arange(self.first, self.first + len(self.labels), device=self.labels.device)
        return place >= (self.whole or len(self.labels)) // 2

    def chunks(self, size: int, *, same_width: bool = False) -> list[Batch]:
        """The rows in chunks of this size.

        Each is padded as wide as it needs, or with `same_width` as wide as the batch is.
        """
        chunks: list[Batch] = []
        for start in range(0, len(self.labels), size):
            labels = self.labels[start : start + size]
            inputs = {name: value[start : start + size] for name, value in self.inputs.items()}
            if not same_width:
                real = inputs["attention_mask"].any(0).nonzero()
                width = slice(int(real.min()), int(real.max()) + 1)
                inputs = {name: value[:, width] for name, value in inputs.items()}
            whole = len(self.labels)
            chunks.append(Batch(inputs, labels, self.rows, self.filler, start, whole))
        return chunks

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        labels = self.labels.to(device, non_blocking=True)
        return dataclasses.replace(self, inputs=inputs, labels=labels)


@dataclass(frozen=True)
class Task:
    """One thing to learn: where its batches come from, its heads and its objective.

    `batch(n, part, parts)` makes the n-th batch, counted from 0, or one of several parts of it. It
    is a function of its arguments alone, so that a run can be resumed at any step.
    """

    name: str
    batch: Callable[[int, int, int], Batch]
    per_epoch: int
    objective: Joint
    heads: nn.ModuleDict
    weight: float = 1.0


class NumbersOnDevice:
    """Numbers that stay on the device until one of them is read; then all are copied at once."""

    def __init__(self, values: Tensor) -> None:
        self._on_device: Tensor | None = values
        self._numbers: list[float] = []

    def __getitem__(self, index: int) -> float:
        if self._on_device is not None:
            self._numbers = self._on_device.tolist()
            self._on_device = None
        return self._numbers[index]


class NamedNumbers(Mapping[str, float]):
    """Numbers of an update by name; only reading one waits for the device."""

    def __init__(self, numbers: NumbersOnDevice, places: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._places = dict(places)

    def __getitem__(self, name: str) -> float:
        return self._numbers[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True)
class Step:
    """What one update did. `losses` are the tasks' totals, `terms` their parts before weighting.

    On a GPU the numbers are copied when they are first read, so that a step that nobody reads waits
    for nothing.
    """

    number: int
    epoch: float
    losses: Mapping[str, float]
    terms: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)  # of the gradient
    lr: float = 0.0
    scores: dict[str, float] = field(
        default_factory=dict
    )  # set by the caller that evaluated after this step

    @property
    def loss(self) -> float:
        """The sum of the tasks' losses."""
        return sum(self.losses.values())

    @property
    def grad_norm(self) -> float:
        """The length of the gradient before it was clipped."""
        return self.sizes.get("grad_norm", 0.0)
