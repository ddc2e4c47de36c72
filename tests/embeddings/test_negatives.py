"""Mined negatives are near a query, and are not its answer."""

from __future__ import annotations

import numpy as np
import pytest

from closeknit.data import sentences_from
from closeknit.embeddings.negatives import mine_negatives
from closeknit.errors import DataError


def test_mined_negatives_are_near_and_not_right():
    place = {
        "a": (1, 0),
        "a+": (0.99, 0.14),
        "b": (0, 1),
        "b+": (0.1, 0.99),
        "near a": (0.85, 0.5),
        "far": (-1, 0),
    }

    def encode(texts):
        return np.array([place[text] for text in texts], dtype=np.float32)

    pairs = sentences_from([("a", "a+"), ("b", "b+")])
    found = mine_negatives(encode, pairs, ["a+", "b+", "near a", "far", "a"])
    assert found.columns[2] == ["near a", "near a"]
    assert mine_negatives(encode, pairs).columns[2] == ["b+", "a+"]  # the other rows' answers
    with pytest.raises(DataError, match="no negative can be mined for row 1"):
        mine_negatives(encode, pairs, ["a+", "a"])
    with pytest.raises(DataError, match="mined for pairs"):
        mine_negatives(encode, sentences_from(["a", "b"]))
