from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from closeknit.errors import ConfigError
from closeknit.training.schedules import (
    SCHEDULES,
    ScheduleConfig,
    build_schedule,
    shares,
    together,
)

NAMES = ("mood", "dup", "sts", "topic", "spam")

OF_BATCHES = tuple(name for name in SCHEDULES if name != "mixed")  # which counts rows

sizes = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 30), min_size=1)
epochs = st.integers(1, 5)
seeds = st.integers(0, 2**31)


@st.composite
def runs(draw, names=OF_BATCHES):
    """(config, batches of each task, epochs, seed) of some schedule that the tasks allow."""
    batches = draw(sizes)
    name = draw(st.sampled_from(names))
    some = st.lists(st.sampled_from(sorted(batches)), max_size=6, unique=name == "sequential")
    settings = {
        "order": (some, ("sequential", "round_robin")),
        "turn": (st.sampled_from(("batch", "pass")), ("round_robin",)),
        "weights": (
            st.dictionaries(st.sampled_from(sorted(batches)), st.floats(0.05, 20.0)),
            ("random", "annealed"),
        ),
        "power": (st.floats(0.0, 2.0), ("random",)),
        "anneal": (st.floats(0.0, 1.0), ("annealed",)),
    }
    config = ScheduleConfig(
        name, **{key: draw(own) for key, (own, read) in settings.items() if name in read}
    )
    return config, batches, draw(epochs), draw(seeds)


def turns_of(schedule) -> list[tuple[str, ...]]:
    return [tuple(schedule.turns(number)) for number in range(schedule.steps)]


def by_epoch(schedule) -> list[Counter]:
    """How often each task has its turn, epoch by epoch."""
    names = [name for turn in turns_of(schedule) for name in turn]
    per_epoch = schedule.per_epoch
    return [Counter(names[start : start + per_epoch]) for start in range(0, len(names), per_epoch)]


def dealt_fairly(counts, weights, total) -> None:
    """Largest remainders, and a place for everybody: what every honest dealing of the places has in
    common.
    """
    quotas = [total * weight / sum(weights) for weight in weights]
    assert sum(counts) == total and min(counts) >= 1
    near = 1e-9 * total  # quotas of floats may lie a rounding beside a whole number
    for count, quota in zip(counts, quotas, strict=True):
        assert count <= max(1, math.ceil(quota + near))
    if min(quotas) >= 1:
        assert all(
            count >= math.floor(quota - near) for count, quota in zip(counts, quotas, strict=True)
        )
        off = [count - quota for count, quota in zip(counts, quotas, strict=True)]
        up = [-one for one in off if one > near]  # 1 - remainder, negated, of those rounded up
        down = [-one for one in off if one < -near]  # remainder of those rounded down
        assert all(1 + rounded >= rest - near for rounded in up for rest in down)


# ---------------------------------------------------------------- every schedule


@given(runs())
def test_every_schedule_is_whole_epochs_of_turns_that_name_tasks(run):
    config, batches, amount, seed = run
    schedule = build_schedule(config, batches, amount, seed)
    assert schedule.steps == amount * schedule.per_epoch > 0
    for turn in turns_of(schedule):
        assert set(turn) <= set(batches)
        assert len(turn) == (len(batches) if config.name == "together" else 1)


@given(runs(), st.randoms(use_true_random=False))
def test_turns_are_the_same_in_whatever_order_they_are_asked(run, random):
    config, batches, amount, seed = run
    expected = turns_of(build_schedule(config, batches, amount, seed))
    schedule, numbers = build_schedule(config, batches, amount, seed), list(range(len(expected)))
    random.shuffle(numbers)
    assert [tuple(schedule.turns(n)) for n in numbers] == [expected[n] for n in numbers]


@given(runs())
def test_the_tasks_said_to_be_untrained_are_those_without_a_turn(run):
    config, batches, amount, seed = run
    met = {
        name for turn in turns_of(build_schedule(config, batches, amount, seed)) for name in turn
    }
    assert config.untrained(list(batches)) == [name for name in batches if name not in met]


