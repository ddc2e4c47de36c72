from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from closeknit.multitask.heads import (
    HEADS,
    OUTPUT_ACTIVATIONS,
    PairHead,
    SimilarityHead,
    SingleHead,
    Top,
)
from closeknit.objectives import BinaryCrossEntropy
from closeknit.objectives.losses.cross_entropy import CrossEntropy

DIM = 5


def affine(layer, x):
    """W x + b, one output at a time."""
    lines = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    return [sum(w * v for w, v in zip(line, x, strict=True)) + bias for line, bias in lines]


def oracle_pair(head, kind, activation, pooled):
    """The answers of PairHead from its formulas: the first half of the rows are u or p, the second
    v or q; for a pair that is joined once every row is p.
    """
    if kind == "joined":
        return [affine(head.out, p) for p in pooled]
    half, answers = len(pooled) // 2, []
    for p, q in zip(pooled[:half], pooled[half:], strict=True):
        if kind == "linear":
            answers.append(affine(head.out, p + q))
            continue
        read = [p, q] if kind == "paired" else [p, q, [a - b for a, b in zip(p, q, strict=True)]]
        parts = []
        for layer, x in zip(head.parts, read, strict=True):
            parts += [math.tanh(one) if activation else one for one in affine(layer, x)]
        answers.append(affine(head.out, parts))
    return answers


def pooled_rows(rows, seed=0):
    return torch.randn(
        rows, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def pair_head(kind, classes, *, activation=False, seed=0):
    """A head with no weight left at its start, so that each of them counts."""
    head = PairHead(kind, DIM, classes, activation=activation).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return head


# ---------------------------------------------------------------- pairs


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 3, 6])
def test_the_answer_for_pairs_is_that_of_the_formula(kind, activation, classes):
    for seed, pairs in ((0, 4), (1, 1)):
        head, pooled = (
            pair_head(kind, classes, activation=activation, seed=seed),
            pooled_rows(pairs if kind == "joined" else 2 * pairs, seed),
        )
        expected = torch.tensor(
            oracle_pair(head, kind, activation, pooled.tolist()), dtype=torch.float64
        )
        found = head(pooled)
        assert found.shape == (pairs, classes)
        if classes == 2:  # one logit l, given as (0, l)
            assert not found[:, 0].any()
            found = found[:, 1:]
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_pair_worked_by_hand():
    """p = [1, 2], q = [3, 1]; a p = 1 + 1, b q = 2 * 1, c (p - q) = -2 - 1; 2 + 10 * 2 + 100 * -3 +
    0.5.
    """
    head = PairHead("dense_paired", 2, 1)
    with torch.no_grad():
        for part, weight, bias in zip(
            head.parts, ([1.0, 0.0], [0.0, 2.0], [1.0, -1.0]), (1.0, 0.0, 0.0), strict=True
        ):
            part.weight.copy_(torch.tensor([weight]))
            part.bias.fill_(bias)
        head.out.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        head.out.bias.fill_(0.5)
    pooled = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    assert head(pooled).tolist() == [[2.0 + 20.0 - 300.0 + 0.5]]
    head.activation = nn.Tanh()
    expected = math.tanh(2) + 10 * math.tanh(2) + 100 * math.tanh(-3) + 0.5
    assert head(pooled).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", HEADS)
def test_the_cross_entropy_of_two_classes_is_the_binary_one(kind):
    head, pooled, y = (
        pair_head(kind, 2, activation=True),
        pooled_rows(5 if kind == "joined" else 10),
        torch.tensor([0, 1, 1, 0, 1]),
    )
    logits = head(pooled)
    ours = CrossEntropy()(logits, y)
    assert ours.item() == pytest.approx(BinaryCrossEntropy()(logits[:, 1], y).item(), abs=1e-12)
    own = [
        math.log1p(math.exp(-one if label else one))
        for one, label in zip(logits[:, 1].tolist(), y, strict=True)
    ]
    assert ours.item() == pytest.approx(sum(own) / 5, abs=1e-12)


@pytest.mark.parametrize("kind", ["paired", "dense_paired"])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_a_fresh_head_is_the_sum_of_its_parts(kind, classes):
    head, pooled = PairHead(kind, DIM, classes).double(), pooled_rows(6)
    p, q = pooled[:3], pooled[3:]
    expected = sum(part(x) for part, x in zip(head.parts, (p, q, p - q), strict=False))
    found = head(pooled)[:, 1:] if classes == 2 else head(pooled)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_only_the_linear_head_reads_the_texts_apart():
    heads = [PairHead(kind, DIM, 2) for kind in HEADS]
    assert [head.reads_together for head in heads] == [False, True, True, True]
    assert [head.rows for head in heads] == [2, 1, 2, 2] and SingleHead.rows == 1
    assert [len(head.parts) for head in heads] == [0, 0, 2, 3]


