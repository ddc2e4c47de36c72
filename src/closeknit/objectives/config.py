"""ObjectiveConfig: the objective of a run by its name, and the options of that objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from closeknit.errors import ConfigError
from closeknit.objectives import OBJECTIVES, objective_options
from closeknit.objectives.copies import Copies
from closeknit.settings import SettingsTable, check_type, not_a_table, setting, unknown_setting

# Objectives that had an option from the beginning which others have got later.
_FROM_THE_BEGINNING = {("joint", "copies"), ("triple_entropy", "tokens")}
# What objectives did before these options existed, where they do something else by default now.
_BEFORE = {"ce_copies": "all"}


def _later_options(name: str) -> dict[str, Any]:
    """The options of an objective that were added, with what it did before it had them."""
    defaults = objective_options(name)
    added = [*(field.name for field in fields(Copies)), "ce_copies", "tokens", "token_rows"]
    return {
        key: _BEFORE.get(key, defaults[key])
        for key in added
        if key in defaults and (name, key) not in _FROM_THE_BEGINNING
    }


# Options that an objective has got after runs with it were stored, with the value that the
# objective had before: {"supcon": {"new_option": 0.0}}. At that value they do not change the key of
# a run.
LATER_OPTIONS: dict[str, dict[str, Any]] = {name: _later_options(name) for name in OBJECTIVES}


@dataclass(frozen=True)
class ObjectiveConfig(SettingsTable, table="objective"):
    """A name of the OBJECTIVES table and the options it takes; in a file both stand in one
    table.
    """

    name: str = setting(
        "cross_entropy", help="Name of the objective, as `closeknit objectives` lists it."
    )
    options: dict[str, Any] = setting(
        default_factory=dict,
        help="Options of the objective, as `closeknit objectives NAME` lists them.",
    )

    def check_relations(self) -> None:
        """Refuse options that the objective does not have, and values of a wrong type."""
        known = objective_options(self.name)
        for option, value in self.options.items():
            if option not in known:
                raise ConfigError(unknown_setting("objective", option, known, f" for {self.name}"))
            kind = type(known[option])
            if kind in (int, float, bool, str):
                check_type(f"objective.{option}", value, kind)

    def to_dict(self) -> dict[str, Any]:
        """One flat table: the name, and every option of the objective."""
        return {"name": self.name, **objective_options(self.name), **self.options}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "") -> Self:
        """The objective of a flat table; options at their default are not kept."""
        if not isinstance(values, Mapping):
            raise not_a_table(name or cls.table)
        given = {key: value for key, value in values.items() if key != "name"}
        objective = values.get("name", cls.name)
        defaults = objective_options(objective) if isinstance(objective, str) else {}
        options = {
            key: value
            for key, value in given.items()
            if key not in defaults or value != defaults[key]
        }
        return cls(objective, options)

    def changed_from_defaults(self) -> dict[str, Any]:
        """The name where it is another than the default, and the options that were given."""
        name = {} if self.name == type(self).name else {"name": self.name}
        return {**name, **self.options}

    def key_content(self) -> dict[str, Any]:
        """The name and all options, without later options at the value from before they existed."""
        later = LATER_OPTIONS.get(self.name, {})
        return {
            key: value
            for key, value in self.to_dict().items()
            if key not in later or value != later[key]
        }

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """A stored table with the options that its objective did not have yet."""
        name = values.get("name", cls.name)
        defaults = objective_options(name) if name in OBJECTIVES else {}
        return {"name": name, **defaults, **LATER_OPTIONS.get(name, {}), **values}

    @classmethod
    def editor_schema(cls) -> dict[str, Any]:
        """One alternative for each objective, with the options of that objective."""
        return {"anyOf": [objective_schema(name, needs_name=name != "auto") for name in OBJECTIVES]}


def objective_schema(name: str, *, needs_name: bool) -> dict[str, Any]:
    """The JSON schema of a table with the options of one objective."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    properties: dict[str, Any] = {"name": {"const": name}}
    for option, default in objective_options(name).items():
        schema: dict[str, Any] = {"type": kinds[type(default)]} if type(default) in kinds else {}
        properties[option] = schema if default is None else {**schema, "default": default}
    table = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**table, "required": ["name"]} if needs_name else table
