from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from closeknit.report import corrected_t_test, in_words, markdown_table, summarise


def row(objective, fold, f1, seed=2, folds=5):
    return SimpleNamespace(
        objective=objective, seed=seed, fold=fold, folds=folds, weighted_f1=f1, accuracy=f1, seconds=1.0
    )


def test_the_corrected_test_on_a_case_worked_by_hand():
    # d = (1, 2, 3): mean 2, variance 1; with a third tested, error = sqrt(1 * (1/3 + 1/2)) = 0.912871
    found = corrected_t_test([1.0, 2.0, 3.0], test_share=1 / 3)
    assert found.mean == pytest.approx(2.0)
    t = 2.0 / math.sqrt(5 / 6)
    # Student's t with 2 degrees of freedom has the two-sided tail 1 - t / sqrt(2 + t^2)
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
    assert found.high - found.mean == pytest.approx(4.302652729911275 * math.sqrt(5 / 6), rel=1e-9)


def test_the_corrected_test_is_more_careful_than_the_plain_one():
    from scipy import stats

    d = np.random.default_rng(0).normal(0.3, 0.5, 20)
    assert corrected_t_test(d, 0.2).p_value > stats.ttest_1samp(d, 0).pvalue


def test_differences_without_spread():
    assert corrected_t_test([0.0, 0.0], 0.2).p_value == 1.0
    assert corrected_t_test([0.1, 0.1], 0.2).p_value == 0.0
    assert corrected_t_test([0.1], 0.2).p_value == 1.0


def test_gains_are_paired_by_seed_and_fold():
    rows = [row("base", f, 0.8 + 0.05 * f) for f in range(3)]
    rows += [row("new", f, 0.81 + 0.05 * f) for f in (2, 0, 1)]  # in another order
    base, new = summarise(rows, "base")
    assert base.gain is None
    assert new.gain is not None
    assert new.gain.mean == pytest.approx(0.01)
    assert new.gain.p_value < 1e-6
    table = markdown_table([base, new])
    assert "| base | 3 | 85.00 ± 5.00 |" in table
    assert "+1.00" in table
    assert "gains 1.00 points" in in_words(new, "base")
    assert "more than chance" in in_words(new, "base")


def test_a_loss_that_may_be_chance_is_called_so():
    rows = [row("base", f, v) for f, v in enumerate((0.8, 0.9, 0.85))]
    rows += [row("new", f, v) for f, v in enumerate((0.85, 0.8, 0.84))]
    words = in_words(summarise(rows, "base")[1], "base")
    assert "loses" in words
    assert "could well be chance" in words
