"""The tables of a page, and gains over size and number of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import charts
from ..report import Line, published, size_group
from .folder import SURE, Study, cell_name


def verdict_kind(line: Line) -> str:
    if line.gain is None or line.p_holm is None or line.p_holm >= SURE:
        return "tie"
    return "win" if line.gain.mean > 0 else "loss"


def score_table(study: Study) -> dict[str, Any]:
    """Objectives by data sets; an average only where an objective has them all."""
    groups: dict[str, int] = {}
    for _, size in study.cells:
        groups[size_group(size)] = groups.get(size_group(size), 0) + 1
    rows, means = [], []
    for objective in study.objectives:
        lines = [study.line(cell, objective) for cell in study.cells]
        if any(lines):
            whole = [line.f1_mean for line in lines if line is not None]
            means.append(float(np.mean(whole)) if len(whole) == len(lines) else math.nan)
            rows.append((objective, lines))
    best = [
        max(round(100 * line.f1_mean, 2) for line in study.lines if (line.data, line.size) == cell)
        for cell in study.cells
    ]
    top = max((round(100 * mean, 2) for mean in means if mean == mean), default=math.nan)
    known = [published(*cell) for cell in study.cells]
    return {
        "groups": list(groups.items()),
        "columns": [{"data": data, "size": f"{size:,}"} for data, size in study.cells],
        "rows": [
            {
                "objective": objective,
                "colour": study.colour(objective),
                "cells": [_score(line, top_here) for line, top_here in zip(lines, best, strict=True)],
                "mean": None if mean != mean else charts.number(100 * mean, 2),
                "best": len(rows) > 1 and round(100 * mean, 2) == top if mean == mean else False,
            }
            for (objective, lines), mean in zip(rows, means, strict=True)
        ],
        "published": [
            {"objective": name, "cells": [f"{here[name]:.2f}" if name in here else "" for here in known]}
            for name in dict.fromkeys(name for here in known for name in here)
        ],
    }


def _score(line: Line | None, best: float) -> dict[str, Any] | None:
    if line is None:
        return None
    return {
        "mean": charts.number(100 * line.f1_mean, 2),
        "std": charts.number(100 * line.f1_std, 2) if line.runs > 1 else None,
        "best": round(100 * line.f1_mean, 2) == best,
        "runs": line.runs,
    }


def gain_rows(study: Study) -> list[dict[str, Any]]:
    """For each data set a row an objective: what it gains, how sure that is, and what it costs."""
    reach = 100 * max(
        (
            abs(v)
            for line in study.lines
            if line.gain is not None
            for v in (line.gain.mean, line.gain.low, line.gain.high)
            if math.isfinite(v)
        ),
        default=0.01,
    )
    groups: list[dict[str, Any]] = []
    for cell in study.cells:
        rows = []
        for objective in study.objectives:
            line = study.line(cell, objective)
            if line is None:
                continue
            row = {
                "objective": objective,
                "colour": study.colour(objective),
                "baseline": objective == study.baseline,
                "kind": verdict_kind(line),
                "runs": line.runs,
                "seconds": charts.number(line.seconds, 1),
                "accuracy": charts.number(100 * line.accuracy_mean, 2),
                "gain": None,
            }
            if line.gain is not None:
                mean, low, high = (100 * v for v in (line.gain.mean, line.gain.low, line.gain.high))
                sure = math.isfinite(low)
                row |= {
                    "gain": charts.number(mean, 2, sign=True),
                    "range": f"{charts.number(low, 2, sign=True)} to {charts.number(high, 2, sign=True)}"
                    if sure
                    else "one run tells none",
                    "p": p_text(line.gain.p_value) if sure else "–",
                    "p_holm": p_text(line.p_holm) if sure else "–",
                    "chart": charts.interval(mean, low, high, max(reach, 1e-9), study.colour(objective)),
                }
            rows.append(row)
        groups.append({"name": cell_name(cell), "rows": rows})
    return groups


def p_text(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


# ---------------------------------------------------------------- gains over data


def gain_by_size(study: Study) -> list[dict[str, str]]:
    found = []
    for data in dict.fromkeys(data for data, _ in study.cells):
        sizes = sorted(size for name, size in study.cells if name == data)
        curves = [
            curve
            for objective in study.objectives
            if (curve := _gain_curve(study, objective, [((data, size), size) for size in sizes]))
        ]
        if len(sizes) > 1 and any(len(curve.x) > 1 for curve in curves):
            label = f"Gain over {study.baseline} on {data} by number of rows"
            svg = charts.line_chart(
                curves,
                label,
                x_name="rows",
                y_name="points of weighted F1",
                log_x=True,
                zero=True,
                ticks=sizes,
            )
            found.append({"name": data, "svg": svg})
    return found


def gain_by_classes(study: Study) -> str | None:
    count = {data: len(study.entry(data).get("classes") or []) for data, _ in study.cells}
    cells = sorted((cell for cell in study.cells if count[cell[0]]), key=lambda cell: count[cell[0]])
    curves = []
    for i, objective in enumerate(study.objectives):
        aside = 1.0 + 0.05 * (
            i - len(study.objectives) / 2
        )  # points of several objectives do not hide each other
        curve = _gain_curve(study, objective, [(cell, count[cell[0]] * aside) for cell in cells])
        curves += [curve] if curve else []
    shown = {count[line.data] for line in study.lines if line.gain is not None and count[line.data]}
    if len(shown) < 2:
        return None
    return charts.line_chart(
        curves,
        f"Gain over {study.baseline} by number of classes",
        x_name="classes",
        y_name="points of weighted F1",
        log_x=True,
        zero=True,
        joined=False,
        ticks=sorted(shown),
    )


def _gain_curve(
    study: Study, objective: str, places: Sequence[tuple[tuple[str, int], float]]
) -> charts.Curve | None:
    x, y, low, high, notes = [], [], [], [], []
    for cell, at in places:
        line = study.line(cell, objective)
        if line is None or line.gain is None:
            continue
        mean = 100 * line.gain.mean
        ends = [100 * v if math.isfinite(v) else mean for v in (line.gain.low, line.gain.high)]
        x.append(at)
        y.append(mean)
        low.append(ends[0])
        high.append(ends[1])
        said = charts.number(mean, 2, sign=True)
        around = f" ({charts.number(ends[0], 2, sign=True)} to {charts.number(ends[1], 2, sign=True)})"
        notes.append(
            f"{objective}, {cell_name(cell)}: {said}{around if math.isfinite(line.gain.low) else ', one run'}"
        )
    return charts.Curve(objective, study.colour(objective), x, y, low, high, notes) if x else None
