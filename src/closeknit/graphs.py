"""Updates as CUDA graphs: the one place that knows about capture, behind the loop.

An update on little data is hundreds of short kernels, and launching them one by one takes longer than running them. A graph
is launched as a whole. It is bound to its shapes and to the memory it reads, so: batches are padded to one of a few widths,
the texts lie on the device, and what differs from update to update (row numbers, seed, learning rate, progress) is
written into the same places before each replay. The first update of a shape runs as it always did, the second is captured.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from closeknit.errors import TrainingError
from closeknit.tasks import Batch, Drawn, Shelved, Task

if TYPE_CHECKING:
    from closeknit.training import Training

GRAIN = 8  # widths are multiples of it
MOST_GRAPHS = 32  # shapes that are captured in one run; others are launched kernel by kernel
BASE, CAPTURE = (
    56,
    36,
)  # tokens of width that an update's fixed cost is worth; updates that a capture costs

Numbers = tuple[
    tuple[str, ...], tuple[str, ...], Tensor
]  # names of losses, names of terms, their values
Shape = tuple[tuple[str, int, int], ...]  # task, rows and width of each batch of an update


@dataclass(frozen=True)
class Captured:
    """A graph, where it reads its row numbers, and where it leaves its numbers."""

    graph: torch.cuda.CUDAGraph
    rows: list[Tensor]
    numbers: Numbers
    kept: Tensor | None  # memory that it reads


class Graphs:
    """Does the updates of a training by graphs, where their shapes allow it."""

    last: torch.cuda.Event | None = (
        None  # when the last graph that reads torch's own seed will be done
    )

    def __init__(self, training: Training, tell: Callable[[str], None]) -> None:
        self.training, self.tell = training, tell
        self.stream = torch.cuda.Stream(training.world.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: set[Shape] = set()  # that ran kernel by kernel
        self.warm = False  # whether any did: what is loaded once is there then
        self.captured: dict[Shape, Captured] = {}
        self.broken = False
        self.choose_widths()

    def choose_widths(self) -> None:
        """Those of the run that begins: dropout draws by places in the padded batch, so they may not be another run's."""
        epochs = self.training.config.epochs
        self.widths = {task.name: task_widths(task, epochs) for task in self.training.tasks}
        if (
            len(self.captured) > MOST_GRAPHS // 2
        ):  # room for this run's, where earlier ones had others
            wanted = {(name, width) for name, own in self.widths.items() for width in own}
            self.captured = {
                shape: own
                for shape, own in self.captured.items()
                if all((name, width) in wanted for name, _, width in shape)
            }

    def update(self, turn: Sequence[Task], drawn: Sequence[Drawn]) -> Numbers:
        """One update with the next batch of each task; dropout is seeded already."""
        shape = tuple(
            (task.name, len(own.share), self._width(task, own))
            for task, own in zip(turn, drawn, strict=True)
        )
        rows = [
            task.batch.on_device(own)
            for task, own in zip(turn, drawn, strict=True)
            if isinstance(task.batch, Shelved)
        ]
        found = self.captured.get(shape)
        # torch's own optimizer makes its moments in the first update of a task, which must not be a captured one
        ready = shape in self.seen or (self.warm and self.training.stepper is not None)
        if found is None and ready and not self.broken and len(self.captured) < MOST_GRAPHS:
            found = self._capture(turn, drawn, shape, rows)
        if found is None:
            self.seen.add(shape)
            self.warm = True
            with self._aside():
                return self._run(turn, drawn, shape, rows)
        for place, own in zip(found.rows, rows, strict=True):
            place.copy_(own)
        with self._alone(shape):
            found.graph.replay()
        losses, terms, values = found.numbers
        return losses, terms, values.clone()

    def _width(self, task: Task, drawn: Drawn) -> int:
        return next(width for width in self.widths[task.name] if width >= drawn.width)

    def _run(
        self, turn: Sequence[Task], drawn: Sequence[Drawn], shape: Shape, rows: Sequence[Tensor]
    ) -> Numbers:
        batches = {}
        for task, own, (_, _, width), numbers in zip(turn, drawn, shape, rows, strict=True):
            assert isinstance(task.batch, Shelved)
            batches[task.name] = [Batch(*task.batch.lay(numbers, width), own.rows)]
        return self.training.apply(turn, batches)

    def _capture(
        self, turn: Sequence[Task], drawn: Sequence[Drawn], shape: Shape, rows: Sequence[Tensor]
    ) -> Captured | None:
        graph, static = torch.cuda.CUDAGraph(), [own.clone() for own in rows]
        stepper = self.training.stepper
        kept = None if stepper is None else stepper.begin_capture()
        with self._aside(), _uncollected():
            if Graphs.last is not None:  # a capture begins by writing torch's own seed
                self.stream.wait_event(Graphs.last)
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                numbers = self._run(turn, drawn, shape, static)
                graph.capture_end()
            except (RuntimeError, TrainingError) as error:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                torch.cuda.synchronize()
                self.pool = (
                    torch.cuda.graph_pool_handle()
                )  # what the failed one leaves cannot be used again
                torch.cuda.empty_cache()  # a capture has memory of its own, which may be what was short
                # else it may only want something that is loaded at first use
                self.broken = shape in self.seen or isinstance(error, TrainingError)
                if self.broken:
                    reason = str(error).strip().splitlines()[0]
                    self.tell(
                        f"updates are launched kernel by kernel, as they cannot be captured: {reason}"
                    )
                return None
            Graphs.last = self.stream.record_event()
        if stepper is not None:
            stepper.finish_capture()
        self.captured[shape] = Captured(graph, static, numbers, kept)
        return self.captured[shape]

    @contextlib.contextmanager
    def _alone(self, shape: Shape) -> Iterator[None]:
        """After the graphs of other trainings, where dropout reads torch's own seed: all graphs read it in the same place."""
        lean, stream = self.training.lean, torch.cuda.current_stream()
        if lean is not None and lean.whole and lean.takes(max(width for _, _, width in shape)):
            yield
            return
        if Graphs.last is not None:
            stream.wait_event(Graphs.last)
        yield
        Graphs.last = stream.record_event()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream that captures, after what is queued and before what will be."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collection of garbage, in which there may be another graph: to free one spoils a capture."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def why_not(training: Training) -> str | None:
    """Why the updates of a training on a GPU cannot be graphs; None if they can."""
    config = training.config
    reasons = {
        "several processes share a batch": training.world.size > 1,
        "train.accumulate is above 1": config.accumulate > 1,
        "train.chunk_size is set": config.chunk_size > 0,
        "fp16 scales its gradients": training.scaler.is_enabled(),
        "gradients of tasks are combined": training.combine is not None,
        "batches are made anew from texts": not all(
            isinstance(task.batch, Shelved) for task in training.tasks
        ),
        "an objective reads tokens whose number differs": not training.gaps
        and any(
            view.endswith("tokens") for task in training.tasks for view in task.objective.views
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def task_widths(task: Task, epochs: int) -> list[int]:
    """The few widths that a task's batches are padded to."""
    assert isinstance(task.batch, Shelved)
    looked = min(epochs, 2)
    found = [task.batch.draw(number).width for number in range(looked * task.per_epoch)]
    return choose_widths(np.array(found), task.batch.widest, epochs / looked)


def choose_widths(found: np.ndarray, widest: int, times: float) -> list[int]:  # type: ignore[type-arg]
    """Widths for batches of these widths, each met so many times: few, as each costs a capture, and not much padding.

    The last has room for the widest text. The cost of an update is taken to grow with its width, from a fixed part on.
    """
    rounded = -(-np.append(found, widest) // GRAIN) * GRAIN
    amounts = np.append(np.full(len(found), times), 0.0)
    options = np.unique(rounded)
    weight = np.array([amounts[rounded == option].sum() for option in options])
    best: dict[int, tuple[float, list[int]]] = {
        0: (0.0, [])
    }  # number of options covered -> cost, widths
    for stop in range(1, len(options) + 1):
        price = BASE + options[stop - 1]
        best[stop] = min(
            (
                (
                    best[start][0] + price * (weight[start:stop].sum() + CAPTURE),
                    [*best[start][1], int(options[stop - 1])],
                )
                for start in range(stop)
            ),
            key=lambda found: found[0],
        )
    return best[len(options)][1]
