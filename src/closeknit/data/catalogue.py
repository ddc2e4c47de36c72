"""Data sets by name: those of the papers, from a local folder or the hub, and bundled messages."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data.examples import DataSet, Examples, build_examples
from closeknit.data.sources import data_folder, existing_data_folder, load_from_hub
from closeknit.data.tables import (
    PARTS,
    Columns,
    Table,
    holds_data,
    pick_columns,
    read_file,
    read_folder,
)
from closeknit.errors import DataError, did_you_mean

Record = dict[str, Any]

_OLD_NAME = "20newsgroups"  # was used for messages with headers and for those without
_BUNDLED = Path(__file__).parent / "bundled"
_USUAL_COLUMNS = Columns(empty="drop")


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue: what it is, and where the hub keeps it, if it does."""

    about: str
    hub: str | None = None
    config: str | None = None
    columns: Columns = _USUAL_COLUMNS
    parts: tuple[str, ...] = ("train", "validation", "test")  # the labelled parts on the hub
    keep: Callable[[Record], bool] | None = None  # which rows belong to the task
    scored: bool = False  # pairs with a score instead of a class
    text_pool: str = ""  # the texts that this and other data sets were taken from
    folder: str = ""  # another name that its folder in CLOSEKNIT_DATA may have


def _has_single_emotion(row: Record) -> bool:
    """Whether the label-aware paper uses a row of GoEmotions: it has one emotion, not neutral."""
    labels = row.get("labels")
    return (labels is None or len(labels) == 1) and row.get("label") != "neutral"


def _has_label(row: Record) -> bool:
    """Whether the annotators of SNLI agreed on a label."""
    return row.get("label") != -1


_TEXT_LABEL = Columns(text="text", label="label_text", empty="drop")
_SENTENCES = Columns(text="sentence1", text2="sentence2", empty="drop")
_TRAIN_TEST = ("train", "test")
_TRAIN_VALIDATION = ("train", "validation")
_FILM_REVIEWS = "sentences of rottentomatoes.com"
_REUTERS = "Reuters-21578"
_NEWSGROUPS = "20 Newsgroups"

CATALOGUE: dict[str, Entry] = {
    "messages": Entry("12 easily confused kinds of customer message; ships with Closeknit"),
    "trec": Entry(
        "6 kinds of question",
        hub="SetFit/TREC-QC",
        columns=Columns(label="label_coarse_original", empty="drop"),
        parts=_TRAIN_TEST,
    ),
    "sst2": Entry(
        "sentiment of film review phrases, 2 classes (67,349 for training, as in GLUE)",
        hub="nyu-mll/glue",
        config="sst2",
        columns=Columns(text="sentence", empty="drop"),
        parts=_TRAIN_VALIDATION,  # GLUE keeps the labels of the test part to itself
        text_pool=_FILM_REVIEWS,
    ),
    "sst2_sentences": Entry(
        "sentiment of film review sentences, 2 classes (6,920 for training, with a test part)",
        hub="SetFit/sst2",
        columns=_TEXT_LABEL,
        text_pool=_FILM_REVIEWS,
    ),
    "sst5": Entry(
        "sentiment of film review sentences, 5 classes",
        hub="SetFit/sst5",
        columns=_TEXT_LABEL,
        text_pool=_FILM_REVIEWS,
    ),
    "imdb": Entry(
        "sentiment of whole film reviews, 2 classes", hub="stanfordnlp/imdb", parts=_TRAIN_TEST
    ),
    "mr": Entry(
        "sentiment of film review sentences, 2 classes",
        hub="cornell-movie-review-data/rotten_tomatoes",
        text_pool=_FILM_REVIEWS,
    ),
    "mpqa": Entry("polarity of opinion phrases, 2 classes"),
    "subj": Entry(
        "subjective or objective sentence, 2 classes",
        hub="SetFit/subj",
        columns=_TEXT_LABEL,
        parts=_TRAIN_TEST,
        text_pool=_FILM_REVIEWS,
    ),
    "cr": Entry(
        "sentiment of customer reviews, 2 classes",
        hub="SetFit/CR",
        columns=_TEXT_LABEL,
        parts=_TRAIN_TEST,
    ),
    "mrpc": Entry(
        "are two news sentences paraphrases?",
        hub="nyu-mll/glue",
        config="mrpc",
        columns=_SENTENCES,
    ),
    "r8": Entry("8 topics of Reuters news", hub="dxgp/R8", parts=_TRAIN_TEST, text_pool=_REUTERS),
    "r52": Entry(
        "52 topics of Reuters news, very uneven",
        hub="dxgp/R52",
        parts=_TRAIN_TEST,
        text_pool=_REUTERS,
    ),
    "20newsgroups_headers": Entry(
        "20 news groups, messages with their headers (From, Subject, …)",
        parts=_TRAIN_TEST,
        text_pool=_NEWSGROUPS,
        folder="20newsgroups",
    ),
    "20newsgroups_bare": Entry(
        "20 news groups, messages without headers, signatures and quotations",
        hub="SetFit/20_newsgroups",
        columns=_TEXT_LABEL,
        parts=_TRAIN_TEST,
        text_pool=_NEWSGROUPS,
    ),
    "20newsgroups": Entry(
        "an older name: 20newsgroups_headers from a folder, 20newsgroups_bare from the hub",
        hub="SetFit/20_newsgroups",
        columns=_TEXT_LABEL,
        parts=_TRAIN_TEST,
        text_pool=_NEWSGROUPS,
    ),
    "goemotions": Entry(
        "27 emotions of Reddit comments (rows with one emotion)",
        hub="google-research-datasets/go_emotions",
        config="simplified",
        keep=_has_single_emotion,
    ),
    "empathetic_dialogues": Entry("32 emotions of described situations"),
    "isear": Entry("7 emotions of remembered situations"),
    "emoint": Entry(
        "4 emotions of tweets: anger, fear, joy, sadness (WASSA-2017)",
        hub="stepp1/tweet_emotion_intensity",
        columns=Columns(text="tweet", label="class", empty="drop"),
    ),
    "tweet_eval_emotion": Entry(
        "4 emotions of tweets: anger, joy, optimism, sadness (TweetEval)",
        hub="cardiffnlp/tweet_eval",
        config="emotion",
    ),
    "banking77": Entry(
        "77 intents of banking customers",
        hub="mteb/banking77",
        columns=_TEXT_LABEL,
        parts=_TRAIN_TEST,
    ),
    "snli": Entry(
        "entailment of sentence pairs, 3 classes",
        hub="stanfordnlp/snli",
        columns=Columns(text="premise", text2="hypothesis", empty="drop"),
        keep=_has_label,
    ),
    "qqp": Entry(
        "do two questions ask the same?",
        hub="nyu-mll/glue",
        config="qqp",
        columns=Columns(text="question1", text2="question2", empty="drop"),
        parts=_TRAIN_VALIDATION,
    ),
    "stsb": Entry(
        "how similar two sentences are, 0 to 5",
        hub="nyu-mll/glue",
        config="stsb",
        columns=dataclasses.replace(_SENTENCES, score="label"),  # the hub calls the score label
        parts=_TRAIN_VALIDATION,
        scored=True,
    ),
}


