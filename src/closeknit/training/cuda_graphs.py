"""Updates as CUDA graphs: launching a captured update as a whole instead of kernel by kernel.

An update on little data is hundreds of short kernels, and launching them one by one takes longer
than running them. A graph is launched as a whole. It is bound to its shapes and to the memory that
it reads. Therefore batches are padded to one of a few widths, the texts lie on the device, and what
differs from update to update (row numbers, seed, learning rates, progress) is written into the same
memory before each replay. The first update of a shape is launched kernel by kernel, the second is
captured.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from closeknit.acceleration.engine import Engine, UpdateNumbers, UpdateWork
from closeknit.errors import TrainingError
from closeknit.training.batches import DeviceBatches, DrawnBatch
from closeknit.training.task import Batch, Task

if TYPE_CHECKING:
    from closeknit.training.loop import Training

WIDTH_STEP = 8  # widths are multiples of it
MOST_GRAPHS = (
    32  # shapes that are captured in one run; updates of other shapes are launched kernel by kernel
)
UPDATE_COST = 56  # tokens of width that the fixed cost of an update is worth
CAPTURE_COST = 36  # updates that a capture is worth

ApplyUpdate = Callable[[Sequence[Task], Mapping[str, Sequence[Batch]]], UpdateNumbers]
Shape = tuple[tuple[str, int, int], ...]  # task, rows and width of each batch of an update


@dataclass(frozen=True)
class CapturedUpdate:
    """A graph, the memory of its inputs, and the memory of its numbers."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    numbers: UpdateNumbers
    memory: Tensor | None  # that the graph reads besides


