"""Triplets: an anchor nearer to a row of its class than to a row of another class, by a margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.checks import one_label_each, positive
from closeknit.objectives.geometry import (
    at_least_float32,
    in_own_precision,
    masked_mean,
    same_label,
    squared_distances,
    unit,
)
from closeknit.objectives.joint import MetricPart
from closeknit.objectives.view import ONE_VECTOR, TOKEN_ROWS, rows_of_tokens, view_of_tokens

MININGS = ("all", "hard", "semi_hard")


class Triplet(nn.Module):
    """Triplets of unit rows with squared Euclidean distances d; anchor a, positive p, negative n:

        loss = mean of max(0, d(a, p) - d(a, n) + margin)

    over the chosen triplets. `mining`: "all" takes every valid triplet; "hard" takes, per anchor,
    its farthest positive and its nearest negative; "semi_hard" takes negatives that are farther
    than the positive, but by less than the margin. Anchor and positive at a right angle (2), the
    negative opposite (4), margin 3: the loss is 1.
    """

    needs_positives = True

    def __init__(self, *, margin: float = 0.2, mining: str = "all") -> None:
        super().__init__()
        if mining not in MININGS:
            raise ConfigError(f"mining is {mining}{did_you_mean(str(mining), MININGS)}")
        self.margin = positive("margin", margin)
        self.mining = mining

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0
        d = squared_distances(z)  # (R, R)
        is_positive = same_label(y)  # (R, R)
        is_negative = y[:, None] != y[None, :]  # (R, R)
        if self.mining == "hard":
            return self._hard(d, is_positive, is_negative)
        semi_hard = self.mining == "semi_hard"
        loss: Tensor = _MeanOverTriplets.apply(d, is_positive, is_negative, self.margin, semi_hard)
        return loss

    def _hard(self, d: Tensor, is_positive: Tensor, is_negative: Tensor) -> Tensor:
        is_anchor = is_positive.any(1) & is_negative.any(1)  # (R,)
        farthest = d.masked_fill(~is_positive, -torch.inf).amax(1)  # (R,)
        nearest = d.masked_fill(~is_negative, torch.inf).amin(1)  # (R,)
        difference = torch.where(is_anchor, farthest, 0.0) - torch.where(
            is_anchor, nearest, 0.0
        )  # (R,)
        return masked_mean((difference + self.margin).clamp_min(0.0), is_anchor)


class _MeanOverTriplets(torch.autograd.Function):
    """The mean over (anchor, positive, negative) from the (R, R) distances alone.

    For an anchor and a positive, the negatives that are nearer than d + margin are a range of the
    anchor's sorted negatives: a binary search gives their number, and a difference of cumulative
    sums gives the sum of their distances. The gradient of a distance is the number of triplets that
    it belongs to, found the same way. No tensor (R, R, R) is needed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        d: Tensor,
        is_positive: Tensor,
        is_negative: Tensor,
        margin: float,
        semi_hard: bool,
    ) -> Tensor:
        negatives = (
            torch.where(is_negative, d, torch.inf).sort(1).values
        )  # (R, R), nearest first, then inf
        positives = (
            torch.where(is_positive, d, torch.inf).sort(1).values
        )  # (R, R), nearest first, then inf
        sums = torch.where(negatives.isinf(), 0.0, negatives).double().cumsum(1)
        sums = F.pad(sums, (1, 0))  # (R, R + 1): sums of the 0, 1, 2, ... nearest negatives

        # For each anchor and positive, the chosen negatives have the sorted positions first ...
        # last - 1.
        reach = d + margin  # (R, R)
        last = torch.searchsorted(negatives, reach)  # (R, R)
        first = (
            torch.searchsorted(negatives, d, right=True) if semi_hard else torch.zeros_like(last)
        )
        first = torch.minimum(first, last)
        number = last - first  # (R, R)
        losses = number * reach.double() - (sums.gather(1, last) - sums.gather(1, first))  # (R, R)
        total = torch.where(is_positive, losses, 0.0).sum()

        # For each anchor and negative, the positives that form a chosen triplet with it.
        positives_below = (
            torch.searchsorted(positives, d) if semi_hard else is_positive.sum(1, keepdim=True)
        )
        positives_too_near = torch.searchsorted(positives, d - margin, right=True)
        with_negative = (positives_below - positives_too_near).clamp_min(0)  # (R, R)

        number_of_all = (is_positive.sum(1) * is_negative.sum(1)).sum()
        number_of_chosen = torch.where(is_positive, number, 0).sum()
        triplets = number_of_chosen if semi_hard else number_of_all
        count = triplets.clamp_min(1)
        gradient = torch.where(is_positive, number, 0) - torch.where(
            is_negative, with_negative, 0
        )  # (R, R)
        ctx.save_for_backward(gradient.to(d.dtype) / count)
        return (total / count).to(d.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None, None


def build_triplet(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    margin: float = 0.2,
    mining: str = "all",
    tokens: str = "pooled",
    token_rows: int = TOKEN_ROWS,
) -> MetricPart:
    """Cross-entropy on the logits plus triplets of the pooled vectors of the batch.

    margin: by how much another class must be farther away; 0.1 to 1
    mining: all triplets, hard (farthest positive, nearest negative) or semi_hard
    tokens: pooled (one vector per text), real (every token, no padding), content (no padding and no
        special tokens) or all (also padding)
    token_rows: with tokens, how many of a batch's tokens are compared, drawn anew for each batch;
        the memory grows with the square of it; 256 to 4096
    """
    view = view_of_tokens(tokens)
    rows = rows_of_tokens(tokens, token_rows)
    if tokens != ONE_VECTOR and mining == "all":
        raise ConfigError(
            f"objective.tokens is {tokens} and objective.mining is all, but nearly all triplets of "
            f"up to {rows} tokens are easy ones; set objective.mining to hard or semi_hard"
        )
    return MetricPart(Triplet(margin=margin, mining=mining), view, token_rows=rows)
