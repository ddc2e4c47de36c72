"""Examples (columns of text, second text, label), the readers that make them, and splits."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import DataError, MissingExtra, did_you_mean
from .settings import SettingsTable, setting

T = TypeVar("T")
Rows = npt.NDArray[np.int64]
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
PARTS = ("train", "validation", "test", "all")
_NO_LABEL = (list, tuple, dict, set, bytes, np.ndarray)
_SEAMS = re.compile(r"(?<=[a-z])(?=[A-Z])|[_/#|.:+-]+")  # between the words of a class's name


@dataclass(frozen=True)
class Examples:
    """Rows of text, each with an optional second text and an optional class name or score."""

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[str] | None = None
    name: str = "data"
    scores: list[float] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: Iterable[int]) -> Examples:
        """The same columns, only these rows, in this order."""
        order = [int(row) for row in rows]

        def take(column: list[T] | None) -> list[T] | None:
            return None if column is None else [column[row] for row in order]

        return Examples(
            [self.texts[row] for row in order],
            take(self.pairs),
            take(self.labels),
            self.name,
            take(self.scores),
        )

    def with_names(self, names: Sequence[str]) -> Examples:
        """With a row more for each of these class names: the name, as one would say it, as a text of its class."""
        if self.pairs is not None:
            raise ValueError("pairs of texts have no row for a name")
        texts, labels = [*self.texts, *map(spoken, names)], [*self.required_labels, *names]
        return Examples(texts, labels=labels, name=self.name)

    @property
    def classes(self) -> list[str]:
        """The class names, sorted."""
        return sorted(set(self.required_labels))

    @property
    def required_labels(self) -> list[str]:
        if self.labels is None:
            raise DataError(f"{self.name} has no labels")
        return self.labels

    @property
    def required_scores(self) -> list[float]:
        if self.scores is None:
            raise DataError(f"{self.name} has no scores")
        return self.scores


@dataclass(frozen=True)
class DataSet:
    """A named data set in parts: train, validation, test, or one part called all."""

    name: str
    parts: dict[str, Examples]

    @property
    def training(self) -> Examples:
        for part in ("train", "all"):
            if part in self.parts:
                return self.parts[part]
        raise DataError(f"{self.name} has no train part, only {', '.join(self.parts)}")

    def together(self, names: Sequence[str]) -> Examples:
        """The rows of some parts, one after the other."""
        for name in names:
            if name not in self.parts:
                raise DataError(f"{self.name} has no part {name}, only {', '.join(self.parts)}")
        return joined([(name, self.parts[name]) for name in dict.fromkeys(names)], self.name)


def joined(parts: Sequence[tuple[str, Examples]], name: str) -> Examples:
    """The rows of several, one after the other; all have the same columns."""

    def column(role: str) -> list[Any] | None:
        found = [getattr(part, role) for _, part in parts]
        if any((own is None) != (found[0] is None) for own in found):
            raise DataError(f"{name}: not all of {', '.join(own for own, _ in parts)} have {role}")
        return None if found[0] is None else [value for own in found for value in own]

    return Examples(column("texts") or [], column("pairs"), column("labels"), name, column("scores"))


@dataclass(frozen=True)
class Columns(SettingsTable, table="data"):
    """Which columns to read; None is the usual name, where the file has such a column."""

    text: str | None = setting(None, default_text="the usual", help="Column that holds the text.")
    text2: str | None = setting(
        None,
        default_text="the usual",
        help="Column that holds the second text of a pair. An empty text reads none, though the file "
        "has a column `text2`.",
    )
    label: str | None = setting(None, default_text="the usual", help="Column that holds the class.")
    empty: str = setting(
        "error",
        choices=("error", "drop"),
        help="What happens to rows with a blank text or without a score: `error` refuses them, "
        "`drop` leaves them out.",
    )
    score: str | None = setting(None, default_text="the usual", help="Column that holds the score of a pair.")


# ---------------------------------------------------------------- from Python


def from_python(
    texts: Sequence[object],
    labels: Sequence[object] | None = None,
    *,
    name: str = "data",
    empty: str = "error",
) -> Examples:
    """Examples from a list of strings, or of (first, second) pairs, and optional class names."""
    if isinstance(texts, str | bytes):
        raise DataError(f"{name} is one string; give a list of strings")
    if holds_no_rows(texts):
        raise DataError(
            f"{name} is a {type(texts).__name__}; give a list of strings, or one column of a table"
        )
    rows = list(texts)
    if not rows:
        raise DataError(f"{name} is empty: there is no text")
    paired = not isinstance(rows[0], str | bytes) and isinstance(rows[0], Sequence | np.ndarray)
    if paired:
        wrong = [
            i for i, row in enumerate(rows) if not isinstance(row, Sequence | np.ndarray) or len(row) != 2
        ]
        if wrong:
            raise DataError(f"{name}: not a pair of texts in {_rows(wrong)}")
        columns: dict[str, list[Any]] = {
            "text": [row[0] for row in rows],  # type: ignore[index]
            "text2": [row[1] for row in rows],  # type: ignore[index]
        }
    else:
        columns = {"text": rows}
    if labels is not None:
        named = list(labels)
        if len(named) != len(rows):
            raise DataError(f"{name} has {len(rows)} texts, but {len(named)} labels; give one label a text")
        columns["label"] = named
    return build(columns, Columns(empty=empty), name)


def holds_no_rows(values: object) -> bool:
    """Whether something is no list, array, column or iterator: it has no rows, or none in an order, or a whole table."""
    listed = hasattr(values, "__iter__") or hasattr(values, "__getitem__")
    return (
        not listed
        or isinstance(values, str | bytes | set | frozenset | Mapping)
        or hasattr(values, "columns")
    )


def single_texts(texts: Sequence[object]) -> list[str]:
    """A list of strings, checked; pairs are refused."""
    examples = from_python(texts, name="the texts")
    if examples.pairs is not None:
        raise DataError("the texts are pairs; a vector is made of one text: give a list of strings")
    return examples.texts


# ---------------------------------------------------------------- files


def read_file(path: str | Path, columns: Columns | None = None, *, target: str | None = "label") -> Examples:
    """Examples from one CSV, TSV, JSONL, Parquet or plain text file (a line each); `target` is the column they must have."""
    columns = columns or Columns()
    return build(pick_columns(read_table(path), columns, str(path), target), columns, str(path))


def read_table(path: str | Path) -> dict[str, list[Any]]:
    """The columns of one CSV, TSV, JSONL, Parquet or plain text file (a line each, the column text)."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist{_nearby(path)}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        table = _parquet(path)
    elif suffix in (".csv", ".tsv"):
        text = _decode(path)
        table = _delimited(text, path, "\t" if suffix == ".tsv" else _separator(text))
    elif suffix in (".jsonl", ".ndjson"):
        table = _jsonl(_decode(path), path)
    elif suffix in (".txt", ""):
        table = {"text": lines_of(path.read_bytes(), str(path))}
    else:
        raise DataError(f"{path}: cannot read {suffix} files; use .csv, .tsv, .jsonl, .parquet or .txt")
    if not table or not next(iter(table.values())):
        raise DataError(f"{path} is empty: it has no rows")
    return table


