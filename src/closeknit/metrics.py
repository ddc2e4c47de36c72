"""Scores: NumPy in, float out; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_BLOCK = 1024  # rows compared at once


def classification_scores(expected: Integers, predicted: Integers, names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, weighted and macro F1, the number of rows, and each class on its own.

    The averages run over the classes that occur in `expected` or `predicted`.
    """
    from sklearn.metrics import precision_recall_fscore_support

    present = np.union1d(expected, predicted)
    precision, recall, f1, support = precision_recall_fscore_support(
        expected, predicted, labels=present, zero_division=0
    )
    per_class = {
        names[c]: {"precision": float(p), "recall": float(r), "f1": float(f), "n": int(n)}
        for c, p, r, f, n in zip(present, precision, recall, f1, support, strict=True)
    }
    return {
        "accuracy": float(np.mean(expected == predicted)),
        "weighted_f1": float(np.average(f1, weights=support)),
        "macro_f1": float(np.mean(f1)),
        "n": len(expected),
        "per_class": per_class,
    }


def confusion(expected: Integers, predicted: Integers, classes: int) -> Integers:
    """Counts (C, C): row the expected class, column the predicted one."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (expected, predicted), 1)
    return counts


# ---------------------------------------------------------------- embeddings


def unit_rows(z: npt.ArrayLike) -> Floats:
    """Rows (n, d) scaled to length 1, in double precision; a row of zeros has no direction and stays zero."""
    rows = np.asarray(z, dtype=np.float64)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"expected vectors as rows, (n, d); got the shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError("a vector is not finite")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # (n, 1)
    unit: Floats = rows / np.where(lengths > 0, lengths, 1.0)
    return unit


def pair_cosines(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """The cosine (n,) of each row of `a` with its row of `b`."""
    u, v = _matching(a, b)
    return _without_noise(np.einsum("nd,nd->n", u, v))


def alignment(a: npt.ArrayLike, b: npt.ArrayLike, *, alpha: float = 2) -> float:
    """How near the two sides of a pair lie on the unit sphere; smaller is better (Wang and Isola, ICML 2020).

        mean_i |a_i - b_i|^alpha

    With alpha 2: 0 when both sides are one point, 4 when they are opposite.
    """
    u, v = _matching(a, b)
    return float(np.mean(np.linalg.norm(u - v, axis=1) ** alpha))


def uniformity(z: npt.ArrayLike, *, t: float = 2) -> float:
    """How evenly rows are spread over the unit sphere; smaller is better (Wang and Isola, ICML 2020).

        log mean_{i<j} exp(-t |z_i - z_j|^2)

    It is 0 when all rows are one point. Every pair counts, a block of pairs at a time.
    """
    u = unit_rows(z)
    n = len(u)
    if n < 2:
        raise ValueError("uniformity needs two rows or more")
    squares = np.einsum("nd,nd->n", u, u)  # (n,): 1, or 0 for a row of zeros
    sums: list[float] = []  # the logarithm of each block's sum
    for i in range(0, n, _BLOCK):
        rows = slice(i, i + _BLOCK)
        for j in range(i, n, _BLOCK):
            columns = slice(j, j + _BLOCK)
            powers = u[rows] @ u[columns].T  # (B, B)
            powers *= 2 * t
            powers -= t * (squares[rows, None] + squares[None, columns])
            chosen = powers[np.triu_indices(len(powers), 1)] if i == j else powers.ravel()
            if chosen.size:
                peak = chosen.max()
                chosen -= peak
                sums.append(float(peak + np.log(np.exp(chosen, out=chosen).sum())))
    return float(np.logaddexp.reduce(sums) - np.log(n * (n - 1) / 2))


def anisotropy(z: npt.ArrayLike) -> float:
    """The mean cosine of all pairs of rows: near 0 when directions are used evenly, 1 when all rows share one.

    mean_{i<j} <z_i, z_j> = (|sum_i z_i|^2 - sum_i |z_i|^2) / (n (n - 1)) on unit rows.
    """
    u = unit_rows(z)
    n = len(u)
    if n < 2:
        raise ValueError("anisotropy needs two rows or more")
    total = u.sum(axis=0)  # (d,)
    return float((total @ total - np.einsum("nd,nd->", u, u)) / (n * (n - 1)))


def pearson(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The correlation of two columns; 0 when one of them is constant and so says nothing."""
    x, y = _columns(a, b)
    if x.min() == x.max() or y.min() == y.max():
        return 0.0
    x, y = _standing(x), _standing(y)
    return float(np.clip(x @ y, -1.0, 1.0))


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The correlation of the ranks of two columns, equal values sharing their mean rank; 0 when one is constant."""
    from scipy.stats import rankdata

    x, y = _columns(a, b)
    return pearson(rankdata(x), rankdata(y))


def retrieval_scores(
    queries: npt.ArrayLike,
    documents: npt.ArrayLike,
    relevant: Sequence[Sequence[int]],
    *,
    k: Sequence[int] = (1, 5, 10),
) -> dict[str, float]:
    """How high the relevant documents stand when documents are ordered by their cosine with a query.

        mrr       mean over queries of 1 / (rank of the best relevant document)
        recall@k  mean over queries of the share of its relevant documents among the first k

    `relevant` holds the document numbers of each query. Of equally near documents the irrelevant ones
    come first, so that an encoder which maps all texts to one point earns nothing.
    """
    q, d = unit_rows(queries), unit_rows(documents)
    if q.shape[1] != d.shape[1]:
        raise ValueError(f"queries have {q.shape[1]} dimensions, documents {d.shape[1]}")
    if len(relevant) != len(q):
        raise ValueError(f"{len(q)} queries, but relevant documents for {len(relevant)}")
    if any(depth < 1 for depth in k):
        raise ValueError(f"k is {tuple(k)}; every depth must be at least 1")
    wanted = [np.unique(np.asarray(own, dtype=np.int64)) for own in relevant]
    for number, own in enumerate(wanted):
        if not own.size:
            raise ValueError(f"query {number} has no relevant document")
        if own[0] < 0 or own[-1] >= len(d):
            raise ValueError(f"query {number}: relevant documents must be numbers from 0 to {len(d) - 1}")
    first = 0.0
    found = dict.fromkeys(k, 0.0)
    for start in range(0, len(q), _BLOCK):
        for row, own in zip(_cosines(q[start : start + _BLOCK], d), wanted[start:], strict=False):
            near = np.sort(row[own])[::-1]  # (m,): the relevant ones, best first
            at_least = np.count_nonzero(row >= near[:, None], axis=1)  # (m,)
            irrelevant = at_least - np.count_nonzero(near >= near[:, None], axis=1)  # (m,)
            ranks = irrelevant + np.arange(1, len(near) + 1)  # (m,)
            first += 1.0 / ranks[0]
            for depth in k:
                found[depth] += int(np.count_nonzero(ranks <= depth)) / len(near)
    return {"mrr": float(first / len(q)), **{f"recall@{depth}": found[depth] / len(q) for depth in k}}


def knn_accuracy(
    train_z: npt.ArrayLike,
    train_y: npt.ArrayLike,
    test_z: npt.ArrayLike,
    test_y: npt.ArrayLike,
    *,
    k: int = 10,
) -> float:
    """The share of test rows whose k nearest training rows, by cosine, vote for the right class.

    Of classes with equally many votes the one with the nearest row wins; of equally near rows the
    earlier counts as nearer. Where there are fewer than k training rows, all of them vote.
    """
    train, expected, test, answers = _labelled(train_z, train_y, test_z, test_y)
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    classes, y = np.unique(expected, return_inverse=True)  # y: (n,) numbers of classes
    k, right = min(k, len(train)), 0
    for start in range(0, len(test), _BLOCK):
        for row, answer in zip(_cosines(test[start : start + _BLOCK], train), answers[start:], strict=False):
            least = np.partition(row, -k)[-k]  # the k-th nearest: few rows are left to put in order
            close = np.flatnonzero(row >= least)
            votes = y[close[np.argsort(-row[close], kind="stable")][:k]]  # (k,), nearest first
            right += bool(classes[votes[np.argmax(np.bincount(votes)[votes])]] == answer)
    return right / len(test)


def probe_accuracy(
    train_z: npt.ArrayLike, train_y: npt.ArrayLike, test_z: npt.ArrayLike, test_y: npt.ArrayLike
) -> float:
    """The accuracy of a logistic regression on frozen vectors, each dimension standardised on the training rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _labelled(train_z, train_y, test_z, test_y)  # raises where shapes disagree
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    probe.fit(np.asarray(train_z, dtype=np.float64), np.asarray(train_y))
    found = probe.predict(np.asarray(test_z, dtype=np.float64))
    return float(np.mean(found == np.asarray(test_y)))


