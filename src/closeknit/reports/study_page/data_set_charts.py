"""The charts of one data set at one size: scores, learning curves, confusion, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from closeknit.charts.axis import format_number
from closeknit.charts.svg import Curve, Group, box_plot, dumbbell, line_chart
from closeknit.charts.svg_grids import heat_map
from closeknit.metrics import Integers
from closeknit.reports.page import counted, whole_ticks
from closeknit.reports.predictions import (
    LearningCurve,
    class_f1,
    learning_curves,
    most_confused,
    row_shares,
    total_confusion,
)
from closeknit.reports.study_page.errors import entropy_charts, hard_label_sets, mistake_rows
from closeknit.reports.study_page.folder import Cell, FinishedRun, StudyFolder, cell_name
from closeknit.reports.study_page.text_maps import text_maps
from closeknit.studies.predictions import Floats, Predictions, read_predictions

SHOWN_CLASSES = 30  # in a matrix or a list of classes; more cannot be read
SHOWN_POINTS = 60  # points of a learning curve

# objective -> (seed, fold) -> the predictions of that run
Stored = dict[str, dict[tuple[int, int], Predictions]]


def data_set_view(study: StudyFolder, number: int, cell: Cell) -> dict[str, Any]:
    """The charts and lists of one data set at one size, from the stored predictions of its runs."""
    runs = [run for run in study.runs if run.cell == cell]
    stored = _read_stored(study, runs)
    all_runs = {objective: list(by_run.values()) for objective, by_run in stored.items()}
    shared_runs = _shared_runs(stored)
    labels = _labels(study, cell, all_runs)
    counts = {name: total_confusion(of_name, labels) for name, of_name in shared_runs.items()}
    errors = {
        "mistakes": mistake_rows(study, all_runs),
        "entropies": entropy_charts(study, cell, all_runs),
        "hard": hard_label_sets(study, cell, shared_runs, counts, labels),
    }
    return {
        "id": f"cell{number}",
        "name": cell_name(cell),
        "boxes": _score_boxes(study, cell, runs),
        "curves": _learning_charts(study, cell, all_runs),
        "confusions": _confusion_charts(cell, counts, labels),
        "distances": _distance_charts(cell, all_runs),
        "maps": text_maps(study, number, cell, runs, stored, labels),
        "changes": _class_changes(study, cell, counts, labels),
        **errors,
        "has_errors": any(errors.values()),
    }


def _read_stored(study: StudyFolder, runs: Sequence[FinishedRun]) -> Stored:
    """The predictions of the runs that have some, in the order of the objectives."""
    stored: Stored = {}
    for run in runs:
        predictions = read_predictions(study.folder / "details" / f"{run.key}.json")
        if predictions is not None:
            stored.setdefault(run.objective, {})[run.seed, run.fold] = predictions
    return {name: stored[name] for name in study.objectives if name in stored}


def _shared_runs(stored: Stored) -> dict[str, list[Predictions]]:
    """The runs on the seeds and folds that all objectives have, so that they share test rows.

    All runs of each objective if they have no seed and fold in common yet.
    """
    if not stored:
        return {}
    common = set.intersection(*(set(by_run) for by_run in stored.values()))
    return {
        objective: [by_run[run] for run in by_run if run in common or not common]
        for objective, by_run in stored.items()
    }


def _labels(study: StudyFolder, cell: Cell, all_runs: Mapping[str, list[Predictions]]) -> list[str]:
    """The classes that `study.json` names, then those that only the predictions know."""
    data, _ = cell
    named = [str(name) for name in study.data_set(data).get("classes") or []]
    predicted = [label for runs in all_runs.values() for run in runs for label in run.labels]
    return list(dict.fromkeys([*named, *predicted]))


# ---------------------------------------------------------------- runs and learning curves


def _score_boxes(study: StudyFolder, cell: Cell, runs: Sequence[FinishedRun]) -> str:
    groups = []
    for objective in study.objectives:
        scores = {
            f"seed {run.seed}, fold {run.fold + 1}": 100 * run.weighted_f1
            for run in runs
            if run.objective == objective
        }
        if scores:
            groups.append(Group(objective, study.colour(objective), scores))
    label = f"Weighted F1 of all runs on {cell_name(cell)}"
    return box_plot(groups, label, "weighted F1, mean above each box")


def _learning_charts(
    study: StudyFolder, cell: Cell, all_runs: Mapping[str, list[Predictions]]
) -> list[str]:
    """The training loss and the weighted F1 by epoch, each if it was recorded."""
    charts = []
    recorded = (
        ("loss", "training loss", 1.0),
        ("weighted_f1", "weighted F1 on held-out rows", 100.0),
    )
    for key, name, scale in recorded:
        curves = [
            _learning_curve(objective, study.colour(objective), one, scale)
            for objective, runs in all_runs.items()
            for one in learning_curves(runs, key)
        ]
        if not curves:
            continue
        highest = [max(curve.y) for curve in curves]
        lowest = min(value for curve in curves for value in curve.low)
        last_epoch = int(max(epoch for curve in curves for epoch in curve.x))
        charts.append(
            line_chart(
                curves,
                f"{name} by epoch on {cell_name(cell)}",
                x_name="epoch",
                y_name=name,
                log_y=key == "loss" and lowest > 0 and max(highest) > 5 * min(highest),
                ticks=whole_ticks(last_epoch),
            )
        )
    return charts


def _learning_curve(objective: str, colour: int, recorded: LearningCurve, scale: float) -> Curve:
    """The mean over runs and the range of all runs, thinned out if there are many epochs."""
    step = -(-len(recorded.epochs) // SHOWN_POINTS)  # rounded up
    epochs = recorded.epochs[::step]
    mean = [scale * value for value in recorded.mean[::step]]
    low = [scale * value for value in recorded.low[::step]]
    high = [scale * value for value in recorded.high[::step]]
    over = f"mean of {counted(recorded.runs, 'run')}"
    notes = [
        f"{objective}, epoch {format_number(epoch)}: {format_number(value)}, {over}"
        for epoch, value in zip(epochs, mean, strict=True)
    ]
    return Curve(objective, colour, epochs, mean, low, high, notes)


# ---------------------------------------------------------------- matrices of classes


def _confusion_charts(
    cell: Cell, counts: Mapping[str, Integers], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The confusion matrix of each objective; of many classes, those with the most mistakes."""
    if not counts or len(labels) < 2:
        return []
    shown = list(range(len(labels)))
    if len(labels) > SHOWN_CLASSES:
        total = np.sum(list(counts.values()), axis=0)
        shown = most_confused(total, SHOWN_CLASSES)
    names = [labels[c] for c in shown]
    return [
        {
            "objective": objective,
            "svg": heat_map(
                row_shares(matrix)[np.ix_(shown, shown)],
                names,
                names,
                f"Confusion matrix of {objective} on {cell_name(cell)}",
                confusion=True,
            ),
            "shown": len(shown),
            "left_out": len(labels) - len(shown),
        }
        for objective, matrix in counts.items()
    ]


