"""Error analysis against answers worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from closeknit import analysis
from closeknit.analysis import Predictions, Trial


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
    found = analysis.read_predictions(path)
    assert found is not None
    assert found.rows.tolist() == [7, 9]
    assert found.texts == {1: "nine"}
    assert found.distance is not None and found.distance.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", json.dumps({"labels": ["a"]}), json.dumps(stored(predicted=[0])), json.dumps(stored(predicted=[0, 5]))],
)  # fmt: skip
def test_damaged_predictions_are_none(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    assert analysis.read_predictions(path) is None
    assert analysis.read_predictions(tmp_path / "missing.json") is None


def test_confusion_matches_classes_of_runs_by_name():
    one, two = run([0, 1], [1, 1], "ab"), run([0, 1], [0, 0], "ba")
    counts = analysis.total_confusion([one, two], ["a", "b"])
    # run one: a -> b, b -> b; run two: b -> b, a -> b
    assert counts.tolist() == [[0, 2], [0, 2]]


def test_rates_and_f1_by_hand():
    counts = np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]])
    assert analysis.rates(counts).tolist() == [[0.75, 0.25, 0], [0.5, 0.5, 0], [0, 0, 0]]
    # class 0: 2*3 / (4 + 4), class 1: 2*1 / (2 + 2), class 2 never occurs
    assert analysis.class_f1(counts).tolist() == [0.75, 0.5, 0.0]


def test_most_confused_keeps_the_order_of_classes():
    counts = np.diag([9, 9, 9, 9])
    counts[3, 1] = 5
    counts[0, 3] = 1
    assert analysis.most_confused(counts, 2) == [1, 3]
    assert analysis.most_confused(counts, 9) == [0, 1, 2, 3]


def test_hard_sets_grow_from_the_most_confused_pair_and_do_not_overlap():
    counts = np.diag([100] * 8)
    counts[0, 1] = 60  # the most confused pair
    counts[1, 4] = 30  # draws 4 into the first set
    counts[4, 5] = 20  # and 4 draws 5
    counts[5, 6] = 10  # but the set is full
    counts[2, 3] = 15  # the second set, which nothing else joins
    assert analysis.hard_sets(counts) == [[0, 1, 4, 5], [2, 3]]


def test_confusion_counts_in_both_directions():
    counts = np.diag([100] * 6)
    counts[0, 1] = 30
    counts[2, 3] = counts[3, 2] = 25
    assert analysis.hard_sets(counts, size=2)[0] == [2, 3]


def test_no_hard_sets_of_few_classes_or_of_no_mistakes():
    assert analysis.hard_sets(np.full((4, 4), 5)) == []
    assert analysis.hard_sets(np.diag([5] * 9)) == []
    assert len(analysis.hard_sets(np.full((40, 40), 5))) == 4


def test_scores_within_look_only_at_rows_of_the_classes():
    perfect_elsewhere = run([0, 0, 1, 1, 5, 5], [0, 1, 1, 1, 5, 5])
    f1, accuracy = analysis.scores_within([perfect_elsewhere], ["a", "b"])
    assert accuracy == pytest.approx(0.75)
    # a: precision 1, recall 1/2, F1 2/3; b: precision 2/3, recall 1, F1 4/5; two rows each
    assert f1 == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert analysis.scores_within([perfect_elsewhere], ["c"]) is None
    assert analysis.scores_within([], ["a"]) is None


def test_a_mistake_of_several_runs_counts_once_with_its_highest_confidence():
    def with_text(sure):
        return run([0, 0], [1, 0], confidence=np.array([sure, 0.99]), texts={0: "zero", 1: "one"})

    other = run([0, 0], [2, 3], confidence=np.array([0.8, 0.7]), texts={0: "zero"})
    found = analysis.confident_mistakes([with_text(0.6), with_text(0.9), other], 5)
    assert [(m.predicted, m.confidence, m.runs) for m in found] == [("b", 0.9, 2), ("c", 0.8, 1)]
    assert len(analysis.confident_mistakes([with_text(0.6), other], 1)) == 1


def test_entropy_is_split_by_outcome_and_missing_numbers_are_left_out():
    one = run([0, 0, 0], [0, 1, 1], entropy=np.array([0.1, 0.7, math.nan]))
    right, wrong = analysis.entropy_by_outcome([one])
    assert (right.tolist(), wrong.tolist()) == ([0.1], [0.7])
    assert [len(part) for part in analysis.entropy_by_outcome([])] == [0, 0]


def test_shares_in_bins_add_up_to_one():
    shares = analysis.shares_in_bins(np.array([-1.0, 0.1, 0.6, 2.0]), np.array([0.0, 0.5, 1.0]))
    assert shares == [0.5, 0.5]
    assert analysis.shares_in_bins(np.zeros(0), np.array([0.0, 1.0])) == [0.0]


def test_a_flat_map_keeps_groups_together_and_is_the_same_each_time():
    generator = np.random.default_rng(0)
    far = np.repeat(np.eye(2, 8) * 9, 10, axis=0) + generator.normal(size=(20, 8))
    flat = analysis.flat_map(far.astype(np.float16))
    assert flat.shape == (20, 2) and np.isfinite(flat).all()
    inside = max(np.linalg.norm(part - part.mean(0), axis=1).max() for part in (flat[:10], flat[10:]))
    assert np.linalg.norm(flat[:10].mean(0) - flat[10:].mean(0)) > inside
    assert np.array_equal(flat, analysis.flat_map(far.astype(np.float16)))


@pytest.mark.parametrize("rows", [np.zeros((1, 3)), np.zeros((30, 3)), np.ones((30, 1)), np.eye(3)])
def test_a_flat_map_of_next_to_nothing_is_still_a_map(rows):
    flat = analysis.flat_map(rows)
    assert flat.shape == (len(rows), 2) and np.isfinite(flat).all()


def test_histories_average_runs_of_the_same_length_only():
    def trained(*losses):
        return run([], [], history=[{"epoch": i + 1, "loss": loss} for i, loss in enumerate(losses)])

    found = analysis.histories(
        [trained(2.0, 1.0), trained(4.0, 1.0), trained(9.0), trained(math.nan)], "loss"
    )
    assert found == [
        analysis.History([1.0], [9.0], [9.0], [9.0], 1),
        analysis.History([1.0, 2.0], [3.0, 1.0], [2.0, 1.0], [4.0, 1.0], 2),
    ]
    assert analysis.histories([trained(1.0), run([], [])], "weighted_f1") == []


def line(number, split, score):
    return {"trial": number, "split": split, "seed": 2, "fold": 0, "score": score, "options": {"lr": number}}


def search(*trials):
    return [Trial(options, score, score, True) for options, score in trials]


def test_a_trial_is_the_mean_of_its_splits_and_judged_fairly_on_the_common_ones():
    lines = [line(1, 0, 0.9), line(0, 0, 0.5), line(0, 1, 0.7), line(0, 1, 0.8), line(2, 0, None)]
    given_up, whole = {"lr": 1}, {"lr": 0}
    found = analysis.read_trials(lines)  # a split that was scored again counts once
    assert found == [Trial(whole, pytest.approx(0.65), 0.5, True), Trial(given_up, 0.9, 0.9, False)]
    assert analysis.read_trials([]) == []


def test_best_so_far_never_falls_and_counts_whole_trials_only():
    whole = [False, True, False, True, True]
    trials = [Trial({}, s, s, w) for s, w in zip([0.9, 0.2, 0.8, 0.1, 0.6], whole, strict=True)]
    assert analysis.best_so_far(trials).tolist()[1:] == [0.2, 0.2, 0.2, 0.6]
    assert math.isnan(analysis.best_so_far(trials)[0])


def test_importance_finds_the_setting_that_matters():
    generator = np.random.default_rng(3)
    trials = search(
        ({}, 0.0),  # the defaults have no say
        *(
            (
                {"lr": float(10.0**-i), "noise": int(generator.integers(9)), "pool": ["cls", "mean"][i % 2]},
                i / 10,
            )
            for i in range(1, 6)
            for _ in range(6)
        ),
    )
    found = analysis.importance([trials, trials])
    assert found is not None
    assert next(iter(found.shares)) == "lr" and found.shares["lr"] > 0.7
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.explained > 0.8 and found.trials == 60
    assert found == analysis.importance([trials, trials])


def test_importance_says_nothing_of_too_little():
    few = search(({"lr": 1.0}, 0.1), ({"lr": 2.0}, 0.2))
    same = search(*(({"lr": 1.0}, i / 10) for i in range(10)))
    level = search(*(({"lr": float(i)}, 0.5) for i in range(10)))
    assert [analysis.importance([trials]) for trials in (few, same, level, [])] == [None] * 4


def test_noise_is_said_to_explain_nothing():
    generator = np.random.default_rng(0)
    noise = search(*(({"lr": float(generator.random())}, float(generator.random())) for _ in range(30)))
    found = analysis.importance([noise])
    assert found is not None and found.explained < 0.1


def test_chosen_settings_count_the_best_whole_trial_of_each_search():
    def tried(best):
        return [Trial({"lr": 9}, 0.99, 0.99, False), *search(({}, 0.5), ({"lr": best, "centers": 2}, 0.9))]

    chosen = analysis.chosen_settings([tried(1e-4), tried(1e-4), tried(3e-4), [], search(({}, 0.5))])
    assert chosen == {
        "lr": [("0.0001", 2), ("0.0003", 1), ("default", 1)],
        "centers": [("2", 3), ("default", 1)],
    }
