"""Objectives on class logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..geometry import at_least_float32


class CrossEntropy(nn.Module):
    """Cross-entropy of class logits (R, C) against labels (R,).

        loss = mean_i -log softmax(logits_i)[y_i]

    `label_smoothing` gives that share of the target to all classes alike. With `class_weights`
    (C,) every row counts by the weight of its class, and the mean is the weighted one.

    Two rows with logits (0, 0) and any labels give log 2.
    """

    class_weights: Tensor | None

    def __init__(
        self, *, label_smoothing: float = 0.0, class_weights: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ConfigError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing
        weights = None if class_weights is None else torch.as_tensor(class_weights, dtype=torch.float64)
        if weights is not None and not (bool((weights >= 0).all()) and bool(weights.sum() > 0)):
            raise ConfigError("class_weights must not be negative, nor all zero")
        self.register_buffer("class_weights", weights, persistent=False)  # an option, not learnt

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        logits = at_least_float32(logits)  # (R, C)
        if len(y) == 0:
            return logits.sum() * 0.0
        weights = None if self.class_weights is None else self.class_weights.to(logits)  # (C,)
        if weights is None:
            return F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        total = F.cross_entropy(
            logits, y, weight=weights, label_smoothing=self.label_smoothing, reduction="sum"
        )
        return total / weights[y].sum().clamp_min(
            torch.finfo(logits.dtype).tiny
        )  # 0 if no row has any weight
