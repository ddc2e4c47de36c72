"""A training run in a folder: checkpoints while it runs, the saved model at its end, and resuming
in between.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from closeknit.console import follow, say
from closeknit.errors import ConfigError, ModelError, Stopped
from closeknit.models.fit import Fit
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
from closeknit.settings import Configuration, differences
from closeknit.storage import lock_folder, no_space_explained, read_json, write_json
from closeknit.training import checkpoints as checkpoint
from closeknit.training.processes import World, this_world, wait_for_all

# What a run is: its kind, its settings under "run", and the fingerprint of its rows under "data".
Identity = Mapping[str, Any]

AFit = TypeVar("AFit", bound=Fit[Any])


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, what the user asked to do with a run that is there already, and the
    processes.
    """

    path: Path
    resume: bool
    overwrite: bool
    world: World
    settings: type[Configuration]  # what the settings of the product are

    @staticmethod
    def open(
        path: Path, settings: type[Configuration], *, resume: bool = False, overwrite: bool = False
    ) -> RunFolder:
        """The folder for this program's processes. A folder that is taken is refused."""
        if resume and overwrite:
            raise ConfigError(
                "--resume and --overwrite cannot go together: one keeps the run, the other discards it"
            )
        world = this_world()
        if world.main:
            check_folder(path, resume=resume, overwrite=overwrite)
        return RunFolder(path, resume, overwrite, world, settings)

    def inside(self, *names: str) -> RunFolder:
        """A folder inside this one, with the same wishes."""
        return replace(self, path=self.path.joinpath(*names))

    @property
    def states(self) -> Path:
        """Where the checkpoints of an unfinished run are."""
        return self.path / STATES

    @property
    def finished(self) -> bool:
        """Whether the folder holds a finished run."""
        return (self.path / MAIN).exists() and not (self.states / IDENTITY).exists()

    def train(
        self,
        identity: Identity,
        label: str,
        build: Callable[[Path], AFit],
        score: Callable[[AFit], None],
    ) -> dict[str, Any]:
        """Build a fit, train it, score its model, save the model here, and return its metrics.

        `build` gets the folder for checkpoints. Of several processes only the first returns
        metrics.
        """
        if self.world.main and self.resume:
            self.check_resumable(identity)
        if self.resume and self.finished:
            return self._metrics_of_finished_run()
        fit = build(self.states)
        with contextlib.ExitStack() as stack:
            if self.world.main:
                lock = self._prepare_states(identity)
                stack.enter_context(lock)
            wait_for_all(self.world)
            signals = stack.enter_context(_StopSignals())
            self._train_and_save(fit, identity, label, score, signals)
            if self.world.main:
                checkpoint.clear(self.states, (LOCK, IDENTITY))
        return fit.model.metrics if self.world.main else {}

    def _metrics_of_finished_run(self) -> dict[str, Any]:
        if not self.world.main:
            return {}
        say(f"the run in {self.path} is finished already")
        metrics: dict[str, Any] = read_json(self.path / METRICS)
        return metrics

    def _prepare_states(self, identity: Identity) -> contextlib.AbstractContextManager[Any]:
        """Make the folder for checkpoints, lock it, and note which run it belongs to."""
        with no_space_explained(self.path):
            self.states.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(self.states / LOCK, self.path)
            if self.overwrite:  # the old model stays until the new model takes its place
                checkpoint.clear(self.states, (IDENTITY,))
            write_json(self.states / IDENTITY, identity)
        return lock or contextlib.nullcontext()

    def _train_and_save(
        self,
        fit: AFit,
        identity: Identity,
        label: str,
        score: Callable[[AFit], None],
        signals: _StopSignals,
    ) -> None:
        trained = False
        try:
            for step in follow(fit, label):
                if signals.received:
                    fit.save_state()
                    raise Stopped(
                        f"stopped after step {step.number} of {fit.steps}; the state is saved, continue with --resume"
                    )
            trained = True
            # No step is in progress any more, so that a signal ends what is left at once.
            signals.received = True
            fit.model.metrics["data"] = identity["data"]
            score(fit)
            if self.world.main:
                fit.model.save(self.path)
        except KeyboardInterrupt:
            if not trained:
                raise Stopped(
                    "stopped within a step; --resume continues from the newest checkpoint"
                ) from None
            fit.save_state()
            raise Stopped(
                "stopped after the last step, before the model was saved; the state is saved, continue with --resume"
            ) from None

    # -- resuming

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder; refuse one in which another run is at work."""
        handle = lock_folder(self.states / LOCK, self.path) if self.states.is_dir() else None
        try:
            yield
        finally:
            if handle is not None:
                handle.close()

    def check_resumable(self, identity: Identity, *, tell: Callable[[str], None] = say) -> None:
        """Refuse to resume a run, finished or not, that differs from this one."""
        if self.finished:
            self._refuse_changes(self._identity_of_finished_run(identity), identity)
            return
        path = self.states / IDENTITY
        if not path.exists():
            tell(f"nothing to resume in {self.path}; starting from the beginning")
            return
        before = read_json(path)
        if not isinstance(before, dict) or not {"run", "data"} <= before.keys():
            raise ModelError(f"{path} is damaged; start again with --overwrite")
        kind = str(before.get("kind", identity["kind"]))
        if kind != identity["kind"]:
            raise ConfigError(
                f"the run in {self.path} trains {KINDS[kind]}, not {KINDS[identity['kind']]}"
            )
        self._refuse_changes(before, identity)

    def kept_data(self) -> dict[str, Any] | None:
        """What the run in this folder, finished or not, keeps of its data; None without a run."""
        finished = self.finished
        path = self.path / METRICS if finished else self.states / IDENTITY
        if not path.exists():
            return None
        kept = read_json(path)
        data = kept.get("data", {}) if isinstance(kept, dict) else {}
        return data if isinstance(data, dict) else {}

    def _identity_of_finished_run(self, identity: Identity) -> Identity:
        facts = read_facts(self.path, identity["kind"])
        metrics = read_json(self.path / METRICS)
        return {
            "run": metrics.get("asked", facts.get("run", {})),
            "data": metrics.get("data", identity["data"]),
        }

    def _refuse_changes(self, before: Identity, now: Identity) -> None:
        changes = differences(self.settings, before["run"], now["run"])
        if changes:
            raise ConfigError(
                f"--resume with another configuration: {'; '.join(changes)}. Use the same settings, or --overwrite"
            )
        if before["data"] != now["data"]:
            raise ConfigError(
                f"--resume with other data: the run began with {before['data'].get('rows')} rows, now there are "
                f"{now['data']['rows']}, or their texts or labels changed; use the same data, or --overwrite"
            )


def check_folder(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is a model folder and the user said what to
    do with it.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; name a folder with --out")
    held = sorted(item.name for item in path.iterdir()) if path.is_dir() else []
    if not held:
        return
    if not is_ours(path):
        raise ConfigError(
            f"{path} holds {held[0]} and is no model folder; it is left alone. Name another folder with --out"
        )
    if not (resume or overwrite):
        raise ConfigError(f"{path} exists already; --resume continues it, --overwrite replaces it")


class _StopSignals:
    """Ctrl-C and SIGTERM end a run after the step in progress; a second one ends it at once."""

    def __init__(self) -> None:
        self.received = False
        self._handlers: dict[int, Any] = {}  # those that were there before

    def __enter__(self) -> _StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
