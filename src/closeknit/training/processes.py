"""The processes of a run, as `accelerate launch` starts them, and the values that they exchange.

Every process encodes its share of a batch. The views are then gathered, so that each objective sees
the whole batch and gives the same number as in one process. There is no wrapper around the model.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from closeknit.objectives.view import View


@dataclass(frozen=True)
class World:
    """The device and the number of this process, and how many processes there are."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0


def this_world(device: str | None = None) -> World:
    """The world that `accelerate launch` set up, or the best single device of this machine."""
    if device is not None:
        return World(torch.device(device))
    if not _launched() and not torch.backends.mps.is_available() and not torch.xpu.is_available():
        return World(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    return World(state.device, state.process_index, state.num_processes)


def _launched() -> bool:
    """Whether a launcher set variables of the environment, or this program set up processes
    itself.
    """
    signs = (
        "ACCELERATE_",
        "FORK_LAUNCHED",
        "LOCAL_RANK",
        "RANK",
        "WORLD_SIZE",
        "OMPI_",
        "PMI_",
        "MV2_",
    )
    return "accelerate" in sys.modules or any(name.startswith(signs) for name in os.environ)


def return_memory() -> None:
    """Return freed memory to the system, where the C library can.

    The C library keeps freed memory for later. Batches of many shapes leave gaps in it, so that
    without this a process that trains again and again, as in a study, grows to several times the
    memory of a single training.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def gather(view: View, world: World, filler: bool = False, copies: int = 1) -> View:
    """The rows of a view from all processes, in order; gradients flow back into the rows of this
    process.

    Where each process has its texts in several copies, one after another, so has the result.
    """
    if world.size == 1:
        return view
    z, y = (view.z[:0], view.y[:0]) if filler else view
    sizes = torch.zeros(world.size, dtype=torch.long, device=z.device)
    sizes[world.rank] = len(z)
    torch.distributed.all_reduce(sizes)
    counts: list[int] = sizes.tolist()
    z = _Gather.apply(z, counts, world.rank)
    y = _gather_rows(y, counts)
    if copies > 1:
        index = torch.tensor(_copies_together(counts, copies), device=z.device)
        z = z[index]
        y = y[index]
    return View(z, y)


def _copies_together(counts: list[int], copies: int) -> list[int]:
    """The order that puts the first copies of all processes first, then all second ones, and so on.

    `counts` are the rows of each process: its first copies, then its second ones.
    """
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    order: list[int] = []
    for copy in range(copies):
        for start, count in zip(starts, counts, strict=True):
            texts = count // copies
            first = start + copy * texts
            order += range(first, first + texts)
    return order


class _Gather(torch.autograd.Function):
    """The rows of all processes; backward, the gradient of this process's rows times the number of
    processes.

    Every process computes the same loss from the same gathered rows. Gradients are averaged over
    the processes afterwards. Parameters of an objective have their whole gradient on each process,
    so the average is right for them. The encoder has only the gradient of its own rows there, hence
    the factor.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, counts: list[int], rank: int) -> Tensor:
        ctx.start = sum(counts[:rank])
        ctx.stop = sum(counts[: rank + 1])
        ctx.size = len(counts)
        return _gather_rows(z, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.start : ctx.stop] * ctx.size, None, None


def _gather_rows(z: Tensor, counts: list[int]) -> Tensor:
    """The rows of all processes, each of which has so many; padded to one shape on the way."""
    padded = z.new_zeros(max(counts), *z.shape[1:])
    padded[: len(z)] = z
    everyone = [torch.empty_like(padded) for _ in counts]
    torch.distributed.all_gather(everyone, padded)
    return torch.cat([rows[:count] for rows, count in zip(everyone, counts, strict=True)])


def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """The mean of the gradients over all processes, in one exchange."""
    if world.size == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    average(flat, world)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def average(values: Tensor, world: World) -> None:
    """The mean over all processes, in place."""
    if world.size > 1:
        torch.distributed.all_reduce(values)
        values /= world.size


def wait_for_all(world: World) -> None:
    """Go on when every process has come here."""
    if world.size > 1:
        torch.distributed.barrier()


def leave(world: World) -> None:
    """Wait for the other processes, then close the connection between them."""
    if world.size > 1:
        from accelerate import PartialState

        wait_for_all(world)
        PartialState().destroy_process_group()
