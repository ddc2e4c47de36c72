"""Arguments and options that several commands have, and what turns them into settings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.errors import ConfigError, Stopped

if TYPE_CHECKING:
    from closeknit.data.tables import Columns

DataArgument = Annotated[
    str,
    typer.Argument(
        help="A CSV, TSV, JSONL or Parquet file, a folder with the files train, validation and "
        "test, or the name of a data set from `closeknit data`."
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(help="A folder that `closeknit train` or `closeknit multitask` wrote.")
]

EncoderOption = Annotated[
    str | None,
    typer.Option(
        help="A name on the Hugging Face Hub, a folder, or textcnn. Default: all-MiniLM-L6-v2."
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(help="The seed of all random numbers of the run. Default: 2.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(help="A file with settings in TOML. Command-line options override the file."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change one setting, as in train.warmup=0.1 or objective.centers=100. Repeatable.",
    ),
]
DataSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change how the data are read: data.text=COLUMN names a column, data.empty=drop skips "
        "rows without a text. Repeatable.",
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Resume the interrupted run in the folder --out.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the model in the folder --out.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextlib.contextmanager
def stoppable(message: str) -> Iterator[None]:
    """Turn Ctrl-C into this message and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(message) from None


def all_changes(named: Mapping[str, Any], set_: list[str] | None) -> list[tuple[str, Any]]:
    """Options that were given, as changes of settings; those of --set come last and override."""
    from closeknit.settings import given_options, parse_changes

    return [*given_options(named), *parse_changes(set_ or [])]


def chosen_columns(known: Columns | None, changes: list[str] | None) -> Columns:
    """The columns that a model was trained with, or the usual ones, changed by `--set data.…`."""
    from closeknit.classification.config import read_config
    from closeknit.data.tables import Columns

    given = [change.partition("=")[0].strip() for change in changes or []]
    for setting in given:
        if not setting.startswith("data."):
            raise ConfigError(
                f"--set {setting}: only settings of data can be changed here, as in "
                "data.text=COLUMN"
            )
        if setting == "data.test":
            raise ConfigError(
                "--set data.test: only `closeknit train` holds rows out; this command reads all "
                "rows"
            )
    changed = read_config(None, changes or []).data
    base = known or Columns()
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Columns):
        source = changed if f"data.{field.name}" in given else base
        values[field.name] = getattr(source, field.name)
    return Columns(**values)