# ---------------------------------------------------------------- one after another


@given(sizes, epochs)
def test_together_every_update_has_all_tasks_and_an_epoch_passes_over_the_largest(batches, amount):
    schedule = build_schedule(ScheduleConfig("together"), batches, amount, seed=3)
    assert schedule.per_epoch == max(batches.values())
    assert turns_of(schedule) == [tuple(batches)] * (amount * max(batches.values()))
    assert turns_of(together(batches, amount)) == turns_of(schedule)


@given(runs(["sequential"]))
def test_sequential_does_all_epochs_of_a_task_before_the_next(run):
    config, batches, amount, seed = run
    order = config.order or list(batches)
    schedule = build_schedule(config, batches, amount, seed)
    expected = []
    for name in order:
        expected += [(name,)] * (amount * batches[name])
    assert turns_of(schedule) == expected
    assert schedule.per_epoch == sum(batches[name] for name in order)


@given(runs(["round_robin"]))
def test_round_robin_changes_the_task_after_a_batch_or_after_a_pass(run):
    config, batches, amount, seed = run
    order = config.order or list(batches)
    schedule = build_schedule(config, batches, amount, seed)
    if config.turn == "pass":
        once = []
        for name in order:
            once += [(name,)] * batches[name]
        assert turns_of(schedule) == once * amount
        return
    rounds = schedule.per_epoch // len(order)
    assert turns_of(schedule) == [(name,) for name in order] * (rounds * amount)
    # the epoch ends with the first round after which every task has been passed over, and not later
    for name in order:
        assert rounds * order.count(name) >= batches[name]
    assert any((rounds - 1) * order.count(name) < batches[name] for name in order)


def test_round_robin_with_a_task_twice_in_the_order():
    batches, order = {"mood": 5, "dup": 2, "sts": 9}, ["mood", "dup", "mood"]
    schedule = build_schedule(ScheduleConfig("round_robin", order=order), batches, 2, seed=0)
    assert (schedule.per_epoch, schedule.steps) == (9, 18)  # mood needs three rounds of two
    assert [turn[0] for turn in turns_of(schedule)] == order * 6
    passes = build_schedule(
        ScheduleConfig("round_robin", order=order, turn="pass"), batches, 2, seed=0
    )
    assert [turn[0] for turn in turns_of(passes)] == 2 * (5 * ["mood"] + 2 * ["dup"] + 5 * ["mood"])


# ---------------------------------------------------------------- drawn at random


@given(sizes, epochs, seeds)
def test_random_takes_every_task_as_often_as_it_has_batches_in_every_epoch(batches, amount, seed):
    schedule = build_schedule(ScheduleConfig("random"), batches, amount, seed)
    assert schedule.per_epoch == sum(batches.values())
    assert by_epoch(schedule) == [Counter(batches)] * amount


@given(runs(["random"]))
def test_random_shares_follow_weights_and_power(run):
    config, batches, amount, seed = run
    schedule = build_schedule(config, batches, amount, seed)
    assert schedule.per_epoch == sum(batches.values())
    weights = [config.weights.get(name, 1.0) * size**config.power for name, size in batches.items()]
    for counts in by_epoch(schedule):
        dealt_fairly([counts[name] for name in batches], weights, sum(batches.values()))


@given(sizes, epochs, seeds)
def test_power_0_takes_all_tasks_alike(batches, amount, seed):
    for counts in by_epoch(
        build_schedule(ScheduleConfig("random", power=0.0), batches, amount, seed)
    ):
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(counts) == set(batches)


def test_a_weight_of_two_doubles_a_share():
    config = ScheduleConfig("random", weights={"dup": 2.0})
    (counts,) = by_epoch(build_schedule(config, {"mood": 20, "dup": 20}, 1, seed=0))
    assert counts == {"mood": 13, "dup": 27}  # 13.3 and 26.7 of 40
    config = ScheduleConfig("random", weights={"sts": 0.001})
    (counts,) = by_epoch(build_schedule(config, {"mood": 20, "sts": 20}, 1, seed=0))
    assert counts == {"mood": 39, "sts": 1}  # nobody is left without a place


