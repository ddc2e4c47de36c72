"""The scores of every task beside those of single-task models: a summary and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from closeknit.charts.axis import format_number
from closeknit.reports.multitask_folder import PARTS, TRAIN, MultitaskFolder, TaskReport, finite

EQUAL_POINTS = 0.5  # models whose scores differ by no more than this count as equal
_KINDS = {
    "classify": "class of a text",
    "pair_classify": "class of a pair",
    "pair_score": "score of a pair",
}


# ---------------------------------------------------------------- the summary


def summary(trained: MultitaskFolder) -> str:
    """The average score in one sentence, compared with single-task models if there are some."""
    parts = [part for part in reversed(PARTS) if trained.average(part) is not None]
    if not parts:
        return _why_no_average(trained)
    part = parts[0]
    mean = trained.average(part)
    assert mean is not None
    several = len(trained.tasks) > 1
    first = trained.tasks[0]
    what = f"the {first.metric_name} of {first.name} is"
    if several:
        what = f"the average over {len(trained.tasks)} tasks is"
    sentence = f"On {part} rows {what} {format_number(mean, 2)} points"

    alone = trained.average(part, alone=True)
    by_task = _task_outcomes(trained, part)
    if alone is not None and several:
        sentence += _average_outcome(mean, alone)
        separator = ": "
    else:
        separator = "; compared with models of one task each it is "
    return sentence + (separator + by_task if by_task else "") + "."


def _why_no_average(trained: MultitaskFolder) -> str:
    for task in trained.tasks:
        for part in PARTS:
            if trained.points(task, part) is not None:
                return "Not every task was scored, so there is no average; the table shows the scores that exist."
    return "No task was scored: there were neither validation nor test rows."


def _average_outcome(mean: float, alone: float) -> str:
    """How the average compares with that of the models of one task each."""
    single_tasks = f"the mean of the models trained on one task each ({format_number(alone, 2)})"
    points = format_number(abs(mean - alone), 2)
    outcome = _outcome(mean - alone)
    if outcome == "win":
        return f", which is {points} above {single_tasks}"
    if outcome == "loss":
        return f", which is {points} below {single_tasks}"
    return f", which equals {single_tasks} within {EQUAL_POINTS} points"


def _task_outcomes(trained: MultitaskFolder, part: str) -> str:
    """The tasks on which the model is better, equal and worse than a model of that task alone."""
    groups: dict[str, list[str]] = {"win": [], "tie": [], "loss": []}
    for task in trained.tasks:
        difference = _difference(trained.points(task, part), trained.points(task, part, alone=True))
        if difference is not None:
            named = f"{task.name} ({format_number(difference, 2, sign=True)})"
            groups[_outcome(difference)].append(named)
    words = {"win": "better on", "tie": "equal on", "loss": "worse on"}
    return ", ".join(f"{words[kind]} {_listed(names)}" for kind, names in groups.items() if names)


def _difference(together: float | None, alone: float | None) -> float | None:
    return None if together is None or alone is None else together - alone


def _outcome(difference: float) -> str:
    if abs(round(difference, 2)) <= EQUAL_POINTS:
        return "tie"
    return "win" if difference > 0 else "loss"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


# ---------------------------------------------------------------- the table


def score_table(trained: MultitaskFolder) -> dict[str, Any]:
    """A row per task and one for the average; a column is left out if it would be empty."""
    parts = _scored_parts(trained, alone=False)
    if any(trained.points(task, TRAIN) is not None for task in trained.tasks):
        parts = [TRAIN, *parts]
    alone_parts = _scored_parts(trained, alone=True)
    rows = []
    for task in trained.tasks:
        together = {part: trained.points(task, part) for part in (TRAIN, *PARTS)}
        alone = {part: trained.points(task, part, alone=True) for part in PARTS}
        row = {
            "task": task,
            "kind": _KINDS.get(task.kind, task.kind),
            "rows": finite(trained.metrics["rows"].get(task.name)),
            "updates": finite(trained.metrics["updates"].get(task.name)),
        }
        rows.append(row | _score_cells(together, alone, parts, alone_parts))
    average = None
    if len(rows) > 1:
        together = {part: trained.average(part) for part in (TRAIN, *PARTS)}
        alone = {part: trained.average(part, alone=True) for part in PARTS}
        average = _score_cells(together, alone, parts, alone_parts)
    return {
        "parts": parts,
        "alone": alone_parts,
        "both": [part for part in parts if part in alone_parts],
        "equal": EQUAL_POINTS,
        "rows": rows,
        "average": average,
    }


def _scored_parts(trained: MultitaskFolder, *, alone: bool) -> list[str]:
    """The parts on which at least one task was scored."""

    def is_scored(task: TaskReport, part: str) -> bool:
        return trained.points(task, part, alone=alone) is not None

    return [part for part in PARTS if any(is_scored(task, part) for task in trained.tasks)]


def _score_cells(
    together: dict[str, float | None],
    alone: dict[str, float | None],
    parts: Sequence[str],
    alone_parts: Sequence[str],
) -> dict[str, Any]:
    """The cells of a row: its scores, those of single-task models, and the differences."""
    both = [part for part in parts if part in alone_parts]
    differences = [_difference(together[part], alone[part]) for part in both]
    return {
        "scores": [together[part] for part in parts],
        "alone": [alone[part] for part in alone_parts],
        "differences": [(gain, "tie" if gain is None else _outcome(gain)) for gain in differences],
    }
