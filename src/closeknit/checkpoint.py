"""Folders of tensors and facts that are there whole or not at all: safetensors and JSON, no pickle."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from closeknit.errors import ConfigError, ModelError

TENSORS, FACTS = "state.safetensors", "state.json"

# The stages of a run that has several, such as a pretraining before the tasks.
STAGES = ("adapt", "learn", "pretrain", "tasks")

_OWN_FOLDERS = re.compile(r"step-\d{9,}|unfinished-\d+(-before)?")  # the names of what `save` makes


def save(folder: Path, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write checkpoint `number` and then drop the older ones; a crash at any moment leaves a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"unfinished-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with no_space_explained(folder):
        try:
            write_tensors(unfinished / TENSORS, tensors)
            write_json(unfinished / FACTS, facts)
            finished = folder / f"step-{number:09d}"
            if finished.exists():
                finished.rename(folder / f"unfinished-{os.getpid()}-before")
            unfinished.rename(finished)
            _sync(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    for other in _own_folders(folder):
        if other != finished:
            shutil.rmtree(other, ignore_errors=True)


def clear(folder: Path, files: Sequence[str] = ()) -> None:
    """Remove the checkpoints of a folder and these files; the folder too, when nothing is left in it.

    The stages of a run keep their checkpoints in folders of their own, which are cleared as well.
    """
    for checkpoint in _own_folders(folder):
        shutil.rmtree(checkpoint, ignore_errors=True)
    for stage in STAGES:
        if (folder / stage).is_dir() and not (folder / stage).is_symlink():
            clear(folder / stage)
    for name in files:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody's own files stay, and so does their folder
        folder.rmdir()


def _own_folders(folder: Path) -> list[Path]:
    """The checkpoints of a folder, whole or not, oldest first."""
    return sorted(
        path
        for path in folder.glob("*-*")
        if _OWN_FOLDERS.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    )


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest whole checkpoint of a folder, or None where there is none; an error where all are damaged."""
    damage: ModelError | None = None
    for one in sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []:
        try:
            return read_tensors(one / TENSORS), read_json(one / FACTS)
        except ModelError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    # clones part what shares memory, such as tied weights, which the format refuses
    seen: set[int] = set()
    parted: dict[str, Tensor] = {}
    for key, value in tensors.items():
        flat = value.detach().contiguous().cpu()
        parted[key] = flat.clone() if flat.data_ptr() in seen else flat
        seen.add(flat.data_ptr())
    save_file(parted, path, metadata)
    _sync(path)


def write_json(path: Path, facts: Any) -> None:
    """Write a JSON file whole: into a neighbour first, then in its place."""
    beside = path.with_name(path.name + ".unfinished")
    beside.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(beside)
    beside.replace(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    with _damage_explained(path):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def tensor_names(path: Path) -> list[str]:
    """What a file of tensors holds, from its header; a file that is cut short is refused all the same."""
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


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is damaged or cut short ({error})") from None


@contextlib.contextmanager
def no_space_explained(folder: Path) -> Iterator[None]:
    """A full disk as a sentence; what was saved before is untouched."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (
            errno.ENOSPC,
            errno.EDQUOT,
        ) or "No space left" in str(error)
        if not full:
            raise
        raise ModelError(
            f"the disk that holds {folder} is full; what was saved before is untouched"
        ) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_folder(path: Path, folder: Path) -> IO[str] | None:
    """Hold a folder for this run as long as the returned file is open; refuse one that is held."""
    try:
        import fcntl
    except ImportError:  # not on Windows
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
