"""Halves: half-precision copies of the weights of linear layers, made together once an update.

Under autocast every weight is cast for itself, and so is its gradient on the way back: hundreds of small kernels. Here one
operation makes all copies and one brings all gradients home. The numbers are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Copy:
    """The copies of some linear layers as one: weights (sum of outputs, inputs) and biases."""

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.layers = tuple(layers)
        self.weights: list[Any] = [layer.weight for layer in layers]  # what the copies are made of
        self.biases: list[Any] = [layer.bias for layer in layers if layer.bias is not None]
        self.sizes = [layer.out_features for layer in layers]
        learning = any(weight.requires_grad for weight in self.weights)

        def empty(*shape: int) -> nn.Parameter:
            place = torch.empty(shape, dtype=dtype, device=self.weights[0].device)
            return nn.Parameter(place, requires_grad=learning)

        self.weight = empty(sum(self.sizes), layers[0].in_features)
        self.bias = empty(sum(self.sizes)) if self.biases else None

    def parts(self) -> list[tuple[Any, Tensor]]:
        """Each weight and bias, and its part of the copy."""
        return self._matched(
            self.weight.detach(), None if self.bias is None else self.bias.detach()
        )

    def gradients(self) -> list[tuple[Any, Tensor]]:
        """Each weight and bias that has a gradient, and that."""
        return self._matched(self.weight.grad, None if self.bias is None else self.bias.grad)

    def _matched(self, weight: Tensor | None, bias: Tensor | None) -> list[tuple[Any, Tensor]]:
        found: list[tuple[Any, Tensor]] = []
        for masters, whole in ((self.weights, weight), (self.biases, bias)):
            if whole is not None:
                found += zip(masters, whole.split(self.sizes), strict=True)
        return found


class Halves:
    """Copies of all linear layers of a module; those that are named `together` share one, which is read by `of`.

    `refresh()` makes them anew; inside `used()` the other layers read their own copies; `collect()` gives the gradients
    of the copies to the weights they were made of.
    """

    def __init__(
        self, module: nn.Module, dtype: torch.dtype, together: Sequence[Sequence[nn.Linear]] = ()
    ) -> None:
        joined = {id(layer) for group in together for layer in group}
        self.alone = [
            Copy([layer], dtype)
            for layer in module.modules()
            if type(layer) is nn.Linear and id(layer) not in joined
        ]
        self.copies = [*self.alone, *(Copy(group, dtype) for group in together)]
        self._of = {id(layer): copy for copy in self.copies for layer in copy.layers}
        pairs = [pair for copy in self.copies for pair in copy.parts()]
        self.masters, self.parts = [master for master, _ in pairs], [part for _, part in pairs]
        sizes = [part.numel() for part in self.parts]
        flat = torch.empty(sum(sizes), device=self.parts[0].device if pairs else None)
        room = zip(flat.split(sizes), self.masters, strict=True)
        self.room = {id(master): piece.view_as(master) for piece, master in room}  # for gradients

    def of(self, layer: nn.Linear) -> Copy:
        return self._of[id(layer)]

    @property
    def by_master(self) -> dict[int, Tensor]:
        """The copy of each weight, by the weight's id."""
        return {id(master): part for master, part in zip(self.masters, self.parts, strict=True)}

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the copies anew."""
        if self.parts:
            torch._foreach_copy_(self.parts, self.masters)

    def clear(self) -> None:
        """Forget the gradients of the copies."""
        for copy in self.copies:
            copy.weight.grad = None
            if copy.bias is not None:
                copy.bias.grad = None

    def gradients(self) -> dict[int, Tensor]:
        """The gradients of copies, by the id of the weight; where a weight has one of its own, both are added there."""
        found = {
            id(master): gradient for copy in self.copies for master, gradient in copy.gradients()
        }
        for master in self.masters:
            if master.grad is not None and id(master) in found:
                with torch.no_grad():
                    master.grad.add_(found.pop(id(master)))
        return found

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Inside, layers that are alone read their copies."""
        for copy in self.alone:
            copy.layers[0]._parameters.update(weight=copy.weight, bias=copy.bias)
        try:
            yield
        finally:
            for copy in self.alone:
                bias = copy.biases[0] if copy.biases else None
                copy.layers[0]._parameters.update(weight=copy.weights[0], bias=bias)

    @torch.no_grad()
    def collect(self) -> None:
        """Move the gradients of the copies to the weights."""
        places: list[Tensor] = []
        found: list[Tensor] = []
        for copy in self.copies:
            for master, gradient in copy.gradients():
                if master.grad is None:
                    master.grad = self.room[id(master)]
                    places.append(master.grad)
                    found.append(gradient)
                else:
                    master.grad.add_(gradient)
        self.clear()
        if places:
            torch._foreach_copy_(places, found)
