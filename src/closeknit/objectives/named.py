"""The joint objectives a configuration names: cross-entropy on the logits, and one metric term.

A named objective is written as a function of its own options that gives the metric part; `named`
adds the cross-entropy and the options that all of them share.
"""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.checks import share
from closeknit.objectives.contrastive import Contrastive, LabelAware, LabelDistance, SupCon
from closeknit.objectives.joint import WEIGHT_SCHEDULES, Adaptation, Joint, Term
from closeknit.objectives.proxy import ProxyNCA, SoftTriple
from closeknit.objectives.softmax import Consistency, CrossEntropy
from closeknit.objectives.triplet import Triplet

Build = Callable[..., Joint]


@dataclass(frozen=True)
class Metric:
    """The part of a joint objective beside the cross-entropy."""

    objective: nn.Module | None = None
    view: str = "pooled"
    also: tuple[str, ...] = ()
    copies: int = 1
    second_classifier: str | None = None  # a view of logits that takes the cross-entropy's weight too
    adaptation: Adaptation | None = None
    patience: int = 0


_TOKEN_VIEWS = {"real": "tokens", "content": "content_tokens", "all": "all_tokens"}

_SHARED = """
ce_weight: weight of the cross-entropy, the rest goes to the other term; 0 to 1, 0 trains that term alone
ce_weight_end: what ce_weight moves to over the training; none keeps it
weight_schedule: how it moves: linear or cosine
classifier: with ce_weight 0, what predicts: centroid (nearest class mean) or knn (nearest training rows)
label_smoothing: share of the cross-entropy's target given to all classes alike; 0 to 0.2
class_weights: a weight for each class in sorted order, or balanced for the inverse of its frequency
"""


def named(name: str, ce_weight: float, metric: Callable[..., Metric]) -> Build:
    """A builder of the joint objective, with the signature and the description of all its options."""

    def build(
        dim: int,
        classes: int,
        *,
        labels: Sequence[str] | None = None,
        ce_weight: float = ce_weight,
        ce_weight_end: float | None = None,
        weight_schedule: str = "linear",
        classifier: str = "centroid",
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        **own: Any,
    ) -> Joint:
        share("objective.ce_weight", ce_weight)
        if ce_weight_end is not None:
            share("objective.ce_weight_end", ce_weight_end)
        if weight_schedule not in WEIGHT_SCHEDULES:
            near = did_you_mean(str(weight_schedule), WEIGHT_SCHEDULES)
            raise ConfigError(f"objective.weight_schedule is {weight_schedule}{near}")
        part = metric(dim, classes, labels, **own)

        def term(
            title: str, objective: nn.Module, view: str, also: tuple[str, ...] = (), rest: bool = False
        ) -> Term:
            start, end = (1.0 - ce_weight, None if ce_weight_end is None else 1.0 - ce_weight_end)
            if not rest:
                start, end = ce_weight, ce_weight_end
            return Term(title, start, objective, view, also, end, weight_schedule)

        options: dict[str, Any] = {"label_smoothing": label_smoothing, "class_weights": class_weights}
        if part.objective is None:
            return Joint([Term("cross_entropy", 1.0, CrossEntropy(**options), "logits")])
        terms = [
            term("cross_entropy", CrossEntropy(**options), "logits"),
            term(name, part.objective, part.view, part.also, rest=True),
        ]
        if part.second_classifier:
            terms.append(term("weighting", CrossEntropy(**options), part.second_classifier))
        return Joint(
            terms,
            copies=part.copies,
            classifier=classifier,
            adaptation=part.adaptation,
            patience=part.patience,
        )

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [p for p in inspect.signature(metric).parameters.values() if p.kind is keyword]
    given = list(inspect.signature(build).parameters.values())
    shared = [p for p in given if p.kind is keyword and p.name != "labels"]
    about = inspect.cleandoc(metric.__doc__ or "")
    notes = _SHARED
    if name == "cross_entropy":  # has no second term to share weights with
        shared = [p for p in shared if p.name in ("label_smoothing", "class_weights")]
        notes = "\n".join(line for line in _SHARED.splitlines() if line.startswith(("label_s", "class_w")))
    build.__signature__ = inspect.Signature([*given[:3], *own, *shared])  # type: ignore[attr-defined]
    build.__doc__ = about + ("\n" if "\n\n" in about else "\n\n") + notes.strip()
    return build


