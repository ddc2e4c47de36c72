"""Data sets by name: the papers' own, from a local folder or the hub, and the bundled messages."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data import PARTS, Columns, DataSet, Examples, build, holds_data, pick_columns, read_file, read_folder
from .errors import DataError, MissingExtra, did_you_mean

Record = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue: what it is, and where the hub keeps it, if it does."""

    about: str
    hub: str | None = None
    config: str | None = None
    columns: Columns = field(default_factory=lambda: Columns(empty="drop"))
    parts: dict[str, str] = field(default_factory=lambda: {p: p for p in ("train", "validation", "test")})
    keep: Callable[[Record], bool] | None = None  # which rows belong to the task
    scored: bool = False  # pairs with a score instead of a class
    pool: str = ""  # the texts it was cut from, where other data sets were cut from the same


def _single_emotion(row: Record) -> bool:
    """GoEmotions as the label-aware paper uses it: one emotion, and not neutral."""
    labels = row.get("labels")
    return (labels is None or len(labels) == 1) and row.get("label") != "neutral"


_PAIR = Columns(text="sentence1", text2="sentence2", empty="drop")
_TEXT_LABEL = Columns(text="text", label="label_text", empty="drop")
_ONE = {"all": "train"}
_REVIEWS, _REUTERS = "sentences of rottentomatoes.com", "Reuters-21578"

CATALOGUE: dict[str, Entry] = {
    "messages": Entry("12 easily confused kinds of customer message; ships with Closeknit"),
    "trec": Entry("6 kinds of question", "SetFit/TREC-QC", columns=Columns(label="label_coarse_original", empty="drop"),
                  parts={"train": "train", "test": "test"}),
    "sst2": Entry("sentiment of film review phrases, 2 classes", "SetFit/sst2", columns=_TEXT_LABEL,
                  pool=_REVIEWS),
    "sst5": Entry("sentiment of film review sentences, 5 classes", "SetFit/sst5", columns=_TEXT_LABEL,
                  pool=_REVIEWS),
    "imdb": Entry("sentiment of whole film reviews, 2 classes", "stanfordnlp/imdb",
                  parts={"train": "train", "test": "test"}),
    "mr": Entry("sentiment of film review sentences, 2 classes", "cornell-movie-review-data/rotten_tomatoes",
                pool=_REVIEWS),
    "mpqa": Entry("polarity of opinion phrases, 2 classes"),
    "subj": Entry("subjective or objective sentence, 2 classes", "SetFit/subj", columns=_TEXT_LABEL,
                  parts={"train": "train", "test": "test"}, pool=_REVIEWS),
    "cr": Entry("sentiment of customer reviews, 2 classes", "SetFit/CR", columns=_TEXT_LABEL,
                parts={"train": "train", "test": "test"}),
    "mrpc": Entry("are two news sentences paraphrases?", "nyu-mll/glue", "mrpc", _PAIR),
    "r8": Entry("8 topics of Reuters news", "dxgp/R8", parts={"train": "train", "test": "test"}, pool=_REUTERS),
    "r52": Entry("52 topics of Reuters news, very uneven", "dxgp/R52", parts={"train": "train", "test": "test"}, pool=_REUTERS),
    "20newsgroups": Entry("20 news groups", "SetFit/20_newsgroups", columns=_TEXT_LABEL,
                          parts={"train": "train", "test": "test"}),
    "goemotions": Entry("27 emotions of Reddit comments (rows with one emotion)",
                        "google-research-datasets/go_emotions", "simplified", Columns(empty="drop"),
                        keep=_single_emotion),
    "empathetic_dialogues": Entry("32 emotions of described situations"),
    "isear": Entry("7 emotions of remembered situations"),
    "emoint": Entry("4 emotions of tweets", "cardiffnlp/tweet_eval", "emotion"),
    "banking77": Entry("77 intents of banking customers", "mteb/banking77", columns=_TEXT_LABEL,
                       parts={"train": "train", "test": "test"}),
    "snli": Entry("entailment of sentence pairs, 3 classes", "stanfordnlp/snli",
                  columns=Columns(text="premise", text2="hypothesis", empty="drop"),
                  keep=lambda row: row.get("label") != -1),
    "qqp": Entry("do two questions ask the same?", "nyu-mll/glue", "qqp",
                 Columns(text="question1", text2="question2", empty="drop"),
                 parts={"train": "train", "validation": "validation"}),
    "stsb": Entry("how similar two sentences are, 0 to 5", "nyu-mll/glue", "stsb",
                  dataclasses.replace(_PAIR, score="label"),  # the hub's column of scores
                  parts={"train": "train", "validation": "validation"}, scored=True),
}  # fmt: skip


