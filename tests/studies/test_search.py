from __future__ import annotations

import builtins
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.errors import ConfigError, MissingExtra
from closeknit.objectives import OBJECTIVES
from closeknit.studies.search import (
    SearchConfig,
    check_space,
    grid_size,
    known_spaces,
    max_candidates,
    named_space,
    search,
)

SPACE = {
    "a": [1, 2, 3, 4],
    "b": {"low": 0.01, "high": 1.0, "log": True},
    "n": {"low": 1, "high": 9},
}


def drained(steps, score):
    """(choice, all candidates) of a search whose candidates are scored by a function."""
    candidates, asked = [], next(steps)
    while True:
        candidates += asked
        try:
            asked = steps.send([score(candidate) for candidate in asked])
        except StopIteration as stop:
            return stop.value, candidates


def hill(one):
    """Best at a = 2 and b = 0.3, with noise that differs from split to split."""
    noise = random.Random(repr((sorted(one.options.items()), one.split))).gauss(0, 0.02)
    return 1.0 - abs(one.options.get("a", 5) - 2) - abs(one.options.get("b", 1.0) - 0.3) + noise


@pytest.mark.parametrize("method", ["tpe", "random", "halving"])
def test_a_good_setting_is_found(method):
    config = SearchConfig(method=method, trials=30)
    chosen, candidates = drained(search(SPACE, config, config.parts, 2), hill)
    assert chosen["a"] == 2
    assert abs(chosen["b"] - 0.3) < 0.2
    assert len({one.number for one in candidates}) == 30
    assert candidates[0].options == {}  # the defaults are always among them
    assert len(candidates) <= max_candidates(config, SPACE, config.parts)


@pytest.mark.parametrize("method", ["tpe", "random", "halving"])
def test_a_search_is_repeatable_and_depends_on_its_seed(method):
    config = SearchConfig(method=method, trials=12)
    one, again, other = (
        drained(search(SPACE, config, config.parts, seed), hill) for seed in (2, 2, 3)
    )
    assert one == again
    assert one[1] != other[1]


def test_halving_and_pruning_take_a_part_of_the_cost():
    space = named_space("paper", "triple_entropy")
    for method, share in (("halving", 0.3), ("tpe", 0.8)):
        config = SearchConfig(method=method, trials=27, splits=9)
        _, candidates = drained(
            search(space, config, 9, 2), lambda one: one.options.get("centers", 0) / 1e4 + one.split
        )
        assert len(candidates) < 27 * 9 * share, method


def test_halving_by_hand():
    # 9 settings on split 0, the best 3 on splits 1 and 2
    space = {"x": list(range(8))}
    config = SearchConfig(method="halving", trials=9)
    chosen, candidates = drained(
        search(space, config, 3, 2), lambda one: float(one.options.get("x", -1))
    )
    assert [len([t for t in candidates if t.stage == stage]) for stage in (0, 1)] == [9, 6]
    assert {t.options["x"] for t in candidates if t.stage == 1} == {5, 6, 7}
    assert chosen == {"x": 7}
    assert max_candidates(config, space, 3) == len(candidates) == 15


def test_a_grid_is_whole_and_its_first_best_wins():
    space = {"a": [1, 2], "b": ["x", "y", "z"]}
    config = SearchConfig(method="grid")
    chosen, candidates = drained(
        search(space, config, 2, 0), lambda one: 1.0 if one.options["a"] == 2 else 0.5
    )
    assert len(candidates) == 2 * 3 * 2 == max_candidates(config, space, 2)
    assert chosen == {"a": 2, "b": "x"}


def test_the_grid_of_the_paper_has_4900_settings():
    assert grid_size(named_space("paper", "triple_entropy")) == 4900


def test_there_is_a_space_for_every_joint_objective():
    spaces = known_spaces()["default"]
    assert set(spaces) == set(OBJECTIVES) - {"joint"}
    for name, space in spaces.items():
        check_space(space, name)
        assert spaces[name]["train.lr"] == spaces["cross_entropy"]["train.lr"]
    assert set(named_space("default", "joint")) == {"train.lr", "train.epochs"}


