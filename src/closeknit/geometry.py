"""Points on the unit sphere, and the soft maximum over a class's centers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Similarities held at once, in elements: 32 MiB in float32, whatever the number of rows and centers.
CHUNK_ELEMENTS = 2**23


def unit(x: Tensor) -> Tensor:
    """Rows divided by their L2 norm; a row of zeros stays zero and takes no gradient."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    tiny = torch.finfo(x.dtype).tiny
    return torch.where(norm > tiny, x / norm.clamp_min(tiny), torch.zeros_like(x))


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision is lifted to float32; float32 and float64 stay."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def soft_maximum(z: Tensor, w: Tensor, gamma: float) -> Tensor:
    """The soft maximum over centers of each row's similarity to each class.

    For rows z (R, D) and centers w (C, K, D):

        S_ic = sum_k softmax_k(<z_i, w_ck> / gamma) * <z_i, w_ck>      -> (R, C)

    The (R, C, K) similarities are never all kept: rows are taken in chunks, forward and backward,
    and the backward pass computes them again. With p the softmax, dS/ds_k = p_k (1 + (s_k - S) / gamma).
    """
    scores: Tensor = _SoftMaximum.apply(z, w, gamma)
    return scores


class _SoftMaximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, gamma: float) -> Tensor:
        scores = z.new_empty(z.shape[0], w.shape[0])  # (R, C)
        for rows in _chunks(z, w):
            near, share = _near(z[rows], w, gamma)
            scores[rows] = torch.einsum("rck,rck->rc", share, near)
        ctx.save_for_backward(z, w, scores)
        ctx.gamma = gamma
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients  # (R, C)
        z, w, scores = ctx.saved_tensors
        flat = w.flatten(0, 1)  # (C K, D)
        grad_z, grad_w = torch.empty_like(z), torch.zeros_like(flat)
        for rows in _chunks(z, w):
            near, share = _near(z[rows], w, ctx.gamma)
            slope = near.sub_(scores[rows].unsqueeze(-1)).div_(ctx.gamma).add_(1.0)
            slope.mul_(share).mul_(gradient[rows].unsqueeze(-1))  # (r, C, K), d loss / d near
            slope = slope.flatten(1)  # (r, C K)
            grad_z[rows] = slope @ flat
            grad_w.addmm_(slope.T, z[rows])
        return grad_z, grad_w.view_as(w), None


def _chunks(z: Tensor, w: Tensor) -> list[slice]:
    height = max(1, CHUNK_ELEMENTS // (w.shape[0] * w.shape[1]))
    return [slice(start, start + height) for start in range(0, z.shape[0], height)]


def _near(z: Tensor, w: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Similarities (r, C, K) of some rows to every center, and their softmax over K."""
    near = (z @ w.flatten(0, 1).T).view(z.shape[0], *w.shape[:2])
    return near, torch.softmax(near / gamma, dim=-1)


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
