"""The demo: a small study on the bundled messages, then a model that is trained and scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.model import Model
from closeknit.console import follow, say
from closeknit.data import catalogue
from closeknit.data.examples import Examples, from_python
from closeknit.encoders.inference import outputs, softmax
from closeknit.encoders.loading import load_encoder
from closeknit.errors import MissingExtra
from closeknit.reports.study_page import write_report
from closeknit.studies.results import Result
from closeknit.studies.run import finish_study
from closeknit.studies.statistics import Line
from closeknit.studies.statistics.in_words import gain_in_words
from closeknit.studies.study import Source, Study
from closeknit.studies.tables import markdown_table

BASELINE = "cross_entropy"
OBJECTIVE = "triple_entropy"
# With small batches and a high learning rate four epochs are enough: minutes on two cores.
TRAIN: dict[str, Any] = {"epochs": 4, "batch_size": 16, "lr": 2e-4}
MAX_LENGTH = 64
QUESTIONS = (
    "You said last week my money was on its way back. Which account did it go to?",
    "The courier's photo shows a door, and it isn't mine.",
    "my new card was promised for monday, the postman had nothing",
)

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Demo:
    """What the demo measured, and the files that it wrote."""

    lines: list[Line]
    table: str
    words: str
    answers: list[tuple[str, str, float]]  # text, label, probability
    test_accuracy: float
    test_rows: int
    picture: Path | None
    model: Path
    report: Path


def run_demo(
    out: Path, *, folds: int = 3, encoder: str | None = None, overwrite: bool = False
) -> Demo:
    """Compare on folds of the training set, then train on all of it and score on the test set."""
    data = catalogue.load("messages")
    training = data.parts["train"]
    test = data.parts["test"]
    configs = {name: _config(name, encoder) for name in (BASELINE, OBJECTIVE)}
    say(
        f"1. {len(training)} messages in {len(training.classes)} easily confused classes, "
        f"{folds} folds, two objectives"
    )
    study = Study((Source("messages"),), configs, sizes=(0,), folds=folds, seeds=(2,))
    finished = finish_study(
        study, out / "comparison", command="closeknit demo", overwrite=overwrite
    )
    rows, lines = finished.results, finished.lines
    page = write_report(out / "comparison", lines)

    say(f"2. {OBJECTIVE} on all {len(training)} messages, scored on {len(test)} others")
    before = _vectors_before(training, test, encoder)
    model = _trained(training, test, configs[OBJECTIVE])
    model.save(out / "model")
    after = model.outputs(test)[1]
    return Demo(
        lines=lines,
        table=markdown_table(lines),
        words=gain_in_words(lines[1], BASELINE),
        answers=_answers(model),
        test_accuracy=model.metrics["test"]["accuracy"],
        test_rows=len(test),
        picture=_picture(out / "comparison.png", rows, before, after, test.required_labels),
        model=out / "model",
        report=page,
    )


def _config(objective: str, encoder: str | None) -> RunConfig:
    return RunConfig.from_dict(
        {
            "encoder": {"name": encoder, "max_length": MAX_LENGTH},
            "objective": {"name": objective},
            "train": TRAIN,
        }
    )


def _vectors_before(training: Examples, test: Examples, encoder: str | None) -> Vectors:
    """The vectors of the test set before any training."""
    pretrained, tokeniser = load_encoder(encoder, max_length=MAX_LENGTH, vocabulary=training)
    return outputs(pretrained, None, tokeniser(test))[1]


def _trained(training: Examples, test: Examples, config: RunConfig) -> Model:
    fit = ClassifierFit(training, config)
    for _ in follow(fit, OBJECTIVE):
        pass
    fit.model.metrics["test"] = fit.model.evaluate(test)
    return fit.model


def _answers(model: Model) -> list[tuple[str, str, float]]:
    """What the model says of three new messages: text, label and probability."""
    probabilities = softmax(model.outputs(from_python(QUESTIONS))[0])  # (3, C)
    return [
        (text, model.labels[int(row.argmax())], float(row.max()))
        for text, row in zip(QUESTIONS, probabilities, strict=True)
    ]


def _picture(
    path: Path, rows: list[Result], before: Vectors, after: Vectors, labels: Sequence[str]
) -> Path | None:
    """Draw scores and vectors; None if the library that draws is not installed."""
    from closeknit.charts.png import scores_and_maps

    scores: dict[str, list[float]] = {name: [] for name in (BASELINE, OBJECTIVE)}
    for row in sorted(rows, key=lambda row: (row.seed, row.fold)):
        scores[row.objective].append(100 * row.weighted_f1)
    try:
        scores_and_maps(path, scores, before, after, labels, "Closeknit demo: customer messages")
    except MissingExtra as error:
        say(f"no picture: {error}")
        return None
    return path
