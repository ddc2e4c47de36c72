"""Sentences to learn an embedding from: texts, pairs of texts, or pairs with a hard negative each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import catalogue
from .data import PARTS, SUFFIXES, Rows, check_whole, holds_no_rows, is_missing, read_table
from .errors import DataError, did_you_mean

# What columns are called, in the order in which they are looked for.
NAMES = {
    "text": ("text", "anchor", "sent0", "query", "question", "sentence1", "text1"),
    "text2": ("text2", "positive", "sent1", "answer", "sentence2"),
    "negative": ("negative", "hard_neg", "contradiction"),
    "label": ("label",),
}


# Labels of pairs that say whether the two belong together.
_JUDGED = {"0", "1", "yes", "no", "true", "false", "entailment", "neutral", "contradiction", "not_entailment",
           "duplicate", "not_duplicate", "paraphrase", "not_paraphrase", "equivalent", "not_equivalent"}  # fmt: skip


@dataclass(frozen=True)
class Sentences:
    """B texts in one to three columns: the text; what belongs to it; what does not, but could be taken for it.

    Rows of one group are never negatives of each other: rows of a label, or, where there are none, rows that share a text of
    the first two columns.
    """

    columns: tuple[list[str], ...]
    groups: Rows  # (B,)
    name: str = "data"

    def __len__(self) -> int:
        return len(self.groups)

    def select(self, rows: Sequence[int]) -> Sentences:
        chosen = np.asarray(rows, dtype=np.int64)
        columns = tuple([column[row] for row in chosen] for column in self.columns)
        return Sentences(columns, self.groups[chosen], self.name)


def sentences_from(
    rows: Sequence[object], labels: Sequence[object] | None = None, *, name: str = "data"
) -> Sentences:
    """Sentences from a list of strings, of (text, text2) pairs, or of (text, text2, negative) triplets."""
    if holds_no_rows(rows):
        raise DataError(f"{name} is a {type(rows).__name__}; give a list of texts, of pairs or of triplets")
    listed: list[Any] = rows.tolist() if isinstance(rows, np.ndarray) else list(rows)
    if not listed:
        raise DataError(f"{name} is empty: there is no text")
    if isinstance(listed[0], str):
        return build_sentences((listed,), labels, name)
    width = len(listed[0]) if isinstance(listed[0], Sequence) else 0
    if width not in (2, 3):
        raise DataError(f"{name}: row 1 is {listed[0]!r}; give texts, pairs of texts or triplets of texts")
    wrong = [
        i
        for i, row in enumerate(listed)
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != width
    ]
    if wrong:
        raise DataError(f"{name}: row {wrong[0] + 1} has not {width} texts as row 1 has")
    return build_sentences(tuple([row[i] for row in listed] for i in range(width)), labels, name)


def build_sentences(
    columns: Sequence[Sequence[Any]], labels: Sequence[object] | None, name: str
) -> Sentences:
    """Checked sentences; rows with an empty text are refused."""
    for column in columns:
        for row, text in enumerate(column):
            if not isinstance(text, str) or not text.strip():
                what = "empty" if isinstance(text, str) else f"not a string but {type(text).__name__}"
                raise DataError(f"{name}: the text in row {row + 1} is {what}; mend it, or leave the row out")
        check_whole(column, name)
    if labels is not None:
        if len(labels) != len(columns[0]):
            raise DataError(f"{name} has {len(columns[0])} texts and {len(labels)} labels")
        without = sum(map(is_missing, labels))
        if without:  # they would be taken for rows of one class
            raise DataError(
                f"{name}: {without} of {len(labels)} rows have no label; mend them, or leave them out"
            )
    return Sentences(tuple(list(column) for column in columns), _groups(columns, labels), name)


def _groups(columns: Sequence[Sequence[str]], labels: Sequence[object] | None) -> Rows:
    """A number for each row: its label's, or the same for rows that share a text, directly or through others."""
    if labels is not None:
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(str(label), len(numbers)) for label in labels], dtype=np.int64)
    parent = list(range(len(columns[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    first: dict[str, int] = {}
    for column in columns[:2]:
        for row, text in enumerate(column):
            parent[root(row)] = root(first.setdefault(text, row))
    return np.array([root(row) for row in range(len(parent))], dtype=np.int64)


def read_sentences(source: str, *, columns: dict[str, str] | None = None, prefer: str = "train") -> Sentences:
    """Sentences from a file, a folder of parts (the preferred or only one), or the texts of a catalogue data set.

    `columns` names others than the usual columns for text, text2, negative and label. Rows with an empty text are left out.
    """
    asked = columns or {}
    path = Path(source)
    if path.is_dir():
        path = _part_of(path, prefer)
    elif not path.exists() and source in catalogue.CATALOGUE:
        if asked:
            raise DataError(
                f"{source} is a data set of the catalogue, of which the texts are taken; columns are named of files"
            )
        examples = catalogue.load(source).training
        return build_sentences((examples.texts,), None, source)
    elif not path.exists() and not path.suffix:
        raise DataError(
            f"{source} is neither a file, a folder nor a data set of the catalogue{did_you_mean(source, catalogue.CATALOGUE)}"
        )
    table = read_table(path)
    found: dict[str, list[Any]] = {}
    for role, usual in NAMES.items():
        if role in asked:
            if asked[role] not in table:
                raise DataError(f"{path} has no column {asked[role]}; it has {', '.join(table)}")
            found[role] = table[asked[role]]
        elif role != "label" and not (role != "text" and len(table) == 1):
            known = next((name for name in usual if name in table and name not in asked.values()), None)
            if known is not None:
                found[role] = table[known]
    if "text" not in found:
        other = " but the one named for something else" if {*NAMES["text"]} & {*asked.values()} else ""
        raise DataError(
            f"{path} has no column text{other}; it has {', '.join(table)}; name yours with --text COLUMN"
        )
    if "negative" in found and "text2" not in found:
        raise DataError(
            f"{path} has negatives but no column text2 that holds what belongs to a text; name it with --text2 COLUMN"
        )
    judged = (
        "text2" in found
        and "label" in table
        and "label" not in asked
        and not {"text", "text2"} <= asked.keys()
    )
    kind = {str(value).lower() for value in table["label"]} if judged else set()
    if kind and all(one in _JUDGED or re.fullmatch(r"-?\d(\.0)?", one) for one in kind):
        raise DataError(
            f"{path} has pairs and a column label that judges them ({', '.join(sorted(kind))}): pairs that do not belong "
            "together would be learnt as if they did. Keep the rows that do (in a multi-task study: pretrain.positives names "
            "their label); or, if label means something else, name the columns with --text and --text2"
        )
    if "text2" in found and "score" in table and not {"text", "text2"} <= asked.keys():
        raise DataError(
            f"{path} has pairs and a column score: pairs with a low score would be learnt as if they belonged together. Keep "
            "the rows with a high one, without that column; or name the columns with --text and --text2"
        )
    roles = [role for role in ("text", "text2", "negative") if role in found]
    kept = [
        row for row in range(len(found["text"])) if all(str(found[role][row] or "").strip() for role in roles)
    ]
    if not kept:
        raise DataError(f"{path} has no row without an empty text")
    found = {role: [values[row] for row in kept] for role, values in found.items()}
    return build_sentences([found[role] for role in roles], found.get("label"), str(path))


def judged_sentences(source: str, positive: str, negative: str = "") -> Sentences:
    """Pairs that belong together, from a data set that says of each pair whether it does: rows of the label `positive`.

    With `negative`, a text's hard negative is the second text of a row of that label with the same first text; only texts
    that have one are taken. Entailment and contradiction of an inference data set make triplets this way.
    """
    examples = catalogue.load(source).training
    if examples.pairs is None:
        raise DataError(
            f"{source} holds single texts; what belongs together is told of pairs: columns text and text2"
        )
    for label in filter(None, (positive, negative)):
        if label not in examples.classes:
            raise DataError(f"{source} has no label {label}{did_you_mean(label, examples.classes)}")
    second: dict[str, dict[str, list[str]]] = {positive: {}, negative: {}}
    for text, pair, label in zip(examples.texts, examples.pairs, examples.required_labels, strict=True):
        if label in second:
            second[label].setdefault(text, []).append(pair)
    rows = [
        (text, pair, against[i % len(against)]) if negative else (text, pair)
        for text, pairs in second[positive].items()
        for against in [second[negative].get(text, []) if negative else [""]]
        for i, pair in enumerate(pairs)
        if against
    ]
    if not rows:
        raise DataError(f"{source} has no text with both a row of {positive} and one of {negative}")
    return sentences_from(rows, name=source)


def _part_of(folder: Path, prefer: str) -> Path:
    files = {part: folder / f"{part}{suffix}" for part in reversed(PARTS) for suffix in (*SUFFIXES, ".txt")
             if (folder / f"{part}{suffix}").exists()}  # fmt: skip
    for part in (prefer, "all"):
        if part in files:
            return files[part]
    held = sorted(path.name for path in folder.iterdir())
    only = [name for name in held if Path(name).suffix in SUFFIXES]
    if len(only) == 1 and Path(only[0]).stem != "test":  # nothing is learnt from a test part unasked
        return folder / only[0]
    raise DataError(
        f"{folder} has no {prefer} or all file; name one of the files in it: {', '.join(held[:8]) or 'it holds nothing'}"
    )
