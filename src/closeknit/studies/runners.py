"""Runners do jobs: in this process, in several processes of this machine, or on a Ray cluster.

A runner takes jobs and returns outcomes in the order in which they are finished. Every runner does
a job with the same function and the same number of threads, so that the numbers are the same.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

import torch

from closeknit.data.examples import Examples
from closeknit.errors import CloseknitError, ConfigError, MissingExtra, TrainingError
from closeknit.models.memory import Lane, Stock, memory_is_plenty
from closeknit.studies.jobs import Job, Outcome, do_job, do_job_stepwise

MAX_RETRIES = 3  # how often a job is started again after the process that did it died
JOBS_PER_GPU = 3  # jobs that take turns on a GPU
UPDATES_PER_TURN = 16  # updates that a job queues on the GPU before the next job has its turn


class Runner(Protocol):
    """Does jobs. `capacity` is the number of jobs that it would like to receive now."""

    @property
    def capacity(self) -> int: ...

    def submit(self, job: Job) -> None: ...

    def next_outcome(self) -> Outcome: ...

    def close(self) -> None: ...


def threads_per_worker(workers: int) -> int:
    """The threads of each of these processes: its share of the cores, but not more than
    OMP_NUM_THREADS.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    share = cores // max(1, workers)
    return max(1, min(share, int(limit) if limit.isdecimal() else cores))


# ---------------------------------------------------------------- doing a job

_stocks: dict[str, Stock] = {}  # of this process: the stock of the last data set, by its name


def _stock_for(job: Job, examples: Examples, threads: int) -> Stock:
    """The encoder and the tokens of a data set, which this process keeps for its next job."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    stock = _stocks.get(job.data)
    if stock is None or stock.examples is not examples:
        _stocks.clear()
        stock = Stock(examples)
        _stocks[job.data] = stock
    return stock


def _do_job(job: Job, examples: Examples, threads: int) -> Outcome:
    return do_job(job, _stock_for(job, examples, threads))


# ---------------------------------------------------------------- this process


class InProcessRunner:
    """Does jobs in this process: one after another, or, on a GPU, several that take turns.

    The updates of a small model leave most of a GPU idle. Each job has its own stream: its updates
    are queued while those of other jobs run. The numbers are those of a job that runs alone.
    """

    def __init__(
        self, examples: Mapping[str, Examples], threads: int, jobs_per_gpu: int = JOBS_PER_GPU
    ) -> None:
        self.examples = examples
        self.threads = threads
        self.jobs_per_gpu = jobs_per_gpu
        self.queue: deque[Job] = deque()
        self.has_finished_a_job = False
        self._slots: list[_Slot] | None = None

    @property
    def slots(self) -> list[_Slot]:
        if self._slots is None:
            self._slots = _make_slots(self.jobs_per_gpu)
        return self._slots

    @property
    def capacity(self) -> int:
        free = sum(slot.is_free for slot in self.slots)
        return free - len(self.queue)

    def submit(self, job: Job) -> None:
        self.queue.append(job)

    def next_outcome(self) -> Outcome:
        while True:
            for slot in self.slots:
                if slot.is_free and self.queue and self._may_start(slot):
                    job = self.queue.popleft()
                    slot.start(job, _stock_for(job, self.examples[job.data], self.threads))
                outcome = slot.advance()
                if outcome is not None:
                    self.has_finished_a_job = True
                    return outcome

    def _may_start(self, slot: _Slot) -> bool:
        """Whether a slot may take a job: one always may, another one if the GPU has enough
        memory.
        """
        if slot.lane is not None or all(other.is_free for other in self.slots):
            return True
        # The memory that a job needs is known once one has finished.
        return self.has_finished_a_job and memory_is_plenty(torch.device("cuda"))

    def close(self) -> None:
        self._slots = None
        _stocks.clear()


class _Slot:
    """One job at a time, with the stream and the memory (the lane) that it uses on a GPU."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream
        self.lane: Lane | None = None
        self.steps: Generator[None, None, Outcome] | None = None

    @property
    def is_free(self) -> bool:
        return self.steps is None

    def start(self, job: Job, stock: Stock) -> None:
        if self.lane is None or self.lane.stock is not stock:
            self.lane = Lane(stock)
        self.steps = do_job_stepwise(job, self.lane)

    def advance(self) -> Outcome | None:
        """Do some more updates of the job; its outcome if it has finished."""
        if self.steps is None:
            return None
        with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            try:
                for _ in range(UPDATES_PER_TURN):
                    next(self.steps)
            except StopIteration as end:
                self.steps = None
                outcome: Outcome = end.value
                return outcome
        return None


def _make_slots(jobs_per_gpu: int) -> list[_Slot]:
    if not torch.cuda.is_available():
        return [_Slot(None)]
    return [_Slot(torch.cuda.Stream()) for _ in range(jobs_per_gpu)]


# ---------------------------------------------------------------- processes of this machine

# Of a worker process:
_worker_examples: Mapping[str, Examples] = {}
_worker_threads = 1


def _start_worker(
    examples: Mapping[str, Examples], threads: int, parent: int, started: Any
) -> None:
    """Prepare a worker process: it keeps the data, chooses a GPU, and ends when its parent ends.

    `started` is a shared counter of the workers.
    """
    global _worker_examples, _worker_threads
    _worker_examples = examples
    _worker_threads = threads
    with started.get_lock():
        number = started.value
        started.value += 1
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    gpus = torch.cuda.device_count()
    if gpus > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number % gpus)


