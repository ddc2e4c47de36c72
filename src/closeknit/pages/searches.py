"""What a page shows of a search for settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import analysis, charts
from .folder import Study, cell_name, whole_ticks


def search_view(study: Study) -> dict[str, Any] | None:
    """How the score rose with the trials, which settings mattered, and which were chosen."""
    together = study.settings.get("selection") == "paper"  # one choice for all folds
    searches: dict[tuple[tuple[str, int], str], dict[Any, list[dict[str, Any]]]] = {}
    for trial in study.trials:
        if {"data", "size", "objective", "trial", "options", "score"} <= trial.keys():
            place = () if together else (trial.get("seed"), trial.get("fold"))
            own = searches.setdefault(((trial["data"], trial["size"]), trial["objective"]), {})
            own.setdefault(place, []).append(trial)
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    by_objective: dict[str, list[list[analysis.Trial]]] = {}
    for (cell, objective), places in searches.items():
        scored = [found for trials in places.values() if (found := analysis.read_trials(trials))]
        if not scored or objective not in study.objectives:
            continue
        by_objective.setdefault(objective, []).extend(scored)
        panel = {"objective": objective, "svg": _rise(study, cell, objective, scored)}
        cells.setdefault(cell, []).append(panel)
    if not cells:
        return None
    details = []
    for objective, own_searches in by_objective.items():
        importance = analysis.importance(own_searches)
        details.append(
            {
                "objective": objective,
                "colour": study.colour(objective),
                "importance": charts.bars(
                    list(importance.shares),
                    list(importance.shares.values()),
                    study.colour(objective),
                    f"Importance of the searched settings of {objective}",
                )
                if importance
                else None,
                "explained": f"{100 * max(importance.explained, 0):.0f}" if importance else "",
                "weak": importance is not None and importance.explained < 0.1,
                "chosen": analysis.chosen_settings(own_searches),
                "searches": len(own_searches),
            }
        )
    order = dict.fromkeys([*study.cells, *cells])
    return {
        "cells": [
            {"id": f"cell{i}", "name": cell_name(cell), "panels": cells[cell]}
            for i, cell in enumerate(order)
            if cell in cells
        ],
        "details": details,
    }


def _rise(study: Study, cell: tuple[str, int], objective: str, searches: list[list[analysis.Trial]]) -> str:
    longest = max(len(search) for search in searches)
    best = 100 * np.array(
        [np.pad(analysis.best_so_far(search), (0, longest - len(search)), mode="edge") for search in searches]
    )  # (searches, trials)
    begun = np.flatnonzero(np.isfinite(best).all(axis=0))  # from where every search has a whole trial
    best = best[:, begun]
    mean, low, high = best.mean(axis=0), best.min(axis=0), best.max(axis=0)
    notes = [f"after {n + 1} trials: {charts.number(value, 2)}" for n, value in zip(begun, mean, strict=True)]
    curve = charts.Curve(
        objective,
        study.colour(objective),
        (begun + 1).tolist(),
        mean.tolist(),
        low.tolist(),
        high.tolist(),
        notes,
    )
    return charts.line_chart(
        [curve],
        f"Best score so far by trial, {objective} on {cell_name(cell)}",
        x_name="trials",
        y_name="best weighted F1 so far",
        ticks=whole_ticks(longest),
    )
