"""Objectives that compare several views of a text: two passes, two sides of a pair, or a triplet.

`InfoNCE`, `NTXent` and `MultipleNegatives` take z (V, B, D), V views of B texts. `Folded` makes one
of them a term of a joint objective. `Consistency` compares the class probabilities of two passes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.errors import ConfigError
from closeknit.objectives.checks import one_label_each, positive
from closeknit.objectives.geometry import (
    at_least_float32,
    in_own_precision,
    masked_log_sum_exp,
    masked_mean,
    others,
    same_label,
    unit,
)


class InfoNCE(nn.Module):
    """SimCSE: the second view of a text among the second views of all texts, in one direction.

        loss = mean_i -log [ exp(cos(z0_i, z1_i) / t) / sum_j exp(cos(z0_i, z1_j) / t) ]

    z (V, B, D). V = 2: z[0] are anchors, z[1] positives. V = 3: z[2] are hard negatives, which adds
    B columns to the sum; `hard_weight` is added to the logit of the hard negative of the same row.
    With labels y (B,), other rows with the same label are not negatives. Labels y (V, B) name each
    text of each view: a hard negative that has the label of a row is no negative of that row, also
    where it stands in the same row.
    """

    def __init__(self, *, temperature: float = 0.05, hard_weight: float = 0.0) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)
        self.hard_weight = hard_weight

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = unit(_checked_views(z, (2, 3), y))  # (V, B, D)
        logits = z[0] @ z[1:].flatten(0, 1).T / self.temperature  # (B, (V - 1) B)
        if len(z) == 3:
            same_row = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)  # (B, B)
            added = torch.cat([torch.zeros_like(same_row), self.hard_weight * same_row], dim=1)
            logits = logits + added
        return _cross_entropy_of_pairs(logits, y)


class NTXent(nn.Module):
    """Mirror-BERT: each of the 2B views of B texts against its partner and the other 2B - 2 views.

        loss = mean_i -log [ exp(cos(z_i, z_p(i)) / t) / sum_{a != i} exp(cos(z_i, z_a) / t) ]

    z (2, B, D); p(i) is the other view of the same text. With labels y (B,), other rows with the
    same label are not negatives.

    With `pull=False` the partner takes no part, neither above nor below the fraction bar, so that
    rows are only pushed away from the views of other texts. This is an ablation:

        loss = mean_i log sum_{a != i, a != p(i)} exp(cos(z_i, z_a) / t)

    over the rows that have something to be pushed away from.
    """

    def __init__(self, *, temperature: float = 0.04, pull: bool = True) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)
        self.pull = pull

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = _checked_views(z, (2,), y)
        B = z.shape[1]
        if B == 0:
            return z.sum() * 0.0
        rows = unit(z).flatten(0, 1)  # (2B, D)
        near = rows @ rows.T / self.temperature  # (2B, 2B)
        partner = torch.arange(2 * B, device=z.device).roll(B)  # (2B,)
        compared = others(2 * B, z.device)  # (2B, 2B)
        if y is not None:
            label = y.repeat(2)  # (2B,)
            compared = compared & (label[:, None] != label[None, :])
        if not self.pull:
            compared = compared.scatter(1, partner[:, None], torch.zeros_like(compared))
            has_negative = compared.any(1)  # (2B,)
            return masked_mean(masked_log_sum_exp(near, compared), has_negative)
        compared = compared.scatter(1, partner[:, None], torch.ones_like(compared))
        near_partner = near.gather(1, partner[:, None])[:, 0]  # (2B,)
        return (masked_log_sum_exp(near, compared) - near_partner).mean()


class MultipleNegatives(nn.Module):
    """Ranking: the answer to a question among the answers to all questions of the batch.

        loss = mean_i -log [ exp(scale * sim(z0_i, z1_i)) / sum_j exp(scale * sim(z0_i, z1_j)) ]

    z (V, B, D): z[0] questions, z[1] their answers, z[2] (if given) one hard negative per question,
    which adds B columns to the sum. `similarity` is "cosine" or "dot". With labels y (B,), other
    rows with the same label are not negatives. Labels y (V, B) name each text of each view: a hard
    negative that has the label of a row is no negative of that row, also where it stands in the
    same row.
    """

    def __init__(self, *, scale: float = 20.0, similarity: str = "cosine") -> None:
        super().__init__()
        if similarity not in ("cosine", "dot"):
            raise ConfigError(f'similarity is {similarity}; it must be "cosine" or "dot"')
        self.scale = positive("scale", scale)
        self.similarity = similarity

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = _checked_views(z, (2, 3), y)
        z = unit(z) if self.similarity == "cosine" else z  # (V, B, D)
        logits = self.scale * z[0] @ z[1:].flatten(0, 1).T  # (B, (V - 1) B)
        if self.similarity == "dot":  # a dot product may overflow
            limit = torch.finfo(logits.dtype).max / 8
            logits = logits.nan_to_num(0.0, limit, -limit).clamp(-limit, limit)
        return _cross_entropy_of_pairs(logits, y)


def _checked_views(z: Tensor, numbers: tuple[int, ...], y: Tensor | None) -> Tensor:
    """z in float32 or float64, if it holds one of these numbers of views and y fits to it."""
    if z.dim() != 3 or z.shape[0] not in numbers:
        expected = " or ".join(map(str, numbers))
        raise ConfigError(
            f"this objective takes {expected} views of B texts, (V, B, D); it was given {tuple(z.shape)}"
        )
    if y is not None and not (y.dim() == 2 and z.shape[0] == 3 and y.shape == z.shape[:2]):
        one_label_each(y, z.shape[1])
    return at_least_float32(z)


def _cross_entropy_of_pairs(logits: Tensor, y: Tensor | None) -> Tensor:
    """Cross-entropy of row i choosing column i, without the columns of other rows with its label
    and, where y (V, B) names the hard negatives, without those that have the label of row i.
    """
    B = len(logits)
    if B == 0:
        return logits.sum() * 0.0
    if y is not None:
        label = y if y.dim() == 1 else y[0]  # (B,)
        not_compared = same_label(label).repeat(1, logits.shape[1] // B)  # (B, columns)
        if y.dim() == 2:
            belongs = label[:, None] == y[2][None, :]  # (B, B)
            not_compared = not_compared | torch.cat([torch.zeros_like(belongs), belongs], dim=1)
        logits = logits.masked_fill(not_compared, -torch.inf)
    return F.cross_entropy(logits, torch.arange(B, device=logits.device))


class Folded(nn.Module):
    """Makes an objective over V views of B texts a term of a joint objective, with R = V B rows.

    y (R, 2) gives for each row the number of its view and the label of its text; texts with the
    same label are not negatives of each other. The label of a hard negative, in the third view, is
    that of the texts that it belongs to, or one that no text has. Each view holds the texts in the
    same order; the views may come in any order.
    """

    def __init__(self, objective: nn.Module, views: int) -> None:
        super().__init__()
        self.objective = objective
        self.views = views

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        order = torch.argsort(y[:, 0], stable=True)  # (R,)
        folded = z[order].unflatten(0, (self.views, -1))  # (V, B, D)
        labels = y[order, 1].unflatten(0, (self.views, -1))  # (V, B)
        loss: Tensor = self.objective(folded, labels if self.views == 3 else labels[0])
        return loss


class Consistency(nn.Module):
    """The difference of a text's class probabilities in two passes through dropout (R-Drop).

        loss = mean_b 1/2 [ KL(p_b || q_b) + KL(q_b || p_b) ]

    where p and q are the softmax of the two passes' logits.

    `logits` (2 B, C) hold B texts in one order, and then again in the same order. The labels are
    not used.

    Logits (0, 0) and (log 3, 0) for one text give 1/8 log 3: p = (1/2, 1/2), q = (3/4, 1/4).
    """

    default_view = "logits"
    copies = 2  # how often each text of a batch is encoded

    def forward(self, logits: Tensor, y: Tensor | None = None) -> Tensor:
        if len(logits) % 2:
            raise ValueError(f"{len(logits)} rows of logits are not two for each text")
        log_p, log_q = F.log_softmax(at_least_float32(logits), dim=-1).chunk(2)  # (B, C) each
        divergence = 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)  # (B,)
        return divergence.sum() / max(len(divergence), 1)
