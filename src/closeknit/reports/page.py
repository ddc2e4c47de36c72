"""What both pages share: rendering `report.html`, and helpers for texts and axes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from closeknit.charts.axis import format_number

REPORT = "report.html"
SHOWN_MISTAKES = 40  # of each objective or task
SHOWN_LETTERS = 400  # of a text


def write_page(folder: Path, template: str, contents: dict[str, Any], name: str = REPORT) -> Path:
    """Write a page into the folder and return its path.

    If that fails, an older page stays as it was.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("closeknit.reports", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"number": format_number, "flat": flat_settings}
    page = environment.get_template(template).render(**contents)
    target = folder / name
    unfinished = folder / f".{name}.{os.getpid()}"
    try:
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def flat_settings(options: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as pairs of a dotted name and a value in JSON."""
    if not isinstance(options, dict):
        return [(prefix, json.dumps(options, ensure_ascii=False))]
    pairs = []
    for name, value in options.items():
        pairs += flat_settings(value, f"{prefix}.{name}" if prefix else name)
    return pairs


def clipped(text: str) -> str:
    """The text, without its end if it is too long for a table."""
    if len(text) <= SHOWN_LETTERS:
        return text
    return text[: SHOWN_LETTERS - 1].rstrip() + "…"


def counted(count: int, noun: str) -> str:
    """The count and the noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def whole_ticks(last: int) -> list[int]:
    """About five whole numbers from 1 to `last` to write below an axis.

    There are no ticks if `last` is 1 or less.
    """
    return list(range(1, last + 1, 1 + (last - 1) // 6)) if last > 1 else []
