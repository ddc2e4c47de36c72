"""Data that embeddings are scored on: dictionaries of two languages, concept names, answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.data.tables import Table, read_table
from closeknit.data.validation import holds_no_rows, is_missing, require_texts
from closeknit.errors import DataError, did_you_mean

_BUNDLED = Path(__file__).parent / "bundled" / "evaluations"

# Small hand-made files that come with the package, and the option that each is for.
EXAMPLES = {
    "example-words-en": "suite",
    "example-words-de": "suite",
    "example-words-fr": "suite",
    "example-en-de": "lexicon",
    "example-en-fr": "lexicon",
    "example-names": "entities",
    "example-mentions": "mentions",
    "example-answers": "entailment",
}

# The usual names of each column, in the order in which they are looked for.
_SOURCE = ("source", "text", "word", "text1")
_TARGET = ("target", "text2", "translation")
_WORD = ("word", "text", "target", "text2")
_NAME = ("name", "text", "mention")
_MENTION = ("mention", "text", "name")
_ID = ("id", "label", "concept")
_FIRST = ("text", "text1", "question", "sentence1")
_SECOND = ("text2", "answer", "sentence", "sentence2")
_LABEL = ("label",)

# Labels of pairs, in lower case, and whether the second text follows from the first.
_ANSWERS = {
    **{"1": 1, "1.0": 1, "true": 1, "yes": 1, "entailment": 1},
    **{"0": 0, "0.0": 0, "false": 0, "no": 0, "not_entailment": 0},
}


def example_file(name: str | Path) -> Path:
    """The file with this path, or the example of this name that comes with the package."""
    path = Path(name)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path
    if str(name) in EXAMPLES:
        return _BUNDLED / f"{name}.csv"
    raise DataError(f"{name} is neither a file nor an example{did_you_mean(str(name), EXAMPLES)}")


# ---------------------------------------------------------------- dictionaries of two languages


@dataclass(frozen=True)
class Lexicon:
    """Words of one language, their translations, and the words among which these are looked for.

    `left_out` are source words without a translation among the candidates; they are not scored.
    """

    translations: dict[str, list[str]]  # a source word -> its translations among the candidates
    candidates: list[str]
    name: str = "lexicon"
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.translations)


def lexicon_from(
    rows: Sequence[tuple[str, str]],
    candidates: Iterable[str] | None = None,
    *,
    name: str = "lexicon",
) -> Lexicon:
    """A dictionary from rows of a word and a translation; a word may have several rows.

    Without `candidates`, translations are looked for among all translations of the dictionary.
    """
    first, second = _columns_of(rows, 2, name, "(word, translation)")
    return _build_lexicon(first, second, candidates, name, name)


def read_lexicon(
    path: str | Path,
    candidates: str | Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
) -> Lexicon:
    """A dictionary from a table with the columns source and target, or from a text file.

    A text file has a word and a translation in each line, with a tab or a blank between them.
    `candidates` is a file of words of the target language, one per line or in the column word.
    `columns` names the columns to read as text (the source) and text2 (the target).
    """
    path = example_file(path)
    asked = dict(columns or {})
    if path.suffix.lower() in (".txt", ""):
        source, target = _words_of_lines(path)
    else:
        table = read_table(path)
        source = _column(table, asked.get("text"), _SOURCE, path, "text")
        target = _column(table, asked.get("text2"), _TARGET, path, "text2")
    words = None
    if candidates is not None:
        words = _column(read_table(candidates), None, _WORD, candidates)
        require_texts(words, str(candidates))
    return _build_lexicon(source, target, words, path.stem, str(path))


def _words_of_lines(path: Path) -> tuple[list[str], list[str]]:
    pairs: list[list[str]] = []
    for number, line in enumerate(read_table(path)["text"], 1):
        pair = line.split("\t") if "\t" in line else line.split(" ")
        if len(pair) != 2:
            raise DataError(
                f"{path}, line {number}: {line[:60]!r} is not a word and its translation with a "
                "tab between them"
            )
        pairs.append(pair)
    return [source for source, _ in pairs], [target for _, target in pairs]


def _build_lexicon(
    source: list[Any],
    target: list[Any],
    candidates: Iterable[Any] | None,
    name: str,
    where: str,
) -> Lexicon:
    for column in (source, target):
        require_texts(column, where)
    words = list(dict.fromkeys(target if candidates is None else candidates))
    known = set(words)
    translations: dict[str, list[str]] = {word: [] for word in source}
    for word, translation in zip(source, target, strict=True):
        if translation in known and translation not in translations[word]:
            translations[word].append(translation)
    left_out = tuple(word for word, found in translations.items() if not found)
    kept = {word: found for word, found in translations.items() if found}
    if not kept:
        first = next(iter(translations))
        raise DataError(
            f"{where}: no translation of its {len(translations)} words, such as {first!r}, is "
            "among the candidates; are the candidates words of the target language?"
        )
    return Lexicon(kept, words, name, left_out)


# ---------------------------------------------------------------- names of concepts


@dataclass(frozen=True)
class Linking:
    """Names of concepts, and mentions whose concept is to be found among them.

    `left_out` are mentions of concepts that have no name; they are not scored.
    """

    names: dict[str, set[str]]  # a name -> the ids of the concepts that have it
    mentions: list[tuple[str, set[str]]]  # a mention, and the ids that are right
    name: str = "linking"
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.mentions)


def linking_from(
    entities: Sequence[tuple[str, object]],
    mentions: Sequence[tuple[str, object]],
    *,
    name: str = "linking",
) -> Linking:
    """A test of entity linking from rows (name, concept id) and rows (mention, concept id)."""
    names, name_ids = _columns_of(entities, 2, f"{name} names", "(name, concept id)")
    texts, ids = _columns_of(mentions, 2, f"{name} mentions", "(mention, concept id)")
    named = _ids_of_names(names, name_ids, f"{name} names")
    return _build_linking(named, texts, ids, name, f"{name} mentions")


def read_linking(
    entities: str | Path,
    mentions: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
) -> Linking:
    """A test of entity linking from a table of names (name, id) and one of mentions (mention, id).

    A concept has a row for each of its names. Several ids of one row have | between them.
    `columns` names the columns to read as text (the name or mention) and label (the id).
    """
    entity_file = example_file(entities)
    mention_file = example_file(mentions)
    asked = dict(columns or {})
    table = read_table(entity_file)
    names = _column(table, asked.get("text"), _NAME, entity_file, "text")
    name_ids = _column(table, asked.get("label"), _ID, entity_file, "label")
    table = read_table(mention_file)
    texts = _column(table, asked.get("text"), _MENTION, mention_file, "text")
    ids = _column(table, asked.get("label"), _ID, mention_file, "label")
    named = _ids_of_names(names, name_ids, str(entity_file))
    return _build_linking(named, texts, ids, mention_file.stem, str(mention_file))


def _ids_of_names(names: list[Any], ids: list[Any], where: str) -> dict[str, set[str]]:
    require_texts(names, where)
    found: dict[str, set[str]] = {}
    for name, own in zip(names, _split_ids(ids, where), strict=True):
        found.setdefault(name, set()).update(own)
    return found


def _build_linking(
    names: dict[str, set[str]], texts: list[Any], ids: list[Any], name: str, where: str
) -> Linking:
    require_texts(texts, where)
    known = set().union(*names.values())
    kept: list[tuple[str, set[str]]] = []
    left_out: list[str] = []
    for text, own in zip(texts, _split_ids(ids, where), strict=True):
        if own & known:
            kept.append((text, own))
        else:
            left_out.append(text)
    if not kept:
        raise DataError(
            f"{where}: no concept of its {len(texts)} mentions has a name, for instance the id of "
            f"{texts[0]!r}, {ids[0]}; do both files have the same kind of ids?"
        )
    return Linking(names, kept, name, tuple(left_out))


def _split_ids(ids: list[Any], where: str) -> list[set[str]]:
    found: list[set[str]] = []
    for number, value in enumerate(ids, 1):
        own = set() if is_missing(value) else {part.strip() for part in str(value).split("|")}
        if not own or "" in own:
            raise DataError(f"{where}: the concept id in row {number} is missing")
        found.append(own)
    return found


# ---------------------------------------------------------------- questions and answers


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of texts, and whether the second follows from, or answers, the first: 1 or 0."""

    first: list[str]
    second: list[str]
    labels: list[int]
    name: str = "pairs"

    def __len__(self) -> int:
        return len(self.first)


