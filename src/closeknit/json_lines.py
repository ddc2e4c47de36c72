"""Files with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, in order.

    A missing file has none. A damaged line, or one that is not an object, is skipped.
    """
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record
