"""The stored predictions of runs: what each test row was taken for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.metrics import Integers

Floats = npt.NDArray[np.float64]
DETAILS = "details"  # the folder in a study that holds the predictions
NATS_PER_BIT = math.log(2.0)  # entropies are stored in nats, and read in bits


@dataclass(frozen=True)
class Predictions:
    """The predictions of one run on its test rows; a class is an index into `labels`."""

    labels: list[str]
    rows: Integers  # (n,) row numbers in the data
    expected: Integers  # (n,)
    predicted: Integers  # (n,)
    confidence: Floats  # (n,) probability of the predicted class
    entropy: Floats  # (n,) of the predicted distribution, in bits
    texts: dict[int, str]  # position -> text, for some positions
    history: list[dict[str, float]]
    distance: Floats | None = None  # (C, C) between labels, as the model learned it


def predictions_in(study: Path) -> Callable[[str], Predictions | None]:
    """The stored predictions of the runs in the folder of a study, by the key of the run."""
    return lambda key: read_predictions(study / DETAILS / f"{key}.json")


def read_predictions(path: Path) -> Predictions | None:
    """The predictions in a file; None if it is missing, damaged or in another format."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        predictions = _predictions(stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return predictions if _is_consistent(predictions) else None


def _predictions(stored: dict[str, Any]) -> Predictions:
    n = len(stored["rows"])
    unknown = [math.nan] * n
    distance = stored.get("distance")
    return Predictions(
        labels=[str(label) for label in stored["labels"]],
        rows=np.array(stored["rows"], dtype=np.int64),
        expected=np.array(stored["expected"], dtype=np.int64),
        predicted=np.array(stored["predicted"], dtype=np.int64),
        confidence=np.array(stored.get("confidence") or unknown, dtype=np.float64),
        entropy=np.array(stored.get("entropy") or unknown, dtype=np.float64) / NATS_PER_BIT,
        texts={int(position): str(text) for position, text in stored.get("texts", {}).items()},
        history=[dict(record) for record in stored.get("history", [])],
        distance=None if distance is None else np.array(distance, dtype=np.float64),
    )


def _is_consistent(run: Predictions) -> bool:
    """Whether all columns have as many rows, and every class has a label."""
    n = len(run.rows)
    columns = (run.expected, run.predicted, run.confidence, run.entropy)
    if any(column.shape != (n,) for column in columns):
        return False
    classes = np.concatenate([run.expected, run.predicted])
    return n == 0 or bool(classes.min() >= 0 and classes.max() < len(run.labels))
