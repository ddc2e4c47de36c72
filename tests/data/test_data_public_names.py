"""The names of closeknit.data that users may rely on."""

from __future__ import annotations

import closeknit
from closeknit import data

PUBLIC = [
    *("CATALOGUE", "Columns", "DataSet", "Examples", "LabelledPairs", "Lexicon", "Linking"),
    *("ScoredPairs", "Sentences", "few_shot", "folds", "from_python"),
    *("labelled_pairs_from", "lexicon_from", "linking_from", "load", "load_scored_pairs"),
    *("read_file", "read_folder", "read_labelled_pairs", "read_lexicon", "read_linking"),
    *("read_scored_pairs", "read_sentences", "read_table", "scored_pairs_from", "sentences_from"),
    *("split", "subset"),
]


def test_the_public_names_of_data_are_these():
    assert data.__all__ == PUBLIC
    assert all(hasattr(data, name) for name in PUBLIC)


def test_load_and_examples_are_the_same_from_the_top():
    assert closeknit.load is data.load
    assert closeknit.Examples is data.Examples
