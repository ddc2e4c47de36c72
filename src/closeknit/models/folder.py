"""Which files belong to a saved model, and how they are removed without touching anything else.

`closeknit.json` lists the files of its folder. The list comes from a file, so an entry is never
used as a path: an entry counts only if it is, letter for letter, one of the names that this version
knows.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from closeknit.errors import ConfigError, DataError, ModelError
from closeknit.storage import check_format, no_space_explained, read_json
from closeknit.training import checkpoints as checkpoint

MAIN = "closeknit.json"
METRICS = "metrics.json"
RUN = "run.toml"
CARD = "README.md"
HEADS = "heads.safetensors"
OBJECTIVE = "objective.safetensors"
WEIGHTS = "model.safetensors"
LABEL_DISTANCE = "label-distance.png"
TRAINED_ROWS = "trained-rows.npy"  # hashes of the rows that a classifier was trained on
MISTAKES = "mistakes"

_ENCODER_FILES = {
    "config.json",
    "modules.json",
    "sentence_bert_config.json",
    "vocabulary.json",  # of TextCNN
}

# Every name under which a tokenizer of transformers saves itself.
_TOKENIZER_FILES = {
    "added_tokens.json",
    "bpe.codes",
    "byte_maps.json",
    "chat_template.jinja",
    "dict.txt",
    "emoji.json",
    "entity_vocab.json",
    "merges.txt",
    "prophetnet.tokenizer",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "spm_char.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
}

KNOWN_FILES = frozenset(
    {MAIN, METRICS, RUN, CARD, HEADS, OBJECTIVE, WEIGHTS, LABEL_DISTANCE, TRAINED_ROWS}
    | _ENCODER_FILES
    | _TOKENIZER_FILES
)

# The folders inside a model folder, and what the names of the files in each look like.
KNOWN_FOLDERS = {
    "1_Pooling": re.compile(r"config\.json"),
    "2_Dense": re.compile(r"config\.json|model\.safetensors"),
    MISTAKES: re.compile(r"[A-Za-z][A-Za-z0-9_-]*\.csv"),  # one file per task
}


def is_plain(name: object) -> bool:
    """Whether an entry names a file directly in a model folder, or directly in a folder inside it.

    Such an entry may be looked at, so that a missing or shortened file is noticed. It may come from
    another version of Closeknit, or from a tokenizer that is not known here.
    """
    if not isinstance(name, str):
        return False
    parts = name.replace("\\", "/").split("/")
    return len(parts) <= 2 and all(_is_plain_part(part) for part in parts)


def _is_plain_part(part: str) -> bool:
    return part not in ("", ".", "..") and ":" not in part and part.isprintable()


def is_known(name: object) -> bool:
    """Whether an entry of a list of files is one that a saved model can have."""
    if not isinstance(name, str):
        return False
    folder, slash, inner = name.replace("\\", "/").partition("/")  # Windows wrote backslashes
    if not slash:
        return name in KNOWN_FILES
    return folder in KNOWN_FOLDERS and KNOWN_FOLDERS[folder].fullmatch(inner) is not None


def remove_listed(folder: Path, names: Iterable[object]) -> None:
    """Remove the listed files of a saved model from its folder.

    An unknown entry is ignored. Only regular files are removed: a symbolic link, and a folder in
    the place of a file, stay. A folder inside the model folder goes when nothing is left in it.
    """
    wanted = {str(name).replace("\\", "/") for name in names if is_known(name)}
    # The names are compared with what the folder really holds: on some file systems "Config.json"
    # opens "config.json", and two Unicode forms of one letter open the same file.
    for entry in _regular_files(folder):
        if entry.name in wanted:
            os.unlink(entry.path)
    for inner in KNOWN_FOLDERS:
        if not _is_real_folder(folder / inner):
            continue
        for entry in _regular_files(folder / inner):
            if f"{inner}/{entry.name}" in wanted:
                os.unlink(entry.path)
        _remove_if_empty(folder / inner)


def move_into(finished: Path, folder: Path) -> None:
    """Move the files of a finished model into their places; `closeknit.json` comes last.

    A file replaces the file or the symbolic link that has its name, and never what a link points
    to.
    """
    items = sorted(finished.iterdir(), key=lambda path: path.name == MAIN)
    for item in items:
        if not item.is_dir():
            item.replace(folder / item.name)
            continue
        place = folder / item.name
        if place.is_symlink():
            place.unlink()
        place.mkdir(exist_ok=True)
        for inner in item.iterdir():
            inner.replace(place / inner.name)
    shutil.rmtree(finished, ignore_errors=True)


def _regular_files(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.is_file(follow_symlinks=False)]


def _is_real_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


FORMAT = 1
UNFINISHED = "unfinished-model"  # a model that is being written
# The folder of an unfinished run inside the model folder, and its two files.
STATES = "checkpoints"
LOCK = "lock"
IDENTITY = "run.json"
TO_LOOK_AT = (
    ".csv",
    ".png",
    ".md",
    ".html",
)  # files for people, which loading a model does not need
ALONE = "alone"  # the folder of the models that are trained on one task each


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a model, a save that was killed, or a run.

    A folder `checkpoints` alone is not enough: other programs make folders of this name.
    """
    marks = (MAIN, UNFINISHED, f"{STATES}/{LOCK}", f"{STATES}/{IDENTITY}")
    alone = folder / ALONE
    return any((folder / mark).exists() for mark in marks) or (
        alone.is_dir() and any(map(is_ours, alone.iterdir()))
    )


