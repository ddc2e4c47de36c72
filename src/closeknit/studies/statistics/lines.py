"""Lines: the means of each objective on each data set, and its gain over the baseline.

Nothing here trains or loads a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from closeknit.studies.predictions import Predictions
from closeknit.studies.statistics.paired_tests import (
    SIGNIFICANCE,
    Difference,
    PairedRun,
    corrected_t_test,
    holm,
    row_values,
    seeds_and_rows_test,
)

SIZE_GROUPS = ("S", "M", "L", "XL")

# The stored predictions of a run by its key; None where there are none.
PredictionsOf = Callable[[str], Predictions | None]
Place = tuple[int, int]  # the seed and the fold of a run


class Scored(Protocol):
    """What the statistics need to know of a run."""

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
    @property
    def catalogue(self) -> str | None: ...
    @property
    def test(self) -> str: ...
    @property
    def shots(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def tested(self) -> str: ...
    @property
    def selection(self) -> str: ...
    @property
    def near_other_label(self) -> dict[str, float] | None: ...
    @property
    def truncated(self) -> float | None: ...


@dataclass(frozen=True)
class NearLine:
    """The score on test rows whose nearest training text has another label."""

    rows: int  # of a run, as a mean
    accuracy: float | None  # over all such rows of all runs; None if there are none


@dataclass(frozen=True)
class ConfidenceLine:
    """How uncertain the predictions are: the mean entropy in bits, and its difference to the
    baseline.
    """

    entropy: float
    difference: Difference | None
    p_holm: float | None = None


@dataclass(frozen=True)
class Line:
    """The means of one objective on one data set at one size, and its gain over the baseline.

    Means are over the seeds and folds that all objectives have, so that they can be compared. The
    gain is over all seeds and folds that the objective has in common with the baseline.
    """

    data: str
    size: int
    objective: str
    runs: int  # that the means are over
    f1_mean: float
    f1_std: float
    accuracy_mean: float
    seconds: float
    gain: Difference | None
    p_holm: float | None
    pairs: int = 0  # runs that the baseline has too
    source: str = ""  # the data set that this one was taken from, if known
    # The name of the source in the catalogue: empty if it has none, None if that is unknown.
    catalogue: str | None = None
    test: str = "folds"  # where the test rows come from
    shots: int = 0  # training rows of each class, if their number was fixed
    test_rows: int = 0  # of a run, as a mean; 0: unknown
    near: NearLine | None = None  # on the rows whose nearest training text has another label
    confidence: ConfidenceLine | None = None
    truncated: float | None = None  # share of the training texts that were cut; None: not known
    left_out: int = 0  # runs that are not in the means, because another objective lacks them
    # Whether the objective shares no run with the others, so that its means are over its own runs.
    alone: bool = False
    # Whether settings of any run were chosen on the reported folds, which makes scores too high.
    optimistic: bool = False
    # Whether the gain is not tested because predictions that the test needs are not stored.
    lacks_predictions: bool = False

    @property
    def rows_in_words(self) -> str:
        """The number of rows, with the number per class if it was fixed."""
        return f"{self.size:,}" + (f" ({self.shots} per class)" if self.shots else "")

    @property
    def outcome(self) -> str:
        """`win` or `loss` if the gain is significant after Holm's correction, else `tie`."""
        if self.gain is None or self.p_holm is None or self.p_holm >= SIGNIFICANCE:
            return "tie"
        return "win" if self.gain.mean > 0 else "loss"


def size_group(size: int) -> str:
    """The group of a number of rows in the TripleEntropy paper.

    S is about 1,000 rows, M 4,000, L 10,000, and XL more than 50,000.
    """
    if size < 2_500:
        return "S"
    if size < 7_000:
        return "M"
    return "L" if size < 50_000 else "XL"


# ---------------------------------------------------------------- lines


