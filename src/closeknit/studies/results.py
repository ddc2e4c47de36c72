"""The results of runs, and the files that keep them: one line per run, one line per trial.

Every line names its format. Lines of earlier formats are read by `migrate`. A line of a later
format is refused: if it were skipped, its run would be repeated without a word.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from closeknit import __version__
from closeknit.errors import DataError
from closeknit.json_lines import read_json_lines

# The format of results.jsonl, trials.jsonl and study.json.
# 1: lines name no format. The oldest results have neither `settings` nor `source`.
# 2: lines name their format, and trials name the version of Closeknit that wrote them.
FORMAT = 2

# The details of a run lie in a file that is named by its key, so a key must not be a path.
_SAFE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Result:
    """One run: what was trained on what, and how it scored on rows it never saw."""

    data: str
    size: int
    objective: str
    options: dict[str, Any]
    encoder: str
    seed: int
    fold: int
    folds: int
    selection: str  # how the options were chosen: "fixed", "nested" or "paper"
    weighted_f1: float
    accuracy: float
    macro_f1: float
    seconds: float
    steps: int
    versions: dict[str, str]
    key: str
    settings: dict[str, Any] = field(default_factory=dict)  # of encoder and training, as searched
    source: str = ""  # what the data set was taken from; data sets of one source share rows
    test: str = "folds"  # where the test rows come from
    shots: int = 0  # training rows of each class; 0: their number per class is not fixed
    # The scores on the test rows whose nearest training text has another label, and their number.
    near_other_label: dict[str, float] | None = None
    # The share of the training texts that were longer than encoder.max_length; None: not known.
    truncated: float | None = None
    catalogue: str | None = None  # name of the data set in the catalogue; empty: it has none
    tested: str = ""  # a digest of the test rows; runs are paired only where it is the same


# Fields that lines of format 2 may lack, because earlier versions did not write them.
_LATER_FIELDS: dict[str, Any] = {
    "test": "folds",
    "shots": 0,
    "near_other_label": None,
    "truncated": None,
    "catalogue": None,
    "tested": "",
}
_RESULT_FIELDS = {field.name for field in dataclasses.fields(Result)} | {"format"}


def result_record(result: Result) -> dict[str, Any]:
    """The line of a result in results.jsonl."""
    return {"format": FORMAT, **dataclasses.asdict(result)}


def format_record() -> dict[str, Any]:
    """The format of this version, and the version, for records that have no `versions` of their
    own.
    """
    return {"format": FORMAT, "versions": {"closeknit": __version__}}


def read_results(path: Path) -> list[Result]:
    """The results of a file, each run once; damaged lines are skipped.

    A line that a later version of Closeknit wrote is refused.
    """
    results = {result.key: result for result in _results(path)}
    return list(results.values())


def _results(path: Path) -> Iterator[Result]:
    for record in read_json_lines(path):
        check_format(record, path)
        fields = migrate(record)
        if not fields.keys() >= _RESULT_FIELDS or not _SAFE_KEY.fullmatch(str(fields["key"])):
            continue
        unknown = sorted(fields.keys() - _RESULT_FIELDS)
        if unknown:
            raise DataError(
                f"{path}: the line of the run {fields['key']}, written by {_writer(record)}, has unknown fields: "
                f"{', '.join(unknown)}. {_ADVICE}"
            )
        del fields["format"]
        yield Result(**fields)


def read_trials(path: Path) -> list[dict[str, Any]]:
    """The trials of searches, in the order in which they were made; damaged lines are skipped.

    A line that a later version of Closeknit wrote is refused.
    """
    trials = []
    for record in read_json_lines(path):
        check_format(record, path)
        if {"key", "score"} <= record.keys():
            trials.append(record)
    return trials


def migrate(record: Mapping[str, Any]) -> dict[str, Any]:
    """The line of a result in the current format, from a line of any earlier format."""
    if record.get("format", 1) == 1:
        return {**_LATER_FIELDS, "settings": {}, "source": "", **record, "format": FORMAT}
    return {**_LATER_FIELDS, **record}


def check_format(record: Mapping[str, Any], path: Path) -> None:
    """Refuse a record of a later format than this version knows, with the version that wrote it."""
    found = record.get("format", 1)
    if isinstance(found, int) and found > FORMAT:
        raise DataError(
            f"{path} holds data in format {found}, written by {_writer(record)}. This is Closeknit {__version__}, "
            f"which reads formats up to {FORMAT}. {_ADVICE}"
        )


_ADVICE = "Use that version or a later one, or name another folder with --out"


def _writer(record: Mapping[str, Any]) -> str:
    versions = record.get("versions")
    version = versions.get("closeknit") if isinstance(versions, Mapping) else None
    return f"Closeknit {version}" if version else "an unknown version of Closeknit"
