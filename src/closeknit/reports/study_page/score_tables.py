"""The tables of a study's page: scores by objective and data set, and gains with their tests."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from closeknit.charts.axis import format_number
from closeknit.charts.svg import interval
from closeknit.reports.study_page.folder import StudyFolder, cell_name
from closeknit.studies.statistics import (
    F1,
    ConfidenceLine,
    Difference,
    Line,
    published_for,
    size_group,
)


def score_table(study: StudyFolder) -> dict[str, Any]:
    """A row per objective and a column per data set.

    An objective has an average only if it has a score on all data sets.
    """
    groups = Counter(size_group(size) for _, size in study.cells)
    rows = []
    means = []
    for objective in study.objectives:
        lines = [study.line(cell, objective) for cell in study.cells]
        scores = [line.f1_mean for line in lines if line is not None and not line.alone]
        if any(lines):
            rows.append((objective, lines))
            means.append(float(np.mean(scores)) if len(scores) == len(lines) else math.nan)
    best_scores = [
        max(
            _points(line.f1_mean)
            for line in study.lines
            if (line.data, line.size) == cell and not line.alone
        )
        for cell in study.cells
    ]
    best_mean = max((_points(mean) for mean in means if not math.isnan(mean)), default=math.nan)
    return {
        "groups": list(groups.items()),
        "columns": [{"data": data, "size": f"{size:,}"} for data, size in study.cells],
        "rows": [
            {
                "objective": objective,
                "colour": study.colour(objective),
                "cells": [
                    _score(line, best) for line, best in zip(lines, best_scores, strict=True)
                ],
                "mean": None if math.isnan(mean) else format_number(100 * mean, 2),
                "best": len(rows) > 1 and not math.isnan(mean) and _points(mean) == best_mean,
            }
            for (objective, lines), mean in zip(rows, means, strict=True)
        ],
        "published": _published_rows(study),
    }


def _points(score: float) -> float:
    """A score from 0 to 1 in points, rounded as it is shown."""
    return round(100 * score, 2)


def _published_rows(study: StudyFolder) -> list[dict[str, Any]]:
    """A row for each printed series of scores on this data, in the metric of its paper.

    Weighted F1 comes first, because it is what the rows of the study show.
    """
    any_line = {(line.data, line.size): line for line in study.lines}
    columns = [published_for(any_line[cell]) if cell in any_line else [] for cell in study.cells]
    series = dict.fromkeys(
        (one.metric, one.tested, one.paper, one.encoder, one.objective)
        for column in columns
        for one in column
    )
    rows = []
    for name in sorted(series, key=lambda one: one[0] != F1):
        metric, tested, paper, encoder, objective = name
        cells = []
        for column in columns:
            found = [
                f"{one.score:.2f}" + (f" ({one.note})" if one.note else "")
                for one in column
                if (one.metric, one.tested, one.paper, one.encoder, one.objective) == name
            ]
            cells.append("".join(found))
        about = f"{encoder}, {metric}, {tested} ({paper} paper)"
        rows.append({"objective": objective, "about": about, "cells": cells})
    return rows


def near_rows(study: StudyFolder) -> list[dict[str, Any]]:
    """For each data set: accuracy on test rows whose nearest training text has another label."""
    groups = []
    for cell in study.cells:
        lines = [study.line(cell, objective) for objective in study.objectives]
        rows = [
            {
                "objective": line.objective,
                "colour": study.colour(line.objective),
                "rows": f"{line.near.rows:,}",
                "accuracy": "–" if line.near.accuracy is None else _in_points(line.near.accuracy),
                "on_all": _in_points(line.accuracy_mean),
            }
            for line in lines
            if line is not None and line.near is not None
        ]
        if rows:
            groups.append({"name": cell_name(cell), "rows": rows})
    return groups


def confidence_rows(study: StudyFolder) -> list[dict[str, Any]]:
    """For each data set: the mean entropy of the predictions in bits, with its test."""
    groups = []
    for cell in study.cells:
        rows = []
        for objective in study.objectives:
            line = study.line(cell, objective)
            if line is not None and line.confidence is not None:
                rows.append(_confidence_row(study, objective, line.confidence))
        if rows:
            groups.append({"name": cell_name(cell), "rows": rows})
    return groups


def _confidence_row(
    study: StudyFolder, objective: str, confidence: ConfidenceLine
) -> dict[str, Any]:
    row = {
        "objective": objective,
        "colour": study.colour(objective),
        "entropy": format_number(confidence.entropy, 3),
        "difference": "",
        "range": "",
        "p": "",
        "p_holm": "",
    }
    difference = confidence.difference
    if difference is None:
        return row
    row["difference"] = format_number(difference.mean, 3, sign=True)
    if difference.is_tested:
        low = format_number(difference.low, 3, sign=True)
        high = format_number(difference.high, 3, sign=True)
        row |= {
            "range": f"{low} to {high}",
            "p": p_value_text(difference.p_value),
            "p_holm": p_value_text(confidence.p_holm),
        }
    return row


def _in_points(score: float) -> str:
    return format_number(100 * score, 2)


def _score(line: Line | None, best: float) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "mean": format_number(100 * line.f1_mean, 2),
        "std": format_number(100 * line.f1_std, 2) if line.runs > 1 else None,
        "best": _points(line.f1_mean) == best and not line.alone,
        "runs": line.runs,
    }


def gain_rows(study: StudyFolder) -> list[dict[str, Any]]:
    """For each data set a row per objective: its gain, the test, and its seconds per run."""
    reach = _largest_gain(study)
    groups = []
    for cell in study.cells:
        rows = []
        for objective in study.objectives:
            line = study.line(cell, objective)
            if line is not None:
                rows.append(_gain_row(study, line, reach))
        groups.append({"name": cell_name(cell), "rows": rows})
    return groups


def _largest_gain(study: StudyFolder) -> float:
    """The largest absolute end of any interval in points, for a common axis."""
    gains = [line.gain for line in study.lines if line.gain is not None]
    values = [abs(value) for gain in gains for value in (gain.mean, gain.low, gain.high)]
    return max(100 * max((value for value in values if math.isfinite(value)), default=0.01), 1e-9)


def _gain_row(study: StudyFolder, line: Line, reach: float) -> dict[str, Any]:
    row = {
        "objective": line.objective,
        "colour": study.colour(line.objective),
        "baseline": line.objective == study.baseline,
        "kind": line.outcome,
        "runs": line.runs,
        "seconds": format_number(line.seconds, 1),
        "accuracy": format_number(100 * line.accuracy_mean, 2),
        "gain": None,
    }
    if line.gain is not None:
        row |= _gain_columns(line.gain, line.p_holm, line.pairs)
        if line.pairs != line.runs:  # the means are over fewer runs
            row["range"] = f"{row['range']} ({line.pairs} pairs)"
        mean, low, high = (100 * value for value in (line.gain.mean, line.gain.low, line.gain.high))
        row["chart"] = interval(mean, low, high, reach, study.colour(line.objective))
    return row


def _gain_columns(gain: Difference, p_holm: float | None, pairs: int) -> dict[str, str]:
    """The gain, its interval and its p-values; one that is not tested has only the gain."""
    columns = {"gain": format_number(100 * gain.mean, 2, sign=True)}
    if not gain.is_tested:
        why = "not known from one run" if pairs < 2 else "cannot be tested"
        return {**columns, "range": why, "p": "–", "p_holm": "–"}
    low = format_number(100 * gain.low, 2, sign=True)
    high = format_number(100 * gain.high, 2, sign=True)
    p_values = {"p": p_value_text(gain.p_value), "p_holm": p_value_text(p_holm)}
    return {**columns, "range": f"{low} to {high}", **p_values}


def p_value_text(value: float | None) -> str:
    """A p-value with three digits; a dash if there is none."""
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