def holds_data(folder: Path) -> bool:
    """Whether a folder has at least one file that `read_folder` would read."""
    return any((folder / f"{part}{suffix}").exists() for part in PARTS for suffix in SUFFIXES)


def read_folder(
    folder: str | Path, columns: Columns | None = None, *, name: str = "", target: str | None = "label"
) -> DataSet:
    """A data set from a folder of train/validation/test files, or of one `all` file."""
    folder = Path(folder)
    found = {
        part: folder / f"{part}{suffix}"
        for part in PARTS
        for suffix in SUFFIXES
        if (folder / f"{part}{suffix}").exists()
    }
    if not found:
        held = sorted(p.name for p in folder.iterdir())[:8]
        raise DataError(
            f"{folder} has no data files: expected train, validation, test or all with one of "
            f"{', '.join(SUFFIXES)}; it holds {', '.join(held) or 'nothing'}"
        )
    for part in PARTS:
        several = [f"{part}{suffix}" for suffix in SUFFIXES if (folder / f"{part}{suffix}").exists()]
        if len(several) > 1:
            raise DataError(f"{folder} holds {' and '.join(several)}; keep one of them")
    parts = {part: read_file(path, columns, target=target) for part, path in found.items()}
    return DataSet(name or folder.resolve().name, parts)


def _decode(path: Path) -> str:
    return decode(path.read_bytes(), str(path))


