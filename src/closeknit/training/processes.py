"""The processes of a run, as `accelerate launch` starts them, and the values that they exchange.

Every process encodes its share of a batch. The views are then gathered, so that each objective sees
the whole batch and gives the same number as in one process. There is no wrapper around the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from closeknit.errors import TrainingError
from closeknit.objectives.view import View


class ProcessLost(TrainingError):
    """Another process of the run ended, or cannot be reached."""


@dataclass
class StopRequest:
    """Whether the user has asked a run to stop."""

    wanted: bool = False  # this process was told so
    agreed: bool = False  # some process was told so, and all of them know it


@dataclass(frozen=True)
class World:
    """The device and the number of this process, and how many processes there are."""

    device: torch.device
    rank: int = 0
    size: int = 1
    stop: StopRequest = field(default_factory=StopRequest, compare=False)

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes files and messages."""
        return self.rank == 0

    @property
    def stopping(self) -> bool:
        """Whether all processes leave after this step. The answer is the same in all of them."""
        return self.stop.wanted if self.size == 1 else self.stop.agreed


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

    The processes also tell each other whether one of them was asked to stop. This happens here
    because it costs nothing more: the numbers of rows are exchanged and read anyway.
    """
    if world.size == 1:
        return view
    z, y = (view.z[:0], view.y[:0]) if filler else view
    *counts, asked_to_stop = _sums([*_only_mine(len(z), world), int(world.stop.wanted)], world)
    world.stop.agreed |= asked_to_stop > 0
    z = _Gather.apply(z, counts, world.rank)
    y = _gather_rows(y, counts)
    if copies > 1:
        index = torch.tensor(_copies_together(counts, copies), device=z.device)
        z = z[index]
        y = y[index]
    return View(z, y)


def _only_mine(number: int, world: World) -> list[int]:
    """A list with a place for each process; this one's place holds the number, the others 0."""
    return [number if rank == world.rank else 0 for rank in range(world.size)]


def _sums(numbers: list[int], world: World) -> list[int]:
    """The sums of these numbers over all processes."""
    total = torch.tensor(numbers, device=world.device)
    with _exchange():
        torch.distributed.all_reduce(total)
    sums: list[int] = total.tolist()
    return sums


@contextlib.contextmanager
def _exchange() -> Iterator[None]:
    """Inside, processes exchange something; when one of them has ended, the error says so."""
    try:
        yield
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ProcessLost(
            "another process of this run has ended or cannot be reached; its own message says why. "
            f"Start the run again with --resume ({reason[:200]})"
        ) from None


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
    with _exchange():
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
        with _exchange():
            torch.distributed.all_reduce(values)
        values /= world.size


# ---------------------------------------------------------------- agreeing


def agree_to_stop(world: World) -> bool:
    """Whether a process was asked to stop; all processes call this, and get the same answer."""
    if world.size > 1:
        world.stop.agreed |= _sums([int(world.stop.wanted)], world)[0] > 0
    return world.stopping


def texts_of_all(text: str, world: World) -> list[str]:
    """What each process says, in the order of the processes."""
    if world.size == 1:
        return [text]
    letters = torch.tensor(list(text.encode()), dtype=torch.uint8, device=world.device)
    counts = _sums(_only_mine(len(letters), world), world)
    if not any(counts):
        return [""] * world.size
    everything = _gather_rows(letters, counts).cpu()
    return [bytes(said.tolist()).decode() for said in everything.split(counts)]


@contextlib.contextmanager
def failing_together(world: World) -> Iterator[None]:
    """An error inside ends all processes with its message, and none waits for one that has ended.

    Inside, the processes exchange nothing.
    """
    if world.size == 1:
        yield
        return
    try:
        yield
    except Exception as error:
        texts_of_all(str(error) or type(error).__name__, world)
        raise
    for rank, text in enumerate(texts_of_all("", world)):
        if text:
            raise ProcessLost(f"process {rank} cannot go on: {text}")


def of_first(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """The tensors of the first process; those of the others have the same names and shapes."""
    if world.size == 1:
        return dict(tensors)
    received: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        sent = tensor.detach().to(world.device, copy=True).contiguous()
        with _exchange():
            torch.distributed.broadcast(sent, src=0)
        received[name] = sent.to(tensor.device)
    return received


def state_of_first(
    state: tuple[dict[str, Tensor], dict[str, Any]] | None, world: World
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and facts that the first process has, or None if it has none.

    What the other processes pass is not looked at.
    """
    if world.size == 1:
        return state
    said = ""
    if world.main and state is not None:
        shapes = {
            name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in state[0].items()
        }
        said = json.dumps([shapes, state[1]])
    said = texts_of_all(said, world)[0]
    if not said:
        return None
    shapes, facts = json.loads(said)
    tensors = {
        name: torch.empty(shape, dtype=getattr(torch, dtype))
        for name, (dtype, shape) in shapes.items()
    }
    return of_first(state[0] if world.main and state is not None else tensors, world), facts


# ---------------------------------------------------------------- ending


def leave(world: World) -> None:
    """Wait for the other processes, then close the connection between them.

    A process that has ended already keeps none of the others: this one has done its work.
    """
    if world.size > 1:
        from accelerate import PartialState

        with contextlib.suppress(ProcessLost), _exchange():
            torch.distributed.barrier()
        PartialState().destroy_process_group()
