"""A study folder, read once into the values that its page shows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.charts.svg_elements import SERIES_COLOURS
from closeknit.errors import DataError
from closeknit.json_lines import read_json_lines
from closeknit.studies.predictions import predictions_in
from closeknit.studies.statistics import (
    SIZE_GROUPS,
    Line,
    size_group,
    summarise,
    trials_of_last_search,
)

Cell = tuple[str, int]  # a data set and a number of rows


@dataclass(frozen=True)
class FinishedRun:
    """A line of `results.jsonl`."""

    data: str
    size: int
    objective: str
    seed: int
    fold: int
    folds: int
    weighted_f1: float
    accuracy: float
    seconds: float
    key: str
    encoder: str = ""
    source: str = ""
    catalogue: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    test: str = "folds"
    shots: int = 0
    near_other_label: dict[str, float] | None = None
    truncated: float | None = None
    tested: str = ""
    selection: str = "fixed"

    @property
    def cell(self) -> Cell:
        """The data set and the number of rows."""
        return self.data, self.size


@dataclass(frozen=True)
class StudyFolder:
    """Everything that the page of a study shows."""

    folder: Path
    settings: dict[str, Any]
    runs: list[FinishedRun]
    trials: list[dict[str, Any]]
    baseline: str
    objectives: list[str]  # the baseline first
    cells: list[Cell]  # small data first
    lines: list[Line]

    @property
    def other_objectives(self) -> list[str]:
        """All objectives but the baseline."""
        return [name for name in self.objectives if name != self.baseline]

    def colour(self, objective: str) -> int:
        """The number of the colour of an objective."""
        return self.objectives.index(objective) % SERIES_COLOURS

    def data_set(self, name: str) -> dict[str, Any]:
        """What `study.json` says about a data set; empty if nothing."""
        for data_set in self.settings.get("data", []):
            if data_set.get("name") == name:
                return dict(data_set)
        return {}

    def line(self, cell: Cell, objective: str) -> Line | None:
        """The statistics of an objective on one data set at one size."""
        for line in self.lines:
            if (line.data, line.size) == cell and line.objective == objective:
                return line
        return None


def cell_name(cell: Cell) -> str:
    """The name of a data set and a number of rows, as the page shows it."""
    data, size = cell
    return f"{data} · {size:,} rows"


def read_study_folder(folder: Path, lines: Sequence[Line] | None = None) -> StudyFolder:
    """The study in a folder; damaged lines, and lines in another format, are skipped.

    `lines` are the statistics of its results, if they are known; else they are computed.
    """
    settings = _read_settings(folder)
    runs = _read_runs(folder / "results.jsonl")
    names = [*settings.get("objectives", {}), *dict.fromkeys(run.objective for run in runs)]
    baseline = str(settings.get("baseline") or (names[0] if names else ""))
    objectives = list(dict.fromkeys([baseline, *names]))
    data_order = [data_set.get("name") for data_set in settings.get("data", [])]
    cells = _sorted_cells(runs, data_order)
    if lines is None:
        lines = summarise(runs, baseline, predictions_in(folder)) if runs else []
    place = {(cell, name): i for i, (cell, name) in enumerate(_places(cells, objectives))}
    known = [line for line in lines if ((line.data, line.size), line.objective) in place]
    return StudyFolder(
        folder=folder,
        settings=settings,
        runs=runs,
        trials=trials_of_last_search(read_json_lines(folder / "trials.jsonl")),
        baseline=baseline,
        objectives=objectives,
        cells=cells,
        lines=sorted(known, key=lambda line: place[(line.data, line.size), line.objective]),
    )


def _places(cells: Sequence[Cell], objectives: Sequence[str]) -> list[tuple[Cell, str]]:
    return [(cell, objective) for cell in cells for objective in objectives]


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / "study.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} is not a study: it has no study.json") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise DataError(f"{path} cannot be read: it holds no JSON object")
    return settings


def _read_runs(path: Path) -> list[FinishedRun]:
    """The runs in a file of results; a run that was repeated counts once, with its last result."""
    fields = [field.name for field in dataclasses.fields(FinishedRun)]
    runs: dict[tuple[str, int, str, int, int], FinishedRun] = {}
    for record in read_json_lines(path):
        try:
            run = FinishedRun(**{name: record[name] for name in fields if name in record})
            runs[run.data, run.size, run.objective, run.seed, run.fold] = run
        except TypeError:  # a field is missing, or a list where a name is expected
            continue
    return list(runs.values())


def _sorted_cells(runs: Sequence[FinishedRun], data_order: Sequence[Any]) -> list[Cell]:
    """The cells that have runs, sorted by size group, by the study's order, and by size."""

    def order(cell: Cell) -> tuple[int, int, int]:
        data, size = cell
        known = data_order.index(data) if data in data_order else len(data_order)
        return SIZE_GROUPS.index(size_group(size)), known, size

    return sorted(dict.fromkeys(run.cell for run in runs), key=order)
