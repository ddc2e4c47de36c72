"""The folds of a study, and a generator of jobs for each of its runs.

Every objective gets the same rows, folds, initial weights and order of batches. Where settings are
searched for, the search precedes the run: by default it uses validation parts inside the run's
training fold, so that the test fold stays unseen.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from closeknit.classification.config import RunConfig
from closeknit.console import say
from closeknit.data.examples import Examples, Fingerprint, Rows
from closeknit.data.splits import folds, subset
from closeknit.encoders.loading import identity
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.studies.jobs import Job, Outcome
from closeknit.studies.results import Result
from closeknit.studies.search import Candidate, max_candidates, search
from closeknit.studies.study import Study, with_options

# A search cuts a training fold into this many parts; the first ones are its validation parts.
INNER_FOLDS = 5

# Yields lists of jobs and receives their outcomes, until its runs are done.
JobGenerator = Generator[list[Job], list[Outcome], None]


@dataclass(frozen=True)
class Fold:
    """One fold of a data set: rows to train on, and rows to test on."""

    data: str
    size: int
    seed: int
    number: int
    train: Rows
    test: Rows
    is_first: bool  # of its data set and size


# ---------------------------------------------------------------- data sets


@dataclass(frozen=True)
class StudyData:
    """The rows of the data sets of a study; each attribute maps a data set's name to something."""

    examples: dict[str, Examples]
    fingerprints: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)  # what the data set was taken from

    @staticmethod
    def load(study: Study) -> StudyData:
        """Read all data sets; refuses two of one name, two with the same rows, and unknown hard
        sets.
        """
        examples: dict[str, Examples] = {}
        sources: dict[str, str] = {}
        config = next(iter(study.objectives.values()))
        for source in study.data:
            name, rows = source.load(config)
            if name in examples:
                raise ConfigError(
                    f'two data sets are called {name}; give them names: {{source = "…", name = "…"}}'
                )
            examples[name] = rows
            sources[name] = source.source
        fingerprints = _fingerprints(examples)
        _check_hard_sets(study, examples)
        return StudyData(examples, fingerprints, sources)


def _fingerprints(examples: Mapping[str, Examples]) -> dict[str, str]:
    """The fingerprint of each data set; data sets with the same rows are refused."""
    fingerprints: dict[str, str] = {}
    for name, rows in examples.items():
        digest = Fingerprint.of(rows).digest
        for other, known in fingerprints.items():
            if known == digest:
                raise ConfigError(
                    f"the data sets {other} and {name} hold the same rows; leave one of them out"
                )
        fingerprints[name] = digest
    return fingerprints


def _check_hard_sets(study: Study, examples: Mapping[str, Examples]) -> None:
    """Refuse hard sets of unknown data sets or classes."""
    for data, sets in study.hard_sets.items():
        if data not in examples:
            raise ConfigError(f"hard_sets names the data set {data}{did_you_mean(data, examples)}")
        classes = examples[data].classes
        for label in (label for hard_set in sets for label in hard_set):
            if label not in classes:
                raise ConfigError(
                    f"hard_sets: {data} has no class {label}{did_you_mean(label, classes)}"
                )


# ---------------------------------------------------------------- folds


def make_folds(study: Study, data: StudyData, log: Callable[[str], None] = say) -> list[Fold]:
    """The folds of every seed of every size of every data set."""
    all_folds: list[Fold] = []
    for name, examples in data.examples.items():
        labels = examples.required_labels
        for size in sorted({min(size or len(labels), len(labels)) for size in study.sizes}):
            if size < max(study.sizes) and size == len(labels):
                log(f"{name} has {size:,} rows; all of them are used")
            for seed in study.seeds:
                all_folds += _folds_of_seed(study, name, labels, size, seed, log)
    return all_folds


