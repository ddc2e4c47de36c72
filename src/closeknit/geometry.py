"""Points on the unit sphere: lengths, distances, masks and masked sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")
NOTHING = 1e-13  # squared distances between unit rows below it are rounding


def in_own_precision(forward: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """An objective's `forward` that computes in float32 or float64 inside `torch.autocast` too."""

    @functools.wraps(forward)
    def plain(*given: P.args, **named: P.kwargs) -> Tensor:
        z = next(value for value in (*given, *named.values()) if isinstance(value, Tensor))
        with torch.autocast(z.device.type, enabled=False):
            return forward(*given, **named)

    return plain


def unit(x: Tensor) -> Tensor:
    """Rows divided by their L2 norm; a row of zeros stays zero and takes no gradient."""
    x = at_least_float32(x)
    x = x * _near_one(x)
    return x * _inverse_norm(x)


def inverse_length(x: Tensor) -> Tensor:
    """One over the L2 norm of each row (..., 1), in float32 at least; 0 for a row of zeros."""
    x = at_least_float32(x)
    shrink = _near_one(x)
    return shrink * _inverse_norm(x * shrink)


def _near_one(x: Tensor) -> Tensor:
    """The power of two (..., 1) that brings a row near length 1, however long or short it is, and changes no digit of it."""
    x = x.detach()
    largest = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))
    return torch.where(
        largest > torch.finfo(x.dtype).tiny, torch.frexp(largest).mantissa / largest, torch.ones_like(largest)
    )


def _inverse_norm(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    tiny = torch.finfo(norm.dtype).tiny
    return torch.where(norm > tiny, 1.0 / norm.clamp_min(tiny), 0.0)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision is lifted to float32; float32 and float64 stay."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


# ---------------------------------------------------------------- rows against rows


def squared_distances(z: Tensor, w: Tensor | None = None) -> Tensor:
    """Squared Euclidean distances (R, C) of unit rows (R, D) to unit rows w (C, D), or (R, R) to each other.

    Exactly 0, with no gradient, between equal rows: in float64, as near ones leave only a small difference.
    """
    a = z.double()
    b = a if w is None else w.double()
    square = a.square().sum(1)[:, None] + b.square().sum(1)[None, :] - 2.0 * a @ b.T
    return torch.where(square > NOTHING, square, 0.0).to(z.dtype)


def safe_sqrt(x: Tensor) -> Tensor:
    """The square root, with 0 where x is (or rounds to) 0, and no gradient there."""
    positive = x > torch.finfo(x.dtype).eps ** 2
    return torch.where(positive, torch.where(positive, x, torch.ones_like(x)).sqrt(), torch.zeros_like(x))


def same_label(y: Tensor) -> Tensor:
    """(R, R) true where two different rows have the same label."""
    return (y[:, None] == y[None, :]) & others(len(y), y.device)


def others(rows: int, device: torch.device) -> Tensor:
    """(R, R) true off the diagonal."""
    return ~torch.eye(rows, dtype=torch.bool, device=device)


def masked_log_sum_exp(x: Tensor, mask: Tensor) -> Tensor:
    """log sum exp over the last dimension where the mask is true; 0 for a row where it is nowhere."""
    empty = ~mask.any(-1, keepdim=True)
    kept = x.masked_fill(~mask, -torch.inf).masked_fill(empty, 0.0)
    return torch.where(empty.squeeze(-1), torch.zeros_like(x[..., 0]), torch.logsumexp(kept, dim=-1))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of x where the mask is true, over all; an exact zero that back-propagates if nowhere."""
    chosen = torch.where(mask, x, torch.zeros_like(x))
    return chosen.sum() / mask.sum().clamp_min(1)