@given(st.integers(1, 60), st.integers(1, 20), st.integers(2, 4), st.integers(0, 5))
def test_halving_never_takes_more_than_it_says(trials, parts, keep, seed):
    config = SearchConfig(method="halving", trials=trials, keep=keep)
    generator = random.Random(seed)
    chosen, candidates = drained(search(SPACE, config, parts, seed), lambda one: generator.random())
    assert len(candidates) == max_candidates(config, SPACE, parts)
    assert chosen in [one.options for one in candidates]
    assert len({(one.number, one.split) for one in candidates}) == len(candidates)
    assert {one.split for one in candidates} == set(range(parts))


@given(st.integers(0, 1000))
def test_drawn_settings_lie_in_the_space(seed):
    _, candidates = drained(search(SPACE, SearchConfig(method="random", trials=6), 1, seed), hill)
    for one in candidates[1:]:
        assert one.options["a"] in SPACE["a"]
        assert 0.0099 <= one.options["b"] <= 1.0
        assert one.options["n"] in range(1, 10)


def test_whole_numbers_are_drawn_by_their_logarithms_where_told():
    space = {"a": {"low": 1, "high": 1000, "log": True}}
    _, candidates = drained(search(space, SearchConfig(method="random", trials=60), 1, 2), hill)
    drawn = [one.options["a"] for one in candidates[1:]]
    assert all(type(a) is int and 1 <= a <= 1000 for a in drawn)
    # none twice, so small ones are soon used up; by their size alone there would be two
    assert sum(a < 30 for a in drawn) > 12


@pytest.mark.parametrize("method", ["random", "halving", "tpe"])
def test_a_seed_may_be_a_date(method):
    _, candidates = drained(
        search(SPACE, SearchConfig(method=method, trials=3), 1, 20240501 * 1000), hill
    )
    assert len(candidates) == 3


def test_a_small_space_is_not_drawn_from_twice():
    _, candidates = drained(
        search({"a": [1, 2]}, SearchConfig(method="random", trials=50), 1, 2), hill
    )
    assert candidates[0].options == {}
    assert len(candidates) == 3


@pytest.mark.parametrize("method", ["random", "halving", "tpe"])
@pytest.mark.parametrize("values", [{"low": 1, "high": 3}, [1, 1, 2], {"low": 0.1, "high": 0.1001}])
def test_a_search_ends_where_there_are_fewer_settings_than_asked_for(method, values):
    config = SearchConfig(method=method, trials=20, splits=1)
    _, candidates = drained(search({"a": values}, config, 1, 2), hill)
    drawn = [one.options["a"] for one in candidates if one.options]
    assert 2 <= len(set(drawn)) <= 3
    if method != "tpe":  # which may ask again
        assert len(set(drawn)) == len(drawn)


def test_tpe_gives_up_all_of_a_batch_at_once():
    config = SearchConfig(trials=20)
    chosen, candidates = drained(search(SPACE, config, 3, 2), lambda one: 0.9 - 0.01 * one.number)
    assert chosen == {} and {one.number for one in candidates} == set(range(20))
    assert len(candidates) < 60  # later ones were given up after their first split


def test_tpe_names_the_extra_it_needs(monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name == "optuna":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"closeknit\[search\]"):
        next(search(SPACE, SearchConfig(), 1, 2))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "names no setting"),
        ({"a": []}, "give a list"),
        ({"a": 3}, "give a list"),
        ({"a": {"low": 1}}, "write a range"),
        ({"a": {"low": 2, "high": 1}}, "write a range"),
        ({"a": {"low": 0.0, "high": 1.0, "log": True}}, "write a range"),
        ({"a": {"low": 0.0, "hihg": 1.0}}, "write a range"),
    ],
)
def test_spaces_that_are_none_are_refused(space, words):
    with pytest.raises(ConfigError, match=words):
        check_space(space, "search.spaces.x")


def test_what_is_no_search_is_refused():
    with pytest.raises(ConfigError, match="did you mean halving"):
        SearchConfig(method="halvin")
    with pytest.raises(ConfigError, match="at least 1"):
        SearchConfig(trials=0)
    with pytest.raises(ConfigError, match="a grid needs a list"):
        search(SPACE, SearchConfig(method="grid"), 1, 2)
    with pytest.raises(ConfigError, match="unknown search space papre; did you mean paper"):
        named_space("papre", "triple_entropy")
