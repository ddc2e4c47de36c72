"""Examples: columns of texts, second texts, labels and scores, read from Python or from a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from closeknit.data.class_names import class_name_as_words
from closeknit.data.validation import (
    check_empty_choice,
    check_labels,
    check_scores,
    check_texts,
    holds_no_rows,
    refuse_blank_texts,
    rows_in_words,
)
from closeknit.errors import DataError, did_you_mean

T = TypeVar("T")
Rows = npt.NDArray[np.int64]  # row numbers, counted from 0


@dataclass(frozen=True)
class Examples:
    """Rows of text, each with an optional second text and an optional class name or score."""

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[str] | None = None
    name: str = "data"
    scores: list[float] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: Iterable[int]) -> Examples:
        """The same columns with only these rows, in this order."""
        order = [int(row) for row in rows]

        def take(column: list[T] | None) -> list[T] | None:
            return None if column is None else [column[row] for row in order]

        return Examples(
            texts=[self.texts[row] for row in order],
            pairs=take(self.pairs),
            labels=take(self.labels),
            name=self.name,
            scores=take(self.scores),
        )

    def with_class_names(self, names: Sequence[str]) -> Examples:
        """These rows and one more row per name: the class name in words, as a text of its class."""
        if self.pairs is not None:
            raise ValueError("a class name is one text, so it cannot be added to pairs of texts")
        return Examples(
            texts=[*self.texts, *map(class_name_as_words, names)],
            labels=[*self.required_labels, *names],
            name=self.name,
        )

    @property
    def classes(self) -> list[str]:
        """The class names, sorted."""
        return sorted(set(self.required_labels))

    @property
    def required_labels(self) -> list[str]:
        """The labels; raises an error if there are none."""
        if self.labels is None:
            raise DataError(f"{self.name} has no labels")
        return self.labels

    @property
    def required_scores(self) -> list[float]:
        """The scores; raises an error if there are none."""
        if self.scores is None:
            raise DataError(f"{self.name} has no scores")
        return self.scores


@dataclass(frozen=True)
class DataSet:
    """A named data set in parts: train, validation and test, or one part named all."""

    name: str
    parts: dict[str, Examples]

    @property
    def training(self) -> Examples:
        """The part to train on: train, or all if the data set has only one part."""
        for part in ("train", "all"):
            if part in self.parts:
                return self.parts[part]
        raise DataError(f"{self.name} has no part train; it has {', '.join(self.parts)}")

    def merged(self, names: Sequence[str]) -> Examples:
        """The rows of several parts, one part after the other."""
        for name in names:
            if name not in self.parts:
                raise DataError(f"{self.name} has no part {name}; it has {', '.join(self.parts)}")
        return concatenate([(name, self.parts[name]) for name in dict.fromkeys(names)], self.name)


def concatenate(parts: Sequence[tuple[str, Examples]], name: str) -> Examples:
    """The rows of several named examples, one after the other; all must have the same columns."""

    def column(role: str) -> list[Any] | None:
        columns = [getattr(examples, role) for _, examples in parts]
        some_lack_it = any(values is None for values in columns)
        if some_lack_it and any(values is not None for values in columns):
            names = ", ".join(part for part, _ in parts)
            raise DataError(f"{name}: not all of {names} have {role}")
        return None if some_lack_it else [value for values in columns for value in values]

    return Examples(
        texts=column("texts") or [],
        pairs=column("pairs"),
        labels=column("labels"),
        name=name,
        scores=column("scores"),
    )


def from_python(
    texts: Sequence[object],
    labels: Sequence[object] | None = None,
    *,
    name: str = "data",
    empty: str = "error",
) -> Examples:
    """Examples from a list of strings, or of (first, second) pairs, and optional class names.

    `empty` says what happens to a row with a blank text: "error" refuses it, and "drop" skips it.
    """
    if isinstance(texts, str | bytes):
        raise DataError(f"{name} is one string; give a list of strings")
    if holds_no_rows(texts):
        kind = type(texts).__name__
        raise DataError(f"{name} is a {kind}; give a list of strings, or one column of a table")
    rows = list(texts)
    if not rows:
        raise DataError(f"{name} is empty: there is no text")
    columns = _columns_of_pairs(rows, name) if _is_sequence(rows[0]) else {"text": rows}
    if labels is not None:
        listed = list(labels)
        if len(listed) != len(rows):
            raise DataError(
                f"{name} has {len(rows)} texts, but {len(listed)} labels; give one label per text"
            )
        columns["label"] = listed
    return build_examples(columns, name, empty=empty)


def _columns_of_pairs(rows: list[Any], name: str) -> dict[str, list[Any]]:
    wrong = [row for row, pair in enumerate(rows) if not _is_sequence(pair) or len(pair) != 2]
    if wrong:
        raise DataError(f"{name}: not a pair of texts in {rows_in_words(wrong)}")
    return {"text": [pair[0] for pair in rows], "text2": [pair[1] for pair in rows]}


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def single_texts(texts: Sequence[object]) -> list[str]:
    """The texts as a checked list of strings; refuses pairs of texts."""
    examples = from_python(texts, name="the texts")
    if examples.pairs is not None:
        raise DataError(
            "the texts are pairs, and a vector is made from one text; give a list of strings"
        )
    return examples.texts


def build_examples(columns: dict[str, list[Any]], name: str, *, empty: str = "error") -> Examples:
    """Checked examples from the raw columns text, text2, label and score.

    `empty` says what happens to a row whose text is blank or whose score is missing: "error"
    refuses it, and "drop" skips it. A row without a label is always refused.
    """
    check_empty_choice(empty)
    blank: list[int] = []
    for column in ("text", "text2"):
        if column in columns:
            blank += check_texts(columns[column], column, name, empty=empty)
    scores, without_score = check_scores(columns.get("score", []), name, empty=empty)
    if empty == "error":
        refuse_blank_texts(blank, name)
    labels = columns.get("label")
    if labels is not None:
        check_labels(labels, name)
    examples = Examples(
        texts=[str(text) for text in columns["text"]],
        pairs=[str(text) for text in columns["text2"]] if "text2" in columns else None,
        labels=None if labels is None else [str(label) for label in labels],
        name=name,
        scores=scores if "score" in columns else None,
    )
    dropped = {*blank, *without_score}
    if not dropped:
        return examples
    if len(dropped) == len(examples):
        raise DataError(f"{name}: no row is left; all {len(dropped)} are empty")
    return examples.select(row for row in range(len(examples)) if row not in dropped)


@dataclass(frozen=True)
class Fingerprint:
    """The number of rows of some examples and a hash of their content.

    A resumed run compares it to make sure that it continues with the same rows.
    """

    rows: int
    digest: str

    @staticmethod
    def of(*parts: Examples | None) -> Fingerprint:
        """The fingerprint of several examples together; None is skipped."""
        digest = hashlib.sha256()
        rows = 0
        for part in parts:
            if part is None:
                continue
            rows += len(part)
            for column in (part.texts, part.pairs, part.labels):
                digest.update(json.dumps(column).encode())
            if part.scores is not None:
                digest.update(json.dumps(part.scores).encode())
        return Fingerprint(rows, digest.hexdigest())


def label_numbers(examples: Examples, labels: Sequence[str]) -> npt.NDArray[np.int64]:
    """The class number of each row (R,)."""
    number = {label: i for i, label in enumerate(labels)}
    unknown = sorted(set(examples.required_labels) - set(number))
    if unknown:
        raise DataError(
            f"{examples.name}: the model does not know the label {unknown[0]}{did_you_mean(unknown[0], labels)}"
            + (f" ({len(unknown)} unknown labels in all)" if len(unknown) > 1 else "")
        )
    return np.array([number[label] for label in examples.required_labels], dtype=np.int64)
