"""A table of settings: a frozen dataclass whose fields are declared with `setting`."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from closeknit.errors import ConfigError, did_you_mean
from closeknit.settings.checks import UNSET, Rule, check_value


def setting(
    default: Any = dataclasses.MISSING,
    *,
    default_factory: Any = dataclasses.MISSING,
    help: str,
    **rule: Any,
) -> Any:
    """A dataclass field that declares one setting. `rule` takes the fields of `Rule`.

    A setting that is added to a released table has `since=2` (or the then current format): at its
    value from `before` it changes neither the key of a run nor whether a stored run can be resumed.
    """
    metadata = {"rule": Rule(help, **rule)}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Setting:
    """One setting of a table: its name, type, default and rule."""

    name: str
    type: Any
    rule: Rule
    field: dataclasses.Field[Any]

    @property
    def required(self) -> bool:
        """Whether the setting has no default."""
        field = self.field
        return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

    @property
    def default(self) -> Any:
        """The default, a new one for each call where it can be changed; None for a required
        setting.
        """
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return None if self.required else self.field.default

    def check(self, value: Any, name: str) -> None:
        """Refuse a value of a wrong type, out of range or no choice; messages call it `name`."""
        check_value(name, value, self.type, self.rule)

    def with_none_named(self, value: Any) -> Any:
        """The value, or "none" for a setting that has this choice: the command line reads
        `--set method.noise=none` as None.
        """
        return "none" if value is None and "none" in self.rule.choices else value

    @property
    def before(self) -> Any:
        """The value that counts for runs which were stored before the setting existed."""
        return self.default if self.rule.before is UNSET else self.rule.before


def settings_of(kind: type[SettingsTable]) -> dict[str, Setting]:
    """The settings of a table by name."""
    return _settings_of(cast(Any, kind))


@functools.cache
def _settings_of(kind: Any) -> dict[str, Setting]:
    hints = typing.get_type_hints(kind)
    return {
        field.name: Setting(field.name, hints[field.name], field.metadata["rule"], field)
        for field in dataclasses.fields(kind)
    }


class SettingsTable:
    """The base of a table of settings: checks itself when it is made, and converts to a
    dictionary.
    """

    table: ClassVar[str]

    def __init_subclass__(cls, table: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.table = table

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in settings_of(type(self))}
        check_values(type(self), values)
        self.check_relations()

    def check_relations(self) -> None:
        """Refuse settings that contradict each other."""

    def to_dict(self) -> dict[str, Any]:
        """The table as it stands in a run file, with every default."""
        return dataclasses.asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "") -> Self:
        """The table with these values; unknown settings and wrong values are refused.

        `name` replaces the name of the table in messages.
        """
        name = name or cls.table
        if not isinstance(values, Mapping):
            raise not_a_table(name)
        known = settings_of(cls)
        values = {
            key: known[key].with_none_named(value) if key in known else value
            for key, value in values.items()
        }
        check_values(cls, values, name)
        for key, one in known.items():
            if one.required and key not in values:
                raise ConfigError(f"{name} has no setting {key}; it is required")
        return cls(**values)

    def changed_from_defaults(self) -> dict[str, Any]:
        """The settings whose values differ from the defaults of the table."""
        known = settings_of(type(self))
        return {key: value for key, value in self.to_dict().items() if value != known[key].default}

    def key_content(self) -> dict[str, Any]:
        """The settings that identify a run.

        These are all settings of the first format of keys, and of the later ones those that do not
        have the value from before they existed.
        """
        known = settings_of(type(self))
        return {
            name: value
            for name, value in self.to_dict().items()
            if known[name].rule.since == 1 or value != known[name].before
        }

    @classmethod
    def editor_schema(cls) -> dict[str, Any] | None:
        """The JSON schema of a table whose settings depend on each other; None: made from the
        rules.
        """
        return None

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Stored values, and those that count for settings which did not exist when they were
        stored.
        """
        return {**{one.name: one.before for one in settings_of(cls).values()}, **values}


def check_values(kind: type[SettingsTable], values: Mapping[str, Any], name: str = "") -> None:
    """Refuse settings that the table does not know, and values of a wrong type or out of range."""
    name = name or kind.table
    known = settings_of(kind)
    for key, value in values.items():
        if key not in known:
            raise ConfigError(unknown_setting(name, key, known))
        known[key].check(value, f"{name}.{key}")


def unknown_setting(table: str, key: str, known: Iterable[str], of: str = "") -> str:
    """`unknown setting train.stps; did you mean train.steps?`"""
    near = did_you_mean(key, known).replace("did you mean ", f"did you mean {table}.")
    return f"unknown setting {table}.{key}{of}{near}"


def not_a_table(name: str) -> ConfigError:
    """The error for a value that stands where a table is expected."""
    return ConfigError(f"{name} is not a table; write [{name}] and its settings below")
