"""Dropout and linear layers that ask the engine of the running training how to compute.

Without an engine they compute exactly as torch's own modules do. When a training begins, its engine
converts the modules that are trained, as `nn.SyncBatchNorm.convert_sync_batchnorm` does. For the
time of a forward pass the engine then says how dropout is drawn and which copies of their weights
linear layers read. The names and tensors of a saved model stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar

import torch.nn.functional as F
from torch import Tensor, nn

DrawDropout = Callable[[Tensor, float], Tensor]  # (values, rate) -> the values after dropout
WeightCopy = tuple[Tensor, Tensor | None]  # weight and bias of a linear layer

_draw_dropout: ContextVar[DrawDropout | None] = ContextVar("draw_dropout", default=None)
_weight_copies: ContextVar[Mapping[int, WeightCopy]] = ContextVar("weight_copies")


class Dropout(nn.Dropout):
    """Dropout that is drawn as the running engine says, and by torch without one."""

    def forward(self, x: Tensor) -> Tensor:
        draw = _draw_dropout.get()
        if draw is None:
            return super().forward(x)
        return draw(x, self.p) if self.training and self.p > 0 else x


class Linear(nn.Linear):
    """A linear layer that reads the running engine's copy of its weights, if there is one."""

    def forward(self, x: Tensor) -> Tensor:
        copies = _weight_copies.get(None)
        copy = None if copies is None else copies.get(id(self))
        return super().forward(x) if copy is None else F.linear(x, *copy)


@contextlib.contextmanager
def dropout_drawn_by(draw: DrawDropout) -> Iterator[None]:
    """Inside, every `Dropout` of this thread is drawn by this function."""
    token = _draw_dropout.set(draw)
    try:
        yield
    finally:
        _draw_dropout.reset(token)


@contextlib.contextmanager
def linears_reading(copies: Mapping[int, WeightCopy]) -> Iterator[None]:
    """Inside, a `Linear` of this thread reads the copy that is stored under its id."""
    token = _weight_copies.set(copies)
    try:
        yield
    finally:
        _weight_copies.reset(token)


def convert_dropout(root: nn.Module, *, skip: Collection[nn.Module] = ()) -> None:
    """Make each `nn.Dropout` inside this module a `Dropout`, except inside the skipped modules."""
    skipped = {id(inner) for module in skip for inner in module.modules()}
    for module in root.modules():
        if type(module) is nn.Dropout and id(module) not in skipped:
            module.__class__ = (
                Dropout  # in place, as torch.nn.utils.parametrize does: hooks and names stay
            )


def convert_linears(root: nn.Module, *, skip: Collection[nn.Linear] = ()) -> list[Linear]:
    """Make each `nn.Linear` inside this module a `Linear`, except skipped ones; give all of
    these.
    """
    skipped = {id(layer) for layer in skip}
    found: list[Linear] = []
    for module in root.modules():
        if id(module) in skipped:
            continue
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if type(module) is Linear:
            found.append(module)
    return found


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer and nothing more, such as an adapter around one."""
    return type(module) in (nn.Linear, Linear)
