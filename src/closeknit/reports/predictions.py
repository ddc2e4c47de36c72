"""Analysis of stored predictions: confusion, confident mistakes, entropy, learning curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.metrics import Integers, classification_scores, confusion
from closeknit.studies.predictions import Floats, Predictions


@dataclass(frozen=True)
class WrongPrediction:
    """A wrong prediction of a row, summed up over all runs that made it."""

    row: int
    text: str
    expected: str
    predicted: str
    confidence: float  # the highest of these runs
    runs: int


@dataclass(frozen=True)
class LearningCurve:
    """A recorded number by epoch, over runs that recorded it at the same epochs."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: int


# ---------------------------------------------------------------- classes


def total_confusion(runs: Iterable[Predictions], labels: Sequence[str]) -> Integers:
    """Counts (C, C) summed over runs, a row per expected class.

    Runs may order their labels differently.
    """
    place = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for run in runs:
        index = np.array([place[label] for label in run.labels], dtype=np.int64)
        counts += confusion(index[run.expected], index[run.predicted], len(labels))
    return counts


def row_shares(counts: npt.NDArray[Any]) -> Floats:
    """Each row as shares of its sum; a row of zeros stays a row of zeros."""
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts / np.maximum(total, 1), dtype=np.float64)


def class_f1(counts: Integers) -> Floats:
    """F1 of each class (C,) from a confusion matrix: 2 · correct / (expected + predicted)."""
    expected_and_predicted = counts.sum(axis=0) + counts.sum(axis=1)
    return np.asarray(
        2.0 * np.diag(counts) / np.maximum(expected_and_predicted, 1), dtype=np.float64
    )


def most_confused(counts: Integers, limit: int) -> list[int]:
    """The classes with the most mistakes from or to them, in the order of the classes."""
    mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
    worst = np.argsort(-mistakes, kind="stable")[:limit]
    return sorted(int(c) for c in worst)


def hard_sets(counts: Integers, *, sets: int = 4, size: int = 4) -> list[list[int]]:
    """Disjoint sets of classes that are often confused with each other, the most confused first.

    Confusion rates are made symmetric. A set starts with the most confused pair of classes that
    are in no set yet. The class most confused with the classes of the set joins it, until the set
    has `size` classes or no other class is confused with any of them. There are no sets if there
    are `size` classes or fewer.
    """
    if len(counts) <= size:
        return []
    mutual = row_shares(counts)
    mutual = mutual + mutual.T
    np.fill_diagonal(mutual, 0.0)
    free = list(range(len(counts)))
    found: list[list[int]] = []
    while len(found) < sets and len(free) >= 2:
        among_free = mutual[np.ix_(free, free)]
        if among_free.max() <= 0.0:
            break
        i, j = np.unravel_index(int(among_free.argmax()), among_free.shape)
        chosen = _grown_set(mutual, [free[int(i)], free[int(j)]], free, size)
        found.append(chosen)
        free = [c for c in free if c not in chosen]
    return found


def _grown_set(mutual: Floats, pair: list[int], free: Sequence[int], size: int) -> list[int]:
    """The pair and the free classes that join it, each the one most confused with those before."""
    chosen = list(pair)
    while len(chosen) < size:
        others = [c for c in free if c not in chosen]
        if not others:
            break
        confused = mutual[np.ix_(others, chosen)].sum(axis=1)
        if confused.max() <= 0.0:
            break
        chosen.append(others[int(confused.argmax())])
    return chosen


def scores_within(runs: Sequence[Predictions], names: Iterable[str]) -> tuple[float, float] | None:
    """Weighted F1 and accuracy on the rows of these classes alone, as means over runs.

    The result is None if there are no such rows.
    """
    wanted = set(names)
    run_scores: list[tuple[float, float]] = []
    for run in runs:
        classes = [c for c, label in enumerate(run.labels) if label in wanted]
        inside = np.isin(run.expected, classes)
        if inside.any():
            scores = classification_scores(run.expected[inside], run.predicted[inside], run.labels)
            run_scores.append((scores["weighted_f1"], scores["accuracy"]))
    if not run_scores:
        return None
    weighted_f1, accuracy = np.mean(run_scores, axis=0)
    return float(weighted_f1), float(accuracy)


# ---------------------------------------------------------------- single predictions


def confident_mistakes(runs: Sequence[Predictions], limit: int) -> list[WrongPrediction]:
    """The mistakes whose text is stored, the most confident first.

    The same mistake of several runs counts once, with the number of all runs that made it: a run
    stores the texts of its most confident mistakes only.
    """
    texts: dict[int, str] = {}
    confidences: dict[tuple[int, str, str], list[float]] = {}
    for run in runs:
        for i in np.flatnonzero(run.expected != run.predicted).tolist():
            row = int(run.rows[i])
            mistake = (row, run.labels[run.expected[i]], run.labels[run.predicted[i]])
            confidences.setdefault(mistake, []).append(float(run.confidence[i]))
            if i in run.texts:
                texts[row] = run.texts[i]
    found = [
        WrongPrediction(row, texts[row], expected, predicted, max(known), len(known))
        for (row, expected, predicted), known in confidences.items()
        if row in texts
    ]
    return sorted(found, key=lambda mistake: (-mistake.confidence, mistake.row))[:limit]


def entropy_by_outcome(runs: Sequence[Predictions]) -> tuple[Floats, Floats]:
    """The entropies of the right and of the wrong predictions of all runs, in bits.

    Unknown entropies are left out.
    """
    right = [run.entropy[run.expected == run.predicted] for run in runs]
    wrong = [run.entropy[run.expected != run.predicted] for run in runs]
    return _finite(right), _finite(wrong)


def _finite(parts: Sequence[Floats]) -> Floats:
    values = np.concatenate([np.zeros(0), *parts])
    return np.asarray(values[np.isfinite(values)], dtype=np.float64)


def shares_in_bins(values: Floats, edges: Floats) -> list[float]:
    """The share of the values in each bin; values beyond the edges count in the outermost bins."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
    return [float(share) for share in counts / max(len(values), 1)]


# ---------------------------------------------------------------- learning curves


def learning_curves(runs: Sequence[Predictions], name: str) -> list[LearningCurve]:
    """The means of the number recorded under a name.

    Runs with another number of epochs get a separate curve.
    """
    by_epochs: dict[tuple[float, ...], list[list[float]]] = {}
    for run in runs:
        points = [
            (float(record["epoch"]), float(record[name]))
            for record in run.history
            if is_number(record.get("epoch")) and is_number(record.get(name))
        ]
        if points:
            epochs = tuple(epoch for epoch, _ in points)
            by_epochs.setdefault(epochs, []).append([value for _, value in points])
    curves = []
    for epochs, rows in sorted(by_epochs.items(), key=lambda item: (len(item[0]), item[0])):
        values = np.array(rows)  # (runs, epochs)
        curves.append(
            LearningCurve(
                list(epochs),
                values.mean(axis=0).tolist(),
                values.min(axis=0).tolist(),
                values.max(axis=0).tolist(),
                len(rows),
            )
        )
    return curves


def is_number(value: object) -> bool:
    """Whether the value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)
