"""Sentences to learn an embedding from: texts, pairs, or pairs with a hard negative each."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from closeknit.data.catalogue import CATALOGUE, load
from closeknit.data.examples import Rows
from closeknit.data.tables import SUFFIXES, Table, find_part, read_table
from closeknit.data.validation import check_whole_characters, holds_no_rows, is_missing
from closeknit.errors import DataError, did_you_mean

# The usual names of each column, in the order in which they are looked for.
USUAL_NAMES = {
    "text": ("text", "anchor", "sent0", "query", "question", "sentence1", "text1"),
    "text2": ("text2", "positive", "sent1", "answer", "sentence2"),
    "negative": ("negative", "hard_neg", "contradiction"),
    "label": ("label",),
}

# Labels of pairs that say whether the two texts belong together. So does any number of one digit.
_LABELS_OF_PAIRS = {
    *("0", "1", "yes", "no", "true", "false"),
    *("entailment", "neutral", "contradiction", "not_entailment"),
    *("duplicate", "not_duplicate", "paraphrase", "not_paraphrase"),
    *("equivalent", "not_equivalent"),
}
_ONE_DIGIT = re.compile(r"-?\d(\.0)?")


@dataclass(frozen=True)
class Sentences:
    """B texts in one to three columns: the text, a text that belongs to it, and a hard negative.

    A hard negative does not belong to the text, but could be mistaken for a text that does.
    Rows of one group are never negatives of each other. Rows with the same label are one group. If
    there are no labels, rows that share a text of the first two columns are one group.
    """

    columns: tuple[list[str], ...]
    groups: Rows  # (B,)
    name: str = "data"

    def __len__(self) -> int:
        return len(self.groups)

    def groups_of_negatives(self) -> Rows:
        """The group that each hard negative belongs to, (B,); -1 if it belongs to none.

        A negative belongs to a group if it is a text of the first two columns in a row of that
        group. The group of its own row comes first.
        """
        members: dict[str, list[int]] = {}
        for column in self.columns[:2]:
            for text, group in zip(column, self.groups.tolist(), strict=True):
                members.setdefault(text, []).append(group)
        found = np.full(len(self), -1, dtype=np.int64)
        for row, negative in enumerate(self.columns[2]):
            groups = members.get(negative)
            if groups:
                own = int(self.groups[row])
                found[row] = own if own in groups else groups[0]
        return found

    def select(self, rows: Sequence[int]) -> Sentences:
        """The same columns with only these rows, in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        columns = tuple([column[row] for row in chosen] for column in self.columns)
        return Sentences(columns, self.groups[chosen], self.name)


# ---------------------------------------------------------------- from Python


def sentences_from(
    rows: Sequence[object], labels: Sequence[object] | None = None, *, name: str = "data"
) -> Sentences:
    """Sentences from a list of texts, (text, text2) pairs or (text, text2, negative) triplets."""
    if holds_no_rows(rows):
        kind = type(rows).__name__
        raise DataError(f"{name} is a {kind}; give a list of texts, of pairs or of triplets")
    listed: list[Any] = rows.tolist() if isinstance(rows, np.ndarray) else list(rows)
    if not listed:
        raise DataError(f"{name} is empty: there is no text")
    first = listed[0]
    if isinstance(first, str):
        return build_sentences((listed,), labels, name)
    width = len(first) if isinstance(first, Sequence) else 0
    if width not in (2, 3):
        raise DataError(
            f"{name}: row 1 is {first!r}; give texts, pairs of texts or triplets of texts"
        )
    for number, row in enumerate(listed, 1):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != width:
            raise DataError(f"{name}: row {number} does not have {width} texts as row 1 has")
    columns = tuple([row[column] for row in listed] for column in range(width))
    return build_sentences(columns, labels, name)


def build_sentences(
    columns: Sequence[Sequence[Any]], labels: Sequence[object] | None, name: str
) -> Sentences:
    """Checked sentences; a row with a blank text or without its label is refused."""
    for column in columns:
        _check_texts(column, name)
    if labels is not None:
        if len(labels) != len(columns[0]):
            raise DataError(f"{name} has {len(columns[0])} texts and {len(labels)} labels")
        without_label = sum(map(is_missing, labels))
        if without_label:  # these rows would count as rows of one class
            raise DataError(
                f"{name}: {without_label} of {len(labels)} rows have no label; "
                "give these rows a label, or remove them"
            )
    return Sentences(tuple(list(column) for column in columns), _groups(columns, labels), name)


def _check_texts(column: Sequence[Any], name: str) -> None:
    for number, text in enumerate(column, 1):
        if not isinstance(text, str):
            problem = f"not a string but {type(text).__name__}"
        elif not text.strip():
            problem = "empty"
        else:
            continue
        raise DataError(f"{name}: the text in row {number} is {problem}; fix the row, or remove it")
    check_whole_characters(column, name)


def _groups(columns: Sequence[Sequence[str]], labels: Sequence[object] | None) -> Rows:
    """The group number of each row."""
    if labels is None:
        return _groups_of_shared_texts(columns[:2])
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(str(label), len(numbers)) for label in labels]
    return np.array(groups, dtype=np.int64)


