"""Optimism: how much of a score comes from choosing the settings on the reported folds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.studies.statistics.lines import Scored


@dataclass(frozen=True)
class Optimism:
    """The score of settings that were chosen on the reported folds, beside an unbiased estimate."""

    data: str
    size: int
    objective: str
    reported: float
    honest: float


def trials_of_last_search(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The trials of the last search of each run; the trials of an abandoned search are left out."""
    place_names = ("data", "size", "objective", "seed", "fold")
    placed = [(repr([trial.get(name) for name in place_names]), dict(trial)) for trial in trials]
    last_run = {place: trial.get("run") for place, trial in placed}
    return [trial for place, trial in placed if trial.get("run") == last_run[place]]


def optimism(rows: Sequence[Scored], trials: Iterable[Mapping[str, Any]]) -> list[Optimism]:
    """How much of each reported score comes from choosing the settings on the reported folds.

    The honest estimate leaves out each fold in turn: the settings that are best on all other folds
    are scored on the one left out. Only settings that were tried on every fold take part, and only
    runs whose settings were chosen on the reported folds.
    """
    fold_scores: dict[tuple[str, int, str], dict[str, dict[tuple[int, int], float]]] = {}
    for trial in trials:
        cell = (str(trial["data"]), int(trial["size"]), str(trial["objective"]))
        settings = repr(sorted(trial["options"].items()))
        of_settings = fold_scores.setdefault(cell, {}).setdefault(settings, {})
        of_settings[trial["seed"], trial["fold"]] = trial["score"]

    estimates: list[Optimism] = []
    for (data, size, objective), scores_by_settings in fold_scores.items():
        reported = {
            (row.seed, row.fold): row.weighted_f1
            for row in rows
            if (row.data, row.size, row.objective) == (data, size, objective)
            and row.selection == "paper"
        }
        folds = sorted(reported)
        tried_everywhere = [
            [scores[fold] for fold in folds]
            for scores in scores_by_settings.values()
            if set(folds) <= scores.keys()
        ]
        if len(folds) >= 2 and tried_everywhere:
            mean = float(np.mean([reported[fold] for fold in folds]))
            honest = _left_out_score(np.array(tried_everywhere))
            estimates.append(Optimism(data, size, objective, mean, honest))
    return estimates


def _left_out_score(scores: npt.NDArray[np.float64]) -> float:
    """The mean score on each fold of the settings that are best on all other folds."""
    on_other_folds = scores.sum(1, keepdims=True) - scores  # (settings, folds)
    chosen = on_other_folds.argmax(0)  # (folds,)
    return float(scores[chosen, np.arange(scores.shape[1])].mean())
