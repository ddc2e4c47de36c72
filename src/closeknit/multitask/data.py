"""The rows of each task: read, held out where there is no validation part, and freed of rows that
would be tested on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closeknit.data import catalogue
from closeknit.data.distinct_texts import rows_without
from closeknit.data.examples import DataSet, Examples, Fingerprint, Rows, concatenate
from closeknit.data.splits import Parts, check_classes, split, subset
from closeknit.data.tables import read_file
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.multitask.config import MultiTaskConfig, TaskConfig

_PARTS = ("train", "validation", "test")


def load_tasks(
    config: MultiTaskConfig, *, log: Callable[[str], None] = lambda text: None
) -> dict[str, Parts]:
    """The data of every task, as its configuration names them."""
    found: dict[str, DataSet] = {}
    for name, task in config.tasks.items():
        if not task.data:
            raise ConfigError(
                f"tasks.{name}.data is not given; name a file, a folder or a catalogue data set"
            )
        with named(name):
            found[name] = read_task(task)
    return prepared(found, config, log=log)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Complaints name the task that they are about, and its settings."""
    try:
        yield
    except (DataError, ConfigError) as error:
        text = str(error).replace("--set data.", f"--set tasks.{name}.")
        kind = ConfigError if isinstance(error, ConfigError) else DataError
        raise kind(text if text.startswith(f"task {name}") else f"task {name}: {text}") from None


def prepared(
    sets: Mapping[str, DataSet],
    config: MultiTaskConfig,
    *,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Parts]:
    """Rows ready to train on: of the right kind, with a validation part where one is asked for, and
    without leaks: no task learns from a row that it or another is chosen by or scored on.

    Of a trial, every part has its share of rows.
    """
    whole: dict[str, Parts] = {}
    for name, parts in sets.items():
        with named(name):
            whole[name] = _in_parts(name, parts, config, log)
    found: dict[str, Parts] = {}
    for name, own in whole.items():
        others = [part for other in whole if other != name for part in whole[other].held_out]
        with named(name):
            training = _without_leaks(name, own.train, others, config, log, " of another task")
            found[name] = _drawn_of(name, dataclasses.replace(own, train=training), config)
    return found


def _in_parts(
    name: str, parts: DataSet, config: MultiTaskConfig, log: Callable[[str], None]
) -> Parts:
    """All rows of a task, none of them in two parts."""
    task = config.tasks[name]
    asked = DataSet(
        parts.name, {part: as_asked(examples, task) for part, examples in parts.parts.items()}
    )
    own = Parts(asked.training, asked.parts.get("validation"), asked.parts.get("test"))
    training = _without_leaks(name, own.train, own.held_out, config, log)
    holds_out = own.validation is None and config.train.validation > 0
    if len(training) < (4 if holds_out else 2):
        raise DataError(f"{training.name} has {len(training)} rows to train on; that is too few")
    if not holds_out:
        return dataclasses.replace(own, train=training)
    training, validation = _hold_out(training, config.train.validation, config.train.seed)
    return Parts(_without_leaks(name, training, [validation], config, log), validation, own.test)


def _without_leaks(
    name: str,
    rows: Examples,
    held: Sequence[Examples],
    config: MultiTaskConfig,
    log: Callable[[str], None],
    whose: str = "",
) -> Examples:
    """The training rows that are in none of these parts."""
    if config.tasks[name].leaks != "drop" or not held:
        return rows
    kept = rows_without(rows, held)
    if len(kept) == len(rows):
        return rows
    where = f"also in the validation or test part{whose}"
    keeps = f"(tasks.{name}.leaks=keep keeps them)"
    if len(kept) == 0:
        raise DataError(f"every training row is {where} {keeps}")
    log(
        f"{name}: {len(rows) - len(kept):,} of {len(rows):,} training rows are {where} and are left out {keeps}"
    )
    return rows.select(kept)


