"""A worker: trains with the code of one version, a few steps at a time."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from .cases import KINDS, Case, training_data


class Stopped(BaseException):
    """Ends a training from within; no handler of the package may take it for an error."""


class Valve:
    """Lets the training of an estimator pass a few steps at a time, as the parent process asks.

    Every update makes one `closeknit.Step`, a public class. Its constructor is wrapped here, and
    waits for the parent's next command where the training has to pause. So whole estimators are
    measured, and nothing but public names is needed.
    """

    def __init__(self, commands: TextIO, replies: TextIO) -> None:
        self.commands = commands
        self.replies = replies
        self.passed = 0  # the number of the last step
        self.until = 0  # the number of the step after which the training pauses
        self.begun = (0.0, 0.0)
        self._wrap_steps()

    def _wrap_steps(self) -> None:
        from closeknit import Step

        original = Step.__init__

        def construct(step: Any, *arguments: Any, **named: Any) -> None:
            original(step, *arguments, **named)
            if step.number > self.passed:  # a copy of a step has its number
                self.passed = step.number
                if step.number == self.until:
                    self._pause(step)

        setattr(Step, "__init__", construct)  # noqa: B010

    def train(self, case: Case) -> None:
        self.passed = 0
        self.until = case.warm_up
        make_estimator(case).fit(*training_data(case))
        raise RuntimeError(f"the training ended after {self.passed} steps, before it was stopped")

    def _pause(self, step: Any) -> None:
        """Report the steps since the last pause, and wait for the number of the next ones."""
        wait_for_device()
        seconds = time.perf_counter() - self.begun[0]
        processors = time.process_time() - self.begun[1]
        self.send({"seconds": seconds, "processors": processors, "loss": step.loss})
        command = self.receive()
        if command is None or "stop" in command:
            raise Stopped
        self.until = self.passed + int(command["steps"])
        wait_for_device()
        self.begun = (time.perf_counter(), time.process_time())

    def send(self, message: dict[str, Any]) -> None:
        self.replies.write(json.dumps(message) + "\n")
        self.replies.flush()

    def receive(self) -> dict[str, Any] | None:
        line = self.commands.readline()
        return json.loads(line) if line else None


def make_estimator(case: Case) -> Any:
    import closeknit

    kind = KINDS[case.kind]
    options = {
        "encoder": case.encoder,
        "epochs": case.epochs,
        "batch_size": case.batch_size,
        "max_length": case.tokens,
        **kind.options,
    }
    if kind.estimator == "MultiTask":
        options["train_options"] = {"validation": 0.0}
    return getattr(closeknit, kind.estimator)(**options)


def wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def work(src: Path) -> None:
    """Train one case after another, as the parent process asks on standard input."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed goes to the log
    import closeknit

    if src.resolve() not in Path(closeknit.__file__).resolve().parents:
        raise SystemExit(f"closeknit was imported from {closeknit.__file__}, not from {src}")
    valve = Valve(sys.stdin, replies)
    while (command := valve.receive()) is not None:
        if "case" not in command:
            continue  # a stop for a case that has failed already
        try:
            valve.train(Case(**command["case"]))
        except Stopped:
            pass
        except Exception as error:
            line = next(iter(str(error).splitlines()), "")
            valve.send({"error": f"{type(error).__name__}: {line}"})
        free_memory()


def free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
