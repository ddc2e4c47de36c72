"""Settings as text: TOML files, and the changes that `--set` makes."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeknit.errors import ConfigError
from closeknit.settings.table import not_a_table

Changes = Sequence[tuple[str, Any]]  # (table.setting, value), the later ones over the earlier ones


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        texts = Path(path).suffix.lower() != ".toml"
        hint = "; a file with settings is expected here, not a file of texts" if texts else ""
        raise ConfigError(f"{path} is not valid TOML: {error}{hint}") from None


def parse_changes(texts: Iterable[str]) -> list[tuple[str, Any]]:
    """What `--set` was given, like `train.warmup=0.1`, as pairs of a name and a value."""
    changes: list[tuple[str, Any]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        table, dot, key = name.strip().partition(".")
        if not (equals and table and dot and key):
            raise ConfigError(
                f"cannot read --set {text}; write it as table.setting=value, like train.warmup=0.1"
            )
        changes.append((f"{table}.{key}", parse_value(value.strip())))
    return changes


def given_options(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The options of a command as changes; an option that is None was not given."""
    return [(name, value) for name, value in values.items() if value is not None]


def parse_value(text: str) -> Any:
    """A value as TOML reads it; `none` is None, and anything that is not TOML is a text."""
    if text.lower() == "none":
        return None
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def changed_tables(tables: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """The tables with these changes."""
    for name, value in changes:
        set_value(tables, name.split(".", 1), value)
    return tables


def set_value(tables: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the value at a path like (train, lr) and make the tables on the way; refuse what is no
    table.
    """
    for depth, key in enumerate(path[:-1], start=1):
        inner = tables.setdefault(key, {})
        if not isinstance(inner, dict):
            raise not_a_table(".".join(path[:depth]))
        tables = inner
    tables[path[-1]] = value


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Flat tables as a TOML file; settings that are None are left out."""
    lines: list[str] = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [
            f"{_toml_key(key)} = {_toml(value)}"
            for key, value in values.items()
            if value is not None
        ]
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        items = (
            f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items() if item is not None
        )
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf and nan are TOML, the words of JSON are not
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _toml(key)