def decode(raw: bytes, where: str) -> str:
    """UTF-8 text, a byte order mark left out; else the line that is not."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(
            f"{where}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the text as UTF-8"
        ) from None


def lines_of(raw: bytes, where: str) -> list[str]:
    """A text a line; only line feeds part lines, as other tools count them."""
    lines = decode(raw, where).replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def _separator(text: str) -> str:
    """What parts the columns of a CSV file: a comma, unless the header has none but semicolons or tabs."""
    header = re.split(r"[\r\n]", text, maxsplit=1)[0]
    return next((mark for mark in ",;\t" if mark in header), ",")


def _marks_are_text(text: str) -> bool:
    """Whether tabs alone part a file: no field is in quotation marks, though some begin with one, as in GLUE's files."""
    rows = [line.split("\t") for line in re.split(r"\r\n|\r|\n", text) if line]
    begun = (field for row in rows for field in row if field.startswith('"'))
    # in one column a line break in marks looks the same
    if len(set(map(len, rows))) != 1 or len(rows[0]) == 1:
        return False
    return any(not _QUOTED.fullmatch(field) for field in begun)


def _delimited(text: str, path: Path, delimiter: str) -> dict[str, list[Any]]:
    csv.field_size_limit(2**31 - 1)
    plain = delimiter == "\t" and _marks_are_text(text)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        header = next(reader, None)
        if header is None:
            return {}
        header = [name.strip() for name in header]
        table: dict[str, list[Any]] = {name: [] for name in header}
        if len(table) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise DataError(f"{path}: the column {twice} occurs twice")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(row)} fields, but the header has {len(header)}; "
                    'a text that holds the separator or a line break needs "quotes" around it'
                )
            for name, value in zip(header, row, strict=True):
                table[name].append(value)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; a text that begins with a quotation mark needs quotes "
            'around it, and its own marks twice: """so"", he said"'
        ) from None
    return table


def _jsonl(text: str, path: Path) -> dict[str, list[Any]]:
    records: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error.msg})") from None
        if not isinstance(record, dict):
            raise DataError(f'{path}, line {number}: expected an object like {{"text": …, "label": …}}')
        records.append(record)
    names = {name: None for record in records for name in record}
    return {name: [record.get(name) for record in records] for name in names}


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    try:
        table: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    except (ValueError, OverflowError, OSError) as error:  # Arrow's own are among them
        raise DataError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]})") from None
    return table


def _nearby(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor does the folder {path.parent})"
    near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()]) if path.name else ""
    return near if "did you mean" in near else ""


def pick_columns(
    table: dict[str, list[Any]], columns: Columns, where: str, target: str | None = "label"
) -> dict[str, list[Any]]:
    """The columns text, text2 and label or score of a table, under those names.

    With the target "score" a label is not looked at, with "label" a score is not, with None neither.
    """

    def column(asked: str | None, usual: Sequence[str], needed: bool) -> str | None:
        for name in (asked,) if asked else usual:
            if name in table:
                return name
        if not (needed or asked):
            return None
        missing = asked or usual[0]
        raise DataError(
            f"{where} has no column {missing}; it has {', '.join(table)}"
            + ("" if asked else f"; name yours with --set data.{usual[0]}=COLUMN")
        )

    names = {
        "text": column(columns.text, ("text", "text1"), True),
        "text2": None if columns.text2 == "" else column(columns.text2, ("text2",), False),
    }
    if target == "score":
        names["score"] = column(columns.score, ("score",), True)
    elif target == "label":
        names["label"] = column(columns.label, ("label",), True)
    return {role: table[name] for role, name in names.items() if name is not None}


