"""Named objectives: what a row of the table OBJECTIVES holds, and how its options are described."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.checks import share
from closeknit.objectives.copies import Copies
from closeknit.objectives.joint import COPIES_READ, WEIGHT_SCHEDULES, Joint, MetricPart, Term
from closeknit.objectives.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True)
class NamedObjective:
    """A joint objective with a name in configurations; calling it with (dim, classes) builds it."""

    build: Callable[..., Joint]
    options: dict[str, Any]  # the name of each option -> its default
    summary: str  # what the objective does
    notes: dict[str, str]  # the name of each option -> its meaning and sensible range
    module: type[nn.Module] | None = None  # what a term of a joint objective names

    def __call__(self, dim: int, classes: int, **options: Any) -> Joint:
        return self.build(dim, classes, **options)


def from_builder(
    build: Callable[..., Joint], module: type[nn.Module] | None = None
) -> NamedObjective:
    """A row for a function that builds the whole joint objective.

    The options and their defaults are the keyword-only arguments of the function; the description
    comes from its docstring: a summary, an empty line, and a line `option: meaning` for each
    option. The options of `Copies` are added to them: the function takes `copies`, whose default
    says how often the objective encodes each text.
    """

    def build_with_copies(
        dim: int, classes: int, *, labels: Sequence[str] | None = None, **options: Any
    ) -> Joint:
        copies = _taken(options, copy_defaults)
        return build(dim, classes, labels=labels, copies=Copies(**copies), **options)

    usual: Copies = inspect.signature(build).parameters["copies"].default
    copy_defaults = {**_options_of(Copies), "copies": usual.copies}
    summary, notes = _described(build)
    _, copy_notes = _described(Copies)
    options = _options_of(build) | copy_defaults
    return NamedObjective(build_with_copies, options, summary, notes | copy_notes, module)


def with_cross_entropy(
    term_name: str,
    build_part: Callable[..., MetricPart],
    module: type[nn.Module] | None = None,
    *,
    ce_weight: float,
    copies: int = 1,
    ce_copies: str = "all",
) -> NamedObjective:
    """A row for the sum: `ce_weight` times cross-entropy + (1 - `ce_weight`) times a metric term.

    `build_part(dim, classes, labels, **options)` gives the metric term. Its keyword-only arguments
    are the options of the objective; those of `_Mixture` and of `Copies` are added to them.
    `copies` is how often the objective encodes each text unless a configuration says otherwise, and
    `ce_copies` which of these copies the cross-entropy reads.
    """

    def build(
        dim: int, classes: int, *, labels: Sequence[str] | None = None, **options: Any
    ) -> Joint:
        mixture = _Mixture(**_taken(options, mixing_defaults))
        how_often = Copies(**_taken(options, copy_defaults))
        return mixture.joined(term_name, build_part(dim, classes, labels, **options), how_often)

    mixing_defaults = {
        **_options_of(_Mixture),
        "ce_weight": ce_weight,
        "ce_copies": ce_copies,
    }
    copy_defaults = {**_options_of(Copies), "copies": copies}
    summary, notes = _described(build_part)
    for shared in (_Mixture, Copies):
        notes |= _described(shared)[1]
    options = _options_of(build_part) | mixing_defaults | copy_defaults
    return NamedObjective(build, options, summary, notes, module)


@dataclass(frozen=True, kw_only=True)
class _Mixture:
    """The options that all objectives of cross-entropy and a metric term share.

    ce_weight: weight of the cross-entropy, the rest goes to the other term; 0 to 1, 0 trains that
        term alone
    ce_weight_end: what ce_weight moves to over the training; none keeps it
    weight_schedule: how it moves: linear or cosine
    ce_copies: with two copies of each text, which of them the cross-entropy reads: all, or the
        first of each text
    classifier: with ce_weight 0, what predicts: centroid (nearest class mean) or knn (nearest
        training rows)
    label_smoothing: share of the cross-entropy's target spread evenly over all classes; 0 to 0.2
    class_weights: a table with a weight for each class name, a list in the sorted order of the
        names, or balanced for the inverse of the frequency
    """

    ce_weight: float = 0.5
    ce_weight_end: float | None = None
    weight_schedule: str = "linear"
    ce_copies: str = "all"
    classifier: str = "centroid"
    label_smoothing: float = 0.0
    class_weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        share("objective.ce_weight", self.ce_weight)
        if self.ce_weight_end is not None:
            share("objective.ce_weight_end", self.ce_weight_end)
        if self.weight_schedule not in WEIGHT_SCHEDULES:
            hint = did_you_mean(str(self.weight_schedule), WEIGHT_SCHEDULES)
            raise ConfigError(f"objective.weight_schedule is {self.weight_schedule}{hint}")
        if self.ce_copies not in COPIES_READ:
            hint = did_you_mean(str(self.ce_copies), COPIES_READ)
            raise ConfigError(f"objective.ce_copies is {self.ce_copies}{hint}")

    def joined(self, term_name: str, part: MetricPart, copies: Copies) -> Joint:
        """Cross-entropy and the metric term, under this name, as a joint objective."""
        terms = [
            self._cross_entropy("cross_entropy", "logits"),
            self._metric(term_name, part),
        ]
        if part.second_classifier is not None:
            terms.append(self._cross_entropy("weighting", part.second_classifier))
        return Joint(
            terms,
            copies=copies,
            classifier=self.classifier,
            adaptation=part.adaptation,
            patience=part.patience,
        )

    def _cross_entropy(self, name: str, view: str) -> Term:
        objective = CrossEntropy(
            label_smoothing=self.label_smoothing, class_weights=self.class_weights
        )
        return Term(
            name,
            self.ce_weight,
            objective,
            view,
            end=self.ce_weight_end,
            schedule=self.weight_schedule,
            copies=self.ce_copies,
        )

    def _metric(self, name: str, part: MetricPart) -> Term:
        end = None if self.ce_weight_end is None else 1.0 - self.ce_weight_end
        return Term(
            name,
            1.0 - self.ce_weight,
            part.objective,
            part.view,
            part.also,
            end=end,
            schedule=self.weight_schedule,
            token_rows=part.token_rows,
        )


# Keyword-only arguments that are no options: the program gives them.
_GIVEN = ("labels", "function")


def _options_of(build: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments and their defaults, without those that the program gives."""
    parameters = inspect.signature(build).parameters.values()
    keyword_only = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    return {one.name: one.default for one in keyword_only if one.name not in _GIVEN}


def _taken(options: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """These options with their defaults; those that are given are removed from `options`."""
    return {name: options.pop(name, default) for name, default in defaults.items()}


def _described(build: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The summary in a docstring, and what it says of each option."""
    summary, _, option_lines = inspect.cleandoc(build.__doc__ or "").partition("\n\n")
    whole_lines = re.sub(r"\n +", " ", option_lines).splitlines()  # indented lines continue one
    lines = [line.split(": ", 1) for line in whole_lines if ": " in line]
    return " ".join(summary.split()), {name: meaning for name, meaning in lines}
