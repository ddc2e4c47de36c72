"""Result rows -> tables and paired tests; never runs a model."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .data.catalogue import text_pool


class Scored(Protocol):
    """What a table needs to know of a run."""

    @property
    def data(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def objective(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def fold(self) -> int: ...
    @property
    def folds(self) -> int: ...
    @property
    def weighted_f1(self) -> float: ...
    @property
    def accuracy(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def source(self) -> str: ...


@dataclass(frozen=True)
class Difference:
    """A mean difference over paired runs, its 95 % interval, and how likely chance alone is."""

    mean: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Line:
    """One objective on one data set at one size, over all its runs, against the baseline."""

    data: str
    size: int
    objective: str
    runs: int
    f1_mean: float
    f1_std: float
    accuracy_mean: float
    seconds: float
    gain: Difference | None
    p_holm: float | None
    pairs: int = 0  # runs that the baseline has too
    source: str = ""  # what the data set was taken from, where it is known


# ---------------------------------------------------------------- tests


def corrected_t_test(differences: npt.ArrayLike, test_share: float) -> Difference:
    """The corrected resampled t-test of Nadeau and Bengio over paired differences.

    Runs on folds share training rows, so their plain variance is too small. It is multiplied by
    1/n + test rows/training rows instead of 1/n. `test_share` is the share of rows tested: 1/k.
    """
    from scipy import stats

    d = np.asarray(differences, dtype=np.float64)
    n, mean = len(d), float(np.mean(d))
    if n < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    error = math.sqrt(float(np.var(d, ddof=1)) * (1.0 / n + test_share / (1.0 - test_share)))
    if error == 0.0:
        return Difference(mean, mean, mean, 1.0 if mean == 0.0 else 0.0)
    p = 2.0 * float(stats.t.sf(abs(mean) / error, n - 1))
    half = error * float(stats.t.ppf(0.975, n - 1))
    return Difference(mean, mean - half, mean + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the p-values as if each had been the only test, in their order.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none falls below an earlier one.
    """
    m, corrected, highest = len(p_values), [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (m - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


# ---------------------------------------------------------------- lines


def summarise(rows: Sequence[Scored], baseline: str) -> list[Line]:
    """One line for each data set, size and objective, in the order of the rows.

    Gains are paired by seed and fold. Holm's correction runs, for each objective, over all data sets
    and sizes on which it is tested.
    """
    lines: list[Line] = []
    for data, size in dict.fromkeys((row.data, row.size) for row in rows):
        cell = [row for row in rows if (row.data, row.size) == (data, size)]
        base = {(row.seed, row.fold): row.weighted_f1 for row in cell if row.objective == baseline}
        names = dict.fromkeys(row.objective for row in cell)
        for objective in sorted(names, key=lambda name: name != baseline):  # the baseline first
            own = [row for row in cell if row.objective == objective]
            f1 = np.array([row.weighted_f1 for row in own])
            paired = [
                row.weighted_f1 - base[row.seed, row.fold] for row in own if (row.seed, row.fold) in base
            ]
            tested = objective != baseline and paired
            lines.append(
                Line(
                    data,
                    size,
                    objective,
                    len(own),
                    float(f1.mean()),
                    float(f1.std(ddof=1)) if len(f1) > 1 else 0.0,
                    float(np.mean([row.accuracy for row in own])),
                    float(np.mean([row.seconds for row in own])),
                    corrected_t_test(paired, 1.0 / own[0].folds) if tested else None,
                    None,
                    len(paired),
                    own[0].source,
                )
            )
    return _with_holm(lines)


def _with_holm(lines: list[Line]) -> list[Line]:
    from dataclasses import replace

    out = list(lines)
    for objective in dict.fromkeys(line.objective for line in lines):
        family = [
            (i, line.gain.p_value)
            for i, line in enumerate(lines)
            if line.objective == objective and line.gain
        ]
        for (i, _), p in zip(family, holm([p for _, p in family]), strict=True):
            out[i] = replace(out[i], p_holm=p)
    return out


@dataclass(frozen=True)
class Overall:
    """The gain of an objective over the baseline, each data set counting as one observation."""

    group: str  # S, M, L or XL
    objective: str
    sets: int
    pools: int  # of these that share no texts with another: the observations
    gain: Difference  # tested by Student's t over the mean gains of the pools
    p_signed_rank: float  # Wilcoxon's test, which asks nothing of their distribution
    p_holm: float  # of the t-test, corrected for the number of objectives


def over_pools(
    gains: Mapping[str, Sequence[tuple[str, float]]], group: str = "", least: int = 1
) -> list[Overall]:
    """What holds over data sets: for each name its gains on them, by the data sets' names; `least` is how many have to count.

    Data sets that share no texts have independent gains, and a plain t-test is right. Those that were taken from one source, as
    with some of its classes, or are cut from the same texts as the catalogue knows, like R8 and R52, count once together.
    Holm's method corrects over the names.
    """
    from scipy import stats

    tested: list[tuple[str, int, list[float]]] = []
    for name, own in gains.items():
        pools: dict[str, list[float]] = {}
        for source, gain in own:
            pools.setdefault(text_pool(source), []).append(gain)
        if len(pools) >= least:
            tested.append((name, len(own), [float(np.mean(values)) for values in pools.values()]))
    plain = [corrected_t_test(values, 0.0) for _, _, values in tested]
    corrected = holm([difference.p_value for difference in plain])
    return [
        Overall(
            group,
            name,
            sets,
            len(values),
            difference,
            float(stats.wilcoxon(values).pvalue) if any(values) else 1.0,
            p,
        )
        for (name, sets, values), difference, p in zip(tested, plain, corrected, strict=True)
    ]


def over_sets(lines: Sequence[Line]) -> list[Overall]:
    """What holds over the data sets of each size group, where at least three of them count."""
    found: list[Overall] = []
    for group in ("S", "M", "L", "XL"):
        gains: dict[str, list[tuple[str, float]]] = {}
        for line in lines:
            if line.gain is not None and size_group(line.size) == group:
                gains.setdefault(line.objective, []).append((line.source or line.data, line.gain.mean))
        found += over_pools(gains, group, least=3)
    return found


def overall_in_words(one: Overall, baseline: str) -> str:
    """What holds over data sets, in one plain sentence."""
    verb, over = _direction(one.gain)
    several = " after correction for several objectives" if one.p_holm > one.gain.p_value else ""
    sure = "more than chance would explain" if one.p_holm < 0.05 else "which could well be chance"
    shared = f" (counted as {one.pools}, as some share texts)" if one.pools < one.sets else ""
    return (
        f"Over {one.sets} data sets of size {one.group}{shared}, {one.objective} {verb} {abs(100 * one.gain.mean):.2f} points "
        f"{over} {baseline} on average (95 % interval {100 * one.gain.low:+.2f} to {100 * one.gain.high:+.2f}), {sure}: "
        f"p = {one.p_holm:.2g}{several}; by Wilcoxon's signed ranks, uncorrected, {one.p_signed_rank:.2g}."
    )


def _direction(gain: Difference) -> tuple[str, str]:
    return ("gains", "over") if gain.mean >= 0 else ("loses", "against")


def standings(lines: Sequence[Line]) -> dict[str, tuple[int, int, int]]:
    """Wins, ties and losses of each objective over data sets and sizes; what may be chance is a tie."""
    found: dict[str, tuple[int, int, int]] = {}
    for objective in dict.fromkeys(line.objective for line in lines if line.gain is not None):
        own = [line for line in lines if line.objective == objective and line.gain is not None]
        sure = [line for line in own if line.p_holm is not None and line.p_holm < 0.05]
        wins = sum(1 for line in sure if line.gain is not None and line.gain.mean > 0)
        found[objective] = (wins, len(own) - len(sure), len(sure) - wins)
    return found


def size_group(size: int) -> str:
    """The TripleEntropy paper's name for a number of rows: S about 1,000, M 4,000, L 10,000, XL over 50,000."""
    return "S" if size < 2_500 else "M" if size < 7_000 else "L" if size < 50_000 else "XL"


# ---------------------------------------------------------------- what choosing on the reported folds gains


@dataclass(frozen=True)
class Optimism:
    """The score of a setting chosen on the folds it is reported on, and an honest estimate beside it."""

    data: str
    size: int
    objective: str
    reported: float
    honest: float


def of_last_search(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The trials that the last search of each run asked for; those of one that was given up for another are left out."""
    places = ("data", "size", "objective", "seed", "fold")
    found = [(repr([trial.get(name) for name in places]), dict(trial)) for trial in trials]
    last = {place: trial.get("run") for place, trial in found}
    return [trial for place, trial in found if trial.get("run") == last[place]]


def optimism(rows: Sequence[Scored], trials: Iterable[Mapping[str, Any]]) -> list[Optimism]:
    """How much of the reported score comes from having chosen the setting on the reported folds.

    The honest estimate leaves each fold out in turn: the setting that is best on all the others is
    scored on the one left out. Only settings that were tried on every fold take part.
    """
    table: dict[tuple[str, int, str], dict[str, dict[tuple[int, int], float]]] = {}
    for trial in trials:
        cell = (str(trial["data"]), int(trial["size"]), str(trial["objective"]))
        setting = repr(sorted(trial["options"].items()))
        table.setdefault(cell, {}).setdefault(setting, {})[trial["seed"], trial["fold"]] = trial["score"]
    found: list[Optimism] = []
    for (data, size, objective), settings in table.items():
        own = {
            (r.seed, r.fold): r.weighted_f1
            for r in rows
            if (r.data, r.size, r.objective) == (data, size, objective)
        }
        places = sorted(own)
        whole = [scores for scores in settings.values() if set(places) <= scores.keys()]
        if len(places) < 2 or not whole:
            continue
        table_of_scores = np.array(
            [[scores[place] for place in places] for scores in whole]
        )  # (settings, folds)
        others = table_of_scores.sum(1, keepdims=True) - table_of_scores
        chosen = others.argmax(0)  # (folds,)
        honest = float(table_of_scores[chosen, np.arange(len(places))].mean())
        found.append(
            Optimism(data, size, objective, float(np.mean([own[place] for place in places])), honest)
        )
    return found


# ---------------------------------------------------------------- published figures

# Weighted F1 in points, RoBERTa-base, (cross-entropy, TripleEntropy): TripleEntropy paper, tables II to V.
_PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "S": {
        "sst2": (88.63, 89.09), "imdb": (81.00, 81.45), "subj": (94.61, 94.70), "mpqa": (87.75, 87.93),
        "mrpc": (78.01, 79.12), "trec": (79.80, 82.09), "cr": (91.57, 92.16), "mr": (85.89, 86.39),
    },
    "M": {"mrpc": (83.11, 84.39), "trec": (96.19, 97.19), "cr": (93.28, 93.58)},
    "L": {
        "sst2": (92.63, 92.79), "imdb": (85.12, 85.23), "subj": (96.83, 97.15), "mpqa": (91.08, 91.30),
        "mr": (89.09, 89.29),
    },
    "XL": {"sst2": (94.89, 94.95), "imdb": (87.10, 87.12)},
}  # fmt: skip


def published(data: str, size: int) -> dict[str, float]:
    """Objective -> published weighted F1 in points, with RoBERTa-base; nothing where there is none."""
    name = "".join(letter for letter in data.lower() if letter.isalnum())
    pair = _PUBLISHED[size_group(size)].get(name)
    return dict(zip(("cross_entropy", "triple_entropy"), pair, strict=True)) if pair else {}


# ---------------------------------------------------------------- on paper


def in_words(line: Line, baseline: str) -> str:
    """What a gain means, in one plain sentence."""
    if line.gain is None:
        return (
            f"{line.objective} is the baseline."
            if line.objective == baseline
            else f"{line.objective} has no paired runs yet."
        )
    direction, over = _direction(line.gain)
    runs = f"{line.pairs} paired runs"
    corrected = line.gain.p_value if line.p_holm is None else line.p_holm
    p = "p < 0.001" if corrected < 0.001 else f"p = {corrected:.2g}"
    if corrected > line.gain.p_value:
        p += " after correction for several data sets"
    if line.pairs < 2:
        verdict = "one paired run cannot tell more"
    elif corrected < 0.05:
        verdict = f"with {runs} that is more than chance would explain, {p}"
    else:
        verdict = f"with {runs} this could well be chance, {p}"
    return (
        f"{line.objective} {direction} {abs(100 * line.gain.mean):.2f} points of weighted F1 {over} {baseline} on "
        f"{line.data} ({line.size:,} rows); {verdict}."
    )


CSV_COLUMNS = ("data", "size", "objective", "runs", "weighted_f1_mean", "weighted_f1_std", "delta", "delta_low",
               "delta_high", "p_value", "p_holm")  # fmt: skip


def csv_table(lines: Sequence[Line]) -> str:
    """The lines as CSV, scores from 0 to 1; cells that do not apply are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for line in lines:
        gain: list[Any] = ["", "", "", ""]
        if line.gain is not None:
            gain = [line.gain.mean, line.gain.low, line.gain.high, line.gain.p_value]
        p_holm = "" if line.p_holm is None else line.p_holm
        writer.writerow(
            [line.data, line.size, line.objective, line.runs, line.f1_mean, line.f1_std, *gain, p_holm]
        )
    return out.getvalue()


def _plain(name: str) -> str:
    """A text as it is in Markdown: no bar or line break in it ends a cell of a table, and no mark-up begins in it."""
    return " ".join(name.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def paper_table(lines: Sequence[Line]) -> str:
    """Markdown in the layout of the TripleEntropy paper: objectives down, data sets by size group across."""
    order = "S M L XL".split()
    cells = sorted(
        dict.fromkeys((line.data, line.size) for line in lines), key=lambda c: order.index(size_group(c[1]))
    )
    of = {(line.data, line.size, line.objective): line for line in lines}
    objectives = list(dict.fromkeys(line.objective for line in lines))
    out = [
        "| weighted F1 | "
        + " | ".join(f"{size_group(n)}: {_plain(data)} ({n:,})" for data, n in cells)
        + " | average |",
        "|---|" + "---|" * (len(cells) + 1),
    ]
    for objective in objectives:
        own = [of.get((*cell, objective)) for cell in cells]
        shown = [f"{100 * line.f1_mean:.2f} ± {100 * line.f1_std:.2f}" if line else "" for line in own]
        mean = [100 * line.f1_mean for line in own if line]
        average = f"{sum(mean) / len(mean):.2f}" if len(mean) == len(cells) else ""
        out.append(f"| {_plain(objective)} | " + " | ".join(shown) + f" | {average} |")
    figures = {cell: published(*cell) for cell in cells}
    for objective in objectives:
        if any(objective in known for known in figures.values()):
            shown = [f"{known[objective]:.2f}" if objective in known else "" for known in figures.values()]
            out.append(
                f"| *{objective}, published, RoBERTa-base (another encoder)* | " + " | ".join(shown) + " | |"
            )
    return "\n".join(out)


def markdown_table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table with gains and tests, scores in points (times 100)."""
    out = [
        "| data | rows | objective | runs | weighted F1 | accuracy | gain (95 % interval) | p | p, Holm | s a run |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        gain = p = corrected = ""
        if line.gain is not None:
            gain = f"{100 * line.gain.mean:+.2f}"
            if math.isfinite(line.gain.low):  # one pair has no interval
                gain += f" ({100 * line.gain.low:+.2f} to {100 * line.gain.high:+.2f})"
            p, corrected = f"{line.gain.p_value:.3f}", f"{line.p_holm:.3f}"
        out.append(
            f"| {_plain(line.data)} | {line.size:,} | {_plain(line.objective)} | {line.runs} | {100 * line.f1_mean:.2f} ± "
            f"{100 * line.f1_std:.2f} | {100 * line.accuracy_mean:.2f} | {gain} | {p} | {corrected} | {line.seconds:.1f} |"
        )
    return "\n".join(out)


def markdown_report(
    lines: Sequence[Line], baseline: str, optimistic: Sequence[Optimism] | None = None
) -> str:
    """Everything that is said of a study in Markdown; `optimistic`, where settings were chosen on the reported folds."""
    parts = []
    if optimistic is not None:
        parts.append(" ".join([f"**{OPTIMISTIC}**", *(_plain(optimism_in_words(one)) for one in optimistic)]))
    parts += [paper_table(lines), markdown_table(lines)]
    ranks = [
        f"- {_plain(objective)}: {wins} wins, {ties} ties, {losses} losses"
        for objective, (wins, ties, losses) in standings(lines).items()
    ]
    if ranks:
        parts.append(
            f"Over data sets and sizes, against {_plain(baseline)} (a difference that may be chance, p after Holm of .05 or "
            "more, is a tie):\n\n" + "\n".join(ranks)
        )
    said = [overall_in_words(one, baseline) for one in over_sets(lines)]
    parts.append("\n".join(f"- {_plain(sentence)}" for sentence in said))
    said = [in_words(line, baseline) for line in lines if line.gain is not None]
    parts.append("\n".join(f"- {_plain(sentence)}" for sentence in said))
    parts.append(HOW_TESTED)
    return "\n\n".join(part for part in parts if part) + "\n"


OPTIMISTIC = "These scores are optimistic: the settings were chosen on the very folds that are reported."
HOW_TESTED = (
    "Tested by the corrected resampled t-test of Nadeau and Bengio over runs paired by seed and fold, because folds share "
    "training rows; corrected by Holm's method over data sets and sizes, because each is one more chance to be lucky. Over data "
    "sets, a t-test of their mean gains, corrected by Holm's method over objectives; those that share texts count once together."
)


def optimism_in_words(one: Optimism) -> str:
    return (
        f"{one.objective} on {one.data} ({one.size:,} rows): {100 * one.reported:.2f} as chosen, {100 * one.honest:.2f} with "
        f"each fold left out of the choice, {100 * (one.reported - one.honest):+.2f} points."
    )
