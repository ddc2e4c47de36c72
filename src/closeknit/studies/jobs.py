"""A job is one training on some rows, scored on others; its outcome holds the scores."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data.examples import Examples, Rows, label_numbers
from closeknit.encoders.inference import outputs, softmax
from closeknit.encoders.tokens import truncation_note
from closeknit.metrics import classification_scores
from closeknit.models.memory import Lane, Stock
from closeknit.training.config import OPEN_SETTINGS
from closeknit.training.loop import NotFinite
from closeknit.training.processes import this_world

MAX_MAP_TEXTS = 500  # test texts whose vectors are kept for a map
MAX_MISTAKES = 40  # mistakes of a run whose texts are kept
MAX_TEXT_LENGTH = 300  # characters that are kept of a text
SCORES = ("weighted_f1", "accuracy", "macro_f1")


@dataclass(frozen=True)
class Job:
    """One training, described so completely that any process with the texts can do it."""

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
    trial: dict[str, Any] = field(default_factory=dict)  # of a search: its fields in trials.jsonl
    keep_details: bool = False  # keep the prediction for each test row
    shots: int = 0  # training rows of each class; 0: their number per class is not fixed
    keep_vectors: bool = False  # keep the vectors of test rows before and after the training

    @staticmethod
    def key_of(
        config: RunConfig,
        classes: int,
        fingerprint: str,
        train: Rows,
        test: Rows,
        *more: object,
        learnt: int | None = None,
    ) -> str:
        """The key of a run: a digest of its settings, and of its rows by fingerprint and row
        numbers.

        Open settings are hashed after they are resolved, so that a new rule makes a new run. They
        are resolved for the rows that are learnt from: `learnt` of them, or all training rows.
        """
        rows = len(train) if learnt is None else learnt
        settled = dataclasses.replace(config, train=config.train.settled(rows, classes))
        content = [settled.key_content(), fingerprint, train.tolist(), test.tolist(), *more]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def digest_of_test_rows(fingerprint: str, test: Rows) -> str:
    """A digest of the test rows of a run, by the fingerprint of the data and row numbers."""
    content = json.dumps([fingerprint, test.tolist()])
    return hashlib.sha256(content.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Outcome:
    """The scores of a job and what else is kept of it; `error` where the training failed."""

    key: str
    scores: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    encoder: str = ""
    settled: dict[str, Any] = field(default_factory=dict)  # what open settings came to
    details: dict[str, Any] = field(default_factory=dict)
    vectors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    truncated: float = 0.0  # share of the training texts that were cut at encoder.max_length
    error: str | None = None


def do_job(job: Job, stock: Stock) -> Outcome:
    """Train and score; the same job gives the same numbers in any process of the same machine."""
    steps = do_job_stepwise(job, Lane(stock))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def do_job_stepwise(job: Job, lane: Lane) -> Generator[None, None, Outcome]:
    """Train and score, pausing after each update, so that other jobs can take turns with this one.

    On a GPU the job uses the memory of the lane.
    """
    stock = lane.stock
    start = time.perf_counter()
    training_rows = stock.examples.select(job.train)
    test_rows = stock.examples.select(job.test)
    messages: list[str] = []
    try:
        world = this_world()
        lane.rows = np.asarray(job.train, dtype=np.int64)
        fit = ClassifierFit(
            training_rows,
            job.config,
            labels=job.labels,
            stock=stock,
            lane=lane if world.device.type == "cuda" else None,
            world=world,
            log=messages.append,
        )
        vectors = _vectors_before(fit, test_rows) if job.keep_vectors else {}
        for _ in fit:
            yield
    except NotFinite as error:
        return Outcome(job.key, seconds=time.perf_counter() - start, error=str(error))
    logits, pooled = fit.model.outputs(test_rows)
    expected = label_numbers(test_rows, job.labels)
    scores = classification_scores(expected, logits.argmax(axis=1), job.labels)
    if vectors:
        vectors["after"] = pooled[vectors["positions"]].astype(np.float16)
    return Outcome(
        job.key,
        scores={name: scores[name] for name in SCORES},
        seconds=time.perf_counter() - start,
        steps=fit.training.number,
        encoder=fit.model.encoder.name,
        settled={name: getattr(fit.config.train, name) for name in OPEN_SETTINGS},
        details=_details(job, fit, test_rows, expected, logits, vectors)
        if job.keep_details
        else {},
        vectors=vectors,
        messages=tuple(message for message in messages if message != _note_of_truncation(fit)),
        truncated=fit.model.metrics["truncated"],
    )


def _note_of_truncation(fit: ClassifierFit) -> str:
    """What a run says of texts that were cut; a study says it once for each data set."""
    share = fit.tokens.truncated_share(fit.rows)
    return truncation_note(share, fit.config.encoder.max_length)


def _vectors_before(fit: ClassifierFit, test_rows: Examples) -> dict[str, npt.NDArray[Any]]:
    """The vectors of some test rows before the training, and the positions of these rows."""
    positions = np.arange(len(test_rows))
    if len(positions) > MAX_MAP_TEXTS:
        drawn = np.random.default_rng(0).permutation(positions)[:MAX_MAP_TEXTS]
        positions = np.sort(drawn)
    tokens = fit.model.tokens(test_rows).select(positions)
    before = outputs(fit.model.encoder, None, tokens)[1]
    return {"positions": positions, "before": before.astype(np.float16)}


def _details(
    job: Job,
    fit: ClassifierFit,
    test_rows: Examples,
    expected: npt.NDArray[np.int64],
    logits: npt.NDArray[np.float32],
    vectors: Mapping[str, npt.NDArray[Any]],
) -> dict[str, Any]:
    """The prediction for each test row, the losses by epoch, and the texts that a report shows."""
    probabilities = softmax(logits)
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1)
    wrong = np.flatnonzero(predicted != expected)
    most_confident = wrong[np.argsort(-confidence[wrong], kind="stable")][:MAX_MISTAKES]
    on_map = vectors.get("positions", np.empty(0, int))
    shown = sorted({*most_confident.tolist(), *on_map.tolist()})
    details: dict[str, Any] = {
        "labels": list(job.labels),
        "rows": job.test.tolist(),
        "expected": expected.tolist(),
        "predicted": predicted.tolist(),
        "confidence": [round(float(value), 4) for value in confidence],
        "entropy": [round(float(value), 4) for value in entropy],  # in nats; shown in bits
        "history": fit.session.history,
        "texts": {str(position): _shown_text(test_rows, position) for position in shown},
    }
    distances = [value for key, value in fit.model.objective.items() if key.endswith(".distance")]
    if distances:
        details["distance"] = [[round(float(cell), 4) for cell in row] for row in distances[0]]
    return details


def _shown_text(examples: Examples, position: int) -> str:
    """The text of a row, or both texts of a pair; a long text is cut."""
    text = examples.texts[position]
    if examples.pairs:
        text += f" ⏵ {examples.pairs[position]}"
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"
