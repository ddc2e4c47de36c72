"""What the training loop is given, tasks and their batches, and what it gives back, steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.objectives.joint import Joint
from closeknit.processes import World
from closeknit.samplers import Plan
from closeknit.tokens import Shelf, Tokens

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """R rows that one step works on: this process's share of them, ready for the encoder."""

    inputs: dict[str, Tensor]  # what the encoder takes
    labels: Tensor  # (R,)
    rows: RowNumbers  # which rows of the data the whole batch holds, on all processes
    filler: bool = False  # this process had no row left: it is given one, which counts for nothing

    def chunks(self, size: int, *, same_width: bool = False) -> list[Batch]:
        """The rows in chunks of this size.

        Each is padded as wide as it needs, or with `same_width` as the whole batch needs.
        """
        chunks: list[Batch] = []
        for start in range(0, len(self.labels), size):
            inputs = {name: value[start : start + size] for name, value in self.inputs.items()}
            read = self.inputs if same_width else inputs
            real = read["attention_mask"].any(0).nonzero()
            width = slice(int(real.min()), int(real.max()) + 1)
            trimmed = {name: value[:, width] for name, value in inputs.items()}
            chunks.append(Batch(trimmed, self.labels[start : start + size], self.rows, self.filler))
        return chunks

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        return Batch(inputs, self.labels.to(device, non_blocking=True), self.rows, self.filler)


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


class BatchRows(NamedTuple):
    """Which rows a batch, or a part of it, holds."""

    epoch: int
    rows: RowNumbers  # on all processes
    share: RowNumbers  # on this process
    filler: bool  # this process has no row of the batch: its share is a row that counts for nothing


def rows_of_batches(
    plan: Plan, per_epoch: int, world: World
) -> Callable[[int, int, int], BatchRows]:
    """A function that gives the rows of the n-th batch of a plan, or of one of several parts of it."""
    epochs: dict[int, list[RowNumbers]] = {}

    def rows_of(number: int, part: int, parts: int) -> BatchRows:
        epoch, place = divmod(number, per_epoch)
        if epoch not in epochs:
            epochs.clear()  # only the current one is kept
            epochs[epoch] = plan(epoch)
        batch = epochs[epoch][place]
        rows = np.array_split(batch, parts)[part]
        share = np.array_split(rows, world.size)[world.rank]
        if len(share) == 0:
            return BatchRows(epoch, rows, batch[:1], True)
        return BatchRows(epoch, rows, share, False)

    return rows_of


@dataclass(frozen=True)
class DrawnBatch:
    """A batch before its tensors are built: its rows, this process's share, and its width."""

    rows: RowNumbers
    share: RowNumbers
    width: int
    filler: bool = False


class DeviceBatches:
    """The batches of a plan over tokenised texts that lie on the device; the processes of a run
    share each batch.

    A batch is known by the numbers of its rows alone, so that it can be built on the device.
    `starts` say where the texts of a row are: row r has the texts numbered start + r, one view of
    the row for each start. The same start twice puts a text twice into the batch, and dropout makes
    the two differ. `targets` gives the labels of rows. Runs on parts of the same texts can share a
    `shelf`: `rows` then says which of its texts belong to this run.
    """

    def __init__(
        self,
        tokens: Tokens,
        targets: Callable[[Tensor], Tensor],
        plan: Plan,
        per_epoch: int,
        world: World,
        *,
        starts: Sequence[int] = (0,),
        shelf: Shelf | None = None,
        rows: RowNumbers | None = None,
    ) -> None:
        self.rows_of = rows_of_batches(plan, per_epoch, world)
        self.device = world.device
        self.starts = tuple(starts)
        self.shelf = shelf or Shelf(tokens, world.device)
        self.targets = targets
        self.lengths = tokens.lengths
        self.rows = rows

    @property
    def padded_left(self) -> bool:
        """Whether padding stands before the texts."""
        return self.shelf.tokens.pad_left

    @property
    def widest(self) -> int:
        """The length of this run's longest text, over all views."""
        return int(self.lengths.max())

    def draw(self, number: int, part: int = 0, parts: int = 1) -> DrawnBatch:
        """The rows and the width of the n-th batch, or of a part of it."""
        _, rows, share, filler = self.rows_of(number, part, parts)
        width = max(
            (int(self.lengths[share + start].max(initial=0)) for start in {*self.starts}), default=0
        )
        return DrawnBatch(rows, share, width, filler)

    def build(self, share: Tensor, width: int) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs and labels of these rows, padded to `width` tokens."""
        texts = (
            torch.cat([share + start for start in self.starts]) if len(self.starts) > 1 else share
        )
        return self.shelf.lay(texts, width), self.targets(share)

    def on_device(self, drawn: DrawnBatch) -> Tensor:
        """The numbers of a batch's rows on the device, without waiting for it."""
        rows = torch.from_numpy(drawn.share if self.rows is None else self.rows[drawn.share])
        return (
            rows.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else rows
        )

    def __call__(self, number: int, part: int = 0, parts: int = 1) -> Batch:
        drawn = self.draw(number, part, parts)
        inputs, labels = self.build(self.on_device(drawn), drawn.width)
        return Batch(inputs, labels, drawn.rows, drawn.filler)


def labels_of(
    values: npt.NDArray[Any] | Tensor, device: torch.device, copies: int = 1
) -> Callable[[Tensor], Tensor]:
    """A function from rows to their labels, once for each copy of the rows."""
    labels = torch.as_tensor(values).to(device)
    return lambda share: labels[share].repeat(copies) if copies > 1 else labels[share]
