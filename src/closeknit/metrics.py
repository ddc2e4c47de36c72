"""Scores: NumPy in, float out; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def classification_scores(expected: Integers, predicted: Integers, names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, weighted and macro F1, the number of rows, and each class on its own.

    The averages run over the classes that occur in `expected` or `predicted`.
    """
    from sklearn.metrics import precision_recall_fscore_support

    present = np.union1d(expected, predicted)
    precision, recall, f1, support = precision_recall_fscore_support(
        expected, predicted, labels=present, zero_division=0
    )
    per_class = {
        names[c]: {"precision": float(p), "recall": float(r), "f1": float(f), "n": int(n)}
        for c, p, r, f, n in zip(present, precision, recall, f1, support, strict=True)
    }
    return {
        "accuracy": float(np.mean(expected == predicted)),
        "weighted_f1": float(np.average(f1, weights=support)),
        "macro_f1": float(np.mean(f1)),
        "n": len(expected),
        "per_class": per_class,
    }


def confusion(expected: Integers, predicted: Integers, classes: int) -> Integers:
    """Counts (C, C): row the expected class, column the predicted one."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (expected, predicted), 1)
    return counts
