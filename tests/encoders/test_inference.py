"""Embedding: whatever is batched, sorted, spread over threads or chunked, every text gets the
vector it gets alone.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from closeknit.data import Examples
from closeknit.encoders import inference as evaluation
from closeknit.encoders.inference import by_length, encode_texts, outputs, softmax
from closeknit.encoders.loading import load_encoder
from conftest import TINY, WORDS

KINDS = [*TINY, "textcnn"]
POOLINGS = [(kind, pooling) for kind in KINDS for pooling in ("first", "mean")] + [
    ("bert", "own"), ("albert", "own"), ("textcnn", "own")]  # fmt: skip


def some_texts(n: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 40 words, in no order of length."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) for _ in range(n)]


def loaded(tiny, kind: str = "bert", pooling: str = "mean"):
    if kind == "textcnn":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return load_encoder(
                "textcnn", pooling=pooling, max_length=48, vocabulary=Examples([" ".join(WORDS)])
            )
    return load_encoder(tiny(kind), pooling=pooling, max_length=48)


def some_heads(dim: int, classes: int = 3) -> nn.ModuleDict:
    head = nn.Linear(dim, classes)
    head.classes = classes
    return nn.ModuleDict({"logits": head})


@torch.no_grad()
def one_by_one(encoder, tokeniser, texts: list[str]) -> np.ndarray:
    """The oracle: a text, a pass, a vector."""
    encoder.eval()
    rows = []
    for text in texts:
        rows.append(encoder(tokeniser(Examples([text])).pad([0])).pooled[0].numpy())
    return np.stack(rows)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest):
    """Torch with so many threads, and as it was afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("kind", "pooling"), POOLINGS)
def test_every_text_gets_the_vector_it_gets_alone(
    tiny, threads: int, kind: str, pooling: str
) -> None:
    encoder, tokeniser = loaded(tiny, kind, pooling)
    texts = some_texts(30)
    alone = one_by_one(encoder, tokeniser, texts)
    heads = some_heads(encoder.dim)
    logits, pooled = outputs(encoder, heads, tokeniser(Examples(texts)), budget=128)
    assert pooled.dtype == logits.dtype == np.float32
    np.testing.assert_allclose(pooled, alone, atol=1e-5)
    with torch.no_grad():
        expected = heads["logits"](torch.from_numpy(alone)).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(encode_texts(encoder, tokeniser, texts), alone, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 7, 50, 10_000])
def test_any_budget_gives_the_same(tiny, threads: int, budget: int) -> None:
    encoder, tokeniser = loaded(tiny)
    texts = some_texts(20)
    found = encode_texts(encoder, tokeniser, texts, budget=budget)
    np.testing.assert_allclose(found, one_by_one(encoder, tokeniser, texts), atol=1e-5)


def test_texts_are_tokenised_in_chunks_and_keep_their_order(
    tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, tokeniser = loaded(tiny)
    texts = some_texts(17)
    alone = one_by_one(encoder, tokeniser, texts)
    for chunk in (1, 4, 17, 100):
        monkeypatch.setattr(evaluation, "CHUNK", chunk)
        sizes: list[int] = []

        def counting(examples: Examples, sizes: list[int] = sizes):
            sizes.append(len(examples))
            return tokeniser(examples)

        np.testing.assert_allclose(encode_texts(encoder, counting, texts), alone, atol=1e-5)
        assert sum(sizes) == 17 and max(sizes) <= chunk


def test_results_held_back_are_all_fetched(tiny) -> None:
    encoder, tokeniser = loaded(tiny)
    texts = some_texts(11)
    tokens = tokeniser(Examples(texts))

    def work(rows):
        with torch.inference_mode():
            points = encoder.eval()(tokens.pad(rows)).pooled
        return points[:, :2], points

    for held in (1, 3, 50):
        found = np.full((11, encoder.dim), np.nan, dtype=np.float32)
        batches = list(by_length(tokens.lengths, 40))
        for rows, scores, points in evaluation._one_by_one(work, batches, held):
            found[rows] = points.numpy()
            assert scores.shape == (len(rows), 2)
        np.testing.assert_allclose(found, one_by_one(encoder, tokeniser, texts), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "textcnn"])
def test_no_texts_give_no_vectors(tiny, kind: str) -> None:
    encoder, tokeniser = loaded(tiny, kind)
    assert encode_texts(encoder, tokeniser, []).shape == (0, encoder.dim)
    assert encode_texts(encoder, tokeniser, [], normalize=True).shape == (0, encoder.dim)
    none = tokeniser(Examples(["card lost"])).select([])
    logits, pooled = outputs(encoder, some_heads(encoder.dim), none)
    assert logits.shape == (0, 3) and pooled.shape == (0, encoder.dim)


def test_without_heads_the_logits_have_no_columns(tiny) -> None:
    encoder, tokeniser = loaded(tiny)
    logits, pooled = outputs(encoder, None, tokeniser(Examples(["card lost", "refund"])))
    assert logits.shape == (2, 0) and pooled.shape == (2, encoder.dim)


def test_normalized_vectors_have_length_one(tiny) -> None:
    encoder, tokeniser = loaded(tiny)
    texts = some_texts(9)
    plain = encode_texts(encoder, tokeniser, texts)
    unit = encode_texts(encoder, tokeniser, texts, normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(
        unit * np.linalg.norm(plain, axis=1, keepdims=True), plain, atol=1e-5
    )


def test_half_changes_nothing_on_a_cpu(tiny) -> None:
    encoder, tokeniser = loaded(tiny)
    texts = some_texts(5)
    np.testing.assert_array_equal(
        encode_texts(encoder, tokeniser, texts, half=True), encode_texts(encoder, tokeniser, texts)
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_half_is_near_on_a_gpu(tiny) -> None:
    encoder, tokeniser = loaded(tiny)
    texts = some_texts(300)
    alone = one_by_one(encoder, tokeniser, texts)
    encoder.cuda()
    np.testing.assert_allclose(encode_texts(encoder, tokeniser, texts, budget=64), alone, atol=1e-3)
    found = encode_texts(encoder, tokeniser, texts, budget=64, half=True)
    np.testing.assert_allclose(found, alone, atol=0.1)


def test_progress_counts_every_text_once(
    tiny, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "CHUNK", 8)
    encoder, tokeniser = loaded(tiny)
    told: list[int] = []
    encode_texts(encoder, tokeniser, some_texts(20), budget=60, progress=told.append)
    assert sum(told) == 20 and len(told) > 3


def test_the_number_of_threads_is_left_as_it_was(tiny, threads: int) -> None:
    encoder, tokeniser = loaded(tiny)
    encode_texts(encoder, tokeniser, some_texts(20), budget=30)
    assert torch.get_num_threads() == threads

    def broken(inputs):
        raise RuntimeError("no pass")

    encoder.forward = broken
    with pytest.raises(RuntimeError, match="no pass"):
        encode_texts(encoder, tokeniser, some_texts(20), budget=30)
    assert torch.get_num_threads() == threads


def test_batches_hold_every_row_once_longest_first_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, size=500)
    batches = list(by_length(lengths, 256))
    assert sorted(np.concatenate(batches)) == list(range(500))
    assert (np.diff(lengths[np.concatenate(batches)]) <= 0).all()
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= 256 for rows in batches)
    assert list(by_length(lengths[:0], 256)) == []


def test_softmax_rows_sum_to_one() -> None:
    found = softmax(np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(found[1], [1.0, 0.0, 0.0], atol=1e-7)