# ---------------------------------------------------------------- the metric parts


def _cross_entropy(dim: int, classes: int, labels: Sequence[str] | None) -> Metric:
    """Cross-entropy on the logits of the classifier: the baseline, and a good one."""
    return Metric()


def _triple_entropy(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    centers: int = 10,
    gamma: float = 0.1,
    scale: float = 3.3,
    margin: float = 0.3,
    tau: float = 0.0,
    tokens: str = "real",
) -> Metric:
    """Cross-entropy on the logits plus SoftTriple on every token of the text (TripleEntropy).

    centers: learnt centers of each class; 10 to 2000 (the paper's best is 2000, at more cost)
    gamma: softness of the maximum over centers; 0.01 to 0.1
    scale: steepness of the softmax over classes (the paper's lambda); 1 to 10
    margin: by how much the true class must win (the paper's delta); 0.01 to 1
    tau: pull that merges spare centers; 0 to 0.2
    tokens: real (no padding), content (nor special tokens) or all (padding too, as published)
    """
    if tokens not in _TOKEN_VIEWS:
        raise ConfigError(f"objective.tokens is {tokens}{did_you_mean(str(tokens), _TOKEN_VIEWS)}")
    soft = SoftTriple(dim, classes, centers=centers, gamma=gamma, scale=scale, margin=margin, tau=tau)
    return Metric(soft, _TOKEN_VIEWS[tokens])


def _soft_triple(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    centers: int = 10,
    gamma: float = 0.1,
    scale: float = 20.0,
    margin: float = 0.01,
    tau: float = 0.0,
) -> Metric:
    """Cross-entropy on the logits plus SoftTriple on the pooled vector.

    centers: learnt centers of each class; 1 to 100
    gamma: softness of the maximum over centers; 0.01 to 0.1
    scale: steepness of the softmax over classes; 1 to 30
    margin: by how much the true class must win; 0.01 to 1
    tau: pull that merges spare centers; 0 to 0.2
    """
    return Metric(SoftTriple(dim, classes, centers=centers, gamma=gamma, scale=scale, margin=margin, tau=tau))


def _proxy_nca(
    dim: int, classes: int, labels: Sequence[str] | None, *, scale: float = 1.0, squared: bool = False
) -> Metric:
    """Cross-entropy on the logits plus ProxyNCA on the pooled vector: one learnt proxy a class.

    scale: steepness of the softmax over proxies; 1 to 10
    squared: true for squared distances, as in the original method
    """
    return Metric(ProxyNCA(dim, classes, scale=scale, squared=squared))


def _contrastive(dim: int, classes: int, labels: Sequence[str] | None, *, margin: float = 1.0) -> Metric:
    """Cross-entropy on the logits plus pair contrast on the pooled vectors of the batch.

    margin: how far apart pairs of other classes are pushed; 0.5 to 1.4
    """
    return Metric(Contrastive(margin=margin))


def _triplet(
    dim: int, classes: int, labels: Sequence[str] | None, *, margin: float = 0.2, mining: str = "all"
) -> Metric:
    """Cross-entropy on the logits plus triplets of the pooled vectors of the batch.

    margin: by how much another class must be farther away; 0.1 to 1
    mining: all triplets, hard (farthest positive, nearest negative) or semi_hard
    """
    return Metric(Triplet(margin=margin, mining=mining))


def _supcon(dim: int, classes: int, labels: Sequence[str] | None, *, temperature: float = 0.3) -> Metric:
    """Cross-entropy on the logits plus supervised contrast on the pooled vector (Gunel et al.).

    temperature: sharpness of the contrast; 0.1 to 0.7
    """
    return Metric(SupCon(temperature=temperature))


