"""The adaptation stage: masked-language modelling in chunks and in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from closeknit.data import sentences_from
from closeknit.data.examples import Examples
from closeknit.embeddings.config import with_recipe
from closeknit.embeddings.fit import EmbeddingFit, masked_batches
from closeknit.encoders.loading import load_encoder
from closeknit.training.batches import length_grouped
from closeknit.training.processes import World
from conftest import make_tiny_encoder

TEXTS = [
    f"where is my {thing} {when}"
    for thing in ("card", "parcel", "refund", "order")
    for when in ("today", "please", "back")
]


@pytest.fixture(scope="module")
def without_dropout(tmp_path_factory):
    """A tiny encoder without dropout, so that only the arithmetic can differ."""
    return str(make_tiny_encoder(tmp_path_factory.mktemp("still"), "bert", dropout=0.0))


def adaptation_losses(encoder, chunk_size):
    """The losses of the adaptation, and the most rows that the encoder was given in a step."""
    settings = with_recipe(
        {
            "encoder": {"name": encoder, "max_length": 16},
            "method": {"name": "mirror", "noise": "none", "adapt_epochs": 2, "adapt_share": 0.4},
            "train": {"batch_size": 12, "lr": 1e-3, "chunk_size": chunk_size},
        },
        1,
    )
    fit = EmbeddingFit(sentences_from(TEXTS), settings)
    rows = [0]
    fit.model.encoder.register_forward_hook(
        lambda module, inputs, output: rows.append(len(output.hidden))
    )
    steps = fit.stages[0].steps
    losses = []
    for step in fit:
        losses.append(step.loss)
        if step.number == steps:
            break
    return losses, max(rows)


def test_the_adaptation_keeps_the_chunk_size_and_its_losses(without_dropout):
    whole, rows_whole = adaptation_losses(without_dropout, 0)
    chunked, rows_chunked = adaptation_losses(without_dropout, 5)
    assert rows_whole == 12
    assert rows_chunked == 5
    # The second loss depends on the gradients of the first step.
    assert chunked == pytest.approx(whole, rel=1e-5)
    assert whole[0] != whole[1]


def test_parts_of_equal_shape_have_masks_of_their_own(tiny):
    _, tokeniser = load_encoder(tiny(), pooling="mean", max_length=16)
    tokens = tokeniser(Examples(["where is my card today please"] * 40))
    plan = length_grouped(tokens.lengths, 40, 2)
    batches = masked_batches(tokens, plan, 1, tokeniser, 0.3, 2, World(torch.device("cpu")))
    first, second = batches(0, 0, 2), batches(0, 1, 2)
    assert first.labels.shape == second.labels.shape
    assert not torch.equal(first.labels >= 0, second.labels >= 0)
    assert torch.equal(batches(0, 1, 2).labels, second.labels)  # the same part, the same masks
    assert np.intersect1d(first.rows, second.rows).size == 0
