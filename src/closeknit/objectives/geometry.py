"""Points on the unit sphere: lengths, distances, masks and masked sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
# A squared distance between unit rows that is smaller than this is a rounding error.
SMALLEST_SQUARED_DISTANCE = 1e-13


def in_own_precision(forward: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Makes an objective's `forward` compute in float32 or float64, also inside
    `torch.autocast`.
    """

    @functools.wraps(forward)
    def without_autocast(*positional: Arguments.args, **named: Arguments.kwargs) -> Tensor:
        z = next(value for value in (*positional, *named.values()) if isinstance(value, Tensor))
        with torch.autocast(z.device.type, enabled=False):
            return forward(*positional, **named)

    return without_autocast


def at_least_float32(x: Tensor) -> Tensor:
    """Converts half precision to float32; float32 and float64 stay as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


# ---------------------------------------------------------------- lengths


def unit(x: Tensor) -> Tensor:
    """Rows divided by their L2 norm; a row of zeros stays zero and gets no gradient."""
    x = at_least_float32(x)
    x = x * _power_of_two_near_inverse_length(x)
    return x * _inverse_norm(x)


def inverse_length(x: Tensor) -> Tensor:
    """One over the L2 norm of each row (..., 1), at least in float32; 0 for a row of zeros."""
    x = at_least_float32(x)
    scale = _power_of_two_near_inverse_length(x)
    return scale * _inverse_norm(x * scale)


def _power_of_two_near_inverse_length(x: Tensor) -> Tensor:
    """The power of two (..., 1) that brings each row close to length 1.

    Multiplying by a power of two is exact. After it, squares neither overflow nor vanish, however
    long or short the row was.
    """
    x = x.detach()
    largest = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))  # (..., 1)
    is_not_zero = largest > torch.finfo(x.dtype).tiny
    return torch.where(
        is_not_zero, torch.frexp(largest).mantissa / largest, torch.ones_like(largest)
    )


def _inverse_norm(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    tiny = torch.finfo(norm.dtype).tiny
    return torch.where(norm > tiny, 1.0 / norm.clamp_min(tiny), 0.0)


# ---------------------------------------------------------------- rows compared with rows


def squared_distances(z: Tensor, w: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances between unit rows.

    (R, C) from rows z (R, D) to rows w (C, D); without w, (R, R) between the rows of z. The
    distance between equal rows is exactly 0 and has no gradient. The computation runs in float64,
    because the distance between two near rows is a small difference of large numbers.
    """
    a = z.double()
    b = a if w is None else w.double()
    square = a.square().sum(1)[:, None] + b.square().sum(1)[None, :] - 2.0 * a @ b.T  # (R, C)
    return torch.where(square > SMALLEST_SQUARED_DISTANCE, square, 0.0).to(z.dtype)


def safe_sqrt(x: Tensor) -> Tensor:
    """The square root; where x is 0, or rounds to 0, the result is 0 and has no gradient."""
    is_positive = x > torch.finfo(x.dtype).eps ** 2
    root = torch.where(is_positive, x, torch.ones_like(x)).sqrt()
    return torch.where(is_positive, root, torch.zeros_like(x))


def same_label(y: Tensor) -> Tensor:
    """A mask (R, R) that is true where two different rows have the same label."""
    return (y[:, None] == y[None, :]) & others(len(y), y.device)


def others(rows: int, device: torch.device) -> Tensor:
    """A mask (R, R) that is true everywhere except on the diagonal."""
    return ~torch.eye(rows, dtype=torch.bool, device=device)


# ---------------------------------------------------------------- masked sums


def masked_log_sum_exp(x: Tensor, mask: Tensor) -> Tensor:
    """log sum exp over the last dimension where the mask is true; 0 if it is true nowhere."""
    is_empty = ~mask.any(-1, keepdim=True)
    kept = x.masked_fill(~mask, -torch.inf).masked_fill(is_empty, 0.0)
    zero = torch.zeros_like(x[..., 0])
    return torch.where(is_empty.squeeze(-1), zero, torch.logsumexp(kept, dim=-1))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean () of all entries of x where the mask is true.

    If the mask is true nowhere, the result is an exact zero that still back-propagates.
    """
    chosen = torch.where(mask, x, torch.zeros_like(x))
    return chosen.sum() / mask.sum().clamp_min(1)
