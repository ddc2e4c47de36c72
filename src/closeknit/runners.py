"""Where jobs are done: in this process, in several processes of this machine, or on a Ray cluster.

A runner takes jobs and gives back outcomes in the order in which they are finished. Whichever it is, a job is done by
the same function with the same number of threads, so that the numbers are the same.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from closeknit.data.examples import Examples
from closeknit.errors import CloseknitError, ConfigError, MissingExtra, TrainingError
from closeknit.protocol import Job, Outcome

RETRIES = 3  # how often a job is begun again after the process that did it died


class Runner(Protocol):
    """Does jobs; `room` says how many more it would like to have in hand."""

    @property
    def room(self) -> int: ...

    def submit(self, job: Job) -> None: ...

    def next(self) -> Outcome: ...

    def close(self) -> None: ...


def threads_each(workers: int) -> int:
    """The threads of each of so many processes: its share of the processors, or fewer where OMP_NUM_THREADS says so."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    )
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // max(1, workers), int(asked) if asked.isdecimal() else cores))


# ---------------------------------------------------------------- doing a job

_stocks: dict[str, Any] = {}  # of this process: data set -> Stock


def _stock(job: Job, examples: Examples, threads: int) -> Any:
    """The encoder and the tokens of the last data set, which this process keeps for the next job."""
    import torch

    from closeknit.models.memory import Stock

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    stock = _stocks.get(job.data)
    if stock is None or stock.examples is not examples:
        _stocks.clear()
        stock = _stocks[job.data] = Stock(examples)
    return stock


def _do(job: Job, examples: Examples, threads: int) -> Outcome:
    """Do a job in this process."""
    from closeknit.protocol import do

    return do(job, _stock(job, examples, threads))


LANES = 3  # jobs side by side on a GPU
STRIDE = 16  # updates of one that are queued before the next has its turn


class Here:
    """Jobs in this process: one after another, or, on a GPU, some side by side.

    The updates of a small model leave most of a GPU idle. Each lane has a stream of its own; updates of one are queued while
    those of the others run. Their numbers are those of a job that runs alone.
    """

    def __init__(self, texts: Mapping[str, Examples], threads: int, lanes: int = LANES) -> None:
        self.texts, self.threads, self.amount = texts, threads, lanes
        self.waiting: deque[Job] = deque()
        self.lanes: list[_Place] | None = None
        self.proved = False  # whether a job has been done

    @property
    def room(self) -> int:
        lanes = self._lanes()
        return len(lanes) - sum(lane.work is not None for lane in lanes) - len(self.waiting)

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def next(self) -> Outcome:
        while True:
            for place in self._lanes():
                if place.work is None and self.waiting and self._may_start(place):
                    job = self.waiting.popleft()
                    place.start(job, _stock(job, self.texts[job.data], self.threads))
                outcome = place.advance()
                if outcome is not None:
                    self.proved = True
                    return outcome

    def _may_start(self, place: _Place) -> bool:
        """Whether a lane may have a job: the first always, another one while the GPU has plenty of memory."""
        if all(other.work is None for other in self._lanes()):
            return True
        import torch

        from closeknit.models.memory import memory_is_plenty

        if place.lane is None and not self.proved:
            return False  # how much a job takes is known when one has been done
        return place.lane is not None or memory_is_plenty(torch.device("cuda"))

    def _lanes(self) -> list[_Place]:
        if self.lanes is None:
            self.lanes = _places(self.amount)
        return self.lanes

    def close(self) -> None:
        self.lanes = None
        _stocks.clear()


