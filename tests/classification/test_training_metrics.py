"""MCC and AUC choose the best epoch of a training, and stand among the scores of a classifier."""

from __future__ import annotations

import csv
import json

import pytest
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import Examples
from closeknit.errors import ConfigError, DataError
from closeknit.models.card import model_card


@pytest.fixture
def two_classes(small) -> Examples:
    """The rows of two of the three classes."""
    rows = [(text, label) for text, label in zip(*small, strict=True) if label != "late"]
    return Examples([text for text, _ in rows], labels=[label for _, label in rows], name="two")


def config(tiny, metric: str) -> RunConfig:
    return RunConfig.from_dict(
        {
            "encoder": {"name": tiny(), "max_length": 16},
            "objective": {"name": "cross_entropy"},
            "train": {"epochs": 6, "batch_size": 6, "lr": 1e-3, "metric": metric, "patience": 0},
        }
    )


@pytest.mark.parametrize("metric", ["mcc", "auc"])
def test_the_state_with_the_best_metric_is_kept(tiny, two_classes, metric):
    fit = ClassifierFit(two_classes, config(tiny, metric), validation=two_classes)
    for _ in fit:
        pass
    history = fit.session.history
    kept = fit.model.metrics["validation"]
    assert kept[metric] == max(record[metric] for record in history)
    scores = fit.model.evaluate(two_classes)
    assert scores[metric] == pytest.approx(kept[metric])
    expected = [label == "refund" for label in two_classes.labels]
    logits = fit.model.outputs(two_classes)[0]
    assert scores["auc"] == pytest.approx(roc_auc_score(expected, logits[:, 1] - logits[:, 0]))
    assert scores["mcc"] == pytest.approx(matthews_corrcoef(expected, logits.argmax(axis=1)))


def test_auc_is_refused_before_training_where_it_is_not_defined(tiny, small, two_classes):
    three = Examples(small[0], labels=small[1], name="three")
    with pytest.raises(ConfigError, match="auc is for two classes, but three has 3"):
        ClassifierFit(three, config(tiny, "auc"), validation=three)
    lost = Examples(["my card", "lost"], labels=["lost", "lost"], name="mine")
    with pytest.raises(DataError, match=r'all 2 rows of mine .* label "lost"; the metric auc'):
        ClassifierFit(two_classes, config(tiny, "auc"), validation=lost)
    ClassifierFit(two_classes, config(tiny, "mcc"), validation=lost)


def test_the_command_line_names_the_metric_and_prints_it(closeknit, tiny, two_classes, tmp_path):
    with (tmp_path / "two.csv").open("w", newline="") as file:
        rows = zip(two_classes.texts, two_classes.labels, strict=True)
        csv.writer(file).writerows([("text", "label"), *rows])
    command = ("train", "two.csv", "--encoder", tiny(), "--epochs", 1, "--out", "model")
    command = (*command, "--set", "encoder.max_length=16", "--objective", "cross_entropy")
    told = closeknit(*command, "--metric", "auc", "--set", "train.validation=0.25").stdout
    assert "mcc " in told and "auc " in told
    assert 'metric = "auc"' in (tmp_path / "model" / "run.toml").read_text()
    assert "| MCC | AUC |" in (tmp_path / "model" / "README.md").read_text()
    scores = json.loads(closeknit("evaluate", "model", "two.csv", "--json").stdout)
    assert {"mcc", "auc"} <= set(scores)
    assert "auc" in closeknit("evaluate", "model", "two.csv").stdout
    done = closeknit(*command, "--overwrite", "--metric", "auk", code=2)
    assert "did you mean auc" in done.stderr


def test_the_card_of_an_older_model_has_no_empty_columns():
    facts = {
        "run": {"objective": {"name": "cross_entropy"}},
        "encoder": {"name": "e"},
        "versions": {"closeknit": "0.1.0"},
        "labels": ["a", "b"],
        "paired": False,
    }
    test = {"accuracy": 0.5, "weighted_f1": 0.5, "macro_f1": 0.5, "n": 2}
    card = model_card(facts, {"test": test})
    assert "| test rows | accuracy | weighted F1 | macro F1 |\n|---|---|---|---|\n| 2 |" in card
