"""The test texts of a data set as points on a plane, before and after fine-tuning."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from closeknit.charts.projection import flat_map
from closeknit.charts.svg_grids import marker, point_map
from closeknit.metrics import Integers
from closeknit.reports.page import clipped
from closeknit.reports.study_page.folder import Cell, FinishedRun, StudyFolder, cell_name
from closeknit.studies.predictions import Floats, Predictions

SHOWN_POINTS = 500  # points of a map
LEAST_POINTS = 5


class TextVectors(NamedTuple):
    """The vectors of some test texts, and the positions of these texts among the test rows."""

    positions: Integers  # (n,)
    before: Floats  # (n, d)
    after: Floats  # (n, d)


def text_maps(
    study: StudyFolder,
    number: int,
    cell: Cell,
    runs: Sequence[FinishedRun],
    stored: Mapping[str, Mapping[tuple[int, int], Predictions]],
    labels: Sequence[str],
) -> list[dict[str, Any]]:
    """A pair of maps for each objective that has a run with predictions and vectors.

    The first such run is shown.
    """
    maps: list[dict[str, Any]] = []
    planes: dict[bytes, Floats] = {}  # texts before fine-tuning are the same for all objectives
    for objective, by_run in stored.items():
        for run in runs:
            predictions = by_run.get((run.seed, run.fold))
            if run.objective != objective or predictions is None:
                continue
            vectors = read_vectors(study.folder / "details" / f"{run.key}.npz")
            if vectors is not None and vectors.positions.max() < len(predictions.rows):
                name = f"map{number}x{len(maps)}"
                maps.append(_map_view(name, cell, run, predictions, vectors, labels, planes))
                break
    return maps


def _map_view(
    name: str,
    cell: Cell,
    run: FinishedRun,
    predictions: Predictions,
    vectors: TextVectors,
    labels: Sequence[str],
    planes: dict[bytes, Floats],
) -> dict[str, Any]:
    """The two maps of a run, their legend, and the texts that the page shows for a point."""
    for part in (vectors.before, vectors.after):
        if part.tobytes() not in planes:
            planes[part.tobytes()] = flat_map(part)
    index = np.array([labels.index(label) for label in predictions.labels])
    expected = index[predictions.expected[vectors.positions]]
    predicted = index[predictions.predicted[vectors.positions]]
    wrong = (expected != predicted).tolist()
    kinds = expected.tolist()
    texts = [clipped(predictions.texts.get(int(position), "")) for position in vectors.positions]
    return {
        "id": name,
        "objective": run.objective,
        "before": point_map(
            planes[vectors.before.tobytes()],
            kinds,
            wrong,
            f"Test texts of {cell_name(cell)} before fine-tuning",
        ),
        "after": point_map(
            planes[vectors.after.tobytes()],
            kinds,
            wrong,
            f"Test texts of {cell_name(cell)} after fine-tuning with {run.objective}",
        ),
        "classes": [
            {"kind": kind, "name": labels[kind], "sign": marker(kind)}
            for kind in sorted(set(kinds))
        ],
        "payload": {
            "labels": list(labels),
            "points": [list(point) for point in zip(texts, kinds, predicted.tolist(), strict=True)],
        },
        "run": f"seed {run.seed}, fold {run.fold + 1}",
    }


def read_vectors(path: Path) -> TextVectors | None:
    """The vectors in a file; None if it is missing, damaged, or holds too few of them."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            positions = np.asarray(stored["positions"][:SHOWN_POINTS], dtype=np.int64)
            before = np.asarray(stored["before"][:SHOWN_POINTS], dtype=np.float64)
            after = np.asarray(stored["after"][:SHOWN_POINTS], dtype=np.float64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    same_length = len(positions) == len(before) == len(after)
    if not same_length or before.ndim != 2 or after.ndim != 2:
        return None
    if len(positions) < LEAST_POINTS or positions.min() < 0:
        return None
    return TextVectors(positions, before, after)