def load(source: str | Path, columns: Columns | None = None, *, target: str = "label") -> DataSet:
    """A data set from a file, a folder, or a name of the catalogue.

    Where a name of the catalogue is the name of a folder too, it says which of them it takes. With
    the target "score" the data set holds scored pairs instead of classes.
    """
    path = Path(source)
    name = str(source)
    columns = columns or Columns()
    if path.is_file():
        return DataSet(path.stem, {"all": read_file(path, columns, target=target)})
    entry = catalogue_name(name)
    if entry == name:
        if path.is_dir() and not holds_data(path):
            say(
                f"{name} is the data set of the catalogue ({describe_source(name)}); the folder "
                f"{name} here has no data file and is not read"
            )
        return _load_by_name(name, columns, target)
    if path.is_dir():
        if entry:
            return _load_from_folder(path, CATALOGUE[entry], columns, target)
        if name in CATALOGUE:
            say(
                f"{name} is the folder here, not the data set of the catalogue; rename the folder "
                "to take that one"
            )
        return read_folder(path, columns, target=target)
    folder = data_folder()
    if folder and os.sep not in name and (folder / name).is_dir():
        return read_folder(folder / name, columns, target=target)
    if path.suffix or "/" in name or os.sep in name:
        read_file(path, columns, target=target)  # raises the error for a file that does not exist
    hint = did_you_mean(name, CATALOGUE)
    raise DataError(f"{name} is neither a file, a folder nor a data set of the catalogue{hint}")


def text_pool(source: str) -> str:
    """The texts that a data set was taken from: two data sets of one pool share texts.

    This is the source itself if the catalogue does not name a pool for it.
    """
    entry = CATALOGUE.get(Path(source).name)
    return entry.text_pool if entry is not None and entry.text_pool else source


def describe_source(name: str) -> str:
    """Where a data set of the catalogue would be loaded from, in words."""
    if name == "messages":
        return "bundled"
    folder = _folder_of(name, data_folder())
    if folder is not None:
        return str(folder)
    hub = CATALOGUE[name].hub
    return f"hub: {hub}" if hub else "only from a folder in CLOSEKNIT_DATA"


