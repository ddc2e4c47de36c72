"""Texts that occur both in the training data and in the data that an encoder is scored on."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from closeknit.data.scored_pairs import ScoredPairs
from closeknit.data.sentences import Sentences
from closeknit.errors import DataError


@dataclass(frozen=True)
class Overlap:
    """How many of the different texts of an evaluation set occur among the training texts."""

    data: str
    contained: int
    texts: int

    @property
    def share(self) -> float:
        """The share of the evaluation texts that the training data contain."""
        return self.contained / self.texts

    def __str__(self) -> str:
        return f"{self.data} {100 * self.share:.1f} % ({self.contained:,} of {self.texts:,} texts)"


@dataclass(frozen=True)
class Exclusion:
    """What `without_evaluated` has dropped: rows, and the different texts that were the reason."""

    rows: int
    texts: int


def normalised_text(text: str) -> str:
    """The form in which two texts are compared.

    Unicode is brought to its compatibility form (NFKC), upper case becomes lower case, a run of
    white space becomes one blank, and white space and punctuation at both ends are removed. A text
    of nothing but punctuation keeps its punctuation.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(folded.split())
    start = 0
    end = len(words)
    while start < end and _is_end_character(words[start]):
        start += 1
    while end > start and _is_end_character(words[end - 1]):
        end -= 1
    return words[start:end] or words


def _is_end_character(character: str) -> bool:
    return character.isspace() or unicodedata.category(character).startswith("P")


def overlaps(texts: Iterable[str], evaluated: Sequence[ScoredPairs]) -> list[Overlap]:
    """How many texts of each evaluation set occur among the training texts, after normalisation."""
    trained_on = set(map(normalised_text, texts))
    found: list[Overlap] = []
    for pairs in evaluated:
        different = set(map(normalised_text, pairs.texts))
        found.append(Overlap(pairs.name, len(different & trained_on), len(different)))
    return found


def without_evaluated(
    sentences: Sentences, evaluated: Sequence[ScoredPairs]
) -> tuple[Sentences, Exclusion]:
    """The rows of which no text occurs in an evaluation set, and what was dropped.

    Texts are compared after normalisation. A pair or triplet is dropped as a whole if any of its
    texts occurs.
    """
    forbidden = {normalised_text(text) for pairs in evaluated for text in pairs.texts}
    dropped_texts: set[str] = set()
    kept: list[int] = []
    for number, row in enumerate(zip(*sentences.columns, strict=True)):
        known = forbidden.intersection(map(normalised_text, row))
        if known:
            dropped_texts |= known
        else:
            kept.append(number)
    if not kept:
        names = ", ".join(dict.fromkeys(pairs.name for pairs in evaluated))
        raise DataError(
            f"{sentences.name}: every row has a text that occurs in the evaluation ({names}), so that "
            "nothing is left to train on; use other training texts or fewer evaluation sets"
        )
    rows = len(sentences) - len(kept)
    return sentences.select(kept), Exclusion(rows, len(dropped_texts))
