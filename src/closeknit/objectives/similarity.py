"""Objectives on the score of a pair of texts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as _binary

from closeknit.geometry import at_least_float32


class MeanSquared(nn.Module):
    """Mean squared error of scores (R,) or (R, 1) against as many targets: similarity."""

    def forward(self, scores: Tensor, y: Tensor) -> Tensor:
        scores = at_least_float32(scores).flatten()  # (R,)
        return F.mse_loss(scores, y.flatten().to(scores)) if len(y) else scores.sum() * 0.0


class BinaryCrossEntropy(nn.Module):
    """Cross-entropy of logits (R,) or (R, 1) against as many targets in [0, 1]: paraphrase or not."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        logits = at_least_float32(logits).flatten()  # (R,)
        return _binary(logits, y.flatten().to(logits)) if len(y) else logits.sum() * 0.0
