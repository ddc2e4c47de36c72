"""A whole configuration: a frozen dataclass whose fields are tables of settings."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from closeknit.errors import ConfigError, did_you_mean
from closeknit.settings.table import SettingsTable, not_a_table, settings_of
from closeknit.settings.toml import to_toml


@dataclass(frozen=True)
class TableField:
    """One table of a configuration, a group of tables that the user names, or a list of tables."""

    kind: type[SettingsTable]
    group: bool
    start: dict[str, Any]  # where the defaults of this configuration differ from those of the table
    listed: bool = False


def tables_of(kind: type[Configuration]) -> dict[str, TableField]:
    """The tables of a configuration by name."""
    return _tables_of(cast(Any, kind))


@functools.cache
def _tables_of(kind: Any) -> dict[str, TableField]:
    hints = typing.get_type_hints(kind)
    found: dict[str, TableField] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if typing.get_origin(hint) is dict:
            found[field.name] = TableField(typing.get_args(hint)[1], True, {})
            continue
        if typing.get_origin(hint) is tuple:
            found[field.name] = TableField(typing.get_args(hint)[0], False, {}, listed=True)
            continue
        factory: Any = field.default_factory
        default: Any = field.default if factory is dataclasses.MISSING else factory()
        found[field.name] = TableField(hint, False, default.changed_from_defaults())
    return found


class Configuration:
    """The base of a frozen dataclass whose fields are tables of settings."""

    def __post_init__(self) -> None:
        self.check_relations()

    def check_relations(self) -> None:
        """Refuse tables that contradict each other."""

    def tables(self) -> dict[str, SettingsTable]:
        """The tables by name.

        Those of a group are called group.NAME; those of a list are called NAME, NAME.2, NAME.3.
        """
        found: dict[str, SettingsTable] = {}
        for name, field in tables_of(type(self)).items():
            value = getattr(self, name)
            if field.listed:
                found |= {numbered(name, place): table for place, table in enumerate(value)}
            elif field.group:
                found |= {f"{name}.{member}": table for member, table in value.items()}
            else:
                found[name] = value
        return found

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Flat tables with every default, as in a run file."""
        return {name: table.to_dict() for name, table in self.tables().items()}

    def to_toml(self) -> str:
        """The text of a run file with every default."""
        return to_toml(self.to_dict())

    def key_content(self) -> dict[str, dict[str, Any]]:
        """The settings that identify a run; see `SettingsTable.key_content`."""
        return {name: table.key_content() for name, table in self.tables().items()}

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Self:
        """The configuration of these tables; unknown names and wrong values are refused."""
        check_tables(cls, tables)
        made: dict[str, Any] = {}
        for name, field in tables_of(cls).items():
            if field.group:
                made[name] = {
                    member: _member(field.kind, f"{name}.{member}", values)
                    for member, values in _group(tables, name).items()
                }
            elif field.listed:
                made[name] = tuple(
                    _member(field.kind, numbered(name, place), values)
                    for place, values in enumerate(listed_tables(tables, name))
                )
            else:
                made[name] = field.kind.from_dict({**field.start, **tables.get(name, {})}, name)
        return cls(**made)

    @classmethod
    def completed(cls, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Stored tables with the values of settings that did not exist when they were stored."""
        kinds = {name: kind for name in tables if (kind := table_kind(cls, name)) is not None}
        kinds |= {name: field.kind for name, field in tables_of(cls).items() if not field.group}
        filled = {name: kind.completed(tables.get(name, {})) for name, kind in kinds.items()}
        return {**{name: dict(values) for name, values in tables.items()}, **filled}


def _group(tables: Mapping[str, Any], group: str) -> dict[Any, Any]:
    """The tables of a group, written as [group.NAME] or under that name in one dictionary."""
    prefix = f"{group}."
    dotted = {
        name.removeprefix(prefix): values
        for name, values in tables.items()
        if name.startswith(prefix)
    }
    return {**tables.get(group, {}), **dotted}


def numbered(name: str, place: int) -> str:
    """What the table at this place of a list is called: NAME, NAME.2, NAME.3."""
    return name if place == 0 else f"{name}.{place + 1}"


def listed_tables(tables: Mapping[str, Any], name: str) -> list[Any]:
    """The tables of a list, at least one.

    They are written as [[NAME]], or as [NAME], [NAME.2] and so on; the latter may also stand under
    these names in one dictionary.
    """
    written = tables.get(name, {})
    if isinstance(written, list):
        return written or [{}]
    inner = {key: values for key, values in written.items() if str(key).isdigit()}
    first = {key: value for key, value in written.items() if key not in inner}
    for key, values in tables.items():
        if key.startswith(f"{name}."):
            inner[key.removeprefix(f"{name}.")] = values
    further = [str(number) for number in range(2, len(inner) + 2)]
    if sorted(inner, key=int) != further:
        raise ConfigError(
            f"the tables of {name} are numbered {', '.join(sorted(inner, key=int))}; after [{name}] "
            f"comes [{name}.2], then [{name}.3]"
        )
    return [first, *(inner[number] for number in further)]


def _member(kind: type[SettingsTable], name: str, values: Any) -> SettingsTable:
    """A table of a group; every message about it begins with its name."""
    try:
        return kind.from_dict(values, name)
    except ConfigError as error:
        raise ConfigError(str(error) if name in str(error) else f"{name}: {error}") from None


def table_kind(kind: type[Configuration], name: str) -> type[SettingsTable] | None:
    """The class of a table of a configuration by the table's name, or None for an unknown name."""
    group, dot, inner = name.partition(".")
    field = tables_of(kind).get(group)
    if field is None:
        return None
    if field.listed:
        return field.kind if not dot or inner.isdigit() else None
    return field.kind if field.group == bool(dot) else None


def check_tables(kind: type[Configuration], tables: Mapping[str, Any]) -> None:
    """Refuse tables that the configuration does not know, and other values in the place of a
    table.
    """
    known = tables_of(kind)
    for name, values in tables.items():
        if name not in known and table_kind(kind, name) is None:
            raise ConfigError(f"unknown table [{name}]{did_you_mean(name, known)}")
        in_list = name in known and known[name].listed and isinstance(values, list)
        for table in values if in_list else [values]:
            if not isinstance(table, Mapping):
                raise not_a_table(name)


def _harmless(kind: type[SettingsTable] | None) -> set[str]:
    """The settings of a table that do not change the result of a run."""
    known = settings_of(kind) if kind is not None else {}
    return {name for name, one in known.items() if not one.rule.changes_result}


def differences(
    kind: type[Configuration],
    stored: Mapping[str, Mapping[str, Any]],
    now: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """`train.lr was 5e-05 and is 0.0001`, one for each setting that differs and changes the
    result.
    """
    found: list[str] = []
    before = kind.completed(stored)
    for table in dict.fromkeys([*before, *now]):
        old, new = before.get(table, {}), now.get(table, {})
        harmless = _harmless(table_kind(kind, table))
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key) and key not in harmless:
                found.append(f"{table}.{key} was {old.get(key)} and is {new.get(key)}")
    return found
