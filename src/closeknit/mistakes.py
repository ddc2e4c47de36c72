"""What a task gets wrong: misclassified texts, the surest first, and pairs by the error of their score."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .data.examples import Examples

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Mistake:
    """One wrong answer. `size` is its probability, or how far a score is off; `overlap` of a pair is a share of words."""

    text: str
    text2: str
    expected: str
    predicted: str
    size: float
    overlap: float | None = None

    @staticmethod
    def columns() -> tuple[str, ...]:
        return tuple(field.name for field in fields(Mistake))

    def row(self) -> list[Any]:
        overlap = "" if self.overlap is None else round(self.overlap, 4)
        return [self.text, self.text2, self.expected, self.predicted, round(self.size, 4), overlap]

    @staticmethod
    def from_row(row: Sequence[str]) -> Mistake:
        text, text2, expected, predicted, size, overlap = row
        return Mistake(text, text2, expected, predicted, float(size), float(overlap) if overlap else None)


def word_overlap(first: str, second: str) -> float:
    """The words that two texts have in common, as a share of all they have: 0 none, 1 the same words."""
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return len(a & b) / len(a | b) if a | b else 0.0


def class_mistakes(examples: Examples, labels: Sequence[str], chances: Floats) -> list[Mistake]:
    """The rows whose likeliest class, by probabilities (R, C), is wrong, the surest first."""
    found = chances.argmax(axis=1)
    expected = examples.required_labels
    wrong = [row for row in range(len(examples)) if labels[found[row]] != expected[row]]
    wrong.sort(key=lambda row: -float(chances[row, found[row]]))
    return [
        _mistake(examples, row, expected[row], labels[found[row]], float(chances[row, found[row]]))
        for row in wrong
    ]


def score_mistakes(examples: Examples, scores: Floats, *, share: float = 0.2) -> list[Mistake]:
    """The pairs whose score is off by more than this share of the scores' range, the farthest first."""
    truth = np.array(examples.required_scores)
    off = np.abs(truth - scores)
    reach = share * float(truth.max() - truth.min())
    rows = [int(row) for row in np.argsort(-off, kind="stable") if off[row] > reach]
    return [
        _mistake(examples, row, f"{truth[row]:.2f}", f"{float(scores[row]):.2f}", float(off[row]))
        for row in rows
    ]


def _mistake(examples: Examples, row: int, expected: str, predicted: str, size: float) -> Mistake:
    text = examples.texts[row]
    if examples.pairs is None:
        return Mistake(text, "", expected, predicted, size)
    second = examples.pairs[row]
    return Mistake(text, second, expected, predicted, size, word_overlap(text, second))


def write_mistakes(path: Path, mistakes: Iterable[Mistake]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Mistake.columns())
        writer.writerows(mistake.row() for mistake in mistakes)


def read_mistakes(path: Path) -> list[Mistake]:
    """Those of a folder; none when the file is missing or of another make."""
    if not path.exists():
        return []
    csv.field_size_limit(2**31 - 1)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows or tuple(rows[0]) != Mistake.columns():
        return []
    return [Mistake.from_row(row) for row in rows[1:]]
