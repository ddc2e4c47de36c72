"""Half-precision copies of the weights of linear layers, made together once per update.

Under autocast every weight is cast separately, and so is its gradient on the way back: hundreds of
small kernels. Here one operation makes all copies, and one operation brings all gradients back. The
numbers are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from closeknit.encoders.run_time_modules import convert_linears, linears_reading


class HalfCopy:
    """The copies of some linear layers as one: weights (sum of outputs, inputs) and biases."""

    def __init__(self, layers: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.layers = tuple(layers)
        self.weights: list[Any] = [layer.weight for layer in layers]  # the originals
        self.biases: list[Any] = [layer.bias for layer in layers if layer.bias is not None]
        self.sizes = [layer.out_features for layer in layers]
        learns = any(weight.requires_grad for weight in self.weights)

        def empty(*shape: int) -> nn.Parameter:
            values = torch.empty(shape, dtype=dtype, device=self.weights[0].device)
            return nn.Parameter(values, requires_grad=learns)

        self.weight = empty(sum(self.sizes), layers[0].in_features)
        self.bias = empty(sum(self.sizes)) if self.biases else None

    def parts(self) -> list[tuple[Any, Tensor]]:
        """Each weight and bias, and its part of the copy."""
        return self._matched(
            self.weight.detach(), None if self.bias is None else self.bias.detach()
        )

    def gradients(self) -> list[tuple[Any, Tensor]]:
        """Each weight and bias that has a gradient here, and this gradient."""
        return self._matched(self.weight.grad, None if self.bias is None else self.bias.grad)

    def _matched(self, weight: Tensor | None, bias: Tensor | None) -> list[tuple[Any, Tensor]]:
        pairs: list[tuple[Any, Tensor]] = []
        if weight is not None:
            pairs += zip(self.weights, weight.split(self.sizes), strict=True)
        if bias is not None:
            pairs += zip(self.biases, bias.split(self.sizes), strict=True)
        return pairs


class HalfWeights:
    """Copies of the weights of all linear layers of a module.

    The layers of a group in `together` share one copy, which `copy_of` gives to code that computes
    them as one product. All other layers read their copies themselves inside `in_use()`.
    `refresh()` makes the copies anew, and `collect_gradients()` moves the gradients of the copies
    to the weights that they were made of.
    """

    def __init__(
        self, module: nn.Module, dtype: torch.dtype, together: Sequence[Sequence[nn.Linear]] = ()
    ) -> None:
        grouped = [layer for group in together for layer in group]
        separate = [HalfCopy([layer], dtype) for layer in convert_linears(module, skip=grouped)]
        self.copies = [*separate, *(HalfCopy(group, dtype) for group in together)]
        self._copy_of = {id(layer): copy for copy in self.copies for layer in copy.layers}
        self._read_by_layers = {id(copy.layers[0]): (copy.weight, copy.bias) for copy in separate}
        pairs = [pair for copy in self.copies for pair in copy.parts()]
        self.masters = [master for master, _ in pairs]  # weights and biases in full precision
        self.parts = [part for _, part in pairs]
        self._gradient_memory = self._allocate_gradients()

    def _allocate_gradients(self) -> dict[int, Tensor]:
        """Memory for the gradient of each weight and bias in full precision, by the weight's id."""
        sizes = [part.numel() for part in self.parts]
        flat = torch.empty(sum(sizes), device=self.parts[0].device if self.parts else None)
        pieces = zip(flat.split(sizes), self.masters, strict=True)
        return {id(master): piece.view_as(master) for piece, master in pieces}

    def copy_of(self, layer: nn.Linear) -> HalfCopy:
        """The copy that holds a layer's weights."""
        return self._copy_of[id(layer)]

    @property
    def by_master(self) -> dict[int, Tensor]:
        """The copy of each weight, by the weight's id."""
        return {id(master): part for master, part in zip(self.masters, self.parts, strict=True)}

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the copies anew."""
        if self.parts:
            torch._foreach_copy_(self.parts, self.masters)

    def clear_gradients(self) -> None:
        """Forget the gradients of the copies."""
        for copy in self.copies:
            copy.weight.grad = None
            if copy.bias is not None:
                copy.bias.grad = None

    def gradients(self) -> dict[int, Tensor]:
        """The gradients of the copies, by the id of the weight.

        Where a weight has a gradient in full precision too, both are added there, and the copy's is
        left out here.
        """
        gradients = {
            id(master): gradient for copy in self.copies for master, gradient in copy.gradients()
        }
        for master in self.masters:
            if master.grad is not None and id(master) in gradients:
                with torch.no_grad():
                    master.grad.add_(gradients.pop(id(master)))
        return gradients

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """Inside, layers whose copy is not shared read this copy."""
        return linears_reading(self._read_by_layers)

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Move the gradients of the copies to the weights."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for copy in self.copies:
            for master, gradient in copy.gradients():
                if master.grad is None:
                    master.grad = self._gradient_memory[id(master)]
                    targets.append(master.grad)
                    sources.append(gradient)
                else:
                    master.grad.add_(gradient)
        self.clear_gradients()
        if targets:
            torch._foreach_copy_(targets, sources)
