"""Makes the tables of the results that are kept here: python studies/tables.py

For each results/NAME.jsonl it writes results/NAME.md, with the same tests as `closeknit compare`.
Runs of an objective on a data set are left out if half of their folds or more are missing; what is
incomplete is named at the end. It also draws the label distances that CLLD learnt, and the gain of
the recipe on each data set.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from closeknit.charts.png import distance_map, pyplot
from closeknit.studies.results import Result, read_results
from closeknit.studies.statistics import summarise
from closeknit.studies.tables import markdown_report

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
GAIN_COLOURS = ("#8a97a0", "#c8553d")


def tables(path: Path) -> str:
    """The tables of a file of results, one after another for each encoder."""
    results = read_results(path)
    encoders = dict.fromkeys(result.encoder for result in results)
    return "\n".join(
        encoder_tables(
            f"{path.stem}: {encoder}", [result for result in results if result.encoder == encoder]
        )
        for encoder in encoders
    )


def encoder_tables(title: str, results: Sequence[Result]) -> str:
    """The tables of the results of one encoder."""
    runs = Counter((result.data, result.size, result.objective) for result in results)
    folds = results[0].folds
    objectives = [result.objective for result in results]
    reference = "cross_entropy" if "cross_entropy" in objectives else objectives[0]
    kept = [
        result
        for result in results
        if 2 * runs[result.data, result.size, result.objective] > result.folds
    ]
    with_reference = {result.data for result in kept if result.objective == reference}
    kept = [result for result in kept if result.data in with_reference]
    text = f"# {title}\n\n"
    if kept:
        text += markdown_report(summarise(kept, reference), reference)
    incomplete = [
        f"{data}, {size:,} rows, {objective}: {number} of {folds}"
        for (data, size, objective), number in runs.items()
        if number < folds
    ]
    if incomplete:
        text += "\nNot whole: " + "; ".join(incomplete) + ".\n"
    return text


def gains(name: str) -> dict[str, float]:
    """For each data set of a study, the gain of the recipe over a tuned cross-entropy.

    The gain is in points of weighted F1.
    """
    lines = summarise(read_results(RESULTS / f"{name}.jsonl"), "cross_entropy")
    return {
        line.data: 100 * line.gain.mean for line in lines if line.objective == "auto" and line.gain
    }


def recipe_chart(path: Path) -> None:
    """Draw the gains of the recipe on all data sets, smallest first."""
    plt = pyplot()
    groups = {"had a part in choosing it": gains("small"), "had none": gains("fresh")}
    colours = dict(zip(groups, GAIN_COLOURS, strict=True))
    bars = sorted(
        (gain, data, title) for title, group in groups.items() for data, gain in group.items()
    )
    figure, axes = plt.subplots(figsize=(8.5, 7.2), layout="constrained")
    axes.barh(
        [data.replace("_", " ") for _, data, _ in bars],
        [gain for gain, _, _ in bars],
        color=[colours[title] for _, _, title in bars],
        height=0.7,
    )
    axes.axvline(0, color="black", linewidth=0.8)
    for title, group in groups.items():
        mean = float(np.mean(list(group.values())))
        axes.axvline(mean, color=colours[title], linestyle="--", linewidth=1.2)
        label = f"data sets that {title}: {mean:+.2f} on average"
        axes.scatter([], [], marker="s", s=80, color=colours[title], label=label)
    axes.legend(loc="lower right", frameon=False)
    axes.set_xlabel(
        "points of weighted F1 that `auto` is ahead of a tuned cross-entropy, 1,000 rows"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.margins(y=0.01)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def distance_chart(path: Path) -> None:
    """Draw the label distances that CLLD learnt."""
    learnt = json.loads((RESULTS / "clld-ablation-distance.json").read_text(encoding="utf-8"))
    distance = np.asarray(learnt["distance"], dtype=np.float32)
    distance_map(path, distance, learnt["labels"])


def main() -> None:
    for path in sorted(RESULTS.glob("*.jsonl")):
        if not path.stem.endswith("-trials"):
            path.with_suffix(".md").write_text(tables(path), encoding="utf-8")
    distance_chart(IMAGES / "label-distance-20newsgroups.png")
    recipe_chart(IMAGES / "recipe-gains.png")


if __name__ == "__main__":
    main()