class CudaGraphs:
    """Launches the updates of an engine as CUDA graphs, where their shapes are met again."""

    # When the last graph that reads torch's own seed will be done: all graphs read it in the same
    # memory.
    last: torch.cuda.Event | None = None

    def __init__(self, engine: Engine, device: torch.device, log: Callable[[str], None]) -> None:
        self.engine = engine
        self.log = log
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.launched: set[Hashable] = (
            set()
        )  # shapes of updates that were launched kernel by kernel
        self.captured: dict[Hashable, CapturedUpdate] = {}
        self.failed = False  # whether a capture failed, so that no other is tried

    def run(self, work: UpdateWork) -> UpdateNumbers:
        """One update; its dropout is seeded already."""
        captured = self.captured.get(work.shape)
        if captured is None and self._may_capture(work.shape):
            captured = self._capture(work)
        if captured is None:
            self.launched.add(work.shape)
            with self._on_own_stream():
                return work.compute(work.inputs)
        for target, source in zip(captured.inputs, work.inputs, strict=True):
            target.copy_(source)
        with self._after_other_graphs(work.width):
            captured.graph.replay()
        losses, terms, values = captured.numbers
        return losses, terms, values.clone()

    def keep_only(self, wanted: Callable[[Hashable], bool]) -> None:
        """Where there are many graphs, forget those of shapes that are not wanted."""
        if len(self.captured) > MOST_GRAPHS // 2:
            self.captured = {
                shape: graph for shape, graph in self.captured.items() if wanted(shape)
            }

    def _may_capture(self, shape: Hashable) -> bool:
        # torch's own optimizer makes its moments in the first update of a task, which must not be
        # captured; what is loaded at first use is there after any update
        moments_exist = bool(self.launched) and self.engine.updater.ready_to_capture
        ready = shape in self.launched or moments_exist
        return ready and not self.failed and len(self.captured) < MOST_GRAPHS

    def _capture(self, work: UpdateWork) -> CapturedUpdate | None:
        graph = torch.cuda.CUDAGraph()
        inputs = [tensor.clone() for tensor in work.inputs]
        memory = self.engine.updater.begin_capture()
        with self._on_own_stream(), _without_garbage_collection():
            if CudaGraphs.last is not None:  # a capture begins by writing torch's own seed
                self.stream.wait_event(CudaGraphs.last)
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                numbers = work.compute(inputs)
                graph.capture_end()
            except (RuntimeError, TrainingError) as error:
                self._give_up(graph, work.shape, error)
                return None
            CudaGraphs.last = self.stream.record_event()
        self.engine.updater.finish_capture()
        self.captured[work.shape] = CapturedUpdate(graph, inputs, numbers, memory)
        return self.captured[work.shape]

    def _give_up(self, graph: torch.cuda.CUDAGraph, shape: Hashable, error: Exception) -> None:
        """Clean up after a failed capture; capture nothing more if trying again cannot help."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        torch.cuda.synchronize()
        self.pool = (
            torch.cuda.graph_pool_handle()
        )  # what the failed capture leaves cannot be used again
        torch.cuda.empty_cache()  # a capture has its own memory, which may have been short
        # a shape that was never launched may only need something that is loaded at first use
        self.failed = shape in self.launched or isinstance(error, TrainingError)
        if self.failed:
            reason = str(error).strip().splitlines()[0]
            self.log(f"updates are launched kernel by kernel, as they cannot be captured: {reason}")

    @contextlib.contextmanager
    def _after_other_graphs(self, width: int) -> Iterator[None]:
        """After the graphs of other trainings, where dropout reads torch's own seed."""
        if not self.engine.draws_dropout_by_torch(width):
            yield
            return
        stream = torch.cuda.current_stream()
        if CudaGraphs.last is not None:
            stream.wait_event(CudaGraphs.last)
        yield
        CudaGraphs.last = stream.record_event()

    @contextlib.contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """On the stream that captures, after what is queued and before what will be."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Garbage can hold another graph, and freeing that graph spoils a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class PaddedBatches:
    """The updates of a run whose batches are padded to a few widths, so that shapes are met again.

    The texts of the batches lie on the device.
    """

    def __init__(self, tasks: Sequence[Task], epochs: int, apply: ApplyUpdate) -> None:
        # of this run alone: dropout draws by places in the padded batch, so another run's widths
        # would change it
        self.widths = {task.name: task_widths(task, epochs) for task in tasks}
        self.apply = apply

    def has_shape(self, shape: Hashable) -> bool:
        """Whether an update of this run can have this shape, as `work` gives it."""
        assert isinstance(shape, tuple)
        return all(width in self.widths.get(name, ()) for name, _, width in shape)

    def work(self, turn: Sequence[Task], taken: Mapping[str, int]) -> UpdateWork:
        """The update with the next batch of these tasks; `taken` counts the batches taken
        before.
        """
        sources = [task.batch for task in turn if isinstance(task.batch, DeviceBatches)]
        drawn = [source.draw(taken[task.name]) for task, source in zip(turn, sources, strict=True)]
        shape: Shape = tuple(
            (task.name, len(batch.share), self._width(task, batch))
            for task, batch in zip(turn, drawn, strict=True)
        )
        rows = [source.on_device(batch) for source, batch in zip(sources, drawn, strict=True)]

        def compute(inputs: Sequence[Tensor]) -> UpdateNumbers:
            batches = {}
            for source, batch, numbers, (name, _, width) in zip(
                sources, drawn, inputs, shape, strict=True
            ):
                batches[name] = [Batch(*source.build(numbers, width), batch.rows)]
            return self.apply(turn, batches)

        return UpdateWork(shape, max(width for _, _, width in shape), rows, compute)

    def _width(self, task: Task, drawn: DrawnBatch) -> int:
        return next(width for width in self.widths[task.name] if width >= drawn.width)


def why_not_captured(training: Training) -> str | None:
    """Why the updates of a training on a GPU cannot be captured; None if they can."""
    config = training.config
    token_views = [
        view for task in training.tasks for view in task.objective.views if view.endswith("tokens")
    ]
    batches_on_device = all(isinstance(task.batch, DeviceBatches) for task in training.tasks)
    reasons = {
        "several processes share a batch": training.world.size > 1,
        "train.accumulate is above 1": config.accumulate > 1,
        "train.chunk_size is set": config.chunk_size > 0,
        "fp16 scales its gradients": training.precision.scales_gradients,
        "gradients of tasks are combined": training.combine is not None,
        "mixed batches have too many shapes": training.schedule.mean_of_tasks,
        "batches are made anew from texts": not batches_on_device,
        "the second view of a text changes how the encoder computes": any(
            task.objective.second_copies.changes_encoding for task in training.tasks
        ),
        "an objective reads tokens whose number differs": bool(token_views)
        and not training.gradients.keep_unchosen_tokens,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def task_widths(task: Task, epochs: int) -> list[int]:
    """The few widths that a task's batches are padded to."""
    assert isinstance(task.batch, DeviceBatches)
    epochs_read = min(epochs, 2)
    widths = [task.batch.draw(number).width for number in range(epochs_read * task.per_epoch)]
    return choose_widths(np.array(widths), task.batch.widest, epochs / epochs_read)


def choose_widths(widths: np.ndarray, widest: int, times: float) -> list[int]:  # type: ignore[type-arg]
    """Widths to pad batches of these widths to, each of which is met so many times.

    Each width costs a capture, so there are few, and padding costs time, so it is little. The last
    width has room for the widest text. The cost of an update is a fixed part and a part that grows
    with its width.
    """
    rounded = -(-np.append(widths, widest) // WIDTH_STEP) * WIDTH_STEP
    amounts = np.append(np.full(len(widths), times), 0.0)
    options = np.unique(rounded)
    updates = np.array([amounts[rounded == option].sum() for option in options])
    best: dict[int, tuple[float, list[int]]] = {
        0: (0.0, [])
    }  # options covered -> cost, chosen widths
    for stop in range(1, len(options) + 1):
        width = int(options[stop - 1])
        price = UPDATE_COST + width
        candidates = [
            (
                best[start][0] + price * (updates[start:stop].sum() + CAPTURE_COST),
                [*best[start][1], width],
            )
            for start in range(stop)
        ]
        best[stop] = min(candidates, key=lambda candidate: candidate[0])
    return best[len(options)][1]
