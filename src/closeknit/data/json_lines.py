"""JSON lines: text with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from closeknit.errors import DataError


def parse_json_lines(
    text: str, where: str, *, damaged: Literal["refuse", "skip"] = "refuse"
) -> Iterator[dict[str, Any]]:
    """The objects of a text, one per line; blank lines are skipped.

    A line that is not a JSON object is refused with its number, or skipped with `damaged="skip"`.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if damaged == "skip":
                continue
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise DataError(f"{where}, line {number}: not JSON ({reason})") from None
        if isinstance(record, dict):
            yield record
        elif damaged == "refuse":
            raise DataError(
                f'{where}, line {number}: expected an object such as {{"text": …, "label": …}}'
            )
