"""Mined negatives are near a query, and are not its answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from closeknit.data import sentences_from
from closeknit.embeddings.config import with_recipe
from closeknit.embeddings.fit import EmbeddingFit
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


def test_a_hard_negative_that_belongs_to_a_row_has_its_group():
    rows = sentences_from(
        [
            ("a", "a+", "a+"),  # its own positive
            ("b", "b+", "a"),  # the text of another row
            ("c", "c+", "elsewhere"),
            ("a", "a2", "a+"),  # the positive of a row of its group
            ("d", "d+", "d"),  # its own text
        ]
    )
    groups = rows.groups.tolist()
    assert groups[0] == groups[3]
    expected = [groups[0], groups[0], -1, groups[0], groups[4]]
    assert rows.groups_of_negatives().tolist() == expected


def test_with_labels_the_group_of_the_own_row_comes_first():
    rows = sentences_from([("a", "b", "x"), ("a", "c", "b"), ("a", "b", "a")], ["0", "1", "2"])
    assert rows.groups_of_negatives().tolist() == [-1, rows.groups[0], rows.groups[2]]


def test_a_negative_equal_to_the_own_positive_is_masked_in_training(tiny):
    things = ("card", "parcel", "refund", "order", "payment", "shop")
    right = [(f"where is my {thing}", f"help with my {thing}", "thanks") for thing in things]
    wrong = [(text, answer, answer) for text, answer, _ in right]
    settings = with_recipe(
        {
            "encoder": {"name": tiny(), "max_length": 16},
            "method": {"name": "simcse"},
            "train": {"epochs": 1, "batch_size": 6},
        },
        3,
    )
    said = []
    fit = EmbeddingFit(sentences_from(wrong), settings, log=said.append)
    assert any(
        "6 of 6 hard negatives are texts that belong to their own row" in line for line in said
    )
    (task,) = fit.training.tasks
    labels = task.batch(0, 0, 1).labels
    z = torch.randn(18, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (term,) = task.objective.terms
    found = term.objective(z, labels)
    # Every row has its own positive as its negative; only the negatives of the other rows count.
    views = torch.nn.functional.normalize(z, dim=-1).view(3, 6, 8)
    total = 0.0
    for i in range(6):
        near = [math.exp(float(views[0, i] @ views[1, j]) / 0.05) for j in range(6)]
        near_negatives = [
            math.exp(float(views[0, i] @ views[2, j]) / 0.05) for j in range(6) if j != i
        ]
        total -= math.log(near[i] / (sum(near) + sum(near_negatives)))
    assert found.item() == pytest.approx(total / 6, abs=1e-10)
    others = EmbeddingFit(sentences_from(right), settings, log=said.append)
    assert set(others.training.tasks[0].batch(0, 0, 1).labels[12:, 1].tolist()) == {-1}
