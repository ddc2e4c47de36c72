"""The class number of every row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from closeknit.data.examples import Examples
from closeknit.errors import DataError, did_you_mean


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