def labelled_pairs_from(
    rows: Sequence[tuple[str, str, object]], *, name: str = "pairs"
) -> LabelledPairs:
    """Pairs from a list of (text, text, 0 or 1) rows."""
    first, second, labels = _columns_of(rows, 3, name, "(text, text, 0 or 1)")
    return _build_labelled_pairs(first, second, labels, name, name)


def read_labelled_pairs(
    path: str | Path, *, columns: Mapping[str, str] | None = None
) -> LabelledPairs:
    """Pairs from a table with the columns text, text2 and label, which is 1 or 0.

    The label may also be yes or no, true or false, entailment or not_entailment.
    """
    path = example_file(path)
    asked = dict(columns or {})
    table = read_table(path)
    first = _column(table, asked.get("text"), _FIRST, path, "text")
    second = _column(table, asked.get("text2"), _SECOND, path, "text2")
    labels = _column(table, asked.get("label"), _LABEL, path, "label")
    return _build_labelled_pairs(first, second, labels, path.stem, str(path))


def _build_labelled_pairs(
    first: list[Any], second: list[Any], labels: list[Any], name: str, where: str
) -> LabelledPairs:
    for column in (first, second):
        require_texts(column, where)
    numbers: list[int] = []
    for row, label in enumerate(labels, 1):
        answer = _ANSWERS.get(str(label).strip().lower())
        if answer is None:
            raise DataError(
                f"{where}: the label in row {row} is {label!r}; it must be 1 where the second text "
                "follows from the first, and 0 where it does not"
            )
        numbers.append(answer)
    if len(set(numbers)) < 2:
        raise DataError(
            f"{where}: all {len(numbers)} rows have the label {numbers[0]}; AUC compares rows of "
            "label 1 with rows of label 0"
        )
    return LabelledPairs(first, second, numbers, name)


# ---------------------------------------------------------------- columns


def _column(
    table: Table,
    asked: str | None,
    usual: Sequence[str],
    where: str | Path,
    option: str | None = None,
) -> list[Any]:
    """The column that is asked for, or the first with a usual name."""
    for name in (asked,) if asked else usual:
        if name in table:
            return table[name]
    remedy = f"; name the column to read with --{option} COLUMN" if option and not asked else ""
    raise DataError(f"{where} has no column {asked or usual[0]}; it has {', '.join(table)}{remedy}")


def _columns_of(rows: object, width: int, name: str, shape: str) -> list[list[Any]]:
    """The columns of rows that all have this width."""
    listed: list[Any] = [] if holds_no_rows(rows) else list(rows)  # type: ignore[call-overload]
    if not listed:
        raise DataError(f"{name} is empty; give a list of rows {shape}")
    for number, row in enumerate(listed, 1):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != width:
            raise DataError(f"{name}: row {number} is {row!r}; expected {shape}")
    return [list(column) for column in zip(*listed, strict=True)]
