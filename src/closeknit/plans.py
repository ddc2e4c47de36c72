"""A study -> its cells (rows to train on and to test on) and, for each run, a plan: a generator of jobs.

Every objective sees the same rows, folds, initial weights and batch order. Where settings are searched for, a run is
preceded by its search: by default on validation parts inside its own training fold, so that the test fold stays unseen.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from closeknit.config import RunConfig
from closeknit.console import say
from closeknit.data import Examples, Fingerprint, Rows, folds, subset
from closeknit.encoder import identity
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.protocol import Job, Outcome, Result
from closeknit.search import Try, most_tries, search
from closeknit.study import Study, with_options

INNER_FOLDS = 5  # a training fold is cut into so many; the first ones are the validation parts of its search

Plan = Generator[list[Job], list[Outcome], None]


@dataclass(frozen=True)
class Cell:
    """Rows of a data set, trained on and tested on."""

    data: str
    size: int
    seed: int
    fold: int
    train: Rows
    test: Rows
    first: bool  # of its data set and size


@dataclass(frozen=True)
class Loaded:
    """The texts of a study."""

    texts: dict[str, Examples]
    prints: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)  # data set -> what it was taken from

    @staticmethod
    def of(study: Study) -> Loaded:
        texts: dict[str, Examples] = {}
        sources: dict[str, str] = {}
        config = next(iter(study.objectives.values()))
        for source in study.data:
            name, examples = source.load(config)
            if name in texts:
                raise ConfigError(
                    f'two data sets are called {name}; give them names: {{source = "…", name = "…"}}'
                )
            texts[name], sources[name] = examples, source.source
        prints: dict[str, str] = {}
        for name, examples in texts.items():
            digest = Fingerprint.of(examples).digest
            same = next((other for other, known in prints.items() if known == digest), None)
            if same is not None:
                raise ConfigError(
                    f"the data sets {same} and {name} hold the same rows; leave one of them out"
                )
            prints[name] = digest
        for data, sets in study.hard_sets.items():
            if data not in texts:
                raise ConfigError(f"hard_sets names the data set {data}{did_you_mean(data, texts)}")
            for label in (label for one in sets for label in one):
                if label not in texts[data].classes:
                    raise ConfigError(
                        f"hard_sets: {data} has no class {label}{did_you_mean(label, texts[data].classes)}"
                    )
        return Loaded(texts, prints, sources)


def cells_of(study: Study, loaded: Loaded, tell: Callable[[str], None] = say) -> list[Cell]:
    """The folds of every seed of every size of every data set."""
    cells: list[Cell] = []
    for data, examples in loaded.texts.items():
        labels = examples.required_labels
        for size in sorted({min(size or len(labels), len(labels)) for size in study.sizes}):
            if size < max(study.sizes) and size == len(labels):
                tell(f"{data} has {size:,} rows; all of them are used")
            for seed in study.seeds:
                rows = subset(labels, size, seed)
                own = [labels[row] for row in rows]
                rare = [label for label, n in Counter(own).items() if n < study.folds]
                if rare and seed == study.seeds[0]:
                    tell(
                        f"{data}, {size:,} rows: {len(rare)} classes have fewer than {study.folds} rows; some folds "
                        f"test them without having trained on them ({', '.join(sorted(rare)[:5])}{' …' if len(rare) > 5 else ''})"
                    )
                for fold, (train, test) in enumerate(folds(own, study.folds, seed, rare="keep")):
                    _check_fold(study, f"{data}, {size:,} rows", Counter(own[row] for row in train))
                    first = seed == study.seeds[0] and fold == 0
                    cells.append(Cell(data, size, seed, fold, rows[train], rows[test], first))
    return cells


def _check_fold(study: Study, where: str, counts: Mapping[str, int]) -> None:
    """Refuse a training fold that nothing can be learnt from, or searched in, before the first run."""
    if len(counts) < 2:
        raise DataError(
            f'{where}: the rows that a fold trains on are all of the class "{next(iter(counts))}", the others are too rare; '
            "take more rows"
        )
    if study.search is not None and study.selection == "nested" and any(map(study.space, study.objectives)):
        parts = max(INNER_FOLDS, study.search.parts)
        if max(counts.values()) < parts:
            raise DataError(
                f"{where}: a search cuts each training fold into {parts} parts, and no class has {parts} rows there; "
                "take more rows, or do not search"
            )
        if sorted(counts.values())[-2] < 2:  # its one row may be in the part that is held out
            raise DataError(
                f"{where}: a search holds out parts of each training fold, and only one class has two rows or more there; "
                "take more rows, or do not search"
            )


class Planner:
    """Turns a study into plans: generators of jobs, one for each run (or, chosen on the reported folds, for all of a cell)."""

    def __init__(self, study: Study, loaded: Loaded) -> None:
        self.study, self.loaded = study, loaded
        self.labels = {data: tuple(examples.classes) for data, examples in loaded.texts.items()}
        chosen = dataclasses.asdict(study.search) if study.search else None
        self.mode = study.selection if study.search else "fixed"
        self.tags: dict[str, list[Any]] = {
            name: [self.mode, chosen, {k: v for k, v in study.space(name).items()} if chosen else None]
            for name in study.objectives
        }
        self.encoders: dict[str | None, str | None] = {}  # name -> what tells it apart

    def key(self, cell: Cell, name: str) -> str:
        """What identifies a run of the study, before its settings are chosen."""
        config = self._seeded(self.study.objectives[name], cell)
        tag = self.tags[name] if self.study.search else []
        if self.mode == "paper":  # what is chosen depends on all the folds
            tag = [*tag, self.study.folds, list(self.study.seeds)]
        return self._key(config, cell, name, *tag)

    def _key(self, config: RunConfig, cell: Cell, *more: object) -> str:
        classes, fingerprint = len(self.labels[cell.data]), self.loaded.prints[cell.data]
        encoder = config.encoder.name
        if encoder not in self.encoders:
            self.encoders[encoder] = identity(encoder)
        own = dataclasses.replace(config.encoder, name=self.encoders[encoder])
        config = dataclasses.replace(config, encoder=own)
        return Job.key_of(config, classes, fingerprint, cell.train, cell.test, *more)

    def plans(self, cells: Sequence[Cell], done: Mapping[str, Result]) -> Iterator[Plan]:
        groups = dict.fromkeys((cell.data, cell.size) for cell in cells)
        for group in groups:
            own = [cell for cell in cells if (cell.data, cell.size) == group]
            if self.mode == "paper":
                for name in self.study.objectives:
                    if any(self.key(cell, name) not in done for cell in own):
                        yield self._paper(own, name, done)
                continue
            for cell in own:
                for name in self.study.objectives:
                    if self.key(cell, name) not in done:
                        yield self._single(cell, name)

    def _single(self, cell: Cell, name: str) -> Plan:
        """One run, after its search where there is one: on parts of the training fold alone."""
        config = self.study.objectives[name]
        if self.study.search is not None and self.study.space(name):
            labels = self.loaded.texts[cell.data].required_labels
            own = [labels[row] for row in cell.train]
            parts = self.study.search.parts
            inner = folds(own, max(INNER_FOLDS, parts), cell.seed, rare="keep")[:parts]
            splits = [
                dataclasses.replace(cell, train=cell.train[train], test=cell.train[test])
                for train, test in inner
            ]
            runs = [self.key(cell, name)] * parts
            config = yield from self._search(name, splits, runs, seed=cell.seed * 1000 + cell.fold)
        yield [self._final(cell, name, config)]

    def _paper(self, cells: Sequence[Cell], name: str, done: Mapping[str, Result]) -> Plan:
        """All runs of an objective on a data set, with the setting that does best on the very folds reported."""
        config = self.study.objectives[name]
        if self.study.space(name):
            runs = [self.key(cell, name) for cell in cells]
            config = yield from self._search(name, cells, runs, seed=0)
        yield [self._final(cell, name, config) for cell in cells if self.key(cell, name) not in done]

    def _search(
        self, name: str, splits: Sequence[Cell], runs: Sequence[str], seed: int
    ) -> Generator[list[Job], list[Outcome], RunConfig]:
        assert self.study.search is not None
        config = self.study.objectives[name]
        steps = search(self.study.space(name), self.study.search, len(splits), seed)
        tries = next(steps)
        while True:
            outcomes = yield [
                self._trial(splits[one.split], name, config, one, runs[one.split]) for one in tries
            ]
            try:  # a setting that breaks the training scores nothing
                tries = steps.send([outcome.scores.get("weighted_f1", 0.0) for outcome in outcomes])
            except StopIteration as stop:
                return with_options(config, stop.value)

    def _trial(self, cell: Cell, name: str, config: RunConfig, one: Try, run: str) -> Job:
        facts = {"options": one.options, "split": one.split, "trial": one.number, "stage": one.stage}
        facts["run"] = run  # the key of the run that it is for
        return self._job(cell, name, with_options(config, one.options), facts=facts)

    def _final(self, cell: Cell, name: str, config: RunConfig) -> Job:
        job = self._job(cell, name, config, details=True, vectors=cell.first)
        return dataclasses.replace(job, key=self.key(cell, name))

    def _job(self, cell: Cell, name: str, config: RunConfig, **more: Any) -> Job:
        config = self._seeded(config, cell)
        key = self._key(config, cell, name, "trial")
        return Job(
            cell.data,
            cell.size,
            name,
            cell.seed,
            cell.fold,
            cell.train,
            cell.test,
            self.labels[cell.data],
            config,
            key,
            **more,
        )

    def _seeded(self, config: RunConfig, cell: Cell) -> RunConfig:
        return dataclasses.replace(config, train=dataclasses.replace(config.train, seed=cell.seed))

    def most_jobs(self, cells: Sequence[Cell]) -> int:
        """The most jobs there can be for these cells, to tell how long it may take."""
        amount = 0
        for name in self.study.objectives:
            tries = 0
            if self.study.search is not None and self.study.space(name):
                parts = (
                    self.study.search.parts
                    if self.mode == "nested"
                    else self.study.folds * len(self.study.seeds)
                )
                tries = most_tries(self.study.search, self.study.space(name), parts)
            groups = len({(cell.data, cell.size) for cell in cells})
            amount += len(cells) + tries * (len(cells) if self.mode == "nested" else groups)
        return amount
