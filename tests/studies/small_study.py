"""Small studies for tests, and what is compared of their folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from closeknit.classification.config import RunConfig
from closeknit.json_lines import read_json_lines
from closeknit.studies.run import Place
from closeknit.studies.study import Source, Study

ONE_THREAD = Place(threads=1)


def study_maker(encoder: str, data: Path) -> Callable[..., Study]:
    """A function that makes a study of this encoder and data, with the objectives in `names`."""

    def config(name: str) -> RunConfig:
        return RunConfig.from_dict(
            {
                "encoder": {"name": encoder, "max_length": 16},
                "objective": {"name": name},
                "train": {"epochs": 1, "batch_size": 12, "lr": 1e-3, "positives": 0},
            }
        )

    def make(names: tuple[str, ...] = ("cross_entropy", "supcon"), **more: Any) -> Study:
        # The small data have few distinct texts, too few for a search that keeps them together.
        few = {"sizes": (0,), "folds": 2, "seeds": (2, 16), "equal_texts": "divided"}
        options = {**few, **more}
        return Study((Source(str(data)),), {name: config(name) for name in names}, **options)

    return make


def results_of(out: Path) -> list[str]:
    """The lines of the results without the seconds, sorted."""
    return _sorted_lines(out / "results.jsonl")


def trials_of(out: Path) -> list[str]:
    """The lines of the trials without the seconds, sorted."""
    return _sorted_lines(out / "trials.jsonl")


def _sorted_lines(path: Path) -> list[str]:
    return sorted(
        json.dumps(without_seconds(record), sort_keys=True) for record in read_json_lines(path)
    )


def without_seconds(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}
