"""Objectives as plain modules, and the joint objectives a configuration names.

Python callers pass a module and need no entry in the table. To add a name: write a function whose
keyword-only arguments are its options, and give it a line in OBJECTIVES (`named.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.contrastive import (
    Contrastive,
    InfoNCE,
    LabelAware,
    LabelDistance,
    MultipleNegatives,
    NTXent,
    SupCon,
)
from closeknit.objectives.joint import VIEWS, Adaptation, Joint, Term, View
from closeknit.objectives.named import OBJECTIVES, RECIPES
from closeknit.objectives.proxy import ProxyNCA, SoftTriple
from closeknit.objectives.similarity import BinaryCrossEntropy, MeanSquared
from closeknit.objectives.softmax import Consistency, CrossEntropy
from closeknit.objectives.triplet import Triplet

__all__ = [
    "OBJECTIVES",
    "RECIPES",
    "VIEWS",
    "Adaptation",
    "BinaryCrossEntropy",
    "Consistency",
    "Contrastive",
    "CrossEntropy",
    "InfoNCE",
    "Joint",
    "LabelAware",
    "LabelDistance",
    "MeanSquared",
    "MultipleNegatives",
    "NTXent",
    "ProxyNCA",
    "SoftTriple",
    "SupCon",
    "Term",
    "Triplet",
    "View",
    "build_objective",
    "describe",
    "objective_options",
]


def objective_options(name: str) -> dict[str, Any]:
    """The options of a named objective with their defaults; refuses an unknown name."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name}{did_you_mean(name, OBJECTIVES)}")
    parameters = inspect.signature(OBJECTIVES[name]).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {p.name: p.default for p in parameters if p.kind is keyword and p.name != "labels"}


def describe(name: str) -> str:
    """What an objective does and which options it takes, with their defaults and sensible ranges."""
    defaults = objective_options(name)
    about, _, options = inspect.cleandoc(OBJECTIVES[name].__doc__ or "").partition("\n\n")
    notes = dict(line.split(": ", 1) for line in options.splitlines() if ": " in line)
    lines = [name, "", about, "", "options (set them with --set objective.NAME=VALUE):"]
    width = max(map(len, defaults), default=0)
    lines += [
        f"  {key:<{width}} = {str(value).lower():<6} {notes.get(key, '')}" for key, value in defaults.items()
    ]
    return "\n".join(lines)


def build_objective(
    name: str,
    dim: int,
    classes: int,
    options: Mapping[str, Any],
    *,
    labels: Sequence[str] | None = None,
    counts: Sequence[int] | None = None,
) -> Joint:
    """The named joint objective for rows of `dim` dimensions in `classes` classes.

    `labels` are the class names, which some options refer to; `counts` the rows of each class, for
    `class_weights = "balanced"`.
    """
    known = objective_options(name)
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option}{did_you_mean(option, known)}")
    try:
        return OBJECTIVES[name](dim, classes, labels=labels, **_with_weights(options, classes, counts))
    except (TypeError, ValueError) as error:  # a number was expected and something else given
        raise ConfigError(f"{name}: an option has the wrong type ({error})") from None


def _with_weights(options: Mapping[str, Any], classes: int, counts: Sequence[int] | None) -> dict[str, Any]:
    """The options, and those of their terms, with class weights as a number for each class."""
    found = dict(options)
    if found.get("class_weights") is not None:
        found["class_weights"] = _class_weights(found["class_weights"], classes, counts)
    if "terms" in found:
        found["terms"] = [
            _with_weights(term, classes, counts) if isinstance(term, Mapping) else term
            for term in found["terms"]
        ]
    return found


def _class_weights(given: Any, classes: int, counts: Sequence[int] | None) -> list[float]:
    if isinstance(given, str) and given == "balanced":
        if counts is None:
            raise ConfigError(
                "objective.class_weights is balanced, but the rows of each class are not known here"
            )
        return [sum(counts) / (classes * max(count, 1)) for count in counts]
    try:
        weights = [float(weight) for weight in given]
    except (TypeError, ValueError):
        raise ConfigError(
            f"objective.class_weights is {given}; give a list of weights, or balanced"
        ) from None
    if len(weights) != classes:
        raise ConfigError(f"objective.class_weights has {len(weights)} weights; there are {classes} classes")
    return weights
