"""Objectives that compare the rows of a batch with each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.errors import ConfigError
from closeknit.geometry import (
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
from closeknit.objectives.checks import one_label_each, positive


class Contrastive(nn.Module):
    """Pairs of a class pulled together, other pairs pushed apart up to a margin (Hadsell et al., 2006).

    Over all pairs i < j of unit rows at Euclidean distance d:

        loss = mean of  1/2 d^2                    where y_i = y_j
                        1/2 max(0, margin - d)^2   elsewhere

    Two rows of one class at a right angle give 1; two of other classes there give 0 (d = 1.414).
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
        gap = (self.margin - safe_sqrt(square)).clamp_min(0.0)  # (R, R)
        pair = 0.5 * torch.where(y[:, None] == y[None, :], square, gap.square())  # (R, R)
        return masked_mean(pair, torch.ones_like(pair, dtype=torch.bool).triu(1))


class SupCon(nn.Module):
    """Supervised contrastive loss, its outer form (Khosla et al., 2020), on unit rows.

        l_i = -1/|P(i)| sum_{p in P(i)} [ z_i.z_p / t - log sum_{a != i} exp(z_i.z_a / t) ]

    P(i) are the other rows of the same label; the mean is over the rows that have any.
    Four rows, two orthogonal pairs of a class each, at temperature 1 give -log(e / (e + 2)).
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
        partner = same_label(y)  # (R, R)
        log_share = near - masked_log_sum_exp(near, others(len(y), y.device))[:, None]  # (R, R)
        return _over_positives(-log_share, partner)


class LabelAware(nn.Module):
    """Supervised contrast weighed by how easily a row's class is taken for another (Suresh and Ong, 2021).

    `weights` (R, C) are the class probabilities of a weighting network for each row:

        l_i = -1/|P(i)| sum_p w_{i,y_i} [ z_i.z_p / t - log sum_{a != i} w_{i,y_a} exp(z_i.z_a / t) ]

    on unit rows, mean over the rows that have a positive. The gradient flows into the weights.
    Equal weights 1/C give SupCon / C - log(C) / C, since the logarithm keeps its constant.
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
        w, y = weights.to(z.dtype), y.long()  # (R, C), (R,)
        near = z @ z.T / self.temperature  # (R, R)
        log_w = w.clamp_min(torch.finfo(z.dtype).tiny).log()[:, y]  # (R, R), log w_{i, y_a}
        log_sum = masked_log_sum_exp(near + log_w, others(len(y), y.device))  # (R,)
        own = w.gather(1, y[:, None])  # (R, 1)
        return _over_positives(-own * (near - log_sum[:, None]), same_label(y))


class LabelDistance(nn.Module):
    """Contrast in which a matrix of label distances stretches confusable classes apart (CLLD).

        s_ij = 1/2 (cos(z_i, z_j) + 1) * distance[y_i, y_j]
        q_i  = softmax of s_ij over j != i
        loss = mean_i KL(uniform over P(i) || q_i)

    over the rows that have a positive. `distance` (C, C) is `scale` everywhere at the start;
    `set_distance` gives a matrix of one's own, `update` learns it from what the model confuses.
    """

    needs_positives = True
    distance: Tensor

    def __init__(self, classes: int, *, scale: float = 5.0) -> None:
        super().__init__()
        self.scale = positive("scale", scale)
        self.register_buffer("distance", _kept([[float(scale)] * classes] * classes))

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0
        y = y.long()
        near = 0.5 * (z @ z.T + 1.0) * self.distance.to(z.dtype)[y[:, None], y[None, :]]  # (R, R)
        partner = same_label(y)  # (R, R)
        log_q = near - masked_log_sum_exp(near, others(len(y), y.device))[:, None]  # (R, R)
        log_share = -partner.sum(1).clamp_min(1).to(z.dtype).log()  # (R,), log 1/|P(i)|
        return _over_positives(log_share[:, None] - log_q, partner)

    @torch.no_grad()
    def set_distance(self, matrix: Tensor | Sequence[Sequence[float]]) -> None:
        """Take this (C, C) matrix of distances: the static mode. A matrix in float64 is kept in float64."""
        given = (matrix if isinstance(matrix, Tensor) else _kept(matrix)).to(self.distance.device)
        given = given.to(torch.promote_types(given.dtype, self.distance.dtype))
        self._require_matrix("the distance matrix", given)
        self.distance = given.clone()

    @torch.no_grad()
    def update(self, confusion: Tensor, strength: float) -> None:
        """Move towards what the model confuses: the adaptive mode.

        `confusion` (C, C) counts: row the expected class, column the predicted one. With m the
        row-normalised counts off the diagonal, symmetrised and divided by their largest:

            distance <- distance + strength * (scale * (1 + m) - distance)
        """
        counts = torch.as_tensor(confusion, dtype=torch.float64, device=self.distance.device)
        self._require_matrix("the confusion matrix", counts)
        total = counts.sum(1, keepdim=True)
        m = counts / torch.where(total > 0, total, 1.0)
        m.fill_diagonal_(0.0)
        m = 0.5 * (m + m.T)
        largest = float(m.max())
        if largest > 0:
            m /= largest
        target = (self.scale * (1.0 + m)).to(self.distance.dtype)
        self.distance += strength * (target - self.distance)

    def _require_matrix(self, what: str, given: Tensor) -> None:
        if given.shape != self.distance.shape:
            raise ConfigError(
                f"{what} has shape {tuple(given.shape)}; there are {len(self.distance)} classes"
            )
        if not bool(torch.isfinite(given).all()) or bool((given < 0).any()):
            raise ConfigError(f"{what} holds numbers that are negative or not finite")


