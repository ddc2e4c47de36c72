"""Every named objective through a whole fit: learns, resumes to the same bits, saves and loads."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.model import Model
from closeknit.classification.run import parts_of, train_in_folder
from closeknit.data import Examples, from_python
from closeknit.data.catalogue import load
from closeknit.embeddings.config import EmbeddingConfig
from closeknit.encoders.config import EncoderConfig
from closeknit.errors import ConfigError
from closeknit.models.memory import Lane, Stock
from closeknit.models.run import RunFolder
from closeknit.multitask.config import MultiTaskConfig
from closeknit.objectives import OBJECTIVES
from conftest import losses_of as run
from conftest import rebuilt_objective

OPTIONS = {
    "joint": {
        "terms": [
            {"objective": "CrossEntropy", "weight": 0.7},
            {"objective": "SupCon", "weight": 0.3},
        ]
    },
    "clld": {"update_every": 1, "update_start": 0.1},
}
CASES = [
    *((name, OPTIONS.get(name, {})) for name in sorted(OBJECTIVES)),
    ("supcon", {"ce_weight": 0.0}),
    ("supcon", {"ce_weight": 0.0, "classifier": "knn"}),
    ("soft_triple", {"ce_weight": 0.0}),
    ("clld", {"ce_weight": 0.0, "adaptive": False}),
    ("lcl", {"weighting": "head"}),
    ("triple_entropy", {"ce_weight": 0.5, "ce_weight_end": 1.0, "weight_schedule": "cosine"}),
    ("cross_entropy", {"class_weights": "balanced"}),
]
IDS = [
    "-".join([name, *map(str, options.values())]) if name != "joint" else name
    for name, options in CASES
]


def config(tiny, objective, options, kind="bert", **train) -> RunConfig:
    return RunConfig.from_dict(
        {
            "encoder": {"name": "textcnn" if kind == "textcnn" else tiny(kind), "max_length": 16},
            "objective": {"name": objective, **options},
            "train": {"epochs": 20, "batch_size": 12, "lr": 1e-3, "validation": 0.25, "patience": 0,
                      "checkpoint_seconds": 0.0, **train},
        }
    )  # fmt: skip


def rows_of(tokens) -> list[np.ndarray]:
    return np.split(tokens.ids, tokens.offsets[1:-1])


def same_state(first: nn.Module, second: nn.Module) -> bool:
    theirs = second.state_dict()
    return all(torch.equal(value, theirs[name].cpu()) for name, value in first.state_dict().items())


@pytest.mark.parametrize(("objective", "options"), CASES, ids=IDS)
def test_every_objective_learns_saves_and_loads(tiny, small, tmp_path, objective, options):
    examples = from_python(*small)
    fit = ClassifierFit(examples, config(tiny, objective, options, epochs=30, validation=0.0))
    run(fit)
    assert fit.model.evaluate(examples)["accuracy"] > 0.6  # three classes: chance is 0.33
    fit.model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert np.array_equal(again.outputs(examples)[0], fit.model.outputs(examples)[0])
    assert "weighting" not in again.heads
    assert same_state(rebuilt_objective(again), fit.objective)


@pytest.mark.parametrize(("objective", "options"), CASES, ids=IDS)
def test_every_objective_resumes_to_the_same_bits(tiny, small, tmp_path, objective, options):
    settings = config(tiny, objective, options, epochs=4)
    whole, first = (
        ClassifierFit(from_python(*small), settings),
        ClassifierFit(from_python(*small), settings, folder=tmp_path),
    )
    losses = run(whole)
    head = run(first, until=5)
    second = ClassifierFit(from_python(*small), settings, folder=tmp_path, resume=True)
    assert head + run(second) == losses
    a, b = whole.training.learners.state_dict(), second.training.learners.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_class_names_are_learnt_as_texts_of_their_class(tiny, small):
    texts, labels = small
    options = config(tiny, "cross_entropy", {}, validation=0.0, class_names=2)
    fit = ClassifierFit(from_python(texts, labels), options, labels=[*sorted(set(labels)), "zebra"])
    classes = sorted(set(labels))
    assert fit.rows == len(texts)
    assert len(fit.y) == len(texts) + 2 * len(classes)  # none for a class without rows
    assert fit.y[-6:].tolist() == [0, 1, 2, 0, 1, 2] and fit.per_epoch == -(-len(fit.y) // 12)
    said = fit.model.tokens(Examples([name.lower() for name in classes]))
    assert [row.tolist() for row in rows_of(fit.tokens)[-3:]] == [
        row.tolist() for row in rows_of(said)
    ]


def test_class_names_are_not_learnt_where_they_say_nothing_or_do_not_fit(tiny, small):
    texts, labels = small
    numbers = {label: str(i) for i, label in enumerate(sorted(set(labels)))}
    options = config(tiny, "auto", {}, validation=0.0)
    assert options.train.class_names == 3
    assert len(
        ClassifierFit(from_python(texts, [numbers[label] for label in labels]), options).y
    ) == len(texts)
    assert len(
        ClassifierFit(from_python(list(zip(texts, texts, strict=True)), labels), options).y
    ) == len(texts)


def test_texts_that_are_cut_are_counted_and_said(tiny, small, capsys):
    """Names of classes, which are short, are no training texts."""
    examples = from_python(*small)
    cut = sum(len(text.split()) > 3 for text in examples.texts)
    settings = config(tiny, "cross_entropy", {}, validation=0.0, class_names=2, epochs=1)
    short = dataclasses.replace(settings.encoder, max_length=5)
    fit = ClassifierFit(examples, dataclasses.replace(settings, encoder=short))
    assert fit.model.metrics["truncated"] == round(cut / 36, 4)
    said = capsys.readouterr().err
    assert f"{100 * cut / 36:.0f} % of the training texts are longer than 5 tokens" in said
    assert "encoder.max_length" in said
    ClassifierFit(examples, settings)
    assert "longer than" not in capsys.readouterr().err


def test_validation_rows_have_other_texts_than_the_training_rows(tiny, small):
    """Every text of `small` stands in the data twice."""
    fit = ClassifierFit(from_python(*small), config(tiny, "cross_entropy", {}))
    learnt = {tuple(row) for row in rows_of(fit.tokens)}
    assert fit.validation is not None
    chosen_by = {tuple(row) for row in rows_of(fit.validation[0])}
    assert not learnt & chosen_by


def test_a_run_that_was_begun_before_is_resumed_with_the_rows_it_had(
    tiny, small_csv, tmp_path, monkeypatch
):
    """Its rows were held out one by one, and what it keeps of its data does not say otherwise."""
    settings = config(tiny, "cross_entropy", {}, epochs=1)
    before, now = (
        parts_of(
            load(str(small_csv), settings.data), settings, announce=False, split_rows=split_rows
        )
        for split_rows in (True, False)
    )
    assert before.test.texts != now.test.texts
    for name, split_rows in (("before", True), ("now", False)):
        with monkeypatch.context() as patch:
            if split_rows:
                patch.setattr(RunFolder, "kept_data", lambda folder: {})
            made = train_in_folder(str(small_csv), settings, tmp_path / name, resume=True)
        assert ("split" in made["data"]) != split_rows
        again = train_in_folder(str(small_csv), settings, tmp_path / name, resume=True)
        assert again["data"] == made["data"]  # known, and not refused


def test_a_validation_part_of_training_rows_is_said(tiny, small, capsys):
    settings = config(tiny, "cross_entropy", {}, validation=0.0)
    given = from_python(["my card was stolen", "the parcel is late"], ["lost", "late"])
    ClassifierFit(from_python(*small), settings, validation=given)
    assert "1 of the 2 validation rows are among the training rows" in capsys.readouterr().err


def test_the_validation_part_has_no_class_names(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, "cross_entropy", {}, class_names=1))
    assert fit.validation is not None
    assert len(fit.y) + len(fit.validation[1]) == len(small[0]) + len(set(small[1]))


def test_a_lane_learns_what_a_run_alone_does(tiny, small):
    """With rows of the stock in another order, a held-out part and the names of classes."""
    examples = from_python(*small)
    rows = np.arange(len(examples))[::-2].copy()
    options = config(tiny, "auto", {}, epochs=2)
    alone, lane = ClassifierFit(examples.select(rows), options), Lane(Stock(examples))
    expected = run(alone)
    for _ in range(2):  # the second in the memory of the first
        lane.rows = rows
        assert (
            run(ClassifierFit(examples.select(rows), options, stock=lane.stock, lane=lane))
            == expected
        )


def test_texts_stay_where_captured_updates_read_them(tiny, small):
    """Also when a run that cuts texts elsewhere came in between."""
    examples, options = from_python(*small), config(tiny, "cross_entropy", {}, epochs=1)
    other = dataclasses.replace(options, encoder=dataclasses.replace(options.encoder, max_length=8))
    lane, shelves = Lane(Stock(examples)), []
    for own in (options, other, options):
        lane.rows = np.arange(len(examples))
        fit = ClassifierFit(examples, own, stock=lane.stock, lane=lane)
        shelves.append(fit.training.tasks[0].batch.shelf)
    assert shelves[0] is shelves[2] is not shelves[1]


def test_clld_encodes_every_text_twice_and_learns_its_distances(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, "clld", OPTIONS["clld"], epochs=3))
    batch = fit.training.tasks[0].batch(0, 0, 1)
    assert len(batch.labels) == 2 * len(batch.rows)
    half = len(batch.labels) // 2
    assert torch.equal(batch.inputs["input_ids"][:half], batch.inputs["input_ids"][half:])
    start = fit.objective.objectives["label_distance"].distance.clone()
    run(fit, until=fit.steps)
    assert not torch.equal(fit.objective.objectives["label_distance"].distance, start)


def test_clld_learns_its_distances_by_default_and_keeps_their_history(tiny, small, tmp_path):
    tables = {"encoder": {"name": str(tiny("bert"))}, "objective": {"name": "clld"}}
    assert RunConfig.from_dict(tables).train.validation == 0.1
    fit = ClassifierFit(from_python(*small), config(tiny, "clld", {}, epochs=6))
    for _ in fit:
        pass
    learned = [one["label_distance"] for one in fit.session.history if "label_distance" in one]
    assert len(learned) >= 3
    assert "label_distance" not in fit.model.metrics["validation"]
    fit.model.save(tmp_path / "model")
    assert "label_distance" in (tmp_path / "model" / "metrics.json").read_text("utf-8")


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_the_classifiers_dropout_is_not_the_encoders(tiny, small, rate):
    settings = config(tiny, "cross_entropy", {})
    encoder = dataclasses.replace(settings.encoder, classifier_dropout=rate)
    fit = ClassifierFit(from_python(*small), dataclasses.replace(settings, encoder=encoder))
    assert fit.model.heads["logits"].dropout.p == rate
    rates = {m.p for m in fit.model.encoder.trunk.modules() if isinstance(m, nn.Dropout)}
    assert rates == {0.1}


def test_the_classifiers_dropout_is_refused_where_there_is_no_single_classifier():
    tables = {"encoder": {"classifier_dropout": 0.5}}
    with pytest.raises(ConfigError, match="classifier_dropout is for classifiers"):
        EmbeddingConfig.from_dict(tables)
    task = {"tasks": {"topic": {"data": "messages", "kind": "classify"}}}
    with pytest.raises(ConfigError, match=r"have shared\.dropout"):
        MultiTaskConfig.from_dict({**tables, **task})


def test_clld_saves_a_picture_of_its_distances(tiny, small, tmp_path):
    fit = ClassifierFit(from_python(*small), config(tiny, "clld", OPTIONS["clld"], epochs=1))
    run(fit)
    fit.model.save(tmp_path / "model")
    assert (tmp_path / "model" / "label-distance.png").stat().st_size > 5_000
    assert torch.equal(Model.load(tmp_path / "model").objective["objectives.label_distance.distance"],
                       fit.model.objective["objectives.label_distance.distance"])  # fmt: skip


@pytest.mark.parametrize("objective", ["auto", "clld"])
@pytest.mark.parametrize("kind", ["albert", "modernbert"])
def test_two_views_of_an_encoder_without_dropout_differ(tiny, small, capsys, objective, kind):
    """ALBERT and ModernBERT have no dropout by default: both views would be equal."""
    settings = config(tiny, objective, {}, kind, validation=0.0, epochs=1)
    plain = dataclasses.replace(settings.encoder, name=without_dropout_rates(tiny(kind)))
    settings = dataclasses.replace(settings, encoder=plain)
    fit = ClassifierFit(from_python(*small), settings)
    said = capsys.readouterr().err
    assert said.count("encoder.dropout is set to 0.1") == 1 and "has no dropout" in said
    assert fit.model.config.encoder.dropout == fit.config.encoder.dropout == 0.1
    batch = fit.training.tasks[0].batch(0, 0, 1)
    fit.model.encoder.train()
    first, second = fit.model.encoder(batch.inputs).pooled.chunk(2)
    assert not torch.equal(first, second)
    if objective == "auto":
        assert next(iter(fit)).terms["consistency"] > 0


def without_dropout_rates(folder: str) -> str:
    """The same encoder with every rate of its configuration at 0, in a folder beside it."""
    plain = Path(f"{folder}-plain")
    if not plain.exists():
        shutil.copytree(folder, plain)
        facts = json.loads((plain / "config.json").read_text())
        facts |= {
            name: 0.0
            for name, value in AutoConfig.from_pretrained(plain).to_dict().items()
            if "dropout" in name and isinstance(value, float)
        }
        (plain / "config.json").write_text(json.dumps(facts))
    return str(plain)


def test_dropout_is_neither_set_nor_named_where_the_encoder_has_some(tiny, small, capsys):
    fit = ClassifierFit(from_python(*small), config(tiny, "auto", {}, validation=0.0, epochs=1))
    assert fit.model.config.encoder.dropout is None
    plain = config(tiny, "supcon", {}, validation=0.0, epochs=1)
    plain = dataclasses.replace(plain, encoder=dataclasses.replace(plain.encoder, dropout=0.0))
    assert ClassifierFit(from_python(*small), plain).model.config.encoder.dropout == 0.0
    assert "dropout" not in capsys.readouterr().err


def test_dropout_of_0_is_refused_where_two_views_rest_on_it(tiny, small):
    settings = config(tiny, "clld", {}, validation=0.0)
    zero = dataclasses.replace(settings, encoder=dataclasses.replace(settings.encoder, dropout=0.0))
    with pytest.raises(ConfigError, match=r"encoder\.dropout is 0, but clld compares two views"):
        ClassifierFit(from_python(*small), zero)


def test_a_stock_keeps_the_encoder_with_and_without_the_rate(tiny, small, monkeypatch):
    """Each run takes both, and neither is loaded twice."""
    examples = from_python(*small)
    settings = config(tiny, "auto", {}, validation=0.0, epochs=1)
    plain = dataclasses.replace(settings.encoder, name=without_dropout_rates(tiny("bert")))
    settings = dataclasses.replace(settings, encoder=plain)
    stock, loaded = Stock(examples), []
    load = EncoderConfig.load
    monkeypatch.setattr(
        EncoderConfig, "load", lambda own, *a, **o: loaded.append(own.dropout) or load(own, *a, **o)
    )
    for _ in range(3):
        fit = ClassifierFit(examples, settings, stock=stock)
        assert fit.config.encoder.dropout == 0.1
    assert loaded == [None, 0.1]


def test_clld_works_with_textcnn(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, "clld", OPTIONS["clld"], "textcnn"))
    run(fit)
    assert fit.model.evaluate(from_python(*small))["accuracy"] > 0.6


def test_clld_says_when_its_distances_will_not_be_learnt(tiny, small, capsys):
    ClassifierFit(from_python(*small), config(tiny, "clld", {}, validation=0.0))
    assert "needs a validation part" in capsys.readouterr().err
    ClassifierFit(from_python(*small), config(tiny, "clld", {}, epochs=1))
    assert "will not be updated: 1 evaluations" in capsys.readouterr().err
    ClassifierFit(from_python(*small), config(tiny, "clld", {}, epochs=5, evaluate_every=1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("objective", "evaluate_every", "patience"),
    [("clld", 0, 10), ("clld", 1, 30), ("clld", 6, 10), ("supcon", 1, 0)],
)
def test_clld_waits_ten_epochs_by_itself(tiny, small, objective, evaluate_every, patience):
    settings = config(tiny, objective, {}, patience=None, evaluate_every=evaluate_every)
    fit = ClassifierFit(from_python(*small), settings)
    assert fit.per_epoch == 3
    assert fit.session.patience == patience


def test_evaluations_can_come_more_often_than_epochs(tiny, small):
    fit = ClassifierFit(
        from_python(*small), config(tiny, "cross_entropy", {}, epochs=4, evaluate_every=2)
    )
    run(fit)
    assert len(fit.session.history) == fit.steps // 2
    fit = ClassifierFit(
        from_python(*small), config(tiny, "cross_entropy", {}, epochs=4, evaluate_every=5)
    )
    losses = run(fit)
    assert fit.steps % 5 and [record["epoch"] for record in fit.session.history] == [
        5 / 3,
        10 / 3,
        4.0,
    ]
    assert fit.session.history[-1]["loss"] == pytest.approx(np.mean(losses[10:]))
    assert all("weighted_f1" in record for record in fit.session.history)
    with pytest.raises(ConfigError, match="need a validation part"):
        ClassifierFit(
            from_python(*small), config(tiny, "cross_entropy", {}, validation=0.0, evaluate_every=2)
        )


def test_both_encoders_of_lcl_learn_at_the_encoders_rate(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, "lcl", {}, lr=1e-4, head_lr=1e-2))
    names = {id(p): name for name, p in fit.training.learners.named_parameters()}
    slow = {
        names[id(p)]
        for g, r in zip(fit.training.groups, fit.training.rates, strict=True)
        if r == 1e-4
        for p in g["params"]
    }
    assert any(name.startswith("classify_heads.weighting.encoder") for name in slow)
    assert not any("classifier" in name for name in slow)
    before = {key: value.clone() for key, value in fit.training.learners.state_dict().items()}
    run(fit, until=3)
    after = fit.training.learners.state_dict()
    for part in (
        "encoder.trunk",
        "classify_heads.weighting.encoder.trunk",
        "classify_heads.weighting.classifier",
    ):
        assert any(
            key.startswith(part) and not torch.equal(value, before[key])
            for key, value in after.items()
        ), part


def test_rows_that_are_alone_in_their_class_are_counted(tiny, small, capsys):
    texts, labels = small
    ClassifierFit(
        from_python([*texts, "one of its kind"], [*labels, "rare"]),
        config(tiny, "supcon", {}, validation=0.0),
    )
    assert "leaves out: 1 of 37" in capsys.readouterr().err


def test_a_run_file_describes_a_joint_objective(tmp_path, tiny, small):
    from closeknit.classification.config import read_config

    path = tmp_path / "run.toml"
    path.write_text(
        f"""
[encoder]
name = "{tiny()}"
max_length = 16
[train]
epochs = 2
[objective]
name = "joint"
[[objective.terms]]
objective = "CrossEntropy"
weight = 0.8
[[objective.terms]]
objective = "SoftTriple"
view = "content_tokens"
weight = 0.2
centers = 3
"""
    )
    settings = read_config(path)
    fit = ClassifierFit(from_python(*small), settings)
    run(fit)
    fit.model.save(tmp_path / "model")
    assert read_config(tmp_path / "model" / "run.toml").to_dict() == settings.to_dict()
