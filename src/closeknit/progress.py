"""Progress of long work on the error stream: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar


class ShownStep(Protocol):
    """What is shown of one update."""

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
    """A run whose steps can be followed."""

    @property
    def steps(self) -> int: ...
    @property
    def world(self) -> Any: ...  # has `main`: whether this is the process that prints
    def __iter__(self) -> Iterator[AStep]: ...


def follow(fit: Followed[AStep], label: str, *, show: bool = True) -> Iterator[AStep]:
    """The steps of a fit as they come, with their progress shown."""
    if not show or not fit.world.main:
        yield from fit
    elif sys.stderr.isatty():
        yield from _bar(fit, label)
    else:
        yield from _lines(fit, label)


def _facts(step: ShownStep, scores: dict[str, float], speed: float) -> str:
    shown = {name: value for name, value in scores.items() if name != "n" and "/" not in name}
    listed = "".join(f"  {name} {value:.4f}" for name, value in shown.items())
    return f"loss {step.loss:.4f}  {speed:.1f} steps/s{listed}"


def _bar(fit: Followed[AStep], label: str) -> Iterator[AStep]:
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
        line = bar.add_task(label, total=fit.steps, facts="")
        begun, first, told = time.monotonic(), None, 0.0
        scores: dict[str, float] = {}
        for step in fit:
            first = step.number - 1 if first is None else first
            scores = step.scores or scores
            now = time.monotonic()
            if (
                step.scores or now - told >= 0.2 or step.number == fit.steps
            ):  # reading a loss waits for the device
                speed = (step.number - first) / max(now - begun, 1e-9)
                bar.update(line, completed=step.number, facts=_facts(step, scores, speed))
                told = now
            yield step


def _lines(fit: Followed[AStep], label: str, every: float = 10.0) -> Iterator[AStep]:
    begun = told = time.monotonic()
    first: int | None = None
    for step in fit:
        now = time.monotonic()
        first = step.number - 1 if first is None else first
        last = step.number == fit.steps
        if step.scores or last or now - told >= every:
            speed = (step.number - first) / max(now - begun, 1e-9)
            left = (fit.steps - step.number) / speed
            facts = _facts(step, step.scores, speed)
            say(
                f"{label}: step {step.number}/{fit.steps}  epoch {step.epoch:.1f}  {facts}  {left:.0f} s left"
            )
            told = now
        yield step


@contextlib.contextmanager
def progress_bar(
    label: str, total: int, *, show: bool = True
) -> Iterator[Callable[[int], object] | None]:
    """A function that is told how much more is done, with a bar in a terminal; None where nothing is shown."""
    if not show or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        line = bar.add_task(label, total=total)
        yield lambda more: bar.advance(line, more)


def say(text: str) -> None:
    """One line on the error stream."""
    print(text, file=sys.stderr, flush=True)