def _folds_of_seed(
    study: Study,
    name: str,
    labels: Sequence[str],
    size: int,
    seed: int,
    log: Callable[[str], None],
) -> Iterator[Fold]:
    where = f"{name}, {size:,} rows"
    is_first_seed = seed == study.seeds[0]
    rows = subset(labels, size, seed)
    labels_of_rows = [labels[row] for row in rows]
    if is_first_seed:
        _warn_of_rare_classes(study, where, labels_of_rows, log)
    for number, (train, test) in enumerate(folds(labels_of_rows, study.folds, seed, rare="keep")):
        _check_training_fold(study, where, Counter(labels_of_rows[row] for row in train))
        is_first = is_first_seed and number == 0
        yield Fold(name, size, seed, number, rows[train], rows[test], is_first)


def _warn_of_rare_classes(
    study: Study, where: str, labels: Sequence[str], log: Callable[[str], None]
) -> None:
    rare = [label for label, rows in Counter(labels).items() if rows < study.folds]
    if rare:
        named = ", ".join(sorted(rare)[:5]) + (" …" if len(rare) > 5 else "")
        log(
            f"{where}: {len(rare)} classes have fewer than {study.folds} rows; in some folds they are tested "
            f"but not trained on ({named})"
        )


def _check_training_fold(study: Study, where: str, rows_of_class: Mapping[str, int]) -> None:
    """Refuse a training fold that nothing can be learnt from or searched in, before the first
    run.
    """
    if len(rows_of_class) < 2:
        raise DataError(
            f'{where}: the training rows of a fold are all of the class "{next(iter(rows_of_class))}", '
            "because the other classes are too rare; use more rows"
        )
    searched = study.search is not None and any(map(study.space, study.objectives))
    if study.search is None or not searched or study.selection != "nested":
        return
    parts = max(INNER_FOLDS, study.search.parts)
    if max(rows_of_class.values()) < parts:
        raise DataError(
            f"{where}: a search cuts each training fold into {parts} parts, and no class has {parts} rows there; "
            "use more rows, or do not search"
        )
    if sorted(rows_of_class.values())[-2] < 2:  # its only row may be in the validation part
        raise DataError(
            f"{where}: a search holds out parts of each training fold, and only one class has two rows or more there; "
            "use more rows, or do not search"
        )


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

    def run_key(self, fold: Fold, objective: str) -> str:
        """The key of a run of the study, which is known before its settings are chosen."""
        config = self._with_seed(self.study.objectives[objective], fold)
        more = self._search_in_key[objective] if self.study.search else []
        if self.selection == "paper":  # the choice depends on all folds
            more = [*more, self.study.folds, list(self.study.seeds)]
        return self._key(config, fold, objective, *more)

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
                all_folds = self.study.folds * len(self.study.seeds)
                splits = self.study.search.parts if nested else all_folds
                trials = max_candidates(self.study.search, space, splits)
            jobs += len(folds) + trials * (len(folds) if nested else groups)
        return jobs

    def _single_run(self, fold: Fold, objective: str) -> JobGenerator:
        """One run, after the search for its settings on parts of the training fold alone."""
        config = self.study.objectives[objective]
        if self.study.search is not None and self.study.space(objective):
            labels = self.data.examples[fold.data].required_labels
            training_labels = [labels[row] for row in fold.train]
            parts = self.study.search.parts
            cut = folds(training_labels, max(INNER_FOLDS, parts), fold.seed, rare="keep")[:parts]
            splits = [
                dataclasses.replace(fold, train=fold.train[train], test=fold.train[validation])
                for train, validation in cut
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
            key=self._key(config, fold, objective, "trial"),
            **more,
        )

    def _with_seed(self, config: RunConfig, fold: Fold) -> RunConfig:
        return dataclasses.replace(config, train=dataclasses.replace(config.train, seed=fold.seed))

    def _key(self, config: RunConfig, fold: Fold, *more: object) -> str:
        """A key in which an encoder in a folder counts by what its files hold, not by its path."""
        name = config.encoder.name
        if name not in self._encoder_identities:
            self._encoder_identities[name] = identity(name)
        encoder = dataclasses.replace(config.encoder, name=self._encoder_identities[name])
        config = dataclasses.replace(config, encoder=encoder)
        classes = len(self.labels[fold.data])
        fingerprint = self.data.fingerprints[fold.data]
        return Job.key_of(config, classes, fingerprint, fold.train, fold.test, *more)
