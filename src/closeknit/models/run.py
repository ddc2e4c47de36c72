"""A training run in a folder: its checkpoints, resuming from them, and the saved model at its
end.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from closeknit.console import follow, say
from closeknit.errors import ConfigError, DataError, ModelError, Stopped
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
from closeknit.training.processes import (
    World,
    agree_to_stop,
    failing_together,
    texts_of_all,
    this_world,
)

# What identifies a run: its kind, its settings as "run", and the fingerprint of its rows as "data".
Identity = Mapping[str, Any]

# How long signals to one of several processes are taken for the same request.
SECONDS_OF_ONE_REQUEST = 3.0

AFit = TypeVar("AFit", bound=Fit[Any])


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and what the user asked for if there is a run in it already.

    `world` are the processes of this program.
    """

    path: Path
    resume: bool
    overwrite: bool
    world: World
    settings: type[Configuration]  # the class of the product's configuration

    @staticmethod
    def open(
        path: Path, settings: type[Configuration], *, resume: bool = False, overwrite: bool = False
    ) -> RunFolder:
        """The folder for the processes of this program; a folder with other content is refused."""
        if resume and overwrite:
            raise ConfigError(
                "--resume and --overwrite cannot go together: one keeps the run, the other discards it"
            )
        world = this_world()
        with failing_together(world):
            if world.main:
                check_folder(path, resume=resume, overwrite=overwrite)
        return RunFolder(path, resume, overwrite, world, settings)

    def inside(self, *names: str) -> RunFolder:
        """A folder inside this one; `resume` and `overwrite` apply to it too."""
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
        if self.resume:
            self.check_resumable_together(identity)
        _check_same_rows(identity, self.world)
        if self.resume and texts_of_all("finished" * self.finished, self.world)[0]:
            return self._metrics_of_finished_run()
        with failing_together(self.world):
            fit = build(self.states)
        with contextlib.ExitStack() as stack:
            with failing_together(self.world):
                if self.world.main:
                    lock = self._prepare_states(identity)
                    stack.enter_context(lock)
            signals = stack.enter_context(_StopSignals(self.world))
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
        """Make the folder for checkpoints, lock it, and write down which run it belongs to."""
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
            done = 0
            for step in follow(fit, label):
                done = step.number
                if self.world.stopping:
                    break
            if agree_to_stop(self.world):
                fit.save_state()
                raise Stopped(
                    f"stopped after step {done} of {fit.steps}; the state is saved, continue with --resume"
                )
            trained = True
            # No step is in progress any more, so a signal ends the remaining work at once.
            signals.end_at_once = True
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
        """Lock the folder for the time of the block; refuse it if another run has locked it."""
        handle = lock_folder(self.states / LOCK, self.path) if self.states.is_dir() else None
        try:
            yield
        finally:
            if handle is not None:
                handle.close()

    def check_resumable_together(
        self, identity: Identity, *, log: Callable[[str], None] = say
    ) -> None:
        """As `check_resumable`, by the first process for all."""
        with failing_together(self.world):
            if self.world.main:
                self.check_resumable(identity, log=log)

    def check_resumable(self, identity: Identity, *, log: Callable[[str], None] = say) -> None:
        """Refuse to resume a run, finished or not, that differs from this one."""
        if self.finished:
            self._refuse_changes(self._identity_of_finished_run(identity), identity)
            return
        path = self.states / IDENTITY
        if not path.exists():
            log(f"nothing to resume in {self.path}; starting from the beginning")
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
    """Refuse a folder with other files than those of a model or a run.

    A model or a run is refused too, unless the user wants to resume or to replace it.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; name a folder with --out")
    names = sorted(item.name for item in path.iterdir()) if path.is_dir() else []
    if not names:
        return
    if not is_ours(path):
        raise ConfigError(
            f"{path} holds {names[0]} and is no model folder; it is left alone. Name another folder with --out"
        )
    if not (resume or overwrite):
        raise ConfigError(f"{path} exists already; --resume continues it, --overwrite replaces it")


def _check_same_rows(identity: Identity, world: World) -> None:
    """Refuse processes that would learn from different rows, as from other files per machine."""
    rows = texts_of_all(json.dumps(identity["data"], sort_keys=True, default=str), world)
    other = [rank for rank, own in enumerate(rows) if own != rows[0]]
    if other:
        raise DataError(
            f"process {other[0]} has read other rows than process 0; give all machines the same data"
        )


class _StopSignals:
    """Ctrl-C and SIGTERM end a run after the step in progress; a second one ends it at once.

    A launcher passes on to its processes what the terminal has sent to them already. With several
    processes, signals that follow the first one closely are therefore the same request.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.end_at_once = False
        self._first: float | None = None  # when the first signal came
        self._handlers: dict[int, Any] = {}  # the handlers to restore at the end

    def __enter__(self) -> _StopSignals:
        self.world.stop.wanted = False
        self.world.stop.agreed = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif self.world.size > 1 and now - self._first < SECONDS_OF_ONE_REQUEST:
            return
        else:
            raise KeyboardInterrupt
        if self.end_at_once:
            raise KeyboardInterrupt
        self.world.stop.wanted = True

    def __exit__(self, *details: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
