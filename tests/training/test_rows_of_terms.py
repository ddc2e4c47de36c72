"""The rows that terms read, through the whole loop: in chunks, in parts, resumed, and shared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from several_processes import run_together

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.training.processes import World
from conftest import losses_of

ALONE = World(torch.device("cpu"))
LONG = " please help me with it today thanks"


def settings_of(tiny, objective: dict[str, Any], **train: Any) -> RunConfig:
    """A run without dropout: what differs between two copies is a masked span."""
    return RunConfig.from_dict(
        {
            "encoder": {
                "name": tiny(),
                "max_length": 24,
                "dropout": 0.0,
                "classifier_dropout": 0.0,
            },
            "objective": objective,
            "train": {"epochs": 2, "batch_size": 12, "lr": 1e-3, "validation": 0.0, **train},
        }
    )


CLLD = {"name": "clld", "second_view": "span", "adaptive": False}
SUPCON = {"name": "supcon", "tokens": "content", "token_rows": 20}


@pytest.fixture
def rows(small):
    texts, labels = small
    return [text + LONG for text in texts], labels


def fit_of(rows, settings, world=ALONE, **options) -> ClassifierFit:
    return ClassifierFit(from_python(*rows), settings, world=world, **options)


def with_opinions(fit: ClassifierFit) -> ClassifierFit:
    """With a classifier whose logits differ from text to text before the training."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in fit.training.tasks[0].heads.parameters():
            parameter.normal_(0.0, 1.0, generator=generator)
    return fit


def oracle_cross_entropy(logits, y, weights=None):
    total = mass = 0.0
    for row, label in zip(logits, y, strict=True):
        weight = weights[label] if weights else 1.0
        total += weight * (math.log(sum(math.exp(v) for v in row)) - row[label])
        mass += weight
    return total / mass


@pytest.mark.parametrize("way", [{}, {"chunk_size": 5}, {"accumulate": 3}])
@pytest.mark.parametrize("weights", [None, {"late": 1.0, "lost": 4.0, "refund": 0.5}])
@pytest.mark.parametrize("ce_copies", ["first", "all"])
def test_the_cross_entropy_of_an_update_is_that_of_the_copies_it_reads(
    tiny, rows, way, weights, ce_copies
):
    objective = {**CLLD, "ce_copies": ce_copies, "class_weights": weights}
    whole = with_opinions(fit_of(rows, settings_of(tiny, objective)))
    (task,) = whole.training.tasks
    batch = task.batch(0, 0, 1)
    views = whole.training.gradients.views(task, batch, whole.training.dropout_seeds)
    logits, y = views["logits"].z.tolist(), views["logits"].y.tolist()
    read = len(batch.rows) if ce_copies == "first" else 2 * len(batch.rows)
    in_order = list(weights.values()) if weights else None
    expected = oracle_cross_entropy(logits[:read], y[:read], in_order)
    assert abs(expected - oracle_cross_entropy(logits[12:], y[12:], in_order)) > 1e-3
    step = next(iter(with_opinions(fit_of(rows, settings_of(tiny, objective, **way)))))
    assert step.terms["cross_entropy"] == pytest.approx(expected, rel=1e-5)


def test_chunks_have_the_gradients_of_the_whole_batch(tiny, rows):
    for objective in (CLLD, SUPCON):
        found = []
        for chunk_size in (0, 5):
            fit = fit_of(rows, settings_of(tiny, objective, chunk_size=chunk_size))
            training = fit.training
            (task,) = training.tasks
            training.optimizer.zero_grad()
            training.gradients.of_batch(task, task.batch(0, 0, 1), 1.0, training.dropout_seeds)
            named = training.learners.named_parameters()
            found.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        assert found[0].keys() == found[1].keys()
        for name, gradient in found[0].items():
            assert torch.allclose(gradient, found[1][name], atol=1e-6, rtol=1e-4), name


