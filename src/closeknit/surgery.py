"""Ways to combine the gradients that several tasks have for the parameters that they share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_PIECE = 2**20  # columns of half-precision gradients that are widened at once


def pcgrad(gradients: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The sum (P,) of task gradients (T, P), after each is projected off the gradients it
    contradicts (Yu et al., NeurIPS 2020).

        g_i' = g_i
        for the other tasks j in random order:  if <g_i', g_j> < 0:
            g_i' -= <g_i', g_j> / <g_j, g_j> g_j
        result = sum_i g_i'

    The g_j are the original gradients. Every g_i' is a combination of them, so that their products
    decide everything: the projections are computed on T x T numbers, and one product with the
    gradients gives the result. No second copy of the gradients is made. `generator`, a CPU one,
    decides the order.

    [1, 0] and [-1, 1] give [0.5, 1.5].
    """
    if gradients.dim() != 2:
        raise ValueError(
            f"expected the tasks' gradients as rows, (T, P); got {tuple(gradients.shape)}"
        )
    if not gradients.is_floating_point():
        raise ValueError(f"expected gradients of a floating type; got {gradients.dtype}")
    tasks = len(gradients)
    products = products_of(gradients).double().cpu()  # (T, T)
    mixed = torch.eye(tasks, dtype=torch.float64)  # row i: how g_i' is made of all g
    for i in range(tasks):
        for j in torch.randperm(tasks, generator=generator).tolist():
            along = mixed[i] @ products[j]  # <g_i', g_j>
            if (
                j != i and bool(along < 0) and bool(products[j, j] > 0)
            ):  # a tiny square may have become 0
                mixed[i, j] -= along / products[j, j]
    combined: Tensor = mixed.sum(0).to(gradients) @ gradients
    return combined


def products_of(gradients: Tensor) -> Tensor:
    """The products <g_i, g_j> (T, T), in the gradients' precision; for half precision in float32."""
    if gradients.element_size() > 2:
        return gradients @ gradients.T
    products = gradients.new_zeros(len(gradients), len(gradients), dtype=torch.float32)
    for piece in gradients.split(_PIECE, dim=1):  # float16 overflows at the square of some hundreds
        products += piece.float() @ piece.float().T
    return products


def cosines(gradients: Tensor) -> Tensor:
    """The cosines (T, T) between the gradients (T, P) of tasks; 0 for a gradient that is zero."""
    products = products_of(gradients).double()
    lengths = products.diagonal().sqrt()  # (T,)
    agreement = products / (lengths[:, None] * lengths[None, :])
    return torch.where((lengths[:, None] > 0) & (lengths[None, :] > 0), agreement, 0.0).clamp(
        -1.0, 1.0
    )


class SeparateGradients:
    """The gradients of the tasks of one update, a row (P,) for each task: all memory that keeping
    them separate costs.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], tasks: int) -> None:
        self.parameters = list(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.used = [False] * len(
            self.parameters
        )  # whether any task has a gradient for a parameter
        first = self.parameters[0]
        self.rows = torch.zeros(tasks, sum(self.sizes), dtype=first.dtype, device=first.device)

    def take(self, task: int) -> None:
        """Move the gradients that the parameters have now into a task's row."""
        pieces = self.rows[task].split(self.sizes)
        for number, (piece, parameter) in enumerate(zip(pieces, self.parameters, strict=True)):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad.flatten())
                self.used[number] = True
            parameter.grad = None

    def give_back(self, combined: Tensor) -> None:
        """Let these (P,) be the gradients of the parameters.

        A parameter that no task uses gets none, so that it does not decay either.
        """
        pieces = combined.split(self.sizes)
        for piece, parameter, used in zip(pieces, self.parameters, self.used, strict=True):
            parameter.grad = piece.view_as(parameter) if used else None