def _load_by_name(name: str, columns: Columns, target: str) -> DataSet:
    entry = CATALOGUE[name]
    _check_target(name, entry, target)
    if name == "messages":
        return read_folder(_BUNDLED / "messages", columns)
    folder = _folder_of(name, existing_data_folder())
    if name == _OLD_NAME:
        meant = "20newsgroups_bare" if folder is None else "20newsgroups_headers"
        say(
            f"{name} stands for two data sets; here it is {meant}, loaded from "
            f"{describe_source(name)}. Write {meant} to say so"
        )
    if folder is not None:
        loaded = _load_from_folder(folder, entry, columns, target)
        return DataSet(name, loaded.parts)
    if entry.hub is None:
        raise DataError(
            f"{name} is not on the hub; put its files into a folder with the name {name}, "
            "and set CLOSEKNIT_DATA to the folder that holds this folder"
        )
    return _load_from_hub(name, entry, entry.hub)


def _folder_of(name: str, data: Path | None) -> Path | None:
    """The folder of a data set of the catalogue in the folder of all data, if it is there."""
    for folder_name in (name, CATALOGUE[name].folder):
        if data is not None and folder_name and (data / folder_name).is_dir():
            return data / folder_name
    return None


def catalogue_name(source: str) -> str:
    """The name of the data set of the catalogue that `load` takes for this source.

    It is empty for a file and for a folder of the user, whatever their names are. A folder is one
    of the catalogue only in the folder that CLOSEKNIT_DATA names.
    """
    path = Path(source)
    if path.is_file():
        return ""
    if source in CATALOGUE and not holds_data(path):
        return source
    folder, found = data_folder(), path.resolve()
    in_folder = folder is not None and path.is_dir() and found.parent == folder.resolve()
    return found.name if in_folder and found.name in CATALOGUE else ""


def is_catalogue_name(source: str) -> bool:
    """Whether `load` takes this source for a data set of the catalogue."""
    return bool(catalogue_name(source))


def _check_target(name: str, entry: Entry, target: str) -> None:
    if entry.scored and target != "score":
        raise DataError(f"{name} holds scored pairs, not classes; it cannot train a classifier")
    if not entry.scored and target == "score":
        raise DataError(f"{name} holds classes, not scored pairs")


def _load_from_folder(folder: Path, entry: Entry, columns: Columns, target: str) -> DataSet:
    """A catalogue data set from a folder with one file per part and our names of columns."""
    _check_target(folder.name, entry, target)
    columns = dataclasses.replace(columns, empty=entry.columns.empty)  # its blank rows are known
    data = read_folder(folder, columns, target=target)
    if entry.keep is None:
        return data
    parts = {part: _kept_rows(examples, entry.keep) for part, examples in data.parts.items()}
    return DataSet(data.name, parts)


def _kept_rows(examples: Examples, keep: Callable[[Record], bool]) -> Examples:
    """The rows that belong to the task; a label such as `joy|fear` stands for several labels."""
    return examples.select(
        row
        for row, label in enumerate(examples.required_labels)
        if keep({"label": label, "labels": label.split("|")})
    )


# ---------------------------------------------------------------- hub


def _load_from_hub(name: str, entry: Entry, repository: str) -> DataSet:
    loaded = load_from_hub(name, repository, entry.config)
    parts = {
        part: _examples_from_hub(loaded[part], entry, f"{name} {part}")
        for part in PARTS
        if part in entry.parts and part in loaded
    }
    return DataSet(name, parts)


def _examples_from_hub(rows: Any, entry: Entry, where: str) -> Examples:
    """One part of a data set of the hub, with class names in place of class numbers."""
    table: Table = {column: list(rows[column]) for column in rows.column_names}
    if "labels" in table and "label" not in table:  # several labels per row; kept rows have one
        names = rows.features["labels"].feature.names
        table["labels"] = [[names[number] for number in row] for row in table["labels"]]
        table["label"] = ["|".join(row) for row in table["labels"]]
    if entry.keep is not None:
        table = _kept_records(table, entry.keep)
    class_names = getattr(rows.features.get("label"), "names", None)
    if class_names and entry.columns.label in (None, "label"):
        table["label"] = [class_names[number] for number in table["label"]]
    target = "score" if entry.scored else "label"
    picked = pick_columns(table, entry.columns, where, target)
    return build_examples(picked, where, empty=entry.columns.empty)


def _kept_records(table: Table, keep: Callable[[Record], bool]) -> Table:
    """The rows of a table that belong to the task."""
    count = len(next(iter(table.values())))
    kept = [
        row for row in range(count) if keep({name: values[row] for name, values in table.items()})
    ]
    return {name: [values[row] for row in kept] for name, values in table.items()}
