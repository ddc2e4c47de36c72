"""The jobs of a study: a generator of jobs for each of its runs, and the order of the jobs.

Every objective gets the same rows, initial weights and order of batches. Where settings are
searched for, the search precedes the run: by default it uses validation parts inside the run's
training fold, so that the test fold stays unseen.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from closeknit.classification.config import RunConfig
from closeknit.data.distinct_texts import split_for_run
from closeknit.encoders.loading import identity
from closeknit.studies.designs import INNER_FOLDS, Fold, StudyData
from closeknit.studies.jobs import Job, Outcome
from closeknit.studies.results import Result
from closeknit.studies.search import Candidate, max_candidates, search
from closeknit.studies.study import Study, with_options

if TYPE_CHECKING:
    from closeknit.studies.runners import Runner

# Yields lists of jobs and receives their outcomes, until its runs are done.
JobGenerator = Generator[list[Job], list[Outcome], None]


# ---------------------------------------------------------------- jobs


class JobPlanner:
    """Makes a generator of jobs for each run of a study.

    Where settings are chosen on the reported folds, there is one generator for all runs of an
    objective on a data set.
    """

    def __init__(self, study: Study, data: StudyData) -> None:
        self.study = study
        self.data = data
        self.labels = {name: tuple(examples.classes) for name, examples in data.examples.items()}
        self.selection = study.selection if study.search else "fixed"
        chosen = study.search.key_content() if study.search else None
        self._search_in_key: dict[str, list[Any]] = {
            name: [self.selection, chosen, dict(study.space(name)) if chosen else None]
            for name in study.objectives
        }
        self._encoder_identities: dict[str | None, str | None] = {}
        self._learnt_rows: dict[tuple[str, bytes, float, int], int] = {}
        # Runs that earlier versions stored under another key, by fold and objective.
        self._stored_keys: dict[tuple[str, str], str] = {}

    def run_key(self, fold: Fold, objective: str) -> str:
        """The key of a run of the study, which is known before its settings are chosen."""
        key = self._run_key(fold, objective)
        return self._stored_keys.get((key, objective), key)

    def recognise(self, folds: Sequence[Fold], results: Mapping[str, Result]) -> None:
        """Recognise runs with open settings and a validation part that earlier versions stored.

        The keys of these runs took the open settings as if no row had been held out. Their results
        say so by having them open.
        """
        for fold in folds:
            for objective, config in self.study.objectives.items():
                opened = config.train.open_settings
                if not opened or not config.train.validation:
                    continue
                stored = results.get(self._run_key(fold, objective, learnt=len(fold.train)))
                if stored is None:
                    continue
                train = stored.settings.get("train", {})
                if not any(train.get(name) for name in opened):
                    key = self._run_key(fold, objective)
                    self._stored_keys[key, objective] = stored.key

    def _run_key(self, fold: Fold, objective: str, learnt: int | None = None) -> str:
        config = self._with_seed(self.study.objectives[objective], fold)
        more = self._search_in_key[objective] if self.study.search else []
        if self.selection == "paper":  # the choice depends on all folds
            more = [*more, self.study.splits_per_seed, list(self.study.seeds)]
        return self._key(config, fold, objective, *more, learnt=learnt)

    def generators(
        self, folds: Sequence[Fold], results: Mapping[str, Result]
    ) -> Iterator[JobGenerator]:
        """The generators for all runs that have no result yet."""
        groups = dict.fromkeys((fold.data, fold.size) for fold in folds)
        for group in groups:
            of_group = [fold for fold in folds if (fold.data, fold.size) == group]
            if self.selection == "paper":
                for objective in self.study.objectives:
                    if any(self.run_key(fold, objective) not in results for fold in of_group):
                        yield self._runs_with_shared_settings(of_group, objective, results)
                continue
            for fold in of_group:
                for objective in self.study.objectives:
                    if self.run_key(fold, objective) not in results:
                        yield self._single_run(fold, objective)

    def max_jobs(self, folds: Sequence[Fold]) -> int:
        """The largest number of jobs for these folds; used to estimate the time left."""
        groups = len({(fold.data, fold.size) for fold in folds})
        nested = self.selection == "nested"
        jobs = 0
        for objective in self.study.objectives:
            trials = 0
            space = self.study.space(objective)
            if self.study.search is not None and space:
                all_folds = self.study.splits_per_seed * len(self.study.seeds)
                splits = self.study.search.parts if nested else all_folds
                trials = max_candidates(self.study.search, space, splits)
            jobs += len(folds) + trials * (len(folds) if nested else groups)
        return jobs

    def _single_run(self, fold: Fold, objective: str) -> JobGenerator:
        """One run, after the search for its settings on parts of the training fold alone."""
        config = self.study.objectives[objective]
        if self.study.search is not None and self.study.space(objective):
            parts = self.study.search.parts
            pairs = self.data.cut(
                self.study, fold.data, fold.train, max(INNER_FOLDS, parts), fold.seed
            )
            splits = [
                dataclasses.replace(fold, train=train, test=validation)
                for train, validation in pairs[:parts]
            ]
            run_keys = [self.run_key(fold, objective)] * parts
            seed = fold.seed * 1000 + fold.number
            config = yield from self._search(objective, splits, run_keys, seed)
        yield [self._final_job(fold, objective, config)]

    def _runs_with_shared_settings(
        self, folds: Sequence[Fold], objective: str, results: Mapping[str, Result]
    ) -> JobGenerator:
        """All runs of an objective on a data set, with the settings that are best on these very
        folds.
        """
        config = self.study.objectives[objective]
        run_keys = [self.run_key(fold, objective) for fold in folds]
        if self.study.space(objective):
            config = yield from self._search(objective, folds, run_keys, seed=0)
        yield [
            self._final_job(fold, objective, config)
            for fold, key in zip(folds, run_keys, strict=True)
            if key not in results
        ]

    def _search(
        self, objective: str, splits: Sequence[Fold], run_keys: Sequence[str], seed: int
    ) -> Generator[list[Job], list[Outcome], RunConfig]:
        """Search for settings; `run_keys` are those of the runs that the splits belong to."""
        assert self.study.search is not None
        config = self.study.objectives[objective]
        steps = search(self.study.space(objective), self.study.search, len(splits), seed)
        candidates = next(steps)
        while True:
            outcomes = yield [
                self._trial_job(
                    splits[candidate.split],
                    objective,
                    config,
                    candidate,
                    run_keys[candidate.split],
                )
                for candidate in candidates
            ]
            # Settings with which the training fails get the score 0.
            scores = [outcome.scores.get("weighted_f1", 0.0) for outcome in outcomes]
            try:
                candidates = steps.send(scores)
            except StopIteration as stop:
                return with_options(config, stop.value)

    def _trial_job(
        self, split: Fold, objective: str, config: RunConfig, candidate: Candidate, run_key: str
    ) -> Job:
        trial = {
            "options": candidate.options,
            "split": candidate.split,
            "trial": candidate.number,
            "stage": candidate.stage,
            "run": run_key,  # of the run that the search is for
        }
        return self._job(split, objective, with_options(config, candidate.options), trial=trial)

    def _final_job(self, fold: Fold, objective: str, config: RunConfig) -> Job:
        job = self._job(fold, objective, config, keep_details=True, keep_vectors=fold.is_first)
        return dataclasses.replace(job, key=self.run_key(fold, objective))

    def _job(self, fold: Fold, objective: str, config: RunConfig, **more: Any) -> Job:
        config = self._with_seed(config, fold)
        return Job(
            data=fold.data,
            size=fold.size,
            objective=objective,
            seed=fold.seed,
            fold=fold.number,
            train=fold.train,
            test=fold.test,
            labels=self.labels[fold.data],
            config=config,
            shots=fold.shots,
            key=self._key(config, fold, objective, "trial"),
            **more,
        )

    def _with_seed(self, config: RunConfig, fold: Fold) -> RunConfig:
        return dataclasses.replace(config, train=dataclasses.replace(config.train, seed=fold.seed))

    def _key(self, config: RunConfig, fold: Fold, *more: object, learnt: int | None = None) -> str:
        """A key in which an encoder in a folder counts by what its files hold, not by its path."""
        name = config.encoder.name
        if name not in self._encoder_identities:
            self._encoder_identities[name] = identity(name)
        encoder = dataclasses.replace(config.encoder, name=self._encoder_identities[name])
        config = dataclasses.replace(config, encoder=encoder)
        classes = len(self.labels[fold.data])
        fingerprint = self.data.fingerprints[fold.data]
        rows = self._rows_learnt_from(config, fold) if learnt is None else learnt
        return Job.key_of(config, classes, fingerprint, fold.train, fold.test, *more, learnt=rows)

    def _rows_learnt_from(self, config: RunConfig, fold: Fold) -> int:
        """How many training rows of a fold remain where a validation part is held out.

        They are counted only where open settings depend on their number.
        """
        share, seed = config.train.validation, config.train.seed
        if not share or not config.train.open_settings:
            return len(fold.train)
        split = (fold.data, fold.train.tobytes(), share, seed)
        if split not in self._learnt_rows:
            examples = self.data.examples[fold.data].select(fold.train)
            self._learnt_rows[split] = len(split_for_run(examples, share, seed)[0])
        return self._learnt_rows[split]


# ---------------------------------------------------------------- order of the jobs


@dataclass(eq=False)
class _Waiting:
    """A generator of jobs that waits for the outcomes of the jobs it has yielded."""

    generator: JobGenerator
    jobs: list[Job] | None = None  # None: it has not been started
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # keys of the jobs without an outcome

    def next_jobs(self) -> list[Job]:
        """Send the outcomes; the next jobs. Raises StopIteration where there are none."""
        if self.jobs is None:
            self.jobs = next(self.generator)
        else:
            self.jobs = self.generator.send([self.outcomes[job.key] for job in self.jobs])
        self.outcomes = {}
        return self.jobs


class Scheduler:
    """Keeps a runner busy: starts generators while it has capacity, and sends them their
    outcomes.
    """

    def __init__(
        self,
        runner: Runner,
        generators: Iterator[JobGenerator],
        record: Callable[[Job, Outcome], None],
        reuse: Callable[[Job], Outcome | None],
    ) -> None:
        self.runner = runner
        self.generators = generators
        self.record = record
        self.reuse = reuse
        self.queued: deque[Job] = deque()
        self.running: dict[str, Job] = {}
        # key of a job that is queued or running -> the generators that wait for its outcome
        self.waiting: dict[str, list[_Waiting]] = {}

    def finish(self) -> None:
        """Do all jobs of all generators."""
        more = True
        while more or self.waiting:
            while more and len(self.queued) < max(1, self.runner.capacity):
                generator = next(self.generators, None)
                more = generator is not None
                if generator is not None:
                    self._advance(_Waiting(generator))
            while self.queued and self.runner.capacity > 0:
                job = self.queued.popleft()
                self.running[job.key] = job
                self.runner.submit(job)
            if self.running:
                self._receive(self.runner.next_outcome())

    def _receive(self, outcome: Outcome) -> None:
        self.record(self.running.pop(outcome.key), outcome)
        for one in self.waiting.pop(outcome.key):
            one.outcomes[outcome.key] = outcome
            one.missing.discard(outcome.key)
            self._advance(one)

    def _advance(self, one: _Waiting) -> None:
        """Take a generator as far as the known outcomes allow, and queue the jobs it waits for."""
        while not one.missing:
            try:
                jobs = one.next_jobs()
            except StopIteration:
                return
            for job in jobs:
                outcome = self.reuse(job)
                if outcome is not None:
                    one.outcomes[job.key] = outcome
                elif job.key not in one.missing:
                    one.missing.add(job.key)
                    if job.key not in self.waiting:
                        self.queued.append(job)
                    self.waiting.setdefault(job.key, []).append(one)
