"""How good an embedding is: likeness as people judge it, geometry, classes and retrieval; no torch.

Everything here takes an encoder as a function from a list of texts to rows (n, d), one for each text.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .data import PARTS, SUFFIXES, Examples, check_classes, check_whole, holds_data, read_table
from .errors import ConfigError, DataError, MissingExtra, ModelError, did_you_mean
from .metrics import (
    alignment,
    anisotropy,
    knn_accuracy,
    pair_cosines,
    pearson,
    probe_accuracy,
    retrieval_scores,
    spearman,
    uniformity,
)

Vectors = npt.NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]

SUITES: dict[str, list[str]] = {
    "sts": ["sts12", "sts13", "sts14", "sts15", "stsb"],
    "words": ["simlex999", "men", "ws353_all", "rg65", "mc30", "mturk771", "rw", "simverb3500"],
}
MEASURES = ("spearman", "pearson", "spearman_of_groups", "alignment", "uniformity", "anisotropy")
_GROUPS = ("subset", "group", "genre")  # columns that name the subset of a pair
_HUB = {"stsb": "sentence-transformers/stsb"}
_RAW = ("alignment", "uniformity", "anisotropy")  # shown as they are; all others in hundredths


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Pairs of texts and how alike people find the two; `groups` names the subset of each pair."""

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


@dataclass(frozen=True)
class Score:
    """One figure: which data, which measure, its value, and over how many pairs or texts."""

    data: str
    measure: str
    value: float
    n: int


