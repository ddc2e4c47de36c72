"""What a command is given: the folder of a model, and texts in a file or on standard input."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from closeknit.cli.options import chosen_columns
from closeknit.errors import DataError

if TYPE_CHECKING:
    from closeknit.classification.model import Model
    from closeknit.data.examples import Examples
    from closeknit.data.tables import Columns
    from closeknit.encoders.encoder import Encoder

# Letters times weights: below it, one thread needs some ten milliseconds.
LITTLE_WORK = 5e9


def kind_of(folder: Path) -> str:
    """What kind of model a folder holds, without loading the model."""
    from closeknit.models.folder import read_facts

    return str(read_facts(folder, None)["kind"])


def load_classifier(folder: Path) -> Model:
    from closeknit.classification.model import Model

    return Model.load(folder, bare=True)


@contextlib.contextmanager
def threads_for(encoder: Encoder, examples: Examples) -> Iterator[None]:
    """Use one thread for a few texts.

    Several threads would save a few milliseconds, and cost many more beside other programs.
    """
    import torch

    threads = torch.get_num_threads()
    letters = sum(map(len, [*examples.texts, *(examples.pairs or [])]))
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    if letters * weights < LITTLE_WORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def read_texts(file: str, known: Columns | None, changes: list[str] | None) -> Examples:
    """The texts to answer, from a file or from standard input; labels are not needed."""
    from closeknit.data.tables import Columns, read_file

    if known is not None:  # every row gets an answer, unless --set data.empty=drop is given
        known = dataclasses.replace(known, empty="error")
    columns = chosen_columns(known, changes)
    if file == "-":
        return _read_standard_input(columns.empty)
    if " " in file.strip() and not Path(file).exists():
        raise DataError(
            f"{file} does not exist; a text is read from standard input: "
            f'echo "{file}" | closeknit …'
        )
    is_text_file = Path(file).suffix.lower() in (".txt", "")
    return read_file(file, Columns(empty=columns.empty) if is_text_file else columns, target=None)


def _read_standard_input(empty: str) -> Examples:
    """One text per line; `empty` says what to do with empty lines."""
    from closeknit.data.examples import from_python
    from closeknit.data.tables import split_lines

    if sys.stdin.isatty():
        print("reading one text per line from the keyboard; end with Ctrl-D", file=sys.stderr)
    stream = getattr(sys.stdin, "buffer", None)
    content = stream.read() if stream else sys.stdin.read().encode()
    lines = split_lines(content, "standard input")
    if not lines:
        raise DataError("standard input is empty: there is no text")
    return from_python(lines, name="standard input", empty=empty)
