"""Random numbers of a run: the streams of one seed, seeded blocks, and deterministic algorithms.

Every use of randomness draws from a stream of its own, seeded by (seed, stream, …). Two objectives
that are compared under one seed thus start from the same classifier and see the same mini-batches.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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
def seeded(world: World, *numbers: int) -> Iterator[None]:
    """Inside, torch's random numbers depend on these numbers and on nothing that came before.

    The random state outside stays as it was. Dropout is seeded by run, step and process in this
    way, so that a checkpoint needs no random state, and two runs in one program do not disturb each
    other.
    """
    generators = [torch.default_generator]
    if world.device.type == "cuda":
        torch.cuda.init()
        generators.append(torch.cuda.default_generators[world.device.index or 0])
    before = [generator.get_state() for generator in generators]
    for generator in generators:  # torch.manual_seed would look for every kind of device each time
        generator.manual_seed(mix(*numbers))
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def mix(*numbers: int) -> int:
    """One well-mixed seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