@given(runs(["annealed"]))
def test_annealed_shares_follow_a_power_that_falls_to_the_last_epoch(run):
    config, batches, amount, seed = run
    schedule = build_schedule(config, batches, amount, seed)
    total = sum(batches.values())
    assert schedule.per_epoch == total
    for epoch, counts in enumerate(by_epoch(schedule)):
        done = epoch / (amount - 1) if amount > 1 else 0.0
        power = 1.0 - config.anneal * done
        weights = [config.weights.get(name, 1.0) * size**power for name, size in batches.items()]
        dealt_fairly([counts[name] for name in batches], weights, total)


@given(sizes, st.integers(2, 5), seeds)
def test_annealed_begins_in_proportion_and_ends_nearly_equal(batches, amount, seed):
    first, *_, last = by_epoch(
        build_schedule(ScheduleConfig("annealed", anneal=1.0), batches, amount, seed)
    )
    assert first == Counter(batches)
    assert max(last.values()) - min(last.values()) <= 1


def test_annealing_by_the_default_worked_by_hand():
    """Of 110 places the task of 100 batches gets 100^p / (100^p + 10^p) with p = 1, 0.8, 0.6, 0.4,
    0.2.
    """
    schedule = build_schedule(ScheduleConfig("annealed"), {"dup": 100, "mood": 10}, 5, seed=1)
    assert [counts["dup"] for counts in by_epoch(schedule)] == [100, 95, 88, 79, 67]


@pytest.mark.parametrize("name", ["random", "annealed"])
def test_another_seed_or_epoch_gives_another_order(name):
    batches = {"mood": 20, "dup": 20}
    one, two = (build_schedule(ScheduleConfig(name), batches, 2, seed) for seed in (1, 2))
    assert turns_of(one) != turns_of(two)
    assert turns_of(one)[:40] != turns_of(one)[40:]
    runs = sum(a != b for a, b in zip(turns_of(one), turns_of(one)[1:], strict=False))
    assert runs > 20  # mixed, not one task after the other


# ---------------------------------------------------------------- shares


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(0, 500))
def test_shares_deal_out_all_places_by_largest_remainders(weights, more):
    total = len(weights) + more
    counts = shares(np.array(weights, dtype=np.float64), total).tolist()
    dealt_fairly(counts, [Fraction(weight) for weight in weights], total)
    for own, count in zip(weights, counts, strict=True):
        for other, rival in zip(weights, counts, strict=True):
            assert own <= other or count >= rival, "a larger weight must not get fewer places"


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=8),
    st.integers(0, 200),
    st.integers(0, 7),
    st.integers(1, 500),
)
def test_more_weight_never_costs_a_place(weights, more, which, gain):
    assume(which < len(weights))
    before, after = np.array(weights, dtype=np.float64), np.array(weights, dtype=np.float64)
    after[which] += gain
    total = len(weights) + more
    assert shares(after, total)[which] >= shares(before, total)[which]


def test_shares_worked_by_hand():
    def dealt(weights, total):
        return shares(np.array(weights, dtype=np.float64), total).tolist()

    assert dealt([1, 1, 1], 10) == [4, 3, 3]  # 3.33 each: the first of equals
    assert dealt([5, 3, 1], 7) == [4, 2, 1]  # 3.89, 2.33, 0.78
    assert dealt([47, 16, 15.8, 12, 6.1, 3.1], 10) == [
        5,
        1,
        1,
        1,
        1,
        1,
    ]  # 4.7, 1.6, 1.58, 1.2, 0.61, 0.31
    assert dealt([1000, 1, 1], 4) == [2, 1, 1]
    assert dealt([7], 5) == [5]
    with pytest.raises(ValueError, match="2 cannot be divided into 3 shares"):
        dealt([1, 1, 1], 2)


