"""Training step times of two versions of Closeknit, measured side by side in one run.

python benchmarks/step_times.py [BEFORE AFTER] [--device cpu|cuda] [--rounds N] [--threads N]
                                [--only CASE ...] [--out FILE.json]

BEFORE and AFTER are folders that hold `src/closeknit`, or git revisions. Without them the newest
tag (HEAD if there is no tag) is compared with the working tree.

Each version trains in its own worker process. The two workers take turns: one trains a few steps
while the other waits, and the order changes every round, so that noise of the machine hits both
versions alike. A step is all that a user waits for: making the batch, the forward and backward
passes and the update. Steps of the warm-up are not counted.

The ratio is the median over the rounds of (time of AFTER / time of BEFORE), with a 95 % bootstrap
interval; below 1.00 AFTER is faster. On a busy machine the ratio of processor time is the steadier
figure, but it does not see waiting. Two processes with the same code can differ by about 1 %. The
losses at the end of each case show whether both versions computed the same.

Encoders have random weights, texts are drawn from a seeded vocabulary: nothing is downloaded. The
Markdown table is printed; --out keeps it as FILE.md, and all single times as FILE.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side.cases import BATCHES, KINDS, SETTINGS, Case, Setting, make_encoder
from side_by_side.results import median_ratio, show, table
from side_by_side.worker import work

ROOT = Path(__file__).resolve().parent.parent

MOST_STEPS = 200  # per version and round


# ---------------------------------------------------------------- the parent: both versions in turns


class Failed(Exception):
    """A worker could not train a case."""


class Worker:
    """A process that trains with the code of one version."""

    def __init__(self, version: str, src: Path, device: str, threads: int, log: Path) -> None:
        self.version = version
        self.src = src
        self.device = device
        self.threads = threads
        self.log = log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.src),
            "HF_HUB_OFFLINE": "1",
        }
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, __file__, "--worker", str(self.src)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def send(self, message: dict[str, Any]) -> None:
        if self.process.poll() is not None:
            self.process = self._start()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no reply either
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            tail = self.log.read_text(errors="replace").strip().splitlines()[-5:]
            raise Failed(
                f"{self.version}: the worker ended with status {code}. " + " / ".join(tail)
            )
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise Failed(f"{self.version}: {message['error']}")
        return message

    def time_steps(self, steps: int) -> dict[str, Any]:
        self.send({"steps": steps})
        reply = self.receive()
        return {
            "seconds": reply["seconds"] / steps,
            "processors": reply["processors"] / steps,
            "loss": reply["loss"],
        }

    def close(self) -> None:
        """Let the worker end; its standard input is closed, which also stops a training."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextlib.contextmanager
def started(case: Case, workers: list[Worker]) -> Iterator[None]:
    """Inside, both workers have done the warm-up of this case."""
    for worker in workers:
        worker.send({"case": asdict(case)})
    errors: list[str] = []
    for worker in workers:  # both are asked, so that no reply is left in a pipe
        try:
            worker.receive()
        except Failed as error:
            errors.append(str(error))
    try:
        if errors:
            raise Failed("; ".join(errors))
        yield
    finally:
        for worker in workers:
            worker.send({"stop": True})


def measure(case: Case, workers: list[Worker], setting: Setting, rounds: int) -> dict[str, Any]:
    """The times per step of both versions in every round, in seconds."""
    before, after = workers
    times: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    with started(case, workers):
        slower = max(worker.time_steps(2)["seconds"] for worker in workers)
        steps = int(np.clip(round(setting.seconds / slower), 1, MOST_STEPS))
        for number in range(rounds):
            turns = [("before", before), ("after", after)]
            for side, worker in turns if number % 2 == 0 else reversed(turns):
                times[side].append(worker.time_steps(steps))
    found: dict[str, Any] = {
        "case": case.title,
        "kind": case.kind,
        "tokens": case.tokens,
        "batch_size": case.batch_size,
        "steps_per_round": steps,
    }
    for side, replies in times.items():
        found[side] = [reply["seconds"] for reply in replies]
        found[f"{side}_processors"] = [reply["processors"] for reply in replies]
        found[f"{side}_loss"] = replies[-1]["loss"]
    for suffix in ("", "_processors"):
        found[f"ratio{suffix}"] = median_ratio(found[f"before{suffix}"], found[f"after{suffix}"])
    return found


# ---------------------------------------------------------------- the two versions


class Missing(Exception):
    """What is asked for is not there."""


