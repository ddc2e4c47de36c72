"""What every task gets wrong: its scores in words, its classes and its worst answers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import charts
from ...errors import DataError
from ...mistakes import Mistake, read_mistakes
from ..mistakes import SHOWN_MISTAKES, cut
from .reading import MEASURES, PARTS, Task, Trained, as_table, counted, finite, in_points


def errors_view(trained: Trained) -> list[dict[str, Any]]:
    """For each task that was scored or has wrong answers: its scores, its classes, and what it gets wrong."""
    found = []
    for number, task in enumerate(trained.tasks):
        path = trained.folder / "mistakes" / f"{task.name}.csv"
        part = next((part for part in reversed(PARTS) if trained.scores(task, part)), "")
        if not part and not path.exists():
            continue
        scores = trained.scores(task, part) if part else {}
        mistakes, overlap = _wrong(task, path)
        classes = as_table(scores.get("per_class"))
        found.append(
            {
                "id": f"task{number}",
                "name": task.name,
                "pairs": task.kind != "classify",
                "scores": task.kind == "pair_score",
                "said": _told(trained, task, part, scores) if part else "",
                "classes": [
                    (
                        name,
                        [in_points(own.get(key)) for key in ("precision", "recall", "f1")],
                        finite(own.get("n")),
                    )
                    for name, own in ((name, as_table(own)) for name, own in classes.items())
                ],
                "stored": path.exists(),
                "told": _how_many(task, mistakes),
                "more": len(mistakes) > SHOWN_MISTAKES,
                "overlap": overlap,
                "mistakes": [(cut(one.text), cut(one.text2), one) for one in mistakes[:SHOWN_MISTAKES]],
            }
        )
    return found


def _wrong(task: Task, path: Path) -> tuple[list[Mistake], str]:
    """The wrong answers in a file, the worst first, and what is to say of their words."""
    try:
        mistakes = sorted(read_mistakes(path), key=lambda mistake: -mistake.size)
        return mistakes, _overlap(task, mistakes)
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged ({error})") from None


def _how_many(task: Task, mistakes: Sequence[Mistake]) -> str:
    what = counted(len(mistakes), "text" if task.kind == "classify" else "pair")
    said = f"{what} {'is' if len(mistakes) == 1 else 'are'}"
    if task.kind != "pair_score" or not mistakes:
        return f"{said} misclassified"
    return f"{said} off by {charts.number(mistakes[-1].size, 2)} or more"


def _told(trained: Trained, task: Task, part: str, scores: dict[str, Any]) -> str:
    """All scores of a task in a sentence."""
    known = [(said, in_points(scores.get(key))) for key, said in MEASURES.items()]
    told = [f"{said} {charts.number(value, 2)}" for said, value in known if value is not None]
    off, answers = finite(scores.get("mean_error")), as_table(trained.facts["answers"].get(task.name))
    low, high = (finite(answers.get(end)) for end in ("low", "high"))
    if off is not None:
        scale = "" if low is None or high is None else (
            f" on a scale from {charts.number(low)} to {charts.number(high)}")  # fmt: skip
        told.append(f"off by {charts.number(off, 2)} on average{scale}")
    rows = finite(scores.get("n"))
    return f"{'The' if rows is None else f'{rows:,.0f}'} {part} rows: {', '.join(told)}."


def _overlap(task: Task, mistakes: Sequence[Mistake]) -> str:
    """How many words the wrong pairs share, by the side to which they are wrong."""
    sides: dict[str, list[float]] = {}
    for one in mistakes:
        if one.overlap is None or task.kind == "classify":
            continue
        side = f"wrongly called {one.predicted}"
        if task.kind == "pair_score":
            side = f"scored too {'high' if float(one.predicted) > float(one.expected) else 'low'}"
        sides.setdefault(side, []).append(one.overlap)
    told = [
        f"{100 * sum(own) / len(own):.0f} % in the {counted(len(own), 'pair')} {side}"
        for side, own in sorted(sides.items(), key=lambda item: -len(item[1]))[:4]
    ]
    return f"Words in common, on average: {', '.join(told)}." if told else ""
