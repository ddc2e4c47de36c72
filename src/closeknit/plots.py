"""Pictures, where people would rather look than read; they need matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DataError, MissingExtra
from .metrics import scaled_to_unit_length
from .report import Scored

_COLOURS = ("#5b6770", "#c8553d", "#2e6f95", "#6a994e", "#8e6c8a", "#bc8a1e")
_MARKERS = ("o", "s", "D", "^")  # one round of colours each


def _plain(text: str) -> str:
    """A text of the user's as it is: between two dollar signs matplotlib would read a formula."""
    return text.replace("$", r"\$")


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("drawing pictures", "plots") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def comparison(
    path: Path,
    rows: Sequence[Scored],
    before: npt.NDArray[np.float32],
    after: npt.NDArray[np.float32],
    labels: Sequence[str],
    title: str,
) -> None:
    """Paired scores of the objectives, and a map of the test texts before and after fine-tuning."""
    plt = pyplot()
    figure, (scores, left, right) = plt.subplots(
        1, 3, figsize=(16, 5.6), layout="constrained", width_ratios=(1, 1.6, 1.6)
    )
    figure.suptitle(_plain(title), fontsize=14)
    _paired_scores(scores, rows)
    classes = sorted(set(labels))
    palette = plt.get_cmap("tab20")
    for axes, vectors, name in ((left, before, "before fine-tuning"), (right, after, "after fine-tuning")):
        flat = _flat_map(vectors)
        for i, label in enumerate(classes):
            own = flat[[j for j, text_label in enumerate(labels) if text_label == label]]
            shown = _plain(label.replace("_", " "))
            axes.scatter(own[:, 0], own[:, 1], s=22, color=palette(i % 20), label=shown)
        axes.set_title(f"test texts {name}", fontsize=11)
        axes.set_xticks([])
        axes.set_yticks([])
    handles, names = left.get_legend_handles_labels()
    if len(classes) <= 20:
        figure.legend(handles, names, loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _paired_scores(axes: Any, rows: Sequence[Scored]) -> None:
    names = list(dict.fromkeys(row.objective for row in rows))
    runs = sorted({(row.seed, row.fold) for row in rows})
    for run in runs:
        points = [
            next(100 * r.weighted_f1 for r in rows if r.objective == n and (r.seed, r.fold) == run)
            for n in names
        ]
        axes.plot(range(len(names)), points, color="#c9c9c9", linewidth=1, zorder=1)
        axes.scatter(
            range(len(names)), points, s=36, color=[_COLOURS[i % 6] for i in range(len(names))], zorder=2
        )
    for i, name in enumerate(names):
        mean = 100 * float(np.mean([row.weighted_f1 for row in rows if row.objective == name]))
        axes.plot([i - 0.18, i + 0.18], [mean, mean], color=_COLOURS[i % 6], linewidth=3)
        axes.annotate(f"{mean:.1f}", (i + 0.22, mean), va="center", fontsize=11, color=_COLOURS[i % 6])
    axes.set_xticks(range(len(names)), [_plain(name.replace("_", "\n")) for name in names])
    axes.set_xlim(-0.5, len(names) - 0.3)
    axes.set_ylabel("weighted F1 on the held-out fold")
    axes.set_title("the same folds, joined", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def _flat_map(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Two dimensions in which near texts stay near (t-SNE)."""
    from sklearn.manifold import TSNE

    unit = scaled_to_unit_length(vectors)
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    flat: npt.NDArray[np.float32] = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(
        unit
    )
    return flat


def distance_map(path: Path, distance: npt.NDArray[np.float32], labels: Sequence[str]) -> None:
    """The label distances of CLLD as a heat map: dark are the classes that are held far apart."""
    plt = pyplot()
    side = min(20.0, 2.5 + 0.34 * len(labels))
    figure, axes = plt.subplots(figsize=(side + 1.0, side), layout="constrained")
    shown = axes.imshow(distance, cmap="Greys")
    names = [_plain(label) for label in labels]
    axes.set_xticks(range(len(labels)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(labels)), names, fontsize=8)
    figure.colorbar(shown, ax=axes, shrink=0.7, label="distance")
    axes.set_title("label distance", fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def alignment_uniformity(path: Path, points: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Where models stand: (uniformity, alignment) of each, both better the smaller they are.

    A model with several points is drawn as its course, in the given order: hollow the first, full the last.
    """
    courses = {name: np.asarray(course, dtype=np.float64) for name, course in points.items() if len(course)}
    if not courses:
        raise DataError("there is no point to draw")
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8.8, 5.2), layout="constrained")
    spread = np.ptp(np.concatenate(list(courses.values())), axis=0)  # (2,)
    for i, (name, course) in enumerate(courses.items()):
        colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i // len(_COLOURS) % len(_MARKERS)]
        if len(course) > 1:
            _course(axes, course, np.where(spread > 0, spread, 1.0), colour)
        axes.scatter(*course[-1], s=80, color=colour, marker=marker, label=_plain(name), zorder=4)
    if any(len(course) > 1 for course in courses.values()):
        axes.scatter([], [], s=46, facecolor="white", edgecolor="#5b6770", label="where a course began")
    axes.margins(0.08)
    axes.set_xlabel("←  smaller is better:  uniformity, how unevenly texts are spread")
    axes.set_ylabel("←  smaller is better:  alignment, how far apart like texts lie")
    axes.grid(color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, labelspacing=0.8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _course(axes: Any, course: npt.NDArray[np.float64], spread: npt.NDArray[np.float64], colour: str) -> None:
    """A line through the points, and its direction where there is most room to show it: on the longest piece."""
    axes.plot(*course.T, color=colour, linewidth=1.4, alpha=0.7, marker="o", markersize=3.5, zorder=2)
    axes.scatter(*course[0], s=46, facecolor="white", edgecolor=colour, linewidth=1.4, zorder=5)
    steps = np.diff(course, axis=0)  # (n - 1, 2)
    longest = int(np.argmax(np.linalg.norm(steps / spread, axis=1)))
    middle = course[longest] + 0.5 * steps[longest]
    arrow = {"arrowstyle": "-|>,head_width=0.3,head_length=0.55", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", middle + 0.1 * steps[longest], middle, arrowprops=arrow, zorder=3)