def test_places_of_the_smallest_come_from_the_largest():
    assert shares(np.array([0.2, 0.2, 0.2, 2.0, 97.4]), 100).tolist() == [1, 1, 1, 2, 95]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "random", "power": 200.0},
        {"name": "random", "weights": {"dup": 1e308, "mood": 1e308}},
    ],
    ids=["power", "weights"],
)
def test_settings_that_would_overflow_are_dealt_out(settings):
    batches = {"dup": 100, "mood": 10}
    counted = by_epoch(build_schedule(ScheduleConfig(**settings), batches, 2, seed=0))
    assert all(set(counts) == set(batches) and counts.total() == 110 for counts in counted)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "randum"}, r"schedule\.name is randum; did you mean random\?"),
        (
            {"name": "x"},
            r"schedule\.name is x; known: annealed, mixed, random, round_robin, sequential, together",
        ),
        ({"turn": "batches"}, r"schedule\.turn is batches; did you mean batch\?"),
        ({"surgery": "pcgard"}, r"schedule\.surgery is pcgard; did you mean pcgrad\?"),
        (
            {"surgery": "pcgrad"},
            r"needs the gradients of all tasks.*schedule\.name is random; set .*together",
        ),
        (
            {"weights": {"dup": 0.0}},
            r"schedule\.weights\.dup is 0\.0; it must be a finite number above 0",
        ),
        ({"weights": {"dup": -1}}, r"schedule\.weights\.dup is -1"),
        ({"weights": {"dup": math.nan}}, r"schedule\.weights\.dup is nan"),
        ({"weights": {"dup": math.inf}}, r"schedule\.weights\.dup is inf"),
        ({"weights": {"dup": True}}, r"schedule\.weights\.dup is true; it must be a number"),
        ({"weights": {"dup": "2"}}, r"schedule\.weights\.dup is \"2\"; it must be a number"),
        (
            {"power": -0.1},
            r"schedule\.power is -0\.1; it must be a finite number that is not negative",
        ),
        ({"power": math.inf}, r"schedule\.power is inf; it must be a finite number"),
        ({"anneal": math.nan}, r"schedule\.anneal is nan; it must be from 0 to 1"),
        ({"anneal": 1.5}, r"schedule\.anneal is 1\.5; it must be from 0 to 1"),
        ({"order": ["mood"]}, r"schedule\.order is for sequential and round_robin, not for random"),
        (
            {"name": "together", "weights": {"mood": 2.0}},
            r"schedule\.weights is for random, annealed and mixed",
        ),
        ({"turn": "pass"}, r"schedule\.turn is for round_robin, not for random"),
        (
            {"name": "together", "power": 0.0},
            r"schedule\.power is for random and mixed, not for together",
        ),
        (
            {"name": "annealed", "power": 0.0},
            r"schedule\.power is for random and mixed, not for annealed",
        ),
        ({"anneal": 0.0}, r"schedule\.anneal is for annealed, not for random"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ScheduleConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"name": "round_robin", "order": ["mood", "dop"]},
            r"schedule\.order names dop, which is no task; did you mean dup\?",
        ),
        (
            {"weights": {"moot": 2.0}},
            r"schedule\.weights names moot, which is no task; did you mean mood\?",
        ),
        (
            {"name": "sequential", "order": ["mood", "dup", "mood"]},
            "sequential schedule names a task twice",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_the_tasks_is_refused(settings, words):
    config = ScheduleConfig(**settings)
    with pytest.raises(ConfigError, match=words):
        config.check(["mood", "dup"])
    with pytest.raises(ConfigError, match=words):
        build_schedule(config, {"mood": 3, "dup": 2}, 1, seed=0)


def test_surgery_goes_with_together():
    assert ScheduleConfig("together", surgery="pcgrad").surgery == "pcgrad"
