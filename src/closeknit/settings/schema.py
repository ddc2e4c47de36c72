"""What documentation and editors show of settings: Markdown tables and JSON schemas."""

from __future__ import annotations

import types
import typing
from typing import Any

from closeknit.settings.checks import Rule
from closeknit.settings.configuration import Configuration, tables_of
from closeknit.settings.table import Setting, SettingsTable, settings_of

DRAFT = "http://json-schema.org/draft-07/schema#"  # the one that editors of TOML understand

# ---------------------------------------------------------------- Markdown


def settings_markdown(kind: type[SettingsTable]) -> str:
    """The settings of a table in Markdown: name, default, allowed values, meaning."""
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for one in settings_of(kind).values():
        cells = (f"`{one.name}`", _default_text(one), _values_text(one), one.rule.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _default_text(one: Setting) -> str:
    if one.rule.default_text or one.required:
        return one.rule.default_text or "required"
    default = one.default
    if default is None:
        return "none"
    if isinstance(default, str):
        return f"`{default}`" if default else "empty"
    if isinstance(default, list | tuple | dict):
        return f"`{list(default)}`" if default else "empty"
    return f"{default:g}" if isinstance(default, float) else str(default).lower()


def _values_text(one: Setting) -> str:
    """The allowed values of a setting in a few words."""
    rule = one.rule
    kind = one.type
    if rule.choices:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in rule.choices)
    alternatives = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return " or ".join(_type_text(alternative, rule) for alternative in alternatives)


def _type_text(kind: Any, rule: Rule) -> str:
    names = {
        bool: "true or false",
        float: "number",
        int: "whole number",
        str: "text",
        list: "list",
        tuple: "list",
        dict: "table",
        types.NoneType: "none",
    }
    name = names.get(typing.get_origin(kind) or kind, "any")
    limits = _limits_text(rule)
    return f"{name} {limits}" if limits and kind in (int, float) else name


def _limits_text(rule: Rule) -> str:
    lower = f"≥ {rule.at_least:g}" if rule.at_least is not None else ""
    lower = f"> {rule.above:g}" if rule.above is not None else lower
    upper = f"≤ {rule.at_most:g}" if rule.at_most is not None else ""
    upper = f"< {rule.below:g}" if rule.below is not None else upper
    return " and ".join(limit for limit in (lower, upper) if limit)


# ---------------------------------------------------------------- JSON schema


def json_schema(kind: type[Configuration], title: str) -> dict[str, Any]:
    """The JSON schema of a run file, for editors; it refuses unknown tables and settings."""
    tables: dict[str, Any] = {}
    for name, field in tables_of(kind).items():
        table = table_schema(field.kind)
        if field.group:
            table = {"type": "object", "additionalProperties": table}
        elif field.listed:
            table = {"anyOf": [table, {"type": "array", "items": table}]}
        tables[name] = table
    return file_schema(title, tables)


def file_schema(title: str, tables: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a file with these tables and no others."""
    return {
        "$schema": DRAFT,
        "title": title,
        "type": "object",
        "properties": tables,
        "additionalProperties": False,
    }


def table_schema(kind: type[SettingsTable]) -> dict[str, Any]:
    """The JSON schema of one table of settings."""
    own = kind.editor_schema()
    if own is not None:
        return own
    known = settings_of(kind)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _setting_schema(one) for name, one in known.items()},
        "additionalProperties": False,
    }
    required = [name for name, one in known.items() if one.required]
    return {**schema, "required": required} if required else schema


def _setting_schema(one: Setting) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": one.rule.help, **_type_schema(one.type, one.rule)}
    default = one.default
    return schema if default is None or one.required else {**schema, "default": default}


def _type_schema(kind: Any, rule: Rule) -> dict[str, Any]:
    """The JSON schema of a type; TOML has no null, so a setting that may be None is left out
    there.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        kinds = [one for one in inner if one is not types.NoneType]
        schemas = [_type_schema(one, rule) for one in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    if origin in (list, tuple):
        return {"type": "array", "items": _type_schema(inner[0], rule)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type_schema(inner[1], rule)}
    if kind in (int, float):
        return {"type": "integer" if kind is int else "number", **_limits_schema(rule)}
    if kind is str:
        return (
            {"type": "string", "enum": list(rule.choices)} if rule.choices else {"type": "string"}
        )
    return {"type": "boolean"} if kind is bool else {}


def _limits_schema(rule: Rule) -> dict[str, float]:
    limits = {
        "minimum": rule.at_least,
        "exclusiveMinimum": rule.above,
        "maximum": rule.at_most,
        "exclusiveMaximum": rule.below,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}
