"""ProxyNCA: rows compared with one learnt proxy per class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from closeknit.errors import ConfigError
from closeknit.objectives.checks import one_label_each, positive
from closeknit.objectives.geometry import (
    at_least_float32,
    in_own_precision,
    masked_mean,
    safe_sqrt,
    squared_distances,
    unit,
)
from closeknit.objectives.joint import MetricPart
from closeknit.objectives.view import view_of_tokens


class ProxyNCA(nn.Module):
    """Each row nearer to the proxy of its class than to those of the *other* classes
    (Movshovitz-Attias, 2017).

        loss = mean_i -log [ exp(-scale d(z_i, p_{y_i})) / sum_{c != y_i} exp(-scale d(z_i, p_c)) ]

    Rows and proxies are unit; d is the Euclidean distance, or its square with `squared`. The loss
    can be negative: a row on its proxy, two classes at a right angle, gives -1.414. A row with
    label -1 takes no part in the mean.
    """

    takes_gaps = True  # rows with label -1 take no part in the loss

    def __init__(
        self, dim: int, classes: int, *, scale: float = 1.0, squared: bool = False
    ) -> None:
        super().__init__()
        if classes < 2:
            raise ConfigError(
                f"ProxyNCA compares classes, so it needs at least 2; it was given {classes}"
            )
        self.scale = positive("scale", scale)
        self.squared = squared
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
        true_class = y.long().clamp_min(0)[:, None]  # (R, 1)
        to_true_class = d.gather(1, true_class).squeeze(1)  # (R,)
        log_sum_of_others = (-d).scatter(1, true_class, -torch.inf).logsumexp(1)  # (R,)
        return masked_mean(to_true_class + log_sum_of_others, y >= 0)


def build_proxy_nca(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    scale: float = 1.0,
    squared: bool = False,
    tokens: str = "pooled",
) -> MetricPart:
    """Cross-entropy on the logits plus ProxyNCA on the pooled vector: one learnt proxy per class.

    scale: steepness of the softmax over proxies; 1 to 10
    squared: true for squared distances, as in the original method
    tokens: pooled (one vector per text), real (every token, no padding), content (no padding and no
        special tokens) or all (also padding)
    """
    proxy_nca = ProxyNCA(dim, classes, scale=scale, squared=squared)
    return MetricPart(proxy_nca, view_of_tokens(tokens))
