"""A study folder, read once into what its page is made of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import charts
from ..errors import DataError
from ..report import Line, of_last_search, size_group, summarise

SURE = 0.05


@dataclass(frozen=True)
class Run:
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
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Everything a page is made of, read once."""

    folder: Path
    settings: dict[str, Any]
    runs: list[Run]
    trials: list[dict[str, Any]]
    baseline: str
    objectives: list[str]  # the baseline first
    cells: list[tuple[str, int]]  # data and size, small data first
    lines: list[Line]

    def colour(self, objective: str) -> int:
        return self.objectives.index(objective) % charts.HUES

    def entry(self, data: str) -> dict[str, Any]:
        """What is known of a data set."""
        return next((dict(d) for d in self.settings.get("data", []) if d.get("name") == data), {})

    def line(self, cell: tuple[str, int], objective: str) -> Line | None:
        found = (
            line for line in self.lines if (line.data, line.size) == cell and line.objective == objective
        )
        return next(found, None)


def cell_name(cell: tuple[str, int]) -> str:
    return f"{cell[0]} · {cell[1]:,} rows"


def whole_ticks(last: int) -> list[int]:
    """Counting numbers to write below an axis up to `last`, about five of them; none where it is short."""
    return list(range(1, last + 1, 1 + (last - 1) // 6)) if last > 1 else []


def read_study(folder: Path, lines: list[Line] | None = None) -> Study:
    """The study in a folder; damaged lines of its files are skipped.

    `lines` are the statistics of its runs; they are computed if they are not given.
    """
    path = folder / "study.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError("it holds no object")
    except FileNotFoundError:
        raise DataError(f"{folder} is not a study: it has no study.json") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    found: dict[tuple[str, int, str, int, int], Run] = {}
    names = [f.name for f in dataclasses.fields(Run)]
    for entry in _json_lines(folder / "results.jsonl"):
        try:
            run = Run(**{name: entry[name] for name in names if name in entry})
            hash((run.data, run.size, run.objective, run.seed, run.fold))
        except TypeError:
            continue
        found[run.data, run.size, run.objective, run.seed, run.fold] = run
    runs = list(found.values())
    names = [*settings.get("objectives", {}), *dict.fromkeys(run.objective for run in runs)]
    baseline = str(settings.get("baseline") or (names[0] if names else ""))
    data = [entry.get("name") for entry in settings.get("data", [])]
    cells = sorted(
        dict.fromkeys((run.data, run.size) for run in runs),
        key=lambda cell: (
            "SMLX".index(size_group(cell[1])[0]),
            data.index(cell[0]) if cell[0] in data else len(data),
            cell[1],
        ),
    )
    if lines is None:
        lines = summarise(runs, baseline)
    return Study(
        folder,
        settings,
        runs,
        of_last_search(_json_lines(folder / "trials.jsonl")),
        baseline,
        list(dict.fromkeys([baseline, *names])),
        cells,
        lines,
    )


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
