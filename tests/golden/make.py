"""Make the golden data of a format: python tests/golden/make.py tests/golden/formatN

The folder must not exist: the data of a format are made once and never again (see README.md).
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import conftest
import test_golden
from conftest import TEXTS, run_command
from test_golden import HERE, few_filters, no_gpu, stopped_after

# The architecture of the tiny encoder, where it differs from that of other tests.
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "initializer_range": 0.3,  # or all texts would have nearly the same vector
}

ENCODER = ("--encoder", "inputs/encoder")
SHORT = ("--set", "encoder.max_length=16")
FAST = ("--epochs", "4", "--batch-size", "6", "--lr", "3e-3")
WITH_VALIDATION = ("--set", "train.validation=0.2")

# name -> (command without --out, update after which the same run is stopped; 0: it is not stopped)
RUNS: dict[str, tuple[tuple[str, ...], int]] = {
    "classifier": (
        (
            "train", "inputs/texts.csv", "--objective", "triple_entropy", *ENCODER, *SHORT, *FAST,
            *WITH_VALIDATION,
        ),
        6,
    ),
    "mean": (
        (
            "train", "inputs/texts.csv", *ENCODER, *SHORT, "--epochs", "10",
            "--set", "encoder.pooling=mean",
        ),
        0,
    ),
    "neighbours": (
        (
            "train", "inputs/texts.csv", "--objective", "supcon", "--set", "objective.ce_weight=0",
            "--set", "objective.classifier=knn", *ENCODER, *SHORT, *FAST,
        ),
        0,
    ),
    "pairs": (
        (
            "train", "inputs/pairs.csv", "--objective", "cross_entropy", *ENCODER, *SHORT, *FAST,
            *WITH_VALIDATION,
        ),
        7,
    ),
    "textcnn": (
        (
            "train", "inputs/texts.csv", "--objective", "cross_entropy", "--encoder", "textcnn",
            *SHORT, *FAST, *WITH_VALIDATION,
        ),
        6,
    ),
    "sentences": (
        (
            "embeddings", "inputs/sentences.txt", "--method", "simcse", "--pooling", "first",
            *ENCODER, *SHORT, *FAST, "--set", "method.head=keep",
            "--set", "train.evaluate_every=3", "--validation", "inputs/scored.csv",
        ),
        5,
    ),
    "tasks": (("multitask", "inputs/tasks.toml"), 9),
}  # fmt: skip

TASKS = """\
[tasks.topic]
kind = "classify"
data = "topic.csv"
[tasks.same]
kind = "pair_classify"
data = "pairs.csv"
[tasks.alike]
kind = "pair_score"
data = "scored.csv"
[encoder]
name = "inputs/encoder"
max_length = 24
[train]
epochs = 3
batch_size = 8
lr = 3e-3
validation = 0.2
"""

STUDY = """\
[study]
data = ["inputs/texts.csv"]
objectives = ["cross_entropy", "triple_entropy"]
sizes = [0]
seeds = [1, 2]
folds = 2
[encoder]
name = "inputs/encoder"
max_length = 16
pooling = "mean"
[train]
epochs = 4
batch_size = 6
lr = 3e-3
"""

SEARCH = """\
[study]
data = ["inputs/texts.csv"]
objectives = ["cross_entropy", "triple_entropy"]
sizes = [0]
seeds = [3]
folds = 2
[search]
method = "halving"
trials = 3
splits = 2
[search.spaces.cross_entropy]
"train.lr" = [1e-3, 3e-3, 1e-2]
[search.spaces.triple_entropy]
"train.lr" = [1e-3, 3e-3]
ce_weight = [0.3, 0.7]
[encoder]
name = "inputs/encoder"
max_length = 16
pooling = "mean"
[train]
epochs = 4
batch_size = 6
lr = 5e-3
"""

# name -> (its file, updates after which it is stopped): in the middle of a run
STUDIES = {"plain": (STUDY, 64), "search": (SEARCH, 150)}


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    if target.exists():
        sys.exit(f"{target} exists already; the data of a format are never made again")
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name).resolve()
        no_gpu(patch)
        few_filters(patch)
        make_inputs(folder / "inputs", patch)
        for kind, (command, stop) in RUNS.items():
            run(folder, *command, "--out", f"models/{kind}")
            if stop:
                with stopped_after(stop):
                    run(folder, *command, "--out", f"unfinished/{kind}", code=130)
        for study, (text, stop) in STUDIES.items():
            (folder / f"inputs/{study}.toml").write_text(text, encoding="utf-8")
            make_study(folder, study, stop)
        write(folder / "commands.json", {kind: command for kind, (command, _) in RUNS.items()})
        write(folder / "answers.json", test_golden.answers(folder))
        for page in folder.rglob("report.html"):  # large, and written again by `report`
            page.unlink()
        hide_the_folder(folder)
        shutil.copytree(folder, target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {size:,} bytes")


def run(folder: Path, *arguments: str, code: int = 0) -> None:
    done = run_command(folder, arguments)
    if done.returncode != code:
        sys.exit(f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")


def make_inputs(inputs: Path, patch: pytest.MonkeyPatch) -> None:
    """A tiny encoder, and small data of every kind."""
    patch.setitem(conftest.TINY, "bert", SHAPE)
    conftest.make_tiny_encoder(inputs / "encoder", "bert")
    table(inputs / "texts.csv", ("text", "label"), TEXTS)
    own = TEXTS[:18]
    table(inputs / "topic.csv", ("text", "label"), own)
    couples = list(itertools.combinations(own, 2))[::4]
    same = [(a, b, "yes" if topic == other else "no") for (a, topic), (b, other) in couples]
    table(inputs / "pairs.csv", ("text", "text2", "label"), same)
    alike = [(a, b, round(5.0 * shared_words(a, b), 2)) for (a, _), (b, _) in couples]
    table(inputs / "scored.csv", ("text", "text2", "score"), alike)
    (inputs / "sentences.txt").write_text("".join(f"{text}\n" for text, _ in own), encoding="utf-8")
    (inputs / "tasks.toml").write_text(TASKS, encoding="utf-8")


def shared_words(first: str, second: str) -> float:
    """The share of words that two texts have in common."""
    a, b = set(first.split()), set(second.split())
    return len(a & b) / len(a | b)


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def make_study(folder: Path, study: str, stop: int) -> None:
    """The study in its folder, stopped in the middle, and the lines of the same study finished."""
    command = ("compare", "--config", f"inputs/{study}.toml", "--out")
    with stopped_after(stop, at_once=True):
        run(folder, *command, f"studies/{study}", code=130)
    run(folder, *command, f"whole/{study}")
    (folder / "complete").mkdir(exist_ok=True)
    shutil.copy(folder / f"whole/{study}/results.jsonl", folder / f"complete/{study}.jsonl")
    trials = folder / f"whole/{study}/trials.jsonl"
    if trials.exists():
        shutil.copy(trials, folder / f"complete/{study}-trials.jsonl")
    shutil.rmtree(folder / "whole")


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def hide_the_folder(folder: Path) -> None:
    """Replace the path of the folder, which runs of several tasks keep, by a placeholder."""
    for path in folder.rglob("*"):
        if path.is_file() and (content := path.read_bytes()).find(bytes(folder)) >= 0:
            path.write_bytes(content.replace(bytes(folder), HERE.encode()))


if __name__ == "__main__":
    main()
