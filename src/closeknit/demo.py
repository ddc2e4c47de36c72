"""The demo: cross-entropy and TripleEntropy on the bundled messages, on the same folds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from closeknit.classification.fit import ClassifierFit
from closeknit.config import RunConfig
from closeknit.data import catalogue
from closeknit.data.examples import from_python
from closeknit.encoder_loading import load_encoder
from closeknit.evaluation import outputs, softmax
from closeknit.progress import follow, say
from closeknit.reports.study_page import write_report
from closeknit.studies.results import Result
from closeknit.studies.run import finish_study
from closeknit.studies.study import Source, Study
from closeknit.study_statistics import Line
from closeknit.study_tables import gain_in_words, markdown_table

OBJECTIVES = ("cross_entropy", "triple_entropy")
# Small batches at a high rate: the classes part in four passes, on two cores in minutes.
TRAIN = {"epochs": 4, "batch_size": 16, "lr": 2e-4}
MAX_LENGTH = 64
QUESTIONS = (
    "You said last week my money was on its way back. Which account did it go to?",
    "The courier's photo shows a door, and it isn't mine.",
    "my new card was promised for monday, the postman had nothing",
)


@dataclass(frozen=True)
class Demo:
    """What the demo found and made."""

    lines: list[Line]
    table: str
    words: str
    answers: list[tuple[str, str, float]]
    test_accuracy: float
    test_rows: int
    picture: Path | None
    model: Path
    report: Path


def run_demo(
    out: Path, *, folds: int = 3, encoder: str | None = None, overwrite: bool = False
) -> Demo:
    """Compare on folds of the training part, then train on all of it and score on the test part."""
    data = catalogue.load("messages")
    training, test = data.parts["train"], data.parts["test"]
    configs = {
        name: RunConfig.from_dict(
            {
                "encoder": {"name": encoder, "max_length": MAX_LENGTH},
                "objective": {"name": name},
                "train": TRAIN,
            }
        )
        for name in OBJECTIVES
    }
    say(
        f"1. {len(training)} messages in {len(training.classes)} easily confused classes, {folds} folds, two objectives"
    )
    study = Study((Source("messages"),), configs, sizes=(0,), folds=folds, seeds=(2,))
    finished = finish_study(
        study, out / "comparison", command="closeknit demo", overwrite=overwrite
    )
    rows, lines = finished.results, finished.lines
    table = markdown_table(lines)
    words = gain_in_words(lines[1], OBJECTIVES[0])
    page = write_report(out / "comparison", lines)

    say(f"2. {OBJECTIVES[1]} on all {len(training)} messages, scored on {len(test)} others")
    before_encoder, tokeniser = load_encoder(encoder, max_length=MAX_LENGTH, vocabulary=training)
    before = outputs(before_encoder, None, tokeniser(test))[1]
    fit = ClassifierFit(training, configs[OBJECTIVES[1]])
    for _ in follow(fit, OBJECTIVES[1]):
        pass
    model = fit.model
    model.metrics["test"] = model.evaluate(test)
    model.save(out / "model")
    after = model.outputs(test)[1]
    picture = _picture(out / "comparison.png", rows, before, after, test.required_labels)

    chances = softmax(model.outputs(from_python(QUESTIONS))[0])
    answers = [
        (text, model.labels[int(row.argmax())], float(row.max()))
        for text, row in zip(QUESTIONS, chances, strict=True)
    ]
    return Demo(
        lines,
        table,
        words,
        answers,
        model.metrics["test"]["accuracy"],
        len(test),
        picture,
        out / "model",
        page,
    )


def _picture(
    path: Path,
    rows: list[Result],
    before: npt.NDArray[np.float32],
    after: npt.NDArray[np.float32],
    labels: list[str],
) -> Path | None:
    """Draw the scores of all runs and the maps of the texts; None if matplotlib is not installed."""
    from closeknit.charts.png import scores_and_maps
    from closeknit.errors import MissingExtra

    scores: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    for row in sorted(rows, key=lambda row: (row.seed, row.fold)):
        scores[row.objective].append(100 * row.weighted_f1)
    try:
        scores_and_maps(path, scores, before, after, labels, "Closeknit demo: customer messages")
    except MissingExtra as error:
        say(f"no picture: {error}")
        return None
    return path
