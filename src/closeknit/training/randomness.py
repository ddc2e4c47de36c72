"""Random numbers of a run: the streams of one seed, seeded blocks, and deterministic algorithms.

Every use of randomness draws from a stream of its own, seeded by (seed, stream, …). Two objectives
that are compared under one seed thus start from the same classifier and see the same mini-batches.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from closeknit.errors import TrainingError
from closeknit.training.processes import World

DROPOUT = 1
ENCODER = 2  # adapter weights, and the word embeddings of TextCNN
HEADS = 3
OBJECTIVE = 4  # proxies, centers and whatever else an objective learns
MASKING = 5  # which tokens masked-language modelling hides
SURGERY = 6  # the order in which gradients of tasks are projected
TOKEN_ROWS = 7  # which tokens a loss reads that reads some of them only


@contextlib.contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Inside, if wanted, torch uses only kernels that give the same bits every time."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings: Any = torch.utils.deterministic  # type: ignore[attr-defined,unused-ignore]
    enabled_before = torch.are_deterministic_algorithms_enabled()
    fill_before = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # no code reads such memory
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise TrainingError(f"{str(error).split('.')[0]}; set train.deterministic=false") from error
    finally:
        torch.use_deterministic_algorithms(enabled_before)
        settings.fill_uninitialized_memory = fill_before


@contextlib.contextmanager
def fixed_seed(world: World, seed: int) -> Iterator[None]:
    """Inside, torch's random numbers depend on this seed and on nothing that came before.

    The random state outside stays as it was. Dropout is seeded by run, step and process in this
    way, so that a checkpoint needs no random state, and two runs in one program do not disturb each
    other.
    """
    with contextlib.ExitStack() as stack:
        generators = [torch.default_generator]
        if world.device.type == "cuda":
            torch.cuda.init()
            generators.append(torch.cuda.default_generators[world.device.index or 0])
        elif world.device.type != "cpu":
            stack.enter_context(_fixed_seed_of_device(world.device, seed))
        before = [generator.get_state() for generator in generators]
        for generator in generators:  # torch.manual_seed would look for every kind of device
            generator.manual_seed(seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)


@contextlib.contextmanager
def _fixed_seed_of_device(device: torch.device, seed: int) -> Iterator[None]:
    """The same for a device of another kind, such as MPS or XPU, by torch's module for it."""
    module: Any = torch.get_device_module(device)
    before = module.get_rng_state()
    module.manual_seed(seed)
    try:
        yield
    finally:
        module.set_rng_state(before)


def seeded(world: World, *numbers: int) -> contextlib.AbstractContextManager[None]:
    """Inside, torch's random numbers depend on these numbers; see `fixed_seed`."""
    return fixed_seed(world, mix(*numbers))


# What tells a list of numbers that ends in zeros from the same list without them.
_ENDS_IN_ZEROS = 0x7E205


def mix(*numbers: int) -> int:
    """One well-mixed seed from several numbers; other numbers, or another amount, give another
    seed.

    numpy's SeedSequence fills short lists up with zeros. A list that ends in a zero is therefore
    mixed together with its length. All other lists give what SeedSequence makes of them.
    """
    key = (_ENDS_IN_ZEROS, len(numbers)) if numbers and numbers[-1] == 0 else ()
    return _as_seed(np.random.SeedSequence(numbers, spawn_key=key))


@dataclass(frozen=True)
class DropoutSeeds:
    """The seeds of dropout in one update of one process.

    Checkpoints of all versions rely on these seeds: a run that is resumed has to draw the masks
    that it would have drawn. The seed of an update, and those of the chunks of the first part of
    the first task, are therefore what the first version of Closeknit drew.
    """

    seed: int  # of the run
    number: int  # of updates done before
    rank: int  # of the process
    task: int = 0  # the place of the task among those of the run
    part: int = 0  # of the task's batch

    @property
    def of_update(self) -> int:
        """All batches of the update draw from this seed, one after another."""
        return self._mixed()

    def of_chunk(self, chunk: int) -> int:
        """A chunk is computed twice, so that it has a seed of its own."""
        if self.task == self.part == 0:
            return self._mixed(chunk)
        return self._mixed(chunk, self.part, self.task)

    @property
    def of_token_rows(self) -> int:
        """A part of a batch draws its rows of tokens from this seed, the same in every process."""
        return mix(self.seed, TOKEN_ROWS, self.number, self.part, self.task)

    def _mixed(self, *place: int) -> int:
        return _as_seed(
            np.random.SeedSequence((self.seed, DROPOUT, self.number, self.rank, *place))
        )


def _as_seed(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
