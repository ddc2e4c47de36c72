"""The tables of the result rows that are kept here: python studies/tables.py

For each results/NAME.jsonl results/NAME.md, with the tests that `closeknit compare` makes. A cell with fewer runs than its study asks
for is left out, and named at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from closeknit.protocol import Result
from closeknit.report import markdown_report, summarise

RESULTS = Path(__file__).parent / "results"


def tables(path: Path) -> str:
    rows = [Result(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    parts = []
    for encoder in dict.fromkeys(row.encoder for row in rows):
        own = [row for row in rows if row.encoder == encoder]
        runs = Counter((row.data, row.size, row.objective) for row in own)
        whole = {cell for cell, number in runs.items() if number >= own[0].folds}
        kept = [row for row in own if (row.data, row.size, row.objective) in whole]
        based = {row.data for row in kept if row.objective == "cross_entropy"}
        kept = [row for row in kept if row.data in based]
        text = f"# {path.stem}: {encoder}\n\n"
        if kept:
            text += markdown_report(summarise(kept, "cross_entropy"), "cross_entropy")
        left = [f"{data}, {size:,} rows, {objective}: {runs[data, size, objective]} of {own[0].folds}"
                for data, size, objective in runs if (data, size, objective) not in whole]  # fmt: skip
        if left:
            text += "\nLeft out, with fewer runs than folds: " + "; ".join(left) + ".\n"
        parts.append(text)
    return "\n".join(parts)


if __name__ == "__main__":
    for path in sorted(RESULTS.glob("*.jsonl")):
        if not path.stem.endswith("-trials"):
            path.with_suffix(".md").write_text(tables(path), encoding="utf-8")
