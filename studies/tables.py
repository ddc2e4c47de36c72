"""The tables of the result rows that are kept here: python studies/tables.py

For each results/NAME.jsonl results/NAME.md, with the tests that `closeknit compare` makes. A cell that has run on half its folds
or fewer is left out; what is not whole is named at the end. Draws the label distances that CLLD learnt, too.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from closeknit.plots import distance_map
from closeknit.protocol import read_results
from closeknit.report import markdown_report, summarise

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def tables(path: Path) -> str:
    rows = read_results(path)
    parts = []
    for encoder in dict.fromkeys(row.encoder for row in rows):
        own = [row for row in rows if row.encoder == encoder]
        runs = Counter((row.data, row.size, row.objective) for row in own)
        kept = [row for row in own if 2 * runs[row.data, row.size, row.objective] > row.folds]
        based = {row.data for row in kept if row.objective == "cross_entropy"}
        kept = [row for row in kept if row.data in based]
        text = f"# {path.stem}: {encoder}\n\n"
        if kept:
            text += markdown_report(summarise(kept, "cross_entropy"), "cross_entropy")
        short = [
            f"{data}, {size:,} rows, {objective}: {number} of {own[0].folds}"
            for (data, size, objective), number in runs.items()
            if number < own[0].folds
        ]
        if short:
            text += "\nNot whole: " + "; ".join(short) + ".\n"
        parts.append(text)
    return "\n".join(parts)


if __name__ == "__main__":
    for path in sorted(RESULTS.glob("*.jsonl")):
        if not path.stem.endswith("-trials"):
            path.with_suffix(".md").write_text(tables(path), encoding="utf-8")
    learnt = json.loads((RESULTS / "clld-ablation-distance.json").read_text(encoding="utf-8"))
    distance = np.asarray(learnt["distance"], dtype=np.float32)
    distance_map(IMAGES / "label-distance-20newsgroups.png", distance, learnt["labels"])
