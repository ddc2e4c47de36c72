"""Seeds: other numbers give other seeds, checkpoints keep theirs, and every device is seeded."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.training import randomness
from closeknit.training.processes import World
from closeknit.training.randomness import DropoutSeeds, mix, seeded

NUMBERS = st.lists(st.integers(0, 4), min_size=1, max_size=6).map(tuple)


@given(st.sets(NUMBERS, min_size=2, max_size=40))
def test_other_numbers_or_another_amount_of_them_give_another_seed(lists):
    assert len({mix(*numbers) for numbers in lists}) == len(lists)


@pytest.mark.parametrize("numbers", [(2, 3), (2, 3, 5), (16, 6, 40), (7,), (1, 2, 3, 4, 5)])
def test_streams_that_do_not_end_in_zero_are_those_of_earlier_versions(numbers):
    drawn = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
    assert mix(*numbers) == int(drawn >> np.uint64(1))


def test_dropout_draws_the_seeds_that_checkpoints_rely_on():
    assert DropoutSeeds(2, 0, 0).of_update == 3304656143886516455
    assert DropoutSeeds(2, 17, 0).of_update == 9220242095922079410
    assert DropoutSeeds(2, 17, 1).of_update == 1893926563658492780
    assert DropoutSeeds(2, 17, 0).of_chunk(0) == 5497459965616440331
    assert DropoutSeeds(2, 17, 0).of_chunk(3) == 3801404188469074403


def test_every_chunk_of_every_part_and_task_has_its_own_dropout():
    seeds = [
        DropoutSeeds(2, number, rank, task, part)
        for number, rank, task, part in itertools.product(range(3), repeat=4)
    ]
    drawn = [own.of_chunk(chunk) for own in seeds for chunk in range(3)]
    drawn += {own.of_update for own in seeds}
    assert len(set(drawn)) == len(drawn) == 3**5 + 3**2


def test_chunks_of_different_parts_do_not_share_their_masks(tiny, small, monkeypatch):
    settings = {
        "encoder": {"name": tiny(), "max_length": 16},
        "objective": {"name": "supcon"},
        "train": {"epochs": 1, "batch_size": 12, "accumulate": 2, "chunk_size": 2},
    }
    fit = ClassifierFit(from_python(*small), RunConfig.from_dict(settings))
    begun: list[int] = []
    monkeypatch.setattr(fit.training.engine, "begin_chunk", begun.append)
    next(iter(fit))
    # each seed twice: with gradient caching, a chunk is encoded two times
    assert len(begun) > 4 and set(Counter(begun).values()) == {2}


class FakeModule:
    """What torch has for a kind of device: a random state, here a list of numbers."""

    def __init__(self) -> None:
        self.state = torch.tensor([1, 2, 3])

    def get_rng_state(self) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.state = state

    def manual_seed(self, seed: int) -> None:
        self.state = torch.tensor([seed])


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_every_kind_of_device_is_seeded_and_gets_its_state_back(monkeypatch, kind):
    module = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    world = World(torch.device(kind))
    with pytest.raises(KeyError), seeded(world, 2, randomness.HEADS):
        inside = module.state.tolist()
        raise KeyError
    assert inside == [mix(2, randomness.HEADS)]
    assert module.state.tolist() == [1, 2, 3]