def test_a_part_counts_by_the_class_weights_of_the_rows_that_a_term_reads(tiny, rows):
    objective = {**CLLD, "class_weights": {"late": 1.0, "lost": 4.0, "refund": 0.5}}
    fit = fit_of(rows, settings_of(tiny, objective, accumulate=3))
    (task,) = fit.training.tasks
    gradients, (ce, _) = fit.training.gradients, task.objective.terms
    part = task.batch(0, 0, 3)
    weights = [1.0, 4.0, 0.5]
    assert len(part.labels) == 2 * len(part.rows) == 8
    expected = sum(weights[label] for label in fit.y[part.rows])
    assert gradients._mass(task.objective, ce, part).item() == pytest.approx(expected)


@pytest.mark.parametrize("way", [{"chunk_size": 5}, {"accumulate": 2}])
@pytest.mark.parametrize(
    "objective", [CLLD, SUPCON, {**SUPCON, "copies": 2, "second_view": "span"}]
)
def test_a_resumed_run_reads_the_same_rows(tiny, rows, tmp_path, objective, way):
    settings = settings_of(tiny, objective, checkpoint_seconds=0.0, **way)
    whole = fit_of(rows, settings)
    losses = losses_of(whole)
    assert len(losses) == 6 and all(math.isfinite(loss) for loss in losses)
    head = losses_of(fit_of(rows, settings, folder=tmp_path), until=2)
    second = fit_of(rows, settings, folder=tmp_path, resume=True)
    assert head + losses_of(second) == losses
    a, b = whole.training.learners.state_dict(), second.training.learners.state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_other_tokens_are_drawn_in_every_update_and_part(tiny, rows):
    fit = fit_of(rows, settings_of(tiny, SUPCON))
    seeds = []
    for _ in fit:
        seeds.append(fit.training.dropout_seeds.of_token_rows)
    assert len({*seeds}) == len(seeds) == 6


@pytest.mark.parametrize(
    "name", ["soft_triple", "proxy_nca", "supcon", "contrastive", "triplet", "triple_entropy"]
)
@pytest.mark.parametrize("tokens", ["real", "content", "all"])
def test_tokens_have_the_labels_of_their_texts_and_gaps_change_nothing(tiny, rows, name, tokens):
    objective = {"name": name, "tokens": tokens}
    if name == "triplet":
        objective["mining"] = "hard"
    fit = fit_of(rows, settings_of(tiny, objective))
    (task,) = fit.training.tasks
    batch, gradients = task.batch(0, 0, 1), fit.training.gradients
    views = gradients.views(task, batch, fit.training.dropout_seeds)
    mask, special = batch.inputs["attention_mask"].bool(), batch.inputs["special"]
    chosen = {"real": mask, "content": mask & ~special, "all": torch.ones_like(mask)}[tokens]
    (_, view) = task.objective.views
    counts = [int(own.sum()) for own in chosen]
    labels = [
        label
        for label, count in zip(batch.labels.tolist(), counts, strict=True)
        for _ in range(count)
    ]
    assert views[view].y.tolist() == labels
    found = [gradients.of_batch(task, batch, 1.0, fit.training.dropout_seeds)[0].item()]
    gradients.keep_unchosen_tokens = True
    found.append(gradients.of_batch(task, batch, 1.0, fit.training.dropout_seeds)[0].item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def train_to_end(world, settings, rows):
    fit = with_opinions(fit_of(rows, RunConfig.from_dict(settings), world))
    losses = losses_of(fit)
    state = fit.training.learners.state_dict()
    return losses, {name: value.numpy().copy() for name, value in state.items()}


@pytest.mark.parametrize(
    ("objective", "train"),
    [
        (CLLD, {"batch_size": 9}),
        ({**CLLD, "class_weights": [1.0, 4.0, 0.5]}, {"accumulate": 2}),
        (SUPCON, {"batch_size": 9}),
    ],
)
def test_two_processes_read_the_rows_of_one(tiny, rows, objective, train):
    """The first copies of all texts are read, not the first copies of each process twice."""
    settings = settings_of(tiny, objective, **train).to_dict()
    losses, weights = train_to_end(ALONE, settings, rows)
    for own_losses, own_weights in run_together(train_to_end, settings, rows):
        assert own_losses == pytest.approx(losses, rel=2e-4)
        assert weights.keys() == own_weights.keys()
        for key, value in weights.items():
            assert np.allclose(value, own_weights[key], atol=1e-4), key