def build(columns: dict[str, list[Any]], options: Columns, name: str) -> Examples:
    """Checked Examples from raw columns: strings that are not blank, labels that are there."""
    texts = {role: columns[role] for role in ("text", "text2") if role in columns}
    blank: list[int] = []
    leave_out = "; mend them, or leave them out (on the command line: --set data.empty=drop)"
    for role, values in texts.items():
        empty = [i for i, value in enumerate(values) if is_missing(value)]
        wrong = [i for i, value in enumerate(values) if not isinstance(value, str)]
        if options.empty == "drop":
            wrong = sorted({*wrong} - {*empty})
        if wrong:
            kind, words = type(values[wrong[0]]).__name__, leave_out if {*wrong} <= {*empty} else ""
            raise DataError(f"{name}: {role} is not a string but {kind} in {_rows(wrong)}{words}")
        blank += empty
        check_whole(values, name)
    scores = [_score(value) for value in columns.get("score", [])]
    unscored = [i for i, value in enumerate(scores) if value is None]
    if unscored and options.empty == "error":
        shown = columns["score"][unscored[0]]
        raise DataError(f"{name}: the score is {shown!r}, not a number, in {_rows(unscored)}{leave_out}")
    if blank and options.empty == "error":
        raise DataError(f"{name}: empty text in {_rows(sorted(set(blank)))}{leave_out}")
    labels = columns.get("label")
    if labels is not None:
        wrong = [i for i, value in enumerate(labels) if isinstance(value, _NO_LABEL)]
        if wrong:
            kind = type(labels[wrong[0]]).__name__
            raise DataError(
                f"{name}: the label is a {kind} in {_rows(wrong)}; a text has one class, a string or a number"
            )
        missing = [i for i, value in enumerate(labels) if is_missing(value)]
        if missing:
            raise DataError(f"{name}: no label in {_rows(missing)}; give them one, or take these rows out")
        check_whole(labels, name)
        bare: dict[str, str] = {}
        for label in sorted(set(map(str, labels))):
            twin = bare.setdefault(label.strip(), label)
            if twin != label:
                raise DataError(
                    f'{name}: the labels "{twin}" and "{label}" differ by spaces alone; write them alike'
                )
    examples = Examples(
        [str(text) for text in texts["text"]],
        [str(text) for text in texts["text2"]] if "text2" in texts else None,
        None if labels is None else [str(label) for label in labels],
        name,
        [math.nan if score is None else score for score in scores] if "score" in columns else None,
    )
    if blank or unscored:
        dropped = {*blank, *unscored}
        examples = examples.select(row for row in range(len(examples)) if row not in dropped)
        if not len(examples):
            raise DataError(f"{name}: no row is left; all {len(dropped)} are empty")
    return examples


def check_whole(texts: Sequence[object], where: str) -> None:
    """Refuse halves of characters, as a text that was cut inside an emoji ends with: no tokeniser and no file takes them."""
    halves = [(i, found) for i, text in enumerate(texts) if isinstance(text, str) and (found := _half(text))]
    if halves:
        raise DataError(
            f"{where}: half a character ({halves[0][1]}), as of an emoji that was cut in two, "
            f"in {_rows([i for i, _ in halves])}; take it out"
        )


def _half(text: str) -> str | None:
    """The first half of a character, as Python writes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return ascii(text[error.start])[1:-1]
    return None


def _score(value: object) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def is_missing(value: object) -> bool:
    """Whether a cell is empty: blank, None, or what NumPy and pandas put where nothing is."""
    if value is None or isinstance(value, str):
        return value is None or not value.strip()
    if isinstance(value, _NO_LABEL):
        return False
    try:
        return bool(value != value)  # not a number, not a time
    except TypeError:  # pandas.NA is neither equal to itself nor not
        return True


def _rows(indices: Sequence[int]) -> str:
    """`row 3` or `rows 3, 7, 9 and 12 more`; rows are counted from 1, after the header."""
    shown = ", ".join(str(i + 1) for i in indices[:5])
    more = f" and {len(indices) - 5} more" if len(indices) > 5 else ""
    return f"row{'s' if len(indices) > 1 else ''} {shown}{more}"


# ---------------------------------------------------------------- splits


def check_classes(examples: Examples, *, at_least: int = 1, what: str = "training") -> None:
    """Refuse data with one class only, or with classes too small for what is asked."""
    counts = Counter(examples.required_labels)
    if len(counts) < 2:
        only = next(iter(counts))
        raise DataError(f'{examples.name} has one class only ("{only}"); {what} needs two or more')
    small = {label: n for label, n in counts.items() if n < at_least}
    if small:
        shown = ", ".join(f"{label} ({n})" for label, n in sorted(small.items())[:5])
        more = f" and {len(small) - 5} more" if len(small) > 5 else ""
        raise DataError(
            f"{examples.name}: {what} needs at least {at_least} rows of each class; too few of {shown}{more}"
        )


def spoken(name: str) -> str:
    """A class's name as one would say it: `Refund_not_showing_up` is "refund not showing up", `GetWeather` "get weather"."""
    return " ".join(_SEAMS.sub(" ", name).split()).lower()


def telling_names(classes: Sequence[str]) -> list[str]:
    """The classes whose names say something: a word at the least, and others than those of any other class.

    Two letters are a word, and so is one that is not ASCII. Where some names differ by digits and marks alone, as `2 stars`
    and `3 stars` do, those with digits are numbers.
    """
    letters = {name: "".join(c for c in spoken(name) if c.isalpha()) for name in classes}
    counts = Counter(letters.values())
    numbered = any(own and number > 1 for own, number in counts.items())

    def tells(name: str) -> bool:
        own = letters[name]
        word = len(own) > 1 or not own.isascii()
        return word and counts[own] == 1 and not (numbered and any(c.isdigit() for c in name))

    return [name for name in classes if tells(name)]


