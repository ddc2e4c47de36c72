"""Objectives that compare rows with learnt centers of the classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from closeknit.centers import center_loss
from closeknit.errors import ConfigError
from closeknit.geometry import at_least_float32, in_own_precision, safe_sqrt, squared_distances, unit
from closeknit.objectives.checks import not_negative, one_label_each, positive


class ProxyNCA(nn.Module):
    """A row nearer to the proxy of its class than to those of the *other* classes (Movshovitz-Attias, 2017).

        loss = mean_i -log [ exp(-scale d(z_i, p_{y_i})) / sum_{c != y_i} exp(-scale d(z_i, p_c)) ]

    Rows and proxies are unit; d is the Euclidean distance, or its square with `squared`. The loss
    can be negative: a row on its proxy, two classes at a right angle, gives -1.414.
    """

    def __init__(self, dim: int, classes: int, *, scale: float = 1.0, squared: bool = False) -> None:
        super().__init__()
        if classes < 2:
            raise ConfigError(f"ProxyNCA compares classes; it was given {classes}")
        self.scale, self.squared = positive("scale", scale), squared
        self.proxies = nn.Parameter(unit(torch.randn(classes, dim)))

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = at_least_float32(z)  # (R, D)
        w = unit(self.proxies.to(z.dtype))  # (C, D)
        if len(y) == 0:
            return z.sum() * 0.0 + w.sum() * 0.0
        square = squared_distances(unit(z), w)  # (R, C)
        d = self.scale * (square if self.squared else safe_sqrt(square))  # (R, C)
        y = y.long()[:, None]  # (R, 1)
        return (d.gather(1, y).squeeze(1) + (-d).scatter(1, y, -torch.inf).logsumexp(1)).mean()


class SoftTriple(nn.Module):
    """Softmax over classes that each keep several learnt centers (Qian et al., ICCV 2019).

    Rows z_i and centers w_ck are compared on the unit sphere. A class answers with a soft
    maximum over its K centers, and the true class has to win by a margin:

        s_ic = sum_k softmax_k(<z_i, w_ck> / gamma) * <z_i, w_ck>
        loss = mean_i -log softmax_c(scale * (s_ic - margin * [c = y_i]))[y_i]
             + tau * sum_c sum_{k<l} sqrt(2 + 1e-5 - 2 <w_ck, w_cl>) / (C K (K - 1))

    The last term draws the centers of a class together, so that spare ones merge.
    A row that is orthogonal to every center gives, without a margin, log C. A row with label -1 counts for nothing.
    """

    takes_gaps = True

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        centers: int = 10,
        gamma: float = 0.1,
        scale: float = 20.0,
        margin: float = 0.01,
        tau: float = 0.0,
    ) -> None:
        super().__init__()
        positive("centers", centers)
        self.gamma, self.scale = positive("gamma", gamma), positive("scale", scale)
        self.margin, self.tau = not_negative("margin", margin), not_negative("tau", tau)
        # Unit length at the start, so that a learning rate means the same in every dimension.
        self.proxies = nn.Parameter(unit(torch.randn(classes, centers, dim)))

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        K = self.proxies.shape[1]
        if len(y) == 0:
            return at_least_float32(z).sum() * 0.0 + self.proxies.sum() * 0.0
        options = {"gamma": self.gamma, "scale": self.scale, "margin": self.margin}
        loss = center_loss(z, self.proxies, y.long(), **options)  # ()
        if self.tau > 0 and K > 1:
            loss = loss + self.tau * _Spread.apply(unit(self.proxies.to(loss)))
        return loss


class _Spread(torch.autograd.Function):
    """The mean-like distance between the unit centers (C, K, D) of each class.

    One class at a time, and its gradient with it, so that no more than the (K, K) of one class are ever kept.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        C, K, _ = w.shape
        pairs = C * K * (K - 1)
        total, slope = w.new_zeros(()), torch.empty_like(w)
        for own, place in zip(w, slope, strict=True):  # (K, D)
            gap = (own @ own.T).mul_(-2.0).add_(2.0 + 1e-5).sqrt_().fill_diagonal_(0.0)  # (K, K)
            total += 0.5 * gap.sum() / pairs
            torch.mm(gap.reciprocal_().fill_diagonal_(0.0), own, out=place).div_(-pairs)
        ctx.save_for_backward(slope)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        found: Tensor = slope * outer[0]
        return found
