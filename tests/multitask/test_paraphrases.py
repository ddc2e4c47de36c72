"""Multiple negatives ranking as a task's loss: its batches, its threshold, and the whole run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_multitask import drained, parts, rows, settings, state_of  # noqa: F401

from closeknit import MultiTask
from closeknit.data import Examples
from closeknit.data.splits import Parts
from closeknit.errors import ConfigError, DataError
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.fit import MultiTaskFit
from closeknit.multitask.model import MultiTaskModel
from closeknit.multitask.paraphrases import (
    best_threshold,
    groups_of_positives,
    positive_class,
    ranking_loss,
)


def ranking(config: MultiTaskConfig, **more) -> MultiTaskConfig:
    """The same run, in which the task `same` is learnt by multiple negatives ranking."""
    task = dataclasses.replace(config.tasks["same"], objective="multiple_negatives", **more)
    return dataclasses.replace(config, tasks={**config.tasks, "same": task})


def oracle_ranking(vectors, groups, scale, similarity):
    """-1/K sum_i [ S(x_i, y_i) - log sum_j exp S(x_i, y_j) ], without true duplicates among the
    negatives.
    """
    half = len(vectors) // 2
    first, second = vectors[:half], vectors[half:]

    def score(u, v):
        value = math.fsum(a * b for a, b in zip(u, v, strict=True))
        if similarity == "cosine":
            value /= math.sqrt(math.fsum(a * a for a in u) * math.fsum(b * b for b in v))
        return scale * value

    total = 0.0
    for i in range(half):
        compared = [j for j in range(half) if j == i or groups[j] != groups[i]]
        total += score(first[i], second[i]) - math.log(
            math.fsum(math.exp(score(first[i], second[j])) for j in compared)
        )
    return -total / half


@pytest.mark.parametrize("options", [{}, {"similarity": "dot"}, {"scale": 7.0}])
def test_the_loss_of_a_batch_is_that_of_the_formula(tiny, parts, options):  # noqa: F811
    config = ranking(settings(tiny(), train={"batch_size": 12}), options=options)
    fit = MultiTaskFit(parts, config)
    task = next(task for task in fit.training.tasks if task.name == "same")
    fit.training.learners.double().eval()
    examples = parts["same"].train
    kept = [row for row, label in enumerate(examples.labels) if label == "yes"]
    groups = groups_of_positives(examples.select(kept))
    assert task.per_epoch == math.ceil(len(kept) / 12)
    duplicates = 0
    for number in range(task.per_epoch):
        batch = task.batch(number, 0, 1)
        views = fit.training.gradients.views(task, batch, (1,))
        loss, _ = task.objective(views)
        own = groups[batch.rows].tolist()
        duplicates += len(own) - len(set(own))
        similarity = options.get("similarity", "cosine")
        scale = options.get("scale", 1.0 if similarity == "dot" else 20.0)
        vectors = views["pooled"].z.tolist()
        expected = oracle_ranking(vectors, own, scale, similarity)
        assert loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-10)
        texts = [examples.texts[kept[row]] for row in batch.rows]
        tokenizer = fit.model.tokeniser.tokenizer
        for place, text in enumerate(texts):  # first texts, then second ones, each by itself
            mask = batch.inputs["attention_mask"][place].bool()
            found = batch.inputs["input_ids"][place][mask].tolist()
            assert found == tokenizer(text)["input_ids"]
    assert duplicates > 0  # which the oracle leaves out of the negatives


@given(
    st.lists(st.tuples(st.integers(-20, 20), st.booleans()), min_size=1, max_size=30),
    st.sampled_from(["accuracy", "weighted_f1", "macro_f1", "mcc", "auc"]),
)
def test_no_threshold_is_better_than_the_chosen_one(pairs, measure):
    similarity = np.array([value / 20 for value, _ in pairs], dtype=np.float32)
    truth = np.array([label for _, label in pairs])

    def score(threshold):
        found = (similarity > threshold).astype(int)
        if measure == "mcc":
            means = found.mean(), truth.mean()
            spread = math.sqrt(means[0] * (1 - means[0]) * means[1] * (1 - means[1]))
            return float(np.mean(found * truth) - means[0] * means[1]) / spread if spread else 0.0
        if measure in ("accuracy", "auc"):
            return float(np.mean(found == truth))
        f1 = []
        for label in (0, 1):
            right = sum((found == label) & (truth == label))
            amount = sum(found == label) + sum(truth == label)
            f1.append(2 * right / amount if amount else 0.0)
        shares = [1 - truth.mean(), truth.mean()] if measure == "weighted_f1" else [0.5, 0.5]
        return sum(share * one for share, one in zip(shares, f1, strict=True))

    best = max(score(threshold) for threshold in np.arange(-2.025, 2.05, 0.05))
    assert score(best_threshold(similarity, truth, measure)) == pytest.approx(best, abs=1e-9)


def test_the_middle_one_of_equally_good_thresholds_is_taken():
    similarity = np.array([0.1, 0.2, 0.8, 0.9], dtype=np.float32)
    truth = np.array([False, False, True, True])
    assert best_threshold(similarity, truth) == pytest.approx(0.5)
    assert best_threshold(similarity, np.ones(4, dtype=bool)) < 0.1
    assert best_threshold(similarity, np.zeros(4, dtype=bool)) > 0.9


def test_a_model_that_ranks_predicts_with_its_threshold_and_keeps_it(tiny, parts, tmp_path):  # noqa: F811
    config = ranking(settings(tiny(), train={"epochs": 3}))
    fit = drained(MultiTaskFit(parts, config))
    head = fit.model.heads["same"]
    assert fit.training.taken["same"] > 0 and head.threshold != 0
    best = max(fit.session.history, key=lambda record: record["average"])
    scores = fit.model.score("same", parts["same"].validation)
    assert scores["accuracy"] == pytest.approx(best["same"])
    fit.model.analyse(parts)
    assert fit.model.metrics["train"]["same"]["n"] == len(parts["same"].train)
    fit.model.save(tmp_path / "model")
    again = MultiTaskModel.load(tmp_path / "model")
    assert again.heads["same"].threshold == head.threshold
    assert np.allclose(
        again.predict("same", parts["same"].train),
        fit.model.predict("same", parts["same"].train),
        atol=1e-5,
    )
    pairs = [
        (first, second)
        for first, second in zip(parts["same"].train.texts, parts["same"].train.pairs, strict=True)
    ]
    model = MultiTask.load(tmp_path / "model")
    assert set(model.predict("same", pairs)) <= {"no", "yes"}


def test_without_a_validation_part_training_rows_choose_the_threshold(tiny, parts):  # noqa: F811
    bare = {name: Parts(own.train) for name, own in parts.items()}
    fit = drained(MultiTaskFit(bare, ranking(settings(tiny(), train={"epochs": 1}))))
    model, rows = fit.model, parts["same"].train  # noqa: F811
    before = model.heads["same"].threshold.clone()
    chosen = model.score("same", rows)["accuracy"]
    assert model.score("same", rows, choose_threshold=True)["accuracy"] == chosen
    assert model.heads["same"].threshold == before


@pytest.mark.parametrize("stop", [4, 11])
def test_an_interrupted_run_that_ranks_ends_with_the_same_weights(tiny, parts, tmp_path, stop):  # noqa: F811
    config = ranking(settings(tiny()))
    whole = drained(MultiTaskFit(parts, config))
    first = MultiTaskFit(parts, config, folder=tmp_path)
    for step in first:
        if step.number == stop:
            first.save_state()
            break
    second = drained(MultiTaskFit(parts, config, folder=tmp_path, resume=True))
    assert second.session.history == whole.session.history
    for key, value in state_of(whole).items():
        assert torch.equal(value, state_of(second)[key]), key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "classify"}, "which is for pair_classify, not for classify"),
        ({"head": "paired"}, "head is paired, but multiple_negatives has no head"),
        ({"options": {"similarity": "cosin"}}, "options.similarity is cosin"),
        ({"options": {"scale": 0.0}}, "options.scale is 0.0; it must be a number above 0"),
        ({"options": {"margin": 1.0}}, "has no option options.margin"),
        ({"objective": "cross_entropy", "positive": "yes"}, "positive is yes, but it is for"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, words):
    given = {"kind": "pair_classify", "objective": "multiple_negatives", **changes}
    with pytest.raises(ConfigError, match=words):
        TaskConfig(**given)


def test_the_positive_label_is_found_or_named():
    assert positive_class(["no", "yes"], "") == 1
    assert positive_class(["duplicate", "not_duplicate"], "") == 0
    assert positive_class(["a", "b"], "b") == 1
    with pytest.raises(DataError, match=r"the labels are a and b; name the one .*positive=LABEL"):
        positive_class(["a", "b"], "")
    with pytest.raises(DataError, match="positive is c, which no row has"):
        positive_class(["a", "b"], "c")
    with pytest.raises(DataError, match="needs two classes"):
        positive_class(["a", "b", "c"], "a")
    assert ranking_loss({"similarity": "dot"}).scale == 1.0


def test_data_without_negatives_and_batches_of_one_pair_are_refused(tiny, parts):  # noqa: F811
    pairs = Examples(["a", "a", "b", "c"], ["b", "c", "c", "d"], ["yes", "yes", "yes", "no"], "d")
    with pytest.raises(DataError, match="task same: d has 3 training pairs that belong together"):
        MultiTaskFit({**parts, "same": Parts(pairs, pairs)}, ranking(settings(tiny())))
    with pytest.raises(ConfigError, match="has 1 pairs of same that belong together"):
        MultiTaskFit(parts, ranking(settings(tiny(), train={"accumulate": 8})))
