"""Tasks for the loop that are made in one call, and the predictions of what they trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from closeknit import (
    ConfigError,
    DataError,
    Examples,
    Joint,
    Term,
    TrainConfig,
    encode_texts,
    load_encoder,
    make_task,
    predict_logits,
    train,
)
from closeknit.objectives import CrossEntropy, SoftTriple

PAIRS = [("card lost", "my card"), ("parcel late", "money back")] * 4


@pytest.fixture
def encoder(tiny):
    """An encoder and its tokeniser, always with the same weights."""
    return load_encoder(tiny(), max_length=16)


def test_a_task_trains_as_the_command_does(tiny, small, encoder):
    """The same rows meet, the heads start alike, and so the losses are the same bits."""
    from closeknit.classification.config import RunConfig
    from closeknit.classification.fit import ClassifierFit
    from closeknit.data import from_python
    from conftest import losses_of

    options = {"epochs": 2, "batch_size": 10, "lr": 1e-3, "seed": 5}
    for objective in ("cross_entropy", "triple_entropy", "supcon", "auto"):
        trunk, tokenise = load_encoder(tiny(), max_length=16)
        task = make_task(
            *small, encoder=trunk, tokenise=tokenise, objective=objective, batch_size=10, seed=5
        )
        losses = [step.loss for step in train(trunk, [task], TrainConfig(**options))]
        run = RunConfig.from_dict(
            {
                "encoder": {"name": tiny(), "max_length": 16, "pooling": "first"},
                "objective": {"name": objective},
                "train": {**options, "class_names": 0, "lr_scale": 1.0},
            }
        )
        assert losses == losses_of(ClassifierFit(from_python(*small), run)), objective


def test_examples_and_lists_give_the_same_task(small, encoder):
    trunk, tokenise = encoder
    texts, labels = small
    options = {"encoder": trunk, "tokenise": tokenise, "batch_size": 8}
    from_lists = make_task(texts, labels, **options)
    from_examples = make_task(Examples(texts, labels=labels, name="small"), **options)
    assert from_lists.per_epoch == from_examples.per_epoch == 5
    for number in range(5):
        one, other = from_lists.batch(number, 0, 1), from_examples.batch(number, 0, 1)
        assert one.rows.tolist() == other.rows.tolist()
        assert one.labels.tolist() == other.labels.tolist()
        classes = sorted(set(labels))
        assert one.labels.tolist() == [classes.index(labels[row]) for row in one.rows]


def test_a_joint_objective_of_ones_own_is_learnt_and_predicts(small, encoder):
    trunk, tokenise = encoder
    texts, labels = small
    objective = Joint(
        [
            Term("cross_entropy", 0.5, CrossEntropy(), "logits"),
            Term("soft_triple", 0.5, SoftTriple(trunk.dim, 3, centers=2), "pooled"),
        ]
    )
    task = make_task(
        texts,
        labels,
        encoder=trunk,
        tokenise=tokenise,
        objective=objective,
        batch_size=12,
        name="kind",
    )
    assert task.name == "kind" and task.objective is objective
    for _ in train(trunk, [task], TrainConfig(epochs=40, lr=1e-3)):
        pass
    logits = predict_logits(trunk, tokenise, task, texts)
    assert logits.shape == (36, 3)
    predicted = [sorted(set(labels))[best] for best in logits.argmax(axis=1)]
    assert np.mean([one == other for one, other in zip(predicted, labels, strict=True)]) > 0.9
    again = predict_logits(trunk, tokenise, task, Examples(texts, labels=labels))
    assert np.array_equal(logits, again)


def test_pairs_of_texts_make_a_task(encoder):
    trunk, tokenise = encoder
    task = make_task(PAIRS, ["yes", "no"] * 4, encoder=trunk, tokenise=tokenise, batch_size=4)
    assert len(list(train(trunk, [task], TrainConfig(epochs=1)))) == 2
    assert predict_logits(trunk, tokenise, task, PAIRS).shape == (8, 2)


def test_two_tasks_are_trained_together(small, encoder):
    trunk, tokenise = encoder
    options = {"encoder": trunk, "tokenise": tokenise, "batch_size": 12}
    tasks = [
        make_task(*small, name="kind", **options),
        make_task(PAIRS, ["yes", "no"] * 4, name="same", weight=0.5, **options),
    ]
    step = next(iter(train(trunk, tasks, TrainConfig(epochs=1))))
    assert set(step.losses) == {"kind", "same"}
    assert step.losses["same"] == pytest.approx(0.5 * step.terms["same/cross_entropy"])


def test_the_random_numbers_outside_are_left_as_they_are(small, encoder):
    trunk, tokenise = encoder
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    make_task(*small, encoder=trunk, tokenise=tokenise, objective="triple_entropy")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"objective": "supconn"}, ConfigError, "did you mean supcon"),
        (
            {"objective": nn.Linear(2, 2)},
            ConfigError,
            "a Linear; say which view of the model it reads",
        ),
        ({"batch_size": 0}, ConfigError, "batch_size is 0; it must be at least 1"),
        ({"labels": ["a"] * 36}, DataError, "one class only"),
        ({"labels": ["a", "b"]}, DataError, "36 texts, but 2 labels"),
        ({"labels": None}, DataError, "has no labels"),
        (
            {"texts": Examples(["a", "b"], labels=["x", "y"])},
            DataError,
            "give no others beside them",
        ),
    ],
)
def test_what_cannot_be_a_task_is_refused(small, encoder, change, error, words):
    trunk, tokenise = encoder
    given = {
        "texts": small[0],
        "labels": small[1],
        "encoder": trunk,
        "tokenise": tokenise,
        **change,
    }
    with pytest.raises(error, match=words):
        make_task(given.pop("texts"), given.pop("labels"), **given)


def test_a_task_without_a_classifier_predicts_no_classes(small, encoder):
    trunk, tokenise = encoder
    objective = Joint([Term("soft_triple", 1.0, SoftTriple(trunk.dim, 3), "pooled")])
    task = make_task(*small, encoder=trunk, tokenise=tokenise, objective=objective)
    with pytest.raises(ConfigError, match="trains no classifier; use the vectors of encode_texts"):
        predict_logits(trunk, tokenise, task, small[0])
    assert encode_texts(trunk, tokenise, small[0]).shape == (36, trunk.dim)
