"""What a page shows of one data set at one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import analysis, charts
from ..analysis import Predictions
from ..metrics import Integers
from .folder import Run, Study, cell_name, whole_ticks
from .mistakes import confident_mistakes, cut, entropies, hard_label_sets

SHOWN_CLASSES = 30  # in a matrix or a list of classes; more could not be read
SHOWN_POINTS = 500  # in a map


def cell_view(study: Study, index: int, cell: tuple[str, int]) -> dict[str, Any]:
    """The charts and lists of one data set at one size, from the predictions of its runs."""
    runs = [run for run in study.runs if (run.data, run.size) == cell]
    stored: dict[str, dict[tuple[int, int], Predictions]] = {}
    for run in runs:
        predictions = analysis.read_predictions(study.folder / "details" / f"{run.key}.json")
        if predictions is not None:
            stored.setdefault(run.objective, {})[run.seed, run.fold] = predictions
    stored = {name: stored[name] for name in study.objectives if name in stored}
    everything = {name: list(own.values()) for name, own in stored.items()}
    paired = _shared(stored)
    known = [str(name) for name in study.entry(cell[0]).get("classes") or []]
    labels = list(
        dict.fromkeys([*known, *(x for own in everything.values() for run in own for x in run.labels)])
    )
    counts = {name: analysis.total_confusion(own, labels) for name, own in paired.items()}
    judged = {
        "mistakes": confident_mistakes(study, everything),
        "entropies": entropies(study, cell, everything),
        "hard": hard_label_sets(study, cell, paired, counts, labels),
    }
    return {
        "id": f"cell{index}",
        "name": cell_name(cell),
        "boxes": _boxes(study, cell, runs),
        "curves": _curves(study, cell, everything),
        "confusions": _confusions(cell, counts, labels),
        "distances": _distances(cell, everything),
        "maps": _maps(study, index, cell, runs, stored, labels),
        "changes": _changes(study, cell, counts, labels),
        **judged,
        "judged": any(judged.values()),
    }


def _shared(stored: dict[str, dict[tuple[int, int], Predictions]]) -> dict[str, list[Predictions]]:
    """The runs on seeds and folds that every objective has, so that all are judged on the same rows.

    Where there are none in common yet, all of each.
    """
    if not stored:
        return {}
    common = set.intersection(*(set(own) for own in stored.values()))
    return {name: [own[at] for at in own if at in common or not common] for name, own in stored.items()}


def _boxes(study: Study, cell: tuple[str, int], runs: Sequence[Run]) -> str:
    groups = [
        charts.Group(
            objective,
            study.colour(objective),
            {
                f"seed {r.seed}, fold {r.fold + 1}": 100 * r.weighted_f1
                for r in runs
                if r.objective == objective
            },
        )
        for objective in study.objectives
        if any(run.objective == objective for run in runs)
    ]
    return charts.box_plot(
        groups, f"Weighted F1 of all runs on {cell_name(cell)}", "weighted F1, mean above each box"
    )


def _curves(study: Study, cell: tuple[str, int], stored: dict[str, list[Predictions]]) -> list[str]:
    found = []
    for key, said in (("loss", "training loss"), ("weighted_f1", "weighted F1 on rows held out")):
        scale = 100.0 if key == "weighted_f1" else 1.0
        curves = []
        for name, runs in stored.items():
            for one in analysis.histories(runs, key):
                kept = range(0, len(one.epochs), -(-len(one.epochs) // 60))
                mean, low, high = ([scale * v[i] for i in kept] for v in (one.mean, one.low, one.high))
                at = [one.epochs[i] for i in kept]
                notes = [
                    f"{name}, epoch {charts.number(e)}: {charts.number(v)}, mean of {one.runs} run{'s' * (one.runs != 1)}"
                    for e, v in zip(at, mean, strict=True)
                ]
                curves.append(charts.Curve(name, study.colour(name), at, mean, low, high, notes))
        if curves:
            tops = [max(curve.y) for curve in curves]
            lowest = min(v for curve in curves for v in curve.low)
            log = key == "loss" and lowest > 0 and max(tops) > 5 * min(tops)
            label = f"{said} by epoch on {cell_name(cell)}"
            ticks = whole_ticks(int(max(x for curve in curves for x in curve.x)))
            found.append(
                charts.line_chart(curves, label, x_name="epoch", y_name=said, log_y=log, ticks=ticks)
            )
    return found


def _confusions(
    cell: tuple[str, int], counts: dict[str, Integers], labels: Sequence[str]
) -> list[dict[str, Any]]:
    if not counts or len(labels) < 2:
        return []
    shown = (
        list(range(len(labels)))
        if len(labels) <= SHOWN_CLASSES
        else analysis.most_confused(
            sum(counts.values(), start=next(iter(counts.values())) * 0), SHOWN_CLASSES
        )
    )
    names = [labels[c] for c in shown]
    return [
        {
            "objective": objective,
            "svg": charts.heat_map(
                analysis.rates(matrix)[np.ix_(shown, shown)],
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


def _distances(cell: tuple[str, int], stored: dict[str, list[Predictions]]) -> list[dict[str, Any]]:
    found = []
    for objective, runs in stored.items():
        run = next((run for run in runs if run.distance is not None), None)
        if run is None or run.distance is None or run.distance.shape != (len(run.labels),) * 2:
            continue
        own = [r.distance for r in runs if r.distance is not None and r.labels == run.labels]
        mean = np.mean(own, axis=0)
        if len(mean) < 2 or np.ptp(mean[~np.eye(len(mean), dtype=bool)]) == 0.0:
            continue  # as it was set, not learnt
        shown = np.arange(len(mean))
        if len(shown) > SHOWN_CLASSES:  # the classes that lie nearest to another
            nearest = np.where(np.eye(len(mean), dtype=bool), np.inf, mean).min(axis=1)
            shown = np.sort(np.argsort(nearest, kind="stable")[:SHOWN_CLASSES])
        names = [run.labels[int(c)] for c in shown]
        part = mean[np.ix_(shown, shown)]
        top = float(np.nanmax(part))
        svg = charts.heat_map(
            part / top if top > 0 else part,
            names,
            names,
            f"Label distance learnt by {objective} on {cell_name(cell)}",
        )
        found.append({"objective": objective, "svg": svg, "runs": len(own), "top": charts.number(top)})
    return found


def _maps(
    study: Study,
    index: int,
    cell: tuple[str, int],
    runs: Sequence[Run],
    stored: dict[str, dict[tuple[int, int], Predictions]],
    labels: Sequence[str],
) -> list[dict[str, Any]]:
    """The test texts before and after fine-tuning, one map of each objective."""
    found: list[dict[str, Any]] = []
    flat: dict[bytes, analysis.Floats] = {}  # texts before fine-tuning are the same for all objectives
    for objective in stored:
        for run in (run for run in runs if run.objective == objective):
            predictions = stored[objective].get((run.seed, run.fold))
            vectors = _vectors(study.folder / "details" / f"{run.key}.npz")
            if predictions is None or vectors is None or vectors[0].max() >= len(predictions.rows):
                continue
            positions, before, after = vectors
            for part in (before, after):
                if part.tobytes() not in flat:
                    flat[part.tobytes()] = analysis.flat_map(part)
            to = np.array([labels.index(label) for label in predictions.labels])
            expected, predicted = to[predictions.expected[positions]], to[predictions.predicted[positions]]
            kinds, wrong = expected.tolist(), (expected != predicted).tolist()
            kept = sorted(set(kinds))
            found.append(
                {
                    "id": f"map{index}x{len(found)}",
                    "objective": objective,
                    "before": charts.point_map(
                        flat[before.tobytes()],
                        kinds,
                        wrong,
                        f"Test texts of {cell_name(cell)} before fine-tuning",
                    ),
                    "after": charts.point_map(
                        flat[after.tobytes()],
                        kinds,
                        wrong,
                        f"Test texts of {cell_name(cell)} after fine-tuning with {objective}",
                    ),
                    "classes": [{"kind": k, "name": labels[k], "sign": charts.marker(k)} for k in kept],
                    "payload": {
                        "labels": list(labels),
                        "points": [
                            [cut(predictions.texts.get(int(p), "")), e, q]
                            for p, e, q in zip(positions, kinds, predicted.tolist(), strict=True)
                        ],
                    },
                    "run": f"seed {run.seed}, fold {run.fold + 1}",
                }
            )
            break
    return found


def _vectors(path: Path) -> tuple[Integers, analysis.Floats, analysis.Floats] | None:
    """Positions and the vectors of their texts before and after; None when the file is missing or damaged."""
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as stored:
            positions = np.asarray(stored["positions"][:SHOWN_POINTS], dtype=np.int64)
            before, after = (
                np.asarray(stored[name][:SHOWN_POINTS], np.float64) for name in ("before", "after")
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    fits = len(positions) == len(before) == len(after) and before.ndim == after.ndim == 2
    return (positions, before, after) if fits and len(positions) >= 5 and positions.min() >= 0 else None


def _changes(
    study: Study, cell: tuple[str, int], counts: dict[str, Integers], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """F1 of each class under the baseline and under each other objective, the best changes first."""
    if study.baseline not in counts:
        return []
    found = []
    base = 100 * analysis.class_f1(counts[study.baseline])
    support = counts[study.baseline].sum(axis=1)
    for objective in counts:
        if objective == study.baseline:
            continue
        own = 100 * analysis.class_f1(counts[objective])
        present = [c for c in range(len(labels)) if support[c] > 0]
        shown = sorted(present, key=lambda c: -abs(own[c] - base[c]))[:SHOWN_CLASSES]
        shown.sort(key=lambda c: -(own[c] - base[c]))
        notes = [
            f"{labels[c]}: {charts.number(base[c], 1)} → {charts.number(own[c], 1)}, {support[c]:,} predictions"
            for c in shown
        ]
        svg = charts.dumbbell(
            [labels[c] for c in shown],
            [float(base[c]) for c in shown],
            [float(own[c]) for c in shown],
            study.colour(objective),
            f"F1 by class, {study.baseline} to {objective}, on {cell_name(cell)}",
            notes,
        )
        found.append({"objective": objective, "svg": svg, "left_out": len(present) - len(shown)})
    return found
