"""Refusing options and labels that make no sense, in one voice."""

from __future__ import annotations

import math

from torch import Tensor

from closeknit.errors import ConfigError


def positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{name} is {value}; it must be above 0")
    return value


def not_negative(name: str, value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{name} is {value}; it must not be negative")
    return value


def share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is {value}; it must be from 0 to 1")
    return value


def one_label_each(y: Tensor, rows: int) -> None:
    """Labels of another shape would be spread over the rows in silence, and give a number that means nothing."""
    if y.shape != (rows,):
        raise ConfigError(
            f"the labels have shape {tuple(y.shape)}; {rows} rows need labels of shape ({rows},)"
        )
