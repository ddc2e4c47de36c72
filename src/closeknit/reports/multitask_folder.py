"""The folder of a model of several tasks, read once into the values that its page shows."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.charts.svg_elements import SERIES_COLOURS
from closeknit.errors import ModelError

Records = list[dict[str, Any]]  # what was recorded at each evaluation

PARTS = ("validation", "test")
TRAIN = "train"  # scored too, to show how far a task is overfitted
METRIC_NAMES = {
    "accuracy": "accuracy",
    "weighted_f1": "weighted F1",
    "macro_f1": "macro F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


@dataclass(frozen=True)
class TaskReport:
    """One task of the run and its settings."""

    name: str
    kind: str
    head: str
    metric: str
    settings: dict[str, Any]
    colour: int

    @staticmethod
    def of(name: str, settings: dict[str, Any], number: int) -> TaskReport:
        """The task with these settings, where open settings have their defaults."""
        kind = str(settings.get("kind", "classify"))
        head = settings.get("head") or ("linear" if kind == "classify" else "dense_paired")
        if settings.get("objective") == "multiple_negatives":
            head = "similarity"
        metric = settings.get("metric") or ("pearson" if kind == "pair_score" else "accuracy")
        return TaskReport(name, kind, str(head), str(metric), settings, colour_of(number))

    @property
    def metric_name(self) -> str:
        """The name of the metric, as the page shows it."""
        return METRIC_NAMES.get(self.metric, self.metric)


@dataclass(frozen=True)
class MultitaskFolder:
    """Everything that the page of a model of several tasks shows."""

    folder: Path
    tasks: list[TaskReport]
    run: dict[str, Any]  # the settings of the run
    facts: dict[str, dict[str, Any]]  # answers, encoder, versions
    metrics: dict[str, dict[str, Any]]  # rows, updates, rates, validation, test, alone
    history: Records
    pretraining: Records

    def scores(self, task: TaskReport, part: str, *, alone: bool = False) -> dict[str, Any]:
        """All scores of a task on a part of its rows; empty if it was not scored there.

        `alone` asks for the scores of the model that was trained on this task only.
        """
        if alone:
            return as_table(as_table(self.metrics["alone"].get(task.name)).get(part))
        return as_table(self.metrics[part].get(task.name))

    def points(self, task: TaskReport, part: str, *, alone: bool = False) -> float | None:
        """The metric of a task, in points."""
        return in_points(self.scores(task, part, alone=alone).get(task.metric))

    def average(self, part: str, *, alone: bool = False) -> float | None:
        """The mean of the metrics of all tasks in points; None unless all tasks have a score."""
        points = [self.points(task, part, alone=alone) for task in self.tasks]
        known = [value for value in points if value is not None]
        return sum(known) / len(known) if len(known) == len(points) else None

    def last_part(self, task: TaskReport) -> str | None:
        """The test part if the task was scored on it, else the validation part.

        The result is None if the task has no scores.
        """
        return next((part for part in reversed(PARTS) if self.scores(task, part)), None)


def read_multitask_folder(folder: Path) -> MultitaskFolder:
    """The model of several tasks in a folder; another folder is refused with a `ModelError`."""
    facts_file = folder / "closeknit.json"
    if not facts_file.exists():
        if (folder / "checkpoints").is_dir():
            raise ModelError(
                f"the run in {folder} is not finished; resume it with --resume, and it writes its report at the end"
            )
        raise ModelError(f"{folder} is not the folder of a model: it has no closeknit.json")
    facts = _read_json(facts_file)
    if facts.get("kind") != "multi_task":
        raise ModelError(
            f"{folder} is not a model of several tasks: its kind is {facts.get('kind')}"
        )
    run = _table(facts, "run", facts_file)
    task_settings = {
        key.removeprefix("tasks."): as_table(settings)
        for key, settings in run.items()
        if key.startswith("tasks.")
    }
    if not task_settings:
        raise ModelError(f"{facts_file} is damaged: it names no task")
    metrics_file = folder / "metrics.json"
    metrics = _read_json(metrics_file)
    tables = ("rows", "updates", "rates", TRAIN, *PARTS, "alone")
    return MultitaskFolder(
        folder=folder,
        tasks=[
            TaskReport.of(name, settings, number)
            for number, (name, settings) in enumerate(task_settings.items())
        ],
        run=run,
        facts={key: _table(facts, key, facts_file) for key in ("answers", "encoder", "versions")},
        metrics={key: _table(metrics, key, metrics_file) for key in tables},
        history=_records(metrics, "history", metrics_file),
        pretraining=_records(metrics, "pretraining", metrics_file),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except ValueError as error:
        raise ModelError(f"{path} is damaged or incomplete ({error})") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} is damaged: it holds no JSON object")
    return content


def _table(content: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    """The table under a key of a file, empty if the file does not have it."""
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise ModelError(f"{path} is damaged: {key} is not a table")
    return table


def _records(content: dict[str, Any], key: str, path: Path) -> Records:
    """The records under a key of a file, empty if the file does not have it."""
    records = content.get(key, [])
    if not isinstance(records, list):
        raise ModelError(f"{path} is damaged: {key} is not a list")
    return [as_table(record) for record in records]


def as_table(value: Any) -> dict[str, Any]:
    """The value if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def finite(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def in_points(value: Any) -> float | None:
    """A score from 0 to 1 in points (times 100); None if it is no number."""
    score = finite(value)
    return None if score is None else 100 * score


def colour_of(number: int) -> int:
    """The colour of a task or of a pair of tasks; grey, colour 0, is left for the average."""
    return 1 + number % (SERIES_COLOURS - 1)
