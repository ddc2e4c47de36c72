"""The checkpoints of a training run: folders that exist whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from closeknit.errors import ModelError
from closeknit.storage import (
    NewerFormatError,
    flush_to_disk,
    no_space_explained,
    read_stamped,
    read_tensors,
    stamp,
    write_json,
    write_tensors,
)

TENSORS = "state.safetensors"
FACTS = "state.json"

# The format of what a run keeps in its folder `checkpoints`. Format 1 had no stamp.
FORMAT = 2

# The stages of a run that has several, such as a pretraining before the tasks.
STAGES = ("adapt", "learn", "pretrain", "tasks")
_LATER_PRETRAINING = re.compile(r"pretrain-\d+")

# The names of the folders that `save` makes.
_CHECKPOINT_NAME = re.compile(r"step-\d{9,}|unfinished-\d+(-before)?")

# What brings the facts of a format forward to the next one, by the number of the older format.
_UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: lambda facts: facts,  # format 2 added the stamp only
}


def save(folder: Path, number: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write the checkpoint of this step, then remove the older ones.

    A crash at any moment leaves a whole checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"unfinished-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with no_space_explained(folder):
        try:
            write_tensors(unfinished / TENSORS, tensors)
            write_json(unfinished / FACTS, stamp(facts, FORMAT))
            finished = folder / f"step-{number:09d}"
            if finished.exists():
                finished.rename(folder / f"unfinished-{os.getpid()}-before")
            unfinished.rename(finished)
            flush_to_disk(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    for other in _checkpoints(folder):
        if other != finished:
            shutil.rmtree(other, ignore_errors=True)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of the newest whole checkpoint of a folder, or None where there is none.

    If all checkpoints are damaged, the error names the damage of the newest. A checkpoint in a
    newer format is refused.
    """
    damage: ModelError | None = None
    for checkpoint in sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []:
        try:
            facts, file_format = read_stamped(
                checkpoint / FACTS, FORMAT, f"the checkpoint {checkpoint}"
            )
            return read_tensors(checkpoint / TENSORS), migrate(facts, file_format)
        except NewerFormatError:
            raise
        except ModelError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


def newest(folder: Path) -> str | None:
    """The name of the newest checkpoint of a folder, whole or damaged; None where there is none."""
    return max((path.name for path in folder.glob("step-*")), default=None)


def migrate(facts: dict[str, Any], file_format: int) -> dict[str, Any]:
    """The facts of a checkpoint in an older format, as this version of Closeknit writes them."""
    for older in range(file_format, FORMAT):
        facts = _UPGRADES[older](facts)
    return facts


def clear(folder: Path, files: Sequence[str] = ()) -> None:
    """Remove the checkpoints of a folder and these files; also the folder, if it is then empty.

    Each stage of a run keeps its checkpoints in a folder of its own. These are cleared as well.
    """
    for checkpoint in _checkpoints(folder):
        shutil.rmtree(checkpoint, ignore_errors=True)
    for stage in sorted(folder.iterdir()) if folder.is_dir() else []:
        is_stage = stage.name in STAGES or _LATER_PRETRAINING.fullmatch(stage.name)
        if is_stage and stage.is_dir() and not stage.is_symlink():
            clear(stage)
    for name in files:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # files of any other origin stay, and so does their folder
        folder.rmdir()


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, whole or not, oldest first."""
    return sorted(
        path
        for path in folder.glob("*-*")
        if _CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    )
