"""The result of every task, and of models trained on one task each: a sentence and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import charts
from .reading import PARTS, Trained, finite

_EQUAL = 0.5  # points between models that count as equal
_KINDS = {"classify": "class of a text", "pair_classify": "class of a pair", "pair_score": "score of a pair"}


def summary(trained: Trained) -> str:
    """The average in one sentence, against single-task models where there are some."""
    part = next((part for part in reversed(PARTS) if trained.average(part) is not None), "")
    mean = trained.average(part) if part else None
    if mean is None:
        scored = any(trained.points(task, part) is not None for task in trained.tasks for part in PARTS)
        return (
            "Not every task was scored, so there is no average; the table shows those that were."
            if scored
            else "No task was scored: there were neither validation nor test rows."
        )
    first, count = trained.tasks[0], len(trained.tasks)
    what = f"the average over {count} tasks is" if count > 1 else f"the {first.measure} of {first.name} is"
    said = f"On {part} rows {what} {charts.number(mean, 2)} points"
    alone = trained.average(part, alone=True)
    if alone is not None and count > 1:
        gain = charts.number(abs(mean - alone), 2)
        rival = f"the mean of the models trained on one task each ({charts.number(alone, 2)})"
        said += {
            "win": f", which beats {rival} by {gain}",
            "tie": f", which equals {rival} within {_EQUAL} points",
            "loss": f", which is {gain} below {rival}",
        }[_outcome(mean - alone)]
    groups: dict[str, list[str]] = {"win": [], "tie": [], "loss": []}
    for task in trained.tasks:
        difference = _difference(trained.points(task, part), trained.points(task, part, alone=True))
        if difference is not None:
            groups[_outcome(difference)].append(f"{task.name} ({charts.number(difference, 2, sign=True)})")
    words = {"win": "better on", "tie": "equal on", "loss": "below on"}
    told = ", ".join(f"{words[kind]} {_listed(names)}" for kind, names in groups.items() if names)
    joint = ": " if alone is not None and count > 1 else "; against models of one task each it is "
    return said + (joint + told if told else "") + "."


def _difference(own: float | None, single: float | None) -> float | None:
    return None if own is None or single is None else own - single


def _outcome(difference: float) -> str:
    return "tie" if abs(round(difference, 2)) <= _EQUAL else "win" if difference > 0 else "loss"


def score_table(trained: Trained) -> dict[str, Any]:
    """A row a task and one for the average; only columns in which something stands."""
    parts, singles = (
        [p for p in PARTS if any(trained.points(task, p, alone=alone) is not None for task in trained.tasks)]
        for alone in (False, True)
    )
    both = [part for part in parts if part in singles]

    def cells(own: dict[str, float | None], single: dict[str, float | None]) -> dict[str, Any]:
        differences = [_difference(own[part], single[part]) for part in both]
        return {
            "scores": [own[part] for part in parts],
            "alone": [single[part] for part in singles],
            "differences": [(gain, "tie" if gain is None else _outcome(gain)) for gain in differences],
        }

    rows = [
        {
            "task": task,
            "kind": _KINDS.get(task.kind, task.kind),
            "rows": finite(trained.metrics["rows"].get(task.name)),
            "updates": finite(trained.metrics["updates"].get(task.name)),
            **cells(
                {part: trained.points(task, part) for part in PARTS},
                {part: trained.points(task, part, alone=True) for part in PARTS},
            ),
        }
        for task in trained.tasks
    ]
    average = cells(
        {part: trained.average(part) for part in PARTS},
        {part: trained.average(part, alone=True) for part in PARTS},
    )
    return {
        "parts": parts,
        "alone": singles,
        "both": both,
        "equal": _EQUAL,
        "rows": rows,
        "average": average if len(rows) > 1 else None,
    }


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