def activated(name, x):
    """The activation of one number, from its formula."""
    if name == "tanh":
        return math.tanh(x)
    if name == "relu":
        return max(x, 0.0)
    return 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))) if name == "gelu" else x


@pytest.mark.parametrize("name", OUTPUT_ACTIVATIONS)
@pytest.mark.parametrize("kind", ["linear", "joined"])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_the_activation_after_the_linear_layer(name, kind, classes):
    head = PairHead(kind, DIM, classes, output_activation=name).double()
    pooled = pooled_rows(3 * head.rows)
    plain = oracle_pair(head, kind, False, pooled.tolist())
    expected = torch.tensor([[activated(name, x) for x in row] for row in plain]).double()
    found = head(pooled)[:, 1:] if classes == 2 else head(pooled)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-7)
    single = SingleHead(DIM, 3, output_activation=name).double()
    lines = [affine(single.out, row) for row in pooled.tolist()]
    expected = torch.tensor([[activated(name, x) for x in row] for row in lines]).double()
    assert torch.allclose(single(pooled), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("positive", [0, 1])
def test_the_answer_from_the_similarity_of_two_vectors(similarity, positive):
    head = SimilarityHead(positive=positive, similarity=similarity, scale=3.0).double()
    head.threshold.fill_(0.25)
    pooled = pooled_rows(8)
    found = head(pooled)
    for row, (u, v) in enumerate(zip(pooled[:4].tolist(), pooled[4:].tolist(), strict=True)):
        value = math.fsum(a * b for a, b in zip(u, v, strict=True))
        if similarity == "cosine":
            value /= math.sqrt(math.fsum(a * a for a in u) * math.fsum(b * b for b in v))
        assert found[row, positive].item() == pytest.approx(3.0 * (value - 0.25), abs=1e-12)
        assert found[row, 1 - positive] == 0
    assert list(head.parameters()) == [] and list(head.state_dict()) == ["threshold"]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_gradients_of_heads_for_pairs(kind, activation, classes):
    head = pair_head(kind, classes, activation=activation)
    names, own = zip(
        *((name, p.detach().clone().requires_grad_()) for name, p in head.named_parameters()),
        strict=True,
    )

    def answer(pooled, *more):
        return torch.func.functional_call(head, dict(zip(names, more, strict=True)), (pooled,))

    assert torch.autograd.gradcheck(answer, ((0.5 * pooled_rows(4)).requires_grad_(), *own))


# ---------------------------------------------------------------- single texts


def test_single_texts_have_one_linear_layer():
    head, pooled = SingleHead(DIM, 3).double(), pooled_rows(4)
    expected = torch.tensor([affine(head.out, row) for row in pooled.tolist()], dtype=torch.float64)
    assert torch.allclose(head(pooled), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(head, (pooled.requires_grad_(),))


# ---------------------------------------------------------------- what stands below all heads


def test_the_shared_layer_is_linear_with_tanh():
    top, pooled = (
        Top(DIM, dropout=0.4, shared=True, shared_dropout=0.6).double().eval(),
        pooled_rows(3),
    )
    expected = [[math.tanh(one) for one in affine(top.linear, row)] for row in pooled.tolist()]
    assert torch.allclose(
        top(pooled), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )
    assert torch.autograd.gradcheck(top, (pooled.requires_grad_(),))


def test_without_a_shared_layer_nothing_is_changed_or_learnt():
    top, pooled = Top(DIM, dropout=0.4, shared=False).eval(), pooled_rows(3)
    assert torch.equal(top(pooled), pooled)
    assert list(top.parameters()) == []


@pytest.mark.parametrize("shared", [False, True])
def test_dropout_zeroes_its_share_before_the_shared_layer(shared):
    top = Top(1, dropout=0.3, shared=shared).double().train()
    if shared:
        top.linear.weight.data.fill_(1.0)
        top.linear.bias.data.zero_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = top(torch.full((4000, 1), 0.5, dtype=torch.float64)).flatten()
    kept = 0.5 / 0.7
    assert (found == 0).double().mean().item() == pytest.approx(0.3, abs=0.03)
    assert found[found != 0].unique().tolist() == pytest.approx(
        [math.tanh(kept) if shared else kept]
    )


def test_the_dropout_of_the_shared_layer_comes_after_its_tanh():
    top = Top(1, dropout=0.0, shared=True, shared_dropout=0.6).double().train()
    top.linear.weight.data.fill_(2.0)
    top.linear.bias.data.fill_(0.1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = top(torch.full((4000, 1), 0.5, dtype=torch.float64)).flatten()
    assert (found == 0).double().mean().item() == pytest.approx(0.6, abs=0.03)
    assert found[found != 0].unique().tolist() == pytest.approx([math.tanh(1.1) / 0.4])
