"""One training on some rows, scored on others -> a Result; and the file that Results are kept in."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.classification.fit import ClassifierFit
from closeknit.config import RunConfig
from closeknit.data.examples import Examples, Rows
from closeknit.data.label_numbers import label_numbers
from closeknit.evaluation import outputs, softmax
from closeknit.json_lines import read_json_lines
from closeknit.metrics import classification_scores
from closeknit.models.memory import Lane, Stock
from closeknit.processes import this_world
from closeknit.training import NotFinite

MAP_ROWS = 500  # test texts whose vectors are kept for a map
MISTAKES = 40  # mistakes of a run whose text is kept
TEXT_LETTERS = 300  # of each


@dataclass(frozen=True)
class Result:
    """One run: what was trained on what, and how it scored on rows it never saw."""

    data: str
    size: int
    objective: str
    options: dict[str, Any]
    encoder: str
    seed: int
    fold: int
    folds: int
    selection: str  # how the options were chosen: "fixed", "nested" or "paper"
    weighted_f1: float
    accuracy: float
    macro_f1: float
    seconds: float
    steps: int
    versions: dict[str, str]
    key: str
    settings: dict[str, Any] = field(
        default_factory=dict
    )  # of encoder and training, as searched for
    source: str = ""  # what the data set was taken from; two of one source share rows


@dataclass(frozen=True)
class Job:
    """One training, told so fully that any process that has the texts can do it."""

    data: str  # the name of the data set
    size: int
    objective: str  # the name in the study
    seed: int
    fold: int
    train: Rows
    test: Rows
    labels: tuple[str, ...]
    config: RunConfig
    key: str
    facts: dict[str, Any] = field(default_factory=dict)  # what whoever asked wants to find again
    details: bool = False  # keep what each row was taken for
    vectors: bool = False  # keep the vectors of test rows before and after

    @staticmethod
    def key_of(
        config: RunConfig, classes: int, fingerprint: str, train: Rows, test: Rows, *more: object
    ) -> str:
        """The key of a run: a digest of its settings, and of its rows by fingerprint and row numbers.

        Open settings are hashed after they are resolved, so that a new rule makes a new run. A
        setting that was added later is hashed only where it differs from what runs did before, so
        that stored runs are still recognised.
        """
        settled = dataclasses.replace(config, train=config.train.settled(len(train), classes))
        content = [settled.key_content(), fingerprint, train.tolist(), test.tolist(), *more]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Outcome:
    """What a job came to; `error` where the training failed."""

    key: str
    scores: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    encoder: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None


def do(job: Job, stock: Stock) -> Outcome:
    """Train and score; the same job gives the same numbers in any process of the same machine."""
    return finished(doing(job, Lane(stock)))


def finished(work: Generator[None, None, Outcome]) -> Outcome:
    """What some work comes to when nothing is done in between."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def doing(job: Job, lane: Lane) -> Generator[None, None, Outcome]:
    """Train and score step by step, so that other work can be done in between; on a GPU in the memory of the lane."""
    stock = lane.stock
    begun = time.perf_counter()
    training, testing = stock.examples.select(job.train), stock.examples.select(job.test)
    notes: list[str] = []
    try:
        world = this_world()
        lane.rows = np.asarray(job.train, dtype=np.int64)
        shared = lane if world.device.type == "cuda" else None
        fit = ClassifierFit(
            training,
            job.config,
            labels=job.labels,
            stock=stock,
            lane=shared,
            world=world,
            tell=notes.append,
        )
        before = _vectors(fit, testing) if job.vectors else {}
        for _ in fit:
            yield
    except NotFinite as error:
        return Outcome(job.key, seconds=time.perf_counter() - begun, error=str(error))
    logits, pooled = fit.model.outputs(testing)
    expected, predicted = label_numbers(testing, job.labels), logits.argmax(axis=1)
    scores = classification_scores(expected, predicted, job.labels)
    vectors = (
        {**before, "after": pooled[before["positions"]].astype(np.float16)} if job.vectors else {}
    )
    return Outcome(
        job.key,
        {name: scores[name] for name in ("weighted_f1", "accuracy", "macro_f1")},
        time.perf_counter() - begun,
        fit.training.number,
        fit.model.encoder.name,
        _details(job, fit, testing, expected, logits, vectors) if job.details else {},
        vectors,
        tuple(notes),
    )


def _vectors(fit: ClassifierFit, testing: Examples) -> dict[str, npt.NDArray[Any]]:
    positions = np.arange(len(testing))
    if len(positions) > MAP_ROWS:
        positions = np.sort(np.random.default_rng(0).permutation(positions)[:MAP_ROWS])
    tokens = fit.model.tokens(testing).select(positions)
    before = outputs(fit.model.encoder, None, tokens)[1]
    return {"positions": positions, "before": before.astype(np.float16)}


def _details(
    job: Job,
    fit: ClassifierFit,
    testing: Examples,
    expected: npt.NDArray[np.int64],
    logits: npt.NDArray[np.float32],
    vectors: Mapping[str, npt.NDArray[Any]],
) -> dict[str, Any]:
    """What each test row was taken for, and what else a report shows."""
    chances = softmax(logits)
    predicted, confidence = chances.argmax(axis=1), chances.max(axis=1)
    entropy = -(chances * np.log(np.maximum(chances, 1e-12))).sum(axis=1)
    wrong = np.flatnonzero(predicted != expected)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]
    shown = sorted({*worst.tolist(), *vectors.get("positions", np.empty(0, int)).tolist()})

    def text(position: int) -> str:
        whole = testing.texts[position] + (f" ⏵ {testing.pairs[position]}" if testing.pairs else "")
        return whole if len(whole) <= TEXT_LETTERS else whole[: TEXT_LETTERS - 1] + "…"

    found: dict[str, Any] = {
        "labels": list(job.labels),
        "rows": job.test.tolist(),
        "expected": expected.tolist(),
        "predicted": predicted.tolist(),
        "confidence": [round(float(value), 4) for value in confidence],
        "entropy": [round(float(value), 4) for value in entropy],
        "history": fit.session.history,
        "texts": {str(position): text(position) for position in shown},
    }
    distances = [value for key, value in fit.model.objective.items() if key.endswith(".distance")]
    if distances:
        found["distance"] = [[round(float(cell), 4) for cell in row] for row in distances[0]]
    return found


# ---------------------------------------------------------------- files of lines

_PLAIN_KEY = re.compile(
    r"[A-Za-z0-9_-]+"
)  # the details of a run lie in a file that is named by its key


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a record as one line, on the disk before this returns."""
    with path.open("ab") as file:
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def mend(path: Path) -> int:
    """Cut off a last line that was left half-written; how many bytes that were."""
    if not path.exists():
        return 0
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        with path.open("r+b") as file:
            file.truncate(whole)
    return len(raw) - whole


def read_results(path: Path) -> list[Result]:
    """The results of a file, each run once; a line that is damaged is passed over."""
    return list({result.key: result for result in _results(read_json_lines(path))}.values())


def _results(records: Iterable[Mapping[str, Any]]) -> Iterator[Result]:
    names = {f.name for f in dataclasses.fields(Result)}
    for record in records:
        complete = (
            names - {"settings", "source"} <= record.keys() <= names
        )  # older lines have neither
        if complete and _PLAIN_KEY.fullmatch(str(record["key"])):
            yield Result(**record)
