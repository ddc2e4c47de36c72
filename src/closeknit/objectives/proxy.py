"""Objectives that compare rows with learnt centers of the classes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..geometry import at_least_float32, soft_maximum, unit


class SoftTriple(nn.Module):
    """Softmax over classes that each keep several learnt centers (Qian et al., ICCV 2019).

    Rows z_i and centers w_ck are compared on the unit sphere. A class answers with a soft
    maximum over its K centers, and the true class has to win by a margin:

        s_ic = sum_k softmax_k(<z_i, w_ck> / gamma) * <z_i, w_ck>
        loss = mean_i -log softmax_c(scale * (s_ic - margin * [c = y_i]))[y_i]
             + tau * sum_c sum_{k<l} sqrt(2 + 1e-5 - 2 <w_ck, w_cl>) / (C K (K - 1))

    The last term draws the centers of a class together, so that spare ones merge.
    A row that is orthogonal to every center gives, without a margin, log C.
    """

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
        for name, value in (("centers", centers), ("gamma", gamma), ("scale", scale)):
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} is {value}; it must be above 0")
        for name, value in (("margin", margin), ("tau", tau)):
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{name} is {value}; it must not be negative")
        self.gamma, self.scale, self.margin, self.tau = gamma, scale, margin, tau
        # Unit length at the start, so that a learning rate means the same in every dimension.
        self.proxies = nn.Parameter(unit(torch.randn(classes, centers, dim)))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        z = at_least_float32(z)  # (R, D)
        w = unit(self.proxies.to(z.dtype))  # (C, K, D)
        if len(y) == 0:
            return z.sum() * 0.0 + w.sum() * 0.0
        score = soft_maximum(unit(z), w, self.gamma)  # (R, C)
        handicap = self.margin * F.one_hot(y, w.shape[0]).to(score)  # (R, C)
        loss = F.cross_entropy(self.scale * (score - handicap), y)  # ()
        return loss + self.tau * _spread(w) if self.tau > 0 and w.shape[1] > 1 else loss


def _spread(w: Tensor) -> Tensor:
    """The mean-like distance between the centers (C, K, D) of each class, one class at a time."""
    C, K, _ = w.shape
    upper = torch.ones(K, K, dtype=torch.bool, device=w.device).triu(1)
    total = w.new_zeros(())
    for own in w:  # (K, D)
        inner = (own @ own.T)[upper]  # (K (K - 1) / 2,)
        total = total + (2.0 + 1e-5 - 2.0 * inner).sqrt().sum()
    return total / (C * K * (K - 1))
