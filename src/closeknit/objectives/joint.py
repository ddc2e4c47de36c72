"""Joint objectives: a short list of terms, each with a weight, an objective and the view it
reads.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.copies import ONCE, Copies, TextFunction
from closeknit.objectives.view import VIEWS, View

WEIGHT_SCHEDULES = ("linear", "cosine")
CLASSIFIERS = ("centroid", "knn")


@dataclass(frozen=True)
class Term:
    """One summand of a joint objective: a weight, an objective and the view it reads.

    `also` names views whose rows the objective takes as further arguments after the labels. The
    weight moves from `weight` to `end` over the training, if `end` is given.
    """

    name: str
    weight: float
    objective: nn.Module
    view: str
    also: tuple[str, ...] = ()
    end: float | None = None
    schedule: str = "linear"

    def __post_init__(self) -> None:
        for view in (self.view, *self.also):
            if view not in VIEWS:
                raise ConfigError(f"unknown view {view}{did_you_mean(view, VIEWS)}")
        for weight in (self.weight, self.end):
            if weight is not None and not math.isfinite(weight):
                raise ConfigError(
                    f"the weight of {self.name} is {weight}; it must be a finite number"
                )
        if self.schedule not in WEIGHT_SCHEDULES:
            hint = did_you_mean(self.schedule, WEIGHT_SCHEDULES)
            raise ConfigError(f"unknown schedule {self.schedule}{hint}")

    def weight_at(self, progress: float | Tensor) -> float | Tensor:
        """The weight when this share of the training (0 to 1) is done."""
        if self.end is None:
            return self.weight
        if self.schedule == "cosine":
            angle = math.pi * progress
            cosine = angle.cos() if isinstance(angle, Tensor) else math.cos(angle)
            progress = 0.5 * (1.0 - cosine)
        return self.weight + (self.end - self.weight) * progress


class LearnsFromConfusions(Protocol):
    """An objective that changes with the confusion matrix of an evaluation, like LabelDistance."""

    def update(self, confusion: Tensor, strength: float) -> None:
        """Moves the objective towards what the model confuses."""

    def learned(self) -> list[tuple[int, int, float]]:
        """What was learned so far, as (class, class, value) for the pairs that were changed."""


@dataclass(frozen=True)
class Adaptation:
    """When an objective learns from what the model confuses on the validation set."""

    objective: LearnsFromConfusions
    start: float = 0.2  # share of the training before the first update
    every: int = 10  # evaluations from one update to the next

    def due(self, evaluation: int, progress: float) -> bool:
        """Whether evaluation number `evaluation`, at this share of the training, brings an update.

        The first evaluation after the start brings one, and then every `every`-th evaluation. The
        last evaluation brings none: the training is over, so an update would change nothing.
        """
        if not self.start < progress < 1.0:
            return False
        # A small number makes up for rounding when an evaluation falls exactly on the start.
        evaluations_before_start = math.floor(self.start * evaluation / progress + 1e-9)
        return (evaluation - evaluations_before_start - 1) % self.every == 0


@dataclass(frozen=True)
class MetricPart:
    """The metric term of a named objective, which is used beside the cross-entropy."""

    objective: nn.Module
    view: str = "pooled"
    also: tuple[str, ...] = ()
    second_classifier: str | None = None  # a view of logits that is trained by cross-entropy too
    adaptation: Adaptation | None = None
    patience: int = 0


class Joint(nn.Module):
    """The weighted sum of its terms; `views` lists what they read, so nothing else is computed.

    `copies` is how often each text of a batch is encoded, a number or `Copies`, which also say how
    the second copy of a text differs from the first. `classifier` says what predicts when no
    term trains the logits: the nearest class centroid, or the nearest training rows. `patience` is
    how many epochs without an improvement the objective's paper waits before it stops; 0 means that
    it never stops early.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        *,
        copies: int | Copies = ONCE,
        classifier: str = "centroid",
        adaptation: Adaptation | None = None,
        patience: int = 0,
    ) -> None:
        super().__init__()
        self.terms = [term for term in terms if term.weight != 0.0 or term.end]
        self.second_copies = copies if isinstance(copies, Copies) else Copies(copies=copies)
        self.copies = self.second_copies.copies
        _check_terms(self.terms, self.copies)
        if classifier not in CLASSIFIERS:
            raise ConfigError(
                f"objective.classifier is {classifier}{did_you_mean(classifier, CLASSIFIERS)}"
            )
        try:
            self.objectives = nn.ModuleDict({term.name: term.objective for term in self.terms})
        except KeyError as error:  # torch does not allow some names
            raise ConfigError(f"a term needs another name: {error.args[0]}") from None
        self.views = tuple(
            dict.fromkeys(view for term in self.terms for view in (term.view, *term.also))
        )
        if "head_weights" in self.views and "logits" not in self.views:
            raise ConfigError(
                "weighting by the head needs a head that is trained: give the cross-entropy a weight above 0"
            )
        self.adaptation = adaptation
        self.patience = patience
        self.classifier = "head" if "logits" in self.views else classifier
        # Whether a view of tokens may hold rows with label -1, which take no part in the loss.
        self.takes_gaps = all(
            getattr(term.objective, "takes_gaps", False)
            for term in self.terms
            if term.view.endswith("tokens")
        )
        # How many rows of a class have to meet in a batch; a second copy of a text is one of them.
        needs_positives = any(
            getattr(term.objective, "needs_positives", False) for term in self.terms
        )
        self.rows_of_a_class = 2 if needs_positives and self.copies == 1 else 0

    def set_text_function(self, function: TextFunction | None) -> None:
        """Let this function make the second view of texts; None changes nothing."""
        if function is None:
            return
        if self.second_copies.second_view != "function":
            raise ConfigError(
                "a function for the second view is given, but second_view is "
                f"{self.second_copies.second_view}; set second_view to function"
            )
        self.second_copies = dataclasses.replace(self.second_copies, function=function)

    def forward(
        self,
        views: Mapping[str, View],
        progress: float | Tensor = 0.0,
        shares: Mapping[str, float | Tensor] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The total (), and the value of each term before its weight.

        Where the views are those of a part of a mini-batch, `shares` says for each term how much
        this part counts; the values then add up to those of the mini-batch over its parts.
        """
        values: dict[str, Tensor] = {}
        for term in self.terms:
            further_rows = (views[name].z for name in term.also)
            value = term.objective(*views[term.view], *further_rows)
            if shares is not None:
                share = shares[term.name]
                value = value * (share.to(value.dtype) if isinstance(share, Tensor) else share)
            values[term.name] = value
        weighted = [term.weight_at(progress) * values[term.name] for term in self.terms]
        return torch.stack(weighted).sum(), values

    def observe(self, confusion: Tensor, evaluation: int, progress: float) -> bool:
        """Adapts the objective to an evaluation, if an update is due; says whether it did."""
        if self.adaptation is None or not self.adaptation.due(evaluation, progress):
            return False
        self.adaptation.objective.update(confusion, 1.0 - progress)
        return True


def _check_terms(terms: Sequence[Term], copies: int) -> None:
    if not terms:
        raise ConfigError("a joint objective needs at least one term with a weight other than 0")
    if len({term.name for term in terms}) < len(terms):
        raise ConfigError(
            "two terms of a joint objective have the same name; give each another name"
        )
    for term in terms:
        if getattr(term.objective, "copies", 1) > copies:
            raise ConfigError(
                f"{term.name} compares two passes of a text: set objective.copies to 2"
            )
