"""The errors that a user can act on: each message says what was found and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CloseknitError(Exception):
    """An error that the user can fix; the command line prints it as one line and exits with
    code 2.

    Worker processes send their errors to the process that waits for them. An error is therefore
    pickled, and made again from `args`: a subclass passes all its arguments to `Exception`.
    """


class ConfigError(CloseknitError):
    """A setting that is unknown, out of range, or in conflict with another setting."""


class DataError(CloseknitError):
    """A file, a column, a text or a label that cannot be used."""


class ModelError(CloseknitError):
    """An encoder or a model folder that cannot be loaded or written."""


class TrainingError(CloseknitError):
    """A run that cannot continue: the loss is not finite, or the memory is full."""


class Stopped(CloseknitError):
    """The user asked a run to stop; the state of the run is saved."""


class MissingExtra(CloseknitError):
    """An optional library is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)

    def __str__(self) -> str:
        what, extra = self.args
        return f"{what} needs an extra: pip install 'closeknit[{extra}]'"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name X that is closest, else the list of all known
    names.
    """
    options = sorted(known)
    closest = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    if closest:
        return f"; did you mean {closest[0]}?"
    return f"; known: {', '.join(options)}" if options else ""