def load(source: str | Path, columns: Columns | None = None, *, target: str = "label") -> DataSet:
    """A data set from a file, a folder, or a name of the catalogue; with the target "score", of scored pairs."""
    path, name = Path(source), str(source)
    columns = columns or Columns()
    if path.is_file():
        return DataSet(path.stem, {"all": read_file(path, columns, target=target)})
    if name in CATALOGUE and not holds_data(path):
        return _named(name, columns, target)
    if path.is_dir():
        entry = CATALOGUE.get(path.resolve().name)
        return _local(path, entry, columns, target) if entry else read_folder(path, columns, target=target)
    folder = _data_folder()
    if folder and os.sep not in name and (folder / name).is_dir():
        return read_folder(folder / name, columns, target=target)
    if path.suffix or "/" in name or os.sep in name:
        read_file(path, columns, target=target)  # raises, with what is near
    near = did_you_mean(name, CATALOGUE)
    raise DataError(f"{name} is neither a file, a folder nor a data set of the catalogue{near}")


def pool(source: str) -> str:
    """What a data set's texts were cut from: two of one pool share texts. Its own name, where nothing is known."""
    entry = CATALOGUE.get(Path(source).name)
    return (entry and entry.pool) or source


def where(name: str) -> str:
    """Where the catalogue would take a data set from, in words."""
    if name == "messages":
        return "bundled"
    folder = _data_folder()
    if folder and (folder / name).is_dir():
        return str(folder / name)
    hub = CATALOGUE[name].hub
    return f"hub: {hub}" if hub else "only from a folder in CLOSEKNIT_DATA"


def _data_folder() -> Path | None:
    value = os.environ.get("CLOSEKNIT_DATA")
    return Path(value) if value else None


def _named(name: str, columns: Columns, target: str) -> DataSet:
    entry = CATALOGUE[name]
    _check_target(name, entry, target)
    if name == "messages":
        return read_folder(Path(__file__).parent / "bundled" / "messages", columns)
    folder = _data_folder()
    if folder and not folder.is_dir():
        raise DataError(f"CLOSEKNIT_DATA is {folder}, which is no folder")
    if folder and (folder / name).is_dir():
        return _local(folder / name, entry, columns, target)
    if entry.hub is None:
        raise DataError(
            f"{name} is not on the hub; put its files into a folder {name}, "
            "and name the folder around it in CLOSEKNIT_DATA"
        )
    return _from_hub(name, entry)


def _check_target(name: str, entry: Entry, target: str) -> None:
    if entry.scored and target != "score":
        raise DataError(f"{name} holds scored pairs, not classes; it cannot train a classifier")
    if not entry.scored and target == "score":
        raise DataError(f"{name} holds classes, not scored pairs")


def _local(folder: Path, entry: Entry, columns: Columns, target: str) -> DataSet:
    """A catalogue data set from a folder laid out as <name>/<part>.parquet with our column names."""
    _check_target(folder.name, entry, target)
    columns = dataclasses.replace(columns, empty=entry.columns.empty)  # its blank rows are known
    data = read_folder(folder, columns, target=target)
    if entry.keep is None:
        return data
    kept = {}
    for part, examples in data.parts.items():
        labels = examples.required_labels
        kept[part] = examples.select(
            row
            for row, label in enumerate(labels)
            if entry.keep({"label": label, "labels": label.split("|")})
        )
    return DataSet(data.name, kept)


def _from_hub(name: str, entry: Entry) -> DataSet:
    try:
        import datasets
    except ImportError:
        raise MissingExtra(
            f"loading {name} from the hub (or set CLOSEKNIT_DATA to a folder that has it)", "hub"
        ) from None
    try:
        loaded = datasets.load_dataset(entry.hub, entry.config)
    except Exception as error:  # the library raises a dozen kinds, none of them documented as final
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"{name} could not be loaded from the hub ({entry.hub}: {reason}); "
            "if this machine is offline, set CLOSEKNIT_DATA to a folder that has it"
        ) from None
    parts: dict[str, Examples] = {}
    for part in PARTS:
        source = entry.parts.get(part)
        if source is not None and source in loaded:
            parts[part] = _hub_part(loaded[source], entry, f"{name} {part}")
    return DataSet(name, parts)


def _hub_part(rows: Any, entry: Entry, where: str) -> Examples:
    """One part of a hub data set, class numbers turned into class names."""
    table: dict[str, list[Any]] = {column: list(rows[column]) for column in rows.column_names}
    if "labels" in table and "label" not in table:  # multi-label: kept rows have exactly one
        names = rows.features["labels"].feature.names
        table["labels"] = [[names[i] for i in row] for row in table["labels"]]
        table["label"] = ["|".join(row) for row in table["labels"]]
    if entry.keep is not None:
        count = len(next(iter(table.values())))
        kept = [i for i in range(count) if entry.keep({name: values[i] for name, values in table.items()})]
        table = {name: [values[i] for i in kept] for name, values in table.items()}
    named = getattr(rows.features.get("label"), "names", None)
    if named and entry.columns.label in (None, "label"):
        table["label"] = [named[i] for i in table["label"]]
    target = "score" if entry.scored else "label"
    return build(pick_columns(table, entry.columns, where, target), entry.columns, where)
