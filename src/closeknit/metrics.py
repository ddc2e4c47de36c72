"""Scores of predictions and of vectors: NumPy arrays in, numbers out; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Floating = TypeVar("Floating", np.float32, np.float64)
_BLOCK = 1024  # rows compared at once


def classification_scores(
    expected: Integers,
    predicted: Integers,
    names: Sequence[str],
    logits: npt.ArrayLike | None = None,
) -> dict[str, Any]:
    """Accuracy, weighted and macro F1, MCC, the number of rows, and the scores of each class.

    The averages run over the classes that occur in `expected` or `predicted`. With the logits
    (R, 2) of two classes there is also `auc`, unless all rows are of one class.
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
    scores = {
        "accuracy": float(np.mean(expected == predicted)),
        "weighted_f1": float(np.average(f1, weights=support)),
        "macro_f1": float(np.mean(f1)),
        "mcc": mcc(expected, predicted),
    }
    if logits is not None and len(names) == 2 and len(np.unique(expected)) == 2:
        outputs = np.asarray(logits, dtype=np.float64)  # (R, 2)
        scores["auc"] = auc(expected, outputs[:, 1] - outputs[:, 0])
    return {**scores, "n": len(expected), "per_class": per_class}


def mcc(expected: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Matthews' correlation of the true and the predicted classes, for two classes or more.

        (c s - sum_k p_k t_k) / sqrt((s^2 - sum_k p_k^2) (s^2 - sum_k t_k^2))

    s is the number of rows and c the number of right ones; t_k rows are of class k, and p_k are
    predicted as k (Gorodkin, 2004). 1 is perfect, and 0 is no better than chance. It is 0 where all
    rows are of one class, or are predicted as one class.
    """
    truth = np.asarray(expected)
    answers = np.asarray(predicted)
    _check_columns(truth, answers)
    classes, numbers = np.unique(np.concatenate([truth, answers]), return_inverse=True)
    true_counts = np.bincount(numbers[: len(truth)], minlength=len(classes)).tolist()
    answer_counts = np.bincount(numbers[len(truth) :], minlength=len(classes)).tolist()
    rows = len(truth)
    right = int(np.count_nonzero(truth == answers))
    shared = sum(t * p for t, p in zip(true_counts, answer_counts, strict=True))
    spread = rows**2 - sum(t * t for t in true_counts)
    spread *= rows**2 - sum(p * p for p in answer_counts)
    return float((right * rows - shared) / spread**0.5) if spread else 0.0


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The area under the ROC curve: how often a positive row is scored above a negative one.

        P(score of a positive row > score of a negative row) + P(both are equal) / 2

    `labels` are 1 or True for positive rows, and 0 or False for negative ones. 1 is perfect, and
    0.5 is chance.
    """
    from scipy.stats import rankdata

    y, x = _columns(labels, scores)
    is_positive = y == 1
    positives = int(np.count_nonzero(is_positive))
    negatives = int(np.count_nonzero(y == 0))
    if positives + negatives != len(y):
        raise ValueError("a label is neither 0 nor 1")
    if not positives or not negatives:
        raise ValueError("AUC needs positive and negative rows; all rows have one label")
    sum_of_ranks = float(rankdata(x)[is_positive].sum())  # equal scores share their mean rank
    return (sum_of_ranks - positives * (positives + 1) / 2) / (positives * negatives)


def confusion(expected: Integers, predicted: Integers, classes: int) -> Integers:
    """Counts (C, C): a row per expected class, a column per predicted class."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (expected, predicted), 1)
    return counts


# ---------------------------------------------------------------- embeddings


def scaled_to_unit_length(rows: npt.NDArray[Floating]) -> npt.NDArray[Floating]:
    """Rows (n, d) divided by their L2 norm, in their own precision; a row of zeros stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)  # (n, 1)
    lengths[lengths == 0] = 1
    scaled: npt.NDArray[Floating] = rows / lengths
    return scaled


def unit_rows(z: npt.ArrayLike) -> Floats:
    """Checked rows (n, d), scaled to length 1 in double precision; a row of zeros stays zero."""
    rows = np.asarray(z, dtype=np.float64)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"expected vectors as rows, (n, d); got the shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError("a vector is not finite")
    return scaled_to_unit_length(rows)


