"""Hard negatives from a corpus: texts near a query that are not its answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from closeknit.data.sentences import Sentences
from closeknit.embeddings.scores import Encode, Vectors
from closeknit.errors import DataError
from closeknit.metrics import scaled_to_unit_length


def mine_negatives(
    encode: Encode,
    pairs: Sentences,
    corpus: Sequence[str] | None = None,
    *,
    margin: float = 0.95,
    chunk: int = 512,
) -> Sentences:
    """The pairs as triplets, each with a text of the corpus that is near and most likely wrong.

    The negative of a row is the nearest text of the corpus, but not a text of its group: neither
    its answer nor a text of a row that shares a text with it. Texts whose cosine is above `margin`
    times the cosine of the answer are skipped as well, because they may be right answers that
    nobody marked. Without a corpus, the answers of the other rows are the corpus.
    """
    if len(pairs.columns) < 2:
        raise DataError("hard negatives are mined for pairs: columns text and text2")
    queries_column, answers_column = pairs.columns[:2]
    texts = list(dict.fromkeys(corpus if corpus is not None else answers_column))
    queries = scaled_to_unit_length(encode(queries_column))  # (R, D)
    answers = scaled_to_unit_length(encode(answers_column))  # (R, D)
    candidates = scaled_to_unit_length(encode(texts))  # (T, D)
    excluded = _texts_of_each_group(pairs, texts)
    negatives: list[str] = []
    for start in range(0, len(pairs), chunk):
        rows = slice(start, start + chunk)
        similarity = queries[rows] @ candidates.T  # (chunk, T)
        to_answer = np.einsum("rd,rd->r", queries[rows], answers[rows])  # (chunk,)
        for i, group in enumerate(pairs.groups[rows].tolist()):
            allowed = np.ones(len(texts), dtype=bool)
            allowed[excluded.get(group, [])] = False
            if not allowed.any():
                raise DataError(
                    f"no negative can be mined for row {start + i + 1}: the corpus has no text "
                    "outside the group of this row"
                )
            chosen = _likeliest_negative(similarity[i], allowed, margin * to_answer[i])
            negatives.append(texts[chosen])
    return Sentences((queries_column, answers_column, negatives), pairs.groups, pairs.name)


def _texts_of_each_group(pairs: Sentences, texts: Sequence[str]) -> dict[int, list[int]]:
    """The numbers of the texts that occur in the pairs of each group."""
    number_of = {text: number for number, text in enumerate(texts)}
    found: dict[int, set[int]] = {}
    for row, group in enumerate(pairs.groups.tolist()):
        for column in pairs.columns[:2]:
            if column[row] in number_of:
                found.setdefault(group, set()).add(number_of[column[row]])
    return {group: sorted(numbers) for group, numbers in found.items()}


def _likeliest_negative(similarity: Vectors, allowed: npt.NDArray[np.bool_], limit: float) -> int:
    """The number of the nearest allowed text that is not above the limit."""
    below_limit = allowed & (similarity <= limit)
    if below_limit.any():
        return int(np.where(below_limit, similarity, -np.inf).argmax())
    # All allowed texts are as near as the answer: the farthest of them is most likely wrong.
    return int(np.where(allowed, similarity, np.inf).argmin())
