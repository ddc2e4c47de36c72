"""Runs a study in a folder, which keeps what is done: a study that was interrupted resumes
there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data.examples import Examples
from closeknit.encoders.tokens import truncation_note
from closeknit.errors import ConfigError, TrainingError
from closeknit.models.saved_model import versions
from closeknit.storage import lock_folder, no_space_explained
from closeknit.studies.board import ProgressBoard
from closeknit.studies.designs import Fold, NearRows, StudyData, make_folds
from closeknit.studies.folder import StudyFolder, describe_study, run_fields
from closeknit.studies.identity import (
    Identities,
    identities,
    merged,
    refuse_other_identities,
)
from closeknit.studies.jobs import Job, Outcome, digest_of_test_rows
from closeknit.studies.plan import JobPlanner, Scheduler
from closeknit.studies.results import Result
from closeknit.studies.runners import (
    InProcessRunner,
    ProcessPoolRunner,
    RayRunner,
    Runner,
    threads_per_worker,
)
from closeknit.studies.statistics import Line
from closeknit.studies.study import Study
from closeknit.training.processes import World, this_world


@dataclass(frozen=True)
class Place:
    """Where runs are done: in this process, in `workers` processes, or on the Ray cluster at `ray`.

    `threads` are those of one run. 0 divides the cores among the workers, but not more than
    OMP_NUM_THREADS; without workers a run has all of them, and on a cluster one.
    """

    workers: int = 0
    ray: str | None = None
    threads: int = 0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.workers and self.ray:
            raise ConfigError(
                "--workers and --ray cannot be used together: one is this machine, the other a cluster"
            )
        if self.workers < 0 or self.threads < 0 or self.gpus < 0:
            raise ConfigError("workers, threads and gpus must not be negative")

    def make_runner(self, examples: Mapping[str, Examples]) -> Runner:
        """A runner at this place for jobs on these data sets."""
        if self.ray:
            return RayRunner(examples, self.ray, self.threads or 1, self.gpus)
        threads = self.threads or threads_per_worker(self.workers)
        if self.workers:
            return ProcessPoolRunner(examples, self.workers, threads)
        return InProcessRunner(examples, threads)


@dataclass(frozen=True)
class FinishedStudy:
    """The results of all runs of a study, and the statistics of all runs in its folder."""

    results: list[Result]
    lines: list[Line]


def run_study(
    study: Study,
    out: str | Path,
    *,
    place: Place | None = None,
    show: bool = True,
    command: str = "",
    overwrite: bool = False,
) -> list[Result]:
    """Do all runs of a study that its folder does not have yet, and write its tables there.

    Each finished run is one line of `results.jsonl`. A study that is killed at any moment resumes
    when it is started again. With `overwrite` the old runs are discarded as soon as the first
    training of the new ones has finished.
    """
    return finish_study(
        study, out, place=place, show=show, command=command, overwrite=overwrite
    ).results


def finish_study(
    study: Study,
    out: str | Path,
    *,
    place: Place | None = None,
    show: bool = True,
    command: str = "",
    overwrite: bool = False,
) -> FinishedStudy:
    """Do what `run_study` does, and return the statistics of the folder as well."""
    _refuse_several_processes(this_world())
    folder = StudyFolder(Path(out))
    folder.check()
    if not overwrite:
        study = folder.with_its_folds(study)
    data = StudyData.load(study)
    folds = make_folds(study, data)
    run = _StudyRun(study, data, folds, folder, show=show, command=command, overwrite=overwrite)
    with no_space_explained(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder.lock, folder.path)
        try:
            return run.finish(place or Place())
        finally:
            if lock is not None:
                lock.close()


def _refuse_several_processes(world: World) -> None:
    """Refuse a study that a launcher has started several times over: each would do all runs."""
    if world.size > 1:
        raise ConfigError(
            f"a launcher has started {world.size} processes of this study; start it without a "
            "launcher, and let --workers say how many processes do its runs"
        )


class _StudyRun:
    """Does the missing runs of a study, and records every outcome in its folder."""

    def __init__(
        self,
        study: Study,
        data: StudyData,
        folds: Sequence[Fold],
        folder: StudyFolder,
        *,
        show: bool,
        command: str,
        overwrite: bool,
    ) -> None:
        self.study = study
        self.data = data
        self.folds = folds
        self.folder = folder
        self.command = command
        self.overwrite = overwrite
        self.planner = JobPlanner(study, data)
        self.identities = identities(study, data)  # of this study, and of all runs in the folder
        self.versions = versions()
        self.near_rows = NearRows(data.examples)
        self.results: dict[str, Result] = {}  # key -> result; all that the folder has
        self.scores: dict[str, float] = {}  # key of a trial -> its score
        self.written_trials: set[tuple[str, str | None]] = set()  # keys of the trial and of its run
        self.started = False  # whether the folder is that of this study
        self.failures: list[str] = []
        self.shown_messages: set[str] = set()
        # (data set, max_length) of which was said how many texts were cut
        self.said_truncated: set[tuple[str, int]] = set()
        self.wanted = self._keys_of_wanted_runs()
        self.board = ProgressBoard(
            runs=len(self.wanted),
            max_jobs=self.planner.max_jobs(folds),
            baseline=study.reference,
            show=show,
        )

    def _keys_of_wanted_runs(self) -> list[str]:
        """The keys of the runs of this study, in the order of the tables."""
        return [
            self.planner.run_key(fold, objective)
            for fold in self.folds
            for objective in self.study.objectives
        ]

    def finish(self, place: Place) -> FinishedStudy:
        """Do the missing runs and write the tables; fails at the end if a run has failed."""
        if not self.overwrite:
            self._read_folder()
        if not self.overwrite or not self.folder.study.exists():
            self._start()
        self.board.resume(done=len(self._wanted_results()))
        lines: list[Line] = []
        try:
            if len(self._wanted_results()) < len(self.wanted):
                with (
                    contextlib.closing(place.make_runner(self.data.examples)) as runner,
                    self.board,
                ):
                    generators = self.planner.generators(self.folds, self.results)
                    Scheduler(runner, generators, self.record, self.reuse).finish()
        finally:
            if self.started:
                lines = self.folder.write_tables(self._all_results(), self.study.reference)
        if self.failures:
            raise TrainingError(
                f"{len(self.failures)} of {len(self.wanted)} runs failed, the first: {self.failures[0]}"
            )
        return FinishedStudy(self._wanted_results(), lines)

    def _wanted_results(self) -> list[Result]:
        return [self.results[key] for key in self.wanted if key in self.results]

    def _all_results(self) -> list[Result]:
        """The results of this study, then those of earlier ones in the same folder."""
        in_order = {result.key: result for result in self._wanted_results()} | self.results
        return list(in_order.values())

    def _read_folder(self) -> None:
        """Read what earlier starts have done; refuses runs with other settings."""
        recorded = self.folder.read_description().get("identities")
        for path in self.folder.remove_unfinished_lines():
            say(f"the last line of {path} was unfinished; that run is repeated")
        self.results = {result.key: result for result in self.folder.read_results()}
        self._refuse_other_settings(recorded if isinstance(recorded, dict) else {})
        for trial in self.folder.read_trials():
            self.scores[trial["key"]] = trial["score"]
            self.written_trials.add((trial["key"], trial.get("run")))

    def _refuse_other_settings(self, recorded: Identities) -> None:
        """Refuse runs with other settings or rows: they would be averaged with the new ones."""
        results = list(self.results.values())
        for result in results:
            other = _test_rows_in_words(result.test, result.shots > 0)
            asked = _test_rows_in_words(self.study.test, bool(self.study.shots))
            if other != asked:
                raise ConfigError(
                    f"{self.folder.path} holds runs that were {other}; this study would be {asked}. "
                    "Name another folder with --out, or discard the runs with --overwrite"
                )
        refuse_other_identities(self.folder.path, self.identities, recorded, results)
        folds = self._folds_of(results)
        self.planner.recognise(folds, self.results)
        self._refuse_other_keys(results, folds)
        self.wanted = self._keys_of_wanted_runs()
        self.identities = merged(self.identities, recorded, results)

    def _folds_of(self, results: Sequence[Result]) -> list[Fold]:
        """The folds of this study, and those that it would have with the seeds of these runs."""
        seeds = {result.seed for result in results if result.data in self.data.examples}
        others = tuple(sorted(seeds - set(self.study.seeds)))
        folds = list(self.folds)
        if others:
            with_other_seeds = dataclasses.replace(self.study, seeds=others)
            folds += make_folds(with_other_seeds, self.data, log=lambda _: None)
        return folds

    def _refuse_other_keys(self, results: Sequence[Result], folds: Sequence[Fold]) -> None:
        """Refuse runs of an objective on a data set that have other keys than this study would
        give them, whatever their seed.
        """
        at_place = {(fold.data, fold.size, fold.seed, fold.number): fold for fold in folds}
        for run in results:
            fold = at_place.get((run.data, run.size, run.seed, run.fold))
            if fold is None or run.objective not in self.study.objectives:
                continue
            if self.planner.run_key(fold, run.objective) != run.key:
                raise ConfigError(
                    f"{self.folder.path} holds runs of {run.objective} on {run.data} with other settings, folds, rows or "
                    "another encoder; name another folder with --out, or discard them with --overwrite"
                )

    def _start(self) -> None:
        description = describe_study(self.study, self.data, self.command)
        description["identities"] = self.identities
        self.folder.start(description, overwrite=self.overwrite)
        self.started = True

    # ---------------------------------------------------------------- outcomes

    def reuse(self, job: Job) -> Outcome | None:
        """The outcome of a trial that an earlier start or another search has done already."""
        if not job.trial or job.key not in self.scores:
            return None
        self._write_trial(job, seconds=0.0)
        self.board.skip()
        return Outcome(job.key, {"weighted_f1": self.scores[job.key]})

    def record(self, job: Job, outcome: Outcome) -> None:
        """Write an outcome to the folder and show the progress."""
        if not self.started:
            self._start()
        for message in outcome.messages:
            if message not in self.shown_messages:
                self.shown_messages.add(message)
                self.board.say(message)
        self._say_truncated(job, outcome.truncated)
        if job.trial:
            self.scores[job.key] = outcome.scores.get("weighted_f1", 0.0)
            self._write_trial(job, outcome.seconds)
        elif outcome.error is not None:
            self._record_failure(job, outcome.error)
        else:
            self._record_result(job, outcome)
        self.board.done(job, outcome, list(self.results.values()))

    def _say_truncated(self, job: Job, share: float) -> None:
        """Say once for each data set which share of its texts is longer than `max_length`."""
        max_length = job.config.encoder.max_length
        if share and (job.data, max_length) not in self.said_truncated:
            self.said_truncated.add((job.data, max_length))
            self.board.say(f"{job.data}: {truncation_note(share, max_length)}")

    def _write_trial(self, job: Job, seconds: float) -> None:
        """Write the line of a trial, once for each run whose search has asked for it."""
        written = (job.key, job.trial["run"])
        if written not in self.written_trials:
            self.written_trials.add(written)
            self.folder.append_trial(job, self.scores[job.key], seconds)

    def _record_failure(self, job: Job, error: str) -> None:
        failure = f"{job.objective} on {job.data}, seed {job.seed}, fold {job.fold + 1}: {error}"
        self.failures.append(failure)
        self.board.say(f"failed: {failure}")

    def _record_result(self, job: Job, outcome: Outcome) -> None:
        tables = job.config.to_dict()
        scores: dict[str, Any] = dict(outcome.scores)
        result = Result(
            **run_fields(job),
            **scores,
            options=tables["objective"],
            encoder=outcome.encoder,
            folds=self.study.splits_per_seed,
            selection=self.study.selection_of(job.objective),
            seconds=outcome.seconds,
            steps=outcome.steps,
            versions=self.versions,
            key=job.key,
            settings={
                "encoder": tables["encoder"],
                "train": {**tables["train"], **outcome.settled},
            },
            source=self.data.sources[job.data],
            catalogue=self.data.catalogue_names.get(job.data),
            test=self.study.test,
            shots=job.shots,
            truncated=outcome.truncated,
            tested=digest_of_test_rows(self.data.fingerprints[job.data], job.test),
            near_other_label=self.near_rows.scores(job.data, job.train, job.test, outcome.details),
        )
        self.folder.append_result(result, outcome)
        self.results[job.key] = result


def _test_rows_in_words(test: str, few_shot: bool) -> str:
    """The design of a study as a message names it."""
    places = {
        "folds": "tested on folds",
        "official": "tested on official test parts",
        "rest": "tested on the rows that were left over",
    }
    return places.get(test, test) + (", trained on some rows per class" if few_shot else "")
