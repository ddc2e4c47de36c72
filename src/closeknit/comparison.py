"""Running a study: in a folder that keeps what is done, and is gone on with whenever it is started again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from closeknit import report
from closeknit.board import Board
from closeknit.console import say
from closeknit.data import Examples
from closeknit.errors import ConfigError, TrainingError
from closeknit.models.folder import versions
from closeknit.plans import Cell, Loaded, Plan, Planner, cells_of
from closeknit.protocol import Job, Outcome, Result, append_line, mend, read_lines, read_results
from closeknit.runners import Cluster, Here, Runner, Workers, threads_each
from closeknit.storage import lock_folder, no_space_explained, write_json
from closeknit.study import Study

STUDY, RESULTS, TRIALS, DETAILS = "study.json", "results.jsonl", "trials.jsonl", "details"

# Predictions and vectors of a run, named by its key.
_DETAIL_FILE = re.compile(r"[A-Za-z0-9_-]+\.(json|npz)(\.part)?")
TABLE_CSV, TABLE_MD, REPORT = "table.csv", "table.md", "report.html"


@dataclass(frozen=True)
class Place:
    """Where runs are done: here, by `workers` processes, or on the Ray cluster at `ray`.

    `threads` a run; 0 shares the cores among the workers (one run at a time has them all, a run on a cluster one), and
    heeds OMP_NUM_THREADS.
    """

    workers: int = 0
    ray: str | None = None
    threads: int = 0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.workers and self.ray:
            raise ConfigError(
                "--workers and --ray cannot go together: one is this machine, the other a cluster"
            )
        if self.workers < 0 or self.threads < 0 or self.gpus < 0:
            raise ConfigError("workers, threads and gpus must not be negative")

    def runner(self, texts: Mapping[str, Examples]) -> Runner:
        if self.ray:
            return Cluster(texts, self.ray, self.threads or 1, self.gpus)
        threads = self.threads or threads_each(self.workers)
        if self.workers:
            return Workers(texts, self.workers, threads)
        return Here(texts, threads)


def run_study(
    study: Study,
    out: str | Path,
    *,
    place: Place | None = None,
    show: bool = True,
    command: str = "",
    overwrite: bool = False,
) -> list[Result]:
    """Do all runs of a study that are not in its folder yet, and write its tables there.

    `results.jsonl` gets a line for each finished run. Killed at any moment and started again, the study goes on. With
    `overwrite` the runs that are there are discarded, once the first training of the new ones has come to its end.
    """
    out, place = Path(out), place or Place()
    check_study_folder(out)
    loaded = Loaded.of(study)
    cells = cells_of(study, loaded)
    planner = Planner(study, loaded)
    with no_space_explained(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(out / "lock", out)
        try:
            return _run(study, planner, loaded, cells, out, place, show, command, overwrite)
        finally:
            if lock is not None:
                lock.close()


def _run(
    study: Study,
    planner: Planner,
    loaded: Loaded,
    cells: Sequence[Cell],
    out: Path,
    place: Place,
    show: bool,
    command: str,
    overwrite: bool,
) -> list[Result]:
    results: dict[str, Result] = {}
    scores: dict[str, float] = {}
    written: set[tuple[str, str | None]] = set()  # trials by their key and that of the run they are for
    begun = False  # whether the folder is this study's

    def begin() -> None:
        nonlocal begun
        if overwrite:
            _clear(out)
        write_json(out / STUDY, _facts(study, loaded, command))
        (out / DETAILS).mkdir(exist_ok=True)
        begun = True

    if not overwrite:
        for name in (RESULTS, TRIALS):
            if mend(out / name):
                say(f"the last line of {out / name} was left half-written; that run is done again")
        results |= {result.key: result for result in read_results(out / RESULTS)}
        _refuse_other_settings(study, planner, cells, results, out)
        trials = [trial for trial in read_lines(out / TRIALS) if {"key", "score"} <= trial.keys()]
        scores |= {trial["key"]: trial["score"] for trial in trials}
        written |= {(trial["key"], trial.get("run")) for trial in trials}
    if not overwrite or not (out / STUDY).exists():
        begin()
    wanted = {planner.key(cell, name): (cell, name) for cell in cells for name in study.objectives}
    board = Board(len(wanted), sum(key in results for key in wanted), planner.most_jobs(cells), show=show)
    failures: list[str] = []
    told: set[str] = set()
    now = versions()

    def write_trial(job: Job, seconds: float = 0.0) -> None:
        """A line for a trial; one more where it was made for another search, with the score that it had."""
        if (job.key, job.facts["run"]) not in written:
            written.add((job.key, job.facts["run"]))
            told_of = {"score": scores[job.key], "seconds": seconds, "key": job.key}
            append_line(out / TRIALS, {**_place_of(job), **job.facts, **told_of})

    def record(job: Job, outcome: Outcome) -> None:
        if not begun:
            begin()
        for note in outcome.notes:
            if note not in told:
                told.add(note)
                board.say(note)
        final = job.key in wanted
        if not final:
            scores[job.key] = outcome.scores.get("weighted_f1", 0.0)
            write_trial(job, outcome.seconds)
        elif outcome.error is not None:
            failures.append(
                f"{job.objective} on {job.data}, seed {job.seed}, fold {job.fold + 1}: {outcome.error}"
            )
            board.say(f"failed: {failures[-1]}")
        else:
            _write_details(out / DETAILS, outcome)
            measured: dict[str, Any] = dict(outcome.scores)
            tables = job.config.to_dict()
            result = Result(
                **_place_of(job),
                options=tables["objective"],
                encoder=outcome.encoder,
                folds=study.folds,
                selection=planner.mode,
                **measured,
                seconds=outcome.seconds,
                steps=outcome.steps,
                versions=now,
                key=job.key,
                settings={table: tables[table] for table in ("encoder", "train")},
                source=loaded.sources[job.data],
            )
            append_line(out / RESULTS, dataclasses.asdict(result))
            results[job.key] = result
        board.done(job, outcome, final, list(results.values()), study.reference)

    try:
        if any(key not in results for key in wanted):
            with contextlib.closing(place.runner(loaded.texts)) as runner, board:
                _drive(planner.plans(cells, results), runner, scores, record, write_trial, board)
    finally:
        if begun:
            write_tables(out, study.reference, [results[key] for key in wanted if key in results])
    if failures:
        raise TrainingError(f"{len(failures)} of {len(wanted)} runs failed, the first: {failures[0]}")
    return [results[key] for key in wanted]


def _place_of(job: Job) -> dict[str, Any]:
    """Where a run stands in a study, as its lines tell it."""
    return {name: getattr(job, name) for name in ("data", "size", "objective", "seed", "fold")}


@dataclass
class _Open:
    """A plan that waits for the outcomes of its jobs."""

    plan: Plan
    jobs: list[Job] | None = None  # before it has begun
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


def _drive(
    plans: Iterator[Plan],
    runner: Runner,
    scores: Mapping[str, float],
    record: Callable[[Job, Outcome], None],
    reuse: Callable[[Job], None],
    board: Board,
) -> None:
    """Keep the runner in work: begin plans as it has room, and give each plan its outcomes when all are there."""
    waiting: deque[Job] = deque()
    running: dict[str, Job] = {}
    asking: dict[str, list[_Open]] = {}  # key of a job that is waiting or running -> who wants its outcome

    def advance(one: _Open) -> None:
        """Take a plan as far as the outcomes that are there allow."""
        while not one.missing:
            try:
                told = [one.outcomes[job.key] for job in one.jobs or []]
                jobs = next(one.plan) if one.jobs is None else one.plan.send(told)
            except StopIteration:
                return
            one.jobs, one.outcomes = jobs, {}
            for job in jobs:
                if job.facts and job.key in scores:  # a trial of an earlier start
                    reuse(job)
                    one.outcomes[job.key] = Outcome(job.key, {"weighted_f1": scores[job.key]})
                    board.skip()
                elif job.key not in one.missing:
                    one.missing.add(job.key)
                    if job.key not in asking:
                        waiting.append(job)
                    asking.setdefault(job.key, []).append(one)

    more = True
    while more or asking:
        while more and len(waiting) < max(1, runner.room):
            plan = next(plans, None)
            more = plan is not None
            if plan is not None:
                advance(_Open(plan))
        while waiting and runner.room > 0:
            job = waiting.popleft()
            running[job.key] = job
            runner.submit(job)
        if running:
            outcome = runner.next()
            record(running.pop(outcome.key), outcome)
            for one in asking.pop(outcome.key):
                one.outcomes[outcome.key] = outcome
                one.missing.discard(outcome.key)
                advance(one)


# ---------------------------------------------------------------- the folder


def check_study_folder(out: Path) -> None:
    """Refuse a folder that holds something else."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    held = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if held - {"lock", f"{STUDY}.unfinished"} and STUDY not in held:
        raise ConfigError(
            f"{out} holds {min(held)} and is no study; it is left alone. Name another folder with --out"
        )


