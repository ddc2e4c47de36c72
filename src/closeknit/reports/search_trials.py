"""Analysis of a search for settings: trials, best scores, and which settings mattered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.reports.predictions import is_number

Floats = npt.NDArray[np.float64]

LEAST_TRIALS = 8  # with fewer, the importance of settings is not estimated
SHUFFLES = 10  # the importance of a setting is the mean over so many shuffles


@dataclass(frozen=True)
class Trial:
    """Settings that a search tried; empty options are the defaults."""

    options: dict[str, Any]
    score: float  # mean over the splits on which it was scored
    common_score: float  # mean over the splits on which all trials of the search were scored
    complete: bool  # scored on as many splits as any other trial: a search chooses among these


@dataclass(frozen=True)
class Importance:
    """How much the score depends on each setting, and how much all settings explain."""

    shares: dict[str, float]  # setting -> share, the largest first; they add up to 1
    explained: float  # R² on trials that the random forest was not fitted to
    trials: int


def read_trials(lines: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """The trials of one search, from lines with the score of one trial on one split each."""
    scores: dict[int, dict[tuple[Any, ...], float]] = {}
    options: dict[int, dict[str, Any]] = {}
    for line in lines:
        if is_number(line.get("score")):
            number = int(line["trial"])
            split = (line.get("split"), line.get("seed"), line.get("fold"))
            scores.setdefault(number, {})[split] = float(line["score"])
            options[number] = dict(line["options"])
    if not scores:
        return []
    most_splits = max(len(of_trial) for of_trial in scores.values())
    common = set.intersection(*(set(of_trial) for of_trial in scores.values()))
    trials = []
    for number, of_trial in sorted(scores.items()):
        on_common = [score for split, score in of_trial.items() if split in common or not common]
        trials.append(
            Trial(
                options=options[number],
                score=float(np.mean(list(of_trial.values()))),
                common_score=float(np.mean(on_common)),
                complete=len(of_trial) == most_splits,
            )
        )
    return trials


def best_so_far(search: Sequence[Trial]) -> Floats:
    """The highest score of a complete trial up to and including each trial.

    It is NaN before the first complete trial.
    """
    scores = [trial.score if trial.complete else math.nan for trial in search]
    return np.fmax.accumulate(np.array(scores, dtype=np.float64))


def importance(searches: Sequence[Sequence[Trial]]) -> Importance | None:
    """The permutation importance of each setting for a random forest that predicts scores.

    The scores of each search are centred on their mean, so that an easy fold does not count as the
    effect of a setting. Only splits that all trials of a search were scored on count. None if
    there are fewer than eight trials, or if no setting or no score varies.
    """
    options: list[dict[str, Any]] = []
    centred: list[float] = []
    for search in searches:
        trials = [trial for trial in search if trial.options]
        if trials:
            mean = float(np.mean([trial.common_score for trial in trials]))
            options += [trial.options for trial in trials]
            centred += [trial.common_score - mean for trial in trials]
    names = dict.fromkeys(name for trial_options in options for name in trial_options)
    encoded = {name: _as_columns([of_trial.get(name) for of_trial in options]) for name in names}
    columns = {name: column for name, column in encoded.items() if column.shape[1] > 0}
    if len(options) < LEAST_TRIALS or not columns or max(centred) == min(centred):
        return None
    from sklearn.ensemble import RandomForestRegressor

    x = np.hstack(list(columns.values()))  # (trials, F)
    y = np.array(centred)  # (trials,)
    forest = RandomForestRegressor(200, oob_score=True, min_samples_leaf=2, random_state=0).fit(
        x, y
    )
    increase = _error_increase(
        forest, x, y, {name: column.shape[1] for name, column in columns.items()}
    )
    total = sum(increase.values()) or 1.0
    ranked = sorted(increase.items(), key=lambda item: -item[1])
    shares = {name: value / total for name, value in ranked}
    return Importance(shares, float(forest.oob_score_), len(y))


def _error_increase(
    forest: Any, x: Floats, y: Floats, widths: Mapping[str, int]
) -> dict[str, float]:
    """By how much the squared error of the forest grows when a setting is shuffled."""
    generator = np.random.default_rng(0)
    error = float(np.mean((forest.predict(x) - y) ** 2))
    increase: dict[str, float] = {}
    start = 0
    for name, width in widths.items():
        columns = slice(start, start + width)
        added = 0.0
        for _ in range(SHUFFLES):
            shuffled = x.copy()
            shuffled[:, columns] = x[generator.permutation(len(x)), columns]
            added += float(np.mean((forest.predict(shuffled) - y) ** 2)) - error
        increase[name] = max(added, 0.0)
        start += width
    return increase


def _as_columns(values: Sequence[Any]) -> Floats:
    """The values of a setting as numbers (n, F); no column if they are all equal.

    Positive numbers become their logarithms. Words become one column per word, with 1 where it is
    the value.
    """
    if len({repr(value) for value in values}) < 2:
        return np.zeros((len(values), 0))
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = np.array(values, dtype=np.float64)
        return (np.log(numbers) if numbers.min() > 0 else numbers)[:, None]
    words = sorted({repr(value) for value in values})
    return np.array([[float(repr(value) == word) for word in words] for value in values])


def chosen_settings(searches: Sequence[Sequence[Trial]]) -> dict[str, list[tuple[str, int]]]:
    """The values of each setting in the best trials with their counts, the most frequent first."""
    best_options = []
    for search in searches:
        if search:
            complete = [trial for trial in search if trial.complete]
            best_options.append(max(complete, key=lambda trial: trial.score).options)
    names = dict.fromkeys(name for search in searches for trial in search for name in trial.options)
    chosen = {}
    for name in names:
        values = [
            _short(options[name]) if name in options else "default" for options in best_options
        ]
        chosen[name] = Counter(values).most_common()
    return chosen


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
