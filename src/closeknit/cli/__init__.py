"""The command line. Each command is one function: it calls the library once and prints the result.

Results go to standard output, progress and complaints to standard error. The exit code is 0 if all
went well, 2 if the user has something to change, and 130 if the user stopped the command. The
commands import torch and other large libraries when they run, so that `--help` is quick.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from closeknit.cli import compare, demo, embed, inspect, labels, train, use
from closeknit.errors import CloseknitError, Stopped

__all__ = ["COMMANDS", "app", "main"]


class Command(NamedTuple):
    """A command: its name, the function that runs it, and the example that ends its help."""

    name: str
    run: Callable[..., None]
    example: str


# In the order of the help.
COMMANDS = (
    Command(
        "train",
        train.train,
        "closeknit train messages --objective triple_entropy --out runs/first",
    ),
    Command(
        "embeddings",
        train.embeddings,
        "closeknit embeddings messages --method simcse --epochs 1 --out runs/encoder",
    ),
    Command(
        "multitask",
        train.multitask,
        "closeknit multitask exp14 --scale 0.02 --out runs/trial",
    ),
    Command(
        "compare",
        compare.compare,
        "closeknit compare messages --objectives cross_entropy,supcon --sizes 300 --seeds 2",
    ),
    Command(
        "report",
        compare.report,
        "closeknit report runs/comparison",
    ),
    Command(
        "evaluate",
        use.evaluate,
        "closeknit evaluate runs/first messages --json",
    ),
    Command(
        "predict",
        use.predict,
        'echo "where is my refund" | closeknit predict runs/first --json',
    ),
    Command(
        "embed",
        embed.embed,
        'echo "where is my refund" | closeknit embed runs/first - --out vectors.npy',
    ),
    Command(
        "evaluate-embeddings",
        embed.evaluate_embeddings,
        "closeknit evaluate-embeddings runs/encoder default --labelled messages",
    ),
    Command(
        "labels",
        labels.labels,
        "closeknit labels runs/first messages --out runs/labels",
    ),
    Command(
        "objectives",
        inspect.objectives,
        "closeknit objectives triple_entropy",
    ),
    Command(
        "data",
        inspect.data,
        "closeknit data messages",
    ),
    Command(
        "demo",
        demo.demo,
        "closeknit demo --out demo",
    ),
)


def _print_version(asked: bool) -> None:
    if asked:
        from closeknit import __version__

        print(__version__)
        raise typer.Exit


def _options_of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The options that stand before the name of a command."""


def _build_app() -> typer.Typer:
    app = typer.Typer(
        name="closeknit",
        help="Fine-tune text encoders with contrastive and metric-learning objectives, and test "
        "whether that helped.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        epilog="Start here: closeknit demo",
    )
    app.callback()(_options_of_all)
    for command in COMMANDS:
        app.command(command.name, epilog=f"Example: {command.example}")(command.run)
    return app


app = _build_app()


def main() -> None:
    """Run the command line; a mistake of the user is one line on standard error and exit code 2."""
    # Before Python ends it searches all objects for garbage. With torch that takes half a second,
    # unless the objects are frozen.
    atexit.register(gc.freeze)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file or a pipe gets UTF-8, as files are read; a terminal what it can show.
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    try:
        app()
    except CloseknitError as error:
        print(f"closeknit: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Stopped) else 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        print("closeknit: stopped", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f"{error.filename} cannot be read or written: " if error.filename else ""
        print(f"closeknit: {where}{reason}", file=sys.stderr)
        sys.exit(2)
