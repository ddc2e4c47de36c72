"""What stored predictions tell: which classes are mixed up, which mistakes are sure of themselves, what a search found."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .metrics import Integers, classification_scores, confusion, scaled_to_unit_length

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """What one run said about the rows it never saw; classes are numbers into `labels`."""

    labels: list[str]
    rows: Integers  # (n,) row numbers in the data
    expected: Integers  # (n,)
    predicted: Integers  # (n,)
    confidence: Floats  # (n,) probability of the predicted class
    entropy: Floats  # (n,) of the predicted distribution, in nats
    texts: dict[int, str]  # position -> text, for some positions
    history: list[dict[str, float]]
    distance: Floats | None = None  # (C, C) between labels, as the model learnt it


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction, over all the runs in which this row was predicted so."""

    row: int
    text: str
    expected: str
    predicted: str
    confidence: float  # the highest
    runs: int  # how many runs made it


@dataclass(frozen=True)
class Trial:
    """A setting that a search tried; one without options is the defaults."""

    options: dict[str, Any]
    score: float  # mean over the splits it was scored on
    fair: float  # mean over the splits on which all trials of the search were scored
    whole: bool  # scored on as many splits as any other: a search chooses among these


@dataclass(frozen=True)
class Importance:
    """How much the score depends on each searched setting, and how much of it that explains."""

    shares: dict[str, float]  # setting -> share, the largest first; they add up to 1
    explained: float  # R² on trials the forest did not learn from
    trials: int


# ---------------------------------------------------------------- reading


def read_predictions(path: Path) -> Predictions | None:
    """The predictions in a file; None when it is missing, damaged or of another make."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        n = len(found["rows"])
        distance = found.get("distance")
        run = Predictions(
            labels=[str(label) for label in found["labels"]],
            rows=np.array(found["rows"], dtype=np.int64),
            expected=np.array(found["expected"], dtype=np.int64),
            predicted=np.array(found["predicted"], dtype=np.int64),
            confidence=np.array(found.get("confidence") or [math.nan] * n, dtype=np.float64),
            entropy=np.array(found.get("entropy") or [math.nan] * n, dtype=np.float64),
            texts={int(position): str(text) for position, text in found.get("texts", {}).items()},
            history=[dict(entry) for entry in found.get("history", [])],
            distance=None if distance is None else np.array(distance, dtype=np.float64),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    columns = (run.expected, run.predicted, run.confidence, run.entropy)
    classes = np.concatenate([run.expected, run.predicted])
    known = len(classes) == 0 or (classes.min() >= 0 and classes.max() < len(run.labels))
    return run if known and all(column.shape == (n,) for column in columns) else None


def total_confusion(runs: Iterable[Predictions], labels: Sequence[str]) -> Integers:
    """Counts (C, C) over all runs, row the expected class; classes are matched by name."""
    place = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for run in runs:
        to = np.array([place[label] for label in run.labels], dtype=np.int64)
        counts += confusion(to[run.expected], to[run.predicted], len(labels))
    return counts


# ---------------------------------------------------------------- classes


def rates(counts: npt.NDArray[Any]) -> Floats:
    """Each row as shares of its sum; a row of zeros stays one."""
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts / np.maximum(total, 1), dtype=np.float64)


def class_f1(counts: Integers) -> Floats:
    """F1 of each class (C,) from a confusion matrix: 2 hits / (expected + predicted)."""
    asked = counts.sum(axis=0) + counts.sum(axis=1)
    return np.asarray(2.0 * np.diag(counts) / np.maximum(asked, 1), dtype=np.float64)


def most_confused(counts: Integers, limit: int) -> list[int]:
    """The classes with the most mistakes from or to them, in their own order."""
    mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
    worst = np.argsort(-mistakes, kind="stable")[:limit]
    return sorted(int(c) for c in worst)


def hard_sets(counts: Integers, *, sets: int = 4, size: int = 4) -> list[list[int]]:
    """Disjoint sets of classes that are taken for one another, the most confused first.

    Rates are made symmetric. A set begins with the most confused pair of classes that is still
    free; the class most confused with those in the set joins it, until it has `size` of them or
    none left is confused with any. Nothing is said of `size` classes or fewer.
    """
    if len(counts) <= size:
        return []
    mutual = rates(counts)
    mutual = mutual + mutual.T
    np.fill_diagonal(mutual, 0.0)
    free = list(range(len(counts)))
    found: list[list[int]] = []
    while len(found) < sets and len(free) >= 2:
        among = mutual[np.ix_(free, free)]
        if among.max() <= 0.0:
            break
        i, j = np.unravel_index(int(among.argmax()), among.shape)
        chosen = [free[int(i)], free[int(j)]]
        while len(chosen) < size:
            others = [c for c in free if c not in chosen]
            ties = mutual[np.ix_(others, chosen)].sum(axis=1) if others else np.zeros(1)
            if ties.max() <= 0.0:
                break
            chosen.append(others[int(ties.argmax())])
        found.append(chosen)
        free = [c for c in free if c not in chosen]
    return found


def scores_within(runs: Sequence[Predictions], names: Iterable[str]) -> tuple[float, float] | None:
    """Weighted F1 and accuracy on the rows of these classes alone, a mean over runs; None without rows."""
    wanted = set(names)
    found: list[tuple[float, float]] = []
    for run in runs:
        inside = np.isin(run.expected, [c for c, label in enumerate(run.labels) if label in wanted])
        if inside.any():
            scores = classification_scores(run.expected[inside], run.predicted[inside], run.labels)
            found.append((scores["weighted_f1"], scores["accuracy"]))
    if not found:
        return None
    f1, accuracy = np.mean(found, axis=0)
    return float(f1), float(accuracy)


# ---------------------------------------------------------------- single predictions


def confident_mistakes(runs: Sequence[Predictions], limit: int) -> list[Mistake]:
    """The mistakes whose text is known, the surest first; the same mistake of several runs counts once."""
    found: dict[tuple[int, str, str], Mistake] = {}
    for run in runs:
        for i in np.flatnonzero(run.expected != run.predicted).tolist():
            if i not in run.texts:
                continue
            expected, predicted = run.labels[run.expected[i]], run.labels[run.predicted[i]]
            key = (int(run.rows[i]), expected, predicted)
            before = found.get(key)
            sure = float(run.confidence[i])
            if before is not None:
                sure = max(sure, before.confidence)
            times = 1 + (before.runs if before else 0)
            found[key] = Mistake(key[0], run.texts[i], expected, predicted, sure, times)
    return sorted(found.values(), key=lambda m: (-m.confidence, m.row))[:limit]


def entropy_by_outcome(runs: Sequence[Predictions]) -> tuple[Floats, Floats]:
    """The entropies of the right and of the wrong predictions of all runs, in nats."""
    right = [run.entropy[run.expected == run.predicted] for run in runs]
    wrong = [run.entropy[run.expected != run.predicted] for run in runs]
    joined = [np.concatenate([np.zeros(0), *part]) for part in (right, wrong)]
    return joined[0][np.isfinite(joined[0])], joined[1][np.isfinite(joined[1])]


def shares_in_bins(values: Floats, edges: Floats) -> list[float]:
    """The share of values in each bin; values outside count in the outermost."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
    return [float(share) for share in counts / max(len(values), 1)]