def _groups_of_shared_texts(columns: Sequence[Sequence[str]]) -> Rows:
    """One number for all rows that share a text, directly or through other rows (union-find)."""
    parent = list(range(len(columns[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    first_row_with: dict[str, int] = {}
    for column in columns:
        for row, text in enumerate(column):
            parent[root(row)] = root(first_row_with.setdefault(text, row))
    return np.array([root(row) for row in range(len(parent))], dtype=np.int64)


# ---------------------------------------------------------------- from files


def read_sentences(
    source: str, *, columns: Mapping[str, str] | None = None, prefer: str = "train"
) -> Sentences:
    """Sentences from a file, a folder of parts, or the texts of a data set of the catalogue.

    `columns` names the columns to read as text, text2, negative or label where they do not have
    their usual names. Of a folder, the preferred part is read, or the only one. Rows with a blank
    text are skipped.
    """
    asked = dict(columns or {})
    path = Path(source)
    if not path.exists() and source in CATALOGUE:
        if asked:
            raise DataError(
                f"{source} is a data set of the catalogue, so its texts are read; "
                "columns can only be named for a file"
            )
        return build_sentences((load(source).training.texts,), None, source)
    if not path.exists() and not path.suffix:
        hint = did_you_mean(source, CATALOGUE)
        raise DataError(
            f"{source} is neither a file, a folder nor a data set of the catalogue{hint}"
        )
    if path.is_dir():
        _, path = find_part(path, prefer, suffixes=(*SUFFIXES, ".txt"), any_name=True)
    table = read_table(path)
    found = _pick_columns(table, asked, path)
    _refuse_pairs_that_may_not_belong_together(table, found, asked, path)
    return _without_blank_texts(found, path)


def _pick_columns(table: Table, asked: Mapping[str, str], path: Path) -> Table:
    """The columns text, text2, negative and label of a table, as far as it has them."""
    found: Table = {}
    for role, usual in USUAL_NAMES.items():
        if role in asked:
            if asked[role] not in table:
                raise DataError(f"{path} has no column {asked[role]}; it has {', '.join(table)}")
            found[role] = table[asked[role]]
            continue
        may_be_guessed = role == "text" or (role != "label" and len(table) > 1)
        names = [name for name in usual if name in table and name not in asked.values()]
        if may_be_guessed and names:
            found[role] = table[names[0]]
    if "text" not in found:
        taken = set(USUAL_NAMES["text"]) & set(asked.values())
        exception = " except the one that is named for another purpose" if taken else ""
        raise DataError(
            f"{path} has no column text{exception}; it has {', '.join(table)}; "
            "name the column to read with --text COLUMN"
        )
    if "negative" in found and "text2" not in found:
        raise DataError(
            f"{path} has negatives, but no column text2 with the text that belongs to each text; "
            "name it with --text2 COLUMN"
        )
    return found


def _refuse_pairs_that_may_not_belong_together(
    table: Table, found: Collection[str], asked: Collection[str], path: Path
) -> None:
    """Refuse pairs with a label or a score that may say that they do not belong together."""
    if "text2" not in found or {"text", "text2"} <= set(asked):
        return
    labels = table.get("label", []) if "label" not in asked else []
    kinds = sorted({str(value).lower() for value in labels})
    if kinds and all(kind in _LABELS_OF_PAIRS or _ONE_DIGIT.fullmatch(kind) for kind in kinds):
        raise DataError(
            f"{path} has pairs and a column label that says which of them belong together "
            f"({', '.join(kinds)}): pairs that do not belong together would be learnt as if they "
            "did. Keep the rows that do (in a multi-task study, pretrain.positives names their "
            "label). If label means something else, name the columns with --text and --text2"
        )
    if "score" in table:
        raise DataError(
            f"{path} has pairs and a column score: pairs with a low score would be learnt as if "
            "they belonged together. Keep the rows with a high score, without that column; "
            "or name the columns with --text and --text2"
        )


def _without_blank_texts(found: Table, path: Path) -> Sentences:
    texts = [found[role] for role in ("text", "text2", "negative") if role in found]
    kept = [
        number
        for number, row in enumerate(zip(*texts, strict=True))
        if all(str(text or "").strip() for text in row)
    ]
    if not kept:
        raise DataError(f"{path}: every row has an empty text")
    columns = [[values[row] for row in kept] for values in texts]
    labels = [found["label"][row] for row in kept] if "label" in found else None
    return build_sentences(columns, labels, str(path))


def sentences_from_labelled_pairs(source: str, positive: str, negative: str = "") -> Sentences:
    """Pairs that belong together, from a data set with a label that says so for each pair.

    The rows with the label `positive` are taken. With `negative`, the hard negative of a text is
    the second text of a row with that label and the same first text; a text without such a row is
    skipped. In this way entailment and contradiction of an inference data set make triplets.
    """
    examples = load(source).training
    if examples.pairs is None:
        raise DataError(
            f"{source} holds single texts; labels that say what belongs together need pairs: "
            "a table with the columns text and text2"
        )
    for label in filter(None, (positive, negative)):
        if label not in examples.classes:
            hint = did_you_mean(label, examples.classes)
            raise DataError(f"{source} has no label {label}{hint}")
    second_texts: dict[str, dict[str, list[str]]] = {positive: {}, negative: {}}
    labels = examples.required_labels
    for text, pair, label in zip(examples.texts, examples.pairs, labels, strict=True):
        if label in second_texts:
            second_texts[label].setdefault(text, []).append(pair)
    rows: list[tuple[str, ...]] = []
    for text, answers in second_texts[positive].items():
        if not negative:
            rows += [(text, answer) for answer in answers]
            continue
        wrong = second_texts[negative].get(text, [])
        if wrong:  # each answer gets another hard negative, as far as there are enough
            rows += [(text, answer, wrong[i % len(wrong)]) for i, answer in enumerate(answers)]
    if not rows:
        raise DataError(
            f"{source} has no text with both a row of {positive} and a row of {negative}"
        )
    return sentences_from(rows, name=source)
