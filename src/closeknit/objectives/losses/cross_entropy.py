"""Cross-entropy on class logits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.errors import ConfigError, did_you_mean
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

    def mass(self, y: Tensor) -> Tensor | None:
        """The sum of the class weights () of rows with these labels; None without class weights.

        The loss is a mean weighted by these numbers, so a batch that is computed in parts needs
        them to weigh the parts.
        """
        return None if self.class_weights is None else self.class_weights[y.long()].sum()


def _check_class_weights(weights: Tensor) -> None:
    if weights.dim() != 1:
        raise ConfigError(
            f"class_weights has shape {tuple(weights.shape)}; give one weight for each class"
        )
    if not (bool((weights >= 0).all()) and 0 < float(weights.sum()) < math.inf):
        raise ConfigError("class_weights must be finite, and neither negative nor all zero")


def class_weights_from(
    given: Any, classes: int, labels: Sequence[str] | None, counts: Sequence[int] | None
) -> list[float]:
    """One weight per class, in the order of the classes, from the option `class_weights`.

    The option is a table of weights by class name, a list in the sorted order of the class names,
    or balanced for the inverse of the frequency, which `counts` tells.
    """
    if isinstance(given, str) and given == "balanced":
        if counts is None:
            raise ConfigError(
                "objective.class_weights is balanced, but the numbers of rows per class are not known here"
            )
        return [sum(counts) / (classes * max(count, 1)) for count in counts]
    if isinstance(given, Mapping):
        given = _weights_by_name(given, labels)
    elif labels is not None and isinstance(given, Sequence) and not isinstance(given, str):
        _refuse_unclear_order(labels)
    try:
        weights = [float(weight) for weight in given]
    except (TypeError, ValueError):
        raise ConfigError(
            f"objective.class_weights is {given}; give a list of weights, a table with a weight for "
            "each class name, or balanced"
        ) from None
    if len(weights) != classes:
        raise ConfigError(
            f"objective.class_weights has {len(weights)} weights; there are {classes} classes"
        )
    return weights


def _weights_by_name(given: Mapping[Any, Any], labels: Sequence[str] | None) -> list[Any]:
    """The weights of a table by class name, in the order of the classes."""
    if labels is None:
        raise ConfigError(
            "objective.class_weights names classes, but their names are not known here; give a list"
        )
    by_name = {str(name): weight for name, weight in given.items()}
    for name in by_name:
        if name not in labels:
            hint = did_you_mean(name, labels)
            raise ConfigError(f"objective.class_weights: unknown class {name}{hint}")
    for label in labels:
        if label not in by_name:
            raise ConfigError(f"objective.class_weights has no weight for the class {label}")
    return [by_name[label] for label in labels]


def _refuse_unclear_order(labels: Sequence[str]) -> None:
    """Refuse a list where sorting the class names as numbers and as texts gives two orders.

    From Python, classes that are numbers are numbered by size; in a file they are texts, and "10"
    comes before "2".
    """
    try:
        by_size = sorted(labels, key=int)
    except ValueError:
        return
    as_texts = sorted(labels)
    if by_size == as_texts:
        return
    place = next(n for n, label in enumerate(by_size) if label != as_texts[n])
    raise ConfigError(
        "objective.class_weights is a list, but the order of the classes is not clear: class "
        f"number {place + 1} is {by_size[place]} by size and {as_texts[place]} as text; give a "
        f"table with a weight for each class name, like {{{by_size[0]} = 1.0, …}}"
    )


def build_cross_entropy(
    dim: int,
    classes: int,
    *,
    labels: Sequence[str] | None = None,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Joint:
    """Cross-entropy on the logits of the classifier: the baseline, and a good one.

    label_smoothing: share of the cross-entropy's target spread evenly over all classes; 0 to 0.2
    class_weights: a table with a weight for each class name, a list in the sorted order of the
        names, or balanced for the inverse of the frequency
    """
    cross_entropy = CrossEntropy(label_smoothing=label_smoothing, class_weights=class_weights)
    return Joint([Term("cross_entropy", 1.0, cross_entropy, "logits")])
