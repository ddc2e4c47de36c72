"""The adversarial second view: its direction against oracles, and what it does to an encoder."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from closeknit.data import Examples
from closeknit.encoders.augmentation import (
    adversarial_change,
    adversarial_direction,
    check_second_copies,
    output_difference,
    second_copies_changed,
)
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.loading import load_encoder
from closeknit.encoders.textcnn import TextCNN
from closeknit.errors import ConfigError
from closeknit.objectives.copies import Copies
from conftest import TINY

TEXTS = ["my card was stolen today", "where is my refund", "the parcel never arrived", "help"]


def softmax(row):
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


def linear_case(classes: int, tokens: int = 3, dim: int = 4, seed: int = 0):
    """Logits of one text: the weights (C, T E) times its embeddings, and a random start."""
    draw = random.Random(seed)
    weights = [[draw.gauss(0, 1) for _ in range(tokens * dim)] for _ in range(classes)]
    text = [draw.gauss(0, 1) for _ in range(tokens * dim)]
    start = [draw.gauss(0, 1) for _ in range(tokens * dim)]
    return weights, text, start


def found_direction(weights, text, start, step):
    """The direction of this program for a text of one token that holds all numbers."""
    w = torch.tensor(weights, dtype=torch.float64)
    e = torch.tensor(text, dtype=torch.float64)[None, None]  # (1, 1, T E)
    before = (e @ w.T)[:, 0]

    def difference(change):
        return output_difference(before, ((e + change) @ w.T)[:, 0], are_logits=True)

    first = torch.tensor(start, dtype=torch.float64)[None, None]
    size = torch.full((1, 1, 1), step, dtype=torch.float64)
    return adversarial_direction(difference, first, size)[0, 0].tolist()


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_direction_is_the_second_derivative_times_the_start(classes):
    """D(r) = KL(p || softmax(W (e + r))) has the second derivative W' (diag p - p p') W at 0."""
    weights, text, start = linear_case(classes)
    logits = [sum(w * e for w, e in zip(row, text, strict=True)) for row in weights]
    p = softmax(logits)
    effect = [sum(w * d for w, d in zip(row, start, strict=True)) for row in weights]  # W d
    mean = sum(pc * value for pc, value in zip(p, effect, strict=True))
    inner = [pc * (value - mean) for pc, value in zip(p, effect, strict=True)]
    expected = [sum(inner[c] * weights[c][i] for c in range(classes)) for i in range(len(text))]
    length = math.sqrt(sum(value * value for value in expected))
    found = found_direction(weights, text, start, step=1e-6)
    assert found == pytest.approx([value / length for value in expected], abs=1e-6)


def test_between_two_classes_no_direction_changes_the_output_more():
    weights, text, start = linear_case(2, seed=3)
    best = found_direction(weights, text, start, step=1e-4)

    def change_of(direction):
        length = math.sqrt(sum(value * value for value in direction))
        moved = [e + 0.01 * d / length for e, d in zip(text, direction, strict=True)]
        p, q = (
            softmax([sum(w * e for w, e in zip(row, given, strict=True)) for row in weights])
            for given in (text, moved)
        )
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    draw = random.Random(1)
    others = [[draw.gauss(0, 1) for _ in text] for _ in range(200)]
    assert change_of(best) > max(map(change_of, others))
    assert change_of(best) > 2 * change_of(start)


@pytest.mark.parametrize("are_logits", [True, False])
def test_the_difference_of_outputs_is_that_of_the_formula(are_logits):
    torch.manual_seed(0)
    before = torch.randn(4, 3, dtype=torch.float64)
    after = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    found = output_difference(before, after, are_logits=are_logits)
    for row in range(4):
        a, b = before[row].tolist(), after[row].tolist()
        if are_logits:
            p, q = softmax(a), softmax(b)
            expected = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
        else:
            lengths = [math.sqrt(sum(value * value for value in side)) for side in (a, b)]
            gaps = [x / lengths[0] - y / lengths[1] for x, y in zip(a, b, strict=True)]
            expected = sum(gap * gap for gap in gaps)
        assert found[row].item() == pytest.approx(expected, abs=1e-12)
    assert torch.autograd.gradcheck(
        lambda x: output_difference(before, x, are_logits=are_logits), (after,)
    )
    assert output_difference(before, before, are_logits=are_logits).abs().max() < 1e-12


def test_a_text_whose_output_never_changes_has_no_direction():
    start = torch.randn(2, 3, 4)
    step = torch.ones(2, 1, 1)
    found = adversarial_direction(
        lambda r: (r * torch.tensor([0.0, 1.0])[:, None, None]).square().sum((1, 2)), start, step
    )
    assert not found[0].any()
    assert found[1].norm().item() == pytest.approx(1.0, abs=1e-6)


def encoder_and_inputs(tiny, kind):
    encoder, tokenise = load_encoder(
        "textcnn" if kind == "textcnn" else tiny(kind),
        pooling="mean",
        max_length=16,
        vocabulary=Examples(TEXTS),
    )
    return encoder, tokenise(Examples(TEXTS)).pad(range(len(TEXTS)))


@pytest.mark.parametrize("kind", [*sorted(TINY), "textcnn"])
def test_every_architecture_takes_the_change_and_only_in_second_copies(tiny, kind):
    encoder, inputs = encoder_and_inputs(tiny, kind)
    encoder.train()
    head = {"logits": nn.Linear(encoder.dim, 3)}
    plain = encoder.eval()(inputs).pooled
    torch.manual_seed(0)
    with torch.no_grad():
        change = adversarial_change(
            encoder, inputs, lambda out: head["logits"](out.pooled), 5.0, are_logits=True
        )
        again = encoder(inputs).pooled
    assert torch.allclose(again, plain, atol=1e-6)  # nothing stays behind
    assert change.shape[:2] == inputs["input_ids"].shape
    assert not change[inputs["special"]].any()  # neither padding nor special tokens
    assert (change.flatten(1).norm(dim=1) > 0).all()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    is_second = torch.tensor([False, False, True, True])
    how = Copies(copies=2, second_view="adversarial")
    encoder.train()
    rates = [m.p for m in encoder.modules() if isinstance(m, nn.Dropout)]
    for module in encoder.modules():  # without noise the difference is the change alone
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
            module.attention_dropout = 0.0
    with second_copies_changed(encoder, head, how, inputs, is_second, reads_logits=True):
        changed = encoder(inputs).pooled
    assert rates or kind == "modernbert"
    assert torch.allclose(changed[:2], plain[:2], atol=1e-5)
    assert not torch.allclose(changed[2:], plain[2:], atol=1e-4)


def test_the_change_has_the_length_that_was_asked_for(tiny):
    encoder, inputs = encoder_and_inputs(tiny, "bert")
    change = adversarial_change(encoder, inputs, lambda out: out.pooled, 3.0, are_logits=False)
    words = encoder.trunk.get_input_embeddings().weight.tolist()
    for row, ids in enumerate(inputs["input_ids"].tolist()):
        special = inputs["special"][row].tolist()
        numbers = [x for i, of in zip(ids, special, strict=True) if not of for x in words[i]]
        size = math.sqrt(sum(x * x for x in numbers) / len(numbers))
        assert change[row].norm().item() == pytest.approx(3.0 * size, rel=1e-4)


def test_out_of_training_nothing_is_changed(tiny):
    encoder, inputs = encoder_and_inputs(tiny, "bert")
    encoder.eval()
    plain = encoder(inputs).pooled
    for view in ("adversarial", "drophead"):
        how = Copies(copies=2, second_view=view)
        everything = torch.ones(4, dtype=torch.bool)
        with second_copies_changed(encoder, {}, how, inputs, everything, reads_logits=False):
            assert torch.equal(encoder(inputs).pooled, plain)


def test_an_encoder_whose_embeddings_or_heads_are_not_known_is_refused():
    encoder = Encoder(TextCNN.create(10), "own", "textcnn")
    check_second_copies(encoder, Copies(copies=2, second_view="adversarial"))
    with pytest.raises(ConfigError, match="drophead does not know the attention heads"):
        check_second_copies(encoder, Copies(copies=2, second_view="drophead"))
    encoder.model_type = "unheard of"
    with pytest.raises(ConfigError, match="those of the architecture unheard of are not known"):
        check_second_copies(encoder, Copies(copies=2, second_view="adversarial"))


def test_dropped_heads_in_second_copies_only(tiny):
    encoder, inputs = encoder_and_inputs(tiny, "bert")
    plain = encoder.eval()(inputs).pooled
    encoder.train()
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    is_second = torch.tensor([False, True, False, True])
    how = Copies(copies=2, second_view="drophead", drophead=0.9)
    with second_copies_changed(encoder, {}, how, inputs, is_second, reads_logits=False):
        changed = encoder(inputs).pooled
    assert torch.allclose(changed[~is_second], plain[~is_second], atol=1e-5)
    assert not torch.allclose(changed[is_second], plain[is_second], atol=1e-3)
