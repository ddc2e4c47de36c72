"""Class names written as words, so that a model can also learn from the name of a class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

# Matches what separates the words of a class name: a change to a capital letter, or these marks.
_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|[_/#|.:+-]+")


def class_name_as_words(name: str) -> str:
    """The words of a class name, in lower case.

    `Refund_not_showing_up` becomes "refund not showing up", and `GetWeather` becomes "get weather".
    """
    return " ".join(_WORD_BOUNDARY.sub(" ", name).split()).lower()


def descriptive_class_names(classes: Sequence[str]) -> list[str]:
    """The class names that describe their class in words, in the order in which they are given.

    Such a name has at least one word: two letters, or one letter that is not ASCII. No other class
    has the same letters. If some names differ only in digits and marks, as `2 stars` and `3 stars`
    do, then every name with a digit counts as a number and is left out.
    """
    letters = {name: _letters_of(name) for name in classes}
    classes_with = Counter(letters.values())
    some_are_numbered = any(text and count > 1 for text, count in classes_with.items())

    def describes_its_class(name: str) -> bool:
        text = letters[name]
        has_word = len(text) > 1 or not text.isascii()
        is_number = some_are_numbered and any(character.isdigit() for character in name)
        return has_word and classes_with[text] == 1 and not is_number

    return [name for name in classes if describes_its_class(name)]


def _letters_of(name: str) -> str:
    return "".join(character for character in class_name_as_words(name) if character.isalpha())