def save_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder inside, then move its files to their places.

    `closeknit.json` is moved last.
    """
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is a file; name a folder")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not is_ours(folder):
        raise ModelError(f"{folder} holds {min(names)} and is no model folder; it is left alone")
    folder.mkdir(parents=True, exist_ok=True)
    old = _written_before(folder)
    unfinished = folder / UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with no_space_explained(folder):
        try:
            write(unfinished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        (folder / MAIN).unlink(missing_ok=True)
        remove_listed(folder, old)  # nothing of another model may stay beside the new one
        move_into(unfinished, folder)


def remove_model(folder: Path) -> None:
    """Remove a saved model, or the run that would have made it; files of any other origin stay."""
    if folder.is_symlink() or not folder.is_dir() or not is_ours(folder):
        return
    remove_listed(folder, _written_before(folder))
    remove_listed(folder, [MAIN])  # last, so that a half-removed model is still recognised as one
    if not (folder / STATES).is_symlink():
        checkpoint.clear(folder / STATES, (LOCK, IDENTITY))
    with contextlib.suppress(OSError):
        folder.rmdir()


KINDS = {
    "text_classifier": "a text classifier",
    "sentence_encoder": "a sentence encoder",
    "multi_task": "a model of several tasks",
}


def read_facts(folder: Path, kind: str | None = "text_classifier") -> dict[str, Any]:
    """The content of `closeknit.json`; a folder that is damaged or of another kind is refused."""
    if not folder.is_dir():
        raise ModelError(
            f"{folder} does not exist"
            if not folder.exists()
            else f"{folder} is a file, not a model folder"
        )
    if not (folder / MAIN).exists():
        if (folder / STATES).is_dir():
            raise ModelError(
                f"the training run in {folder} is not finished; continue it with the command that began it and --resume"
            )
        raise ModelError(f"{folder} is no model folder: {MAIN} is missing")
    facts = read_json(folder / MAIN)
    if not isinstance(facts, dict) or facts.get("kind") not in KINDS:
        raise ModelError(f"{folder / MAIN} does not describe a model of Closeknit")
    if kind is not None and facts["kind"] != kind:
        raise ModelError(f"{folder} holds {KINDS[facts['kind']]}, not {KINDS[kind]}")
    check_format(facts, FORMAT, str(folder))
    files = facts.get("files", {})
    if not isinstance(files, dict):
        raise ModelError(f"{folder / MAIN} is damaged: its list of files is not a table of sizes")
    for name, size in files.items():
        if not is_plain(name):  # a name from a file is never a path
            raise ModelError(
                f"{folder / MAIN} is damaged: its list of files has the entry {name!r}, "
                "which no saved model has"
            )
        path = folder / name
        if path.suffix in TO_LOOK_AT:
            continue
        if not path.exists():
            raise ModelError(f"{path} is missing")
        if path.stat().st_size != size and path.suffix != ".toml":
            raise ModelError(
                f"{path} is damaged or cut short: {path.stat().st_size} bytes instead of {size}"
            )
    return facts


@contextlib.contextmanager
def damage_explained(folder: Path) -> Iterator[None]:
    """Turn errors from wrong facts in `closeknit.json` into one sentence."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise ModelError(f"{folder / MAIN}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"{folder / MAIN} is damaged ({type(error).__name__}: {error})") from None


def _written_before(folder: Path) -> list[object]:
    """The entries of the list of files in `closeknit.json`, which nothing has checked yet."""
    try:
        files = read_facts(folder, None).get("files", {})
    except ModelError:
        return []
    return [*files, CARD]