def _end_with(parent: int) -> None:
    """End this process as soon as its parent has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _do_job_in_worker(job: Job) -> Outcome:
    try:
        return _do_job(job, _worker_examples[job.data], _worker_threads)
    except Exception as error:
        if _can_be_sent(error):
            raise
        raise TrainingError(f"a run failed: {type(error).__name__}: {error}") from None


def _can_be_sent(error: Exception) -> bool:
    """Whether the process that waits for a worker can read this error.

    One that it cannot read would break the pool, as if the worker had died.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


class ProcessPoolRunner:
    """Does jobs in several processes; those that die are replaced and their jobs started again."""

    def __init__(self, examples: Mapping[str, Examples], workers: int, threads: int) -> None:
        self.examples = examples
        self.workers = workers
        self.threads = threads
        self.jobs: dict[Future[Outcome], Job] = {}
        self.consecutive_deaths = 0
        self.pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        started = context.Value("i", 0)
        arguments = (self.examples, self.threads, os.getpid(), started)
        return ProcessPoolExecutor(self.workers, context, _start_worker, arguments)

    @property
    def capacity(self) -> int:
        return self.workers + 1 - len(self.jobs)  # one job waits, so that no worker has to

    def submit(self, job: Job) -> None:
        try:
            self._submit(job)
        except BrokenProcessPool:
            self._replace_pool()
            self._submit(job)

    def _submit(self, job: Job) -> None:
        self.jobs[self.pool.submit(_do_job_in_worker, job)] = job

    def next_outcome(self) -> Outcome:
        while True:
            done = next(iter(wait(self.jobs, return_when=FIRST_COMPLETED).done))
            try:
                outcome = done.result()
            except BrokenProcessPool:
                self._replace_pool()
                continue
            del self.jobs[done]
            self.consecutive_deaths = 0
            return outcome

    def _replace_pool(self) -> None:
        self.consecutive_deaths += 1
        if self.consecutive_deaths > MAX_RETRIES:
            raise TrainingError(
                f"worker processes died {self.consecutive_deaths} times in a row, most likely because memory was full; "
                "use fewer --workers, or a smaller train.batch_size"
            )
        unfinished = list(self.jobs.values())
        self.jobs.clear()
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool = self._new_pool()
        for job in unfinished:
            self._submit(job)

    def close(self) -> None:
        processes = list((self.pool._processes or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


# ---------------------------------------------------------------- a Ray cluster


class RayRunner:
    """Does jobs as tasks of a Ray cluster, which repeats a task when its node dies."""

    def __init__(
        self, examples: Mapping[str, Examples], address: str, threads: int, gpus: float
    ) -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingExtra("running on a Ray cluster", "cluster") from None
        self.cpus = threads
        self.gpus = gpus
        self.jobs: dict[Any, Job] = {}
        self._connect(address)
        self._check_resources(address)
        self.examples = {name: self.ray.put(rows) for name, rows in examples.items()}
        # Workers import the function's module by its name: they need Closeknit installed.
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": MAX_RETRIES}
        self.remote: Callable[..., Any] = self.ray.remote(**options)(_do_job_on_cluster).remote

    def _connect(self, address: str) -> None:
        _check_that_somebody_answers(address)
        try:
            self.ray.init(
                address=address, logging_level="ERROR", log_to_driver=False, configure_logging=False
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, str(error).splitlines()[0][:120]) from None

    def _check_resources(self, address: str) -> None:
        """Refuse a cluster on which a run could never start."""
        resources = self.ray.cluster_resources()
        cpus = resources.get("CPU", 0)
        gpus = resources.get("GPU", 0)
        if cpus < self.cpus or gpus < self.gpus:
            self.close()
            raise ConfigError(
                f"a run needs {self.cpus} CPUs and {self.gpus:g} GPUs; the cluster at {address} has {cpus:g} and "
                f"{gpus:g} in all"
            )

    @property
    def capacity(self) -> int:
        """Twice the number of jobs that fit on the cluster, so that some always wait there."""
        resources = self.ray.cluster_resources()
        jobs = resources.get("CPU", 1) / self.cpus
        if self.gpus:
            jobs = min(jobs, resources.get("GPU", 0) / self.gpus)
        return 2 * max(1, int(jobs)) - len(self.jobs)

    def submit(self, job: Job) -> None:
        self.jobs[self.remote(job, self.examples[job.data], self.cpus)] = job

    def next_outcome(self) -> Outcome:
        ready, _ = self.ray.wait(list(self.jobs), num_returns=1)
        self.jobs.pop(ready[0])
        try:
            outcome: Outcome = self.ray.get(ready[0])
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CloseknitError):
                raise error.cause from None
            raise TrainingError(f"on the cluster: {error.cause}") from None
        except self.ray.exceptions.RayError as error:
            raise TrainingError(
                f"the cluster lost a run {MAX_RETRIES + 1} times: {str(error).splitlines()[0]}"
            ) from None
        return outcome

    def close(self) -> None:
        self.ray.shutdown()


def _check_that_somebody_answers(address: str, seconds: float = 5.0) -> None:
    """Refuse an address where nobody answers; Ray would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # Ray looks up names like `auto` on this machine
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except OSError as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"no Ray cluster answers at {address} ({reason}); start one with: ray start --head"
    )


# Of a Ray worker: data sets that came with earlier jobs, so that equal ones are the same object.
_cluster_examples: dict[str, Examples] = {}


def _do_job_on_cluster(job: Job, examples: Examples, threads: int) -> Outcome:
    known = _cluster_examples.get(job.data)
    if known is None or known.texts != examples.texts or known.labels != examples.labels:
        known = examples
        _cluster_examples[job.data] = examples
    return _do_job(job, known, threads)
