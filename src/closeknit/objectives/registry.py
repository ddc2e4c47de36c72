"""The table of objectives that a configuration can name, and the functions that read it.

To add an objective, write its class and its builder in one new file, and give it a row in
OBJECTIVES. `make new-objective NAME=...` writes the first version of both.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.copies import ONCE, TWICE, Copies
from closeknit.objectives.joint import Joint, Term
from closeknit.objectives.losses.contrastive import (
    Contrastive,
    LabelAware,
    SupCon,
    build_contrastive,
    build_label_aware,
    build_supcon,
)
from closeknit.objectives.losses.cross_entropy import (
    CrossEntropy,
    build_cross_entropy,
    class_weights_from,
)
from closeknit.objectives.losses.label_distance import LabelDistance, build_label_distance
from closeknit.objectives.losses.proxy import ProxyNCA, build_proxy_nca
from closeknit.objectives.losses.soft_triple import (
    SoftTriple,
    build_soft_triple,
    build_triple_entropy,
)
from closeknit.objectives.losses.text_views import Consistency
from closeknit.objectives.losses.triplet import Triplet, build_triplet
from closeknit.objectives.named_objective import NamedObjective, from_builder, with_cross_entropy
from closeknit.objectives.view import TOKEN_VIEWS

PROJECTED_DIM = 128


# ---------------------------------------------------------------- objectives with several terms


def build_auto(
    dim: int,
    classes: int,
    *,
    labels: Sequence[str] | None = None,
    copies: Copies = TWICE,
    contrast: float = 0.5,
    temperature: float = 0.2,
    consistency: float = 4.0,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Joint:
    """The recipe to start with: cross-entropy, supervised contrast and consistency, every text
    encoded twice. It sets what you leave open: mean pooling, class names as texts; batch size,
    epochs and learning rate by rows.

    contrast: weight of the supervised contrast on the pooled vectors, beside a weight of 1 for the
        cross-entropy; 0 to 1
    temperature: sharpness of the contrast; 0.1 to 0.5
    consistency: weight of the divergence between the class probabilities of the two passes of a
        text (R-Drop); 0 to 4
    label_smoothing: share of the cross-entropy's target spread evenly over all classes; 0 to 0.2
    class_weights: a table with a weight for each class name, a list in the sorted order of the
        names, or balanced for the inverse of the frequency
    """
    for name, weight in (("contrast", contrast), ("consistency", consistency)):
        if not weight >= 0:
            raise ConfigError(f"objective.{name} is {weight}; it must not be negative")
    cross_entropy = CrossEntropy(label_smoothing=label_smoothing, class_weights=class_weights)
    terms = [
        Term("cross_entropy", 1.0, cross_entropy, "logits"),
        Term("supcon", contrast, SupCon(temperature=temperature), "pooled"),
        Term("consistency", consistency, Consistency(), "logits"),
    ]
    return Joint(terms, copies=copies)


def build_joint(
    dim: int,
    classes: int,
    *,
    labels: Sequence[str] | None = None,
    terms: Sequence[Mapping[str, Any]] = (),
    copies: Copies = ONCE,
    classifier: str = "centroid",
) -> Joint:
    """A joint objective that you compose: a list of terms, each with an objective, a weight, a view
    and options.

    terms: tables like {objective = "SupCon", weight = 0.5, view = "pooled", temperature = 0.1};
        copies = "first" lets a term read the first copy of each text, token_rows = 1024 at most so
        many rows of a view of tokens; without any table, the cross-entropy alone
    classifier: when no term reads logits, what predicts: centroid or knn
    """
    tables = terms or DEFAULT_TERMS
    built = [_term_from_table(place, table, dim, classes) for place, table in enumerate(tables, 1)]
    return Joint(built, copies=copies, classifier=classifier)


DEFAULT_TERMS: Sequence[Mapping[str, Any]] = ({"objective": "CrossEntropy"},)


def _term_from_table(number: int, table: Any, dim: int, classes: int) -> Term:
    """One term of a joint objective, from its table in a run file."""
    if not isinstance(table, Mapping):
        raise ConfigError(
            "objective.terms is a list of tables; write [[objective.terms]] before each"
        )
    options = dict(table)
    module_name = str(options.pop("objective", ""))
    if module_name not in TERM_MODULES:
        hint = did_you_mean(module_name, TERM_MODULES)
        raise ConfigError(f"term {number}: unknown objective {module_name}{hint}")
    module = TERM_MODULES[module_name]
    view = str(options.pop("view", default_view(module)))
    view_dims = {"logits": classes, "projected": PROJECTED_DIM, "pooled": dim}
    view_dims |= dict.fromkeys(TOKEN_VIEWS.values(), dim)
    if view not in view_dims:
        raise ConfigError(f"term {number}: unknown view {view}{did_you_mean(view, view_dims)}")
    if module is CrossEntropy and view != "logits":
        raise ConfigError(f"term {number}: CrossEntropy reads logits, not {view}")
    if module is LabelAware and view.endswith("tokens"):
        raise ConfigError(
            f"term {number}: LabelAware weighs whole texts; its view cannot be {view}"
        )
    name = str(options.pop("name", module_name))
    weight = float(options.pop("weight", 1.0))
    end = options.pop("end", None)
    schedule = str(options.pop("schedule", "linear"))
    copies = str(options.pop("copies", "all"))
    token_rows = options.pop("token_rows", 0)
    objective = _built(module, view_dims[view], classes, options).float()
    also = ("head_weights",) if module is LabelAware else ()
    return Term(name, weight, objective, view, also, end, schedule, copies, token_rows)


def _built(
    module: type[nn.Module], dim: int, classes: int, options: Mapping[str, Any]
) -> nn.Module:
    """The module with these options, and with `dim` and `classes` if it takes them."""
    arguments = inspect.signature(module.__init__).parameters  # type: ignore[misc]
    shape = {name: size for name, size in (("dim", dim), ("classes", classes)) if name in arguments}
    choices = [name for name in arguments if name not in ("self", "dim", "classes")]
    for option in options:
        if option not in choices:
            raise ConfigError(
                f"{module.__name__} has no option {option}{did_you_mean(option, choices)}"
            )
    return module(**shape, **options)


def default_view(module: type[nn.Module]) -> str:
    """The view that an objective reads unless a term names another one."""
    return str(getattr(module, "default_view", "pooled"))


# ---------------------------------------------------------------- the table

# The names that a configuration can use. Python callers can pass any module and need no row here.
OBJECTIVES: dict[str, NamedObjective] = {
    "auto": from_builder(build_auto, Consistency),
    "cross_entropy": from_builder(build_cross_entropy, CrossEntropy),
    "triple_entropy": with_cross_entropy(
        "soft_triple", build_triple_entropy, SoftTriple, ce_weight=0.9
    ),
    "soft_triple": with_cross_entropy("soft_triple", build_soft_triple, SoftTriple, ce_weight=0.9),
    "proxy_nca": with_cross_entropy("proxy_nca", build_proxy_nca, ProxyNCA, ce_weight=0.9),
    "contrastive": with_cross_entropy("contrastive", build_contrastive, Contrastive, ce_weight=0.9),
    "triplet": with_cross_entropy("triplet", build_triplet, Triplet, ce_weight=0.9),
    "supcon": with_cross_entropy("supcon", build_supcon, SupCon, ce_weight=0.5),
    "lcl": with_cross_entropy("label_aware", build_label_aware, LabelAware, ce_weight=0.5),
    "clld": with_cross_entropy(
        "label_distance",
        build_label_distance,
        LabelDistance,
        ce_weight=0.5,
        copies=2,
        ce_copies="first",  # equation 10 of the paper
    ),
    "joint": from_builder(build_joint),
}

# What a term of a joint objective in a run file can name.
TERM_MODULES: dict[str, type[nn.Module]] = {
    row.module.__name__: row.module for row in OBJECTIVES.values() if row.module is not None
}

# Settings of a run that an objective brings along; each is used unless the user sets it.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "auto": {
        "encoder": {"pooling": "mean"},
        "train": {"epochs": 0, "batch_size": 0, "lr_scale": 0.0, "class_names": 3},
    },
    # the label distances are learned from the confusions on rows that are not trained on
    "clld": {"train": {"validation": 0.1}},
}


# ---------------------------------------------------------------- reading the table


def objective_options(name: str) -> dict[str, Any]:
    """The options of a named objective with their defaults; refuses an unknown name."""
    return dict(_row(name).options)


def describe(name: str) -> str:
    """What an objective does and which options it takes, with their defaults and sensible
    ranges.
    """
    row = _row(name)
    lines = [name, "", row.summary, "", "options (set them with --set objective.NAME=VALUE):"]
    width = max(map(len, row.options), default=0)
    for option, default in row.options.items():
        lines.append(f"  {option:<{width}} = {str(default).lower():<6} {row.notes.get(option, '')}")
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

    `labels` are the class names, which some options refer to; `counts` are the numbers of rows per
    class, for `class_weights = "balanced"`.
    """
    row = _row(name)
    for option in options:
        if option not in row.options:
            raise ConfigError(f"{name} has no option {option}{did_you_mean(option, row.options)}")
    try:
        resolved = _with_class_weights(options, classes, labels, counts)
        return row(dim, classes, labels=labels, **resolved)
    except (TypeError, ValueError) as error:  # for example, a text where a number was expected
        raise ConfigError(f"{name}: an option has the wrong type ({error})") from None


def _row(name: str) -> NamedObjective:
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name}{did_you_mean(name, OBJECTIVES)}")
    return OBJECTIVES[name]


def _with_class_weights(
    options: Mapping[str, Any],
    classes: int,
    labels: Sequence[str] | None,
    counts: Sequence[int] | None,
) -> dict[str, Any]:
    """The options, and those of their terms, with `class_weights` as one number per class."""
    resolved = dict(options)
    given = resolved.get("class_weights")
    if given is not None:
        resolved["class_weights"] = class_weights_from(given, classes, labels, counts)
    if "terms" in resolved:
        resolved["terms"] = [
            _with_class_weights(term, classes, labels, counts)
            if isinstance(term, Mapping)
            else term
            for term in resolved["terms"]
        ]
    return resolved
