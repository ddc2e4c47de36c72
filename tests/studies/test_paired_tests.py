"""The paired test over seeds and test rows, against an oracle in plain Python."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from closeknit.studies.predictions import Predictions
from closeknit.studies.statistics import PairedRun, row_values, seeds_and_rows_test, summarise
from closeknit.studies.statistics.in_words import gain_in_words, how_tested
from closeknit.studies.tables import accuracy_table, confidence_table, markdown_report, near_table


def weighted_f1_by_hand(expected, predicted):
    total = Fraction(0)
    for c in set(expected):
        right = sum(e == p == c for e, p in zip(expected, predicted, strict=True))
        support = expected.count(c)
        total += Fraction(2 * right, support + predicted.count(c)) * support
    return total / len(expected)


labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=25)


@given(labels)
def test_row_values_are_those_of_the_jackknife(pairs):
    expected = [e for e, _ in pairs]
    predicted = [p for _, p in pairs]
    n = len(pairs)
    whole = weighted_f1_by_hand(expected, predicted)
    found = row_values(np.array(expected), np.array(predicted))
    for i in range(n):
        without = weighted_f1_by_hand(
            expected[:i] + expected[i + 1 :], predicted[:i] + predicted[i + 1 :]
        )
        assert found[i] == pytest.approx(float(n * whole - (n - 1) * without), abs=1e-9)


def test_weighted_f1_is_the_one_of_the_results():
    generator = np.random.default_rng(0)
    expected, predicted = generator.integers(0, 5, (2, 80))
    f1 = f1_score(expected, predicted, average="weighted", zero_division=0)
    assert float(weighted_f1_by_hand(expected.tolist(), predicted.tolist())) == pytest.approx(f1)


def test_row_values_of_accuracy_are_right_and_wrong():
    expected = np.array([0, 1, 1, 2])
    predicted = np.array([0, 1, 2, 2])
    found = row_values(expected, predicted, lambda counts: np.trace(counts) / counts.sum())
    assert found == pytest.approx([1.0, 1.0, 0.0, 1.0])


def variance_by_hand(runs):
    """The mean difference and the two parts of its variance, with loops."""
    seeds = len(runs)
    share: dict[int, float] = {}
    for rows, values, _ in runs:
        mean = sum(values) / len(values)
        for row, value in zip(rows, values, strict=True):
            share[row] = share.get(row, 0.0) + (value - mean) / (seeds * len(values))
    n = len(share)
    of_rows = n / (n - 1) * sum(part * part for part in share.values())
    differences = [difference for *_, difference in runs]
    mean = sum(differences) / seeds
    of_seeds = sum((d - mean) ** 2 for d in differences) / (seeds - 1) / seeds
    return mean, of_rows, of_seeds, n


@pytest.mark.parametrize("same_rows", [True, False])
def test_the_test_over_seeds_and_rows_follows_its_formula(same_rows):
    from scipy import stats

    generator = np.random.default_rng(1)
    runs = []
    for seed in range(4):
        rows = np.arange(30) if same_rows else np.sort(generator.permutation(40)[: 25 + seed])
        values = generator.normal(0.1, 1.0, len(rows))
        runs.append((rows.tolist(), values.tolist(), float(values.mean())))
    found = seeds_and_rows_test(
        [PairedRun(np.array(rows), np.array(values), d) for rows, values, d in runs]
    )
    mean, of_rows, of_seeds, n = variance_by_hand(runs)
    assert found.mean == pytest.approx(mean, rel=1e-12)

    def half_width(level):
        quantiles = (stats.t.ppf(level, n - 1), stats.t.ppf(level, len(runs) - 1))
        mixed = of_rows * quantiles[0] + of_seeds * quantiles[1]
        return mixed / math.sqrt(of_rows + of_seeds)

    assert found.high - found.mean == pytest.approx(half_width(0.975), rel=1e-10)
    # the interval at the level of the p-value ends at 0
    assert half_width(1 - found.p_value / 2) == pytest.approx(abs(mean), rel=1e-6)


def test_seeds_that_agree_leave_the_test_over_rows():
    """With the same answers under every seed, it is the paired t-test over the test rows."""
    from scipy import stats

    values = np.random.default_rng(2).normal(0.2, 1.0, 50)
    found = seeds_and_rows_test([PairedRun(np.arange(50), values, values.mean())] * 3)
    assert found.p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-9)


def test_rows_that_agree_leave_the_test_over_seeds():
    from scipy import stats

    differences = [0.1, 0.2, 0.4]
    runs = [PairedRun(np.arange(9), np.full(9, d), d) for d in differences]
    assert seeds_and_rows_test(runs).p_value == pytest.approx(
        stats.ttest_1samp(differences, 0).pvalue, rel=1e-9
    )


def test_one_seed_is_not_tested_and_no_difference_is_none():
    run = PairedRun(np.arange(3), np.array([0.0, 1.0, 0.0]), 1 / 3)
    assert seeds_and_rows_test([run]).p_value == 1.0
    assert math.isinf(seeds_and_rows_test([run]).high)
    nothing = PairedRun(np.arange(3), np.zeros(3), 0.0)
    assert seeds_and_rows_test([nothing, nothing]).p_value == 1.0


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize(
    ("of_row", "of_seed", "noise"), [(0.3, 0.0, 0.3), (0.1, 0.02, 0.1), (0.0, 0.03, 0.05)]
)
def test_equal_objectives_are_rarely_called_different(of_row, of_seed, noise, seeds):
    """Where nothing but chance differs, at most about 5 % of the tests may say otherwise.

    A test over seeds alone fails this where rows dominate, and one over rows alone where seeds do.
    """
    generator = np.random.default_rng(3)
    rows = np.arange(200)
    false = 0
    for _ in range(300):
        easier = generator.normal(0, of_row, 200)
        runs = []
        for _ in range(seeds):
            values = easier + generator.normal(0, of_seed) + generator.normal(0, noise, 200)
            runs.append(PairedRun(rows, values, float(values.mean())))
        false += seeds_and_rows_test(runs).p_value < 0.05
    assert false <= 0.085 * 300  # 5 %, and less than three standard errors of the count above


# ---------------------------------------------------------------- lines


def run(objective, seed, right, *, test="official", shots=0, near=None):
    return SimpleNamespace(
        data="trec",
        size=48 if shots else 100,
        objective=objective,
        seed=seed,
        fold=0,
        folds=1,
        weighted_f1=right,
        accuracy=right,
        seconds=1.0,
        source="",
        catalogue=None,
        tested="",
        test=test,
        shots=shots,
        selection="fixed",
        key=f"{objective}{seed}",
        near_other_label=near,
        truncated=None,
    )


def stored(key, predicted, entropy=0.5):
    n = len(predicted)
    return Predictions(
        labels=["a", "b"],
        rows=np.arange(n),
        expected=np.zeros(n, dtype=np.int64),
        predicted=np.array(predicted),
        confidence=np.full(n, 0.7),
        entropy=np.full(n, entropy),
        texts={},
        history=[],
    )


def official_lines(**more):
    predictions = {
        "base1": stored("base1", [0, 1, 1, 0], 0.5),
        "base2": stored("base2", [0, 1, 1, 1], 0.7),
        "new1": stored("new1", [0, 0, 1, 0], 0.2),
        "new2": stored("new2", [0, 0, 0, 1], 0.1),
    }
    rows = [
        run("base", 1, 2 / 3, near={"rows": 2, "accuracy": 0.5, "weighted_f1": 0.5}, **more),
        run("base", 2, 0.4, near={"rows": 6, "accuracy": 0.0, "weighted_f1": 0.0}, **more),
        run("new", 1, 6 / 7, near={"rows": 0}, **more),
        run("new", 2, 6 / 7, near={"rows": 0}, **more),
    ]
    return summarise(rows, "base", predictions.get), summarise(rows, "base")


def test_lines_of_an_official_test_part_are_tested_over_seeds_and_rows():
    (base, new), (_, untested) = official_lines()
    assert new.gain is not None and math.isfinite(new.gain.low)
    assert new.test_rows == 4 and new.pairs == 2
    words = gain_in_words(new, "base")
    assert "on trec (100 rows)" in words and "2 seeds and 4 test rows" in words
    assert untested.gain is not None and untested.gain.mean == pytest.approx(new.gain.mean)
    assert "predictions that a test needs are missing" in gain_in_words(untested, "base")
    assert "over seeds and test rows together" in how_tested([base, new])
    assert "Nadeau and Bengio" not in how_tested([base, new])


def test_runs_with_other_rows_in_their_predictions_are_no_pairs():
    predictions = {key: stored(key, [0, 1, 1, 0]) for key in ("base1", "base2", "new1", "new2")}
    moved = dataclasses.replace(predictions["new2"], rows=np.arange(4) + 1)
    rows = [run(name, seed, 0.5) for name in ("base", "new") for seed in (1, 2)]
    assert summarise(rows, "base", predictions.get)[1].pairs == 2
    assert summarise(rows, "base", {**predictions, "new2": moved}.get)[1].pairs == 1


def test_confidence_is_in_bits_with_a_paired_test():
    (base, new), _ = official_lines()
    assert base.confidence is not None and base.confidence.difference is None
    assert base.confidence.entropy == pytest.approx(0.6)
    assert new.confidence is not None and new.confidence.difference is not None
    assert new.confidence.difference.mean == pytest.approx(-0.45)
    # the rows of a run agree, so this is the t-test over the seeds -0.3 and -0.6, with one degree
    assert new.confidence.difference.p_value == pytest.approx(
        1 - 2 / math.pi * math.atan(0.45 / 0.15), rel=1e-6
    )
    assert new.confidence.p_holm == new.confidence.difference.p_value
    assert "| base | 0.600 |" in confidence_table([base, new])


def test_rows_near_another_label_are_pooled_over_runs():
    (base, new), _ = official_lines()
    assert base.near is not None and (base.near.rows, base.near.accuracy) == (4, 1 / 8)
    assert new.near is not None and new.near.accuracy is None
    assert "| base | 4 | 12.50 |" in near_table([base, new])
    assert "| new | 0 |  |" in near_table([base, new])
    assert near_table([]) == ""


def test_few_shot_lines_name_the_rows_per_class():
    (_, new), _ = official_lines(shots=8)
    assert new.rows_in_words == "48 (8 per class)"
    assert "(8 rows per class)" in gain_in_words(new, "base")


def test_published_accuracy_stands_apart_and_is_named():
    (base, new), _ = official_lines()
    table = accuracy_table([base, new])
    assert "It is no weighted F1" in table
    assert "| *clld, published, BERT-base (CLLD paper)* | 97.80 |  |" in table
    assert "| *clld, published, TextCNN (CLLD paper)* | 88.80 |  |" in table
    assert table in markdown_report([base, new], "base")
    few, _ = official_lines(shots=8)
    assert accuracy_table(few) == "" and "published" not in markdown_report(few, "base")
