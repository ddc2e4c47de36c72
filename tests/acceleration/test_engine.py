"""The engine's seams: modules that ask how to compute, and the description of BERT-like models."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from closeknit.acceleration.engine import CpuEngine, DirectLauncher, UpdateWork
from closeknit.acceleration.half_weights import HalfWeights
from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.encoders.architecture import bert_like_layers, embedding_layer, position_numbers
from closeknit.encoders.loading import load_encoder
from closeknit.encoders.run_time_modules import (
    Dropout,
    Linear,
    convert_dropout,
    convert_linears,
    dropout_drawn_by,
    linears_reading,
)
from conftest import losses_of as run


def network() -> nn.Sequential:
    shared = nn.Dropout(0.5)
    return nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.Linear(4, 3), shared))


# ---------------------------------------------------------------- dropout and linear layers


def test_converted_modules_compute_as_before_without_an_engine():
    torch.manual_seed(0)
    original = network()
    converted = copy.deepcopy(original)
    convert_dropout(converted)
    convert_linears(converted)
    assert list(converted.state_dict()) == list(original.state_dict())
    x = torch.randn(5, 4)
    outputs = []
    for module in (original, converted):
        torch.manual_seed(1)
        outputs.append(module(x))
    assert torch.equal(*outputs)


def test_a_conversion_keeps_parameters_hooks_and_modules_that_are_shared():
    module = network()
    parameters = list(module.parameters())
    called = []
    module[0].register_forward_hook(lambda *_: called.append("linear"))
    module[1].register_forward_pre_hook(lambda *_: called.append("dropout"))
    convert_dropout(module)
    linears = convert_linears(module)
    assert [type(part) for part in (module[0], module[1], module[2][0])] == [
        Linear,
        Dropout,
        Linear,
    ]
    assert module[1] is module[2][1] and linears == [module[0], module[2][0]]
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    module(torch.ones(1, 4))
    assert called == ["linear", "dropout", "dropout"]
    assert convert_linears(module, skip=[module[0]]) == [
        module[2][0]
    ]  # again: what is converted stays so


def test_what_is_skipped_is_not_converted():
    module = network()
    convert_dropout(module, skip=[module[2]])
    convert_linears(module, skip=[module[0]])
    assert type(module[1]) is nn.Dropout  # it lies in the skipped part too
    assert type(module[0]) is nn.Linear and type(module[2][0]) is Linear


def test_an_engine_draws_dropout_in_training_and_only_inside_its_context():
    module = Dropout(0.25)
    x = torch.ones(3)
    with dropout_drawn_by(lambda values, p: values * (10 + p)):
        assert torch.equal(module(x), 10.25 * x)
        assert torch.equal(module.eval()(x), x)
        module.train()
        module.p = 0.0
        assert torch.equal(module(x), x)
        module.p = 0.25
        with pytest.raises(ZeroDivisionError), dropout_drawn_by(lambda values, p: values):
            assert torch.equal(module(x), x)
            raise ZeroDivisionError
        assert torch.equal(module(x), 10.25 * x)
    module.p = 0.5
    assert set(module(torch.ones(100)).tolist()) == {0.0, 2.0}


def test_linear_layers_read_their_half_precision_copies_and_give_them_the_gradients():
    module = network()[::2].eval()
    half_weights = HalfWeights(module, torch.bfloat16)
    half_weights.refresh()
    x = torch.randn(2, 4)
    expected = module(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    module.zero_grad(set_to_none=True)
    with half_weights.in_use(), torch.autocast("cpu", torch.bfloat16):
        found = module(x)
    assert found.dtype == torch.bfloat16 and torch.allclose(found.float(), expected, atol=0.05)
    found.float().sum().backward()
    assert all(p.grad is None for p in module.parameters())  # the copies have them
    half_weights.collect_gradients()
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert torch.allclose(parameter.grad, gradient, atol=0.1, rtol=0.05)
    assert module(x).dtype == torch.float32
    with linears_reading({}):  # a layer that nobody has a copy of
        assert torch.equal(module(x), expected)


@pytest.mark.parametrize("kind", ["bert", "albert", "textcnn"])
def test_a_training_changes_no_module_outside_of_its_updates(tiny, small, kind):
    name = "textcnn" if kind == "textcnn" else tiny(kind)
    settings = {
        "encoder": {"name": name, "max_length": 16},
        "train": {"epochs": 1, "batch_size": 12},
    }
    fit = ClassifierFit(from_python(*small), RunConfig.from_dict(settings))
    engine = fit.training.engine
    assert isinstance(engine, CpuEngine) and isinstance(engine.launcher, DirectLauncher)
    before = {name: set(vars(module)) for name, module in fit.training.learners.named_modules()}
    assert np.isfinite(run(fit)).all()
    assert {
        name: set(vars(module)) for name, module in fit.training.learners.named_modules()
    } == before
    with dropout_drawn_by(lambda values, p: values * 0):
        drawn = [m for m in fit.training.learners.modules() if type(m) is Dropout and m.p > 0]
        assert drawn and all(not m.train()(torch.ones(2)).any() for m in drawn)


def test_without_graphs_an_update_is_computed_from_its_inputs():
    inputs = [torch.ones(2)]
    numbers = (("loss",), (), torch.zeros(1))
    seen = []
    work = UpdateWork("shape", 2, inputs, lambda given: seen.append(given) or numbers)
    assert DirectLauncher().run(work) is numbers and seen == [inputs]


# ---------------------------------------------------------------- what BERT-like models share


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert"])
def test_positions_are_those_of_transformers_where_a_text_contains_the_padding_token(tiny, kind):
    encoder, tokenise = load_encoder(tiny(kind), max_length=16)
    inputs = tokenise(from_python(["my card [PAD] was stolen", "[PAD] card", "parcel late"])).pad(
        range(3)
    )
    ids, padding = inputs["input_ids"], encoder.config.pad_token_id
    assert bool((ids == padding)[inputs["attention_mask"].bool()].any())
    looked_up = []
    table = encoder.trunk.embeddings.position_embeddings
    table.register_forward_pre_hook(lambda _, given: looked_up.append(given[0]))
    encoder(inputs)
    positions = embedding_layer(encoder.trunk).position_numbers(ids)
    assert torch.equal(positions, looked_up[0])
    assert positions[0].tolist()[:5] == [padding + n for n in (1, 2, 3, 0, 4)]


@pytest.mark.parametrize("kind", ["bert", "electra", "distilbert"])
def test_positions_of_the_others_are_places(tiny, kind):
    encoder, _ = load_encoder(tiny(kind), max_length=16)
    ids = torch.zeros(2, 3, dtype=torch.long)  # padding tokens
    assert embedding_layer(encoder.trunk).position_numbers(ids).tolist() == [[0, 1, 2]]
    assert position_numbers(ids, 0).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_only_unchanged_bert_like_trunks_have_known_layers(tiny):
    for kind in ("bert", "roberta", "electra", "distilbert"):
        trunk = load_encoder(tiny(kind), max_length=16)[0].trunk
        assert len(bert_like_layers(trunk)) == 2
        convert_linears(trunk)  # as the training before did
        assert len(bert_like_layers(trunk)) == 2
    for kind in ("albert", "xlnet", "modernbert"):
        assert bert_like_layers(load_encoder(tiny(kind), max_length=16)[0].trunk) is None
    pytest.importorskip("peft", reason="needs the extra `lora`")
    assert bert_like_layers(load_encoder(tiny("bert"), max_length=16, lora_rank=2)[0].trunk) is None
