"""Saved encoders of BERT's kin give the same numbers without transformers, and others are left to
it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.model import Model
from closeknit.data import Examples
from closeknit.embeddings.model import SentenceModel, load_sentence_model
from closeknit.encoders.architecture import PREFIXES
from closeknit.encoders.bert import BareTrunk, load_bare
from closeknit.encoders.loading import BUNDLED_PACKAGE
from closeknit.encoders.tokenisers import FileTokeniser, PretrainedTokeniser
from closeknit.errors import ModelError
from closeknit.models.saved_model import load_saved_encoder

KIN = sorted(PREFIXES)
OTHERS = ["albert", "xlnet", "modernbert", "textcnn"]
TEXTS = [
    "where is my card",
    "the parcel never came " * 20,  # cut to the most tokens
    "?",
    " . ",
    "ß 東京 \u200b ☃ naïve",
    "[SEP] lost [MASK] my [PAD] card",
    "a",
    "REFUND Money  back\ttoday",
]
LENGTHS = [4, 1, 17, 2, 9, 30, 3, 1]


def saved(
    tiny, small, folder: Path, kind: str, *, pooling: str = "first", paired: bool = False
) -> Path:
    """A classifier after a few updates, in its folder."""
    texts, labels = small
    rows = Examples(texts, texts[::-1] if paired else None, labels)
    config = RunConfig.from_dict(
        {
            "encoder": {
                "name": "textcnn" if kind == "textcnn" else tiny(kind),
                "max_length": 16,
                "pooling": pooling,
            },
            "train": {"epochs": 1, "lr": 1e-3, "batch_size": 12},
        }
    )
    ClassifierFit(rows, config).run().save(folder)
    return folder


@pytest.fixture
def bert(tiny, small, tmp_path) -> Path:
    return saved(tiny, small, tmp_path / "model", "bert")


def both(folder: Path) -> tuple[Model, Model]:
    return Model.load(folder), Model.load(folder, bare=True)


def seconds() -> list[str]:
    """A second text for each, long ones among them."""
    return [" ".join(["order number please"] * n) for n in LENGTHS]


@pytest.mark.parametrize("paired", [False, True], ids=["single", "pairs"])
@pytest.mark.parametrize("kind", KIN)
def test_the_numbers_are_those_of_transformers(tiny, small, tmp_path, kind, paired):
    usual, bare = both(saved(tiny, small, tmp_path / "model", kind, paired=paired))
    assert isinstance(bare.encoder.trunk, BareTrunk) and not isinstance(
        usual.encoder.trunk, BareTrunk
    )
    rows = Examples(TEXTS, seconds() if paired else None)
    for expected, found in zip(usual.outputs(rows), bare.outputs(rows), strict=True):
        assert np.allclose(expected, found, atol=1e-5)
        assert found.std(0).max() > 0
    theirs, ours = usual.tokens(rows), bare.tokens(rows)
    for name in ("ids", "special", "types", "offsets", "pad_id", "pad_type", "pad_left"):
        assert np.array_equal(getattr(theirs, name), getattr(ours, name)), name
    assert theirs.lengths.max() == 16


@pytest.mark.parametrize("kind", KIN)
@pytest.mark.parametrize("pooling", ["mean", "own"])
def test_every_pooling_is_the_same(tiny, small, tmp_path, kind, pooling):
    if pooling == "own" and kind in ("electra", "distilbert"):
        pytest.skip("it has no pooler")
    usual, bare = both(saved(tiny, small, tmp_path / "model", kind, pooling=pooling))
    assert isinstance(bare.encoder.trunk, BareTrunk)
    for expected, found in zip(
        usual.outputs(Examples(TEXTS)), bare.outputs(Examples(TEXTS)), strict=True
    ):
        assert np.allclose(expected, found, atol=1e-5)


@pytest.mark.parametrize("kind", KIN)
def test_tensors_and_settings_have_the_same_names(tiny, small, tmp_path, kind):
    usual, bare = both(saved(tiny, small, tmp_path / "model", kind))
    theirs, ours = usual.encoder.trunk.state_dict(), bare.encoder.trunk.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    for name in (
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "model_type",
        "vocab_size",
    ):
        assert getattr(usual.encoder.config, name) == getattr(bare.encoder.config, name)
    assert bare.encoder.config.to_dict()["model_type"] == kind
    rates = [m.p for m in usual.encoder.trunk.modules() if isinstance(m, torch.nn.Dropout)]
    assert sorted(rates) == sorted(
        m.p for m in bare.encoder.trunk.modules() if isinstance(m, torch.nn.Dropout)
    )


def test_dropout_is_at_work_in_training_only(bert):
    _, bare = both(bert)
    inputs = bare.tokens(Examples(TEXTS)).pad(range(3))
    bare.encoder.train()
    assert not torch.equal(bare.encoder(inputs).pooled, bare.encoder(inputs).pooled)
    bare.encoder.eval()
    assert torch.equal(bare.encoder(inputs).pooled, bare.encoder(inputs).pooled)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures_are_loaded_as_ever(tiny, small, tmp_path, kind):
    usual, bare = both(saved(tiny, small, tmp_path / "model", kind))
    assert type(bare.encoder.trunk) is type(usual.encoder.trunk)
    for expected, found in zip(
        usual.outputs(Examples(TEXTS)), bare.outputs(Examples(TEXTS)), strict=True
    ):
        assert np.array_equal(expected, found)


def change(path: Path, **values: object) -> None:
    facts = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(facts | values), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config.json", {"model_type": "big_bird"}),
        ("config.json", {"hidden_act": "silu"}),
        ("config.json", {"is_decoder": True}),
        ("config.json", {"add_cross_attention": True}),
        ("config.json", {"position_embedding_type": "relative_key"}),
        ("config.json", {"quantization_config": {"bits": 4}}),
        ("config.json", {"intermediate_size": 50}),
        ("config.json", {"num_hidden_layers": 3}),
        ("config.json", {"num_attention_heads": 5}),
        ("config.json", {"vocab_size": "many"}),
        ("tokenizer_config.json", {"tokenizer_class": "BigBirdTokenizer"}),
        ("tokenizer_config.json", {"model_input_names": None}),
        ("tokenizer_config.json", {"split_special_tokens": True}),
        ("tokenizer_config.json", {"add_eos_token": True}),
        ("tokenizer_config.json", {"pad_token": None}),
        ("tokenizer_config.json", {"extra_token": "[NEW]"}),
        ("tokenizer_config.json", {"backend": "python"}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"900": {"content": "[NEW]"}}}),
        ("adapter_config.json", None),
        ("added_tokens.json", None),
    ],
)
def test_what_is_in_doubt_is_left_to_transformers(bert, name, values):
    assert load_bare(bert, 16) is not None
    if values is None:
        (bert / name).write_text("{}")
    else:
        change(bert / name, **values)
    assert load_bare(bert, 16) is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_missing_and_damaged_files_are_left_to_transformers(bert, name):
    (bert / name).write_text("{")
    assert load_bare(bert, 16) is None
    (bert / name).unlink()
    assert load_bare(bert, 16) is None


def test_too_few_tokens_are_left_to_transformers(bert):
    assert load_bare(bert, 4) is None


def test_a_model_in_doubt_still_answers(bert):
    rows = Examples(["where is my card", "the parcel never came"])
    expected = Model.load(bert).outputs(rows)[0]
    change(bert / "tokenizer_config.json", split_special_tokens=True)
    facts = json.loads((bert / "closeknit.json").read_text(encoding="utf-8"))
    (bert / "closeknit.json").write_text(json.dumps({**facts, "files": {}}), encoding="utf-8")
    model = Model.load(bert, bare=True)
    assert not isinstance(model.encoder.trunk, BareTrunk)
    assert np.array_equal(expected, model.outputs(rows)[0])


def test_weights_without_a_place_are_refused_either_way(bert, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(bert / "model.safetensors")
    save_file({**tensors, "bert.spare": torch.ones(2)}, bert / "model.safetensors")
    kind = {"model_type": "bert", "pooling": "first", "name": "x"}
    said = []
    for bare in (False, True):
        with pytest.raises(ModelError, match=r"no place for bert\.spare") as told:
            load_saved_encoder(bert, kind, 16, bare=bare)
        said.append(str(told.value))
    assert said[0] == said[1]


def test_low_rank_adapters_are_part_of_what_was_saved(tiny, small, tmp_path):
    config = RunConfig.from_dict(
        {
            "encoder": {"name": tiny("bert"), "max_length": 16, "lora_rank": 2},
            "train": {"epochs": 1},
        }
    )
    ClassifierFit(Examples(small[0], labels=small[1]), config).run().save(tmp_path / "model")
    usual, bare = both(tmp_path / "model")
    assert isinstance(bare.encoder.trunk, BareTrunk)
    assert np.allclose(
        usual.outputs(Examples(TEXTS))[0], bare.outputs(Examples(TEXTS))[0], atol=1e-5
    )


def test_a_sentence_model_encodes_the_same(tiny, small, tmp_path):
    folder = saved(tiny, small, tmp_path / "model", "roberta")
    for pooling in (None, "mean", "own"):
        usual = load_sentence_model(folder, pooling=pooling)
        bare = load_sentence_model(folder, pooling=pooling, bare=True)
        assert isinstance(bare.encoder.trunk, BareTrunk)
        assert np.allclose(usual.encode(TEXTS), bare.encode(TEXTS), atol=1e-5)


@pytest.mark.skipif(
    find_spec(BUNDLED_PACKAGE) is None, reason="the bundled encoder is not installed"
)
def test_the_bundled_encoder_is_the_same(tmp_path):
    SentenceModel.untrained(None, max_length=32).save(tmp_path / "model")
    usual, bare = (
        SentenceModel.load(tmp_path / "model"),
        SentenceModel.load(tmp_path / "model", bare=True),
    )
    assert isinstance(bare.encoder.trunk, BareTrunk)
    assert np.allclose(usual.encode(TEXTS), bare.encode(TEXTS), atol=1e-5)


def wordpiece() -> dict[str, int]:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz.?!",
        "##e",
        "##r",
        "where",
    ]
    return {
        piece: i
        for i, piece in enumerate(
            [*pieces, *(f"##{c}" for c in "abcdfgijklmnopqstuvwxyz"), "ï", "東"]
        )
    }


def unigram(first: list[str]) -> list[tuple[str, float]]:
    return [(piece, 0.0) for piece in first] + [
        (c, -float(i)) for i, c in enumerate(["▁", *"acdehilmnoprstw", "▁the"])
    ]


def byte_pairs() -> dict[str, int]:
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "<mask>",
        *sorted(ByteLevel.alphabet()),
        "th",
        "the",
        "Ġthe",
    ]
    return {piece: i for i, piece in enumerate(pieces)}


def own_tokenizer(name: str, side: str):
    """A small tokenizer of a class that transformers has for one architecture."""
    import transformers

    kind = partial(getattr(transformers, name), padding_side=side, truncation_side=side)
    if name in ("BertTokenizer", "DistilBertTokenizer"):
        return kind(vocab=wordpiece(), do_lower_case=name != "DistilBertTokenizer")
    if name == "RobertaTokenizer":
        return kind(
            vocab=byte_pairs(),
            merges=[("t", "h"), ("th", "e"), ("Ġ", "the")],
            add_prefix_space=True,
        )
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    return kind(
        vocab=unigram(["<s>NOTUSED", *first[1:]] if name == "CamembertTokenizer" else first)
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BertTokenizer", "bert"),
        ("BertTokenizer", "electra"),
        ("DistilBertTokenizer", "distilbert"),
        ("RobertaTokenizer", "roberta"),
        ("XLMRobertaTokenizer", "xlm-roberta"),
        ("XLMRobertaTokenizer", "bert"),
        ("CamembertTokenizer", "camembert"),
    ],
)
def test_the_architectures_own_tokenizers_cut_texts_alike(tmp_path, name, kind, side):
    from transformers import AutoConfig, AutoTokenizer

    own_tokenizer(name, side).save_pretrained(tmp_path / "first")
    AutoConfig.for_model(kind).save_pretrained(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    PretrainedTokeniser(AutoTokenizer.from_pretrained(tmp_path / "first"), 12).save(
        tmp_path / "second"
    )
    usual = PretrainedTokeniser(AutoTokenizer.from_pretrained(tmp_path / "second"), 12)
    bare = FileTokeniser.load(tmp_path / "second", 12)
    assert bare is not None
    for rows in (Examples(TEXTS), Examples(TEXTS, seconds())):
        theirs, ours = usual(rows), bare(rows)
        for field in ("ids", "special", "types", "offsets", "pad_id", "pad_type", "pad_left"):
            assert np.array_equal(getattr(theirs, field), getattr(ours, field)), field
        assert (ours.types is not None) == (name == "BertTokenizer")
        assert ours.lengths.max() == 12 and ours.pad_left == (side == "left")
    (tmp_path / "third").mkdir()
    bare.save(tmp_path / "third")
    again = FileTokeniser.load(tmp_path / "third", 12)
    assert again is not None and np.array_equal(
        again(Examples(TEXTS)).ids, bare(Examples(TEXTS)).ids
    )


@pytest.mark.parametrize(
    ("name", "settings", "part", "other"),
    [
        ("BertTokenizer", {"do_lower_case": False}, None, None),
        (
            "BertTokenizer",
            {"do_lower_case": None},
            "normalizer",
            normalizers.BertNormalizer(lowercase=False),
        ),
        ("BertTokenizer", {"strip_accents": False}, None, None),
        ("BertTokenizer", {}, "normalizer", normalizers.Lowercase()),
        ("BertTokenizer", {}, "pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
        ("BertTokenizer", {}, "model", models.WordLevel(wordpiece(), unk_token="[UNK]")),
        ("BertTokenizer", {"cls_token": "[MASK]"}, None, None),
        ("BertTokenizer", {"unk_token": "[MASK]"}, None, None),
        ("BertTokenizer", {"additional_special_tokens": ["where"]}, None, None),
        ("BertTokenizer", {"extra_special_tokens": {"my_token": "[NEW]"}}, None, None),
        ("DistilBertTokenizer", {"do_lower_case": True}, None, None),
        ("RobertaTokenizer", {"add_prefix_space": False}, None, None),
        ("RobertaTokenizer", {}, "normalizer", normalizers.Lowercase()),
        ("XLMRobertaTokenizer", {"add_prefix_space": False}, None, None),
        ("XLMRobertaTokenizer", {}, "normalizer", normalizers.Lowercase()),
        ("CamembertTokenizer", {}, "pre_tokenizer", pre_tokenizers.Metaspace()),
    ],
)
def test_a_file_whose_parts_a_class_makes_otherwise_is_left_to_transformers(
    tmp_path, name, settings, part, other
):
    """The classes of the architectures read the vocabulary of a file, and make the rest from the
    settings.
    """
    own_tokenizer(name, "right").save_pretrained(tmp_path)
    assert FileTokeniser.load(tmp_path, 12) is not None
    facts = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8")) | settings
    said = {key: value for key, value in facts.items() if value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    if part is not None:
        file = str(tmp_path / "tokenizer.json")
        tokenizer = Tokenizer.from_file(file)
        setattr(tokenizer, part, other)
        tokenizer.save(file)
    assert FileTokeniser.load(tmp_path, 12) is None


LOOK = """
import sys
from closeknit.cli import main
try:
    main()
