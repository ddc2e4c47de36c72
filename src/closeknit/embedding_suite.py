"""Several encoders scored side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import catalogue
from .data import split
from .embedding_scores import Score, as_scores, evaluate_suite, labelled_scores, retrieval
from .errors import DataError
from .plots import alignment_uniformity
from .progress import say
from .sentence_model import SentenceModel, load_sentence_model
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
    found: dict[str, list[Score]] = {}
    courses: dict[str, list[tuple[float, float]]] = {}
    for name in dict.fromkeys(models):
        say(f"scoring {name}")
        model = load_sentence_model(name, pooling=pooling, bare=True)
        scores = evaluate_suite(model.encode, list(suite), measures=MEASURES) if suite else []
        for source in labelled:
            scores += _labelled(model, source)
        for source in retrieval:
            scores += _retrieval(model, source)
        found[name] = scores
        courses[name] = _course(model, scores)
    if plot is not None:
        known = {name: course for name, course in courses.items() if course}
        if not known:
            raise DataError("alignment and uniformity need scored pairs: give --suite")
        alignment_uniformity(plot, known)
    return found


def _labelled(model: SentenceModel, source: str) -> list[Score]:
    data = catalogue.load(source)
    train, test = data.training, data.parts.get("test")
    if test is None:
        kept, held_out = split(train.required_labels, 0.2, 2)
        train, test = train.select(kept), train.select(held_out)
    return as_scores(data.name, labelled_scores(model.encode, train, test))


def _retrieval(model: SentenceModel, source: str) -> list[Score]:
    rows = read_sentences(source)
    if len(rows.columns) < 2:
        raise DataError(f"{source} holds single texts; retrieval needs columns text and text2")
    return as_scores(
        Path(source).stem, retrieval(model.encode, list(zip(rows.columns[0], rows.columns[1], strict=True)))
    )


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
