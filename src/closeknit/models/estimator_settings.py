"""Settings that are given as arguments of an estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closeknit.errors import ConfigError


def given_settings(**settings: Any) -> dict[str, Any]:
    """The settings that were given; the objective or method decides the others."""
    return {name: value for name, value in settings.items() if value is not None}


def settings_argument(**given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The settings in one argument, which is given by its name; refused if it is no dictionary."""
    ((name, settings),) = given.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"{name} is {settings!r}; it must be a dictionary of settings")
    return settings or {}


def plain_values(value: Any) -> Any:
    """Settings as a run file holds them, at every depth.

    Numbers and arrays of NumPy, tensors and paths become plain Python values.
    """
    if isinstance(value, Mapping):
        return {key: plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


def unnamed_settings(values: Mapping[str, Any], *named: str) -> dict[str, Any]:
    """The settings of a table that are set and are not arguments of the estimator (`named`)."""
    return {key: value for key, value in values.items() if key not in named and value is not None}


def changed_settings(
    values: Mapping[str, Any], named: Sequence[str], defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The settings that differ from their default and are not arguments of the estimator."""
    return {k: v for k, v in values.items() if k not in named and v != defaults[k]} or None
