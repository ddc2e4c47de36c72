"""Data for training and evaluation: examples, the readers of files, splits and the catalogue."""

from __future__ import annotations

from closeknit.data.catalogue import CATALOGUE, load
from closeknit.data.evaluation_sets import (
    LabelledPairs,
    Lexicon,
    Linking,
    labelled_pairs_from,
    lexicon_from,
    linking_from,
    read_labelled_pairs,
    read_lexicon,
    read_linking,
)
from closeknit.data.examples import DataSet, Examples, from_python
from closeknit.data.scored_pairs import (
    ScoredPairs,
    load_scored_pairs,
    read_scored_pairs,
    scored_pairs_from,
)
from closeknit.data.sentences import Sentences, read_sentences, sentences_from
from closeknit.data.splits import few_shot, folds, split, subset
from closeknit.data.tables import Columns, read_file, read_folder, read_table

__all__ = [
    "CATALOGUE",
    "Columns",
    "DataSet",
    "Examples",
    "LabelledPairs",
    "Lexicon",
    "Linking",
    "ScoredPairs",
    "Sentences",
    "few_shot",
    "folds",
    "from_python",
    "labelled_pairs_from",
    "lexicon_from",
    "linking_from",
    "load",
    "load_scored_pairs",
    "read_file",
    "read_folder",
    "read_labelled_pairs",
    "read_lexicon",
    "read_linking",
    "read_scored_pairs",
    "read_sentences",
    "read_table",
    "scored_pairs_from",
    "sentences_from",
    "split",
    "subset",
]
