"""What is read from the trials of a search, against answers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from closeknit.reports import search_trials
from closeknit.reports.search_trials import Trial


def line(number, split, score):
    return {
        "trial": number,
        "split": split,
        "seed": 2,
        "fold": 0,
        "score": score,
        "options": {"lr": number},
    }


def search(*trials):
    return [Trial(options, score, score, complete=True) for options, score in trials]


def test_a_trial_is_the_mean_of_its_splits_and_judged_fairly_on_the_common_ones():
    lines = [line(1, 0, 0.9), line(0, 0, 0.5), line(0, 1, 0.7), line(0, 1, 0.8), line(2, 0, None)]
    given_up, whole = {"lr": 1}, {"lr": 0}
    found = search_trials.read_trials(lines)  # a split that was scored again counts once
    assert found == [Trial(whole, pytest.approx(0.65), 0.5, True), Trial(given_up, 0.9, 0.9, False)]
    assert search_trials.read_trials([]) == []


def test_best_so_far_never_falls_and_counts_whole_trials_only():
    whole = [False, True, False, True, True]
    trials = [Trial({}, s, s, w) for s, w in zip([0.9, 0.2, 0.8, 0.1, 0.6], whole, strict=True)]
    assert search_trials.best_so_far(trials).tolist()[1:] == [0.2, 0.2, 0.2, 0.6]
    assert math.isnan(search_trials.best_so_far(trials)[0])


def test_importance_finds_the_setting_that_matters():
    generator = np.random.default_rng(3)
    trials = search(
        ({}, 0.0),  # the defaults have no say
        *(
            (
                {
                    "lr": float(10.0**-i),
                    "noise": int(generator.integers(9)),
                    "pool": ["cls", "mean"][i % 2],
                },
                i / 10,
            )
            for i in range(1, 6)
            for _ in range(6)
        ),
    )
    found = search_trials.importance([trials, trials])
    assert found is not None
    assert next(iter(found.shares)) == "lr" and found.shares["lr"] > 0.7
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.explained > 0.8 and found.trials == 60
    assert found == search_trials.importance([trials, trials])


def test_importance_says_nothing_of_too_little():
    few = search(({"lr": 1.0}, 0.1), ({"lr": 2.0}, 0.2))
    same = search(*(({"lr": 1.0}, i / 10) for i in range(10)))
    level = search(*(({"lr": float(i)}, 0.5) for i in range(10)))
    assert [search_trials.importance([trials]) for trials in (few, same, level, [])] == [None] * 4


def test_noise_is_said_to_explain_nothing():
    generator = np.random.default_rng(0)
    noise = search(
        *(({"lr": float(generator.random())}, float(generator.random())) for _ in range(30))
    )
    found = search_trials.importance([noise])
    assert found is not None and found.explained < 0.1


def test_chosen_settings_count_the_best_whole_trial_of_each_search():
    def tried(best):
        return [
            Trial({"lr": 9}, 0.99, 0.99, False),
            *search(({}, 0.5), ({"lr": best, "centers": 2}, 0.9)),
        ]

    chosen = search_trials.chosen_settings(
        [tried(1e-4), tried(1e-4), tried(3e-4), [], search(({}, 0.5))]
    )
    assert chosen == {
        "lr": [("0.0001", 2), ("0.0003", 1), ("default", 1)],
        "centers": [("2", 3), ("default", 1)],
    }
