"""Checks of options and labels; each raises a ConfigError that says what was found and expected."""

from __future__ import annotations

import math

from torch import Tensor

from closeknit.errors import ConfigError


def positive(name: str, value: float) -> float:
    """The value, if it is finite and above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name} is {value}; it must be above 0")
    return value


def not_negative(name: str, value: float) -> float:
    """The value, if it is finite and at least 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{name} is {value}; it must not be negative")
    return value


def share(name: str, value: float) -> float:
    """The value, if it lies between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is {value}; it must be from 0 to 1")
    return value


def one_label_each(y: Tensor, rows: int) -> None:
    """Refuses labels y that are not of shape (rows,).

    Torch would broadcast labels of another shape without an error, and the loss would be wrong.
    """
    if y.shape != (rows,):
        raise ConfigError(
            f"the labels have shape {tuple(y.shape)}; {rows} rows need labels of shape ({rows},)"
        )