finally:
    heavy = {"transformers", "accelerate", "sklearn", "scipy", "matplotlib", "pandas", "datasets", "huggingface_hub"}
    print("loaded:", *sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["predict", "embed", "evaluate"])
def test_the_commands_do_without_transformers(bert, small_csv, tmp_path, command):
    options = {"predict": [], "embed": ["--out", tmp_path / "v.npy"], "evaluate": ["--json"]}[
        command
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOOK, command, bert, small_csv, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split()) - {"loaded:"}
    assert loaded <= (
        {"sklearn", "scipy", "pandas"} if command == "evaluate" else set()
    )  # it computes the scores
    assert done.stdout


@pytest.mark.parametrize("dropout", [None, 0.2])
@pytest.mark.parametrize("kind", KIN)
def test_runs_of_a_study_train_without_transformers_to_the_same_weights(tiny, small, kind, dropout):
    from closeknit.classification.fit import ClassifierFit
    from closeknit.models.memory import Stock

    rows = Examples(small[0], None, small[1])
    config = RunConfig.from_dict(
        {
            "encoder": {"name": tiny(kind), "max_length": 16, "dropout": dropout},
            "objective": {"name": "auto"},
            "train": {"epochs": 2, "lr": 1e-3, "batch_size": 12},
        }
    )
    usual, bare = ClassifierFit(rows, config), ClassifierFit(rows, config, stock=Stock(rows))
    assert isinstance(bare.model.encoder.trunk, BareTrunk) and not isinstance(
        usual.model.encoder.trunk, BareTrunk
    )
    for fit in (usual, bare):
        for _ in fit:
            pass
    theirs, ours = (dict(fit.training.learners.named_parameters()) for fit in (usual, bare))
    assert list(ours) == list(theirs)  # the length of the gradient is summed in their order
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_runs_of_a_study_do_not_import_transformers(tiny, small):
    code = (
        "import sys; from closeknit.classification.config import RunConfig; from closeknit.data import Examples; "
        "from closeknit.classification.fit import ClassifierFit; from closeknit.models.memory import Stock\n"
        f"rows = Examples({small[0]!r}, None, {small[1]!r})\n"
        f"tables = {{'encoder': {{'name': {tiny()!r}, 'max_length': 16}}, 'train': {{'epochs': 1}}}}\n"
        "fit = ClassifierFit(rows, RunConfig.from_dict(tables), stock=Stock(rows)); list(fit); fit.model.evaluate(rows)\n"
        "assert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_stock_loads_an_encoder_once_for_all_poolings(tiny, small, monkeypatch):
    from closeknit.classification.fit import ClassifierFit
    from closeknit.encoders.config import EncoderConfig
    from closeknit.models.memory import Stock

    rows, loads, load = Examples(small[0], None, small[1]), [], EncoderConfig.load
    monkeypatch.setattr(
        EncoderConfig,
        "load",
        lambda self, *a, **k: loads.append(self.pooling) or load(self, *a, **k),
    )
    stock, found = Stock(rows), {}
    for pooling in ("first", "mean", "first"):
        tables = {
            "encoder": {"name": tiny(), "max_length": 16, "pooling": pooling},
            "train": {"epochs": 1},
        }
        fit = ClassifierFit(rows, RunConfig.from_dict(tables), stock=stock)
        assert fit.model.encoder.pooling == pooling
        found.setdefault(pooling, []).append([step.loss for step in fit])
    assert loads == ["first"]
    assert found["first"][0] == found["first"][1] != found["mean"][0]
