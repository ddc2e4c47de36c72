"""Text and files with one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
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


def append_json_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append an object as one line, which is on the disk before this returns."""
    with path.open("ab") as file:
        file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def remove_unfinished_line(path: Path) -> int:
    """Remove a last line that has no line break; the number of removed bytes.

    A process that is killed while it writes a line leaves such a line.
    """
    if not path.exists():
        return 0
    content = path.read_bytes()
    finished = content.rfind(b"\n") + 1
    if finished < len(content):
        with path.open("r+b") as file:
            file.truncate(finished)
    return len(content) - finished


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, in order; none if the file is missing.

    A line that is damaged, or that is no JSON object, is skipped.
    """
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            continue
        yield from parse_json_lines(text, str(path), damaged="skip")
