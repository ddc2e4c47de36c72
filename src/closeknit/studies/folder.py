"""The folder of a study: what is done, and what is known of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closeknit.errors import ConfigError
from closeknit.json_lines import append_json_line, remove_unfinished_line
from closeknit.storage import write_json
from closeknit.studies.designs import StudyData
from closeknit.studies.jobs import Job, Outcome
from closeknit.studies.predictions import DETAILS, predictions_in
from closeknit.studies.results import (
    Result,
    check_format,
    format_record,
    read_results,
    read_trials,
    result_record,
)
from closeknit.studies.statistics import Line, optimism, summarise, trials_of_last_search
from closeknit.studies.study import Study
from closeknit.studies.tables import csv_table, markdown_report

STUDY = "study.json"
RESULTS = "results.jsonl"
TRIALS = "trials.jsonl"
TABLE_CSV = "table.csv"
TABLE_MD = "table.md"
REPORT = "report.html"
LOCK = "lock"

# The predictions and vectors of a run, in files that are named by its key.
_DETAIL_FILE = re.compile(r"[A-Za-z0-9_-]+\.(json|npz)(\.part)?")


class StudyFolder:
    """Reads and writes the files of a study in its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.study = path / STUDY
        self.results = path / RESULTS
        self.trials = path / TRIALS
        self.details = path / DETAILS
        self.lock = path / LOCK

    def check(self) -> None:
        """Refuse a folder with something else in it."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; name a folder with --out")
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else set()
        if names - {LOCK, f"{STUDY}.unfinished"} and STUDY not in names:
            raise ConfigError(
                f"{self.path} holds {min(names)} but no study; it is left unchanged. Name another folder with --out"
            )

    def read_description(self) -> dict[str, Any]:
        """The content of study.json; empty if it is missing, or damaged and to be written again.

        A study that a later version of Closeknit wrote in a later format is refused.
        """
        if not self.study.exists():
            return {}
        try:
            description = json.loads(self.study.read_text(encoding="utf-8"))
        except ValueError:
            return {}
        if not isinstance(description, dict):
            return {}
        check_format(description, self.study)
        return description

    def with_its_folds(self, study: Study) -> Study:
        """The study with the choice on equal texts of the folder, where it makes none.

        Earlier versions, which recorded neither a choice nor the test rows of a run, divided equal
        texts.
        """
        results = [] if study.equal_texts else self.read_results()
        if not results:
            return study
        before = "together" if all(result.tested for result in results) else "divided"
        choice = self.read_description().get("equal_texts", before)
        return dataclasses.replace(study, equal_texts=str(choice))

    def start(self, description: Mapping[str, Any], *, overwrite: bool) -> None:
        """Make it the folder of this study; with `overwrite`, discard the runs in it."""
        if overwrite:
            self.clear()
        write_json(self.study, {**format_record(), **description})
        self.details.mkdir(exist_ok=True)

    def clear(self) -> None:
        """Discard the runs; the folder stays that of a study, so that a killed study resumes."""
        for name in (RESULTS, TRIALS, TABLE_CSV, TABLE_MD, REPORT):
            (self.path / name).unlink(missing_ok=True)
        if self.details.is_symlink() or not self.details.is_dir():
            return
        for path in list(self.details.iterdir()):
            if _DETAIL_FILE.fullmatch(path.name) and path.is_file():
                path.unlink()
        with contextlib.suppress(OSError):  # files of the user stay, and so does their folder
            self.details.rmdir()

    def remove_unfinished_lines(self) -> list[Path]:
        """Remove the lines that a killed process left unfinished; the files that had one."""
        return [path for path in (self.results, self.trials) if remove_unfinished_line(path)]

    def read_results(self) -> list[Result]:
        """The results that are there, each run once."""
        return read_results(self.results)

    def read_trials(self) -> list[dict[str, Any]]:
        """The trials that are there, in the order in which they were made."""
        return read_trials(self.trials)

    def append_result(self, result: Result, outcome: Outcome) -> None:
        """Add a result and its details.

        The details are written first, so that a run with a result always has them.
        """
        self._write_details(outcome)
        append_json_line(self.results, result_record(result))

    def append_trial(self, job: Job, score: float, seconds: float) -> None:
        """Add the score of a trial."""
        record = {
            **run_fields(job),
            **job.trial,
            "score": score,
            "seconds": seconds,
            "key": job.key,
        }
        append_json_line(self.trials, {**format_record(), **record})

    def write_tables(self, results: Sequence[Result], baseline: str) -> list[Line]:
        """Write table.csv and table.md of these results, and return the lines of the tables."""
        if not results:
            return []
        lines = summarise(results, baseline, predictions_in(self.path))
        estimates = optimism(results, trials_of_last_search(self.read_trials()))
        _write_text(self.path / TABLE_CSV, csv_table(lines))
        _write_text(self.path / TABLE_MD, markdown_report(lines, baseline, estimates))
        return lines

    def _write_details(self, outcome: Outcome) -> None:
        if outcome.vectors:
            path = self.details / f"{outcome.key}.npz"
            part = self.details / f"{outcome.key}.npz.part"
            with part.open("wb") as file:
                arrays: dict[str, Any] = outcome.vectors
                np.savez_compressed(file, **arrays)
            os.replace(part, path)
        text = json.dumps(outcome.details, ensure_ascii=False)
        _write_text(self.details / f"{outcome.key}.json", text)


def _write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def run_fields(job: Job) -> dict[str, Any]:
    """The fields that results and trials share: where a run stands in its study."""
    return {name: getattr(job, name) for name in ("data", "size", "objective", "seed", "fold")}


def _described(name: str, data: StudyData) -> dict[str, Any]:
    """What study.json says about a data set; `rows` are those that may be trained on."""
    examples = data.examples[name]
    official: dict[str, int] = {}
    if name in data.official:
        trained = {examples.required_labels[row] for row in data.training_rows(name)}
        official = {"test_rows": len(data.official[name]), "training_classes": len(trained)}
    return {
        "name": name,
        "rows": len(data.training_rows(name)),
        "classes": examples.classes,
        "pairs": examples.pairs is not None,
        **official,
    }


def describe_study(study: Study, data: StudyData, command: str) -> dict[str, Any]:
    """The content of study.json: the data, objectives and settings that were asked for."""
    tables = {name: config.to_dict() for name, config in study.objectives.items()}
    shared = _shared_settings(next(iter(tables.values())))
    encoders = [
        config.encoder.name or "all-MiniLM-L6-v2 (bundled)" for config in study.objectives.values()
    ]
    search: dict[str, Any] | None = None
    if study.search is not None:
        spaces = {name: dict(study.space(name)) for name in study.objectives}
        search = {**dataclasses.asdict(study.search), "spaces": spaces}
    return {
        "data": [_described(name, data) for name in data.examples],
        "sizes": list(study.sizes),
        "test": study.test,
        "shots": list(study.shots),
        "equal_texts": study.equal_texts or "together",
        "objectives": {
            name: {**table["objective"], **_different_settings(table, shared)}
            for name, table in tables.items()
        },
        "baseline": study.reference,
        "folds": study.splits_per_seed,
        "seeds": list(study.seeds),
        "encoder": ", ".join(dict.fromkeys(encoders)),
        "selection": study.selection if study.search else "fixed",
        "search": search,
        "hard_sets": study.hard_sets or None,
        "config": shared,
        "command": command,
    }


def _shared_settings(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of the first objective, without those that a study replaces by seeds and
    folds.
    """
    shared = {table: dict(tables[table]) for table in ("encoder", "train", "data")}
    del shared["train"]["seed"]
    del shared["data"]["test"]
    return shared


def _different_settings(
    tables: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The settings of an objective that differ from the shared ones, under names like
    `train.lr`.
    """
    return {
        f"{table}.{key}": tables[table][key]
        for table in ("encoder", "train")
        for key, value in shared[table].items()
        if tables[table][key] != value
    }
