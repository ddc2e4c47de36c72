"""Messages and progress on the error stream: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

SECONDS_BETWEEN_LINES = 10.0  # if the error stream is a file or a pipe
SECONDS_BETWEEN_REDRAWS = 0.2  # not less: to draw the bar, a loss is read, which waits for the GPU


class ShownStep(Protocol):
    """What is shown of one update of the weights."""

    @property
    def number(self) -> int: ...
    @property
    def epoch(self) -> float: ...
    @property
    def loss(self) -> float: ...
    @property
    def scores(self) -> dict[str, float]: ...


AStep = TypeVar("AStep", bound=ShownStep, covariant=True)


class Followed(Protocol[AStep]):
    """A training run whose progress can be shown: iterating over it trains, step by step."""

    @property
    def steps(self) -> int: ...
    @property
    def world(self) -> Any: ...  # its `main` says whether this process is the one that prints
    def __iter__(self) -> Iterator[AStep]: ...


def say(text: str) -> None:
    """Write one line to the error stream."""
    print(text, file=sys.stderr, flush=True)


def follow(fit: Followed[AStep], label: str, *, show: bool = True) -> Iterator[AStep]:
    """Yield the steps of a training run as they happen, and show its progress."""
    if not show or not fit.world.main:
        yield from fit
    elif sys.stderr.isatty():
        yield from _with_bar(fit, label)
    else:
        yield from _with_lines(fit, label)


@contextlib.contextmanager
def progress_bar(
    label: str, total: int, *, show: bool = True
) -> Iterator[Callable[[int], object] | None]:
    """A bar in a terminal, as a function that advances it; None where no bar is shown."""
    if not show or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)


class _Speed:
    """Steps per second since the first step that this process saw."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.first: int | None = None  # the step before the first one: a resumed run begins later

    def after(self, number: int) -> float:
        """The speed after the step with this number."""
        if self.first is None:
            self.first = number - 1
        return (number - self.first) / max(time.monotonic() - self.started, 1e-9)


def _facts(step: ShownStep, scores: dict[str, float], speed: float) -> str:
    shown = {name: value for name, value in scores.items() if name != "n" and "/" not in name}
    listed = "".join(f"  {name} {value:.4f}" for name, value in shown.items())
    return f"loss {step.loss:.4f}  {speed:.1f} steps/s{listed}"


def _with_bar(fit: Followed[AStep], label: str) -> Iterator[AStep]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=fit.steps, facts="")
        speed = _Speed()
        redrawn = 0.0
        scores: dict[str, float] = {}
        for step in fit:
            steps_per_second = speed.after(step.number)
            scores = step.scores or scores
            now = time.monotonic()
            waited = now - redrawn >= SECONDS_BETWEEN_REDRAWS
            if step.scores or waited or step.number == fit.steps:
                facts = _facts(step, scores, steps_per_second)
                bar.update(task, completed=step.number, facts=facts)
                redrawn = now
            yield step


def _with_lines(fit: Followed[AStep], label: str) -> Iterator[AStep]:
    speed = _Speed()
    written = speed.started
    for step in fit:
        steps_per_second = speed.after(step.number)
        now = time.monotonic()
        waited = now - written >= SECONDS_BETWEEN_LINES
        if step.scores or waited or step.number == fit.steps:
            seconds_left = (fit.steps - step.number) / steps_per_second
            facts = _facts(step, step.scores, steps_per_second)
            say(
                f"{label}: step {step.number}/{fit.steps}  epoch {step.epoch:.1f}  {facts}  "
                f"{seconds_left:.0f} s left"
            )
            written = now
        yield step
