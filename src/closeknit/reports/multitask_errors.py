"""The errors of every task: its scores in a sentence, its classes, and its worst answers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from closeknit.charts.axis import format_number
from closeknit.errors import DataError
from closeknit.multitask.mistakes import Mistake, read_mistakes
from closeknit.reports.multitask_folder import (
    METRIC_NAMES,
    MultitaskFolder,
    TaskReport,
    as_table,
    finite,
    in_points,
)
from closeknit.reports.page import SHOWN_MISTAKES, clipped, counted

MOST_OVERLAP_GROUPS = 4  # groups of wrong pairs whose word overlap is shown


def errors_view(trained: MultitaskFolder) -> list[dict[str, Any]]:
    """The scores, classes and wrong answers of each task that has any of them."""
    views = []
    for number, task in enumerate(trained.tasks):
        path = trained.folder / "mistakes" / f"{task.name}.csv"
        part = trained.last_part(task)
        if part is None and not path.exists():
            continue
        scores = trained.scores(task, part) if part else {}
        mistakes, overlap = _read_wrong_answers(task, path)
        views.append(
            {
                "id": f"task{number}",
                "name": task.name,
                "pairs": task.kind != "classify",
                "scores": task.kind == "pair_score",
                "score_sentence": _scores_in_words(trained, task, part, scores) if part else "",
                "classes": _class_rows(scores),
                "stored": path.exists(),
                "count": _count_in_words(task, mistakes),
                "more": len(mistakes) > SHOWN_MISTAKES,
                "overlap": overlap,
                "mistakes": [
                    (clipped(mistake.text), clipped(mistake.text2), mistake)
                    for mistake in mistakes[:SHOWN_MISTAKES]
                ],
            }
        )
    return views


def _class_rows(scores: dict[str, Any]) -> list[tuple[str, list[float | None], float | None]]:
    """The name, precision, recall and F1 in points, and number of rows of each class."""
    rows = []
    for name, value in as_table(scores.get("per_class")).items():
        of_class = as_table(value)
        points = [in_points(of_class.get(key)) for key in ("precision", "recall", "f1")]
        rows.append((name, points, finite(of_class.get("n"))))
    return rows


def _read_wrong_answers(task: TaskReport, path: Path) -> tuple[list[Mistake], str]:
    """The wrong answers in a file, the worst first, and a sentence on their word overlap."""
    try:
        mistakes = sorted(read_mistakes(path), key=lambda mistake: -mistake.size)
        return mistakes, _overlap_in_words(task, mistakes)
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged ({error})") from None


def _count_in_words(task: TaskReport, mistakes: Sequence[Mistake]) -> str:
    texts = counted(len(mistakes), "text" if task.kind == "classify" else "pair")
    verb = "is" if len(mistakes) == 1 else "are"
    if task.kind != "pair_score" or not mistakes:
        return f"{texts} {verb} misclassified"
    has = "has" if len(mistakes) == 1 else "have"
    return f"{texts} {has} a score that is wrong by {format_number(mistakes[-1].size, 2)} or more"


def _scores_in_words(
    trained: MultitaskFolder, task: TaskReport, part: str, scores: dict[str, Any]
) -> str:
    """All scores of a task on a part of its rows."""
    sentences = []
    for key, name in METRIC_NAMES.items():
        points = in_points(scores.get(key))
        if points is not None:
            sentences.append(f"{name} {format_number(points, 2)}")
    mean_error = finite(scores.get("mean_error"))
    if mean_error is not None:
        error = f"mean absolute error {format_number(mean_error, 2)}"
        sentences.append(error + _scale_in_words(trained, task))
    rows = finite(scores.get("n"))
    count = "The" if rows is None else f"{rows:,.0f}"
    return f"{count} {part} rows: {', '.join(sentences)}."


def _scale_in_words(trained: MultitaskFolder, task: TaskReport) -> str:
    answers = as_table(trained.facts["answers"].get(task.name))
    low = finite(answers.get("low"))
    high = finite(answers.get("high"))
    if low is None or high is None:
        return ""
    return f" on a scale from {format_number(low)} to {format_number(high)}"


def _overlap_in_words(task: TaskReport, mistakes: Sequence[Mistake]) -> str:
    """The mean word overlap of the wrong pairs, for each way in which they are wrong.

    The sentence is empty if there are no pairs.
    """
    groups: dict[str, list[float]] = {}
    for mistake in mistakes:
        if mistake.overlap is None or task.kind == "classify":
            continue
        group = f"wrongly predicted as {mistake.predicted}"
        if task.kind == "pair_score":
            too_high = float(mistake.predicted) > float(mistake.expected)
            group = f"scored too {'high' if too_high else 'low'}"
        groups.setdefault(group, []).append(mistake.overlap)
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:MOST_OVERLAP_GROUPS]
    means = [
        f"{100 * sum(overlaps) / len(overlaps):.0f} % in the {counted(len(overlaps), 'pair')} {group}"
        for group, overlaps in largest
    ]
    return f"Mean word overlap: {', '.join(means)}." if means else ""
