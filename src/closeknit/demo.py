"""The demo: cross-entropy and TripleEntropy on the bundled messages, on the same folds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from closeknit import catalogue, report
from closeknit.classification.fit import Fit
from closeknit.config import RunConfig
from closeknit.data import from_python
from closeknit.encoder import load_encoder
from closeknit.evaluation import outputs, softmax
from closeknit.pages import write_report
from closeknit.progress import follow, say
from closeknit.studies.results import Result
from closeknit.studies.run import finish_study
from closeknit.studies.study import Source, Study

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

    lines: list[report.Line]
    table: str
    words: str
    answers: list[tuple[str, str, float]]
    test_accuracy: float
    test_rows: int
    picture: Path | None
    model: Path
    report: Path


def run_demo(out: Path, *, folds: int = 3, encoder: str | None = None, overwrite: bool = False) -> Demo:
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
    finished = finish_study(study, out / "comparison", command="closeknit demo", overwrite=overwrite)
    rows, lines = finished.results, finished.lines
    table, words = report.markdown_table(lines), report.in_words(lines[1], OBJECTIVES[0])
    page = write_report(out / "comparison", lines)

    say(f"2. {OBJECTIVES[1]} on all {len(training)} messages, scored on {len(test)} others")
    before_encoder, tokeniser = load_encoder(encoder, max_length=MAX_LENGTH, vocabulary=training)
    before = outputs(before_encoder, None, tokeniser(test))[1]
    fit = Fit(training, configs[OBJECTIVES[1]])
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


def _picture(path: Path, rows: list[Result], before: object, after: object, labels: list[str]) -> Path | None:
    from closeknit.errors import MissingExtra
    from closeknit.plots import comparison

    try:
        comparison(path, rows, before, after, labels, "Closeknit demo: customer messages")  # type: ignore[arg-type]
    except MissingExtra as error:
        say(f"no picture: {error}")
        return None
    return path
