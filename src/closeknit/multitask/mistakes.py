"""The wrong answers of a task, and the CSV files that hold them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.data.examples import Examples

Floats = npt.NDArray[np.float32]

LONGEST_FIELD = 2**31 - 1  # characters of a text in a CSV file


@dataclass(frozen=True)
class Mistake:
    """One wrong answer.

    `size` is the probability of a wrong class, or the distance of a score from the right one.
    `overlap` is the share of words that the two texts of a pair have in common.
    """

    text: str
    text2: str
    expected: str
    predicted: str
    size: float
    overlap: float | None = None

    @staticmethod
    def columns() -> tuple[str, ...]:
        """The header of the CSV file."""
        return tuple(field.name for field in fields(Mistake))

    def row(self) -> list[Any]:
        """The cells of the CSV file."""
        overlap = "" if self.overlap is None else round(self.overlap, 4)
        return [self.text, self.text2, self.expected, self.predicted, round(self.size, 4), overlap]

    @staticmethod
    def from_row(row: Sequence[str]) -> Mistake:
        """The mistake in a row of the CSV file."""
        text, text2, expected, predicted, size, overlap = row
        return Mistake(
            text, text2, expected, predicted, float(size), float(overlap) if overlap else None
        )


def word_overlap(first: str, second: str) -> float:
    """The share of all words that are in both texts: 0 no common word, 1 the same words."""
    first_words = set(re.findall(r"\w+", first.lower()))
    second_words = set(re.findall(r"\w+", second.lower()))
    all_words = first_words | second_words
    return len(first_words & second_words) / len(all_words) if all_words else 0.0


def class_mistakes(
    examples: Examples, labels: Sequence[str], probabilities: Floats
) -> list[Mistake]:
    """The rows whose most probable class, by probabilities (R, C), is wrong.

    The most confident mistake comes first.
    """
    predicted = probabilities.argmax(axis=1)
    expected = examples.required_labels
    confidence = [float(probabilities[row, predicted[row]]) for row in range(len(examples))]
    wrong = [row for row in range(len(examples)) if labels[predicted[row]] != expected[row]]
    wrong.sort(key=lambda row: -confidence[row])
    return [
        _mistake(examples, row, expected[row], labels[predicted[row]], confidence[row])
        for row in wrong
    ]


def score_mistakes(examples: Examples, scores: Floats, *, share: float = 0.2) -> list[Mistake]:
    """The pairs whose score is wrong by more than this share of the range of scores.

    The pair with the largest error comes first.
    """
    expected = np.array(examples.required_scores)
    errors = np.abs(expected - scores)
    tolerance = share * float(expected.max() - expected.min())
    rows = [int(row) for row in np.argsort(-errors, kind="stable") if errors[row] > tolerance]
    return [
        _mistake(
            examples, row, f"{expected[row]:.2f}", f"{float(scores[row]):.2f}", float(errors[row])
        )
        for row in rows
    ]


def _mistake(examples: Examples, row: int, expected: str, predicted: str, size: float) -> Mistake:
    text = examples.texts[row]
    if examples.pairs is None:
        return Mistake(text, "", expected, predicted, size)
    second = examples.pairs[row]
    return Mistake(text, second, expected, predicted, size, word_overlap(text, second))


def write_mistakes(path: Path, mistakes: Iterable[Mistake]) -> None:
    """Write the mistakes into a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Mistake.columns())
        writer.writerows(mistake.row() for mistake in mistakes)


def read_mistakes(path: Path) -> list[Mistake]:
    """The mistakes in a CSV file; none if it is missing or has other columns."""
    if not path.exists():
        return []
    csv.field_size_limit(LONGEST_FIELD)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows or tuple(rows[0]) != Mistake.columns():
        return []
    return [Mistake.from_row(row) for row in rows[1:]]