# ---------------------------------------------------------------- scored pairs


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

    Unless columns are named, they are text1, text or sentence1; text2 or sentence2; score; and, where
    there is one, subset, group or genre. A folder gives the part that is preferred, `all`, or its only one, but
    never a test part where another is preferred.
    """
    path = Path(path)
    if path.is_dir():
        file, chosen = _part_of(path, part, prefer)
        name = path.resolve().name + ("" if chosen in ("test", "all") else f" {chosen}")
    else:
        if part is not None:
            raise DataError(f"{path} is not a folder, so it has no part {part}")
        file, name = path, path.stem
    return _pairs(read_table(file), (first, second, score, group), name, str(file))


def pairs_from(rows: Any, *, name: str = "pairs") -> ScoredPairs:
    """Pairs from a list of (text, text, score) rows."""
    listed = list(rows) if isinstance(rows, Iterable) else []
    if not listed or any(
        isinstance(row, str) or not isinstance(row, Sequence | np.ndarray) or len(row) != 3 for row in listed
    ):
        raise DataError(f"{name} must be a list of (text, text, score) rows")
    first, second, scores = (list(column) for column in zip(*listed, strict=True))
    return _pairs({"text1": first, "text2": second, "score": scores}, (None,) * 4, name, name)


def named_pairs(name: str) -> ScoredPairs:
    """The test part of a data set of a suite, from the folder in CLOSEKNIT_DATA or from the hub."""
    known = [data for suite in SUITES.values() for data in suite]
    if name not in known:
        raise DataError(f"{name} is no data set of scored pairs{did_you_mean(name, known)}")
    folder = os.environ.get("CLOSEKNIT_DATA")
    if folder:
        if not Path(folder).is_dir():
            raise DataError(f"CLOSEKNIT_DATA is {folder}, which is no folder")
        stem = Path(folder, "wordsim", name) if name in SUITES["words"] else Path(folder, name, "test")
        file = _with_suffix(stem)
        if file is not None:
            return _pairs(read_table(file), (None,) * 4, name, str(file))
    if name in _HUB:
        return _from_hub(name)
    place = f"wordsim/{name}.parquet" if name in SUITES["words"] else f"{name}/test.parquet"
    raise _Absent(f"{name} is not on the hub, and CLOSEKNIT_DATA names no folder with {place}")


class _Absent(DataError):
    """A known data set that is not on this machine and cannot be had."""


def _part_of(folder: Path, part: str | None, prefer: str) -> tuple[Path, str]:
    found = {name: file for name in PARTS if (file := _with_suffix(folder / name)) is not None}
    if part is None:
        if not found:
            expected = f"{', '.join(PARTS[:-1])} or {PARTS[-1]} with one of {', '.join(SUFFIXES)}"
            held = ", ".join(sorted(p.name for p in folder.iterdir())[:8])
            raise DataError(f"{folder} has no data files: expected {expected}; it holds {held or 'nothing'}")
        part = next((name for name in (prefer, "all") if name in found), None)
        if part is None and (len(found) > 1 or "test" in found):  # a test part is never taken for another
            held = f"the part{'s' * (len(found) > 1)} {', '.join(found)}"
            raise DataError(f"{folder} has {held}, but no {prefer}; name the file that is meant")
        part = part or next(iter(found))
    if part not in found:
        raise DataError(f"{folder} has no part {part}; it has {', '.join(found) or 'none'}")
    return found[part], part


def _with_suffix(stem: Path) -> Path | None:
    files = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    found = [file for file in files if file.exists()]
    if len(found) > 1:
        raise DataError(f"{stem.parent} holds {' and '.join(f.name for f in found)}; keep one of them")
    return found[0] if found else None


def _pairs(table: dict[str, list[Any]], asked: tuple[str | None, ...], name: str, where: str) -> ScoredPairs:
    """Checked pairs from raw columns: texts that are not blank, scores that are numbers."""
    first, second, score, group = asked

    def column(asked: str | None, *usual: str) -> list[Any]:
        for candidate in (asked,) if asked else usual:
            if candidate in table:
                return table[candidate]
        raise DataError(f"{where} has no column {asked or ' or '.join(usual)}; it has {', '.join(table)}")

    texts = [column(first, "text1", "text", "sentence1"), column(second, "text2", "sentence2")]
    scores = [_number(value, row, where) for row, value in enumerate(column(score, "score"), 1)]
    grouped = group or any(usual in table for usual in _GROUPS)
    groups = [str(value) for value in column(group, *_GROUPS)] if grouped else None
    return ScoredPairs(_texts(texts[0], where), _texts(texts[1], where), np.array(scores), name, groups)


def _texts(values: list[Any], where: str) -> list[str]:
    for row, value in enumerate(values, 1):
        if not isinstance(value, str):
            raise DataError(f"{where}: a text is not a string but {type(value).__name__} in row {row}")
        if not value.strip():
            raise DataError(f"{where}: empty text in row {row}")
    check_whole(values, where)
    return values


def _number(value: object, row: int, where: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: the score in row {row} is {value!r}; it must be a number")
    return number


def _from_hub(name: str) -> ScoredPairs:
    try:
        import datasets
    except ImportError:
        missing = MissingExtra(
            f"loading {name} from the hub (or set CLOSEKNIT_DATA to a folder that has it)", "hub"
        )
        raise _Absent(str(missing)) from None
    try:
        rows = datasets.load_dataset(_HUB[name], split="test")
    except Exception as error:  # the library raises a dozen kinds, none of them documented as final
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _Absent(
            f"{name} could not be loaded from the hub ({_HUB[name]}: {reason}); "
            "if this machine is offline, set CLOSEKNIT_DATA to a folder that has it"
        ) from None
    table: dict[str, list[Any]] = {column: list(rows[column]) for column in rows.column_names}
    return _pairs(table, (None,) * 4, name, f"{name} test")


# ---------------------------------------------------------------- measures


def sts_scores(encode: Encode, pairs: ScoredPairs) -> dict[str, float]:
    """Spearman and Pearson correlation of the cosines of pairs with their scores; `n` pairs.

    All pairs of a set are ranked together, as SimCSE reports it. Where the set has groups,
    `spearman_of_groups` is the plain mean over them, as some others do: the two differ by points.
    """
    vectors = _encoded(encode, [pairs.first, pairs.second])
    cosines = pair_cosines(*vectors)
    scores = {
        "spearman": spearman(cosines, pairs.scores),
        "pearson": pearson(cosines, pairs.scores),
        "n": len(pairs),
    }
    if pairs.groups is not None:
        of = np.asarray(pairs.groups)
        own = [spearman(cosines[of == group], pairs.scores[of == group]) for group in np.unique(of)]
        scores["spearman_of_groups"] = float(np.mean(own))
    return scores


def geometry_scores(
    encode: Encode,
    pairs: ScoredPairs,
    texts: Sequence[str],
    *,
    above: float | None = None,
    most: int = 5000,
    seed: int = 0,
) -> dict[str, float]:
    """Alignment of the pairs people find alike; uniformity and anisotropy of texts.

    Alike are pairs scored above `above`, by default four fifths of the range that the scores span (for
    STS-B, from 0 to 5: above 4). Equal texts count once; of more than `most` some are drawn by `seed`.
    `positives` and `texts` say how many took part.
    """
    low, high = float(pairs.scores.min()), float(pairs.scores.max())
    limit = low + 4 / 5 * (high - low) if above is None else above
    # A score stored in single precision may miss the limit by a hair: 0.8 is then 0.80000001.
    alike = np.flatnonzero(pairs.scores > limit + 1e-6 * (high - low))
    if not len(alike):
        raise DataError(
            f"{pairs.name}: no pair is scored above {limit:g}; the scores go from {low:g} to {high:g}"
        )
    chosen = list(dict.fromkeys(texts))
    if len(chosen) < 2:
        raise DataError(f"{len(chosen)} texts were given; uniformity needs two different ones or more")
    if len(chosen) > most:
        drawn = np.random.default_rng(seed).choice(len(chosen), most, replace=False)
        chosen = [chosen[i] for i in np.sort(drawn)]
    first, second, z = _encoded(
        encode, [[pairs.first[i] for i in alike], [pairs.second[i] for i in alike], chosen]
    )
    return {
        "alignment": alignment(first, second),
        "uniformity": uniformity(z),
        "anisotropy": anisotropy(z),
        "positives": len(alike),
        "texts": len(chosen),
    }


def labelled_scores(encode: Encode, train: Examples, test: Examples, *, k: int = 10) -> dict[str, float]:
    """How well frozen vectors tell classes: accuracy of the k nearest neighbours and of a linear probe."""
    for part in (train, test):
        if not len(part):
            raise DataError(f"{part.name} is empty: there is no text")
        if part.pairs is not None:
            raise DataError(f"{part.name} holds pairs of texts; an embedding is scored on single texts")
    check_classes(train, what="a probe")
    z, test_z = _encoded(encode, [train.texts, test.texts])
    y, test_y = np.asarray(train.required_labels), np.asarray(test.required_labels)
    return {
        "knn_accuracy": knn_accuracy(z, y, test_z, test_y, k=k),
        "probe_accuracy": probe_accuracy(z, y, test_z, test_y),
        "n": len(test),
    }


def retrieval(encode: Encode, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """How well each query finds its answer among all answers: mrr, recall@1, @5 and @10; `n` queries.

    Equal answers are one document, and equal queries one query with several answers.
    """
    if not pairs:
        raise DataError("there are no pairs of query and answer")
    answers = {answer: number for number, answer in enumerate(dict.fromkeys(a for _, a in pairs))}
    relevant: dict[str, list[int]] = {}
    for query, answer in pairs:
        relevant.setdefault(query, []).append(answers[answer])
    queries, documents = _encoded(encode, [list(relevant), list(answers)])
    return {**retrieval_scores(queries, documents, list(relevant.values())), "n": len(relevant)}


def _encoded(encode: Encode, columns: Sequence[Sequence[str]]) -> list[Vectors]:
    """The vectors of each column of texts; a text that occurs several times is encoded once."""
    place: dict[str, int] = {}
    for column in columns:
        for text in column:
            place.setdefault(text, len(place))
    vectors = np.asarray(encode(list(place)))
    if vectors.ndim != 2 or len(vectors) != len(place) or not vectors.shape[1]:
        raise ModelError(
            f"the encoder made the shape {vectors.shape} of {len(place)} texts; expected a row each"
        )
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        text = list(place)[int(wrong[0])]
        raise ModelError(
            f"the encoder's vector of {text[:60]!r} is not finite, as are {len(wrong) - 1} others"
        )
    return [vectors[[place[text] for text in column]] for column in columns]


# ---------------------------------------------------------------- suites and tables


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def evaluate_suite(
    encode: Encode,
    names: str | Path | Sequence[str | Path],
    *,
    measures: Sequence[str] = ("spearman",),
    say: Callable[[str], None] = _tell,
) -> list[Score]:
    """Scores on suites, data sets of suites, and files or folders of scored pairs, in that order.

    A known data set that cannot be had is left out, and `say` hears of it; it is an error only when
    nothing is left. Geometry is measured on the texts of the set itself.
    """
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(f"unknown measure {measure}{did_you_mean(measure, MEASURES)}")
    absent: list[str] = []
    read: dict[str, str | Path] = {}  # name in the table -> what was read
    sets: list[
        ScoredPairs
    ] = []  # all are read before the first is scored: what is wrong with one is told at once
    for name in _expanded([names] if isinstance(names, str | Path) else names):
        try:
            pairs = named_pairs(name) if isinstance(name, str) else read_scored_pairs(name)
        except _Absent as reason:
            absent.append(str(reason))
            say(f"left out: {reason}")
            continue
        if read.setdefault(pairs.name, name) != name:  # another file of the same name
            pairs = dataclasses.replace(pairs, name=str(name))
        sets.append(pairs)
    if not sets:
        raise DataError("there is nothing to score: " + ("; ".join(absent) or "no data set was named"))
    return [score for pairs in sets for score in _measured(encode, pairs, measures)]


def _expanded(names: Sequence[str | Path]) -> list[str | Path]:
    """Names of data sets as strings and everything else as paths, each once."""
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
        elif path.exists() or path.suffix or len(path.parts) > 1:
            found.append(path)  # the reader says what is wrong with it
        else:
            near = did_you_mean(str(name), [*SUITES, *known])
            raise DataError(f"{name} is neither a file, a folder, a suite nor a data set of a suite{near}")
    return list(dict.fromkeys(found))


def _measured(encode: Encode, pairs: ScoredPairs, measures: Sequence[str]) -> list[Score]:
    vectors: dict[str, Vectors] = {}

    def remembered(texts: list[str]) -> Vectors:
        if not vectors:
            own = pairs.texts
            vectors.update(zip(own, _encoded(encode, [own])[0], strict=True))
        return np.stack([vectors[text] for text in texts])

    values: dict[str, float] = {}
    if any(measure not in _RAW for measure in measures):
        values |= sts_scores(remembered, pairs)
    if any(measure in _RAW for measure in measures):
        values |= geometry_scores(remembered, pairs, pairs.texts)
    counts = {"alignment": "positives", "uniformity": "texts", "anisotropy": "texts"}
    return [
        Score(pairs.name, measure, values[measure], int(values[counts.get(measure, "n")]))
        for measure in measures
        if measure in values  # a set without groups has no mean over them
    ]


def as_scores(data: str, values: dict[str, float]) -> list[Score]:
    """The figures of `sts_scores`, `labelled_scores` or `retrieval` as rows for `table`."""
    return [Score(data, name, value, int(values["n"])) for name, value in values.items() if name != "n"]


def table(scores: dict[str, list[Score]]) -> str:
    """Markdown: a row for each data set and measure, a column for each model, and the mean of each suite.

    Shares and correlations are in hundredths. A mean is given where a model was scored on all the
    sets of the suite that occur in the table, so that the means of a row are of the same sets.
    """
    cells: dict[tuple[str, str], dict[str, Score]] = {}
    for model, rows in scores.items():
        for row in rows:
            if cells.setdefault((row.data, row.measure), {}).setdefault(model, row) != row:
                raise DataError(f"{model} has two different values of {row.measure} on {row.data}")
    lines = [
        "| " + " | ".join(["data", "measure", "n", *map(_escaped, scores)]) + " |",
        "| --- | --- | ---: |" + " ---: |" * len(scores),
    ]
    for (data, measure), own in cells.items():
        n = " / ".join(f"{count:,}" for count in dict.fromkeys(score.n for score in own.values()))
        shown = [_shown(measure, own[model].value) if model in own else "–" for model in scores]
        lines.append(_line(_escaped(data), measure, n, shown))
    for suite, members in SUITES.items():
        present = [cells[data, "spearman"] for data in members if (data, "spearman") in cells]
        if len(present) > 1:
            means = [
                _shown("spearman", float(np.mean([own[model].value for own in present])))
                if all(model in own for own in present)
                else "–"
                for model in scores
            ]
            title = f"{suite.upper() if suite == 'sts' else suite} average"
            lines.append(_line(title, "spearman", f"{len(present)} of {len(members)} sets", means))
    return "\n".join(lines) + "\n"


def _line(data: str, measure: str, n: str, values: Sequence[str]) -> str:
    label = measure if measure in _RAW else f"{measure} × 100"
    return f"| {data} | {label} | {n} | {' | '.join(values)} |"


def _shown(measure: str, value: float) -> str:
    return f"{value:.3f}" if measure in _RAW else f"{100 * value:.2f}"


def _escaped(name: str) -> str:
    return name.replace("|", "\\|")
