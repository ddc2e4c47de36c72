"""LabelDistance (CLLD): contrast in which a matrix of distances holds confusable classes apart."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.checks import one_label_each, positive, share
from closeknit.objectives.geometry import (
    at_least_float32,
    in_own_precision,
    masked_log_sum_exp,
    others,
    same_label,
    unit,
)
from closeknit.objectives.joint import Adaptation, MetricPart
from closeknit.objectives.losses.contrastive import mean_over_positives


class LabelDistance(nn.Module):
    """Contrast in which a matrix of label distances holds confusable classes further apart (CLLD).

        s_ij = 1/2 (cos(z_i, z_j) + 1) * distance[y_i, y_j]
        q_i  = softmax of s_ij over j != i
        loss = mean_i KL(uniform over P(i) || q_i)

    over the rows that have a positive. `distance` (C, C) is `scale` everywhere at the start;
    `set_distance` sets another matrix, `update` learns it from what the model confuses.
    """

    default_view = "projected"
    needs_positives = True
    distance: Tensor

    def __init__(self, classes: int, *, scale: float = 5.0) -> None:
        super().__init__()
        self.scale = positive("scale", scale)
        self.register_buffer("distance", _as_tensor([[float(scale)] * classes] * classes))

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        z = unit(at_least_float32(z))  # (R, D)
        if len(y) == 0:
            return z.sum() * 0.0
        y = y.long()
        distance = self.distance.to(z.dtype)[y[:, None], y[None, :]]  # (R, R)
        near = 0.5 * (z @ z.T + 1.0) * distance  # (R, R)
        is_positive = same_label(y)  # (R, R)
        log_q = near - masked_log_sum_exp(near, others(len(y), y.device))[:, None]  # (R, R)
        log_uniform = -is_positive.sum(1).clamp_min(1).to(z.dtype).log()  # (R,), log 1/|P(i)|
        return mean_over_positives(log_uniform[:, None] - log_q, is_positive)

    @torch.no_grad()
    def set_distance(self, matrix: Tensor | Sequence[Sequence[float]]) -> None:
        """Sets the distances (C, C): the static mode. A float64 matrix stays in float64."""
        given = (matrix if isinstance(matrix, Tensor) else _as_tensor(matrix)).to(
            self.distance.device
        )
        given = given.to(torch.promote_types(given.dtype, self.distance.dtype))
        self._check_matrix("the distance matrix", given)
        self.distance = given.clone()

    @torch.no_grad()
    def update(self, confusion: Tensor, strength: float) -> None:
        """Moves the distances towards what the model confuses: the adaptive mode.

        `confusion` (C, C) holds counts: a row per expected class, a column per predicted class.
        With m the row-normalised counts off the diagonal, symmetrised and divided by the largest of
        them:

            distance <- distance + strength * (scale * (1 + m) - distance)
        """
        counts = torch.as_tensor(confusion, dtype=torch.float64, device=self.distance.device)
        self._check_matrix("the confusion matrix", counts)
        total = counts.sum(1, keepdim=True)  # (C, 1)
        m = counts / torch.where(total > 0, total, 1.0)  # (C, C)
        m.fill_diagonal_(0.0)
        m = 0.5 * (m + m.T)
        largest = float(m.max())
        if largest > 0:
            m /= largest
        target = (self.scale * (1.0 + m)).to(self.distance.dtype)
        self.distance += strength * (target - self.distance)

    def _check_matrix(self, what: str, given: Tensor) -> None:
        if given.shape != self.distance.shape:
            raise ConfigError(
                f"{what} has shape {tuple(given.shape)}; there are {len(self.distance)} classes"
            )
        if not bool(torch.isfinite(given).all()) or bool((given < 0).any()):
            raise ConfigError(f"{what} holds numbers that are negative or not finite")


def _as_tensor(matrix: Sequence[Sequence[float]]) -> Tensor:
    """In float32 if float32 holds each number exactly, else in float64: no number is rounded."""
    exact = torch.as_tensor(matrix, dtype=torch.float64)
    return exact.float() if torch.equal(exact.float().double(), exact) else exact


# ---------------------------------------------------------------- builder for the table OBJECTIVES


def build_label_distance(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    scale: float = 5.0,
    distance: str | Sequence[Sequence[float]] | None = None,
    confusable: Sequence[Sequence[str]] | None = None,
    adaptive: bool = True,
    update_start: float = 0.2,
    update_every: int = 10,
) -> MetricPart:
    """Contrast with label distances (CLLD): confusable classes are held further apart; texts are
    encoded twice.

    scale: the distance between classes at the start (the paper's tau); 1 to 10
    distance: a file or matrix of class by class distances, which then stays fixed
    confusable: pairs of classes to hold twice as far apart as others; the distances then stay fixed
    adaptive: true to learn the distances from the confusions on the validation set
    update_start: share of the training before the first update; 0 to 0.5
    update_every: evaluations between updates; 1 to 10
    """
    share("objective.update_start", update_start)
    if update_every < 1:
        raise ConfigError(f"objective.update_every is {update_every}; it must be at least 1")
    objective = LabelDistance(classes, scale=scale)
    if distance is not None and confusable is not None:
        raise ConfigError("give objective.distance or objective.confusable, not both")
    if isinstance(distance, Mapping):
        raise ConfigError(
            "objective.distance is a table; give a CSV file, or a list of numbers for each class"
        )
    if distance is not None:
        matrix = read_distances(distance, labels) if isinstance(distance, str) else distance
        objective.set_distance(matrix)
    elif confusable is not None:
        objective.set_distance(_doubled_for(confusable, scale, classes, labels))
    is_fixed = distance is not None or confusable is not None
    adaptation = None
    if adaptive and not is_fixed:
        adaptation = Adaptation(objective, update_start, update_every)
    # Some devices have no float64.
    return MetricPart(objective.float(), "projected", adaptation=adaptation, patience=10)


def _doubled_for(
    pairs: Sequence[Sequence[str]], scale: float, classes: int, labels: Sequence[str] | None
) -> list[list[float]]:
    """A matrix (C, C) of `scale`, doubled for these pairs of classes."""
    if labels is None:
        raise ConfigError("objective.confusable names classes, but their names are not known here")
    matrix = [[scale] * classes for _ in range(classes)]
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(
                'objective.confusable is a list of pairs, like [["refund", "return"]]'
            )
        for label in pair:
            if label not in labels:
                hint = did_you_mean(str(label), labels)
                raise ConfigError(f"objective.confusable: unknown class {label}{hint}")
        first, second = (list(labels).index(label) for label in pair)
        matrix[first][second] = 2.0 * scale
        matrix[second][first] = 2.0 * scale
    return matrix


def read_distances(path: str, labels: Sequence[str] | None) -> list[list[float]]:
    """Class by class distances from a CSV file with class names in its first row and first
    column.
    """
    if labels is None:
        raise ConfigError(
            "objective.distance is a file that names classes, but their names are not known here"
        )
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            table = [row for row in csv.reader(file) if row]
    except FileNotFoundError:
        raise ConfigError(f"objective.distance: {path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"objective.distance: {path} cannot be read: {error.strerror}") from None
    if not table:
        raise ConfigError(f"objective.distance: {path} is empty")
    columns = table[0][1:]
    rows = [row[0] for row in table[1:]]
    for label in labels:
        if label not in columns or label not in rows:
            raise ConfigError(
                f"objective.distance: {path} has no row or no column for the class {label}"
            )

    def cell(row: str, column: str) -> float:
        return float(table[1 + rows.index(row)][1 + columns.index(column)])

    try:
        return [[cell(row, column) for column in labels] for row in labels]
    except (ValueError, IndexError):
        raise ConfigError(
            f"objective.distance: {path} has a cell that is missing or no number"
        ) from None
