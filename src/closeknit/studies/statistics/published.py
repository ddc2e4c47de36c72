"""Figures that the papers print, with the encoder, the metric and the test rows they belong to.

A figure stands beside scores of a study for orientation only: the training runs are others, and
mostly the encoder too. Weighted F1 and accuracy are never set side by side without their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from closeknit.data.catalogue import CATALOGUE
from closeknit.studies.statistics.lines import Line, size_group

F1 = "weighted F1"
ACCURACY = "accuracy"

# How the figures of the papers were tested.
FOLDS = "5 folds"
OFFICIAL = "official test part"


@dataclass(frozen=True)
class Figure:
    """One printed figure, in points from 0 to 100."""

    paper: str
    encoder: str
    objective: str
    metric: str
    tested: str
    score: float
    note: str = ""


@dataclass(frozen=True)
class _Table:
    """A table of a paper: scores by data set, in the order of its objectives."""

    paper: str
    encoder: str
    metric: str
    tested: str
    objectives: tuple[str, ...]
    scores: dict[str, tuple[float, ...]]
    group: str = ""  # the size group that it is for; empty: all training rows


_TRIPLE_ENTROPY = ("cross_entropy", "triple_entropy")
_CLLD = ("cross_entropy", "clld")
_LABEL_AWARE = ("cross_entropy", "supcon", "lcl")

_TABLES = (
    # The TripleEntropy paper, tables II to VI.
    _Table("TripleEntropy", "RoBERTa-base", F1, FOLDS, _TRIPLE_ENTROPY, {
        "sst2": (88.63, 89.09), "imdb": (81.00, 81.45), "subj": (94.61, 94.70), "mpqa": (87.75, 87.93),
        "mrpc": (78.01, 79.12), "trec": (79.80, 82.09), "cr": (91.57, 92.16), "mr": (85.89, 86.39),
    }, "S"),
    _Table("TripleEntropy", "RoBERTa-base", F1, FOLDS, _TRIPLE_ENTROPY, {
        "mrpc": (83.11, 84.39), "trec": (96.19, 97.19), "cr": (93.28, 93.58),
    }, "M"),
    _Table("TripleEntropy", "RoBERTa-base", F1, FOLDS, _TRIPLE_ENTROPY, {
        "sst2": (92.63, 92.79), "imdb": (85.12, 85.23), "subj": (96.83, 97.15), "mpqa": (91.08, 91.30),
        "mr": (89.09, 89.29),
    }, "L"),
    _Table("TripleEntropy", "RoBERTa-base", F1, FOLDS, _TRIPLE_ENTROPY, {
        "sst2": (94.89, 94.95), "imdb": (87.10, 87.12),
    }, "XL"),
    _Table("TripleEntropy", "RoBERTa-large", F1, FOLDS, _TRIPLE_ENTROPY, {
        "sst2": (91.96, 92.14), "mpqa": (90.18, 90.59), "mrpc": (76.09, 77.16), "trec": (83.75, 84.59),
        "cr": (93.43, 93.62), "mr": (89.69, 89.89),
    }, "S"),
    # The CLLD paper, table II, and its ablation, table III. Its 20 Newsgroups have headers.
    _Table("CLLD", "BERT-base", ACCURACY, OFFICIAL, _CLLD, {
        "20newsgroups": (85.3, 86.6), "trec": (97.6, 97.8), "r8": (97.8, 98.1), "r52": (96.4, 96.5),
        "mr": (85.7, 87.0),
    }),
    _Table("CLLD", "ALBERT", ACCURACY, OFFICIAL, _CLLD, {
        "20newsgroups": (80.6, 81.7), "trec": (96.4, 96.6), "r8": (97.3, 97.7), "r52": (94.8, 95.6),
        "mr": (86.6, 97.0),
    }),
    _Table("CLLD", "TextCNN", ACCURACY, OFFICIAL, _CLLD, {
        "20newsgroups": (78.8, 80.0), "trec": (88.2, 88.8), "r8": (94.8, 95.0), "r52": (91.1, 91.3),
        "mr": (70.9, 72.1),
    }),
    _Table("CLLD", "BERT-base", ACCURACY, OFFICIAL, ("contrastive_views", "static", "adaptive"), {
        "20newsgroups": (86.30, 86.60, 86.56),
    }),
    # The label-aware paper. It names no metric; its authors' code computes accuracy.
    _Table("label-aware", "ELECTRA-base", ACCURACY, OFFICIAL, _LABEL_AWARE, {
        "sst5": (57.1, 57.4, 58.5), "sst2": (94.4, 94.3, 94.5),
        "empatheticdialogues": (58.3, 58.5, 60.1), "goemotions": (64.8, 64.3, 65.5),
        "isear": (71.4, 70.5, 72.4), "emoint": (85.5, 85.7, 86.6),
        "empatheticdialogues16classes": (68.8, 67.9, 69.6),
        "empatheticdialogues8classes": (78.0, 77.0, 78.7),
        "4easyclasses": (89.2, 88.8, 88.8),
        "anticipatingexcitedhopefulguilty": (67.4, 68.1, 69.5),
        "angryashamedfuriousguilty": (54.3, 53.3, 55.6),
        "devastatednostalgicsadsentimental": (63.2, 63.7, 64.2),
        "anxiousapprehensiveafraidterrified": (56.1, 55.4, 57.5),
    }),
)  # fmt: skip

_SAME = {"20newsgroupsheaders": "20newsgroups", "sst2sentences": "sst2"}
# By data set. The paper does not name its 16 and 8 classes, and a study draws its own at random.
# Its four classes are an easy set that it names, so they stand beside no other four.
_DATA_NOTES = {
    "20newsgroups": "messages with headers",
    "empatheticdialogues16classes": "other classes",
    "empatheticdialogues8classes": "other classes",
}
_NOTES = {
    ("ALBERT", "mr", "clld"): "surely a misprint",
    ("ALBERT", "mr", "cross_entropy"): "another split",  # that of PTE (Tang et al., 2015)
    ("BERT-base", "mr", "cross_entropy"): "another split",
    ("BERT-base", "mr", "clld"): "another split",
    ("TextCNN", "mr", "cross_entropy"): "another split",
    ("TextCNN", "mr", "clld"): "another split",
    ("ELECTRA-base", "empatheticdialogues", "cross_entropy"): "58.1 elsewhere in the paper",
    ("ELECTRA-base", "empatheticdialogues", "supcon"): "58.6 elsewhere in the paper",
}


def _letters(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def published(data: str, size: int) -> list[Figure]:
    """What the papers print for a data set of this size.

    Weighted F1 is printed for each size group. Accuracy is printed for whole training parts, and is
    given for every size.
    """
    name = _letters(data)
    name = _SAME.get(name, name)
    return [
        Figure(
            table.paper,
            table.encoder,
            objective,
            table.metric,
            table.tested,
            score,
            _NOTES.get((table.encoder, name, objective), "") or _DATA_NOTES.get(name, ""),
        )
        for table in _TABLES
        if table.group in ("", size_group(size))
        for objective, score in zip(table.objectives, table.scores.get(name, ()), strict=False)
    ]


def published_for(line: Line) -> list[Figure]:
    """The printed figures that may stand beside a line.

    No paper prints scores for a few rows per class, and weighted F1 is printed for folds only. A
    file or folder of the user has no printed figures, whatever its name is.
    """
    if line.shots or not _is_of_catalogue(line):
        return []
    figures = published(line.data, line.size)
    return [one for one in figures if one.metric == ACCURACY or line.test == "folds"]


def _is_of_catalogue(line: Line) -> bool:
    """Whether a line is about a data set of the catalogue, or classes of it, under its name."""
    if line.catalogue is not None:
        return bool(line.catalogue) and _letters(line.data).startswith(_letters(line.catalogue))
    # Earlier versions stored the source alone, and the oldest ones nothing.
    return not line.source or Path(line.source).name in CATALOGUE
