"""Hard negatives from a corpus: texts that an encoder takes for the answer, and that are not it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .errors import DataError
from .metrics import scaled_to_unit_length
from .sentences import Sentences

Encode = Callable[[list[str]], npt.NDArray[np.float32]]


def mine_negatives(
    encode: Encode,
    pairs: Sentences,
    corpus: Sequence[str] | None = None,
    *,
    margin: float = 0.95,
    chunk: int = 512,
) -> Sentences:
    """The pairs as triplets, each with the nearest text of the corpus that is most likely wrong.

    Left out are the texts of the row's own group (its answer, and whatever shares a text with it), and texts nearer than
    `margin` times the answer itself, which may be right answers that nobody marked. Without a corpus the
    answers of the other rows are taken.
    """
    if len(pairs.columns) < 2:
        raise DataError("hard negatives are mined for pairs: columns text and text2")
    texts = list(dict.fromkeys(corpus if corpus is not None else pairs.columns[1]))
    number = {text: i for i, text in enumerate(texts)}
    queries, answers, known = (
        scaled_to_unit_length(encode(column)) for column in (pairs.columns[0], pairs.columns[1], texts)
    )
    barred: dict[int, set[int]] = {}
    for row, group in enumerate(pairs.groups.tolist()):
        for column in pairs.columns[:2]:
            if column[row] in number:
                barred.setdefault(group, set()).add(number[column[row]])
    chosen: list[str] = []
    for start in range(0, len(pairs), chunk):
        near = queries[start : start + chunk] @ known.T  # (chunk, texts)
        right = np.einsum("rd,rd->r", queries[start : start + chunk], answers[start : start + chunk])
        for i, row in enumerate(range(start, min(start + chunk, len(pairs)))):
            own = np.ones(len(texts), dtype=bool)
            own[list(barred.get(int(pairs.groups[row]), ()))] = False
            if not own.any():
                raise DataError(
                    f"no negative can be mined for row {row + 1}: the corpus has no text that is not its own"
                )
            safe = own & (near[i] <= margin * right[i])
            # where all others are as near as the answer, the farthest is the safest
            best = (
                np.where(safe, near[i], -np.inf).argmax()
                if safe.any()
                else np.where(own, near[i], np.inf).argmin()
            )
            chosen.append(texts[int(best)])
    return Sentences((pairs.columns[0], pairs.columns[1], chosen), pairs.groups, pairs.name)
