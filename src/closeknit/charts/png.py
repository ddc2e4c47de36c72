"""Pictures as files, PNG and in part SVG, drawn with matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.charts.projection import flat_map
from closeknit.errors import DataError, MissingExtra

_COLOURS = ("#5b6770", "#c8553d", "#2e6f95", "#6a994e", "#8e6c8a", "#bc8a1e")
_MARKERS = ("o", "s", "D", "^")  # the next one when all colours have been used
_MOST_NAMED_CLASSES = 20  # a longer legend cannot be read
_DRAWN_PAIRS = 8  # lines in the history of label distances


def pyplot() -> Any:
    """The module `matplotlib.pyplot`, set up to draw into files."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("drawing pictures", "plots") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def _literal(text: str) -> str:
    """The text with its dollar signs escaped: matplotlib reads a formula between two of them."""
    return text.replace("$", r"\$")


def scores_and_maps(
    path: Path,
    scores: Mapping[str, Sequence[float]],
    before: npt.NDArray[np.float32],
    after: npt.NDArray[np.float32],
    labels: Sequence[str],
    title: str,
) -> None:
    """Draw the paired scores of several methods, and a map of texts before and after fine-tuning.

    `scores` holds the points of each method, in the same order of runs. `before` and `after` are
    the vectors (n, d) of the texts, whose classes are `labels`.
    """
    plt = pyplot()
    figure, (score_axes, left, right) = plt.subplots(
        1, 3, figsize=(16, 5.6), layout="constrained", width_ratios=(1, 1.6, 1.6)
    )
    figure.suptitle(_literal(title), fontsize=14)
    _draw_paired_scores(score_axes, scores)
    _draw_text_map(left, flat_map(before), labels, "test texts before fine-tuning", plt)
    _draw_text_map(right, flat_map(after), labels, "test texts after fine-tuning", plt)
    handles, names = left.get_legend_handles_labels()
    if len(names) <= _MOST_NAMED_CLASSES:
        figure.legend(
            handles, names, loc="outside lower center", ncols=6, fontsize=9, frameon=False
        )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_text_map(
    axes: Any, points: npt.NDArray[np.float64], labels: Sequence[str], title: str, plt: Any
) -> None:
    palette = plt.get_cmap("tab20")
    for i, label in enumerate(sorted(set(labels))):
        of_label = [row for row, row_label in enumerate(labels) if row_label == label]
        shown = _literal(label.replace("_", " "))
        axes.scatter(*points[of_label].T, s=22, color=palette(i % 20), label=shown)
    axes.set_title(title, fontsize=11)
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_paired_scores(axes: Any, scores: Mapping[str, Sequence[float]]) -> None:
    """A column of points per method, lines that join the points of a run, and the means."""
    names = list(scores)
    places = range(len(names))
    colours = [_COLOURS[i % len(_COLOURS)] for i in places]
    for run_scores in zip(*scores.values(), strict=True):
        axes.plot(places, run_scores, color="#c9c9c9", linewidth=1, zorder=1)
        axes.scatter(places, run_scores, s=36, color=colours, zorder=2)
    for i, name in enumerate(names):
        mean = float(np.mean(scores[name]))
        axes.plot([i - 0.18, i + 0.18], [mean, mean], color=colours[i], linewidth=3)
        axes.annotate(f"{mean:.1f}", (i + 0.22, mean), va="center", fontsize=11, color=colours[i])
    axes.set_xticks(places, [_literal(name.replace("_", "\n")) for name in names])
    axes.set_xlim(-0.5, len(names) - 0.3)
    axes.set_ylabel("weighted F1 on the held-out fold")
    axes.set_title("lines join the scores on the same fold", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def distance_map(
    path: Path,
    distance: npt.NDArray[np.float32],
    labels: Sequence[str],
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draw the label distances of CLLD as a heat map, and how the largest of them were learned.

    A record of the `history` with an entry `label_distance` holds (class, class, distance) for the
    pairs that were changed by then, and its `epoch`.
    """
    plt = pyplot()
    updates = [record for record in history if record.get("label_distance")]
    side = min(20.0, 2.5 + 0.34 * len(labels))
    size = (side + 1.0 + (6.5 if updates else 0.0), max(side, 4.0) if updates else side)
    figure, axes = plt.subplots(1, 2 if updates else 1, figsize=size, layout="constrained")
    left = axes[0] if updates else axes
    _draw_distances(left, distance, [_literal(label) for label in labels], figure)
    if updates:
        _draw_distance_history(axes[1], updates, labels)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_distances(
    axes: Any, distance: npt.NDArray[np.float32], names: Sequence[str], figure: Any
) -> None:
    """The distances as a heat map, without the diagonal; numbers in the cells of small ones."""
    shown = np.ma.masked_array(distance, np.eye(len(distance), dtype=bool))
    image = axes.imshow(shown, cmap="Greys")
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.7, label="distance")
    axes.set_title("label distance: dark pairs are held furthest apart", fontsize=11)
    if len(names) > _MOST_NAMED_CLASSES:
        return
    low = float(shown.min()) if shown.count() else 0.0
    high = float(shown.max()) if shown.count() else 0.0
    for i, row in enumerate(distance):
        for j, value in enumerate(row):
            if i != j:
                is_dark = value > (low + high) / 2 and high > low
                colour = "white" if is_dark else "black"
                axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)


def _draw_distance_history(
    axes: Any, updates: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> None:
    """A line for each of the pairs with the largest distances at the end."""
    epochs = [float(record["epoch"]) for record in updates]
    values = [{(i, j): d for i, j, d in record["label_distance"]} for record in updates]
    last = sorted(values[-1], key=lambda pair: -values[-1][pair])[:_DRAWN_PAIRS]
    for number, (i, j) in enumerate(last):
        known = [(e, at[i, j]) for e, at in zip(epochs, values, strict=True) if (i, j) in at]
        axes.plot(
            *zip(*known, strict=True),
            marker="o",
            markersize=3,
            color=_COLOURS[number % len(_COLOURS)],
            linestyle="-" if number < len(_COLOURS) else "--",
            label=_literal(f"{labels[i]} | {labels[j]}"),
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("distance")
    axes.set_title("how the largest distances were learned", fontsize=11)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def alignment_uniformity(path: Path, points: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draw the (uniformity, alignment) of models; for both, smaller is better.

    A model with several points is drawn as a path in the given order: the first point is hollow,
    the last one full.
    """
    paths = {
        name: np.asarray(course, dtype=np.float64) for name, course in points.items() if len(course)
    }
    if not paths:
        raise DataError("there is no point to draw")
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.8, 5.2), layout="constrained")
    spread = np.ptp(np.concatenate(list(paths.values())), axis=0)  # (2,)
    scale = np.where(spread > 0, spread, 1.0)
    for i, (name, model_path) in enumerate(paths.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        marker = _MARKERS[i // len(_COLOURS) % len(_MARKERS)]
        if len(model_path) > 1:
            _draw_path(axes, model_path, scale, colour)
        axes.scatter(
            *model_path[-1], s=80, color=colour, marker=marker, label=_literal(name), zorder=4
        )
    if any(len(model_path) > 1 for model_path in paths.values()):
        axes.scatter([], [], s=46, facecolor="white", edgecolor="#5b6770", label="start of a path")
    axes.margins(0.08)
    axes.set_xlabel("←  smaller is better:  uniformity, how unevenly texts are spread")
    axes.set_ylabel("←  smaller is better:  alignment, how far apart similar texts are")
    axes.grid(color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, labelspacing=0.8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def layer_curves(path: Path, models: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Draw the anisotropy of the layers of models, as a PNG or an SVG file.

    Each model has two curves over its layers, one for words in context and one for whole texts.
    They are drawn side by side.
    """
    plt = pyplot()
    plt.rcParams["svg.hashsalt"] = "closeknit"  # the same drawing is the same file
    figure, both = plt.subplots(1, 2, figsize=(10.4, 4.4), sharey=True, layout="constrained")
    titles = ("words in context", "whole texts (mean of their tokens)")
    for number, (axes, title) in enumerate(zip(both, titles, strict=True)):
        for i, (name, curves) in enumerate(models.items()):
            axes.plot(
                range(len(curves[number])),
                curves[number],
                color=_COLOURS[i % len(_COLOURS)],
                marker=_MARKERS[i // len(_COLOURS) % len(_MARKERS)],
                label=_literal(name) if number == 0 else None,
            )
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("layer (0: the embeddings)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(color="#ececec", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylim(bottom=min(0.0, both[0].get_ylim()[0]))
    both[0].set_ylabel("anisotropy: mean cosine of different texts")
    figure.legend(loc="outside lower center", frameon=False, ncols=min(3, len(models)))
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=110, metadata=metadata)
    plt.close(figure)


def _draw_path(
    axes: Any, path: npt.NDArray[np.float64], scale: npt.NDArray[np.float64], colour: str
) -> None:
    """A line through the points, with an arrow on its longest segment."""
    axes.plot(*path.T, color=colour, linewidth=1.4, alpha=0.7, marker="o", markersize=3.5, zorder=2)
    axes.scatter(*path[0], s=46, facecolor="white", edgecolor=colour, linewidth=1.4, zorder=5)
    steps = np.diff(path, axis=0)  # (n - 1, 2)
    longest = int(np.argmax(np.linalg.norm(steps / scale, axis=1)))
    middle = path[longest] + 0.5 * steps[longest]
    arrow = {
        "arrowstyle": "-|>,head_width=0.3,head_length=0.55",
        "color": colour,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", middle + 0.1 * steps[longest], middle, arrowprops=arrow, zorder=3)
