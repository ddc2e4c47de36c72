from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from closeknit.acceleration.cpu_trunk import CpuTrunk, cpu_dropout, keep_mask
from closeknit.acceleration.engine import CpuEngine, UpdateParts
from closeknit.acceleration.precision import Precision
from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import Examples, from_python
from closeknit.encoders.loading import load_encoder
from closeknit.models.memory import Lane, Stock
from closeknit.training.cuda_graphs import (
    CAPTURE_COST,
    UPDATE_COST,
    WIDTH_STEP,
    choose_widths,
    task_widths,
)

KIN = ("bert", "roberta", "electra", "distilbert")
CPU = torch.device("cpu")


def engine_of(tiny, kind, **options):
    encoder, tokenise = load_encoder(tiny(kind), max_length=16, **options)
    optimizer = torch.optim.AdamW(encoder.parameters())
    flag = torch.zeros(())
    parts = UpdateParts(optimizer, Precision("fp32", CPU), torch.zeros(1), 1.0, flag, True)
    return encoder, tokenise, CpuEngine(parts, encoder)


def gradients(encoder, loss):
    encoder.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KIN)
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(
    "views", [("logits",), ("tokens",), ("all_tokens",), ("logits", "content_tokens")], ids="+".join
)
def test_the_fast_pass_gives_the_numbers_and_gradients_of_the_trunk(
    tiny, small, kind, pairs, views
):
    encoder, tokenise, engine = engine_of(tiny, kind, dropout=0.0)
    encoder.train()
    texts = small[0]
    batch = tokenise(Examples(texts, texts[::-1] if pairs else None)).pad(range(0, 36, 3))
    mask = batch["attention_mask"].bool()
    assert not mask.all()
    seen = torch.ones_like(mask) if "all_tokens" in views else mask
    tokens = any(view.endswith("tokens") for view in views)
    weights = torch.randn(*mask.shape, encoder.dim, generator=torch.Generator().manual_seed(0))

    def loss(found):
        total = (found.pooled * weights[:, 0]).sum() if "logits" in views else torch.zeros(())
        if tokens:
            total = total + (found.hidden * weights)[seen].sum()
        return total

    own = encoder(batch)
    expected = gradients(encoder, loss(own))
    with engine.forward_context(torch.tensor(0)):
        engine.reads(encoder, views)
        assert encoder.trunk_pass is not None and encoder.trunk_pass.fits(batch)
        found = encoder(batch)
        measured = gradients(encoder, loss(found))
    assert encoder.trunk_pass is None
    assert torch.allclose(found.pooled, own.pooled, atol=1e-5)
    assert found.hidden.shape[1] == (batch["input_ids"].shape[1] if tokens else 1)
    if tokens:
        assert torch.allclose(found.hidden[seen], own.hidden[seen], atol=1e-5)
    assert measured.keys() <= expected.keys()  # a table of types that nobody reads has none
    for name, value in expected.items():
        atol = 2e-5 + 1e-6 * float(
            value.abs().max()
        )  # small entries of a large gradient are rounded like large ones
        assert torch.allclose(
            measured.get(name, torch.zeros_like(value)), value, atol=atol, rtol=1e-3
        ), name


@pytest.mark.parametrize("kind", KIN)
def test_a_text_may_name_the_padding_token(tiny, kind):
    encoder, tokenise, engine = engine_of(tiny, kind, dropout=0.0)
    encoder.train()
    batch = tokenise(from_python(["my card [PAD] was stolen", "card"])).pad(range(2))
    own = encoder(batch).pooled
    with engine.forward_context(torch.tensor(0)):
        engine.reads(encoder, ["logits"])
        assert torch.allclose(encoder(batch).pooled, own, atol=1e-5)


