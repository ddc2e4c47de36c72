"""Several encoders scored on the same data, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from closeknit.charts.png import alignment_uniformity, pyplot
from closeknit.console import say
from closeknit.data.catalogue import load
from closeknit.data.distinct_texts import split_distinct
from closeknit.data.examples import DataSet, Examples
from closeknit.data.sentences import read_sentences
from closeknit.embeddings.model import SentenceModel, load_sentence_model
from closeknit.embeddings.scores import (
    Score,
    evaluate_suite,
    labelled_scores,
    retrieval_scores,
    score_rows,
)
from closeknit.errors import ConfigError, DataError

_MEASURES = ("spearman", "pearson", "alignment", "uniformity", "anisotropy")
_TEST_SHARE = 0.2  # of a labelled data set without a test part
_SPLIT_SEED = 2

Points = list[tuple[float, float]]  # (uniformity, alignment) from the start of training to its end


@dataclass(frozen=True)
class _TestData:
    """The data that every model is scored on; each data set has its own name in the table."""

    suite: list[str]
    classes: dict[str, tuple[Examples, Examples]]  # rows to learn from, and rows to score
    answers: dict[str, list[tuple[str, str]]]  # queries and their answers


def evaluate_models(
    models: Sequence[str],
    suite: Sequence[str],
    *,
    labelled: Sequence[str] = (),
    retrieval: Sequence[str] = (),
    pooling: str | None = None,
    plot: Path | None = None,
) -> dict[str, list[Score]]:
    """The scores of each model on scored pairs, on data with classes, and on retrieval.

    `plot` is a PNG file for a picture of alignment and uniformity. Errors in `plot`, `labelled` and
    `retrieval` are reported before the first model is loaded.
    """
    if plot is not None:
        _prepare_picture(plot)
    data = _read_test_data(suite, labelled, retrieval)
    found: dict[str, list[Score]] = {}
    courses: dict[str, Points] = {}
    for name in dict.fromkeys(models):
        say(f"scoring {name}")
        model = load_sentence_model(name, pooling=pooling, bare=True)
        found[name] = _score_model(model, data)
        courses[name] = _course_of_training(model, found[name])
    if plot is not None:
        _draw(plot, courses)
    return found


def _prepare_picture(path: Path) -> None:
    """Check that the picture can be drawn, and make its folder."""
    if path.suffix != ".png":
        raise ConfigError(f"{path}: the picture is a PNG file; its name must end in .png")
    pyplot()
    path.parent.mkdir(parents=True, exist_ok=True)


def _draw(path: Path, courses: Mapping[str, Points]) -> None:
    known = {name: course for name, course in courses.items() if course}
    if not known:
        raise DataError("alignment and uniformity need scored pairs; name them with --suite")
    alignment_uniformity(path, known)


def _read_test_data(
    suite: Sequence[str], labelled: Sequence[str], retrieval: Sequence[str]
) -> _TestData:
    source_of: dict[str, str] = {}  # name in the table -> where it was read from

    def table_name(name: str, source: str) -> str:
        """The name, or the whole source if another source has this name."""
        return name if source_of.setdefault(name, source) == source else source

    sets = {source: load(source) for source in labelled}
    classes = {
        table_name(data.name, source): _train_and_test(data) for source, data in sets.items()
    }
    answers = {table_name(Path(source).stem, source): _read_answers(source) for source in retrieval}
    return _TestData(list(suite), classes, answers)


def _train_and_test(data: DataSet) -> tuple[Examples, Examples]:
    """The rows to learn classes from, and the rows to score."""
    train = data.training
    test = data.parts.get("test")
    if test is not None:
        return train, test
    kept, held_out = split_distinct(train, _TEST_SHARE, _SPLIT_SEED)
    return train.select(kept), train.select(held_out)


def _read_answers(source: str) -> list[tuple[str, str]]:
    rows = read_sentences(source, prefer="test")
    if len(rows.columns) < 2:
        raise DataError(f"{source} holds single texts; retrieval needs the columns text and text2")
    return list(zip(rows.columns[0], rows.columns[1], strict=True))


def _score_model(model: SentenceModel, data: _TestData) -> list[Score]:
    scores = evaluate_suite(model.encode, data.suite, measures=_MEASURES) if data.suite else []
    for name, (train, test) in data.classes.items():
        scores += score_rows(name, labelled_scores(model.encode, train, test))
    for name, pairs in data.answers.items():
        scores += score_rows(name, retrieval_scores(model.encode, pairs))
    return scores


def _course_of_training(model: SentenceModel, scores: Sequence[Score]) -> Points:
    """Uniformity and alignment at each evaluation of the training, and on the scored pairs now.

    The last point is from the first set of scored pairs. A model that was not validated in training
    has this point only.
    """
    measured = model.metrics
    records = []
    if "before" in measured and "history" in measured:
        records = [measured["before"], *measured["history"]]
    course = [
        (record["uniformity"], record["alignment"]) for record in records if "uniformity" in record
    ]
    now: dict[str, float] = {}
    for score in scores:
        if score.measure in ("uniformity", "alignment"):
            now.setdefault(score.measure, score.value)
    if len(now) == 2:
        course.append((now["uniformity"], now["alignment"]))
    return course
