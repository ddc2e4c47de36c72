"""The folder of a model of several tasks, read once into what its page is made of."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import charts
from ...errors import ModelError

History = list[dict[str, Any]]

PARTS = ("validation", "test")
MEASURES = {
    "accuracy": "accuracy",
    "weighted_f1": "weighted F1",
    "macro_f1": "macro F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


@dataclass(frozen=True)
class Task:
    """One task of the run, as it was set."""

    name: str
    kind: str
    head: str
    metric: str
    settings: dict[str, Any]
    colour: int

    @staticmethod
    def of(name: str, settings: dict[str, Any], number: int) -> Task:
        kind = str(settings.get("kind", "classify"))
        head = settings.get("head") or ("linear" if kind == "classify" else "dense_paired")
        metric = settings.get("metric") or ("pearson" if kind == "pair_score" else "accuracy")
        return Task(name, kind, str(head), str(metric), settings, colour_of(number))

    @property
    def measure(self) -> str:
        return MEASURES.get(self.metric, self.metric)


@dataclass(frozen=True)
class Trained:
    """A folder of several tasks, read once."""

    folder: Path
    tasks: list[Task]
    run: dict[str, Any]
    facts: dict[str, dict[str, Any]]  # answers, encoder, versions
    metrics: dict[str, dict[str, Any]]  # rows, updates, rates, validation, test, alone
    history: History
    pretraining: History

    def scores(self, task: Task, part: str, *, alone: bool = False) -> dict[str, Any]:
        """All scores of a task; none where that part was not scored."""
        if alone:
            return as_table(as_table(self.metrics["alone"].get(task.name)).get(part))
        return as_table(self.metrics[part].get(task.name))

    def points(self, task: Task, part: str, *, alone: bool = False) -> float | None:
        return in_points(self.scores(task, part, alone=alone).get(task.metric))

    def average(self, part: str, *, alone: bool = False) -> float | None:
        """The mean over the tasks, where all have a score."""
        known = [self.points(task, part, alone=alone) for task in self.tasks]
        values = [value for value in known if value is not None]
        return sum(values) / len(values) if len(values) == len(known) else None


def read_trained(folder: Path) -> Trained:
    main, scores = folder / "closeknit.json", folder / "metrics.json"
    if not main.exists():
        if (folder / "checkpoints").is_dir():
            raise ModelError(
                f"the run in {folder} is not finished; its report comes at the end (go on with --resume)"
            )
        raise ModelError(f"{folder} is no folder of a model: it has no closeknit.json")
    facts = _read_json(main)
    if facts.get("kind") != "multi_task":
        raise ModelError(f"{folder} holds no model of several tasks: its kind is {facts.get('kind')}")
    run = _part(facts, "run", main)
    tables = {
        key.removeprefix("tasks."): as_table(own) for key, own in run.items() if key.startswith("tasks.")
    }
    if not tables:
        raise ModelError(f"{main} is damaged: it names no task")
    metrics = _read_json(scores)
    return Trained(
        folder,
        [Task.of(name, own, number) for number, (name, own) in enumerate(tables.items())],
        run,
        {key: _part(facts, key, main) for key in ("answers", "encoder", "versions")},
        {key: _part(metrics, key, scores) for key in ("rows", "updates", "rates", *PARTS, "alone")},
        _history(metrics, "history", scores),
        _history(metrics, "pretraining", scores),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except ValueError as error:
        raise ModelError(f"{path} is damaged or cut short ({error})") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: it holds no table")
    return found


def _part(whole: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    """A table in a file, empty where it is left out."""
    found = whole.get(key, {})
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: {key} is no table")
    return found


def _history(metrics: dict[str, Any], key: str, path: Path) -> History:
    found = metrics.get(key, [])
    if not isinstance(found, list):
        raise ModelError(f"{path} is damaged: {key} is no list")
    return [as_table(record) for record in found]


def as_table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def finite(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def in_points(value: Any) -> float | None:
    """A score from 0 to 1 in points."""
    found = finite(value)
    return None if found is None else 100 * found


def colour_of(number: int) -> int:
    return 1 + number % (charts.HUES - 1)  # grey is the average's


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
