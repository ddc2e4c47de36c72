"""The command line: one function a command -> one library call -> print.

Results go to stdout, progress and complaints to stderr. Exit 0: done; 1: a check failed; 2: something
for the user to mend; 130: stopped by the user. Libraries are imported inside the commands that use them.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from typing import Annotated

import typer

from closeknit.errors import CloseknitError, Stopped

from . import training, comparing, using, looking  # isort: skip  # noqa: F401  in the order of the help
from .shared import app

__all__ = ["app", "main"]


def _tell_version(asked: bool) -> None:
    if asked:
        from closeknit import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    atexit.register(
        gc.freeze
    )  # or Python looks through all that torch made once more before it ends: half a second
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = None if sys.stdout.isatty() else "utf-8"  # as files are read; a terminal: what it can show
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
        print(f"closeknit: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        sys.exit(2)