def _lcl(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    temperature: float = 0.3,
    weighting: str = "encoder",
) -> Metric:
    """Label-aware contrast: rows are weighed by how easily their class is taken for another.

    temperature: sharpness of the contrast; 0.1 to 0.7
    weighting: encoder (a second one, trained beside the first) or head (the classifier's own chances, cheap)
    """
    if weighting not in ("encoder", "head"):
        raise ConfigError(
            f"objective.weighting is {weighting}{did_you_mean(str(weighting), ('encoder', 'head'))}"
        )
    if weighting == "head":
        return Metric(LabelAware(temperature=temperature), also=("head_weights",))
    return Metric(
        LabelAware(temperature=temperature), also=("weights",), second_classifier="weighting_logits"
    )


def _clld(
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
) -> Metric:
    """Contrast with label distances (CLLD): confusable classes are stretched apart; texts encoded twice.

    scale: the distance between classes at the start (the paper's tau); 1 to 10
    distance: a file or matrix of class by class distances, which then stays as it is
    confusable: pairs of classes to hold twice as far apart as others, which then stay so
    adaptive: true to learn the distances from the validation part's confusions
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
        objective.set_distance(read_distances(distance, labels) if isinstance(distance, str) else distance)
    elif confusable is not None:
        objective.set_distance(_stretched(scale, confusable, classes, labels))
    static = distance is not None or confusable is not None
    adaptation = Adaptation(objective, update_start, update_every) if adaptive and not static else None
    return Metric(objective.float(), "projected", copies=2, adaptation=adaptation, patience=10)


def _stretched(
    scale: float, pairs: Sequence[Sequence[str]], classes: int, labels: Sequence[str] | None
) -> list[list[float]]:
    """A matrix of `scale`, doubled for the confusable pairs."""
    if labels is None:
        raise ConfigError("objective.confusable names classes, but their names are not known here")
    matrix = [[scale] * classes for _ in range(classes)]
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise ConfigError('objective.confusable is a list of pairs, like [["refund", "return"]]')
        places = []
        for label in pair:
            if label not in labels:
                raise ConfigError(
                    f"objective.confusable: unknown class {label}{did_you_mean(str(label), labels)}"
                )
            places.append(list(labels).index(label))
        matrix[places[0]][places[1]] = matrix[places[1]][places[0]] = 2.0 * scale
    return matrix


def read_distances(path: str, labels: Sequence[str] | None) -> list[list[float]]:
    """Class by class distances from a CSV file: class names in the first row and the first column."""
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
    across, down = table[0][1:], [row[0] for row in table[1:]]
    for label in labels:
        if label not in across or label not in down:
            raise ConfigError(f"objective.distance: {path} has no row or no column for the class {label}")
    try:
        return [[float(table[1 + down.index(a)][1 + across.index(b)]) for b in labels] for a in labels]
    except (ValueError, IndexError):
        raise ConfigError(f"objective.distance: {path} has a cell that is missing or no number") from None


# ---------------------------------------------------------------- joint objectives of one's own

# What a term of a joint objective in a run file may be, and the view it reads unless told otherwise.
MODULES: dict[str, tuple[type[nn.Module], str]] = {
    "CrossEntropy": (CrossEntropy, "logits"),
    "Consistency": (Consistency, "logits"),
    "Contrastive": (Contrastive, "pooled"),
    "Triplet": (Triplet, "pooled"),
    "ProxyNCA": (ProxyNCA, "pooled"),
    "SoftTriple": (SoftTriple, "pooled"),
    "SupCon": (SupCon, "pooled"),
    "LabelAware": (LabelAware, "pooled"),
    "LabelDistance": (LabelDistance, "projected"),
}


def joint(
    dim: int,
    classes: int,
    *,
    labels: Sequence[str] | None = None,
    terms: Sequence[Mapping[str, Any]] = (),
    copies: int = 1,
    classifier: str = "centroid",
) -> Joint:
    """A joint objective of your own: a list of terms, each a module, its weight, its view and its options.

    terms: tables like {objective = "SupCon", weight = 0.5, view = "pooled", temperature = 0.1}
    copies: how often every text is encoded in a batch; 1 or 2
    classifier: when no term reads logits, what predicts: centroid or knn
    """
    if copies not in (1, 2):
        raise ConfigError(f"objective.copies is {copies}; it must be 1 or 2")
    widths = {"logits": classes, "projected": 128}
    widths |= dict.fromkeys(("pooled", *_TOKEN_VIEWS.values()), dim)
    made: list[Term] = []
    for number, table in enumerate(terms):
        if not isinstance(table, Mapping):
            raise ConfigError("objective.terms is a list of tables; write [[objective.terms]] before each")
        options = dict(table)
        kind = str(options.pop("objective", ""))
        if kind not in MODULES:
            raise ConfigError(f"term {number + 1}: unknown objective {kind}{did_you_mean(kind, MODULES)}")
        module, usual = MODULES[kind]
        view = str(options.pop("view", usual))
        if view not in widths:
            raise ConfigError(f"term {number + 1}: unknown view {view}{did_you_mean(view, widths)}")
        if kind == "CrossEntropy" and view != usual:
            raise ConfigError(f"term {number + 1}: CrossEntropy reads logits, not {view}")
        if kind == "LabelAware" and view.endswith("tokens"):
            raise ConfigError(f"term {number + 1}: LabelAware weighs whole texts; its view cannot be {view}")
        shape = {"dim": widths[view], "classes": classes}
        term = {key: options.pop(key) for key in ("weight", "end", "schedule", "name") if key in options}
        known = inspect.signature(module.__init__).parameters  # type: ignore[misc]
        for option in options:
            if option not in known or option in shape:
                choices = [key for key in known if key not in (*shape, "self")]
                raise ConfigError(f"{kind} has no option {option}{did_you_mean(option, choices)}")
        built = module(**{key: value for key, value in shape.items() if key in known}, **options).float()
        also = ("head_weights",) if kind == "LabelAware" else ()
        made.append(
            Term(
                str(term.get("name", kind)),
                float(term.get("weight", 1.0)),
                built,
                view,
                also,
                term.get("end"),
                str(term.get("schedule", "linear")),
            )
        )
    return Joint(made, copies=copies, classifier=classifier)


def auto(
    dim: int,
    classes: int,
    *,
    labels: Sequence[str] | None = None,
    contrast: float = 0.5,
    temperature: float = 0.2,
    consistency: float = 4.0,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Joint:
    """The recipe to start with: cross-entropy, supervised contrast and consistency, every text encoded twice.
    Where none are given it has settings of its own: mean pooling, class names as texts, batches, epochs and rate by rows.

    contrast: weight of the supervised contrast on the pooled vectors beside the cross-entropy's 1; 0 to 1
    temperature: sharpness of the contrast; 0.1 to 0.5
    consistency: weight of the divergence between the chances of a text's two passes (R-Drop); 0 to 4
    label_smoothing: share of the cross-entropy's target given to all classes alike; 0 to 0.2
    class_weights: a weight for each class in sorted order, or balanced for the inverse of its frequency
    """
    for name, weight in (("contrast", contrast), ("consistency", consistency)):
        if not weight >= 0:
            raise ConfigError(f"objective.{name} is {weight}; it must not be negative")
    plain = CrossEntropy(label_smoothing=label_smoothing, class_weights=class_weights)
    return Joint(
        [
            Term("cross_entropy", 1.0, plain, "logits"),
            Term("supcon", contrast, SupCon(temperature=temperature), "pooled"),
            Term("consistency", consistency, Consistency(), "logits"),
        ],
        copies=2,
    )


OBJECTIVES: dict[str, Build] = {
    "auto": auto,
    "cross_entropy": named("cross_entropy", 1.0, _cross_entropy),
    "triple_entropy": named("soft_triple", 0.9, _triple_entropy),
    "soft_triple": named("soft_triple", 0.9, _soft_triple),
    "proxy_nca": named("proxy_nca", 0.9, _proxy_nca),
    "contrastive": named("contrastive", 0.9, _contrastive),
    "triplet": named("triplet", 0.9, _triplet),
    "supcon": named("supcon", 0.5, _supcon),
    "lcl": named("label_aware", 0.5, _lcl),
    "clld": named("label_distance", 0.5, _clld),
    "joint": joint,
}

# Settings of a run that come with an objective where none are given.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "auto": {
        "encoder": {"pooling": "mean"},
        "train": {"epochs": 0, "batch_size": 0, "lr_scale": 0.0, "class_names": 3},
    },
}
