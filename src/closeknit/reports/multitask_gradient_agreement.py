"""How well the gradients of every two tasks agree: the cosine between them, by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from closeknit.charts.axis import format_number
from closeknit.charts.svg import Curve
from closeknit.reports.multitask_folder import MultitaskFolder, as_table, colour_of, finite
from closeknit.reports.multitask_learning_curves import epoch_chart, record_curve
from closeknit.reports.page import counted


@dataclass(frozen=True)
class TaskPair:
    """Two tasks and the cosines between their gradients."""

    name: str
    colour: int
    curve: Curve
    mean: float
    low: float
    below: int  # evaluations with a cosine below 0
    of: int  # evaluations

    @property
    def conflict_rate(self) -> float:
        """The share of evaluations at which the gradients pointed in opposing directions."""
        return self.below / self.of


def gradients_view(trained: MultitaskFolder) -> dict[str, Any] | None:
    """The cosines of every two tasks, the pair that conflicts most often first.

    The result is None if no cosine was recorded.
    """
    pairs = _task_pairs(trained)
    if not pairs:
        return None
    ranked = sorted(pairs, key=lambda pair: (-pair.conflict_rate, pair.mean))
    curves = [pair.curve for pair in pairs]
    return {
        "svg": epoch_chart(curves, "Cosine between gradients", "cosine", zero_line=True),
        "legend": [{"name": pair.name, "colour": pair.colour} for pair in pairs],
        "rows": ranked,
        "summary": _agreement_in_words(ranked),
        "surgery": as_table(trained.run.get("schedule")).get("surgery") == "pcgrad",
    }


def _task_pairs(trained: MultitaskFolder) -> list[TaskPair]:
    """The pairs of tasks with recorded cosines, which stand under `gradients/TASK/TASK`."""
    tasks = {task.name for task in trained.tasks}
    pairs: list[TaskPair] = []
    for key in dict.fromkeys(key for record in trained.history for key in record):
        kind, *names = key.split("/")
        if kind != "gradients" or len(names) != 2 or not tasks.issuperset(names):
            continue
        recorded = [finite(record.get(key)) for record in trained.history]
        cosines = [cosine for cosine in recorded if cosine is not None]
        if cosines:
            name = " and ".join(names)
            colour = colour_of(len(pairs))
            pairs.append(
                TaskPair(
                    name=name,
                    colour=colour,
                    curve=record_curve(trained.history, key, name, colour),
                    mean=sum(cosines) / len(cosines),
                    low=min(cosines),
                    below=sum(cosine < 0 for cosine in cosines),
                    of=len(cosines),
                )
            )
    return pairs


def _agreement_in_words(ranked: Sequence[TaskPair]) -> str:
    """Which pair of tasks conflicts most often, and which least often."""
    most, least = ranked[0], ranked[-1]
    if len(ranked) == 1:
        return f"The gradients of {most.name} conflict {_frequency(most)}."
    if most.conflict_rate > least.conflict_rate:
        return (
            f"The gradients of {most.name} conflict most often, {_frequency(most)}; "
            f"those of {least.name} conflict least often, {_frequency(least)}."
        )
    start = "No two tasks have conflicting gradients at any evaluation"
    if most.below:
        evaluations = counted(most.of, "evaluation")
        start = (
            f"The gradients of all pairs conflict equally often, at {most.below} of {evaluations}"
        )
    return (
        f"{start}; {most.name} agree least (mean cosine {format_number(most.mean, 2)}), "
        f"{least.name} agree most ({format_number(least.mean, 2)})."
    )


def _frequency(pair: TaskPair) -> str:
    times = "at no evaluation"
    if pair.below:
        times = f"at {pair.below} of {counted(pair.of, 'evaluation')}"
    return f"{times} (mean cosine {format_number(pair.mean, 2)})"