def _distance_charts(cell: Cell, all_runs: Mapping[str, list[Predictions]]) -> list[dict[str, Any]]:
    """The label distances that objectives learned, as a mean over their runs."""
    charts = []
    for objective, runs in all_runs.items():
        distances, labels = _learned_distances(runs)
        if not distances:
            continue
        mean = np.mean(distances, axis=0)
        between = ~np.eye(len(mean), dtype=bool)
        if len(mean) < 2 or np.ptp(mean[between]) == 0.0:
            continue  # all distances are equal: they were set, not learned
        shown = _nearest_classes(mean, SHOWN_CLASSES)
        part = mean[np.ix_(shown, shown)]
        largest = float(np.nanmax(part))
        names = [labels[c] for c in shown]
        label = f"Label distance learned by {objective} on {cell_name(cell)}"
        svg = heat_map(part / largest if largest > 0 else part, names, names, label)
        largest_text = format_number(largest)
        charts.append(
            {"objective": objective, "svg": svg, "runs": len(distances), "largest": largest_text}
        )
    return charts


def _learned_distances(runs: Sequence[Predictions]) -> tuple[list[Floats], list[str]]:
    """The learned distances of all runs with the same labels, and these labels."""
    first = next((run for run in runs if run.distance is not None), None)
    if first is None or first.distance is None:
        return [], []
    if first.distance.shape != (len(first.labels), len(first.labels)):
        return [], []
    same_labels = [run.distance for run in runs if run.labels == first.labels]
    return [distance for distance in same_labels if distance is not None], first.labels


def _nearest_classes(distance: Floats, limit: int) -> list[int]:
    """The classes with the smallest distance to another class, in the order of the classes."""
    classes = len(distance)
    if classes <= limit:
        return list(range(classes))
    nearest = np.where(np.eye(classes, dtype=bool), np.inf, distance).min(axis=1)
    return sorted(int(c) for c in np.argsort(nearest, kind="stable")[:limit])


def _class_changes(
    study: StudyFolder, cell: Cell, counts: Mapping[str, Integers], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """F1 of each class with the baseline and with each other objective, the largest gain first."""
    if study.baseline not in counts:
        return []
    before = 100 * class_f1(counts[study.baseline])
    support = counts[study.baseline].sum(axis=1)
    present = [c for c in range(len(labels)) if support[c] > 0]
    charts = []
    for objective in counts:
        if objective == study.baseline:
            continue
        after = 100 * class_f1(counts[objective])
        shown = _largest_changes(after - before, present)
        notes = [
            f"{labels[c]}: {format_number(before[c], 1)} → {format_number(after[c], 1)}, "
            f"{support[c]:,} predictions"
            for c in shown
        ]
        svg = dumbbell(
            [labels[c] for c in shown],
            [float(before[c]) for c in shown],
            [float(after[c]) for c in shown],
            study.colour(objective),
            f"F1 by class, {study.baseline} to {objective}, on {cell_name(cell)}",
            notes,
        )
        charts.append({"objective": objective, "svg": svg, "left_out": len(present) - len(shown)})
    return charts


def _largest_changes(change: Floats, classes: Sequence[int]) -> list[int]:
    """The classes that changed most, the largest gain first."""
    largest = sorted(classes, key=lambda c: -abs(change[c]))[:SHOWN_CLASSES]
    return sorted(largest, key=lambda c: -change[c])
