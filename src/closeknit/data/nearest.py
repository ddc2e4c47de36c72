"""Test rows whose nearest training text has another label.

Such rows are what a method must separate that claims to tell similar texts with different labels
apart. Nearest means by the words alone (the cosine of tf-idf vectors), so the rows depend on no
encoder and are the same for every model that is scored on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.data.examples import Examples
from closeknit.data.text_changes import UNSPACED_SCRIPTS
from closeknit.errors import DataError
from closeknit.metrics import classification_scores

Mask = npt.NDArray[np.bool_]

# Words; in scripts that are written without blanks between words, every character counts as one.
_WORD = rf"[{UNSPACED_SCRIPTS}]|[^\W{UNSPACED_SCRIPTS}]+"
_CELLS = 4_000_000  # cosines that are held at once
_EQUALLY_NEAR = 1e-9


def near_other_label(training: Examples, test: Examples) -> Mask:
    """For each test row (n,): whether the training text nearest to it has another label.

    Of several texts that are equally near, one with the label of the row suffices for no. A row
    that shares no word with any training text has no nearest one.
    """
    if (training.pairs is None) != (test.pairs is None):
        raise DataError(
            f"{training.name} and {test.name}: one holds single texts and the other pairs of texts"
        )
    names = np.unique([*training.required_labels, *test.required_labels])
    trained = np.searchsorted(names, training.required_labels)
    expected = np.searchsorted(names, test.required_labels)
    near = np.zeros(len(test), dtype=np.bool_)
    vectors = _tfidf_vectors(training, test)
    if vectors is None:
        return near
    training_vectors, test_vectors = vectors
    block = max(1, _CELLS // max(1, len(training)))
    for start in range(0, len(test), block):
        rows = slice(start, start + block)
        cosines = (test_vectors[rows] @ training_vectors.T).toarray()  # (b, m)
        highest = cosines.max(axis=1)  # (b,)
        nearest = cosines >= highest[:, None] - _EQUALLY_NEAR
        same_label = trained[None, :] == expected[rows, None]
        near[rows] = (highest > 0) & ~(nearest & same_label).any(axis=1)
    return near


def _tfidf_vectors(training: Examples, test: Examples) -> tuple[Any, Any] | None:
    """Sparse rows (m, v) and (n, v) of length 1, with the weights of the training texts.

    The two texts of a pair stand side by side in one row. There are no rows without words.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=_WORD, sublinear_tf=True)
    try:
        vectorizer.fit([*training.texts, *(training.pairs or [])])
    except ValueError:  # no training text has a word
        return None
    sides = []
    for examples in (training, test):
        columns = [examples.texts] if examples.pairs is None else [examples.texts, examples.pairs]
        parts = [vectorizer.transform(column) for column in columns]
        sides.append(hstack(parts, format="csr") / np.sqrt(len(parts)))
    return sides[0], sides[1]


def scores_near_other_label(
    near: Mask,
    expected: npt.NDArray[np.int64],
    predicted: npt.NDArray[np.int64],
    names: list[str],
) -> dict[str, float]:
    """The number of rows near another label, and the scores on these rows if there are any."""
    found: dict[str, float] = {"rows": int(near.sum())}
    if near.any():
        scores = classification_scores(expected[near], predicted[near], names)
        found |= {name: scores[name] for name in ("accuracy", "weighted_f1")}
    return found
