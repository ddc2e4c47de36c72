"""Objectives on the score of a pair of texts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.objectives.geometry import at_least_float32


class MeanSquared(nn.Module):
    """Mean squared error of scores (R,) or (R, 1) against as many targets; for similarity.

    loss = mean_i (score_i - y_i)^2
    """

    def forward(self, scores: Tensor, y: Tensor) -> Tensor:
        scores = at_least_float32(scores).flatten()  # (R,)
        if len(y) == 0:
            return scores.sum() * 0.0
        return F.mse_loss(scores, y.flatten().to(scores))


class BinaryCrossEntropy(nn.Module):
    """Cross-entropy of logits (R,) or (R, 1) against as many targets in [0, 1]; for paraphrases.

    loss = mean_i -[ y_i log p_i + (1 - y_i) log(1 - p_i) ],   p_i = sigmoid(logit_i)
    """

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        logits = at_least_float32(logits).flatten()  # (R,)
        if len(y) == 0:
            return logits.sum() * 0.0
        return F.binary_cross_entropy_with_logits(logits, y.flatten().to(logits))
