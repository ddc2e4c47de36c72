from __future__ import annotations

import hashlib
import json
import shutil
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.encoders import loading as encoders
from closeknit.encoders.augmentation import (
    dropout_for_views,
    has_dropout,
    require_dropout_for_views,
)
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import NearestCentroid, build_heads
from closeknit.encoders.inference import outputs
from closeknit.encoders.loading import load_encoder
from closeknit.encoders.views import read_views
from closeknit.errors import ConfigError, MissingExtra, ModelError
from conftest import TINY

KINDS = ["bert", "roberta", "albert", "electra", "distilbert", "xlnet", "modernbert"]
TEXTS = ["my card was stolen today please help", "refund", "where is my parcel it never came"]


def encode(encoder: Encoder, tokeniser, texts, rows=None):
    tokens = tokeniser(from_python(texts))
    encoder.eval()
    with torch.no_grad():
        return encoder(tokens.pad(range(len(texts)) if rows is None else rows))


@pytest.mark.parametrize("kind", [*KINDS, "textcnn"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_every_architecture_encodes_without_minding_the_padding(tiny, kind, pooling):
    source = "textcnn" if kind == "textcnn" else tiny(kind)
    encoder, tokeniser = load_encoder(
        source, pooling=pooling, max_length=32, vocabulary=from_python(TEXTS)
    )
    together = encode(encoder, tokeniser, TEXTS)
    assert together.pooled.shape == (3, encoder.dim)
    assert together.hidden.shape[:2] == together.mask.shape
    for row, text in enumerate(TEXTS):
        alone = encode(encoder, tokeniser, [text])
        assert torch.allclose(alone.pooled[0], together.pooled[row], atol=1e-5)
        assert torch.allclose(alone.hidden[0], together.hidden[row][together.mask[row]], atol=1e-5)


def test_pooling_is_what_it_says(tiny):
    for pooling in ("first", "mean", "own"):
        encoder, tokeniser = load_encoder(tiny(), pooling=pooling, max_length=32)
        made = encode(encoder, tokeniser, TEXTS)
        expected = {
            "first": made.hidden[:, 0],
            "mean": torch.stack([made.hidden[i][made.mask[i]].mean(0) for i in range(3)]),
            "own": torch.tanh(encoder.trunk.pooler.dense(made.hidden[:, 0])),
        }[pooling]
        assert torch.allclose(made.pooled, expected, atol=1e-6)


def test_xlnets_first_token_is_its_last(tiny):
    encoder, tokeniser = load_encoder(tiny("xlnet"), max_length=32)
    made = encode(encoder, tokeniser, TEXTS)
    assert torch.equal(made.pooled, made.hidden[:, -1])
    assert made.special[:, -1].all()


def test_pooling_of_ones_own_needs_a_pooler(tiny):
    with pytest.raises(ConfigError, match="no trained pooler"):
        load_encoder(tiny("distilbert"), pooling="own", max_length=32)
    with pytest.raises(ConfigError, match="did you mean first"):
        load_encoder(tiny(), pooling="frist", max_length=32)


def test_a_text_alone_and_among_others_has_the_same_vector(tiny):
    encoder, tokeniser = load_encoder(tiny(), pooling="mean", max_length=32)
    heads = build_heads(encoder, 3, ())
    tokens = tokeniser(from_python(TEXTS * 5))
    logits, pooled = outputs(encoder, heads, tokens, budget=20)
    assert logits.shape == (15, 3)
    for row in (0, 7, 14):
        own_logits, own = outputs(encoder, heads, tokens.select([row]))
        assert np.allclose(own, pooled[row], atol=1e-5)
        assert np.allclose(own_logits, logits[row], atol=1e-5)


def test_dropout_can_be_set_and_switched_off(tiny):
    encoder, _ = load_encoder(tiny(), max_length=32, dropout=0.0)
    assert {m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
    heads = build_heads(encoder, 3, ())
    assert heads["logits"].dropout.p == 0.0
    with pytest.raises(ConfigError, match=r"encoder\.dropout is 1"):
        load_encoder(tiny(), max_length=32, dropout=1.0)


@pytest.mark.parametrize("kind", sorted(TINY))
def test_dropout_of_every_architecture_is_seen(tiny, kind):
    """Seen is what makes two passes of one text differ."""
    for rate in (0.0, 0.3):
        encoder, tokeniser = load_encoder(tiny(kind), max_length=16, dropout=rate)
        assert has_dropout(encoder) == (rate > 0)
        inputs = tokeniser(from_python(["my card was stolen"])).pad([0])
        first, second = (encoder.train()(dict(inputs)).pooled for _ in range(2))
        assert torch.equal(first, second) == (rate == 0)


def test_a_rate_for_two_views_is_given_only_where_they_rest_on_dropout(tiny):
    without, _ = load_encoder(tiny(), max_length=16, dropout=0.0)
    with_some, _ = load_encoder(tiny(), max_length=16, dropout=0.2)
    assert dropout_for_views(without, None, "auto") == 0.1
    assert dropout_for_views(without, 0.0, "auto", second_view="mask") is None
    assert dropout_for_views(with_some, 0.2, "auto") is None
    with pytest.raises(ConfigError, match=r"encoder\.dropout is 0, but auto compares two views"):
        dropout_for_views(without, 0.0, "auto")
    with pytest.raises(ConfigError, match=r"has no dropout.*set encoder\.dropout=0\.1"):
        require_dropout_for_views(without, None, "auto")


def test_lora_trains_few_weights_and_merges_into_plain_ones(tiny):
    encoder, tokeniser = load_encoder(tiny(), max_length=32, lora_rank=2)
    trained = sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    assert 0 < trained < 0.3 * sum(p.numel() for p in encoder.parameters())
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    merged = encoders.merged_trunk(encoder)
    assert not any("lora" in key for key in merged.state_dict())
    before = encode(encoder, tokeniser, TEXTS).pooled
    after = encode(Encoder(merged, "first", "merged"), tokeniser, TEXTS).pooled
    plain, _ = load_encoder(tiny(), max_length=32)
    assert torch.allclose(before, after, atol=1e-4)
    assert not torch.allclose(before, encode(plain, tokeniser, TEXTS).pooled, atol=1e-2)


# ---------------------------------------------------------------- views


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_every_token_carries_the_label_of_its_own_text(tiny, kind):
    encoder, tokeniser = load_encoder(tiny(kind), max_length=32)
    tokens = tokeniser(from_python(TEXTS))
    made = encode(encoder, tokeniser, TEXTS)
    y = torch.tensor([5, 6, 7])
    views = read_views(
        {},
        made,
        y,
        build_heads(encoder, 3, ()),
        ["tokens", "content_tokens", "all_tokens", "pooled"],
    )
    lengths = tokens.lengths.tolist()
    assert views["tokens"].y.tolist() == [5] * lengths[0] + [6] * lengths[1] + [7] * lengths[2]
    assert views["content_tokens"].y.tolist() == [5] * (lengths[0] - 2) + [6] * (lengths[1] - 2) + [
        7
    ] * (lengths[2] - 2)
    width = made.mask.shape[1]
    assert views["all_tokens"].y.tolist() == [5] * width + [6] * width + [7] * width
    assert torch.equal(views["tokens"].z[: lengths[0]], made.hidden[0][made.mask[0]])
    assert torch.equal(views["pooled"].y, y)


def test_a_class_without_rows_is_nobodys_nearest():
    head = NearestCentroid(2, 3)
    head.learn(torch.tensor([[1.0, 0.0], [1.0, 0.5]]), torch.tensor([0, 2]))
    assert head(torch.tensor([[-1.0, -0.2], [1.0, 0.0]])).argmax(1).tolist() == [2, 0]


def test_projected_rows_come_from_a_head_of_their_own(tiny):
    encoder, tokeniser = load_encoder(tiny(), max_length=32)
    heads = build_heads(encoder, 3, ("projected",))
    views = read_views(
        {}, encode(encoder, tokeniser, TEXTS), torch.arange(3), heads, ["projected", "logits"]
    )
    assert views["projected"].z.shape == (3, 128)
    assert views["logits"].z.shape == (3, 3)


# ---------------------------------------------------------------- loading


def test_the_bundled_encoder_is_found_without_running_its_package():
    package = encoders.BUNDLED_PACKAGE
    pytest.importorskip("importlib.util").find_spec(package) or pytest.skip(
        "the offline extra is not installed"
    )
    sys.modules.pop(package, None)
    folder = encoders.default_encoder()
    assert package not in sys.modules
    with open(f"{folder}/model.safetensors", "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == encoders.BUNDLED_SHA256


def test_an_altered_bundled_encoder_is_refused(tmp_path, monkeypatch):
    package = tmp_path / encoders.BUNDLED_PACKAGE
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('this package must not be run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match="missing"):
        encoders.default_encoder()
    (package / "model" / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(ModelError, match="SHA-256"):
        encoders.default_encoder()


def test_without_the_package_the_hub_is_asked(monkeypatch):
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    assert encoders.default_encoder() == "sentence-transformers/all-MiniLM-L6-v2"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (
            lambda f: (f / "model.safetensors").write_bytes(
                (f / "model.safetensors").read_bytes()[:900]
            ),
            "damaged",
        ),
        (lambda f: (f / "config.json").write_text("{"), "damaged"),
    ],
)
def test_damaged_encoder_folders_are_explained(tiny, tmp_path, harm, words):
    folder = tmp_path / "encoder"
    shutil.copytree(tiny(), folder)
    harm(folder)
    with pytest.raises(ModelError, match=words):
        load_encoder(str(folder), max_length=32)


def test_a_tokenizer_that_needs_another_library_is_told(tiny, tmp_path):
    if find_spec("tiktoken"):
        pytest.skip("transformers asks for it where it cannot read a SentencePiece file")
    shutil.copytree(tiny("albert"), tmp_path / "encoder", ignore=shutil.ignore_patterns("*token*"))
    (tmp_path / "encoder" / "spiece.model").write_bytes(b"pieces")
    with pytest.raises(
        ModelError, match=r"pip install sentencepiece, or save it as tokenizer\.json"
    ):
        load_encoder(str(tmp_path / "encoder"), max_length=32)


def test_weights_that_are_not_all_there_are_refused(tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "encoder"
    shutil.copytree(tiny(), folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("encoder.layer.1.output.dense.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"1 tensors are missing, encoder\.layer\.1\.output\.dense\.weight"
    ):
        load_encoder(str(folder), max_length=32)


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_weights_of_layers_that_have_no_place_are_refused(tiny, tmp_path, layers, bare):
    """Layers beyond those of config.json, or relative positions, which transformers leaves out
    without a word.
    """
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "encoder"
    shutil.copytree(tiny(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    weights = load_file(folder / "model.safetensors")
    weights["cls.predictions.bias"] = torch.zeros(3)  # a head of another model may be there
    if layers == 2:
        weights["encoder.layer.1.attention.self.distance_embedding.weight"] = torch.zeros(127, 16)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"it has no place for encoder\.layer\.1\.attention"):
        load_encoder(str(folder), max_length=32, bare=bare)


@pytest.mark.parametrize("kind", ["bert", "roberta", "camembert", "xlnet", "modernbert"])
def test_an_encoder_without_its_tokenizer_is_refused(tiny, tmp_path, kind):
    """Transformers makes one that knows no word."""
    folder = tmp_path / "encoder"
    shutil.copytree(tiny(kind), folder, ignore=shutil.ignore_patterns("*token*"))
    with pytest.raises(ModelError, match="has no tokenizer, so that every word would be unknown"):
        load_encoder(str(folder), max_length=32)


@pytest.mark.parametrize("bare", [False, True])
def test_a_token_that_was_added_to_the_tokenizer_alone_is_told(tiny, tmp_path, bare):
    from transformers import AutoTokenizer

    folder = tmp_path / "encoder"
    shutil.copytree(tiny(), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["voucher"])
    tokenizer.save_pretrained(folder)
    encoder, tokeniser = load_encoder(str(folder), max_length=32, bare=bare)
    assert encode(encoder, tokeniser, TEXTS).pooled.shape == (3, 32)
    with pytest.raises(ModelError, match=r"number (\d+), but the encoder knows \1 tokens"):
        encode(encoder, tokeniser, ["my voucher"])


@pytest.mark.parametrize("bare", [False, True])
def test_an_encoder_of_one_type_takes_pairs_whatever_its_tokenizer_says(tiny, tmp_path, bare):
    shutil.copytree(tiny("roberta"), tmp_path / "odd")
    settings = tmp_path / "odd" / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_input_names": names}))
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    usual = encode(*load_encoder(tiny("roberta"), max_length=32), pairs).pooled
    encoder, tokeniser = load_encoder(str(tmp_path / "odd"), max_length=32, bare=bare)
    assert torch.allclose(encode(encoder, tokeniser, pairs).pooled, usual, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "padding"), [("roberta", 1), ("roberta", 3), ("data2vec-text", 1)]
)
def test_positions_that_begin_after_the_padding_token_are_counted(tiny, tmp_path, kind, padding):
    from transformers import AutoConfig, AutoModel

    shutil.copytree(tiny("roberta"), tmp_path / "odd")
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    }
    config = AutoConfig.for_model(
        kind,
        vocab_size=60,
        max_position_embeddings=66,
        pad_token_id=padding,
        type_vocab_size=1,
        **sizes,
    )
    AutoModel.from_config(config).save_pretrained(tmp_path / "odd")
    most = 65 - padding
    encoder, tokeniser = load_encoder(str(tmp_path / "odd"), max_length=most)
    assert encode(encoder, tokeniser, ["card " * 80]).mask.sum() == most
    for bare in (False, True):
        with pytest.raises(ConfigError, match=f"at most {most} tokens"):
            load_encoder(str(tmp_path / "odd"), max_length=most + 1, bare=bare)


def test_models_that_are_no_encoders_are_refused(tiny, tmp_path):
    from transformers import AutoModel, CLIPConfig, GPT2Config

    folder = tmp_path / "odd"
    shutil.copytree(tiny(), folder)
    AutoModel.from_config(
        GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    ).save_pretrained(folder)
    with pytest.raises(
        ConfigError, match="first token knows nothing of the text; use pooling mean"
    ):
        load_encoder(str(folder), max_length=32)
    assert load_encoder(str(folder), max_length=32, pooling="mean")[0].dim == 32
    small = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    clip = CLIPConfig(
        text_config={**small, "vocab_size": 60},
        vision_config={**small, "image_size": 16, "patch_size": 8},
    )
    AutoModel.from_config(clip).save_pretrained(folder)
    with pytest.raises(ModelError, match="is a clip model; choose a BERT-like encoder"):
        load_encoder(str(folder), max_length=32)


def test_code_that_comes_with_an_encoder_is_not_run(tiny, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(tiny(), folder)
    (folder / "own.py").write_text("raise RuntimeError('this code must not be run')")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own"}
    for more, words in (
        (
            {"auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}},
            "code of its own, which is not run",
        ),
        ({}, "an architecture that this version of transformers does not know"),
    ):
        (folder / "config.json").write_text(json.dumps(config | more))
        with pytest.raises(ModelError, match=words):
            load_encoder(str(folder), max_length=32)


def test_pickled_weights_are_not_loaded(tiny, tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(tiny(), folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(
        ModelError, match=r"no model\.safetensors; weights in other formats are not loaded"
    ):
        load_encoder(str(folder), max_length=32)


def test_an_unknown_name_is_explained(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"encoder robrta-base: .*did you mean roberta-base"):
        load_encoder("robrta-base")


def test_without_the_hub_the_package_of_the_usual_encoder_is_named(monkeypatch):
    monkeypatch.setattr(encoders, "default_encoder", lambda: encoders.DEFAULT_HUB_NAME)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: 1 / 0)
    with pytest.raises(ModelError, match=r"pip install 'closeknit\[offline\]'"):
        load_encoder(None)


def test_a_missing_extra_is_named(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"closeknit\[lora\]"):
        load_encoder(tiny(), max_length=32, lora_rank=2)


def test_a_folder_that_asks_for_tuples_is_read_all_the_same(tiny, tmp_path):
    shutil.copytree(tiny(), tmp_path / "odd")
    config = tmp_path / "odd" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"return_dict": False}))
    made = [
        encode(*load_encoder(source, max_length=32), TEXTS).pooled
        for source in (tiny(), str(tmp_path / "odd"))
    ]
    assert torch.equal(*made)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_language_model_on_an_encoder_is_that_of_transformers(tiny, tmp_path, activation):
    from transformers import AutoModelForMaskedLM

    shutil.copytree(tiny("distilbert"), tmp_path / "odd")
    config = tmp_path / "odd" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"activation": activation}))
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "odd").eval()
    theirs.save_pretrained(tmp_path / "odd")
    encoder, tokeniser = load_encoder(str(tmp_path / "odd"), max_length=32)
    made = encode(encoder, tokeniser, TEXTS)
    batch = tokeniser(from_python(TEXTS)).pad(range(3))
    batch.pop("special")
    with torch.no_grad():
        ours = encoders.load_language_head(str(tmp_path / "odd"), encoder).eval()(made.hidden)
        assert torch.allclose(ours, theirs(**batch).logits, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
@pytest.mark.parametrize("bare", [False, True])
def test_a_folder_that_pads_on_the_other_side_is_read_all_the_same(tiny, tmp_path, kind, bare):
    shutil.copytree(tiny(kind), tmp_path / "odd")
    settings = tmp_path / "odd" / "tokenizer_config.json"
    other = {"bert": "left", "xlnet": "right"}[kind]
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": other}))
    usual = encode(*load_encoder(tiny(kind), max_length=32, bare=bare), TEXTS).pooled
    assert torch.equal(
        encode(*load_encoder(str(tmp_path / "odd"), max_length=32, bare=bare), TEXTS).pooled, usual
    )


def test_an_adapted_pooler_starts_the_classifier_too(tiny):
    starts = []
    for rank in (0, 2):
        encoder, _ = load_encoder(tiny(), max_length=32, lora_rank=rank)
        starts.append(build_heads(encoder, 3, {"logits"})["logits"].dense.weight)
    assert torch.equal(*starts)


def test_a_frozen_encoder_with_nothing_to_learn_is_told(tiny, small):
    tables = {
        "encoder": {"name": tiny(), "max_length": 16, "frozen": True},
        "objective": {"name": "supcon", "ce_weight": 0.0},
    }
    with pytest.raises(ConfigError, match=r"encoder\.frozen leaves nothing to learn"):
        ClassifierFit(from_python(*small), RunConfig.from_dict(tables))


def test_textcnn_drops_out_whatever_its_pooling():
    for pooling in ("first", "mean", "own"):
        encoder, tokeniser = load_encoder("textcnn", pooling=pooling, vocabulary=from_python(TEXTS))
        batch = tokeniser(from_python(TEXTS)).pad(range(3))
        encoder.train()
        if pooling != "first":
            assert not torch.equal(encoder(batch).pooled, encoder(batch).pooled), pooling


def test_textcnn_gives_a_pair_the_room_that_its_other_text_leaves():
    words = [f"w{i}" for i in range(40)]
    long, short = " ".join(words), "w1 w2"
    _, tokeniser = load_encoder("textcnn", max_length=21, vocabulary=from_python([long]))
    lengths = [
        tokeniser(from_python([pair])).ids.tolist().index(tokeniser.SEPARATOR)
        for pair in ((long, short), (short, long), (long, long))
    ]
    assert lengths == [18, 2, 10]
