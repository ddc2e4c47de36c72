"""Which rows meet in a mini-batch, and the mini-batches that are made of them on the device.

A sampler is a function of the number of an epoch: it has no state to save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from closeknit.data.examples import Examples
from closeknit.data.text_changes import (
    BUNDLED_SYNONYMS,
    ChangedByFunction,
    MaskedSpans,
    Synonyms,
    TextChange,
    read_synonyms,
)
from closeknit.encoders.tokenisers import Tokeniser, mask_token_of
from closeknit.encoders.tokens import Shelf, Tokens, stacked
from closeknit.errors import ConfigError
from closeknit.objectives.copies import Copies
from closeknit.training.processes import World
from closeknit.training.task import Batch, RowNumbers

Rows = npt.NDArray[np.int64]
Plan = Callable[[int], list[Rows]]  # epoch number -> the batches of that epoch, as row numbers


def length_grouped(
    lengths: npt.NDArray[np.int64], batch_size: int, seed: int, *, pool: int = 8
) -> Plan:
    """Shuffled batches of texts of similar length, so that padding is rare.

    In every epoch all rows are shuffled and divided into pools of `pool` batches. Rows are sorted
    by length inside a pool only, and the batches are shuffled again. So the rows that share a batch
    change from epoch to epoch. Every row is used once; the last batch may be smaller.
    """

    def plan(epoch: int) -> list[Rows]:
        generator = np.random.default_rng((seed, epoch))
        order = generator.permutation(len(lengths))
        batches: list[Rows] = []
        for start in range(0, len(order), pool * batch_size):
            rows = order[start : start + pool * batch_size]
            # longest first, so that the last and smaller batch holds short texts
            rows = rows[np.argsort(-lengths[rows], kind="stable")]
            batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        return [batches[i] for i in generator.permutation(len(batches))]

    return plan


def batches_per_epoch(rows: int, batch_size: int) -> int:
    """The number of batches in an epoch; the last may be smaller than the others."""
    return -(-rows // batch_size)


def k_per_class(
    labels: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    batch_size: int,
    seed: int,
    *,
    k: int = 2,
    pool: int = 8,
) -> Plan:
    """Shuffled batches in which every row meets another row of its class, if its class has more
    rows.

    In every epoch the rows of each class are divided into groups of k; the last group of a class
    may be larger, but never has one row alone. Groups are divided into pools, sorted by length
    inside a pool, and put into batches of about `batch_size` rows, less than 2 k more. Every row is
    used once.
    """
    amount = batches_per_epoch(len(labels), batch_size)

    def plan(epoch: int) -> list[Rows]:
        generator = np.random.default_rng((seed, epoch))
        in_order: list[Rows] = []
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            in_order += np.array_split(rows, max(1, len(rows) // k))
        groups = [in_order[i] for i in generator.permutation(len(in_order))]
        per_pool = -(-len(groups) * pool // amount) if amount > pool else len(groups)
        batches = _fill_batches(_sorted_in_pools(groups, lengths, per_pool), amount)
        return [np.concatenate(batches[i]) for i in generator.permutation(amount)]

    return plan


def _sorted_in_pools(
    groups: list[Rows], lengths: npt.NDArray[np.int64], per_pool: int
) -> list[Rows]:
    """The groups, those with the longest texts first inside each pool of so many groups."""
    longest = np.array([lengths[group].max() for group in groups])
    order: list[int] = []
    for start in range(0, len(groups), per_pool):
        order += (start + np.argsort(-longest[start : start + per_pool], kind="stable")).tolist()
    return [groups[i] for i in order]


def _fill_batches(groups: list[Rows], amount: int) -> list[list[Rows]]:
    """The groups in so many batches: a batch is full when its share of all rows is reached."""
    reached = np.cumsum([len(group) for group in groups])
    batches: list[list[Rows]] = [[] for _ in range(amount)]
    for group, rows in zip(groups, reached, strict=True):
        place = min(int((rows - 1) * amount / reached[-1]), amount - 1)
        batches[place].append(group)
    filled = [batch for batch in batches if batch]
    while (
        len(filled) < amount
    ):  # a large group took the share of two batches: halve the largest batch
        largest = max(range(len(filled)), key=lambda i: sum(map(len, filled[i])))
        batch = filled.pop(largest)
        if len(batch) == 1:
            batch = list(np.array_split(batch[0], 2))
        filled += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return filled


def rows_that_meet(
    labels: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    batch_size: int,
    seed: int,
    k: int,
    log: Callable[[str], None] | None = None,
) -> Plan:
    """Batches of texts of similar length, which hold k rows of a class together if k is not 0."""
    if k == 0:
        return length_grouped(lengths, batch_size, seed)
    alone = rows_without_positive(labels)
    if alone and log is not None:
        log(
            "rows without another row of their class, which a contrast leaves out: "
            f"{alone} of {len(labels)}"
        )
    return k_per_class(labels, lengths, batch_size, seed, k=min(k, batch_size))


def rows_without_positive(labels: npt.NDArray[np.int64]) -> int:
    """How many rows are the only row of their class."""
    return int((np.unique(labels, return_counts=True)[1] == 1).sum())


class BatchRows(NamedTuple):
    """Which rows a batch, or a part of it, holds."""

    epoch: int
    rows: RowNumbers  # on all processes
    share: RowNumbers  # on this process
    filler: bool  # this process has no row of the batch: its share is a row that counts for nothing


def rows_of_batches(
    plan: Plan, per_epoch: int, world: World
) -> Callable[[int, int, int], BatchRows]:
    """A function that gives the rows of the n-th batch of a plan, or of one of several parts
    of it.
    """
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
            return BatchRows(epoch, rows, (rows if len(rows) else batch)[:1], True)
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
        """The rows and the width of the n-th batch, or of a part of it.

        The width is that of the longest text on all processes: an objective that reads padding
        gets the same padding from each of them.
        """
        _, rows, share, filler = self.rows_of(number, part, parts)
        laid = rows if len(rows) else share
        width = max(
            (int(self.lengths[laid + start].max(initial=0)) for start in {*self.starts}), default=0
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


class ChangedTexts:
    """Batches in which the second copy of each text is a changed text, another one in each epoch.

    The changed texts are tokenised on the host for each batch, so these batches cannot be made on
    the device. `examples` are the texts of the rows, and `tokens` their tokens.
    """

    def __init__(
        self,
        batches: DeviceBatches,
        examples: Examples,
        tokens: Tokens,
        tokenise: Tokeniser,
        change: TextChange,
    ) -> None:
        self.batches = batches
        self.examples = examples
        self.tokens = tokens
        self.tokenise = tokenise
        self.change = change

    @property
    def padded_left(self) -> bool:
        """Whether padding stands before the texts."""
        return self.tokens.pad_left

    def __call__(self, number: int, part: int = 0, parts: int = 1) -> Batch:
        epoch, rows, share, filler = self.batches.rows_of(number, part, parts)
        changed = self.tokenise(self._changed(share, epoch))
        copies = stacked([self.tokens.select(share), changed])
        drawn = DrawnBatch(rows, share, int(copies.lengths.max(initial=0)), filler)
        labels = self.batches.targets(self.batches.on_device(drawn))
        return Batch(copies.pad(np.arange(len(copies))), labels, rows, filler)

    def _changed(self, share: RowNumbers, epoch: int) -> Examples:
        """These rows with changed texts; of pairs both texts are changed."""
        numbers = share.tolist()
        texts = self.change([self.examples.texts[row] for row in numbers], numbers, epoch)
        if self.examples.pairs is None:
            return Examples(texts)
        pairs = [self.examples.pairs[row] for row in numbers]
        return Examples(texts, self.change(pairs, numbers, epoch, 1))


def with_second_copies(
    batches: DeviceBatches,
    copies: Copies,
    examples: Examples,
    tokens: Tokens,
    tokenise: Tokeniser,
    seed: int,
) -> DeviceBatches | ChangedTexts:
    """The batches themselves, or with changed texts where the second view of a text is one."""
    if not copies.changes_texts:
        return batches
    change = _text_change(copies, tokenise, seed)
    return ChangedTexts(batches, examples, tokens, tokenise, change)


def _text_change(copies: Copies, tokenise: Tokeniser, seed: int) -> TextChange:
    """What makes the changed texts of a second view."""
    if copies.second_view == "span":
        mask = mask_token_of(tokenise)
        if mask is None:
            raise ConfigError(
                "second_view is span, but this encoder's tokenizer has no mask token; use another "
                "second view, such as synonyms"
            )
        return MaskedSpans(copies.mask, mask, seed)
    if copies.second_view == "synonyms":
        path = BUNDLED_SYNONYMS if copies.synonyms is None else Path(copies.synonyms)
        return Synonyms(read_synonyms(path), copies.synonym_share, seed)
    if copies.function is None:
        raise ConfigError(
            "second_view is function, but there is no function: give one in Python, as in "
            "TextClassifier(second_view=FUNCTION), or use another second view"
        )
    return ChangedByFunction(copies.function, seed)


def labels_of(
    values: npt.NDArray[Any] | Tensor, device: torch.device, copies: int = 1
) -> Callable[[Tensor], Tensor]:
    """A function from rows to their labels, once for each copy of the rows."""
    labels = torch.as_tensor(values).to(device)
    return lambda share: labels[share].repeat(copies) if copies > 1 else labels[share]
