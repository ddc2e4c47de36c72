"""Settings that are given as arguments of an estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closeknit.errors import ConfigError


def given_settings(**settings: Any) -> dict[str, Any]:
    """The settings that were given; the others come with the objective or method."""
    return {name: value for name, value in settings.items() if value is not None}


def settings_argument(**given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The settings of one argument, by its name; refused where it holds none."""
    ((name, settings),) = given.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(f"{name} is {settings!r}; it must be a dictionary of settings")
    return settings or {}


def plain_values(value: Any) -> Any:
    """Settings as a run file would hold them, however deep: no numbers or arrays of NumPy, no
    tensors, no paths.
    """
    if isinstance(value, Mapping):
        return {key: plain_values(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(own) for own in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


def unnamed_settings(values: Mapping[str, Any], *named: str) -> dict[str, Any]:
    """The settings of a table that have no argument of their own, but for those that are not
    set.
    """
    return {key: value for key, value in values.items() if key not in named and value is not None}


def changed_settings(
    values: Mapping[str, Any], named: Sequence[str], defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The settings that have no argument of their own and are not at their default."""
    return {k: v for k, v in values.items() if k not in named and v != defaults[k]} or None