def test_a_hook_another_precision_or_padding_first_go_the_trunks_own_way(tiny, small):
    encoder, tokenise, engine = engine_of(tiny, "bert")
    batch = tokenise(from_python(small[0])).pad(range(4))
    (trunk,), layer = engine.trunks, encoder.trunk.encoder.layer[0].attention.output.dense
    assert isinstance(trunk, CpuTrunk) and trunk.fits(batch)
    hook = layer.register_forward_pre_hook(lambda *_: None)
    assert not trunk.fits(batch)
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert not trunk.fits(batch)
    first = {**batch, "attention_mask": batch["attention_mask"].flip(1)}
    assert not trunk.fits(first)
    for other in ("albert", "xlnet", "modernbert"):
        assert engine_of(tiny, other)[2].trunks == [None]


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_keeps_its_share_and_its_mean_and_is_the_same_backwards(p):
    torch.manual_seed(3)
    x = torch.ones(400, 501, requires_grad=True)
    y = cpu_dropout(x, p)
    assert float((y == 0).float().mean()) == pytest.approx(p, abs=0.005)
    assert float(y.detach().mean()) == pytest.approx(1.0, abs=0.01)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    again = cpu_dropout(x, p)
    assert not torch.equal(again, y)
    torch.manual_seed(3)
    assert torch.equal(cpu_dropout(x, p), y)
    rows, columns = (y == 0).float().mean(1), (y == 0).float().mean(0)
    for means, amount in (
        (rows, 501),
        (columns, 400),
    ):  # no row and no column is treated differently
        assert float(means.std()) == pytest.approx(np.sqrt(p * (1 - p) / amount), rel=0.2)


def test_every_length_has_its_mask():
    for amount in (1, 2, 3, 4, 5, 63):
        keep, scale = keep_mask(torch.Size([amount]), 0.25)
        assert keep.shape == (amount,) and scale == pytest.approx(4 / 3)


def test_attention_drops_shares(tiny, small):
    encoder, tokenise, engine = engine_of(tiny, "bert", dropout=0.3)
    encoder.train()
    batch = tokenise(from_python(small[0])).pad(range(6))
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        with engine.forward_context(torch.tensor(0)):
            engine.reads(encoder, ["tokens"])
            runs.append(encoder(batch).hidden.detach())
    assert torch.equal(runs[0], runs[1]) and not torch.allclose(runs[0], runs[2])


def test_a_second_encoder_passes_that_way_too(tiny, small):
    settings = RunConfig.from_dict(
        {
            "encoder": {"name": tiny("bert"), "max_length": 16},
            "objective": {"name": "lcl"},
            "train": {"epochs": 1, "batch_size": 10, "lr": 1e-3},
        }
    )
    fit = ClassifierFit(from_python(*small), settings)
    assert len(fit.training.engine.trunks) == 2
    assert all(isinstance(trunk, CpuTrunk) for trunk in fit.training.engine.trunks)
    for _ in fit:
        assert all(encoder.trunk_pass is None for encoder in fit.training.engine.encoders)


@given(
    st.lists(st.integers(1, 128), min_size=1, max_size=60),
    st.integers(0, 40),
    st.floats(0.5, 200.0),
)
def test_widths_have_room_for_every_batch_and_cost_no_more_than_one_or_all(found, more, times):
    widest = max(found) + more
    widths = choose_widths(np.array(found), widest, times)
    assert widths == sorted(set(widths)) and widths[-1] >= widest
    assert all(width % WIDTH_STEP == 0 for width in widths)

    def cost(chosen):
        padded = sum(UPDATE_COST + next(width for width in chosen if width >= one) for one in found)
        return times * padded + sum(CAPTURE_COST * (UPDATE_COST + width) for width in chosen)

    every = sorted({-(-one // WIDTH_STEP) * WIDTH_STEP for one in (*found, widest)})
    assert cost(widths) <= min(cost(every), cost(every[-1:])) * (1 + 1e-9)


def test_widths_are_those_of_a_run_alone_where_it_shares_a_shelf(tiny):
    """Whatever other texts lie there: dropout draws by the places of a padded batch."""
    texts = [" ".join(["card"] * (1 + i % 9)) for i in range(40)] + ["card " * 60]
    examples = Examples(texts, labels=["ab"[i % 2] for i in range(41)])
    tables = {
        "encoder": {"name": tiny(), "max_length": 64},
        "train": {"epochs": 40, "batch_size": 4},
    }
    rows, stock = np.arange(40)[::-1].copy(), Stock(examples)
    config, lane = RunConfig.from_dict(tables), Lane(stock)
    lane.rows = rows
    alone = ClassifierFit(examples.select(rows), config)
    shared = ClassifierFit(examples.select(rows), config, stock=stock, lane=lane)
    widths = [task_widths(fit.training.tasks[0], 40) for fit in (alone, shared)]
    assert widths[0] == widths[1] and widths[0][-1] == 16


def test_long_runs_get_more_widths_than_short_ones():
    found = np.array([8, 16, 24, 40, 64, 128] * 10)
    assert len(choose_widths(found, 128, 0.1)) == 1
    assert len(choose_widths(found, 128, 100.0)) == 6
