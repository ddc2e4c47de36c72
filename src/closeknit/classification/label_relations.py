"""Which classes a model considers close: a matrix, a tree, and pairs that need attention.

Two classes are close if the model gives the texts of one class to the other class. The functions
here read predictions as NumPy arrays, so that they serve any classifier.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.errors import DataError
from closeknit.metrics import confusion

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LEAST_ROWS_OF_A_PAIR = 5  # with fewer rows of a class, no advice is given
HARDLY_TOLD_APART = 0.65  # a coin reaches 0.5
LEAST_RIGHT_OF_EACH = 0.25  # below it, one class takes the rows of the other
OFTEN_CONFUSED = 0.05  # share of the rows of both classes
LEAST_ROWS_TO_SPLIT = 20
LEAST_SHARE_OF_A_PART = 0.25
CLEARLY_TWO_PARTS = 0.15  # silhouette coefficient
CLOUDS_DRAWN = 19  # two groups must be clearer than in all of these: a test at 5 %
SHOWN_EXAMPLES = 2

MERGE = "merge"
DESCRIBE = "describe"


@dataclass(frozen=True)
class Example:
    """A text and the class it has; `predicted` is the class that the model gave to it."""

    text: str
    expected: str
    predicted: str


@dataclass(frozen=True)
class ClassPair:
    """Two classes and how the model confuses them.

    `told_apart` is the share of right answers among the rows of both classes that the model gave
    to one of the two, as a mean over the two classes; 0.5 is what a coin reaches. `advice` is
    `merge`, `describe` or empty.
    """

    first: str
    second: str
    closeness: float
    first_as_second: int = 0
    second_as_first: int = 0
    share: float = 0.0  # of the rows of both classes
    told_apart: float | None = None
    advice: str = ""
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class ClassSplit:
    """A class whose texts lie in two groups: a candidate for two classes."""

    label: str
    silhouette: float
    rows: tuple[int, int]
    examples: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class LabelRelations:
    """Which classes are close.

    `closeness` (C, C) is symmetric with values from 0 to 1, and 0 on the diagonal. `basis` says in
    words what it was computed from. `pairs` are all pairs of classes, the closest first. `counts`
    (C, C) are the predictions, with a row per expected class; None if there were none.
    """

    labels: list[str]
    closeness: Floats
    basis: str
    pairs: list[ClassPair]
    counts: Integers | None = None
    splits: list[ClassSplit] = field(default_factory=list)

    def pairs_to(self, advice: str) -> list[ClassPair]:
        """The pairs with this advice, `merge` or `describe`."""
        return [pair for pair in self.pairs if pair.advice == advice]

    def merges(self) -> list[tuple[int, int, float]]:
        """The tree of classes as merges of two nodes and their closeness, the closest nodes first.

        Node i < C is class i. Merge n makes node C + n. The closeness of two groups of classes is
        the mean over the pairs between them (average linkage).
        """
        from scipy.cluster.hierarchy import linkage
        from scipy.spatial.distance import squareform

        if len(self.labels) < 2:
            return []
        distance = 1.0 - self.closeness
        np.fill_diagonal(distance, 0.0)
        table = linkage(squareform(distance, checks=False), method="average")
        return [(int(i), int(j), 1.0 - float(height)) for i, j, height, _ in table]

    def order(self) -> list[int]:
        """The classes in the order of the tree's leaves, so that close classes are neighbours."""
        leaves: dict[int, list[int]] = {i: [i] for i in range(len(self.labels))}
        for n, (i, j, _) in enumerate(self.merges()):
            leaves[len(self.labels) + n] = leaves.pop(i) + leaves.pop(j)
        return next(iter(leaves.values()), [])

    def tree(self) -> str:
        """The tree as text: a line per class, brackets join classes that are close."""
        return "\n".join(tree_lines(self.labels, self.merges()))

    def distance(self, scale: float = 5.0) -> Floats:
        """Label distances for the objective `clld`, which holds close classes further apart.

        The matrix is scale · (1 + closeness / largest closeness), and scale on the diagonal.
        """
        largest = float(self.closeness.max(initial=0.0))
        shares = self.closeness / largest if largest > 0 else self.closeness
        return scale * (1.0 + shares)

    def save(self, folder: str | Path) -> None:
        """Write `closeness.csv` and `label-distance.csv`, a row and a column per class.

        `label-distance.csv` is what `objective.distance` of the objective `clld` reads.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _write_matrix(folder / "closeness.csv", self.labels, self.closeness)
        _write_matrix(folder / "label-distance.csv", self.labels, self.distance())


# ---------------------------------------------------------------- from predictions


def relate_labels(
    labels: Sequence[str],
    expected: Integers,
    predicted: Integers,
    *,
    probabilities: npt.NDArray[Any] | None = None,
    vectors: npt.NDArray[Any] | None = None,
    texts: Sequence[str] | None = None,
) -> LabelRelations:
    """Which classes are close, by the answers of a classifier on labelled rows.

    `expected` and `predicted` (R,) are indices into `labels`. With `probabilities` (R, C), the
    closeness of i and j is the mean probability of j for rows of i and of i for rows of j; without
    them, the mean share of wrong answers. With `vectors` (R, H), classes are named whose rightly
    classified texts lie in two groups. `texts` (R,) supply examples.
    """
    counts = confusion(expected, predicted, len(labels))
    rows = counts.sum(axis=1)
    if probabilities is None:
        shares = counts / np.maximum(rows, 1)[:, None]
        basis = "the shares of wrong answers"
    else:
        per_class = np.zeros((len(labels), len(labels)))
        np.add.at(per_class, expected, np.asarray(probabilities, dtype=np.float64))
        shares = per_class / np.maximum(rows, 1)[:, None]
        basis = "the probabilities of wrong classes"
    closeness = _symmetric(shares, rows)
    examples = _examples(labels, expected, predicted, probabilities, texts)
    pairs = [
        _pair(labels, closeness, counts, examples, i, j)
        for i in range(len(labels))
        for j in range(i + 1, len(labels))
    ]
    splits: list[ClassSplit] = []
    if vectors is not None:  # wrong answers would look like a group of their own
        right = np.flatnonzero(expected == predicted)
        right_texts = None if texts is None else [texts[row] for row in right.tolist()]
        splits = find_splits(labels, expected[right], np.asarray(vectors)[right], right_texts)
    return LabelRelations(list(labels), closeness, basis, _sorted(pairs), counts, splits)


def relate_directions(labels: Sequence[str], directions: npt.NDArray[Any]) -> LabelRelations:
    """Which classes are close, by a vector per class (C, D), such as a classifier's weights.

    The closeness is ½ (1 + cosine) of the vectors after their mean was subtracted.
    """
    centred = np.asarray(directions, dtype=np.float64)
    if len(centred) > 2:  # the difference of two vectors would always be opposite
        centred = centred - centred.mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    closeness = 0.5 * (1.0 + np.clip(unit @ unit.T, -1.0, 1.0))
    np.fill_diagonal(closeness, 0.0)
    pairs = [
        ClassPair(labels[i], labels[j], float(closeness[i, j]))
        for i in range(len(labels))
        for j in range(i + 1, len(labels))
    ]
    basis = "the weights of the classifier; labelled texts would give counts and examples"
    return LabelRelations(list(labels), closeness, basis, _sorted(pairs))


def _symmetric(shares: Floats, rows: Integers) -> Floats:
    """The mean of both directions; a class without rows contributes the other direction alone."""
    known = (rows > 0).astype(np.float64)[:, None]
    directions = known + known.T
    closeness = (shares * known + (shares * known).T) / np.maximum(directions, 1.0)
    np.fill_diagonal(closeness, 0.0)
    return np.asarray(np.clip(closeness, 0.0, 1.0), dtype=np.float64)


def _pair(
    labels: Sequence[str],
    closeness: Floats,
    counts: Integers,
    examples: dict[tuple[int, int], list[Example]],
    i: int,
    j: int,
) -> ClassPair:
    rows = int(counts[i].sum() + counts[j].sum())
    wrong = int(counts[i, j] + counts[j, i])
    share = wrong / rows if rows else 0.0
    right = _right_of_each(counts, i, j)
    found = [*examples.get((i, j), []), *examples.get((j, i), [])]
    return ClassPair(
        labels[i],
        labels[j],
        float(closeness[i, j]),
        int(counts[i, j]),
        int(counts[j, i]),
        share,
        None if right is None else sum(right) / 2,
        _advice(right, share),
        tuple(found),
    )


def _right_of_each(counts: Integers, i: int, j: int) -> tuple[float, float] | None:
    """The shares of right answers between two classes; None with too few answers to say."""
    within = counts[np.ix_([i, j], [i, j])]
    totals = within.sum(axis=1)
    if totals.min() < LEAST_ROWS_OF_A_PAIR:
        return None
    first, second = (np.diag(within) / totals).tolist()
    return first, second


def _advice(right: tuple[float, float] | None, share: float) -> str:
    if right is None:
        return ""
    if sum(right) / 2 < HARDLY_TOLD_APART and min(right) >= LEAST_RIGHT_OF_EACH:
        return MERGE
    return DESCRIBE if share >= OFTEN_CONFUSED else ""


def _examples(
    labels: Sequence[str],
    expected: Integers,
    predicted: Integers,
    probabilities: npt.NDArray[Any] | None,
    texts: Sequence[str] | None,
) -> dict[tuple[int, int], list[Example]]:
    """Up to two wrong answers per pair of expected and predicted class, the most certain first."""
    found: dict[tuple[int, int], list[Example]] = {}
    if texts is None:
        return found
    wrong = np.flatnonzero(expected != predicted)
    if probabilities is not None:
        certainty = np.asarray(probabilities)[wrong, predicted[wrong]]
        wrong = wrong[np.argsort(-certainty, kind="stable")]
    for row in wrong.tolist():
        kept = found.setdefault((int(expected[row]), int(predicted[row])), [])
        if len(kept) < SHOWN_EXAMPLES:
            kept.append(Example(texts[row], labels[expected[row]], labels[predicted[row]]))
    return found


def _sorted(pairs: list[ClassPair]) -> list[ClassPair]:
    return sorted(pairs, key=lambda pair: (-pair.closeness, pair.first, pair.second))


# ---------------------------------------------------------------- classes to split


def find_splits(
    labels: Sequence[str],
    expected: Integers,
    vectors: npt.NDArray[Any],
    texts: Sequence[str] | None = None,
) -> list[ClassSplit]:
    """The classes whose vectors fall into two clear groups, the clearest first.

    k-means with two centers is run on the unit vectors of each class. A class is named if neither
    group is small and the silhouette coefficient is larger than in all of 19 clouds that were drawn
    from a normal distribution with the covariance of the class.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    found = []
    for number, label in enumerate(labels):
        of_class = np.flatnonzero(expected == number)
        if len(of_class) < LEAST_ROWS_TO_SPLIT or len(np.unique(rows[of_class], axis=0)) < 3:
            continue
        groups, silhouette = _two_groups(rows[of_class])
        sizes = np.bincount(groups, minlength=2)
        if sizes.min() < LEAST_SHARE_OF_A_PART * len(of_class):
            continue
        if silhouette >= CLEARLY_TWO_PARTS and _clearer_than_clouds(rows[of_class], silhouette):
            first, second = (
                _central_texts(rows, of_class[groups == part], texts) for part in (0, 1)
            )
            parts = int(sizes[0]), int(sizes[1])
            found.append(ClassSplit(label, silhouette, parts, (first, second)))
    return sorted(found, key=lambda split: -split.silhouette)