def _drawn_of(name: str, own: Parts, config: MultiTaskConfig) -> Parts:
    """As many rows as are asked for, and enough to learn from."""
    task = config.tasks[name]
    seed = config.train.seed
    scale = config.trial.scale
    training, validation, test = own.train, own.validation, own.test
    if 0 < task.rows < len(training):
        training = training.select(_drawn(training, task.rows, seed))
    if scale < 1.0:
        training = _fewer(training, scale, seed)
        validation, test = (
            None if part is None else _fewer(part, scale, seed) for part in (validation, test)
        )
    if task.kind != "pair_score":
        check_classes(training)
    elif len(set(training.required_scores)) < 2:
        raise DataError(f"all scores are {training.required_scores[0]}; there is nothing to learn")
    return Parts(training, validation, test)


def read_task(task: TaskConfig) -> DataSet:
    """The parts of a task's data as they are."""
    source = task.data
    if isinstance(source, str):
        return catalogue.load(source, task.columns, target=task.target)
    if not isinstance(source, Mapping):
        raise ConfigError(f'data is {source!r}; give a name, or a table like {{train = ["a.csv"]}}')
    for part in source:
        if part not in _PARTS:
            raise ConfigError(f"data has the part {part}{did_you_mean(str(part), _PARTS)}")
    parts = {part: _joined(files, task) for part, files in source.items()}
    return DataSet(str(source.get("train", "data")), parts)


def _joined(files: Any, task: TaskConfig) -> Examples:
    """The rows of one file or of several, one after the other."""
    listed = [files] if isinstance(files, str) else files
    if not isinstance(listed, list) or not all(isinstance(file, str) for file in listed):
        raise ConfigError(f"data names a part by {files!r}; give a file or a list of files")
    if not listed:
        raise ConfigError("data names a part without files")
    read = [(file, read_file(_found(file), task.columns, target=task.target)) for file in listed]
    return concatenate(read, " + ".join(listed))


def _found(file: str) -> Path:
    """A file where it is, else in the folder of CLOSEKNIT_DATA."""
    folder = os.environ.get("CLOSEKNIT_DATA")
    if folder and not Path(file).exists() and (Path(folder) / file).exists():
        return Path(folder) / file
    return Path(file)


def as_asked(examples: Examples, task: TaskConfig) -> Examples:
    """The examples as the task's kind reads them; refuses pairs that are none."""
    if task.kind == "classify":
        if examples.pairs is not None:
            raise DataError(
                f"{examples.name} holds pairs of texts; a task of the kind classify takes single ones: leave the second text "
                "out, or let the kind be pair_classify"
            )
        return dataclasses.replace(examples, scores=None)
    if examples.pairs is None:
        raise DataError(
            f"{examples.name} holds single texts; {task.kind} needs pairs: a table with the columns text and text2"
        )
    if task.kind == "pair_score":
        return dataclasses.replace(examples, labels=None)
    return dataclasses.replace(examples, scores=None)


def _drawn(examples: Examples, rows: int, seed: int) -> Rows:
    if examples.labels is not None:
        return subset(examples.labels, rows, seed)
    return np.sort(np.random.default_rng(seed).permutation(len(examples))[:rows])


def _fewer(examples: Examples, scale: float, seed: int) -> Examples:
    """This share of the rows, but enough of them to learn and score anything."""
    rows = min(
        len(examples), max(round(scale * len(examples)), 16, 2 * len(set(examples.labels or ())))
    )
    return examples.select(_drawn(examples, rows, seed))


def _hold_out(examples: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    if examples.labels is not None:
        kept, held_out = split(examples.labels, share, seed)
    else:
        amount = max(2, round(share * len(examples)))
        if len(examples) - amount < 2:
            raise DataError(
                f"train.validation is {share}: {amount} of {len(examples)} rows are held out, too few are left to train on"
            )
        held_out = _drawn(examples, amount, seed)
        kept = np.setdiff1d(np.arange(len(examples)), held_out)
    return examples.select(kept), examples.select(held_out)


def fingerprint(tasks: Mapping[str, Parts]) -> dict[str, Any]:
    parts = [part for own in tasks.values() for part in (own.train, own.validation, own.test)]
    return dataclasses.asdict(Fingerprint.of(*parts))