def pair_cosines(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """The cosine (n,) of each row of `a` with the same row of `b`."""
    u, v = _unit_rows_of_both(a, b)
    return _rounded(np.einsum("nd,nd->n", u, v))


def alignment(a: npt.ArrayLike, b: npt.ArrayLike, *, alpha: float = 2) -> float:
    """How near the two sides of a pair lie; smaller is better (Wang and Isola, ICML 2020).

        mean_i |a_i - b_i|^alpha

    With alpha 2: 0 when both sides are the same point, 4 when they are opposite.
    """
    u, v = _unit_rows_of_both(a, b)
    return float(np.mean(np.linalg.norm(u - v, axis=1) ** alpha))


def uniformity(z: npt.ArrayLike, *, t: float = 2) -> float:
    """How evenly unit rows are spread; smaller is better (Wang and Isola, ICML 2020).

        log mean_{i<j} exp(-t |z_i - z_j|^2)

    It is 0 when all rows are the same point. All pairs are compared, one block of pairs at a time.
    """
    u = unit_rows(z)
    n = len(u)
    if n < 2:
        raise ValueError("uniformity needs two rows or more")
    squares = np.einsum("nd,nd->n", u, u)  # (n,): 1, or 0 for a row of zeros
    log_sums: list[float] = []  # one per block
    for i in range(0, n, _BLOCK):
        rows = slice(i, i + _BLOCK)
        for j in range(i, n, _BLOCK):
            columns = slice(j, j + _BLOCK)
            exponents = u[rows] @ u[columns].T  # (B, B)
            exponents *= 2 * t
            exponents -= t * (squares[rows, None] + squares[None, columns])
            chosen = exponents.ravel()
            if i == j:  # on the diagonal each pair occurs twice, and each row with itself
                chosen = exponents[np.triu_indices(len(exponents), 1)]
            if chosen.size:
                peak = chosen.max()
                chosen -= peak
                log_sums.append(float(peak + np.log(np.exp(chosen, out=chosen).sum())))
    return float(np.logaddexp.reduce(log_sums) - np.log(n * (n - 1) / 2))


def anisotropy(z: npt.ArrayLike) -> float:
    """The mean cosine of all pairs of rows.

    It is near 0 when the rows use all directions evenly, and 1 when all rows have the same
    direction.

    mean_{i<j} <z_i, z_j> = (|sum_i z_i|^2 - sum_i |z_i|^2) / (n (n - 1)) on unit rows.
    """
    u = unit_rows(z)
    n = len(u)
    if n < 2:
        raise ValueError("anisotropy needs two rows or more")
    total = u.sum(axis=0)  # (d,)
    return float((total @ total - np.einsum("nd,nd->", u, u)) / (n * (n - 1)))


def pearson(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The correlation of two columns; 0 when one of them is constant."""
    x, y = _columns(a, b)
    if x.min() == x.max() or y.min() == y.max():
        return 0.0
    return float(np.clip(_standardised(x) @ _standardised(y), -1.0, 1.0))


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The correlation of the ranks of two columns; 0 when one of them is constant.

    Equal values share their mean rank.
    """
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
    """How high the relevant documents rank when documents are ordered by their cosine with a query.

        mrr       mean over queries of 1 / (rank of the best relevant document)
        recall@k  mean over queries of the share of its relevant documents among the first k

    `relevant` holds the document numbers of each query. Among documents with the same cosine the
    irrelevant ones come first, so that an encoder that maps all texts to one point scores nothing.
    """
    q, d, relevant_of = _checked_search(queries, documents, relevant, k)
    sum_of_reciprocal_ranks = 0.0
    sum_of_shares = dict.fromkeys(k, 0.0)
    for block in _blocks(q, d):
        cosines = _cosines(q[block], d)  # (B, documents)
        for row, relevant_documents in zip(cosines, relevant_of[block], strict=True):
            ranks = _ranks(row, relevant_documents)
            sum_of_reciprocal_ranks += 1.0 / ranks[0]
            for depth in k:
                sum_of_shares[depth] += int(np.count_nonzero(ranks <= depth)) / len(ranks)
    recalls = {f"recall@{depth}": sum_of_shares[depth] / len(q) for depth in k}
    return {"mrr": float(sum_of_reciprocal_ranks / len(q)), **recalls}


def nearest_accuracy(
    queries: npt.ArrayLike,
    candidates: npt.ArrayLike,
    correct: Sequence[Sequence[int]],
    *,
    k: Sequence[int] = (1, 5),
    neighbours: int | None = None,
) -> dict[str, float]:
    """accuracy@k: the share of queries with a correct one among the k nearest candidates.

    `correct` holds the numbers of the correct candidates of each query. Near is the cosine, or CSLS
    over this many `neighbours`. Of equally near candidates, wrong ones come first.
    """
    q, c, correct_of = _checked_search(queries, candidates, correct, k)
    hits = dict.fromkeys(k, 0)
    of_candidates = 0.0 if neighbours is None else _mean_of_nearest(c, q, neighbours)  # r_S
    for block in _blocks(q, c):
        # r_T is the same for all candidates of a query, so it does not change their order.
        nearness = _rounded(2 * _cosines(q[block], c) - of_candidates)  # (B, candidates)
        for row, numbers in zip(nearness, correct_of[block], strict=True):
            best_rank = _ranks(row, numbers)[0]
            for depth in k:
                hits[depth] += int(best_rank <= depth)
    return {f"accuracy@{depth}": hits[depth] / len(q) for depth in k}


def csls(sources: npt.ArrayLike, targets: npt.ArrayLike, *, neighbours: int = 10) -> Floats:
    """Cross-domain similarity local scaling (n, m) of Conneau et al. (ICLR 2018).

        CSLS(x, y) = 2 cos(x, y) - r_T(x) - r_S(y)

    r_T(x) is the mean cosine of x with its nearest `neighbours` among the targets, and r_S(y) that
    of y among the sources: a target that is near to everything is no longer everyone's nearest.
    """
    x = unit_rows(sources)
    y = unit_rows(targets)
    _check_same_width(x, y, "sources", "targets")
    of_sources = _mean_of_nearest(x, y, neighbours)
    of_targets = _mean_of_nearest(y, x, neighbours)
    return _rounded(2 * _cosines(x, y) - of_sources[:, None] - of_targets)


def _mean_of_nearest(u: Floats, v: Floats, k: int) -> Floats:
    """The mean cosine (n,) of each row of u with its k nearest rows of v, or with all if few."""
    if k < 1:
        raise ValueError(f"neighbours is {k}; it must be at least 1")
    k = min(k, len(v))
    nearest = [np.partition(_cosines(u[rows], v), -k, axis=1)[:, -k:] for rows in _blocks(u, v)]
    means: Floats = np.concatenate(nearest).mean(axis=1)
    return means


def _blocks(u: Floats, v: Floats) -> Iterator[slice]:
    """Slices of the rows of u, so that their cosines with all rows of v take little memory."""
    size = max(1, 4 * _BLOCK**2 // len(v))
    for start in range(0, len(u), size):
        yield slice(start, start + size)


def _checked_search(
    queries: npt.ArrayLike,
    documents: npt.ArrayLike,
    relevant: Sequence[Sequence[int]],
    k: Sequence[int],
) -> tuple[Floats, Floats, list[npt.NDArray[np.int64]]]:
    """(unit queries, unit documents, the relevant documents of each query), if all of it fits."""
    q = unit_rows(queries)
    d = unit_rows(documents)
    _check_same_width(q, d, "queries", "documents")
    if any(depth < 1 for depth in k):
        raise ValueError(f"k is {tuple(k)}; every depth must be at least 1")
    return q, d, _checked_relevant(relevant, len(q), len(d))


def _check_same_width(a: Floats, b: Floats, first: str, second: str) -> None:
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{first} have {a.shape[1]} dimensions, {second} {b.shape[1]}")


def _checked_relevant(
    relevant: Sequence[Sequence[int]], queries: int, documents: int
) -> list[npt.NDArray[np.int64]]:
    """The relevant documents of each query, each document once."""
    if len(relevant) != queries:
        raise ValueError(f"{queries} queries, but relevant documents for {len(relevant)}")
    relevant_of = [np.unique(np.asarray(numbers, dtype=np.int64)) for numbers in relevant]
    for query, numbers in enumerate(relevant_of):
        if not numbers.size:
            raise ValueError(f"query {query} has no relevant document")
        if numbers[0] < 0 or numbers[-1] >= documents:
            raise ValueError(
                f"query {query}: relevant documents must be numbers from 0 to {documents - 1}"
            )
    return relevant_of


def _ranks(cosines: Floats, relevant: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The ranks (m,) of the relevant documents of one query, best first."""
    near = np.sort(cosines[relevant])[::-1]  # (m,)
    at_least_as_near = np.count_nonzero(cosines >= near[:, None], axis=1)  # (m,)
    relevant_among_them = np.count_nonzero(near >= near[:, None], axis=1)  # (m,)
    wrong_before: npt.NDArray[np.int64] = at_least_as_near - relevant_among_them
    return wrong_before + np.arange(1, len(near) + 1)


def knn_accuracy(
    train_z: npt.ArrayLike,
    train_y: npt.ArrayLike,
    test_z: npt.ArrayLike,
    test_y: npt.ArrayLike,
    *,
    k: int = 10,
) -> float:
    """The share of test rows whose k nearest training rows, by cosine, vote for the right class.

    If several classes have equally many votes, the class with the nearest row wins; of equally near
    rows, the earlier row counts as nearer. If there are fewer than k training rows, all of them
    vote.
    """
    train, expected, test, answers = _checked_split(train_z, train_y, test_z, test_y)
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    classes, y = np.unique(expected, return_inverse=True)  # y: (n,) numbers of classes
    k = min(k, len(train))
    right = 0
    for start in range(0, len(test), _BLOCK):
        block = slice(start, start + _BLOCK)
        for row, answer in zip(_cosines(test[block], train), answers[block], strict=True):
            kth_nearest = np.partition(row, -k)[-k]  # only few rows are left to sort
            close = np.flatnonzero(row >= kth_nearest)
            nearest_first = close[np.argsort(-row[close], kind="stable")]
            votes = y[nearest_first[:k]]  # (k,)
            winner = votes[np.argmax(np.bincount(votes)[votes])]
            right += bool(classes[winner] == answer)
    return right / len(test)


def probe_accuracy(
    train_z: npt.ArrayLike, train_y: npt.ArrayLike, test_z: npt.ArrayLike, test_y: npt.ArrayLike
) -> float:
    """The accuracy of a logistic regression on frozen vectors.

    Each dimension is standardised by the training rows.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _checked_split(train_z, train_y, test_z, test_y)
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    probe.fit(np.asarray(train_z, dtype=np.float64), np.asarray(train_y))
    predicted = probe.predict(np.asarray(test_z, dtype=np.float64))
    return float(np.mean(predicted == np.asarray(test_y)))


def _unit_rows_of_both(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The unit rows of two sides that have to be of the same shape."""
    u = unit_rows(a)
    v = unit_rows(b)
    if u.shape != v.shape:
        raise ValueError(f"the two sides differ in shape: {u.shape} and {v.shape}")
    return u, v


def _checked_split(
    train_z: npt.ArrayLike, train_y: npt.ArrayLike, test_z: npt.ArrayLike, test_y: npt.ArrayLike
) -> tuple[Floats, npt.NDArray[Any], Floats, npt.NDArray[Any]]:
    """(unit training rows, their labels, unit test rows, their labels), if the shapes agree."""
    train = unit_rows(train_z)
    test = unit_rows(test_z)
    train_labels = np.asarray(train_y)
    test_labels = np.asarray(test_y)
    _check_same_width(train, test, "training rows", "test rows")
    for rows, labels, what in ((train, train_labels, "training"), (test, test_labels, "test")):
        if labels.shape != (len(rows),):
            raise ValueError(f"{len(rows)} {what} rows, but labels of shape {labels.shape}")
    return train, train_labels, test, test_labels


def _columns(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Two columns (n,), if they are finite and of one length."""
    x = np.asarray(a, dtype=np.float64)
    y = np.asarray(b, dtype=np.float64)
    _check_columns(x, y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a value is not finite")
    return x, y


def _check_columns(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
    if a.ndim != 1 or a.shape != b.shape or not a.size:
        raise ValueError(
            f"expected two columns of one length; got the shapes {a.shape} and {b.shape}"
        )


def _standardised(x: Floats) -> Floats:
    """A column centred and scaled to length 1.

    It is first divided by its largest entry, so that squares neither vanish nor overflow.
    """
    x = x / np.abs(x).max()
    x = x - x.mean()
    x = x / np.abs(x).max()
    unit: Floats = x / np.linalg.norm(x)
    return unit


def _cosines(u: Floats, v: Floats) -> Floats:
    """The cosines (n, m) of unit rows u (n, d) and v (m, d)."""
    return _rounded(u @ v.T)


def _rounded(cosines: Floats) -> Floats:
    """Rounded, so that equal vectors have equal cosines in whatever order a sum was computed."""
    rounded: Floats = np.round(cosines, 12)
    return rounded
