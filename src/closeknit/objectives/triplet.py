"""Triplets: an anchor nearer to a row of its class than to a row of another, by a margin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from closeknit.errors import ConfigError, did_you_mean
from closeknit.geometry import (
    at_least_float32,
    in_own_precision,
    masked_mean,
    same_label,
    squared_distances,
    unit,
)
from closeknit.objectives.checks import one_label_each, positive

MININGS = ("all", "hard", "semi_hard")


class Triplet(nn.Module):
    """Squared Euclidean distances between unit rows; anchor a, positive p, negative n:

        loss = mean of max(0, d(a, p) - d(a, n) + margin)

    over the chosen triplets. `mining`: "all" every valid triplet; "hard" per anchor its farthest
    positive and nearest negative; "semi_hard" negatives farther than the positive, but by less
    than the margin. Anchor and positive at a right angle (2), the negative opposite (4), margin
    3: the loss is 1.
    """

    needs_positives = True

    def __init__(self, *, margin: float = 0.2, mining: str = "all") -> None:
        super().__init__()
        if mining not in MININGS:
            raise ConfigError(f"mining is {mining}{did_you_mean(str(mining), MININGS)}")
        self.margin, self.mining = positive("margin", margin), mining

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0
        d = squared_distances(z)  # (R, R)
        same, other = same_label(y), y[:, None] != y[None, :]  # (R, R)
        if self.mining == "hard":
            valid = same.any(1) & other.any(1)  # (R,)
            farthest = d.masked_fill(~same, -torch.inf).amax(1)  # (R,)
            nearest = d.masked_fill(~other, torch.inf).amin(1)  # (R,)
            gap = torch.where(valid, farthest, 0.0) - torch.where(valid, nearest, 0.0) + self.margin  # (R,)
            return masked_mean(gap.clamp_min(0.0), valid)
        loss: Tensor = _Triplets.apply(d, same, other, self.margin, self.mining == "semi_hard")
        return loss


class _Triplets(torch.autograd.Function):
    """The mean over (anchor, positive, negative) from the (R, R) distances alone.

    For an anchor and a positive, the negatives nearer than d + margin are a stretch of that anchor's
    sorted negatives: their number is a search, their sum a difference of running sums. The gradient
    of a distance is the number of triplets it takes part in, found the same way. No (R, R, R) exists.
    """

    @staticmethod
    def forward(ctx: Any, d: Tensor, same: Tensor, other: Tensor, margin: float, semi_hard: bool) -> Tensor:
        far = torch.where(other, d, torch.inf).sort(1).values  # (R, N) negatives of each anchor, then inf
        near = torch.where(same, d, torch.inf).sort(1).values  # (R, P) positives
        running = torch.where(far.isinf(), 0.0, far).double().cumsum(1)
        running = torch.nn.functional.pad(running, (1, 0))  # (R, N + 1) sums of the nearest ones
        reach = d + margin
        last = torch.searchsorted(far, reach)  # (R, R) negatives below each positive's reach
        first = torch.searchsorted(far, d, right=True) if semi_hard else torch.zeros_like(last)
        first = torch.minimum(first, last)
        sums = (last - first) * reach.double() - (running.gather(1, last) - running.gather(1, first))
        total = torch.where(same, sums, 0.0).sum()
        chosen = torch.where(same, last - first, 0).sum() if semi_hard else (same.sum(1) * other.sum(1)).sum()
        upper = torch.searchsorted(near, d) if semi_hard else same.sum(1, keepdim=True)
        lower = torch.searchsorted(near, d - margin, right=True)  # positives too near to count
        slope = torch.where(same, last - first, 0) - torch.where(other, (upper - lower).clamp_min(0), 0)
        count = chosen.clamp_min(1)
        ctx.save_for_backward(slope.to(d.dtype) / count)
        return (total / count).to(d.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0], None, None, None, None
