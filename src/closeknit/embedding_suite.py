"""Several encoders scored side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from closeknit.embeddings.model import SentenceModel, load_sentence_model

from . import catalogue
from .console import say
from .data import DataSet, Examples, split
from .embedding_scores import Score, as_scores, evaluate_suite, labelled_scores
from .embedding_scores import retrieval as retrieval_scores
from .errors import ConfigError, DataError
from .plots import alignment_uniformity, pyplot
from .sentences import read_sentences

MEASURES = ("spearman", "pearson", "alignment", "uniformity", "anisotropy")


def evaluate_models(
    models: Sequence[str],
    suite: Sequence[str],
    *,
    labelled: Sequence[str] = (),
    retrieval: Sequence[str] = (),
    pooling: str | None = None,
    plot: Path | None = None,
) -> dict[str, list[Score]]:
    """Model -> its scores on suites of scored pairs, data with classes, and questions with answers."""
    if plot is not None:  # what cannot be had is told before anything is scored
        if plot.suffix != ".png":
            raise ConfigError(f"{plot}: the picture is written as a PNG file; let its name end in .png")
        pyplot()
        plot.parent.mkdir(parents=True, exist_ok=True)
    read: dict[str, str] = {}  # name in the table -> what was read

    def named(name: str, source: str) -> str:
        return name if read.setdefault(name, source) == source else source  # another one of the same name

    sets = {source: catalogue.load(source) for source in labelled}
    classes = {named(data.name, source): _halves(data) for source, data in sets.items()}
    answers = {named(Path(source).stem, source): _answered(source) for source in retrieval}
    found: dict[str, list[Score]] = {}
    courses: dict[str, list[tuple[float, float]]] = {}
    for name in dict.fromkeys(models):
        say(f"scoring {name}")
        model = load_sentence_model(name, pooling=pooling, bare=True)
        scores = evaluate_suite(model.encode, list(suite), measures=MEASURES) if suite else []
        for data, (train, test) in classes.items():
            scores += as_scores(data, labelled_scores(model.encode, train, test))
        for data, pairs in answers.items():
            scores += as_scores(data, retrieval_scores(model.encode, pairs))
        found[name] = scores
        courses[name] = _course(model, scores)
    if plot is not None:
        known = {name: course for name, course in courses.items() if course}
        if not known:
            raise DataError("alignment and uniformity need scored pairs: give --suite")
        alignment_uniformity(plot, known)
    return found


def _halves(data: DataSet) -> tuple[Examples, Examples]:
    """The rows to learn classes from, and those to score."""
    train, test = data.training, data.parts.get("test")
    if test is None:
        kept, held_out = split(train.required_labels, 0.2, 2)
        train, test = train.select(kept), train.select(held_out)
    return train, test


def _answered(source: str) -> list[tuple[str, str]]:
    rows = read_sentences(source, prefer="test")
    if len(rows.columns) < 2:
        raise DataError(f"{source} holds single texts; retrieval needs columns text and text2")
    return list(zip(rows.columns[0], rows.columns[1], strict=True))


def _course(model: SentenceModel, scores: Sequence[Score]) -> list[tuple[float, float]]:
    """(uniformity, alignment) during training as far as it was followed, and at the end where the model stands now."""
    metrics = model.metrics
    records = [metrics["before"], *metrics["history"]] if "before" in metrics and "history" in metrics else []
    course = [(record["uniformity"], record["alignment"]) for record in records if "uniformity" in record]
    where: dict[str, float] = {}
    for score in scores:
        if score.measure in ("uniformity", "alignment"):
            where.setdefault(score.measure, score.value)  # of the first set
    return [*course, (where["uniformity"], where["alignment"])] if len(where) == 2 else course
