"""Tables: CSV, TSV, JSON lines, Parquet and plain text files, and folders of them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.data.examples import DataSet, Examples, build_examples
from closeknit.errors import DataError, MissingExtra, did_you_mean
from closeknit.json_lines import parse_json_lines
from closeknit.settings import SettingsTable, setting

Table = dict[str, list[Any]]  # column name -> its values; all columns have the same length

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
PARTS = ("train", "validation", "test", "all")
_QUOTED_FIELD = re.compile(r'"(?:[^"]|"")*"')
_FILES_SHOWN = 8


@dataclass(frozen=True)
class Columns(SettingsTable, table="data"):
    """Which columns of a table are read. None means the usual name, if the table has it."""

    text: str | None = setting(None, default_text="the usual", help="Column that holds the text.")
    text2: str | None = setting(
        None,
        default_text="the usual",
        help="Column that holds the second text of a pair. With an empty name no second text is read, "
        "even if the table has a column `text2`.",
    )
    label: str | None = setting(None, default_text="the usual", help="Column that holds the class.")
    empty: str = setting(
        "error",
        choices=("error", "drop"),
        help="What happens to rows with a blank text or without a score: `error` refuses them, "
        "`drop` leaves them out.",
    )
    score: str | None = setting(
        None, default_text="the usual", help="Column that holds the score of a pair."
    )


# ---------------------------------------------------------------- files


def read_file(
    path: str | Path, columns: Columns | None = None, *, target: str | None = "label"
) -> Examples:
    """Examples from a CSV, TSV, JSONL or Parquet file, or a text file with one text per line.

    `target` is the column that the file must have besides the text: "label", "score" or None.
    """
    columns = columns or Columns()
    table = pick_columns(read_table(path), columns, str(path), target)
    return build_examples(table, str(path), empty=columns.empty)


def read_table(path: str | Path) -> Table:
    """The columns of one CSV, TSV, JSONL or Parquet file.

    A text file has one text per line, in the column `text`.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist{_similar_name(path)}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        table = _read_parquet(path)
    elif suffix in (".csv", ".tsv"):
        text = decode(path.read_bytes(), str(path))
        table = _parse_delimited(text, path, "\t" if suffix == ".tsv" else _delimiter_of(text))
    elif suffix in (".jsonl", ".ndjson"):
        table = _read_json_lines(path)
    elif suffix in (".txt", ""):
        table = {"text": split_lines(path.read_bytes(), str(path))}
    else:
        raise DataError(
            f"{path}: cannot read {suffix} files; use .csv, .tsv, .jsonl, .parquet or .txt"
        )
    if not table or not next(iter(table.values())):
        raise DataError(f"{path} is empty: it has no rows")
    return table


def _similar_name(path: Path) -> str:
    """A hint for a path that does not exist: a similar name in its folder."""
    if not path.parent.is_dir():
        return f"; the folder {path.parent} does not exist either"
    if not path.name:
        return ""
    hint = did_you_mean(path.name, [other.name for other in path.parent.iterdir()])
    return hint if "did you mean" in hint else ""


def decode(raw: bytes, where: str) -> str:
    """UTF-8 bytes as text without a byte order mark; an error names a line that is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        byte = raw[error.start]
        raise DataError(
            f"{where}, line {line}: not UTF-8 (byte 0x{byte:02x}); save the text as UTF-8"
        ) from None


def split_lines(raw: bytes, where: str) -> list[str]:
    """The lines of a text. Only a line feed ends a line, as in other tools that count lines."""
    lines = decode(raw, where).replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


# ---------------------------------------------------------------- formats


def _delimiter_of(text: str) -> str:
    """The mark between the columns of a CSV file.

    This is a comma, unless the header has no comma but has semicolons or tabs.
    """
    header = re.split(r"[\r\n]", text, maxsplit=1)[0]
    return next((mark for mark in ",;\t" if mark in header), ",")


def _parse_delimited(text: str, path: Path, delimiter: str) -> Table:
    csv.field_size_limit(2**31 - 1)
    unquoted = delimiter == "\t" and _quotation_marks_are_text(text)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if unquoted else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        header = [name.strip() for name in next(reader, [])]
        table: Table = {name: [] for name in header}
        if len(table) < len(header):
            repeated = next(name for name in header if header.count(name) > 1)
            raise DataError(f"{path}: the column {repeated} occurs twice")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(row)} fields, but the header has "
                    f"{len(header)}; a text that holds the separator or a line break needs "
                    '"quotes" around it'
                )
            for name, value in zip(header, row, strict=True):
                table[name].append(value)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; a text that begins with a quotation mark "
            'needs quotes around it, and each quotation mark inside doubled: """so"", he said"'
        ) from None
    return table


