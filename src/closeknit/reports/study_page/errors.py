"""The errors on one data set: confident mistakes, entropy, and hard sets of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from closeknit.charts.axis import format_number
from closeknit.charts.svg import histogram
from closeknit.metrics import Integers
from closeknit.reports.page import SHOWN_MISTAKES, clipped
from closeknit.reports.predictions import (
    confident_mistakes,
    entropy_by_outcome,
    hard_sets,
    scores_within,
    shares_in_bins,
)
from closeknit.reports.study_page.folder import Cell, StudyFolder, cell_name
from closeknit.studies.predictions import Floats, Predictions

ENTROPY_BINS = 20


def mistake_rows(
    study: StudyFolder, all_runs: Mapping[str, list[Predictions]]
) -> list[dict[str, Any]]:
    """The most confident mistakes of all objectives, the most confident first."""
    rows = [
        {
            "objective": objective,
            "colour": study.colour(objective),
            "text": clipped(mistake.text),
            "expected": mistake.expected,
            "predicted": mistake.predicted,
            "confidence": mistake.confidence,
            "runs": mistake.runs,
        }
        for objective, runs in all_runs.items()
        for mistake in confident_mistakes(runs, SHOWN_MISTAKES)
    ]
    return sorted(rows, key=lambda row: -row["confidence"])


def entropy_charts(
    study: StudyFolder, cell: Cell, all_runs: Mapping[str, list[Predictions]]
) -> list[dict[str, Any]]:
    """The entropies of right and of wrong predictions per objective, all on the same axis."""
    by_outcome = {objective: entropy_by_outcome(runs) for objective, runs in all_runs.items()}
    known = {name: pair for name, pair in by_outcome.items() if len(pair[0]) + len(pair[1])}
    largest = max(
        (float(values.max()) for pair in known.values() for values in pair if len(values)),
        default=0.0,
    )
    if largest <= 0.0:
        return []
    edges = np.linspace(0.0, largest, ENTROPY_BINS + 1)
    charts = []
    for objective, (right, wrong) in known.items():
        svg = histogram(
            [
                (f"right: {len(right):,} predictions", "right", shares_in_bins(right, edges)),
                (f"wrong: {len(wrong):,} predictions", "wrong", shares_in_bins(wrong, edges)),
            ],
            edges.tolist(),
            f"Entropy of right and wrong predictions of {objective} on {cell_name(cell)}",
            "entropy in bits",
        )
        charts.append(
            {
                "objective": objective,
                "colour": study.colour(objective),
                "right": _mean_text(right),
                "wrong": _mean_text(wrong),
                "svg": svg,
            }
        )
    return charts


def _mean_text(values: Floats) -> str:
    return format_number(float(values.mean()), 3) if len(values) else "–"


def hard_label_sets(
    study: StudyFolder,
    cell: Cell,
    runs: Mapping[str, list[Predictions]],
    counts: Mapping[str, Integers],
    labels: Sequence[str],
) -> dict[str, Any] | None:
    """Sets of classes that are hard to tell apart, and the scores of each objective on each set."""
    data, _ = cell
    given = (study.settings.get("hard_sets") or {}).get(data)
    if given:
        sets = [[str(name) for name in names] for names in given]
    elif study.baseline in counts:
        sets = [[labels[c] for c in classes] for classes in hard_sets(counts[study.baseline])]
    else:
        return None
    rows = []
    for names in sets:
        scores = {objective: scores_within(of_name, names) for objective, of_name in runs.items()}
        if any(scores.values()):
            rows.append({"names": names, "scores": _score_cells(list(scores.values()))})
    return {"given": bool(given), "objectives": list(runs), "rows": rows} if rows else None


def _score_cells(scores: Sequence[tuple[float, float] | None]) -> list[dict[str, Any] | None]:
    """Weighted F1 and accuracy in points; the best weighted F1 is marked if there are several."""
    known = [pair for pair in scores if pair is not None]
    best = max((round(100 * f1, 2) for f1, _ in known), default=0.0)
    cells: list[dict[str, Any] | None] = []
    for pair in scores:
        if pair is None:
            cells.append(None)
            continue
        f1, accuracy = pair
        cells.append(
            {
                "f1": format_number(100 * f1, 2),
                "accuracy": format_number(100 * accuracy, 2),
                "best": len(known) > 1 and round(100 * f1, 2) == best,
            }
        )
    return cells
