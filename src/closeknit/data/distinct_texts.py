"""Held-out rows whose texts are not among the training rows: what makes two rows the same, splits
by distinct text, and the rows that stand in two parts.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from closeknit.data.examples import Examples, Rows
from closeknit.data.splits import folds, split
from closeknit.errors import DataError


def row_keys(examples: Examples) -> list[tuple[str, ...]]:
    """What makes two rows the same: their words, whatever the case, punctuation and order of the
    pair.
    """
    columns = [column for column in (examples.texts, examples.pairs) if column is not None]
    words = [
        [" ".join(re.findall(r"\w+", text.lower())) or text for text in column]
        for column in columns
    ]
    return [tuple(sorted(row)) for row in zip(*words, strict=True)]


def row_hashes(examples: Examples) -> npt.NDArray[np.uint64]:
    """A hash (R,) of each row; rows that `row_keys` takes for the same have the same hash."""
    hashes = (
        hashlib.blake2b("\0".join(key).encode(), digest_size=8).digest()
        for key in row_keys(examples)
    )
    return np.frombuffer(b"".join(hashes), dtype="<u8").astype(np.uint64)


def rows_without(examples: Examples, held_out: Iterable[Examples]) -> Rows:
    """The numbers of the rows whose texts are in none of the held-out parts.

    A part of pairs has no row in common with single texts.
    """
    alike = [part for part in held_out if (part.pairs is None) == (examples.pairs is None)]
    seen = {key for part in alike for key in row_keys(part)}
    kept = [row for row, key in enumerate(row_keys(examples)) if key not in seen]
    return np.array(kept, dtype=np.int64)


def split_distinct(examples: Examples, share: float, seed: int) -> tuple[Rows, Rows]:
    """(kept, held out) row numbers; all rows with the same text are in the same part.

    The distinct texts are split, stratified by class. Where all texts differ, this is the split of
    the rows. At least one row of each class is kept.
    """
    group_of = text_groups(examples)  # (R,)
    _, first_rows = np.unique(group_of, return_index=True)  # (G,) one row of each group
    labels = examples.required_labels
    _, held_out = split([labels[row] for row in first_rows], share, seed)
    held_out = _give_back_lost_classes(held_out, group_of, labels)
    is_held_out = np.isin(group_of, held_out)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def split_for_run(
    examples: Examples, share: float, seed: int, *, split_rows: bool = False
) -> tuple[Rows, Rows]:
    """(kept, held out) row numbers by distinct text; by row for a run that was begun so."""
    if split_rows:
        return split(examples.required_labels, share, seed)
    return split_distinct(examples, share, seed)


def folds_of_distinct_texts(
    labels: Sequence[str], group_of: Rows, k: int, seed: int
) -> list[tuple[Rows, Rows]]:
    """k (train, test) pairs of row numbers; all rows with the same text are tested in the same
    fold.

    The distinct texts are cut into folds, stratified by the class of their first row. `group_of`
    (R,) are the groups of `text_groups`. Where all texts differ, these are the folds of the rows.
    A class with few texts is kept: then some folds have no training row of this class.
    """
    _, first_rows, group_of = np.unique(group_of, return_index=True, return_inverse=True)
    in_order = np.argsort(first_rows)  # groups by their first row
    names = [labels[row] for row in first_rows[in_order]]
    largest = max(Counter(names).values())
    if largest < k and len(names) < len(labels):
        raise DataError(
            f"{k} folds need a class with at least {k} distinct texts, because rows with the same "
            f"text are in the same fold; the largest class has {largest}. Ask for fewer folds"
        )
    pairs = []
    for _, test in folds(names, k, seed, rare="keep"):
        is_tested = np.isin(group_of, in_order[test])
        pairs.append((np.flatnonzero(~is_tested), np.flatnonzero(is_tested)))
    return pairs


def text_groups(examples: Examples) -> Rows:
    """The number of the group (R,) of each row: rows with the same text are one group.

    Groups are numbered by their first row.
    """
    number: dict[tuple[str, ...], int] = {}
    groups = [number.setdefault(key, len(number)) for key in row_keys(examples)]
    return np.array(groups, dtype=np.int64)


def _give_back_lost_classes(held_out: Rows, group_of: Rows, labels: Sequence[str]) -> Rows:
    """The held-out groups, without those that are needed to keep a row of each class.

    A class can be lost where the same text stands in the data with several labels.
    """
    names = np.asarray(labels)
    for label in np.unique(names):
        groups = np.unique(group_of[names == label])
        if np.isin(groups, held_out).all():
            held_out = held_out[held_out != groups[0]]
    return held_out


def note_of_repeated_rows(training: Examples, part: Examples, name: str) -> str | None:
    """The line that says how many rows of a part are training rows too, word for word; None if
    there are none.
    """
    known = set(zip(training.texts, training.pairs or training.texts, strict=True))
    rows = zip(part.texts, part.pairs or part.texts, strict=True)
    repeated = sum(row in known for row in rows)
    if not repeated:
        return None
    effect = (
        "they choose the best epoch as if they were new texts"
        if name == "validation"
        else "the score will be better than on new texts"
    )
    return (
        f"{repeated} of the {len(part)} {name} rows are among the training rows too, word for "
        f"word: {effect}"
    )