def _matching(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    u, v = unit_rows(a), unit_rows(b)
    if u.shape != v.shape:
        raise ValueError(f"the two sides differ in shape: {u.shape} and {v.shape}")
    return u, v


def _labelled(
    train_z: npt.ArrayLike, train_y: npt.ArrayLike, test_z: npt.ArrayLike, test_y: npt.ArrayLike
) -> tuple[Floats, npt.NDArray[Any], Floats, npt.NDArray[Any]]:
    train, test = unit_rows(train_z), unit_rows(test_z)
    expected, answers = np.asarray(train_y), np.asarray(test_y)
    if train.shape[1] != test.shape[1]:
        raise ValueError(f"training rows have {train.shape[1]} dimensions, test rows {test.shape[1]}")
    for rows, labels, what in ((train, expected, "training"), (test, answers, "test")):
        if labels.shape != (len(rows),):
            raise ValueError(f"{len(rows)} {what} rows, but labels of shape {labels.shape}")
    return train, expected, test, answers


def _columns(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not x.size:
        raise ValueError(f"expected two columns of one length; got the shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a value is not finite")
    return x, y


def _standing(x: Floats) -> Floats:
    """Centred, and scaled to length 1; the largest entry first, so that squares neither vanish nor overflow."""
    x = x / np.abs(x).max()
    x = x - x.mean()
    x = x / np.abs(x).max()
    unit: Floats = x / np.linalg.norm(x)
    return unit


def _cosines(u: Floats, v: Floats) -> Floats:
    return _without_noise(u @ v.T)


def _without_noise(cosines: Floats) -> Floats:
    """Equal vectors get equal cosines, whatever order a product was summed in: ties stay ties."""
    rounded: Floats = np.round(cosines, 12)
    return rounded
