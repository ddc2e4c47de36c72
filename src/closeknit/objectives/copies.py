"""Copies: how often each text of a mini-batch is encoded, and how its second copy differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from closeknit.errors import ConfigError, did_you_mean
from closeknit.objectives.checks import positive

SECOND_VIEWS = ("dropout", "span", "synonyms", "drophead", "adversarial", "function")
OF_TEXTS = ("span", "synonyms", "function")  # these change the text before it is tokenised
OF_ENCODING = ("drophead", "adversarial")  # these change how the encoder reads the text
# The second view that reads an option; with any other second view the option does nothing.
READ_BY = {
    "mask": "span",
    "synonyms": "synonyms",
    "synonym_share": "synonyms",
    "drophead": "drophead",
    "epsilon": "adversarial",
}

# A function of the user: texts -> as many texts, in the same order.
TextFunction = Callable[[list[str]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The options of all named objectives that say how often each text is encoded, and how.

    copies: how often each text of a mini-batch is encoded, 1 or 2; every copy is a row for each
        term of the objective
    second_view: what makes the second copy of a text differ: dropout (nothing but dropout), span,
        synonyms, drophead, adversarial, or function (a function that is given in Python)
    mask: for span, the number of characters that the encoder's mask token replaces; 3 to 10
    synonyms: for synonyms, a file with a group of words per line, separated by tabs; none is the
        small English list that comes with Closeknit
    synonym_share: for synonyms, the share of the words with a synonym that are replaced, and at
        least one; 0.1 to 0.5
    drophead: for drophead, the share of the attention heads that are dropped; 0.05 to 0.2
    epsilon: for adversarial, the length of the change of a text's word embeddings, in units of
        their root mean square; 1 to 10
    """

    copies: int = 1
    second_view: str = "dropout"
    mask: int = 5
    synonyms: str | None = None
    synonym_share: float = 0.3
    drophead: float = 0.05
    epsilon: float = 5.0
    function: TextFunction | None = None  # not an option: no file can hold it

    def __post_init__(self) -> None:
        if self.copies not in (1, 2):
            raise ConfigError(f"objective.copies is {self.copies}; it must be 1 or 2")
        if self.second_view not in SECOND_VIEWS:
            hint = did_you_mean(str(self.second_view), SECOND_VIEWS)
            raise ConfigError(f"objective.second_view is {self.second_view}{hint}")
        if self.copies == 1 and self.second_view != "dropout":
            raise ConfigError(
                f"objective.second_view is {self.second_view}, but objective.copies is 1, so that "
                "there is no second copy; set objective.copies to 2"
            )
        self._check_values()
        self._check_read()

    def _check_values(self) -> None:
        if isinstance(self.mask, bool) or not isinstance(self.mask, int) or self.mask < 1:
            raise ConfigError(f"objective.mask is {self.mask}; it must be a whole number above 0")
        if self.synonyms is not None and not isinstance(self.synonyms, str):
            raise ConfigError(
                f"objective.synonyms is {self.synonyms}; it must be the name of a file"
            )
        if not 0.0 < self.synonym_share <= 1.0:
            raise ConfigError(
                f"objective.synonym_share is {self.synonym_share}; it must be above 0 and at most 1"
            )
        if not 0.0 < self.drophead < 1.0:
            raise ConfigError(f"objective.drophead is {self.drophead}; it must be between 0 and 1")
        positive("objective.epsilon", self.epsilon)

    def _check_read(self) -> None:
        """Refuse options that were set and that the second view does not read."""
        for option, reader in READ_BY.items():
            value = getattr(self, option)
            if reader != self.second_view and value != getattr(Copies, option):
                raise ConfigError(
                    f"objective.{option} is {value}, but it is for objective.second_view={reader}; "
                    "here it would do nothing"
                )

    @property
    def changes_texts(self) -> bool:
        """Whether the second copy of a text is tokenised from a changed text."""
        return self.copies == 2 and self.second_view in OF_TEXTS

    @property
    def changes_encoding(self) -> bool:
        """Whether the encoder reads the second copies in another way than the first ones."""
        return self.copies == 2 and self.second_view in OF_ENCODING


ONCE = Copies()
TWICE = Copies(copies=2)
