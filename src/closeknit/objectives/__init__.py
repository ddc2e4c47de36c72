"""Objectives as plain modules, and the joint objectives a configuration names.

Python callers pass a module and need no entry in the table. To add a name: write a function whose
keyword-only arguments are its options, and give it a line in OBJECTIVES.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError, did_you_mean
from .joint import VIEWS, Joint, Term, View
from .proxy import SoftTriple
from .softmax import CrossEntropy

__all__ = [
    "OBJECTIVES",
    "VIEWS",
    "CrossEntropy",
    "Joint",
    "SoftTriple",
    "Term",
    "View",
    "build_objective",
    "describe",
    "objective_options",
]

_TOKEN_VIEWS = {"real": "tokens", "content": "content_tokens", "all": "all_tokens"}


def cross_entropy(
    dim: int,
    classes: int,
    *,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Joint:
    """Cross-entropy on the logits of a linear classifier: the baseline, and a good one.

    label_smoothing: share of the target given to all classes alike; 0 to 0.2
    class_weights: a weight for each class in sorted order; default all 1
    """
    ce = CrossEntropy(label_smoothing=label_smoothing, class_weights=class_weights)
    return Joint([Term("cross_entropy", 1.0, ce, "logits")])


def triple_entropy(
    dim: int,
    classes: int,
    *,
    ce_weight: float = 0.9,
    centers: int = 10,
    gamma: float = 0.1,
    scale: float = 3.3,
    margin: float = 0.3,
    tau: float = 0.0,
    tokens: str = "real",
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Joint:
    """Cross-entropy on the logits plus SoftTriple on every token of the text (TripleEntropy).

    ce_weight: weight of the cross-entropy, the rest goes to SoftTriple; 0 to 1, best near 0.9
    centers: learnt centers of each class; 10 to 2000 (the paper's best is 2000, at more cost)
    gamma: softness of the maximum over centers; 0.01 to 0.1
    scale: steepness of the softmax over classes (the paper's lambda); 1 to 10
    margin: by how much the true class must win (the paper's delta); 0.01 to 1
    tau: pull that merges spare centers; 0 to 0.2
    tokens: real (no padding), content (nor special tokens) or all (padding too, as published)
    label_smoothing: share of the target given to all classes alike; 0 to 0.2
    class_weights: a weight for each class in sorted order; default all 1
    """
    if tokens not in _TOKEN_VIEWS:
        raise ConfigError(f"objective.tokens is {tokens}{did_you_mean(str(tokens), _TOKEN_VIEWS)}")
    if not 0.0 <= ce_weight <= 1.0:
        raise ConfigError(f"objective.ce_weight is {ce_weight}; it must be from 0 to 1")
    if ce_weight == 0.0:
        raise ConfigError("objective.ce_weight is 0: nothing would train the classifier; give it more than 0")
    ce = CrossEntropy(label_smoothing=label_smoothing, class_weights=class_weights)
    soft_triple = SoftTriple(dim, classes, centers=centers, gamma=gamma, scale=scale, margin=margin, tau=tau)
    return Joint(
        [
            Term("cross_entropy", ce_weight, ce, "logits"),
            Term("soft_triple", 1.0 - ce_weight, soft_triple, _TOKEN_VIEWS[tokens]),
        ]
    )


# The names a configuration may use.
OBJECTIVES: dict[str, Callable[..., Joint]] = {
    "cross_entropy": cross_entropy,
    "triple_entropy": triple_entropy,
}


def objective_options(name: str) -> dict[str, Any]:
    """The options of a named objective with their defaults; refuses an unknown name."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name}{did_you_mean(name, OBJECTIVES)}")
    parameters = inspect.signature(OBJECTIVES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


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


def build_objective(name: str, dim: int, classes: int, options: Mapping[str, Any]) -> Joint:
    """The named joint objective for rows of `dim` dimensions in `classes` classes."""
    known = objective_options(name)
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option}{did_you_mean(option, known)}")
    weights = options.get("class_weights")
    if weights is not None and len(weights) != classes:
        raise ConfigError(f"objective.class_weights has {len(weights)} weights; there are {classes} classes")
    try:
        return OBJECTIVES[name](dim, classes, **options)
    except TypeError as error:  # a number was expected and something else given
        raise ConfigError(f"{name}: an option has the wrong type ({error})") from None
