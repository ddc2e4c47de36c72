"""Changed texts: the second view of a text with a span masked, with synonyms, or by a function.

A change is a function of the seed of the run, the epoch and the number of the row, and of nothing
else. A run that is resumed therefore changes each text as a run that was never interrupted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from closeknit.errors import ConfigError, DataError

# Scripts without blanks between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer.
UNSPACED_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)

SHORTEST = 30  # characters; shorter texts are not masked, as in Mirror-BERT
BUNDLED_SYNONYMS = Path(__file__).parent / "bundled" / "synonyms.tsv"


class TextChange(Protocol):
    """Changes texts; `rows` are the numbers of their rows, `side` 1 is the second text of pairs."""

    def __call__(
        self, texts: Sequence[str], rows: Sequence[int], epoch: int, side: int = 0
    ) -> list[str]: ...


def generator_of(seed: int, epoch: int, row: int, side: int) -> np.random.Generator:
    """The random numbers for one text in one epoch."""
    return np.random.default_rng((seed, epoch, row, side) if side else (seed, epoch, row))


# ---------------------------------------------------------------- masked spans


@dataclass(frozen=True)
class MaskedSpans:
    """Replaces `length` characters at a random place of each text by the encoder's mask token."""

    length: int
    mask: str
    seed: int

    def __call__(
        self, texts: Sequence[str], rows: Sequence[int], epoch: int, side: int = 0
    ) -> list[str]:
        return [
            mask_span(text, self.length, self.mask, generator_of(self.seed, epoch, row, side))
            for text, row in zip(texts, rows, strict=True)
        ]


def mask_span(text: str, length: int, mask: str, generator: np.random.Generator) -> str:
    """The text with `length` characters at a random place replaced by the mask token.

    Texts shorter than SHORTEST stay unchanged.
    """
    if length == 0 or len(text) < SHORTEST or len(text) <= length:
        return text
    start = int(generator.integers(len(text) - length + 1))
    return f"{text[:start]} {mask} {text[start + length :]}"


# ---------------------------------------------------------------- synonyms

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Synonyms:
    """Replaces a share of the words that have synonyms, and at least one, by one of these."""

    words: dict[str, tuple[str, ...]]  # a word in lower case -> its synonyms
    share: float
    seed: int

    def __call__(
        self, texts: Sequence[str], rows: Sequence[int], epoch: int, side: int = 0
    ) -> list[str]:
        return [
            self.replaced(text, generator_of(self.seed, epoch, row, side))
            for text, row in zip(texts, rows, strict=True)
        ]

    def replaced(self, text: str, generator: np.random.Generator) -> str:
        """One text with some of its words replaced; without a known word it stays unchanged."""
        known = [found for found in _WORD.finditer(text) if found.group().lower() in self.words]
        if not known:
            return text
        amount = max(1, round(self.share * len(known)))
        chosen = sorted(generator.permutation(len(known))[:amount].tolist())
        pieces: list[str] = []
        end = 0
        for place in chosen:
            found = known[place]
            synonyms = self.words[found.group().lower()]
            synonym = synonyms[int(generator.integers(len(synonyms)))]
            pieces += [text[end : found.start()], _in_case_of(found.group(), synonym)]
            end = found.end()
        return "".join([*pieces, text[end:]])


def _in_case_of(word: str, synonym: str) -> str:
    """The synonym in capitals, or with a capital first letter, where the word is written so."""
    if len(word) > 1 and word.isupper():
        return synonym.upper()
    return synonym[:1].upper() + synonym[1:] if word[:1].isupper() else synonym


def read_synonyms(path: Path) -> dict[str, tuple[str, ...]]:
    """The synonyms of each word, from a file with a group of words per line, separated by tabs.

    Each word of a line may replace each other word of it. A word may stand in several lines.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"the synonym file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the synonym file {path} cannot be read as UTF-8 text: {error}"
        ) from None
    if not lines:
        raise ConfigError(f"the synonym file {path} is empty; write a group of words per line")
    synonyms: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        group = _group_of(line, f"line {number} of the synonym file {path}")
        for word in group:
            known = synonyms.setdefault(word.lower(), [])
            known += [other for other in group if other != word and other not in known]
    return {word: tuple(others) for word, others in synonyms.items()}


def _group_of(line: str, place: str) -> list[str]:
    """The words of a line; `place` says in an error where the line is."""
    expected = "a line holds at least two different words, separated by tabs"
    if not line.strip():
        raise ConfigError(f"{place} is empty; {expected}")
    group = [word.strip() for word in line.split("\t")]
    if not all(group):
        raise ConfigError(f"{place} has an empty field; {expected}")
    if len({word.lower() for word in group}) < max(2, len(group)):
        found = "holds one word" if len(group) == 1 else "holds a word twice"
        raise ConfigError(f"{place} {found} ({group[0]}); {expected}")
    return group


# ---------------------------------------------------------------- a function of the user


@dataclass(frozen=True)
class ChangedByFunction:
    """Gives texts to a function of the user, and checks what it returns.

    Inside, the generators of `random` and of NumPy are seeded, so that a function that draws from
    them changes the texts of a resumed run as those of a run without an interruption.
    """

    function: Callable[[list[str]], Sequence[str]]
    seed: int

    def __call__(
        self, texts: Sequence[str], rows: Sequence[int], epoch: int, side: int = 0
    ) -> list[str]:
        given = list(texts)
        with _seeded_generators(self.seed, epoch, int(rows[0]) if len(rows) else 0, side):
            changed = self.function(given)
        if isinstance(changed, str) or not isinstance(changed, Sequence | np.ndarray):
            kind = type(changed).__name__
            raise DataError(
                f"the function for the second view returned a {kind}; it must return a list of "
                f"{len(texts)} texts"
            )
        if len(changed) != len(texts):
            raise DataError(
                f"the function for the second view returned {len(changed)} rows for {len(texts)} "
                "texts; it must return one text for each, in the same order"
            )
        for text in changed:
            if not isinstance(text, str):
                raise DataError(
                    f"the function for the second view returned {text!r} among its texts; it must "
                    "return texts"
                )
        return [str(text) for text in changed]


@contextmanager
def _seeded_generators(*numbers: int) -> Iterator[None]:
    """Inside, `random` and NumPy's global generator depend on these numbers alone."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