def _clear(out: Path) -> None:
    """Discard the runs of a study, which stays one: killed in between, it goes on."""
    for name in (RESULTS, TRIALS, TABLE_CSV, TABLE_MD, REPORT):
        (out / name).unlink(missing_ok=True)
    if (out / DETAILS).is_symlink() or not (out / DETAILS).is_dir():
        return
    for path in list((out / DETAILS).iterdir()):
        if _DETAIL_FILE.fullmatch(path.name) and path.is_file():
            path.unlink()
    with contextlib.suppress(OSError):  # somebody's own files stay, and so does their folder
        (out / DETAILS).rmdir()


def _refuse_other_settings(
    study: Study, planner: Planner, cells: Sequence[Cell], results: Mapping[str, Result], out: Path
) -> None:
    """One folder holds one setting of a run: others would be averaged with it."""
    there = {(r.data, r.size, r.objective, r.seed, r.fold): r for r in results.values()}
    for cell in cells:
        for name in study.objectives:
            before = there.get((cell.data, cell.size, name, cell.seed, cell.fold))
            if before is not None and before.key != planner.key(cell, name):
                raise ConfigError(
                    f"{out} holds runs of {name} on {cell.data} with other settings, folds, rows or another encoder; name "
                    "another folder with --out, or discard them with --overwrite"
                )


