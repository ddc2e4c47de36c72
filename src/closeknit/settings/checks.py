"""What one setting may be: its rule, and the checks of a value against rule and type."""

from __future__ import annotations

import json
import math
import numbers
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from closeknit.errors import ConfigError, did_you_mean

UNSET: Any = object()  # stands for no value, where None is one


@dataclass(frozen=True)
class Rule:
    """What `setting` declares beside the type and the default."""

    help: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    finite: bool = True  # refuse infinity; NaN is always refused
    choices: tuple[str, ...] = ()
    example: str = ""  # ends the message about a wrong type
    default_text: str = ""  # stands in the documentation instead of the default
    changes_result: bool = True  # whether a resumed run must have the same value
    since: int = 1  # the format of keys in which the setting appeared
    before: Any = (
        UNSET  # the value that counts for runs from before the setting; unset: the default
    )


def check_value(name: str, value: Any, expected: Any, rule: Rule) -> None:
    """Refuse a value that is not of the expected type, not finite, out of range or no choice."""
    check_type(name, value, expected, rule.example)
    if isinstance(value, Mapping):
        inner = typing.get_args(expected)
        for key, item in value.items() if inner else ():
            check_value(f"{name}.{key}", item, inner[1], rule)
    elif rule.choices and value is not None and value not in rule.choices:
        near = did_you_mean(str(value), [choice for choice in rule.choices if choice])
        raise ConfigError(f"{name} is {value}{near}")
    elif is_number(value) and not in_range(value, rule):
        raise ConfigError(
            f"{name} is {value}; it must {range_in_words(rule, isinstance(value, float))}"
        )


def check_type(name: str, value: Any, expected: Any, example: str = "") -> None:
    """Refuse a value that is not of the expected type; the message may end with an example."""
    if fits(value, expected):
        return
    wanted = in_words(expected) + (f", like {example}" if example else "")
    if fits("", expected) and is_number(value):
        wanted += f"; a number is one in quotes: '{name}=\"{shown(value)}\"'"
    raise ConfigError(f"{name} is {shown(value)}; it must be {wanted}")


def fits(value: Any, expected: Any) -> bool:
    """Whether a value is of the expected type: a whole number is a number, a truth value is not."""
    if expected is Any or type(value) is expected:
        return True
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, one) for one in inner)
    if isinstance(value, bool):
        return expected is bool
    if expected is int:
        return isinstance(value, numbers.Integral)
    if expected is float:
        return isinstance(value, numbers.Real)
    if origin in (list, tuple):
        allowed = list if origin is list else (list, tuple)
        return isinstance(value, allowed) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, Mapping)
    return isinstance(value, expected)


def is_number(value: Any) -> bool:
    """Whether a value is a number; a truth value does not count as one."""
    return type(value) in (int, float) or (
        isinstance(value, numbers.Real) and not isinstance(value, bool)
    )


def in_range(value: float, rule: Rule) -> bool:
    """Whether a number is within the limits of a rule; NaN is within none."""
    if math.isnan(value) or (rule.finite and math.isinf(value)):
        return False
    return not (
        (rule.at_least is not None and value < rule.at_least)
        or (rule.above is not None and value <= rule.above)
        or (rule.at_most is not None and value > rule.at_most)
        or (rule.below is not None and value >= rule.below)
    )


def range_in_words(rule: Rule, fraction: bool) -> str:
    """What a number must do to be within the limits: `be at least 1`, `be from 0 to below 1`."""
    lower = rule.at_least if rule.above is None else rule.above
    upper = rule.at_most if rule.below is None else rule.below
    if upper is not None and lower is not None:
        if rule.above is not None:
            return f"be above {lower} and {'at most' if rule.below is None else 'below'} {upper}"
        return f"be from {lower} to {'' if rule.below is None else 'below '}{upper}"
    kind = "a finite number " if fraction and rule.finite else ""
    if rule.above is not None:
        return f"be {kind}above {lower}"
    if lower == 0:
        return f"be {kind}that is not negative" if kind else "not be negative"
    if lower is not None:
        return f"be {kind}of at least {lower}" if kind else f"be at least {lower}"
    return "be a finite number"


def shown(value: object) -> str:
    """A value as a message shows it: texts in quotes."""
    return json.dumps(value, default=str)


_ONE = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "a table",
    types.NoneType: "none",
}
_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


def in_words(expected: Any, many: bool = False) -> str:
    """A type as a message names it: `a whole number or none`, `a list of texts`."""
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(in_words(one, many) for one in inner)
    if origin in (list, tuple):
        items = "" if inner[0] is Any else f" of {in_words(inner[0], many=True)}"
        return f"{'lists' if many else 'a list'}{items}"
    kind = origin or expected
    return (_MANY if many else _ONE).get(kind, str(kind))