def _two_groups(rows: Floats) -> tuple[npt.NDArray[np.int32], float]:
    """The group of each row by k-means with two centers, and the silhouette coefficient."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    groups = KMeans(2, n_init=5, random_state=0).fit(rows).labels_
    return groups, float(silhouette_score(rows, groups))


def _clearer_than_clouds(rows: Floats, silhouette: float) -> bool:
    """Whether single clouds with the same mean and covariance have less clear groups.

    A random mixture of the centred rows has their covariance, also with fewer rows than dimensions.
    """
    rng = np.random.default_rng(0)
    mean = rows.mean(axis=0)
    for _ in range(CLOUDS_DRAWN):
        mixture = rng.standard_normal((len(rows), len(rows))) / np.sqrt(len(rows))
        cloud = mean + mixture @ (rows - mean)
        cloud /= np.maximum(np.linalg.norm(cloud, axis=1, keepdims=True), 1e-12)
        if _two_groups(cloud)[1] >= silhouette:
            return False
    return True


def _central_texts(
    rows: Floats, part: npt.NDArray[np.intp], texts: Sequence[str] | None
) -> tuple[str, ...]:
    """The texts that are nearest to the mean of their group."""
    if texts is None:
        return ()
    center = rows[part].mean(axis=0)
    nearest = np.argsort(-(rows[part] @ center), kind="stable")[:SHOWN_EXAMPLES]
    return tuple(texts[row] for row in part[nearest].tolist())


# ---------------------------------------------------------------- text and files


def tree_lines(labels: Sequence[str], merges: Sequence[tuple[int, int, float]]) -> list[str]:
    """The lines of a tree of classes; a joint shows how close the groups below it are."""
    blocks: dict[int, list[str]] = {i: [f"─ {label}"] for i, label in enumerate(labels)}
    for n, (i, j, closeness) in enumerate(merges):
        upper = blocks.pop(i)
        lower = blocks.pop(j)
        joined = [f"┬ {closeness:.3f}"]
        joined += [f"├{line}" if k == 0 else f"│{line}" for k, line in enumerate(upper)]
        joined += [f"└{line}" if k == 0 else f" {line}" for k, line in enumerate(lower)]
        blocks[len(labels) + n] = joined
    return next(iter(blocks.values()), [])


def _write_matrix(path: Path, labels: Sequence[str], matrix: Floats) -> None:
    if len(matrix) != len(labels):
        raise DataError(f"{path.name} needs a row per class: {len(labels)}, not {len(matrix)}")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["", *labels])
        for label, row in zip(labels, matrix, strict=True):
            writer.writerow([label, *(f"{value:.6f}" for value in row)])
