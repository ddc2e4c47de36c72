"""Cross-entropy on class logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.errors import ConfigError
from closeknit.objectives.copies import ONCE, Copies
from closeknit.objectives.geometry import at_least_float32
from closeknit.objectives.joint import Joint, Term


class CrossEntropy(nn.Module):
    """Cross-entropy of class logits (R, C) against labels (R,).

        loss = mean_i -log softmax(logits_i)[y_i]

    `label_smoothing` spreads that share of the target evenly over all classes. With `class_weights`
    (C,) each row counts with the weight of its class, and the mean is the weighted mean.

    Two rows with logits (0, 0) and any labels give log 2.
    """

    default_view = "logits"
    class_weights: Tensor | None

    def __init__(
        self, *, label_smoothing: float = 0.0, class_weights: Sequence[float] | Tensor | None = None
    ) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing < 1.0:
            raise ConfigError(f"label_smoothing is {label_smoothing}; it must be from 0 to below 1")
        self.label_smoothing = label_smoothing
        weights = (
            None if class_weights is None else torch.as_tensor(class_weights, dtype=torch.float64)
        )
        if weights is not None:
            _check_class_weights(weights)
        # Class weights are an option, not something learnt: they are not saved.
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        logits = at_least_float32(logits)  # (R, C)
        if len(y) == 0:
            return logits.sum() * 0.0
        y = y.long()
        if self.class_weights is None:
            return F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        weights = self.class_weights.to(logits)  # (C,)
        total = F.cross_entropy(
            logits, y, weight=weights, label_smoothing=self.label_smoothing, reduction="sum"
        )
        mass = weights[y].sum()  # ()
        return torch.where(mass > 0, total / torch.where(mass > 0, mass, 1.0), 0.0 * total)


def _check_class_weights(weights: Tensor) -> None:
    if weights.dim() != 1:
        raise ConfigError(
            f"class_weights has shape {tuple(weights.shape)}; give one weight for each class"
        )
    if not (bool((weights >= 0).all()) and 0 < float(weights.sum()) < math.inf):
        raise ConfigError("class_weights must be finite, and neither negative nor all zero")


def build_cross_entropy(
    dim: int,
    classes: int,
    *,
    labels: Sequence[str] | None = None,
    copies: Copies = ONCE,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Joint:
    """Cross-entropy on the logits of the classifier: the baseline, and a good one.

    label_smoothing: share of the cross-entropy's target spread evenly over all classes; 0 to 0.2
    class_weights: a weight for each class in sorted order, or balanced for the inverse of its
        frequency
    """
    cross_entropy = CrossEntropy(label_smoothing=label_smoothing, class_weights=class_weights)
    return Joint([Term("cross_entropy", 1.0, cross_entropy, "logits")], copies=copies)