def _facts(study: Study, loaded: Loaded, command: str) -> dict[str, Any]:
    configs = {name: config.to_dict() for name, config in study.objectives.items()}
    encoders = [config.encoder.name or "all-MiniLM-L6-v2 (bundled)" for config in study.objectives.values()]
    tables = next(iter(configs.values()))
    shared = {table: dict(tables[table]) for table in ("encoder", "train", "data")}
    del shared["train"]["seed"], shared["data"]["test"]  # a study has seeds and folds instead
    return {
        "data": [
            {"name": name, "rows": len(own), "classes": own.classes, "pairs": own.pairs is not None}
            for name, own in loaded.texts.items()
        ],
        "sizes": list(study.sizes),
        "objectives": {
            name: {
                **own["objective"],
                **{
                    f"{table}.{key}": own[table][key]
                    for table in ("encoder", "train")
                    for key, value in shared[table].items()
                    if own[table][key] != value
                },
            }
            for name, own in configs.items()
        },
        "baseline": study.reference,
        "folds": study.folds,
        "seeds": list(study.seeds),
        "encoder": ", ".join(dict.fromkeys(encoders)),
        "selection": study.selection if study.search else "fixed",
        "search": None
        if study.search is None
        else {
            **dataclasses.asdict(study.search),
            "spaces": {name: dict(study.space(name)) for name in study.objectives},
        },
        "hard_sets": study.hard_sets or None,
        "config": shared,
        "command": command,
    }


def _write_details(folder: Path, outcome: Outcome) -> None:
    """Before the line in the results, so that a run that is counted has them."""
    if outcome.vectors:
        with (folder / f"{outcome.key}.npz.part").open("wb") as file:
            arrays: dict[str, Any] = outcome.vectors
            np.savez_compressed(file, **arrays)
        os.replace(folder / f"{outcome.key}.npz.part", folder / f"{outcome.key}.npz")
    part = folder / f"{outcome.key}.json.part"
    part.write_text(json.dumps(outcome.details, ensure_ascii=False), encoding="utf-8")
    os.replace(part, folder / f"{outcome.key}.json")


def write_tables(out: Path, baseline: str, results: Sequence[Result]) -> list[report.Line]:
    """table.csv and table.md of all runs in the folder, these first."""
    results = list({row.key: row for row in [*results, *read_results(out / RESULTS)]}.values())
    if not results:
        return []
    lines = report.summarise(results, baseline)
    optimistic = None
    if any(result.selection == "paper" for result in results):
        optimistic = report.optimism(results, report.of_last_search(read_lines(out / TRIALS)))
    for name, text in (
        (TABLE_CSV, report.csv_table(lines)),
        (TABLE_MD, report.markdown_report(lines, baseline, optimistic)),
    ):
        part = out / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, out / name)
    return lines
