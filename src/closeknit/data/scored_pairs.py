"""Pairs of texts with a score for how similar people find them, from files, suites and the hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.data.evaluation_sets import EXAMPLES, example_file
from closeknit.data.sources import HubUnreachable, existing_data_folder, load_from_hub
from closeknit.data.tables import SUFFIXES, Table, find_part, holds_data, read_table
from closeknit.data.validation import finite_number, require_texts
from closeknit.errors import DataError, MissingExtra, did_you_mean

SUITES: dict[str, list[str]] = {
    "sts": ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"],
    "words": ["simlex999", "men", "ws353_all", "rg65", "mc30", "mturk771", "rw", "simverb3500"],
}
# The test part of "sickr" has all 9,927 pairs there, not only the 4,927 of the original test part.
_HUB = {
    "sts12": "mteb/sts12-sts",
    "sts13": "mteb/sts13-sts",
    "sts14": "mteb/sts14-sts",
    "sts15": "mteb/sts15-sts",
    "sts16": "mteb/sts16-sts",
    "stsb": "sentence-transformers/stsb",
    "sickr": "mteb/sickr-sts",
}

# The usual names of each column, in the order in which they are looked for.
_FIRST = ("text1", "text", "sentence1", "sentence_A")
_SECOND = ("text2", "sentence2", "sentence_B")
_SCORE = ("score", "relatedness_score")
_GROUP = ("subset", "group", "genre")


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Pairs of texts and how similar people find them; `groups` names the subset of each pair."""

    first: list[str]
    second: list[str]
    scores: npt.NDArray[np.float64]
    name: str = "pairs"
    groups: list[str] | None = None

    def __post_init__(self) -> None:
        counts = {"second texts": len(self.second), "scores": len(self.scores)}
        if self.groups is not None:
            counts["groups"] = len(self.groups)
        for what, count in counts.items():
            if count != len(self.first):
                raise DataError(f"{self.name} has {len(self.first)} first texts and {count} {what}")
        if not self.first:
            raise DataError(f"{self.name} is empty: there are no pairs")

    def __len__(self) -> int:
        return len(self.first)

    @property
    def texts(self) -> list[str]:
        """Every text once, in the order of first use."""
        return list(dict.fromkeys([*self.first, *self.second]))


class DataSetUnavailable(DataError):
    """A known data set that is neither on this machine nor on the hub."""


class _HubDown(DataSetUnavailable):
    """The hub does not answer, so that it holds no other data set either."""


class ConstantScores(DataError):
    """Pairs that all have the same score."""


# ---------------------------------------------------------------- files and Python


def read_scored_pairs(
    path: str | Path,
    part: str | None = None,
    *,
    prefer: str = "test",
    first: str | None = None,
    second: str | None = None,
    score: str | None = None,
    group: str | None = None,
) -> ScoredPairs:
    """Pairs from a CSV, TSV, JSONL or Parquet file, or from one part of a folder of such files.

    If columns are not named, they are text1, text or sentence1; text2 or sentence2; score; and, if
    there is one, subset, group or genre. Of a folder, the preferred part is read, then `all`, then
    the only part. A test part is never read where another part is preferred.
    """
    path = Path(path)
    if path.is_dir():
        chosen, file = find_part(path, prefer, part=part)
        name = path.resolve().name + ("" if chosen in ("test", "all") else f" {chosen}")
    elif part is not None:
        raise DataError(f"{path} is not a folder, so it has no part {part}")
    else:
        file = path
        name = path.stem
    columns = _ColumnNames(first, second, score, group)
    return _build_pairs(read_table(file), name, str(file), columns)


def scored_pairs_from(rows: Any, *, name: str = "pairs") -> ScoredPairs:
    """Pairs from a list of (text, text, score) rows."""
    listed = list(rows) if isinstance(rows, Iterable) else []
    if not listed or not all(map(_has_three_values, listed)):
        raise DataError(f"{name} must be a list of (text, text, score) rows")
    first, second, scores = (list(column) for column in zip(*listed, strict=True))
    return _build_pairs({"text1": first, "text2": second, "score": scores}, name, name)


def _has_three_values(row: object) -> bool:
    is_row = isinstance(row, Sequence | np.ndarray) and not isinstance(row, str)
    return is_row and len(row) == 3  # type: ignore[arg-type]


# ---------------------------------------------------------------- suites


def load_scored_pairs(name: str, *, from_hub: bool = True) -> ScoredPairs:
    """The test part of a data set of a suite, from the folder in CLOSEKNIT_DATA or from the hub."""
    known = [data for suite in SUITES.values() for data in suite]
    if name not in known:
        raise DataError(f"{name} is not a data set of scored pairs{did_you_mean(name, known)}")
    place = f"wordsim/{name}" if name in SUITES["words"] else f"{name}/test"
    folder = existing_data_folder()
    file = _only_file(folder / place) if folder is not None else None
    if file is not None:
        return _build_pairs(read_table(file), name, str(file))
    if name in _HUB and not from_hub:
        raise DataSetUnavailable(f"{name} is on the hub, which could not be reached")
    if name in _HUB:
        return _load_from_hub(name)
    raise DataSetUnavailable(
        f"{name} is not on the hub, and CLOSEKNIT_DATA names no folder with {place}.parquet"
    )


