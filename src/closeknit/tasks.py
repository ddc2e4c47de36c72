"""Batch, Task and Step: what the loop is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.objectives.joint import Joint
from closeknit.processes import World
from closeknit.samplers import Plan
from closeknit.tokens import Shelf, Tokens


@dataclass(frozen=True)
class Batch:
    """R rows that meet in one step: this process's share of them, ready for the encoder."""

    inputs: dict[str, Tensor]  # what the encoder takes
    labels: Tensor  # (R,)
    rows: npt.NDArray[np.int64]  # which rows of the data the whole batch holds, on all processes
    filler: bool = False  # this process had no row left: one is lent to it, and counts for nothing

    def chunks(self, size: int, *, alike: bool = False) -> list[Batch]:
        """The rows in pieces of this size, each padded no wider than it needs, or all `alike`: as the whole batch needs."""
        found: list[Batch] = []
        for start in range(0, len(self.labels), size):
            inputs = {name: value[start : start + size] for name, value in self.inputs.items()}
            real = (self.inputs if alike else inputs)["attention_mask"].any(0).nonzero()
            width = slice(int(real.min()), int(real.max()) + 1)
            trimmed = {name: value[:, width] for name, value in inputs.items()}
            found.append(Batch(trimmed, self.labels[start : start + size], self.rows, self.filler))
        return found

    def to(self, device: torch.device) -> Batch:
        inputs = {name: value.to(device, non_blocking=True) for name, value in self.inputs.items()}
        return Batch(inputs, self.labels.to(device, non_blocking=True), self.rows, self.filler)


@dataclass(frozen=True)
class Task:
    """One thing to learn: where its batches come from, its heads and its objective.

    `batch(n, part, parts)` makes the n-th batch, counted from 0, or one of several parts of it. It
    is a function of its arguments alone, so that a run can be taken up at any step.
    """

    name: str
    batch: Callable[[int, int, int], Batch]
    per_epoch: int
    objective: Joint
    heads: nn.ModuleDict
    weight: float = 1.0


class Fetched:
    """Numbers that stay on the device until one of them is read; then all come in one transfer."""

    def __init__(self, values: Tensor) -> None:
        self._waiting: Tensor | None = values
        self._numbers: list[float] = []

    def __getitem__(self, place: int) -> float:
        if self._waiting is not None:
            self._numbers, self._waiting = self._waiting.tolist(), None
        return self._numbers[place]


class Values(Mapping[str, float]):
    """Some of the numbers of an update, by name: reading one waits for the device, having them does not."""

    def __init__(self, fetched: Fetched, places: Mapping[str, int]) -> None:
        self._fetched, self._places = fetched, dict(places)

    def __getitem__(self, name: str) -> float:
        return self._fetched[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True)
class Step:
    """What one update did. `losses` are the tasks' totals, `terms` their parts before weighting.

    On a GPU the numbers are fetched when they are read, so that a step that nobody looks at waits for nothing.
    """

    number: int
    epoch: float
    losses: Mapping[str, float]
    terms: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)  # of the gradient
    lr: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)  # set by the caller that evaluated here

    @property
    def loss(self) -> float:
        return sum(self.losses.values())

    @property
    def grad_norm(self) -> float:
        """The length of the gradient before it was clipped."""
        return self.sizes.get("grad_norm", 0.0)


Deal = Callable[[int, int, int], tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], bool]]


def dealt(plan: Plan, per_epoch: int, world: World) -> Deal:
    """The n-th batch of a plan, or a part of it: (epoch, its rows, this process's share of them, whether that is a filler)."""
    epochs: dict[int, list[npt.NDArray[np.int64]]] = {}

    def deal(
        number: int, part: int, parts: int
    ) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
        epoch, place = divmod(number, per_epoch)
        if epoch not in epochs:
            epochs.clear()  # only the current one is kept
            epochs[epoch] = plan(epoch)
        rows = np.array_split(epochs[epoch][place], parts)[part]
        share = np.array_split(rows, world.size)[world.rank]
        filler = len(share) == 0
        return epoch, rows, epochs[epoch][place][:1] if filler else share, filler

    return deal


@dataclass(frozen=True)
class Drawn:
    """A batch before it is made: its rows, this process's share of them, and how wide that is."""

    rows: npt.NDArray[np.int64]
    share: npt.NDArray[np.int64]
    width: int
    filler: bool = False


class Shelved:
    """The batches of a plan over tokenised texts, which lie on the device; the processes of a run share each between them.

    A batch is known by the numbers of its rows alone, so that it can be made on the device. `starts` say where the texts of
    a row are: row r has those numbered start + r, one view of it each. Twice the same start puts a text twice into the
    batch, and dropout makes the two differ. `targets` gives the labels of rows. Runs on parts of the same texts can share a
    `shelf`: `rows` then says which of its texts are this run's.
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
        rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.deal, self.device, self.starts = (
            dealt(plan, per_epoch, world),
            world.device,
            tuple(starts),
        )
        self.shelf, self.targets = shelf or Shelf(tokens, world.device), targets
        self.lengths, self.rows = tokens.lengths, rows

    @property
    def widest(self) -> int:
        """The longest text of this run's own, of all its views."""
        return int(self.lengths.max())

    def draw(self, number: int, part: int = 0, parts: int = 1) -> Drawn:
        _, rows, share, filler = self.deal(number, part, parts)
        width = max(
            (int(self.lengths[share + start].max(initial=0)) for start in {*self.starts}), default=0
        )
        return Drawn(rows, share, width, filler)

    def lay(self, share: Tensor, width: int) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs and labels of these rows, padded to `width` tokens."""
        texts = (
            torch.cat([share + start for start in self.starts]) if len(self.starts) > 1 else share
        )
        return self.shelf.lay(texts, width), self.targets(share)

    def on_device(self, drawn: Drawn) -> Tensor:
        """The numbers of a batch's rows on the device, without waiting for it."""
        rows = torch.from_numpy(drawn.share if self.rows is None else self.rows[drawn.share])
        return (
            rows.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else rows
        )

    def __call__(self, number: int, part: int = 0, parts: int = 1) -> Batch:
        drawn = self.draw(number, part, parts)
        inputs, labels = self.lay(self.on_device(drawn), drawn.width)
        return Batch(inputs, labels, drawn.rows, drawn.filler)


def labels_of(
    values: npt.NDArray[Any] | Tensor, device: torch.device, copies: int = 1
) -> Callable[[Tensor], Tensor]:
    """A function from rows to their labels, once for each copy of the rows."""
    labels = torch.as_tensor(values).to(device)
    return lambda share: labels[share].repeat(copies) if copies > 1 else labels[share]
