"""Which files belong to a saved model, and how they are removed without touching anything else.

`closeknit.json` lists the files of its folder. The list comes from a file, so an entry is never used as a
path: an entry counts only if it is, letter for letter, one of the names that this version knows.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

MAIN, METRICS, RUN, CARD = "closeknit.json", "metrics.json", "run.toml", "README.md"
HEADS, OBJECTIVE, WEIGHTS = "heads.safetensors", "objective.safetensors", "model.safetensors"
LABEL_DISTANCE = "label-distance.png"
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
    {MAIN, METRICS, RUN, CARD, HEADS, OBJECTIVE, WEIGHTS, LABEL_DISTANCE} | _ENCODER_FILES | _TOKENIZER_FILES
)

# The folders inside a model folder, and what the names of the files in each look like.
KNOWN_FOLDERS = {
    "1_Pooling": re.compile(r"config\.json"),
    "2_Dense": re.compile(r"config\.json|model\.safetensors"),
    MISTAKES: re.compile(r"[A-Za-z][A-Za-z0-9_-]*\.csv"),  # one file per task
}


def is_plain(name: object) -> bool:
    """Whether an entry names a file directly in a model folder, or directly in a folder inside it.

    Such an entry may be looked at, so that a missing or shortened file is noticed. It may come from another
    version of Closeknit, or from a tokenizer that is not known here.
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

    An unknown entry is ignored. Only regular files are removed: a symbolic link, and a folder in the place
    of a file, stay. A folder inside the model folder goes when nothing is left in it.
    """
    wanted = {str(name).replace("\\", "/") for name in names if is_known(name)}
    # The names are compared with what the folder really holds: on some file systems "Config.json" opens
    # "config.json", and two Unicode forms of one letter open the same file.
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

    A file replaces the file or the symbolic link that has its name, and never what a link points to.
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
