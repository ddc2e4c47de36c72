"""Runs a function in several processes that are connected with each other, and gives its results.

The processes are forked, so that they have the libraries and start in no time. They meet in a
file, so that no port is needed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState

from closeknit.training.processes import World

SECONDS = 120.0  # a process that takes longer waits for another one: the test fails


def run_together(function: Callable[..., Any], *arguments: Any, processes: int = 2) -> list[Any]:
    """What `function(world, *arguments)` returns in each process, or the exception that it raises.

    A process that ends without either gives its exit code.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        pipes = [context.Pipe(duplex=False) for _ in range(processes)]
        children = [
            context.Process(
                target=_run, args=(rank, processes, f"{folder}/meet", sender, function, arguments)
            )
            for rank, (_, sender) in enumerate(pipes)
        ]
        for child, (receiver, sender) in zip(children, pipes, strict=True):
            stack.callback(child.close)
            child.start()
            sender.close()
            stack.callback(receiver.close)
        results: list[Any] = []
        for child, (receiver, _) in zip(children, pipes, strict=True):
            waited = receiver.poll(SECONDS)
            try:
                results.append(receiver.recv() if waited else "waits for another process")
            except EOFError:
                child.join()
                results.append(child.exitcode)
        for child in children:
            child.join(5.0)
            if child.is_alive():
                child.kill()
                child.join()
    return results


def _run(
    rank: int, size: int, meeting: str, sender: Any, function: Callable[..., Any], arguments: Any
) -> None:
    torch.set_num_threads(1)
    PartialState._reset_state()  # another test may have made one for a single process
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"ACCELERATE_USE_CPU": "1", "HF_HUB_OFFLINE": "1"}
    # accelerate asks for an address; nothing listens there, as the processes are connected already
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = torch.distributed.FileStore(meeting, size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        result = function(World(torch.device("cpu"), rank, size), *arguments)
    except BaseException as error:
        result = error
    sender.send(result)
    sender.close()
