"""The application, and what several commands share: options, stopping, printing."""

from __future__ import annotations

import contextlib
import json as json_library
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.errors import ConfigError, Stopped

if TYPE_CHECKING:
    from closeknit.data.tables import Columns


app = typer.Typer(
    name="closeknit",
    help="Fine-tune text encoders with contrastive and metric-learning objectives, and see honestly whether it helped.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Start here: closeknit demo",
)

DataArgument = Annotated[
    str,
    typer.Argument(
        help="A CSV, TSV, JSONL or Parquet file, a folder of train/validation/test files, or a catalogue name."
    ),
]

DataSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Name columns, like data.text=message; or data.empty=drop; repeatable."
    ),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change one setting, like train.warmup=0.1 or objective.centers=100; repeatable.",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

ModelArgument = Annotated[
    Path, typer.Argument(help="A folder that `closeknit train` or `closeknit multitask` wrote.")
]


@contextlib.contextmanager
def stoppable(words: str) -> Iterator[None]:
    """Ctrl-C as a sentence and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(words) from None


def print_json(value: Any) -> None:
    print(json_library.dumps(value, ensure_ascii=False))


def chosen_columns(known: Columns | None, changes: list[str] | None) -> Columns:
    """The columns that a model was trained with, or the usual ones, with `--set data.…` on top."""
    import dataclasses

    from closeknit.config import read_config
    from closeknit.data.tables import Columns

    given = [change.partition("=")[0].strip() for change in changes or []]
    for setting in given:
        if not setting.startswith("data."):
            raise ConfigError(
                f"--set {setting}: only settings of data can be changed here, like data.text=COLUMN"
            )
        if setting == "data.test":
            raise ConfigError(
                "--set data.test: only `closeknit train` holds rows out; here all rows are read"
            )
    asked, base = read_config(None, changes or []).data, known or Columns()
    return Columns(
        **{
            field.name: getattr(asked if f"data.{field.name}" in given else base, field.name)
            for field in dataclasses.fields(Columns)
        }
    )


def print_scores(scores: dict[str, Any], name: str) -> None:
    shown = "  ".join(
        f"{key.replace('_', ' ')} {scores[key]:.4f}"
        for key in ("accuracy", "weighted_f1", "macro_f1")
    )
    print(f"{name}: {shown}  ({scores['n']} rows)")


def print_tasks(
    metrics: dict[str, Any], measures: dict[str, str], rows: dict[str, str] | None = None
) -> None:
    """A line a task with its scores, and the average of all; `rows` names the part that each was scored on."""
    parts = [part for part in ("validation", "test", "score") if part in metrics]
    alone = metrics.get("alone", {})
    width = max(7, *(len(name) for name in measures))
    columns: list[tuple[str, dict[str, Any]]] = [(part, metrics[part]) for part in parts]
    columns += [(f"{part} alone", {name: own[part] for name, own in alone.items() if part in own})
                for part in parts if alone]  # fmt: skip
    print(f"{'task':<{width}}  {'metric':<12}" + "".join(f"{name:>18}" for name, _ in columns))
    for name, measure in measures.items():
        shown = [
            f"{own[name][measure]:>18.4f}" if name in own else f"{'':>18}" for _, own in columns
        ]
        part = f"  {rows[name]}" if rows else ""
        print(f"{name:<{width}}  {measure:<12}" + "".join(shown) + part)
    if len(measures) > 1:
        means = []
        for _, own in columns:
            values = [own[name][measure] for name, measure in measures.items() if name in own]
            whole = len(values) == len(measures)
            means.append(f"{sum(values) / len(values):>18.4f}" if whole else f"{'':>18}")
        print(f"{'average':<{width}}  {'':<12}" + "".join(means))
