"""A training run in a folder: from a data source and a configuration to a saved, scored model."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from closeknit import training_checkpoints as checkpoint
from closeknit.config import differences
from closeknit.console import follow, say
from closeknit.errors import ConfigError, ModelError, Stopped
from closeknit.models.folder import (
    IDENTITY,
    KINDS,
    LOCK,
    MAIN,
    METRICS,
    STATES,
    is_ours,
    read_facts,
)
from closeknit.processes import World, this_world, wait_for_all
from closeknit.storage import lock_folder, no_space_explained, read_json, write_json
from closeknit.tasks import Step

# ---------------------------------------------------------------- what all runs in folders share


def begin_run(out: Path, resume: bool, overwrite: bool) -> World:
    """This run's processes; refuses what cannot go together, and a folder that is taken."""
    if resume and overwrite:
        raise ConfigError(
            "--resume and --overwrite cannot go together: one keeps the run, the other discards it"
        )
    world = this_world()
    if world.main:
        check_folder(out, resume=resume, overwrite=overwrite)
    return world


class RunnableFit(Protocol):
    """What a training in a folder needs of the fit of any product."""

    model: Any  # has `metrics` and `save`

    @property
    def steps(self) -> int: ...
    @property
    def world(self) -> World: ...
    def __iter__(self) -> Iterator[Step]: ...
    def save_state(self) -> None: ...


AFit = TypeVar("AFit", bound=RunnableFit)


def run_in_folder(
    out: Path,
    identity: Mapping[str, Any],
    label: str,
    build: Callable[[Path], AFit],
    finish: Callable[[AFit], None],
    resume: bool,
    overwrite: bool,
    world: World,
) -> dict[str, Any]:
    """Build a fit, train it to its end with its states in the folder, save its model there, and return its metrics."""
    states = out / STATES
    if world.main and resume:
        check_resumable(out, identity)
    if resume and (out / MAIN).exists() and not (states / IDENTITY).exists():
        if not world.main:
            return {}
        say(f"the run in {out} is finished already")
        metrics: dict[str, Any] = read_json(out / METRICS)
        return metrics
    fit, trained = build(states), False
    with contextlib.ExitStack() as stack:
        if world.main:
            with no_space_explained(out):
                states.mkdir(parents=True, exist_ok=True)
                lock = lock_folder(states / LOCK, out)
                stack.enter_context(lock or contextlib.nullcontext())
                if overwrite:  # the old model stays until the new one takes its place
                    checkpoint.clear(states, (IDENTITY,))
                write_json(states / IDENTITY, identity)
        wait_for_all(world)
        signals = stack.enter_context(_StopSignals())
        try:
            for step in follow(fit, label):
                if signals.received:
                    fit.save_state()
                    raise Stopped(
                        f"stopped after step {step.number} of {fit.steps}; the state is saved, go on with --resume"
                    )
            trained = signals.received = True  # no step is in progress: a signal ends what is left at once
            fit.model.metrics["data"] = identity["data"]
            finish(fit)
            if world.main:
                fit.model.save(out)
        except KeyboardInterrupt:
            if not trained:
                raise Stopped("stopped within a step; --resume goes on from the state saved last") from None
            fit.save_state()
            raise Stopped(
                "stopped after the last step, before the model was saved; the state is, go on with --resume"
            ) from None
        if world.main:
            checkpoint.clear(states, (LOCK, IDENTITY))
    return fit.model.metrics if world.main else {}


def check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is ours and the user said what to do with it."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if not held:
        return
    if not is_ours(out):
        raise ConfigError(
            f"{out} holds {held[0]} and is no model folder; it is left alone. Name another with --out"
        )
    if not (resume or overwrite):
        raise ConfigError(f"{out} exists already; --resume goes on with it, --overwrite replaces it")


@contextlib.contextmanager
def folder_held(out: Path) -> Iterator[None]:
    """Refuse a folder in which another run is at work."""
    handle = lock_folder(out / STATES / LOCK, out) if (out / STATES).is_dir() else None
    try:
        yield
    finally:
        if handle is not None:
            handle.close()


def check_resumable(out: Path, identity: Mapping[str, Any], *, tell: Callable[[str], None] = say) -> None:
    """Refuse to go on with a run, finished or not, that is another one than this."""
    states = out / STATES
    if (out / MAIN).exists() and not (states / IDENTITY).exists():
        facts = read_facts(out, identity["kind"])
        metrics = read_json(out / METRICS)
        run = metrics.get("asked", facts.get("run", {}))
        _refuse_changes({"run": run, "data": metrics.get("data", identity["data"])}, identity)
        return
    if not (states / IDENTITY).exists():
        tell(f"nothing to resume in {states.parent}; starting from the beginning")
        return
    before = read_json(states / IDENTITY)
    if not isinstance(before, dict) or not {"run", "data"} <= before.keys():
        raise ModelError(f"{states / IDENTITY} is damaged; begin again with --overwrite")
    if before.get("kind", identity["kind"]) != identity["kind"]:
        raise ConfigError(f"the run in {out} trains {KINDS[before['kind']]}, not {KINDS[identity['kind']]}")
    _refuse_changes(before, identity)


def _refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = differences(before["run"], now["run"])
    if changes:
        raise ConfigError(
            f"--resume with another configuration: {'; '.join(changes)}. Use the same, or --overwrite"
        )
    if before["data"] != now["data"]:
        raise ConfigError(
            f"--resume with other data: the run began with {before['data'].get('rows')} rows, now there are "
            f"{now['data']['rows']}, or their texts or labels changed; use the same data, or --overwrite"
        )


class _StopSignals:
    """Ctrl-C and SIGTERM end a run after the step in progress; a second one ends it at once."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
