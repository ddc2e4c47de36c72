"""Texts and labels that are given as Python objects: lists, arrays, columns of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.data.examples import Examples, from_python
from closeknit.data.validation import holds_no_rows, is_missing, refuse_several_kinds
from closeknit.errors import DataError


def as_list(texts: Any) -> Any:
    """Iterators are read once, here; what has a length is left as it is."""
    return texts if hasattr(texts, "__len__") or texts is None else list(texts)


def labelled_examples(X: Any, y: Any, name: str) -> tuple[Examples, npt.NDArray[Any], str]:
    """Texts with their labels, the labels as they were given, all of one kind, and that kind's
    name.
    """
    values = label_values(y, name)
    kinds = {type(value) for value in values}
    if float in kinds:
        raise DataError(f"{name}: labels are fractional numbers; give class names or whole numbers")
    if not kinds <= {str, int, bool}:
        kind = next(kind.__name__ for kind in kinds if kind not in (str, int, bool))
        raise DataError(f"{name}: labels are of the kind {kind}; give class names or whole numbers")
    refuse_several_kinds(values, name)
    labels = np.array(values)
    return (
        from_python(X, labels.tolist(), name=name),
        labels,
        next(iter(kinds)).__name__ if kinds else "str",
    )


def label_values(y: Any, name: str) -> list[Any]:
    """Labels as a list; none is missing."""
    if y is None:
        raise DataError(f"{name}: there are no labels; give one label a text")
    if holds_no_rows(y):
        raise DataError(
            f"{name}: the labels are a {type(y).__name__}; give a list, or one column of a table"
        )
    values = [value.item() if isinstance(value, np.generic) else value for value in y]
    if any(not isinstance(value, str) and is_missing(value) for value in values):
        raise DataError(f"{name}: some labels are missing (None or NaN)")
    return values
