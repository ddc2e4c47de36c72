"""The tables of the result rows that are kept here: python studies/tables.py

For each results/NAME.jsonl results/NAME.md, with the tests that `closeknit compare` makes. A cell that has run on half its folds
or fewer is left out; what is not whole is named at the end. Draws the label distances that CLLD learnt, and what the recipe
gains on every data set, too.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from closeknit.plots import distance_map, pyplot
from closeknit.report import markdown_report, summarise
from closeknit.studies.results import read_results

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def tables(path: Path) -> str:
    rows = read_results(path)
    parts = []
    for encoder in dict.fromkeys(row.encoder for row in rows):
        own = [row for row in rows if row.encoder == encoder]
        runs = Counter((row.data, row.size, row.objective) for row in own)
        kept = [row for row in own if 2 * runs[row.data, row.size, row.objective] > row.folds]
        names = [row.objective for row in own]
        reference = "cross_entropy" if "cross_entropy" in names else names[0]
        based = {row.data for row in kept if row.objective == reference}
        kept = [row for row in kept if row.data in based]
        text = f"# {path.stem}: {encoder}\n\n"
        if kept:
            text += markdown_report(summarise(kept, reference), reference)
        short = [
            f"{data}, {size:,} rows, {objective}: {number} of {own[0].folds}"
            for (data, size, objective), number in runs.items()
            if number < own[0].folds
        ]
        if short:
            text += "\nNot whole: " + "; ".join(short) + ".\n"
        parts.append(text)
    return "\n".join(parts)


def gains(name: str) -> dict[str, float]:
    """Points of weighted F1 that the recipe is ahead of a tuned cross-entropy on each data set of a study."""
    lines = summarise(read_results(RESULTS / f"{name}.jsonl"), "cross_entropy")
    return {line.data: 100 * line.gain.mean for line in lines if line.objective == "auto" and line.gain}


def recipe_chart(path: Path) -> None:
    plt = pyplot()
    groups = {"had a part in choosing it": gains("small"), "had none": gains("fresh")}
    colours = dict(zip(groups, ("#8a97a0", "#c8553d"), strict=True))
    every = sorted((gain, data, title) for title, own in groups.items() for data, gain in own.items())
    figure, axes = plt.subplots(figsize=(8.5, 7.2), layout="constrained")
    axes.barh([data.replace("_", " ") for _, data, _ in every], [gain for gain, _, _ in every],
              color=[colours[title] for _, _, title in every], height=0.7)  # fmt: skip
    axes.axvline(0, color="black", linewidth=0.8)
    for title, own in groups.items():
        mean = float(np.mean(list(own.values())))
        axes.axvline(mean, color=colours[title], linestyle="--", linewidth=1.2)
        label = f"data sets that {title}: {mean:+.2f} on average"
        axes.scatter([], [], marker="s", s=80, color=colours[title], label=label)
    axes.legend(loc="lower right", frameon=False)
    axes.set_xlabel("points of weighted F1 that `auto` is ahead of a tuned cross-entropy, 1,000 rows")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.margins(y=0.01)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    for path in sorted(RESULTS.glob("*.jsonl")):
        if not path.stem.endswith("-trials"):
            path.with_suffix(".md").write_text(tables(path), encoding="utf-8")
    learnt = json.loads((RESULTS / "clld-ablation-distance.json").read_text(encoding="utf-8"))
    distance = np.asarray(learnt["distance"], dtype=np.float32)
    distance_map(IMAGES / "label-distance-20newsgroups.png", distance, learnt["labels"])
    recipe_chart(IMAGES / "recipe-gains.png")
