"""Error analysis against answers worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from closeknit.reports import predictions
from closeknit.reports.predictions import LearningCurve
from closeknit.studies.predictions import Predictions, read_predictions


def run(expected, predicted, labels="abcdef", **more):
    n = len(expected)
    options = {
        "labels": list(labels),
        "rows": np.arange(n),
        "expected": np.array(expected),
        "predicted": np.array(predicted),
        "confidence": np.full(n, 0.5),
        "entropy": np.full(n, 0.1),
        "texts": {},
        "history": [],
    }
    return Predictions(**{**options, **more})


def stored(**more):
    return {
        "labels": ["a", "b"], "rows": [7, 9], "expected": [0, 1], "predicted": [0, 0],
        "confidence": [0.9, 0.6], "entropy": [0.1, 0.6], "history": [{"epoch": 1.0, "loss": 0.5}],
        "texts": {"1": "nine"}, **more,
    }  # fmt: skip


def test_predictions_are_read_as_they_were_stored(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(stored(distance=[[0, 1], [1, 0]])))
    found = read_predictions(path)
    assert found is not None
    assert found.rows.tolist() == [7, 9]
    assert found.texts == {1: "nine"}
    # a fair coin has log(2) nats, and one bit
    assert found.entropy == pytest.approx([0.1 / math.log(2), 0.6 / math.log(2)])
    assert found.distance is not None and found.distance.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", json.dumps({"labels": ["a"]}), json.dumps(stored(predicted=[0])), json.dumps(stored(predicted=[0, 5]))],
)  # fmt: skip
def test_damaged_predictions_are_none(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    assert read_predictions(path) is None
    assert read_predictions(tmp_path / "missing.json") is None


def test_confusion_matches_classes_of_runs_by_name():
    one, two = run([0, 1], [1, 1], "ab"), run([0, 1], [0, 0], "ba")
    counts = predictions.total_confusion([one, two], ["a", "b"])
    # run one: a -> b, b -> b; run two: b -> b, a -> b
    assert counts.tolist() == [[0, 2], [0, 2]]


def test_rates_and_f1_by_hand():
    counts = np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]])
    assert predictions.row_shares(counts).tolist() == [[0.75, 0.25, 0], [0.5, 0.5, 0], [0, 0, 0]]
    # class 0: 2*3 / (4 + 4), class 1: 2*1 / (2 + 2), class 2 never occurs
    assert predictions.class_f1(counts).tolist() == [0.75, 0.5, 0.0]


def test_most_confused_keeps_the_order_of_classes():
    counts = np.diag([9, 9, 9, 9])
    counts[3, 1] = 5
    counts[0, 3] = 1
    assert predictions.most_confused(counts, 2) == [1, 3]
    assert predictions.most_confused(counts, 9) == [0, 1, 2, 3]


def test_hard_sets_grow_from_the_most_confused_pair_and_do_not_overlap():
    counts = np.diag([100] * 8)
    counts[0, 1] = 60  # the most confused pair
    counts[1, 4] = 30  # draws 4 into the first set
    counts[4, 5] = 20  # and 4 draws 5
    counts[5, 6] = 10  # but the set is full
    counts[2, 3] = 15  # the second set, which nothing else joins
    assert predictions.hard_sets(counts) == [[0, 1, 4, 5], [2, 3]]


def test_confusion_counts_in_both_directions():
    counts = np.diag([100] * 6)
    counts[0, 1] = 30
    counts[2, 3] = counts[3, 2] = 25
    assert predictions.hard_sets(counts, size=2)[0] == [2, 3]


def test_no_hard_sets_of_few_classes_or_of_no_mistakes():
    assert predictions.hard_sets(np.full((4, 4), 5)) == []
    assert predictions.hard_sets(np.diag([5] * 9)) == []
    assert len(predictions.hard_sets(np.full((40, 40), 5))) == 4


def test_scores_within_look_only_at_rows_of_the_classes():
    perfect_elsewhere = run([0, 0, 1, 1, 5, 5], [0, 1, 1, 1, 5, 5])
    f1, accuracy = predictions.scores_within([perfect_elsewhere], ["a", "b"])
    assert accuracy == pytest.approx(0.75)
    # a: precision 1, recall 1/2, F1 2/3; b: precision 2/3, recall 1, F1 4/5; two rows each
    assert f1 == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert predictions.scores_within([perfect_elsewhere], ["c"]) is None
    assert predictions.scores_within([], ["a"]) is None


def test_a_mistake_of_several_runs_counts_once_with_its_highest_confidence():
    def with_text(sure):
        return run([0, 0], [1, 0], confidence=np.array([sure, 0.99]), texts={0: "zero", 1: "one"})

    other = run([0, 0], [2, 3], confidence=np.array([0.8, 0.7]), texts={0: "zero"})
    found = predictions.confident_mistakes([with_text(0.6), with_text(0.9), other], 5)
    assert [(m.predicted, m.confidence, m.runs) for m in found] == [("b", 0.9, 2), ("c", 0.8, 1)]
    assert len(predictions.confident_mistakes([with_text(0.6), other], 1)) == 1


def test_runs_that_stored_no_text_of_a_mistake_count_too():
    stored = run([0, 0], [1, 0], confidence=np.array([0.6, 0.9]), texts={0: "zero"})
    silent = run([0, 0], [1, 1], confidence=np.array([0.8, 0.9]), texts={})
    found = predictions.confident_mistakes([stored, *[silent] * 39], 5)
    assert [(m.row, m.text, m.confidence, m.runs) for m in found] == [(0, "zero", 0.8, 40)]


def test_entropy_is_split_by_outcome_and_missing_numbers_are_left_out():
    one = run([0, 0, 0], [0, 1, 1], entropy=np.array([0.1, 0.7, math.nan]))
    right, wrong = predictions.entropy_by_outcome([one])
    assert (right.tolist(), wrong.tolist()) == ([0.1], [0.7])
    assert [len(part) for part in predictions.entropy_by_outcome([])] == [0, 0]


def test_shares_in_bins_add_up_to_one():
    shares = predictions.shares_in_bins(np.array([-1.0, 0.1, 0.6, 2.0]), np.array([0.0, 0.5, 1.0]))
    assert shares == [0.5, 0.5]
    assert predictions.shares_in_bins(np.zeros(0), np.array([0.0, 1.0])) == [0.0]


def test_learning_curves_average_runs_of_the_same_length_only():
    def trained(*losses):
        return run(
            [], [], history=[{"epoch": i + 1, "loss": loss} for i, loss in enumerate(losses)]
        )

    found = predictions.learning_curves(
        [trained(2.0, 1.0), trained(4.0, 1.0), trained(9.0), trained(math.nan)], "loss"
    )
    assert found == [
        LearningCurve([1.0], [9.0], [9.0], [9.0], 1),
        LearningCurve([1.0, 2.0], [3.0, 1.0], [2.0, 1.0], [4.0, 1.0], 2),
    ]
    assert predictions.learning_curves([trained(1.0), run([], [])], "weighted_f1") == []