def _kept(matrix: Sequence[Sequence[float]]) -> Tensor:
    """In float32 where that holds every number, else in float64, so that a float64 loss is of the very numbers given."""
    exact = torch.as_tensor(matrix, dtype=torch.float64)
    return exact.float() if torch.equal(exact.float().double(), exact) else exact


def _over_positives(losses: Tensor, partner: Tensor) -> Tensor:
    """Mean over the partners of each row, then over the rows that have one."""
    count = partner.sum(1)  # (R,)
    rows = torch.where(partner, losses, torch.zeros_like(losses)).sum(1) / count.clamp_min(1)  # (R,)
    return masked_mean(rows, count > 0)


# ---------------------------------------------------------------- views of texts


class InfoNCE(nn.Module):
    """SimCSE: a text's second view among the second views of all texts, in one direction.

    z (V, B, D). V = 2: anchors z[0], positives z[1]. V = 3: z[2] are hard negatives, B more columns,
    and `hard_weight` is added to the logit of a row's own hard negative. Cosine similarity over
    `temperature`. With labels y (B,), other rows of the same label are no negatives.
    """

    def __init__(self, *, temperature: float = 0.05, hard_weight: float = 0.0) -> None:
        super().__init__()
        self.temperature, self.hard_weight = positive("temperature", temperature), hard_weight

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = unit(_views(z, (2, 3), y))  # (V, B, D)
        logits = z[0] @ z[1:].flatten(0, 1).T / self.temperature  # (B, (V - 1) B)
        if len(z) == 3:
            own = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
            logits = logits + torch.cat([torch.zeros_like(own), self.hard_weight * own], dim=1)
        return _first_among(logits, y)


class NTXent(nn.Module):
    """Mirror-BERT: each of the 2B views of B texts against its partner and the other 2B - 2.

    z (2, B, D); cosine similarity over `temperature`. With labels y (B,), other rows of the same
    label are no negatives.
    """

    def __init__(self, *, temperature: float = 0.04) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = _views(z, (2,), y)
        B = z.shape[1]
        if B == 0:
            return z.sum() * 0.0
        rows = unit(z).flatten(0, 1)  # (2B, D)
        near = rows @ rows.T / self.temperature  # (2B, 2B)
        text = torch.arange(B, device=z.device).repeat(2) if y is None else y.repeat(2)  # (2B,)
        partner = torch.arange(2 * B, device=z.device).roll(B)  # (2B,)
        allowed = others(2 * B, z.device)
        if y is not None:
            allowed = allowed & (text[:, None] != text[None, :])
        allowed = allowed.scatter(1, partner[:, None], torch.ones_like(allowed))
        return (masked_log_sum_exp(near, allowed) - near.gather(1, partner[:, None])[:, 0]).mean()


class MultipleNegatives(nn.Module):
    """Ranking: the answer that belongs to a question among the answers to all questions of the batch.

    z (V, B, D): z[0] questions, z[1] their answers, z[2] (where given) a hard negative each.
    Cross-entropy on scale * similarity; `similarity` is "cosine" or "dot". With labels y (B,), another
    row of the same label is no negative.
    """

    def __init__(self, *, scale: float = 20.0, similarity: str = "cosine") -> None:
        super().__init__()
        if similarity not in ("cosine", "dot"):
            raise ConfigError(f'similarity is {similarity}; it must be "cosine" or "dot"')
        self.scale, self.similarity = positive("scale", scale), similarity

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        z = _views(z, (2, 3), y)
        z = unit(z) if self.similarity == "cosine" else z  # (V, B, D)
        logits = self.scale * z[0] @ z[1:].flatten(0, 1).T  # (B, (V - 1) B)
        if self.similarity == "dot":  # which may overflow
            most = torch.finfo(logits.dtype).max / 8
            logits = logits.nan_to_num(0.0, most, -most).clamp(-most, most)
        return _first_among(logits, y)


def _views(z: Tensor, known: tuple[int, ...], y: Tensor | None) -> Tensor:
    if z.dim() != 3 or z.shape[0] not in known:
        numbers = " or ".join(map(str, known))
        raise ConfigError(
            f"this objective takes {numbers} views of B texts, (V, B, D); it was given {tuple(z.shape)}"
        )
    if y is not None:
        one_label_each(y, z.shape[1])
    return at_least_float32(z)


def _first_among(logits: Tensor, y: Tensor | None) -> Tensor:
    """Cross-entropy of row i choosing column i; columns of other rows with its label left out."""
    B = len(logits)
    if B == 0:
        return logits.sum() * 0.0
    if y is not None:
        barred = same_label(y).repeat(1, logits.shape[1] // B)  # (B, columns)
        logits = logits.masked_fill(barred, -torch.inf)
    return F.cross_entropy(logits, torch.arange(B, device=logits.device))
