"""Files of tensors and of facts: safetensors and JSON, never pickle.

A file is written whole or not at all. One that is damaged, missing or newer is refused with a
sentence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from closeknit import __version__
from closeknit.errors import ConfigError, ModelError

# ---------------------------------------------------------------- tensors


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors by name into one safetensors file."""
    # The format refuses tensors that share memory, such as tied weights. The second one of two
    # is copied.
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, value in tensors.items():
        tensor = value.detach().contiguous().cpu()
        separate[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    save_file(separate, path, metadata)
    flush_to_disk(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by name."""
    with _damage_explained(path):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def tensor_names(path: Path) -> list[str]:
    """The names of the tensors in a file, from its header; a file that is cut short is refused."""
    with _damage_explained(path), safe_open(path, "pt") as file:
        return list(file.keys())


@contextlib.contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged or cut short ({error})") from None


# ---------------------------------------------------------------- facts


def write_json(path: Path, facts: Any) -> None:
    """Write a JSON file: first beside its place, then into it, so that it is never half written."""
    beside = path.with_name(path.name + ".unfinished")
    beside.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    flush_to_disk(beside)
    beside.replace(path)


def read_json(path: Path) -> Any:
    """The content of a JSON file; one that is missing or damaged is refused with a sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is damaged or cut short ({error})") from None


# ---------------------------------------------------------------- formats

# Under these names saved facts carry their format and the version of Closeknit that wrote them.
FORMAT_KEY = "format"
VERSION_KEY = "closeknit"


class NewerFormatError(ModelError):
    """A file of a newer version of Closeknit, in a format that this version does not know."""


def stamp(facts: Mapping[str, Any], file_format: int) -> dict[str, Any]:
    """The facts with their format and with the version of Closeknit that writes them."""
    return {FORMAT_KEY: file_format, VERSION_KEY: __version__, **facts}


def read_stamped(path: Path, known: int, what: str) -> tuple[dict[str, Any], int]:
    """The facts of a JSON file without their stamp, and the format in which they were written.

    Two sets of facts can thus be compared, whichever versions wrote them. `what` names the thing
    that the file belongs to. Facts in a newer format than `known` are refused.
    """
    facts = read_json(path)
    if not isinstance(facts, dict):
        raise ModelError(f"{path} is damaged: it does not hold a table of facts")
    file_format = check_format(facts, known, what)
    content = {key: value for key, value in facts.items() if key not in (FORMAT_KEY, VERSION_KEY)}
    return content, file_format


def check_format(facts: Mapping[str, Any], known: int, what: str) -> int:
    """The format of saved facts; a newer one than `known` is refused.

    The sentence names the version of Closeknit that wrote the facts. Facts without a format are of
    format 1: the first versions did not write one everywhere.
    """
    file_format = facts.get(FORMAT_KEY, 1)
    if not isinstance(file_format, int) or isinstance(file_format, bool) or file_format < 1:
        raise ModelError(
            f"{what} is damaged: it has format {file_format!r}, which is no number from 1"
        )
    if file_format > known:
        writer = _version_of_writer(facts)
        raise NewerFormatError(
            f"{what} has format {file_format} and was written by {writer or 'a newer Closeknit'}; "
            f"this version, {__version__}, reads formats up to {known}. "
            f"Use {writer or 'a newer Closeknit'} to read it"
        )
    return file_format


def _version_of_writer(facts: Mapping[str, Any]) -> str | None:
    """`Closeknit 0.1.0`, from a stamp or from the list of versions in a model folder."""
    version = facts.get(VERSION_KEY)
    versions = facts.get("versions")
    if version is None and isinstance(versions, Mapping):
        version = versions.get("closeknit")
    return f"Closeknit {version}" if isinstance(version, str) and version.isprintable() else None


# ---------------------------------------------------------------- disks and folders


@contextlib.contextmanager
def no_space_explained(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        full = number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if not full:
            raise
        raise ModelError(
            f"the disk that holds {folder} is full; what was saved before is untouched"
        ) from error


def flush_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the list of files of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(path: Path, folder: Path) -> IO[str] | None:
    """Reserve a folder for this run while the returned lock file is open; refuse one in use."""
    try:
        import fcntl
    except ImportError:  # there is none on Windows
        return None
    handle = path.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise ConfigError(
            f"another run is using {folder}; wait for it, or name another folder"
        ) from None
    return handle