def flat_map(vectors: npt.NDArray[Any]) -> Floats:
    """Two dimensions (n, 2) in which near texts stay near: seeded t-SNE of the directions (n, d)."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rows = np.nan_to_num(np.asarray(vectors, dtype=np.float32))
    unit = scaled_to_unit_length(rows)
    if len(unit) < 5 or np.ptp(unit, axis=0).max() == 0.0:  # too few, or all the same: nothing to learn
        return np.asarray(np.pad(unit, ((0, 0), (0, 2)))[:, :2], dtype=np.float64)
    perplexity = min(30.0, (len(unit) - 1) / 3)
    with threadpool_limits(1):  # so few points: threads would wait for each other
        flat = TSNE(2, perplexity=perplexity, init="pca", max_iter=500, random_state=0).fit_transform(unit)
    return np.asarray(flat, dtype=np.float64)


# ---------------------------------------------------------------- learning and searching


@dataclass(frozen=True)
class History:
    """A recorded number by epoch, over runs that were trained equally long."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: int


def histories(runs: Sequence[Predictions], name: str) -> list[History]:
    """The recorded numbers of this name; runs of different length are not averaged with each other."""
    alike: dict[tuple[float, ...], list[list[float]]] = {}
    for run in runs:
        pairs = [(entry.get("epoch"), entry.get(name)) for entry in run.history]
        whole = [(float(e), float(v)) for e, v in pairs if _is_number(e) and _is_number(v)]  # type: ignore[arg-type]
        if whole:
            alike.setdefault(tuple(e for e, _ in whole), []).append([v for _, v in whole])
    found = []
    for epochs, rows in sorted(alike.items(), key=lambda item: (len(item[0]), item[0])):
        values = np.array(rows)  # (runs, epochs)
        mean, low, high = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
        found.append(History(list(epochs), mean.tolist(), low.tolist(), high.tolist(), len(rows)))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_trials(lines: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """The trials of one search, in order, from its lines: a line is one setting on one split of the rows."""
    scores: dict[int, dict[tuple[Any, ...], float]] = {}
    options: dict[int, dict[str, Any]] = {}
    for line in lines:
        if _is_number(line.get("score")):
            split = (line.get("split"), line.get("seed"), line.get("fold"))
            scores.setdefault(int(line["trial"]), {})[split] = float(line["score"])
            options[int(line["trial"])] = dict(line["options"])
    if not scores:
        return []
    most = max(len(own) for own in scores.values())
    common = set.intersection(*(set(own) for own in scores.values()))
    found = []
    for number, own in sorted(scores.items()):
        fair = [own[split] for split in own if split in common or not common]
        mean = float(np.mean(list(own.values())))
        found.append(Trial(options[number], mean, float(np.mean(fair)), len(own) == most))
    return found


def best_so_far(search: Sequence[Trial]) -> Floats:
    """The highest score of a whole trial up to and with each; NaN before the first."""
    scores = [trial.score if trial.whole else math.nan for trial in search]
    return np.fmax.accumulate(np.array(scores, dtype=np.float64))


def importance(searches: Sequence[Sequence[Trial]]) -> Importance | None:
    """What a random forest learns from options to scores, by what it loses when a setting is shuffled.

    Each search is centred on its own mean, so that an easy fold does not speak for a setting, and
    counts only splits that all its trials saw. None with fewer than eight trials, or when no setting
    or no score varies.
    """
    chosen: list[dict[str, Any]] = []
    centred: list[float] = []
    for search in searches:
        own = [trial for trial in search if trial.options]
        middle = float(np.mean([trial.fair for trial in own])) if own else 0.0
        chosen += [trial.options for trial in own]
        centred += [trial.fair - middle for trial in own]
    names = dict.fromkeys(name for options in chosen for name in options)
    columns = {name: _columns([options.get(name) for options in chosen]) for name in names}
    columns = {name: column for name, column in columns.items() if column.shape[1] > 0}
    if len(chosen) < 8 or not columns or max(centred) == min(centred):
        return None
    from sklearn.ensemble import RandomForestRegressor

    x, y = np.hstack(list(columns.values())), np.array(centred)  # (trials, F), (trials,)
    forest = RandomForestRegressor(200, oob_score=True, min_samples_leaf=2, random_state=0).fit(x, y)
    generator = np.random.default_rng(0)
    error = float(np.mean((forest.predict(x) - y) ** 2))
    lost: dict[str, float] = {}
    start = 0
    for name, column in columns.items():
        own_columns = slice(start, start + column.shape[1])
        worse = 0.0
        for _ in range(10):
            shuffled = x.copy()
            shuffled[:, own_columns] = x[generator.permutation(len(x)), own_columns]
            worse += float(np.mean((forest.predict(shuffled) - y) ** 2)) - error
        lost[name] = max(worse, 0.0)
        start = own_columns.stop
    total = sum(lost.values()) or 1.0
    ranked = sorted(lost.items(), key=lambda item: -item[1])
    return Importance({k: v / total for k, v in ranked}, float(forest.oob_score_), len(y))


def _columns(values: Sequence[Any]) -> Floats:
    """A setting as numbers (n, F): logarithms where it is positive, a column a value where it is a word."""
    if len({repr(value) for value in values}) < 2:
        return np.zeros((len(values), 0))
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        numbers = np.array(values, dtype=np.float64)
        return (np.log(numbers) if numbers.min() > 0 else numbers)[:, None]
    words = sorted({repr(value) for value in values})
    return np.array([[float(repr(value) == word) for word in words] for value in values])


def chosen_settings(searches: Sequence[Sequence[Trial]]) -> dict[str, list[tuple[str, int]]]:
    """Of each setting the values that the best trial of each search had, the most frequent first."""
    best = [
        max((t for t in search if t.whole), key=lambda t: t.score).options for search in searches if search
    ]
    names = dict.fromkeys(name for search in searches for trial in search for name in trial.options)
    return {
        name: Counter(
            _said(options[name]) if name in options else "default" for options in best
        ).most_common()
        for name in names
    }


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