def folds(
    labels: Sequence[str], k: int, seed: int, *, rare: Literal["refuse", "keep"] = "refuse"
) -> list[tuple[Rows, Rows]]:
    """k stratified (train, test) pairs of row numbers; every row is tested exactly once.

    A class of fewer than k rows is refused, or kept: then some folds test it without having trained on it, or not at all.
    """
    from sklearn.model_selection import StratifiedKFold

    if k < 2:
        raise DataError(f"{k} folds were asked for; at least 2 are needed")
    least = k if rare == "refuse" else 1
    check_classes(Examples([""] * len(labels), labels=list(labels)), at_least=least, what=f"{k} folds")
    if max(Counter(labels).values()) < k:
        raise DataError(
            f"{k} folds need at least {k} rows of some class; the largest has {max(Counter(labels).values())}"
        )
    splitter = StratifiedKFold(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        parts = list(splitter.split(np.zeros(len(labels)), np.asarray(labels)))
    return [(train.astype(np.int64), test.astype(np.int64)) for train, test in parts]


def split(labels: Sequence[str], fraction: float, seed: int) -> tuple[Rows, Rows]:
    """(kept, held out) row numbers, stratified; no class loses its last row to the second part."""
    if not 0.0 < fraction < 1.0:
        raise DataError(f"a part of {fraction} cannot be held out; give a number between 0 and 1")
    held_out = _stratified(labels, max(1, round(fraction * len(labels))), seed, spare=1)
    kept = np.setdiff1d(np.arange(len(labels)), held_out)
    return kept, held_out


def subset(labels: Sequence[str], n: int, seed: int) -> Rows:
    """n row numbers whose classes stand in the same proportions as in the whole."""
    if not 1 <= n <= len(labels):
        raise DataError(f"a subset of {n} rows was asked for; there are {len(labels)}")
    return _stratified(labels, n, seed)


def few_shot(labels: Sequence[str], n: int, seed: int) -> Rows:
    """n row numbers of each class."""
    if n < 1:
        raise DataError(f"{n} rows of each class were asked for; at least 1 is needed")
    check_classes(Examples([""] * len(labels), labels=list(labels)), at_least=n, what=f"{n} rows a class")
    groups = _shuffled_groups(labels, seed)
    return np.sort(np.concatenate([rows[:n] for rows in groups]))


def _shuffled_groups(labels: Sequence[str], seed: int) -> list[Rows]:
    generator = np.random.default_rng(seed)
    names = np.asarray(labels)
    return [generator.permutation(np.flatnonzero(names == label)) for label in np.unique(names)]


def _stratified(labels: Sequence[str], n: int, seed: int, spare: int = 0) -> Rows:
    """n rows by largest remainders, leaving at least `spare` rows of each class behind."""
    groups = _shuffled_groups(labels, seed)
    room = np.array([max(len(rows) - spare, 0) for rows in groups])
    if n > room.sum():
        raise DataError(
            f"{n} of {len(labels)} rows in {len(groups)} classes cannot be held out without emptying a class; "
            "give more rows, or hold none out (data.test=0, train.validation=0)"
        )
    wanted = np.array([len(rows) for rows in groups]) * n / len(labels)
    take = np.minimum(np.floor(wanted).astype(int), room)
    order = np.argsort(-(wanted - take), kind="stable")
    while take.sum() < n:
        for group in order:
            if take.sum() < n and take[group] < room[group]:
                take[group] += 1
    return np.sort(np.concatenate([rows[:count] for rows, count in zip(groups, take, strict=True)]))


@dataclass(frozen=True)
class Fingerprint:
    """What identifies the rows of a run, so that a resumed one sees the same."""

    rows: int
    digest: str

    @staticmethod
    def of(*parts: Examples | None) -> Fingerprint:
        import hashlib

        digest, rows = hashlib.sha256(), 0
        for part in parts:
            if part is not None:
                rows += len(part)
                for column in (part.texts, part.pairs, part.labels):
                    digest.update(json.dumps(column).encode())
                if part.scores is not None:
                    digest.update(json.dumps(part.scores).encode())
        return Fingerprint(rows, digest.hexdigest())