def read_suites(
    names: str | Path | Sequence[str | Path],
    *,
    log: Callable[[str], None],
    columns: Mapping[str, str] | None = None,
    may_be_empty: bool = False,
) -> list[ScoredPairs]:
    """The scored pairs of suites, data sets of suites, files, folders and examples, in that order.

    A known data set that is not available is skipped, and so are pairs that all have one score;
    `log` gets a message. This is an error if nothing is left, unless `may_be_empty`. `columns`
    names the columns of files to read as text, text2 and score.
    """
    skipped: list[str] = []
    hub_answers = True
    source_of: dict[str, str | Path] = {}  # name of a data set -> where it was read from
    sets: list[ScoredPairs] = []
    for name in _expand_suites([names] if isinstance(names, str | Path) else names):
        try:
            pairs = _read(name, columns, hub_answers)
            _check_scores_differ(pairs)
        except (DataSetUnavailable, ConstantScores) as reason:
            hub_answers = hub_answers and not isinstance(reason, _HubDown)
            skipped.append(str(reason))
            log(f"skipped: {reason}")
            continue
        if source_of.setdefault(pairs.name, name) != name:  # another file with the same name
            pairs = dataclasses.replace(pairs, name=str(name))
        sets.append(pairs)
    if not sets and not may_be_empty:
        reasons = "; ".join(skipped) or "no data set was named"
        raise DataError(f"there is nothing to score: {reasons}")
    return sets


def _read(name: str | Path, columns: Mapping[str, str] | None, hub_answers: bool) -> ScoredPairs:
    """The pairs of a data set of a suite (a string), or of a file or folder (a path)."""
    if isinstance(name, str):
        return load_scored_pairs(name, from_hub=hub_answers)
    asked = columns or {}
    return read_scored_pairs(
        name, first=asked.get("text"), second=asked.get("text2"), score=asked.get("score")
    )


def _check_scores_differ(pairs: ScoredPairs) -> None:
    """Raise an error if all pairs have one score: then there is no correlation with it."""
    if pairs.scores.min() == pairs.scores.max():
        raise ConstantScores(
            f"{pairs.name}: the score of all {len(pairs)} pairs is {pairs.scores[0]:g}; a "
            "correlation needs scores that differ"
        )


def _expand_suites(names: Sequence[str | Path]) -> list[str | Path]:
    """Data sets of suites as strings and everything else as paths, each once."""
    known = [data for suite in SUITES.values() for data in suite]
    found: list[str | Path] = []
    for name in names:
        path = Path(name)
        if path.is_file() or (path.is_dir() and holds_data(path)):
            found.append(path)
        elif str(name) in SUITES:
            found += SUITES[str(name)]
        elif str(name) in known:
            found.append(str(name))
        elif str(name) in _examples():
            found.append(example_file(name))
        elif path.exists() or path.suffix or len(path.parts) > 1:
            found.append(path)  # reading it gives the error message
        else:
            hint = did_you_mean(str(name), [*SUITES, *known, *_examples()])
            raise DataError(
                f"{name} is neither a file, a folder, a suite nor a data set of a suite{hint}"
            )
    return list(dict.fromkeys(found))


def _examples() -> list[str]:
    return [name for name, option in EXAMPLES.items() if option == "suite"]


def _only_file(path_without_suffix: Path) -> Path | None:
    """The file with this path and one of the suffixes of a table; refuses two of them."""
    folder = path_without_suffix.parent
    names = [f"{path_without_suffix.name}{suffix}" for suffix in SUFFIXES]
    found = [name for name in names if (folder / name).exists()]
    if len(found) > 1:
        raise DataError(f"{folder} holds {' and '.join(found)}; keep one of them")
    return folder / found[0] if found else None


def _load_from_hub(name: str) -> ScoredPairs:
    try:
        rows = load_from_hub(name, _HUB[name], split="test")
    except HubUnreachable as error:
        raise _HubDown(str(error)) from None
    except (DataError, MissingExtra) as error:
        raise DataSetUnavailable(str(error)) from None
    table: Table = {column: list(rows[column]) for column in rows.column_names}
    return _build_pairs(table, name, f"{name} test")


# ---------------------------------------------------------------- checks


@dataclass(frozen=True)
class _ColumnNames:
    """The names of the columns to read; None means the first usual name that a table has."""

    first: str | None = None
    second: str | None = None
    score: str | None = None
    group: str | None = None


_USUAL_NAMES = _ColumnNames()


def _build_pairs(
    table: Table, name: str, where: str, columns: _ColumnNames = _USUAL_NAMES
) -> ScoredPairs:
    """Checked pairs from the columns of a table: no text is blank, and every score is a number."""

    def column(asked: str | None, usual: Sequence[str]) -> list[Any]:
        for candidate in (asked,) if asked else usual:
            if candidate in table:
                return table[candidate]
        raise DataError(f"{where} has no column {asked or usual[0]}; it has {', '.join(table)}")

    first = column(columns.first, _FIRST)
    second = column(columns.second, _SECOND)
    raw_scores = column(columns.score, _SCORE)
    scores = [_score(value, number, where) for number, value in enumerate(raw_scores, 1)]
    groups = None
    if columns.group or any(usual in table for usual in _GROUP):
        groups = [str(value) for value in column(columns.group, _GROUP)]
    for texts in (first, second):
        require_texts(texts, where)
    return ScoredPairs(first, second, np.array(scores), name, groups)


def _score(value: object, row_number: int, where: str) -> float:
    score = finite_number(value)
    if score is None:
        raise DataError(f"{where}: the score in row {row_number} is {value!r}; it must be a number")
    return score