class _Place:
    """A lane, its stream, and the job that is being done there."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.lane: Any = None
        self.work: Any = None

    def start(self, job: Job, stock: Any) -> None:
        from closeknit.models.memory import Lane
        from closeknit.protocol import doing

        if self.lane is None or self.lane.stock is not stock:
            self.lane = Lane(stock)
        self.work = doing(job, self.lane)

    def advance(self) -> Outcome | None:
        """Some more updates of the job; its outcome where it came to its end."""
        import torch

        if self.work is None:
            return None
        with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            try:
                for _ in range(STRIDE):
                    next(self.work)
            except StopIteration as end:
                self.work = None
                outcome: Outcome = end.value
                return outcome
        return None


def _places(amount: int) -> list[_Place]:
    import torch

    if not torch.cuda.is_available():
        return [_Place(None)]
    return [_Place(torch.cuda.Stream()) for _ in range(amount)]


# ---------------------------------------------------------------- processes of this machine

_texts: Mapping[str, Examples] = {}  # of a worker process
_threads = 1


def _begin_worker(texts: Mapping[str, Examples], threads: int, parent: int, number: Any) -> None:
    """Runs once in each worker: takes the texts, chooses a GPU, and ends with whoever started it."""
    global _texts, _threads
    _texts, _threads = texts, threads
    with number.get_lock():
        place, number.value = number.value, number.value + 1

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    import signal

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the command that shares the terminal
    import torch

    gpus = torch.cuda.device_count()
    if gpus > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(place % gpus)


def _in_worker(job: Job) -> Outcome:
    return _do(job, _texts[job.data], _threads)


class Workers:
    """Several processes on this machine; those that die are replaced and their jobs begun again."""

    def __init__(self, texts: Mapping[str, Examples], amount: int, threads: int) -> None:
        self.texts, self.amount, self.threads = texts, amount, threads
        self.jobs: dict[Future[Outcome], Job] = {}
        self.deaths = 0
        self.pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self.amount,
            context,
            _begin_worker,
            (self.texts, self.threads, os.getpid(), context.Value("i", 0)),
        )

    @property
    def room(self) -> int:
        return self.amount + 1 - len(self.jobs)  # one waits, so that no worker does

    def submit(self, job: Job) -> None:
        try:
            self.jobs[self.pool.submit(_in_worker, job)] = job
        except BrokenProcessPool:
            self._replace_pool()
            self.jobs[self.pool.submit(_in_worker, job)] = job

    def next(self) -> Outcome:
        while True:
            done = next(iter(wait(self.jobs, return_when=FIRST_COMPLETED).done))
            try:
                outcome = done.result()
            except BrokenProcessPool:
                self._replace_pool()
                continue
            del self.jobs[done]
            self.deaths = 0
            return outcome

    def _replace_pool(self) -> None:
        self.deaths += 1
        if self.deaths > RETRIES:
            raise TrainingError(
                f"worker processes died {self.deaths} times in a row, most likely for want of memory; "
                "use fewer --workers, or a smaller train.batch_size"
            )
        unfinished = list(self.jobs.values())
        self.jobs.clear()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool = self._new_pool()
        for job in unfinished:
            self.jobs[self.pool.submit(_in_worker, job)] = job

    def close(self) -> None:
        processes = list((self.pool._processes or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


# ---------------------------------------------------------------- a Ray cluster


class Cluster:
    """Tasks on a Ray cluster: each asks for its share of a node, and is begun again where a node dies."""

    def __init__(
        self, texts: Mapping[str, Examples], address: str, threads: int, gpus: float
    ) -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingExtra("running on a Ray cluster", "cluster") from None
        ray = self.ray
        _check_answers(address)
        try:
            ray.init(
                address=address, logging_level="ERROR", log_to_driver=False, configure_logging=False
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster answers at {address} ({str(error).splitlines()[0][:120]}); start one with: ray start --head"
            ) from None
        self.cpus, self.gpus = threads, gpus
        offered = ray.cluster_resources()
        if offered.get("CPU", 0) < threads or offered.get("GPU", 0) < gpus:
            self.close()
            raise ConfigError(
                f"a run asks for {threads} CPUs and {gpus:g} GPUs; the cluster at {address} has {offered.get('CPU', 0):g} and "
                f"{offered.get('GPU', 0):g} in all"
            )
        self.texts = {name: ray.put(examples) for name, examples in texts.items()}
        # The function's own module is asked of the workers by name: they need Closeknit installed, as a user would.
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": RETRIES}
        self.remote: Callable[..., Any] = ray.remote(**options)(_on_cluster).remote
        self.jobs: dict[Any, Job] = {}

    @property
    def room(self) -> int:
        offered = self.ray.cluster_resources()
        places = [offered.get("CPU", 1) / self.cpus] + (
            [offered.get("GPU", 0) / self.gpus] if self.gpus else []
        )
        return 2 * max(1, int(min(places))) - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs[self.remote(job, self.texts[job.data], self.cpus)] = job

    def next(self) -> Outcome:
        ready, _ = self.ray.wait(list(self.jobs), num_returns=1)
        self.jobs.pop(ready[0])
        try:
            outcome: Outcome = self.ray.get(ready[0])
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (
                cause
                if isinstance(cause, CloseknitError)
                else TrainingError(f"on the cluster: {cause}")
            ) from None
        except self.ray.exceptions.RayError as error:
            raise TrainingError(
                f"the cluster lost a run {RETRIES + 1} times: {str(error).splitlines()[0]}"
            ) from None
        return outcome

    def close(self) -> None:
        self.ray.shutdown()


def _check_answers(address: str, seconds: float = 5.0) -> None:
    """Ray itself waits for minutes where nobody answers."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # `auto` and the like are looked up on this machine
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error}); start one with: ray start --head"
        ) from None


_cluster_texts: dict[
    str, Examples
] = {}  # of a Ray worker: texts that came with an earlier job, as the same object


def _on_cluster(job: Job, examples: Examples, threads: int) -> Outcome:
    known = _cluster_texts.get(job.data)
    if known is None or known.texts != examples.texts or known.labels != examples.labels:
        known = _cluster_texts[job.data] = examples
    return _do(job, known, threads)
