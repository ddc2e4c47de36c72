"""Objectives that compare the rows of a batch with each other, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.checks import one_label_each, positive
from closeknit.objectives.geometry import (
    at_least_float32,
    in_own_precision,
    masked_log_sum_exp,
    masked_mean,
    others,
    safe_sqrt,
    same_label,
    squared_distances,
    unit,
)
from closeknit.objectives.joint import MetricPart
from closeknit.objectives.view import TOKEN_ROWS, rows_of_tokens, view_of_tokens

WEIGHTINGS = ("encoder", "head")


class Contrastive(nn.Module):
    """Pairs of a class pulled together, others pushed apart up to a margin (Hadsell et al., 2006).

    Over all pairs i < j of unit rows at Euclidean distance d:

        loss = mean of  1/2 d^2                    where y_i = y_j
                        1/2 max(0, margin - d)^2   elsewhere

    Two rows of one class at a right angle give 1; two rows of different classes at a right angle
    (d = 1.414) give 0.
    """

    needs_positives = True

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = positive("margin", margin)

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0
        square = squared_distances(z)  # (R, R)
        shortfall = (self.margin - safe_sqrt(square)).clamp_min(0.0)  # (R, R)
        pair = 0.5 * torch.where(y[:, None] == y[None, :], square, shortfall.square())  # (R, R)
        above_diagonal = torch.ones_like(pair, dtype=torch.bool).triu(1)  # (R, R)
        return masked_mean(pair, above_diagonal)


class SupCon(nn.Module):
    """Supervised contrastive loss over the batch, outer form (Khosla et al., 2020), on unit rows.

        l_i = -1/|P(i)| sum_{p in P(i)} [ z_i.z_p / t - log sum_{a != i} exp(z_i.z_a / t) ]

    P(i) are the other rows with the same label. The loss is the mean over the rows with at least
    one. Four rows, two orthogonal pairs of one class each, at temperature 1 give -log(e / (e + 2)).
    """

    needs_positives = True

    def __init__(self, *, temperature: float = 0.3) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0
        near = z @ z.T / self.temperature  # (R, R)
        log_sum = masked_log_sum_exp(near, others(len(y), y.device))  # (R,)
        log_share = near - log_sum[:, None]  # (R, R)
        return mean_over_positives(-log_share, same_label(y))


class LabelAware(nn.Module):
    """Supervised contrast weighted by how easily the classes are confused (Suresh and Ong, 2021).

    `weights` (R, C) are the class probabilities that a weighting network gives for each row:

        l_i = -1/|P(i)| sum_p w_{i,y_i} [ z_i.z_p / t - log s_i ]
        s_i = sum_{a != i} w_{i,y_a} exp(z_i.z_a / t)

    on unit rows; the loss is the mean over the rows that have a positive. The gradient flows into
    the weights. Equal weights 1/C give SupCon / C - log(C) / C, since the logarithm keeps its
    constant.
    """

    needs_positives = True

    def __init__(self, *, temperature: float = 0.3) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0 + weights.sum() * 0.0
        w = weights.to(z.dtype)  # (R, C)
        y = y.long()  # (R,)
        near = z @ z.T / self.temperature  # (R, R)
        log_w = w.clamp_min(torch.finfo(z.dtype).tiny).log()[:, y]  # (R, R), log w_{i, y_a}
        log_sum = masked_log_sum_exp(near + log_w, others(len(y), y.device))  # (R,)
        weight_of_true_class = w.gather(1, y[:, None])  # (R, 1), w_{i, y_i}
        return mean_over_positives(-weight_of_true_class * (near - log_sum[:, None]), same_label(y))


def mean_over_positives(losses: Tensor, is_positive: Tensor) -> Tensor:
    """The mean of losses (R, R) over the positives of each row, then over the rows that have
    one.
    """
    count = is_positive.sum(1)  # (R,)
    kept = torch.where(is_positive, losses, torch.zeros_like(losses))  # (R, R)
    per_row = kept.sum(1) / count.clamp_min(1)  # (R,)
    return masked_mean(per_row, count > 0)


# ---------------------------------------------------------------- builders for the table OBJECTIVES


def build_contrastive(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    margin: float = 1.0,
    tokens: str = "pooled",
    token_rows: int = TOKEN_ROWS,
) -> MetricPart:
    """Cross-entropy on the logits plus pair contrast on the pooled vectors of the batch.

    margin: how far apart pairs of different classes are pushed; 0.5 to 1.4
    tokens: pooled (one vector per text), real (every token, no padding), content (no padding and no
        special tokens) or all (also padding)
    token_rows: with tokens, how many of a batch's tokens are compared, drawn anew for each batch;
        the memory grows with the square of it; 256 to 4096
    """
    rows = rows_of_tokens(tokens, token_rows)
    return MetricPart(Contrastive(margin=margin), view_of_tokens(tokens), token_rows=rows)


def build_supcon(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    temperature: float = 0.3,
    tokens: str = "pooled",
    token_rows: int = TOKEN_ROWS,
) -> MetricPart:
    """Cross-entropy on the logits plus supervised contrast on the pooled vector (Gunel et al.).

    temperature: sharpness of the contrast; 0.1 to 0.7
    tokens: pooled (one vector per text), real (every token, no padding), content (no padding and no
        special tokens) or all (also padding)
    token_rows: with tokens, how many of a batch's tokens are compared, drawn anew for each batch;
        the memory grows with the square of it; 256 to 4096
    """
    rows = rows_of_tokens(tokens, token_rows)
    return MetricPart(SupCon(temperature=temperature), view_of_tokens(tokens), token_rows=rows)


def build_label_aware(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    temperature: float = 0.3,
    weighting: str = "encoder",
) -> MetricPart:
    """Label-aware contrast: rows are weighted by how easily their class is mistaken for another.

    temperature: sharpness of the contrast; 0.1 to 0.7
    weighting: encoder (a second encoder, trained beside the first) or head (the probabilities of
        the classifier, cheap)
    """
    if weighting not in WEIGHTINGS:
        raise ConfigError(
            f"objective.weighting is {weighting}{did_you_mean(str(weighting), WEIGHTINGS)}"
        )
    label_aware = LabelAware(temperature=temperature)
    if weighting == "head":
        return MetricPart(label_aware, also=("head_weights",))
    return MetricPart(label_aware, also=("weights",), second_classifier="weighting_logits")
