"""Points on the unit sphere: lengths, distances, masks and masked sums."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Rows divided by their L2 norm; a row of zeros stays zero and takes no gradient."""
    return x * inverse_length(x)


def inverse_length(x: Tensor) -> Tensor:
    """One over the L2 norm of each row (..., 1), in float32 at least; 0 for a row of zeros."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=at_least_float32(x[:0]).dtype)
    tiny = torch.finfo(norm.dtype).tiny
    return torch.where(norm > tiny, 1.0 / norm.clamp_min(tiny), 0.0)


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision is lifted to float32; float32 and float64 stay."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


# ---------------------------------------------------------------- rows against rows


def squared_distances(z: Tensor) -> Tensor:
    """Squared Euclidean distances (R, R) between rows (R, D)."""
    square = z.square().sum(1)  # (R,)
    return square[:, None] + square[None, :] - 2.0 * z @ z.T


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
