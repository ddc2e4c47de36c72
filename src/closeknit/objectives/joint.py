"""Joint objectives: a short list of terms, each a weight, an objective and the view it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.contrastive import LabelDistance

# What an objective may read of the model's output. The three kinds of tokens differ in what is
# left out: padding; padding and special tokens; nothing. `weighting_logits` come from a second
# encoder, and `weights` are their softmax; `head_weights` are the classifier's own, detached.
# `masked_tokens` are a language model's guesses of the tokens that were masked.
VIEWS = (
    "logits",
    "pooled",
    "projected",
    "tokens",
    "content_tokens",
    "all_tokens",
    "weighting_logits",
    "weights",
    "head_weights",
    "masked_tokens",
)
WEIGHT_SCHEDULES = ("linear", "cosine")
CLASSIFIERS = ("centroid", "knn")


class View(NamedTuple):
    """Rows of one view of a batch, and the label of each."""

    z: Tensor  # (R, D)
    y: Tensor  # (R,)


@dataclass(frozen=True)
class Term:
    """One summand: a weight, which may move to `end` over the training, an objective and its view.

    `also` names views whose rows the objective takes as further arguments after the labels.
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
                raise ConfigError(f"the weight of {self.name} is {weight}; it must be a finite number")
        if self.schedule not in WEIGHT_SCHEDULES:
            raise ConfigError(
                f"unknown schedule {self.schedule}{did_you_mean(self.schedule, WEIGHT_SCHEDULES)}"
            )

    def weight_at(self, progress: float | Tensor) -> float | Tensor:
        """The weight when this share of the training is done."""
        if self.end is None:
            return self.weight
        if self.schedule == "cosine":
            turned = math.pi * progress
            cosine = turned.cos() if isinstance(turned, Tensor) else math.cos(turned)
            progress = 0.5 * (1.0 - cosine)
        return self.weight + (self.end - self.weight) * progress


@dataclass(frozen=True)
class Adaptation:
    """When a label distance learns from what the model confuses."""

    objective: LabelDistance
    start: float = 0.2  # share of the training before the first update
    every: int = 10  # evaluations from one update to the next

    def due(self, evaluation: int, progress: float) -> bool:
        """At the first evaluation after the start, and every so many from there; not at the end, where it would do nothing."""
        if not self.start < progress < 1.0:
            return False
        before = math.floor(self.start * evaluation / progress + 1e-9)  # evaluations until the start
        return (evaluation - before - 1) % self.every == 0


class Joint(nn.Module):
    """The weighted sum of its terms. `views` says what it reads, so that nothing else is computed.

    `copies` is how often every text is encoded in a batch. `classifier` names what predicts when no
    term trains the logits: the nearest class centroid, or the nearest training rows. `patience` is
    how many evaluations without gain its paper waits before it stops; 0 is for ever.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        *,
        copies: int = 1,
        classifier: str = "centroid",
        adaptation: Adaptation | None = None,
        patience: int = 0,
    ) -> None:
        super().__init__()
        self.terms = [term for term in terms if term.weight != 0.0 or term.end]
        if not self.terms:
            raise ConfigError("a joint objective needs at least one term with a weight other than 0")
        if len({term.name for term in self.terms}) < len(self.terms):
            raise ConfigError("two terms of a joint objective have the same name; name them apart")
        for term in self.terms:
            if getattr(term.objective, "copies", 1) > copies:
                raise ConfigError(f"{term.name} compares two passes of a text: set objective.copies to 2")
        if classifier not in CLASSIFIERS:
            raise ConfigError(f"objective.classifier is {classifier}{did_you_mean(classifier, CLASSIFIERS)}")
        try:
            self.objectives = nn.ModuleDict({term.name: term.objective for term in self.terms})
        except KeyError as error:  # torch keeps some names to itself
            raise ConfigError(f"a term needs another name: {error.args[0]}") from None
        self.views = tuple(dict.fromkeys(view for term in self.terms for view in (term.view, *term.also)))
        if "head_weights" in self.views and "logits" not in self.views:
            raise ConfigError(
                "weighting by the head needs a head that is trained: give the cross-entropy a weight above 0"
            )
        self.copies, self.adaptation, self.patience = copies, adaptation, patience
        self.classifier = "head" if "logits" in self.views else classifier
        self.takes_gaps = all(  # rows with label -1 in a view of tokens count for nothing
            getattr(term.objective, "takes_gaps", False)
            for term in self.terms
            if term.view.endswith("tokens")
        )
        compares = any(getattr(term.objective, "needs_positives", False) for term in self.terms)
        self.rows_of_a_class = 2 if compares and copies == 1 else 0  # to meet in a batch; a copy is one

    def forward(
        self, views: Mapping[str, View], progress: float | Tensor = 0.0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The total (), and each term's own value before its weight."""
        values = {
            term.name: term.objective(*views[term.view], *(views[name].z for name in term.also))
            for term in self.terms
        }
        total = torch.stack([term.weight_at(progress) * values[term.name] for term in self.terms]).sum()
        return total, values

    def observe(self, confusion: Tensor, evaluation: int, progress: float) -> bool:
        """Learn from an evaluation, where the objective does; whether it did."""
        if self.adaptation is None or not self.adaptation.due(evaluation, progress):
            return False
        self.adaptation.objective.update(confusion, 1.0 - progress)
        return True
