"""Several encoders scored on the same data, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from closeknit.charts.png import alignment_uniformity, pyplot
from closeknit.console import say
from closeknit.data.catalogue import load
from closeknit.data.distinct_texts import split_distinct
from closeknit.data.evaluation_sets import (
    LabelledPairs,
    Lexicon,
    Linking,
    read_labelled_pairs,
    read_lexicon,
    read_linking,
)
from closeknit.data.examples import DataSet, Examples
from closeknit.data.scored_pairs import ScoredPairs, read_suites
from closeknit.data.sentences import read_sentences
from closeknit.data.tables import Columns
from closeknit.embeddings.model import SentenceModel, load_sentence_model
from closeknit.embeddings.score_tables import Score, score_pairs, score_rows
from closeknit.embeddings.scores import (
    entailment_scores,
    labelled_scores,
    lexicon_scores,
    linking_scores,
    retrieval_scores,
)
from closeknit.errors import ConfigError, DataError

_MEASURES = ("spearman", "pearson", "alignment", "uniformity", "anisotropy")
_TEST_SHARE = 0.2  # of a labelled data set without a test part
_SPLIT_SEED = 2

Points = list[tuple[float, float]]  # (uniformity, alignment) from the start of training to its end


@dataclass(frozen=True)
class _TestData:
    """The data that every model is scored on; each data set has its own name in the table."""

    pairs: list[ScoredPairs]
    classes: dict[str, tuple[Examples, Examples]]  # rows to learn from, and rows to score
    answers: dict[str, list[tuple[str, str]]]  # queries and their answers
    lexicons: dict[str, Lexicon]
    linking: dict[str, Linking]
    entailment: dict[str, LabelledPairs]


@dataclass(frozen=True)
class _Sources:
    """What `evaluate_embeddings` was asked to score on."""

    suite: Sequence[str]
    labelled: Sequence[str]
    retrieval: Sequence[str]
    lexicon: Sequence[str]
    candidates: Sequence[str]
    entities: Sequence[str]
    mentions: Sequence[str]
    entailment: Sequence[str]
    columns: Mapping[str, str]


def evaluate_embeddings(
    models: Sequence[str],
    suite: Sequence[str] = (),
    *,
    labelled: Sequence[str] = (),
    retrieval: Sequence[str] = (),
    lexicon: Sequence[str] = (),
    candidates: Sequence[str] = (),
    entities: Sequence[str] = (),
    mentions: Sequence[str] = (),
    entailment: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    pooling: str | None = None,
    plot: Path | None = None,
) -> dict[str, list[Score]]:
    """The scores of each model, as `closeknit evaluate-embeddings` computes them.

    `candidates` is empty or has a file for each lexicon, and each file of `mentions` belongs to the
    file of `entities` at the same place. `columns` names the columns of files to read as text,
    text2, label or score. `plot` is a PNG file for a picture of alignment and uniformity. All data
    are read, and errors in them are reported, before the first model is loaded.
    """
    if plot is not None:
        _prepare_picture(plot)
    sources = _Sources(
        suite,
        labelled,
        retrieval,
        lexicon,
        candidates,
        entities,
        mentions,
        entailment,
        dict(columns or {}),
    )
    data = _read_test_data(sources)
    found: dict[str, list[Score]] = {}
    courses: dict[str, Points] = {}
    for name in dict.fromkeys(models):
        say(f"scoring {name}")
        model = load_sentence_model(name, pooling=pooling, bare=True)
        found[name] = _score_model(name, model, data)
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


# ---------------------------------------------------------------- reading


def _read_test_data(sources: _Sources) -> _TestData:
    _check_sources(sources)
    columns = sources.columns
    source_of: dict[str, str] = {}  # name in the table -> where it was read from

    def table_name(name: str, source: str) -> str:
        """The name, or the whole source if another source has this name."""
        return name if source_of.setdefault(name, source) == source else source

    sets = {source: _load_classes(source, columns) for source in sources.labelled}
    candidates: list[str | None] = [*sources.candidates] or [None] * len(sources.lexicon)
    lexicons = {
        table_name(Path(source).stem, source): read_lexicon(source, file, columns=columns)
        for source, file in zip(sources.lexicon, candidates, strict=True)
    }
    linking = {
        table_name(Path(source).stem, source): read_linking(names, source, columns=columns)
        for names, source in zip(sources.entities, sources.mentions, strict=True)
    }
    classes = {
        table_name(data.name, source): _train_and_test(data) for source, data in sets.items()
    }
    answers = {
        table_name(Path(source).stem, source): _read_answers(source, columns)
        for source in sources.retrieval
    }
    entailment = {
        table_name(Path(source).stem, source): read_labelled_pairs(source, columns=columns)
        for source in sources.entailment
    }
    for name, words in lexicons.items():
        what = "words have no translation among the candidates"
        _say_what_is_left_out(name, words.left_out, len(words), what)
    for name, texts in linking.items():
        what = "mentions are of concepts without a name"
        _say_what_is_left_out(name, texts.left_out, len(texts), what)
    others = any((classes, answers, lexicons, linking, entailment))
    pairs = read_suites(sources.suite, log=say, columns=columns, may_be_empty=others)
    return _TestData(pairs, classes, answers, lexicons, linking, entailment)


def _check_sources(sources: _Sources) -> None:
    """Refuse files without their counterparts, and column names that no file would use."""
    lexicons = len(sources.lexicon)
    candidates = len(sources.candidates)
    if candidates not in (0, lexicons):
        raise ConfigError(
            f"--candidates and --lexicon name different numbers of files ({candidates} and {lexicons}); "
            "name the file of candidates of each lexicon, in the same order, or none"
        )
    if len(sources.entities) != len(sources.mentions):
        raise ConfigError(
            "--entities and --mentions name different numbers of files "
            f"({len(sources.entities)} and {len(sources.mentions)}); each file of mentions "
            "needs its file of names"
        )
    pairs = ("suite", "retrieval", "lexicon", "entailment")
    users = {
        "text": (*pairs, "labelled", "entities"),
        "text2": pairs,
        "label": ("labelled", "entities", "entailment"),
        "score": ("suite",),
    }
    for role in sources.columns:
        if role not in users:
            raise ConfigError(f"unknown column {role}; known: {', '.join(users)}")
        if not any(getattr(sources, option) for option in users[role]):
            options = ", ".join(f"--{option}" for option in users[role])
            raise ConfigError(f"--{role} names a column of the files of {options}; none is given")


def _say_what_is_left_out(name: str, left_out: Sequence[str], kept: int, what: str) -> None:
    if left_out:
        count = f"{len(left_out)} of {kept + len(left_out)}"
        say(f"{name}: {count} {what} (first: {left_out[0]!r}); they are not scored")


def _load_classes(source: str, columns: Mapping[str, str]) -> DataSet:
    if not Path(source).exists():
        return load(source)
    return load(source, Columns(text=columns.get("text"), label=columns.get("label")))


def _train_and_test(data: DataSet) -> tuple[Examples, Examples]:
    """The rows to learn classes from, and the rows to score."""
    train = data.training
    test = data.parts.get("test")
    if test is not None:
        return train, test
    kept, held_out = split_distinct(train, _TEST_SHARE, _SPLIT_SEED)
    return train.select(kept), train.select(held_out)


def _read_answers(source: str, columns: Mapping[str, str]) -> list[tuple[str, str]]:
    asked = {role: name for role, name in columns.items() if role in ("text", "text2")}
    rows = read_sentences(source, columns=asked, prefer="test")
    if len(rows.columns) < 2:
        raise DataError(f"{source} holds single texts; retrieval needs the columns text and text2")
    return list(zip(rows.columns[0], rows.columns[1], strict=True))


# ---------------------------------------------------------------- scoring


def _score_model(title: str, model: SentenceModel, data: _TestData) -> list[Score]:
    encode = model.encode
    scores: list[Score] = []
    for pairs in data.pairs:
        scores += score_pairs(encode, pairs, _MEASURES)
        if not any(len(text.split()) > 1 for text in pairs.texts):  # pairs of words
            needed = list(zip(pairs.first, pairs.second, strict=True))
            scores.append(_coverage(title, model, pairs.name, needed, "pairs"))
    for name, (train, test) in data.classes.items():
        scores += score_rows(name, labelled_scores(encode, train, test), "labelled")
    for name, answers in data.answers.items():
        scores += score_rows(name, retrieval_scores(encode, answers), "retrieval")
    for name, lexicon in data.lexicons.items():
        scores += score_rows(name, lexicon_scores(encode, lexicon), "lexicon")
        translated = [(word, own[0]) for word, own in lexicon.translations.items()]
        scores.append(_coverage(title, model, name, translated, "lexicon"))
    for name, linking in data.linking.items():
        scores += score_rows(name, linking_scores(encode, linking), "linking")
        mentions = [(text,) for text, _ in linking.mentions]
        scores.append(_coverage(title, model, name, mentions, "linking"))
    for name, labelled_pairs in data.entailment.items():
        scores += score_rows(name, entailment_scores(encode, labelled_pairs), "entailment")
    return scores


def _coverage(
    title: str,
    model: SentenceModel,
    name: str,
    rows: Sequence[tuple[str, ...]],
    kind: str,
) -> Score:
    """The share of rows whose texts the vocabulary of a model has, at least in part.

    All rows are scored: a model gets no better score by knowing fewer words.
    """
    texts = list(dict.fromkeys(text for row in rows for text in row))
    unknown = set(_unknown_texts(model, texts))
    if unknown:
        first = next(text for text in texts if text in unknown)
        say(
            f"{name}: {title} has no token for {len(unknown)} of {len(texts)} texts "
            f"(first: {first!r}); they are scored all the same"
        )
    known = sum(unknown.isdisjoint(row) for row in rows)
    return Score(name, "coverage", known / len(rows), len(rows), kind)


def _unknown_texts(model: SentenceModel, texts: list[str]) -> list[str]:
    """The texts of which every token is the one for unknown tokens."""
    tokens = model.tokeniser(Examples(texts))
    says_something = ~tokens.special & (tokens.ids != model.tokeniser.unknown_id)
    known_before = np.concatenate([[0], np.cumsum(says_something)])  # tokens before each place
    known = np.diff(known_before[tokens.offsets])  # (texts,)
    return [text for text, count in zip(texts, known, strict=True) if not count]


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
