"""Refusing options that make no sense, in one voice."""

from __future__ import annotations

import math

from ..errors import ConfigError


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
