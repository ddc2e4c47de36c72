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
from closeknit.objectives.view import TOKEN_VIEWS, VIEWS, View

WEIGHT_SCHEDULES = ("linear", "cosine")
CLASSIFIERS = ("centroid", "knn")
COPIES_READ = ("all", "first")


@dataclass(frozen=True)
class Term:
    """One summand of a joint objective: a weight, an objective and the view it reads.

    `also` names views whose rows the objective takes as further arguments after the labels. The
    weight moves from `weight` to `end` over the training, if `end` is given.

    Where every text is encoded twice, `copies` says which rows the objective reads: "all", or the
    "first" copy of each text. Of a view of tokens it reads at most `token_rows` rows, which are
    drawn anew for each batch; 0 is all of them.
    """

    name: str
    weight: float
    objective: nn.Module
    view: str
    also: tuple[str, ...] = ()
    end: float | None = None
    schedule: str = "linear"
    copies: str = "all"
    token_rows: int = 0

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
        self._check_rows()

    def _check_rows(self) -> None:
        """Refuse a choice of rows that this term cannot make."""
        if self.copies not in COPIES_READ:
            hint = did_you_mean(str(self.copies), COPIES_READ)
            raise ConfigError(f"copies of the term {self.name} is {self.copies}{hint}")
        if self.copies == "first" and self.reads_tokens:
            raise ConfigError(
                f"{self.name} reads tokens, and the first copy of each text can only be chosen for "
                "a term that reads whole texts; leave copies at all"
            )
        if self.copies == "first" and getattr(self.objective, "copies", 1) > 1:
            raise ConfigError(f"{self.name} compares two passes of a text: leave copies at all")
        number = self.token_rows
        if isinstance(number, bool) or not isinstance(number, int) or number < 0 or number == 1:
            raise ConfigError(
                f"token_rows of the term {self.name} is {number}; it must be a whole number of at "
                "least 2, or 0 for all rows"
            )
        if number and not self.reads_tokens:
            raise ConfigError(
                f"token_rows of the term {self.name} is {number}, but its view {self.view} holds "
                "whole texts; name a view of tokens or leave token_rows out"
            )

    @property
    def reads_tokens(self) -> bool:
        """Whether the rows that the objective reads are tokens."""
        return self.view in TOKEN_VIEWS.values()

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
    token_rows: int = 0  # of a view of tokens, how many rows are read at most; 0: all


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
        # Whether a view of tokens may hold rows with label -1, which take no part in the loss, and
        # this without a look at the labels, which would wait for a GPU.
        self.takes_gaps = all(
            getattr(term.objective, "takes_gaps", False) and not term.token_rows
            for term in self.terms
            if term.view.endswith("tokens")
        )
        self.draws_rows = any(term.token_rows for term in self.terms)
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
        seed: int = 0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The total (), and the value of each term before its weight.

        Where the views are those of a part of a mini-batch, `shares` says for each term how much
        this part counts; the values then add up to those of the mini-batch over its parts. `seed`
        decides which rows a term reads that reads some of the tokens only.
        """
        values: dict[str, Tensor] = {}
        for term in self.terms:
            rows, labels = self._rows_for(term, views[term.view], seed)
            further_rows = (self.copies_for(term, views[name].z) for name in term.also)
            value = term.objective(rows, labels, *further_rows)
            if shares is not None:
                share = shares[term.name]
                value = value * (share.to(value.dtype) if isinstance(share, Tensor) else share)
            values[term.name] = value
        weighted = [term.weight_at(progress) * values[term.name] for term in self.terms]
        return torch.stack(weighted).sum(), values

    def copies_for(self, term: Term, rows: Tensor) -> Tensor:
        """Those of the rows of whole texts, or of their labels, that a term reads.

        The first copies of all texts stand before the second ones.
        """
        if term.copies == "first" and self.copies == 2:
            return rows[: len(rows) // 2]
        return rows

    def _rows_for(self, term: Term, view: View, seed: int) -> View:
        """The rows of a view that a term reads."""
        if not term.reads_tokens:
            return View(self.copies_for(term, view.z), self.copies_for(term, view.y))
        if getattr(term.objective, "takes_gaps", False) and not term.token_rows:
            return view
        tokens = (view.y >= 0).nonzero()[:, 0]  # (n,), without rows that stand for no token
        if 0 < term.token_rows < len(tokens):
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randperm(len(tokens), generator=generator)[: term.token_rows]
            tokens = tokens[drawn.sort().values.to(tokens.device)]  # (token_rows,)
        elif len(tokens) == len(view.y):
            return view
        return View(view.z[tokens], view.y[tokens])

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