def git(*arguments: str) -> bytes:
    """What a git command prints."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    except FileNotFoundError:
        raise Missing("git is not installed") from None
    if done.returncode:
        raise Missing(done.stderr.decode(errors="replace").strip())
    return done.stdout


def find_src(version: str, scratch: Path) -> Path:
    """The folder to import from: of a folder, or of a git revision, which is extracted first."""
    folder = Path(version)
    if (folder / "src" / "closeknit").is_dir():
        return (folder / "src").resolve()
    if folder.is_dir():
        raise Missing(f"{version} does not hold src/closeknit")
    try:
        archive = git("archive", "--format=tar", version, "src")
    except Missing as error:
        raise Missing(f"{version} is neither a folder nor a git revision ({error})") from None
    scratch.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(scratch, filter="data")
    return scratch / "src"


def usual_versions() -> tuple[str, str]:
    """The newest tag, or HEAD where there is none, and the working tree."""
    try:
        before = git("describe", "--tags", "--abbrev=0").decode().strip()
    except Missing:
        before = git("rev-parse", "--short", "HEAD").decode().strip()
    changed = git("diff", "--name-only", before, "--", "src")
    added = git("status", "--porcelain", "--", "src")
    if not changed and not added:
        raise Missing(f"the working tree's src is the same as that of {before}; name two versions")
    return before, str(ROOT)


def machine(options: argparse.Namespace, setting: Setting) -> str:
    import torch
    import transformers

    name = f"{platform.machine()} CPU, threads: {options.threads}"
    if options.device == "cuda":
        name = torch.cuda.get_device_name()
    return (
        f"BERT with random weights, {setting.layers} layers of {setting.hidden} dimensions, on {name}; "
        f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}."
    )


def compare(sources: list[Path], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all cases; what is known so far is kept after each of them."""
    setting = SETTINGS[options.device]
    rounds = options.rounds or setting.rounds
    facts = {
        "before": options.before,
        "after": options.after,
        "device": options.device,
        "rounds": rounds,
        "machine": machine(options, setting),
    }
    steps = setting.warm_up + (rounds + 2) * MOST_STEPS
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = Path(folder) / "encoder"
        make_encoder(encoder, setting, max(tokens for tokens, _ in setting.sizes))
        workers = [
            Worker(name, src, options.device, options.threads, Path(folder) / f"{name}.log")
            for name, src in zip(("before", "after"), sources, strict=True)
        ]
        try:
            for kind, (tokens, batch_size) in itertools.product(options.only, setting.sizes):
                epochs = -(-steps // BATCHES) + 1
                case = Case(
                    kind, tokens, batch_size, str(encoder), setting.words, setting.warm_up, epochs
                )
                try:
                    rows.append(measure(case, workers, setting, rounds))
                    print(f"{case.title}: {show(rows[-1]['ratio'])}", file=sys.stderr, flush=True)
                except Failed as error:
                    rows.append({"case": case.title, "error": str(error)})
                    print(f"{case.title} failed. {error}", file=sys.stderr, flush=True)
                keep(rows, facts, options.out)
        finally:
            for worker in workers:
                worker.close()
    print(table(rows, facts))
    return rows


def keep(rows: list[dict[str, Any]], facts: dict[str, Any], out: Path | None) -> None:
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**facts, "cases": rows}, indent=1), encoding="utf-8")
    out.with_suffix(".md").write_text(table(rows, facts), encoding="utf-8")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", help="a folder with src/closeknit, or a git revision")
    parser.add_argument("after", nargs="?", help="likewise")
    parser.add_argument("--device", choices=SETTINGS, help="default: cuda where there is a GPU")
    parser.add_argument("--rounds", type=int, help="default: 12 on a CPU, 10 on a GPU")
    parser.add_argument(
        "--threads", type=int, default=1, help="of each worker on a CPU (default 1: the steadiest)"
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="CASE",
                        help=f"some of: {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help="keep the times in this JSON file, the table beside it"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.before is None) != (options.after is None):
        parser.error("name both versions, or none")
    if options.rounds is not None and options.rounds < 2:
        parser.error("--rounds must be at least 2")
    return options


def main() -> None:
    options = read_options()
    if options.worker:
        work(options.worker)
        return
    import torch

    gpu = torch.cuda.is_available()
    options.device = options.device or ("cuda" if gpu else "cpu")
    if options.device == "cuda" and not gpu:
        raise SystemExit("step_times.py: there is no GPU here; use --device cpu")
    chosen = options.before is not None
    with tempfile.TemporaryDirectory() as scratch:
        try:
            if not chosen:
                options.before, options.after = usual_versions()
            sources = [
                find_src(version, Path(scratch) / name)
                for name, version in (("before", options.before), ("after", options.after))
            ]
        except Missing as error:
            if chosen:
                raise SystemExit(f"step_times.py: {error}") from None
            print(f"step_times.py: skipped, {error}")
            return
        rows = compare(sources, options)
    if any("error" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
