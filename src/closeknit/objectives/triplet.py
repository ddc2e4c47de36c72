"""Triplets: an anchor nearer to a row of its class than to a row of another, by a margin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .. import geometry
from ..errors import ConfigError, did_you_mean
from ..geometry import at_least_float32, masked_mean, same_label, squared_distances, unit
from .checks import positive

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

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
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
    """The mean over (anchor, positive, negative), some anchors at a time.

    The gradient with respect to the (R, R) distances only counts in how many triplets each takes
    part, so the forward pass finds it as it goes; the (R, R, R) triplets are never all kept.
    """

    @staticmethod
    def forward(ctx: Any, d: Tensor, same: Tensor, other: Tensor, margin: float, semi_hard: bool) -> Tensor:
        R = len(d)
        total, count, slope = d.new_zeros(()), 0, torch.zeros_like(d)
        height = max(1, geometry.CHUNK_ELEMENTS // max(1, R * R))
        for start in range(0, R, height):
            rows = slice(start, start + height)
            gap = d[rows, :, None] - d[rows, None, :] + margin  # (r, P, N)
            chosen = same[rows, :, None] & other[rows, None, :]  # (r, P, N)
            if semi_hard:
                chosen &= (gap > 0) & (gap < margin)
            active = chosen & (gap > 0)
            total = total + torch.where(active, gap, 0.0).sum()
            count += int(chosen.sum())
            slope[rows] = active.sum(2).to(d) - active.sum(1).to(d)
        ctx.save_for_backward(slope / max(count, 1))
        return total / max(count, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0], None, None, None, None