def summarise(
    rows: Sequence[Scored], baseline: str, predictions: PredictionsOf | None = None
) -> list[Line]:
    """One line for each data set, size and objective, in the order of the rows, the baseline first.

    Means are over the seeds and folds that all objectives of a data set and size share, with the
    same test rows, and a gain over those that an objective shares with the baseline. Holm's
    correction is applied per objective, over all data sets and sizes on which it is tested. Without
    `predictions`, runs that are not tested on folds have gains without a test, and lines say
    nothing about confidence.
    """
    lines: list[Line] = []
    for data, size in dict.fromkeys((row.data, row.size) for row in rows):
        cell = [row for row in rows if (row.data, row.size) == (data, size)]
        stored = _stored(cell, predictions)
        objectives = dict.fromkeys(row.objective for row in cell)
        runs_of = {
            objective: {(row.seed, row.fold): row for row in cell if row.objective == objective}
            for objective in sorted(objectives, key=lambda name: name != baseline)
        }
        in_common = _places_in_common(runs_of, stored)
        shared, together = _shared_places(runs_of, in_common)
        for objective, own in runs_of.items():
            alone = objective not in together
            rows_of_line = list(own.values()) if alone else [own[place] for place in shared]
            pairs: list[tuple[Scored, Scored]] = []
            if objective != baseline and baseline in runs_of:  # then it is the first one
                pairs = [
                    (row, runs_of[baseline][place])
                    for place, row in own.items()
                    if place in in_common[objective]
                ]
            left_out = len(own) - len(rows_of_line)
            line = _line(rows_of_line, pairs, stored)
            lines.append(dataclasses.replace(line, left_out=left_out, alone=alone))
    return _with_holm(lines)


def _stored(cell: Sequence[Scored], predictions: PredictionsOf | None) -> dict[str, Predictions]:
    """The stored predictions of some runs by their keys."""
    if predictions is None:
        return {}
    found = {row.key: predictions(row.key) for row in cell}
    return {key: stored for key, stored in found.items() if stored is not None}


def _places_in_common(
    runs_of: Mapping[str, Mapping[Place, Scored]], stored: Mapping[str, Predictions]
) -> dict[str, set[Place]]:
    """For each objective but the first: the seeds and folds that it has in common with the first,
    with the same test rows.
    """
    first, *others = runs_of
    return {
        objective: {
            place
            for place, row in runs_of[objective].items()
            if place in runs_of[first] and _same_test_rows(row, runs_of[first][place], stored)
        }
        for objective in others
    }


def _shared_places(
    runs_of: Mapping[str, Mapping[Place, Scored]], in_common: Mapping[str, set[Place]]
) -> tuple[list[Place], set[str]]:
    """The seeds and folds that the objectives share, and the objectives that share them.

    An objective that shares no run with the first one, the baseline, is left out. So is one that
    would leave no run in common; the objectives with most runs in common with the first are taken
    before the others.
    """
    first = next(iter(runs_of))
    shared, together = set(runs_of[first]), {first}
    for objective in sorted(in_common, key=lambda name: -len(in_common[name])):
        if shared & in_common[objective]:
            shared &= in_common[objective]
            together.add(objective)
    return [place for place in runs_of[first] if place in shared], together


def _same_test_rows(row: Scored, other: Scored, stored: Mapping[str, Predictions]) -> bool:
    """Whether two runs were tested on the same rows.

    Where a run does not say what it was tested on, the stored predictions tell; without them, runs
    of one seed and fold count as tested on the same rows.
    """
    if row.tested and other.tested:
        return row.tested == other.tested
    of_row, of_other = stored.get(row.key), stored.get(other.key)
    if of_row is None or of_other is None:
        return True
    return np.array_equal(of_row.rows, of_other.rows) and [
        of_row.labels[label] for label in of_row.expected
    ] == [of_other.labels[label] for label in of_other.expected]


def _line(
    rows: Sequence[Scored],
    pairs: Sequence[tuple[Scored, Scored]],
    stored: Mapping[str, Predictions],
) -> Line:
    """The line of some runs of an objective, each paired with a run of the baseline if any is."""
    f1 = np.array([row.weighted_f1 for row in rows])
    truncated = [row.truncated for row in rows if row.truncated is not None]
    tested = [len(stored[row.key].rows) for row in rows if row.key in stored]
    return Line(
        data=rows[0].data,
        size=rows[0].size,
        objective=rows[0].objective,
        runs=len(rows),
        f1_mean=float(f1.mean()),
        f1_std=float(f1.std(ddof=1)) if len(f1) > 1 else 0.0,
        accuracy_mean=float(np.mean([row.accuracy for row in rows])),
        seconds=float(np.mean([row.seconds for row in rows])),
        gain=_gain(pairs, stored) if pairs else None,
        p_holm=None,
        pairs=len(pairs),
        source=rows[0].source,
        catalogue=rows[0].catalogue,
        test=rows[0].test,
        shots=rows[0].shots,
        test_rows=round(float(np.mean(tested))) if tested else 0,
        near=_near_line(rows),
        truncated=float(np.mean(truncated)) if truncated else None,
        confidence=_confidence_line(rows, pairs, stored),
        optimistic=any(row.selection == "paper" for row in rows),
        lacks_predictions=rows[0].test != "folds"
        and not all(row.key in stored for pair in pairs for row in pair),
    )


