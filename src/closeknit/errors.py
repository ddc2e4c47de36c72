"""The few errors a user can act on: each message says what was found and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CloseknitError(Exception):
    """Something the user can mend; the command line prints it as one line and exits with 2."""


class ConfigError(CloseknitError):
    """A setting that is unknown, out of range, or at odds with another."""


class DataError(CloseknitError):
    """A file, a column, a text or a label that cannot be used."""


class ModelError(CloseknitError):
    """An encoder or a model folder that cannot be loaded or written."""


class TrainingError(CloseknitError):
    """A run that cannot go on: the loss is not finite, or memory is full."""


class Stopped(CloseknitError):
    """The user asked a run to stop; its state is saved."""


class MissingExtra(CloseknitError):
    """An optional library is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'closeknit[{extra}]'")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when something known is near, else the list of what is known."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(options)}" if options else ""
