"""The search for settings on a study's page: best scores, importance, chosen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from closeknit.charts.axis import format_number
from closeknit.charts.svg import Curve, bars, line_chart
from closeknit.reports.page import whole_ticks
from closeknit.reports.search_trials import (
    Trial,
    best_so_far,
    chosen_settings,
    importance,
    read_trials,
)
from closeknit.reports.study_page.folder import Cell, StudyFolder, cell_name

NEEDED = {
    "data",
    "size",
    "objective",
    "trial",
    "options",
    "score",
}  # keys that a line of trials.jsonl must have
LEAST_EXPLAINED = 0.1  # share of the variance; below it, the order of settings means nothing

# The searches of each objective on each data set at one size.
Searches = dict[tuple[Cell, str], list[list[Trial]]]


def search_view(study: StudyFolder) -> dict[str, Any] | None:
    """The charts of each data set, and for each objective the settings that mattered.

    The result is None if the study has no search.
    """
    searches = _read_searches(study)
    if not searches:
        return None
    charts: dict[Cell, list[dict[str, Any]]] = {}
    by_objective: dict[str, list[list[Trial]]] = {}
    for (cell, objective), of_cell in searches.items():
        chart = _best_score_chart(study, cell, objective, of_cell)
        charts.setdefault(cell, []).append({"objective": objective, "svg": chart})
        by_objective.setdefault(objective, []).extend(of_cell)
    order = dict.fromkeys([*study.cells, *charts])
    return {
        "cells": [
            {"id": f"cell{number}", "name": cell_name(cell), "panels": charts[cell]}
            for number, cell in enumerate(order)
            if cell in charts
        ],
        "details": [
            _objective_details(study, objective, of_objective)
            for objective, of_objective in by_objective.items()
        ],
    }


def _read_searches(study: StudyFolder) -> Searches:
    """The trials, grouped by search: one per run, or one if settings were chosen on all folds."""
    one_for_all_folds = study.settings.get("selection") == "paper"
    grouped: dict[tuple[Cell, str], dict[Any, list[Mapping[str, Any]]]] = {}
    for trial in study.trials:
        if trial.keys() >= NEEDED:
            run = () if one_for_all_folds else (trial.get("seed"), trial.get("fold"))
            cell = (trial["data"], trial["size"])
            of_cell = grouped.setdefault((cell, trial["objective"]), {})
            of_cell.setdefault(run, []).append(trial)
    searches: Searches = {}
    for (cell, objective), by_run in grouped.items():
        scored = [trials for lines in by_run.values() if (trials := read_trials(lines))]
        if scored and objective in study.objectives:
            searches[cell, objective] = scored
    return searches


def _objective_details(
    study: StudyFolder, objective: str, searches: Sequence[Sequence[Trial]]
) -> dict[str, Any]:
    """The importance of each setting for an objective, and the values that were chosen."""
    found = importance(searches)
    chart = None
    if found is not None:
        chart = bars(
            list(found.shares),
            list(found.shares.values()),
            study.colour(objective),
            f"Importance of the searched settings of {objective}",
        )
    return {
        "objective": objective,
        "colour": study.colour(objective),
        "importance": chart,
        "explained": f"{100 * max(found.explained, 0):.0f}" if found else "",
        "weak": found is not None and found.explained < LEAST_EXPLAINED,
        "chosen": chosen_settings(searches),
        "searches": len(searches),
    }


def _best_score_chart(
    study: StudyFolder, cell: Cell, objective: str, searches: Sequence[Sequence[Trial]]
) -> str:
    """The best score so far after each trial: the mean and the range over the searches."""
    longest = max(len(search) for search in searches)
    padded = [
        np.pad(best_so_far(search), (0, longest - len(search)), mode="edge") for search in searches
    ]
    best = 100 * np.array(padded)  # (searches, trials)
    complete = np.flatnonzero(
        np.isfinite(best).all(axis=0)
    )  # every search has a complete trial by then
    best = best[:, complete]
    mean = best.mean(axis=0)
    notes = [
        f"after {number + 1} trials: {format_number(value, 2)}"
        for number, value in zip(complete, mean, strict=True)
    ]
    curve = Curve(
        objective,
        study.colour(objective),
        (complete + 1).tolist(),
        mean.tolist(),
        best.min(axis=0).tolist(),
        best.max(axis=0).tolist(),
        notes,
    )
    return line_chart(
        [curve],
        f"Best score so far by trial, {objective} on {cell_name(cell)}",
        x_name="trials",
        y_name="best weighted F1 so far",
        ticks=whole_ticks(longest),
    )
