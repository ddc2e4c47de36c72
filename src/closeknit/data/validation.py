"""Checks of raw columns: every text is a string, every row has a label, and scores are numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from closeknit.errors import DataError

EMPTY_CHOICES = ("error", "drop")
_NOT_A_LABEL = (list, tuple, dict, set, bytes, np.ndarray)
_ROWS_SHOWN = 5
_HOW_TO_SKIP = "; fix these rows, or skip them (on the command line: --set data.empty=drop)"


def check_empty_choice(choice: str) -> None:
    """Refuse a setting `data.empty` that is not one of the choices."""
    if choice not in EMPTY_CHOICES:
        raise DataError(f'data.empty is "{choice}"; it must be "error" or "drop"')


def check_texts(values: Sequence[object], column: str, where: str, *, empty: str) -> list[int]:
    """The row indices of blank texts; refuses a value that is not a string.

    With `empty="drop"` a missing value counts as a blank text; with "error" it is refused.
    """
    blank = [row for row, value in enumerate(values) if is_missing(value)]
    wrong = [row for row, value in enumerate(values) if not isinstance(value, str)]
    only_missing = set(wrong) <= set(blank)
    if empty == "drop":
        wrong = sorted(set(wrong) - set(blank))
    if wrong:
        kind = type(values[wrong[0]]).__name__
        remedy = _HOW_TO_SKIP if only_missing else ""
        raise DataError(
            f"{where}: {column} is not a string but {kind} in {rows_in_words(wrong)}{remedy}"
        )
    check_whole_characters(values, where)
    return blank


def require_texts(values: Sequence[object], where: str) -> None:
    """Refuse a column unless every value is a text that is not blank."""
    for number, value in enumerate(values, 1):
        if not isinstance(value, str):
            kind = type(value).__name__
            raise DataError(f"{where}: a text is not a string but {kind} in row {number}")
        if not value.strip():
            raise DataError(f"{where}: empty text in row {number}")
    check_whole_characters(values, where)


def refuse_blank_texts(blank: Sequence[int], where: str) -> None:
    """Raise an error that names the rows with a blank text, if there are any."""
    if blank:
        raise DataError(f"{where}: empty text in {rows_in_words(sorted(set(blank)))}{_HOW_TO_SKIP}")


def check_scores(
    values: Sequence[object], where: str, *, empty: str
) -> tuple[list[float], list[int]]:
    """The scores, with NaN for one that is not a finite number, and the row indices of those."""
    scores = [finite_number(value) for value in values]
    missing = [row for row, score in enumerate(scores) if score is None]
    if missing and empty == "error":
        shown = values[missing[0]]
        raise DataError(
            f"{where}: the score is {shown!r}, not a number, in {rows_in_words(missing)}{_HOW_TO_SKIP}"
        )
    return [math.nan if score is None else score for score in scores], missing


def check_labels(labels: Sequence[object], where: str) -> None:
    """Refuse labels unless every row has one label, all of one kind, and no two labels differ only
    in spaces.
    """
    wrong = [row for row, value in enumerate(labels) if isinstance(value, _NOT_A_LABEL)]
    if wrong:
        kind = type(labels[wrong[0]]).__name__
        raise DataError(
            f"{where}: the label is a {kind} in {rows_in_words(wrong)}; "
            "a text has one class, given as a string or a number"
        )
    missing = [row for row, value in enumerate(labels) if is_missing(value)]
    if missing:
        raise DataError(
            f"{where}: no label in {rows_in_words(missing)}; give these rows a label, or remove them"
        )
    refuse_several_kinds(labels, where)
    check_whole_characters(labels, where)
    first_spelling: dict[str, str] = {}
    for label in sorted(set(map(str, labels))):
        spelling = first_spelling.setdefault(label.strip(), label)
        if spelling != label:
            raise DataError(
                f'{where}: the labels "{spelling}" and "{label}" differ only in spaces; '
                "write them in the same way"
            )


def refuse_several_kinds(labels: Sequence[object], where: str) -> None:
    """Refuse labels of several kinds, like 1, 1.0, true and "1", which would be several classes."""
    first_row: dict[str, int] = {}
    for row, label in enumerate(labels):
        value = label.item() if isinstance(label, np.generic) else label
        first_row.setdefault(type(value).__name__, row)
    if len(first_row) > 1:
        shown = ", ".join(
            f"{labels[row]!r} is {kind} in row {row + 1}" for kind, row in first_row.items()
        )
        raise DataError(
            f"{where}: labels are of several kinds ({shown}); give one kind, such as strings"
        )


def check_whole_characters(texts: Sequence[object], where: str) -> None:
    """Refuse texts with half a character, which neither a tokeniser nor a file accepts.

    A text that was cut inside an emoji can end with one.
    """
    found: list[tuple[int, str]] = []
    for row, text in enumerate(texts):
        half = _half_character(text) if isinstance(text, str) else None
        if half is not None:
            found.append((row, half))
    if found:
        rows = rows_in_words([row for row, _ in found])
        raise DataError(
            f"{where}: half a character ({found[0][1]}), as of an emoji that was cut in two, "
            f"in {rows}; remove it"
        )


def _half_character(text: str) -> str | None:
    """The first half of a character in a text, as Python writes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return ascii(text[error.start])[1:-1]
    return None


def finite_number(value: object) -> float | None:
    """The value as a finite number, or None if it is not one."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def is_missing(value: object) -> bool:
    """Whether a cell holds no value: a blank string, None, NaN, or a missing value of pandas."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, _NOT_A_LABEL):
        return False
    try:
        return bool(value != value)  # True for NaN and for NaT
    except TypeError:  # pandas.NA cannot be compared
        return True


def holds_no_rows(values: object) -> bool:
    """Whether a value cannot be read as rows: it is no list, array or column.

    A string, a set, a dictionary and a whole table are not rows either.
    """
    is_listed = hasattr(values, "__iter__") or hasattr(values, "__getitem__")
    is_other_container = isinstance(values, str | bytes | set | frozenset | Mapping)
    is_table = hasattr(values, "columns")
    return not is_listed or is_other_container or is_table


def rows_in_words(indices: Sequence[int]) -> str:
    """Row indices for a message, counted from 1: `row 3` or `rows 3, 7, 9, 10, 12 and 4 more`."""
    shown = ", ".join(str(index + 1) for index in indices[:_ROWS_SHOWN])
    hidden = len(indices) - _ROWS_SHOWN
    more = f" and {hidden} more" if hidden > 0 else ""
    plural = "s" if len(indices) > 1 else ""
    return f"row{plural} {shown}{more}"
