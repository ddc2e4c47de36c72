"""A sentence encoder is pooled as its folder declares it, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from closeknit.embeddings.declared import declared_modules
from closeknit.embeddings.model import load_sentence_model
from closeknit.errors import ModelError
from closeknit.storage import write_tensors

TEXTS = ["my card was stolen", "where is the parcel", "refund please"]
TANH = "torch.nn.modules.activation.Tanh"


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    """An encoder with token vectors that differ, and no declaration yet."""
    shutil.copytree(tiny(), tmp_path / "encoder")
    return tmp_path / "encoder"


def declare(folder: Path, *modules: str, pooling: dict | None = None, dense: dict | None = None):
    """Write modules.json and the configurations of pooling and dense layer."""
    kinds = ["Transformer", *modules]
    listed = [
        {
            "idx": n,
            "name": str(n),
            "path": f"{n}_{kind}" if n else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for n, kind in enumerate(kinds):
        facts = {"Pooling": pooling, "Dense": dense}.get(kind)
        if facts is not None:
            (folder / f"{n}_{kind}").mkdir(exist_ok=True)
            (folder / f"{n}_{kind}" / "config.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("facts", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": "mean", "embedding_dimension": 32}, "mean"),
    ],
)
def test_pooling_is_that_of_the_folder_unless_another_is_asked_for(folder, facts, pooling):
    expected = load_sentence_model(folder, pooling=pooling).encode(TEXTS)
    other = load_sentence_model(folder, pooling="mean" if pooling == "first" else "first")
    declare(folder, "Pooling", "Normalize", pooling=facts)
    model = load_sentence_model(folder)
    assert model.encoder.pooling == model.config.encoder.pooling == pooling
    assert np.array_equal(model.encode(TEXTS), expected)
    assert not np.allclose(other.encode(TEXTS), expected, atol=1e-3)
    asked = load_sentence_model(folder, pooling=other.encoder.pooling)
    assert np.array_equal(asked.encode(TEXTS), other.encode(TEXTS))


def test_without_a_declaration_it_is_the_mean(folder):
    assert declared_modules(folder) is None
    assert load_sentence_model(folder).encoder.pooling == "mean"


def test_a_dense_layer_with_tanh_is_applied(folder):
    facts = {"in_features": 32, "out_features": 32, "bias": True, "activation_function": TANH}
    declare(folder, "Pooling", "Dense", pooling={"pooling_mode": "cls"}, dense=facts)
    weight, bias = torch.randn(32, 32), torch.randn(32)
    tensors = {"linear.weight": weight, "linear.bias": bias}
    write_tensors(folder / "2_Dense" / "model.safetensors", tensors)
    pooled = torch.from_numpy(load_sentence_model(folder, pooling="first").encode(TEXTS))
    expected = torch.tanh(pooled @ weight.T + bias).numpy()
    assert np.allclose(load_sentence_model(folder).encode(TEXTS), expected, atol=1e-5)


def test_sentence_transformers_reads_the_same_vectors(folder):
    from sentence_transformers import SentenceTransformer

    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    declare(folder, "Pooling", pooling={**modes, "word_embedding_dimension": 32})
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.allclose(load_sentence_model(folder).encode(TEXTS), theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("modules", "pooling", "dense", "words"),
    [
        (["Pooling"], {"pooling_mode": "max"}, None, "declares the pooling max"),
        (["Pooling"], {"pooling_mode": ["cls", "mean"]}, None, "the pooling cls and mean"),
        (["Pooling"], {}, None, "declares the pooling none"),
        (["Pooling"], None, None, "1_Pooling/config.json is missing"),
        (["Pooling", "WordWeights"], {"pooling_mode": "cls"}, None, "a module WordWeights"),
        (
            ["Pooling", "Dense"],
            {"pooling_mode": "mean"},
            {"in_features": 32, "out_features": 8, "activation_function": TANH},
            r"2_Dense \(32 to 8 dimensions, Tanh\)",
        ),
        (
            ["Pooling", "Dense"],
            {"pooling_mode": "mean"},
            {"in_features": 32, "out_features": 32, "activation_function": "torch.nn.Identity"},
            "Identity.*only a layer with tanh",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(folder, modules, pooling, dense, words):
    declare(folder, *modules, pooling=pooling, dense=dense)
    with pytest.raises(ModelError, match=words + r".*--pooling first or mean"):
        load_sentence_model(folder)
    assert load_sentence_model(folder, pooling="mean").dense is None


@pytest.mark.parametrize(
    "listed",
    [{"a": 1}, [{"path": "1_Pooling"}], [{"path": "../1_Pooling", "type": "models.Pooling"}]],
)
def test_a_damaged_list_of_modules_is_refused(folder, listed):
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ModelError, match=r"modules\.json"):
        load_sentence_model(folder)
