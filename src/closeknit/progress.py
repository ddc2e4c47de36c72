"""Progress of long work on the error stream: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .tasks import Step

if TYPE_CHECKING:
    from .fitting import Fit


def follow(fit: Fit, label: str, *, show: bool = True) -> Iterator[Step]:
    """The steps of a fit as they come, with their progress shown."""
    if not show or not fit.world.main:
        yield from fit
    elif sys.stderr.isatty():
        yield from _bar(fit, label)
    else:
        yield from _lines(fit, label)


def _facts(step: Step, speed: float) -> str:
    scores = "".join(f"  {name} {value:.4f}" for name, value in step.scores.items() if name != "n")
    return f"loss {step.loss:.4f}  {speed:.1f} steps/s{scores}"


def _bar(fit: Fit, label: str) -> Iterator[Step]:
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
        begun, first = time.monotonic(), None
        scores: dict[str, float] = {}
        for step in fit:
            first = step.number - 1 if first is None else first
            scores = step.scores or scores
            shown = Step(step.number, step.epoch, step.losses, scores=scores)
            speed = (step.number - first) / max(time.monotonic() - begun, 1e-9)
            bar.update(line, completed=step.number, facts=_facts(shown, speed))
            yield step


def _lines(fit: Fit, label: str, every: float = 10.0) -> Iterator[Step]:
    begun = told = time.monotonic()
    first: int | None = None
    for step in fit:
        now = time.monotonic()
        first = step.number - 1 if first is None else first
        last = step.number == fit.steps
        if step.scores or last or now - told >= every:
            speed = (step.number - first) / max(now - begun, 1e-9)
            left = (fit.steps - step.number) / speed
            say(
                f"{label}: step {step.number}/{fit.steps}  epoch {step.epoch:.1f}  {_facts(step, speed)}  {left:.0f} s left"
            )
            told = now
        yield step


def say(text: str) -> None:
    """One line on the error stream."""
    print(text, file=sys.stderr, flush=True)
