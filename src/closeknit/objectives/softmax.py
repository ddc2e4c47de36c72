"""Objectives on class logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.errors import ConfigError
from closeknit.geometry import at_least_float32


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
        if weights is not None and weights.dim() != 1:
            raise ConfigError(
                f"class_weights has shape {tuple(weights.shape)}; give one weight for each class"
            )
        if weights is not None and not (bool((weights >= 0).all()) and 0 < float(weights.sum()) < math.inf):
            raise ConfigError("class_weights must be finite, and neither negative nor all zero")
        self.register_buffer("class_weights", weights, persistent=False)  # an option, not learnt

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        logits = at_least_float32(logits)  # (R, C)
        if len(y) == 0:
            return logits.sum() * 0.0
        y = y.long()
        weights = None if self.class_weights is None else self.class_weights.to(logits)  # (C,)
        if weights is None:
            return F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        total = F.cross_entropy(
            logits, y, weight=weights, label_smoothing=self.label_smoothing, reduction="sum"
        )
        mass = weights[y].sum()
        return torch.where(mass > 0, total / torch.where(mass > 0, mass, 1.0), 0.0 * total)


class Consistency(nn.Module):
    """How much the chances of a text differ between its two passes through dropout (R-Drop).

        loss = mean_b ½ [ KL(p_b ‖ q_b) + KL(q_b ‖ p_b) ],   p, q = softmax of the two passes' logits

    `logits` (2 B, C) hold B texts in one order, and then again; the labels are not used.

    Logits (0, 0) and (log 3, 0) for one text give ⅛ log 3: p = (½, ½), q = (¾, ¼).
    """

    copies = 2  # of every text in a batch

    def forward(self, logits: Tensor, y: Tensor | None = None) -> Tensor:
        if len(logits) % 2:
            raise ValueError(f"{len(logits)} rows of logits are not two for each text")
        first, second = F.log_softmax(at_least_float32(logits), dim=-1).chunk(2)  # (B, C) each
        gaps = 0.5 * ((first.exp() - second.exp()) * (first - second)).sum(-1)  # (B,)
        return gaps.sum() / max(len(gaps), 1)
