"""Splits of labelled rows: parts, folds, a held-out share, a subset, and a few rows per class.

Every function here depends on its arguments alone: the same labels and seed give the same rows.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from closeknit.data.examples import Examples, Rows
from closeknit.errors import ConfigError, DataError

_CLASSES_SHOWN = 5


def check_classes(examples: Examples, *, at_least: int = 1, what: str = "training") -> None:
    """Refuse examples of one class only, and examples with fewer than `at_least` rows of a class.

    `what` names in the message the thing that needs the rows.
    """
    _check_labels(examples.required_labels, examples.name, at_least, what)


def check_metric(metric: str, classes: Sequence[str], scored: Examples) -> None:
    """Refuse the metric `auc` where it is not defined.

    It needs two classes, and rows of both among the rows that are scored.
    """
    if metric != "auc":
        return
    if len(classes) != 2:
        raise ConfigError(
            f"the metric auc is for two classes, but {scored.name} has {len(classes)}; "
            "choose another metric, such as mcc"
        )
    if len(scored.classes) < 2:
        raise DataError(
            f"all {len(scored)} rows of {scored.name} that are scored have the label "
            f'"{scored.classes[0]}"; the metric auc needs rows of both classes'
        )


def _check_labels(labels: Sequence[str], name: str, at_least: int, what: str) -> None:
    counts = Counter(labels)
    if not counts:
        raise DataError(f"{name} has no rows; {what} needs rows of at least two classes")
    if len(counts) < 2:
        only = next(iter(counts))
        raise DataError(f'{name} has one class only ("{only}"); {what} needs at least two classes')
    small = sorted((label, count) for label, count in counts.items() if count < at_least)
    if small:
        shown = ", ".join(f"{label} ({count})" for label, count in small[:_CLASSES_SHOWN])
        hidden = len(small) - _CLASSES_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        raise DataError(
            f"{name}: {what} needs at least {at_least} rows of each class; too few of {shown}{more}"
        )


def folds(
    labels: Sequence[str], k: int, seed: int, *, rare: Literal["refuse", "keep"] = "refuse"
) -> list[tuple[Rows, Rows]]:
    """k stratified (train, test) pairs of row numbers; every row is tested exactly once.

    A class with fewer than k rows is refused by default. With `rare="keep"` it is kept: then some
    folds have no test row of this class, or no training row.
    """
    from sklearn.model_selection import StratifiedKFold

    if k < 2:
        raise DataError(f"{k} folds were asked for; at least 2 are needed")
    smallest_class = k if rare == "refuse" else 1
    _check_labels(labels, "data", smallest_class, f"{k} folds")
    largest = max(Counter(labels).values())
    if largest < k:
        raise DataError(
            f"{k} folds need a class with at least {k} rows; the largest class has {largest}"
        )
    splitter = StratifiedKFold(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        parts = list(splitter.split(np.zeros(len(labels)), np.asarray(labels)))
    return [(train.astype(np.int64), test.astype(np.int64)) for train, test in parts]


def split(labels: Sequence[str], fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(kept, held out) row numbers, stratified; at least one row of each class is kept."""
    if not 0.0 < fraction < 1.0:
        raise DataError(
            f"a fraction of {fraction} cannot be held out; give a number between 0 and 1"
        )
    count = max(1, round(fraction * len(labels)))
    held_out = _stratified(labels, count, seed, kept_per_class=1)
    kept = np.setdiff1d(np.arange(len(labels)), held_out)
    return kept, held_out


def subset(labels: Sequence[str], n: int, seed: int) -> Rows:
    """n row numbers, with the classes in the same proportions as in all rows."""
    if not 1 <= n <= len(labels):
        raise DataError(f"a subset of {n} rows was asked for; there are {len(labels)}")
    return _stratified(labels, n, seed, kept_per_class=0)


def few_shot(labels: Sequence[str], n: int, seed: int) -> Rows:
    """n row numbers per class."""
    if n < 1:
        raise DataError(f"{n} rows per class were asked for; at least 1 is needed")
    _check_labels(labels, "data", n, f"{n} rows per class")
    groups = _shuffled_rows_of_classes(labels, seed)
    return np.sort(np.concatenate([rows[:n] for rows in groups]))


def _shuffled_rows_of_classes(labels: Sequence[str], seed: int) -> list[Rows]:
    generator = np.random.default_rng(seed)
    names = np.asarray(labels)
    return [generator.permutation(np.flatnonzero(names == label)) for label in np.unique(names)]


def _stratified(labels: Sequence[str], n: int, seed: int, *, kept_per_class: int) -> Rows:
    """n row numbers in proportion to the classes, by the method of largest remainders.

    At least `kept_per_class` rows of each class are not drawn.
    """
    groups = _shuffled_rows_of_classes(labels, seed)
    available = np.array([max(len(rows) - kept_per_class, 0) for rows in groups])
    if n > available.sum():
        raise DataError(
            f"{n} of {len(labels)} rows in {len(groups)} classes cannot be held out, because a "
            "class would have no row left; give more rows, or hold none out (data.test=0, "
            "train.validation=0)"
        )
    exact = np.array([len(rows) for rows in groups]) * n / len(labels)
    drawn = np.minimum(np.floor(exact).astype(int), available)
    largest_remainder_first = np.argsort(-(exact - drawn), kind="stable")
    while drawn.sum() < n:
        for group in largest_remainder_first:
            if drawn.sum() < n and drawn[group] < available[group]:
                drawn[group] += 1
    chosen = [rows[:count] for rows, count in zip(groups, drawn, strict=True)]
    return np.sort(np.concatenate(chosen))


@dataclass(frozen=True)
class Parts:
    """The rows a model learns from, is chosen by and is scored on."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None

    @property
    def scored(self) -> Examples | None:
        """The part that the reported result comes from: the test part, else the validation part."""
        return self.test if self.test is not None else self.validation

    @property
    def held_out(self) -> list[Examples]:
        """The parts that the model must not learn from."""
        return [part for part in (self.validation, self.test) if part is not None]