def _gain(pairs: Sequence[tuple[Scored, Scored]], stored: Mapping[str, Predictions]) -> Difference:
    """The gain in weighted F1, with the test that fits where the test rows come from."""
    differences = [row.weighted_f1 - base.weighted_f1 for row, base in pairs]
    if pairs[0][0].test == "folds":
        return corrected_t_test(differences, 1.0 / pairs[0][0].folds)
    runs = []
    for (row, base), difference in zip(pairs, differences, strict=True):
        of_row = stored.get(row.key)
        of_base = stored.get(base.key)
        if of_row is None or of_base is None or not np.array_equal(of_row.rows, of_base.rows):
            return Difference.untested(float(np.mean(differences)))
        values = row_values(of_row.expected, of_row.predicted) - row_values(
            of_base.expected, of_base.predicted
        )
        runs.append(PairedRun(of_row.rows, values, difference))
    return seeds_and_rows_test(runs)


def _near_line(rows: Sequence[Scored]) -> NearLine | None:
    known = [row.near_other_label for row in rows if row.near_other_label is not None]
    if not known:
        return None
    counts = [scores["rows"] for scores in known]
    right = sum(scores["rows"] * scores.get("accuracy", 0.0) for scores in known)
    accuracy = right / sum(counts) if sum(counts) else None
    return NearLine(round(float(np.mean(counts))), accuracy)


def _confidence_line(
    rows: Sequence[Scored],
    pairs: Sequence[tuple[Scored, Scored]],
    stored: Mapping[str, Predictions],
) -> ConfidenceLine | None:
    """The mean entropy of the predictions of an objective, tested like its gain."""
    known = {key: one for key, one in stored.items() if np.isfinite(one.entropy).all()}
    means = [float(known[row.key].entropy.mean()) for row in rows if row.key in known]
    if not means:
        return None
    runs = []
    for row, base in pairs:
        of_row = known.get(row.key)
        of_base = known.get(base.key)
        if of_row is not None and of_base is not None and np.array_equal(of_row.rows, of_base.rows):
            values = of_row.entropy - of_base.entropy
            runs.append(PairedRun(of_row.rows, values, float(values.mean())))
    difference = None
    if runs and pairs[0][0].test == "folds":
        differences = [run.difference for run in runs]
        difference = corrected_t_test(differences, 1.0 / pairs[0][0].folds)
    elif runs:
        difference = seeds_and_rows_test(runs)
    return ConfidenceLine(float(np.mean(means)), difference)


def _with_holm(lines: Sequence[Line]) -> list[Line]:
    """The lines with their corrected p-values; the tests of one objective are one family.

    The differences in confidence are one family together. What cannot be tested is in no family.
    """
    corrected_lines = list(lines)
    for objective in dict.fromkeys(line.objective for line in lines):
        family = [
            (i, line.gain.p_value)
            for i, line in enumerate(lines)
            if line.objective == objective and line.gain and line.gain.is_tested
        ]
        p_values = holm([p_value for _, p_value in family])
        for (i, _), p_value in zip(family, p_values, strict=True):
            corrected_lines[i] = dataclasses.replace(lines[i], p_holm=p_value)
    differences = [
        (i, line.confidence, line.confidence.difference.p_value)
        for i, line in enumerate(lines)
        if line.confidence is not None
        and line.confidence.difference is not None
        and line.confidence.difference.is_tested
    ]
    p_values = holm([p_value for _, _, p_value in differences])
    for (i, confidence, _), p_value in zip(differences, p_values, strict=True):
        corrected = dataclasses.replace(confidence, p_holm=p_value)
        corrected_lines[i] = dataclasses.replace(corrected_lines[i], confidence=corrected)
    return corrected_lines


def standings(lines: Sequence[Line]) -> dict[str, tuple[int, int, int]]:
    """Wins, ties and losses of each objective over data sets and sizes.

    A difference that is not significant is a tie.
    """
    counts: dict[str, tuple[int, int, int]] = {}
    tested = [line for line in lines if line.gain is not None]
    for objective in dict.fromkeys(line.objective for line in tested):
        outcomes = [line.outcome for line in tested if line.objective == objective]
        counts[objective] = (outcomes.count("win"), outcomes.count("tie"), outcomes.count("loss"))
    return counts