def _quotation_marks_are_text(text: str) -> bool:
    """Whether a file with tabs between its columns has no quoted fields, as the files of GLUE.

    This is so if a field begins with a quotation mark, but is not quoted as a whole, and the tabs
    alone give every line the same number of fields. A file with one column is never read so,
    because there a line break inside quotation marks looks the same.
    """
    rows = [line.split("\t") for line in re.split(r"\r\n|\r|\n", text) if line]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or widths == {1}:
        return False
    fields = (field for row in rows for field in row if field.startswith('"'))
    return any(not _QUOTED_FIELD.fullmatch(field) for field in fields)


def _read_json_lines(path: Path) -> Table:
    records = list(parse_json_lines(decode(path.read_bytes(), str(path)), str(path)))
    names = {name: None for record in records for name in record}
    return {name: [record.get(name) for record in records] for name in names}


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("reading Parquet files", "parquet") from None
    try:
        table: Table = pyarrow.parquet.read_table(path).to_pydict()
    except (ValueError, OverflowError, OSError) as error:  # the errors of Arrow are among these
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a readable Parquet file ({reason})") from None
    return table


# ---------------------------------------------------------------- columns


def pick_columns(table: Table, columns: Columns, where: str, target: str | None = "label") -> Table:
    """The columns text, text2 and the target of a table, under these names.

    With the target "score" a label is ignored, with "label" a score, and with None both are.
    """
    picked = {"text": _pick(table, columns.text, ("text", "text1"), where, required=True)}
    if columns.text2 != "":
        picked["text2"] = _pick(table, columns.text2, ("text2",), where, required=False)
    if target == "score":
        picked["score"] = _pick(table, columns.score, ("score",), where, required=True)
    elif target == "label":
        picked["label"] = _pick(table, columns.label, ("label",), where, required=True)
    return {role: values for role, values in picked.items() if values is not None}


def _pick(
    table: Table, asked: str | None, usual: Sequence[str], where: str, *, required: bool
) -> list[Any] | None:
    """The column that is asked for, or the first with a usual name."""
    for name in (asked,) if asked else usual:
        if name in table:
            return table[name]
    if not (required or asked):
        return None
    found = f"it has {', '.join(table)}"
    if asked:
        raise DataError(f"{where} has no column {asked}; {found}")
    raise DataError(
        f"{where} has no column {usual[0]}; {found}; "
        f"name the column to read with --set data.{usual[0]}=COLUMN"
    )


# ---------------------------------------------------------------- folders


def holds_data(folder: Path) -> bool:
    """Whether a folder has at least one file that `read_folder` would read."""
    return any((folder / f"{part}{suffix}").exists() for part in PARTS for suffix in SUFFIXES)


def read_folder(
    folder: str | Path,
    columns: Columns | None = None,
    *,
    name: str = "",
    target: str | None = "label",
) -> DataSet:
    """A data set from a folder with files named train, validation and test, or one named all."""
    folder = Path(folder)
    files = part_files(folder)
    if not files:
        raise DataError(_no_data_files(folder))
    parts = {part: read_file(path, columns, target=target) for part, path in files.items()}
    return DataSet(name or folder.resolve().name, parts)


def part_files(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> dict[str, Path]:
    """The file of each part that a folder has; refuses two files of one part."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    files: dict[str, Path] = {}
    for part in PARTS:
        names = [f"{part}{suffix}" for suffix in suffixes if (folder / f"{part}{suffix}").exists()]
        if len(names) > 1:
            raise DataError(f"{folder} holds {' and '.join(names)}; keep one of them")
        if names:
            files[part] = folder / names[0]
    return files


def find_part(
    folder: Path,
    preferred: str,
    *,
    part: str | None = None,
    suffixes: Sequence[str] = SUFFIXES,
    any_name: bool = False,
) -> tuple[str, Path]:
    """The name and the file of the part of a folder to read.

    This is `part` if it is given. Otherwise it is the preferred part, or `all`, or the only part.
    With `any_name` the only data file counts instead of the only part, whatever its name is.
    A test part is never read in place of another part.
    """
    files = part_files(folder, suffixes)
    if part is not None:
        if part not in files:
            raise DataError(f"{folder} has no part {part}; it has {', '.join(files) or 'none'}")
        return part, files[part]
    for name in (preferred, "all"):
        if name in files:
            return name, files[name]
    candidates = _data_files(folder) if any_name else list(files.values())
    if len(candidates) == 1 and candidates[0].stem != "test":
        return candidates[0].stem, candidates[0]
    if not files:
        raise DataError(f"{_no_data_files(folder)}; name the file to read")
    raise DataError(
        f"{folder} has no part {preferred} or all; it has {', '.join(files)}; name the file to read"
    )


def _data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def _no_data_files(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())[:_FILES_SHOWN]
    return (
        f"{folder} has no data files: expected {', '.join(PARTS[:-1])} or {PARTS[-1]} with one of "
        f"{', '.join(SUFFIXES)}; it holds {', '.join(names) or 'nothing'}"
    )
