"""What earlier versions saved still opens and resumes; golden/README.md describes the data."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from closeknit.data import split
from conftest import run_command

GOLDEN = Path(__file__).parent / "golden"
FORMATS = sorted(GOLDEN.glob("format*"))
HERE = "{GOLDEN}"  # stands in the data for the folder in which they are opened
CLASSIFIERS = ("classifier", "mean", "neighbours", "pairs", "textcnn")
TASKS = {"topic": "inputs/topic.csv", "same": "inputs/pairs.csv", "alike": "inputs/scored.csv"}
UNFINISHED = ("classifier", "pairs", "textcnn", "sentences", "tasks")
EXACT = 1e-6


# ---------------------------------------------------------------- also used by golden/make.py


def few_filters(patch: pytest.MonkeyPatch) -> None:
    """Make every new TextCNN a tiny one.

    This is the only place in this file that imports names that are not public.
    """
    from closeknit.encoders.textcnn import TextCNN, TextCNNConfig

    def create(vocabulary: int, *, dropout: float = 0.5) -> TextCNN:
        return TextCNN(TextCNNConfig(vocabulary, embedding=8, filters=4, dropout=dropout))

    patch.setattr(TextCNN, "create", create)


def no_gpu(patch: pytest.MonkeyPatch) -> None:
    """Use the CPU: the data were made there, and a GPU draws other random numbers."""
    patch.setattr(torch.cuda, "is_available", lambda: False)


@contextlib.contextmanager
def counted_updates() -> Iterator[list[int]]:
    """A list with one number: how many updates the optimizer has made in this context."""
    count = [0]

    def note(*_: object) -> None:
        count[0] += 1

    handle = register_optimizer_step_post_hook(note)
    try:
        yield count
    finally:
        handle.remove()


@contextlib.contextmanager
def stopped_after(number: int, *, at_once: bool = False) -> Iterator[None]:
    """Send the signal of Ctrl-C after this update of the optimizer.

    With `at_once` the update raises KeyboardInterrupt itself, as Ctrl-C does in a study.
    """
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1
        if count == number and at_once:
            raise KeyboardInterrupt
        if count == number:
            os.kill(os.getpid(), signal.SIGINT)

    handle = register_optimizer_step_post_hook(note)
    try:
        yield
    finally:
        handle.remove()


def answers(folder: Path) -> dict[str, Any]:
    """The answers of all models in a folder of golden data.

    They are the lines of `predict`, the scores of `evaluate` and the vectors of `embed`.
    """

    def said(*arguments: str) -> str:
        done = run_command(folder, arguments)
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stderr}"
        return done.stdout

    def predictions(*arguments: str) -> list[Any]:
        return [json.loads(line) for line in said("predict", *arguments, "--json").splitlines()]

    def vectors(model: str, data: str) -> list[Any]:
        said("embed", model, data, "--out", "vectors.npy")
        found: list[Any] = np.load(folder / "vectors.npy").tolist()
        (folder / "vectors.npy").unlink()
        return found

    found: dict[str, Any] = {"predict": {}, "evaluate": {}, "embed": {}}
    for kind in CLASSIFIERS:
        data = "inputs/pairs.csv" if kind == "pairs" else "inputs/topic.csv"
        found["predict"][kind] = predictions(f"models/{kind}", data)
        found["evaluate"][kind] = json.loads(said("evaluate", f"models/{kind}", data, "--json"))
    for task, data in TASKS.items():
        found["predict"][f"tasks/{task}"] = predictions("models/tasks", data, "--task", task)
        scores = said("evaluate", "models/tasks", data, "--task", task, "--json")
        found["evaluate"][f"tasks/{task}"] = json.loads(scores)
    for kind in ("classifier", "mean", "sentences", "tasks"):
        found["embed"][kind] = vectors(f"models/{kind}", "inputs/sentences.txt")
    return found


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def folder(request, tmp_path, monkeypatch) -> Path:
    """A copy of the golden data of one format, which is also the working directory."""
    copy = tmp_path / "golden"
    shutil.copytree(request.param, copy)
    for path in copy.rglob("*"):
        if path.is_file() and HERE.encode() in (content := path.read_bytes()):
            path.write_bytes(content.replace(HERE.encode(), str(copy).encode()))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(copy)
    no_gpu(monkeypatch)
    return copy


def command_of(folder: Path, name: str) -> list[str]:
    """The command that made a model, without its --out."""
    commands: dict[str, list[str]] = read(folder / "commands.json")
    return commands[name]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def ran(folder: Path, *arguments: object) -> str:
    """Run a command that must succeed, and return what it writes to its error stream."""
    done = run_command(folder, arguments)
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stderr}"
    return done.stderr


def assert_close(found: Any, expected: Any, where: str = "") -> None:
    """Compare JSON values: numbers to 1e-6 (of 1, or of larger numbers), all else exactly.

    A later version may add keys, such as new settings, but not change or drop any.
    """
    if isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() >= expected.keys(), where
        for key, value in expected.items():
            assert_close(found[key], value, f"{where}/{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), where
        for place, value in enumerate(expected):
            assert_close(found[place], value, f"{where}/{place}")
    elif isinstance(expected, float):
        assert abs(found - expected) <= EXACT * (1.0 + abs(expected)), (where, found, expected)
    else:
        assert found == expected, where


def assert_same_weights(found: Path, expected: Path) -> None:
    """Compare all tensors of two model folders.

    The bias of the attention's keys is left out: it has no influence on the attention. Its
    gradient is only rounding error, which AdamW scales up, so that it differs between processors.
    """
    from safetensors.torch import load_file

    names = sorted(path.name for path in expected.glob("*.safetensors"))
    assert names and sorted(path.name for path in found.glob("*.safetensors")) == names
    for name in names:
        before, now = load_file(expected / name), load_file(found / name)
        assert now.keys() == before.keys()
        for key, value in before.items():
            if not key.endswith("attention.self.key.bias"):
                assert torch.allclose(now[key], value, rtol=EXACT, atol=EXACT), f"{name}: {key}"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


# ---------------------------------------------------------------- the data themselves


def test_there_is_a_format():
    assert FORMATS, "the golden data are missing"


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_the_data_are_small_and_name_no_folder_of_a_machine(path):
    files = [one for one in path.rglob("*") if one.is_file()]
    assert sum(one.stat().st_size for one in files) < 1_000_000
    for one in files:
        assert not re.search(rb"[\"'(= ]/\w+/\w", one.read_bytes()), f"{one} holds an absolute path"


# ---------------------------------------------------------------- saved models


def test_models_answer_as_when_they_were_saved(folder):
    expected = read(folder / "answers.json")
    assert_close(answers(folder), expected)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_classifier_answers_the_same_in_python(folder, kind):
    from closeknit import TextClassifier

    expected = read(folder / "answers.json")
    model = TextClassifier.load(folder / "models" / kind)
    if kind == "pairs":
        path = folder / "inputs" / "pairs.csv"
        texts: list[Any] = list(zip(column(path, "text"), column(path, "text2"), strict=True))
    else:
        texts = column(folder / "inputs" / "topic.csv", "text")
    lines = expected["predict"][kind]
    assert [str(label) for label in model.predict(texts)] == [line["label"] for line in lines]
    rows = model.predict_proba(texts).tolist()
    found = [dict(zip(model.classes_.tolist(), row, strict=True)) for row in rows]
    assert_close(found, [line["probabilities"] for line in lines])
    if kind in expected["embed"]:
        assert_close(model.transform(texts).tolist(), expected["embed"][kind])


def test_a_sentence_encoder_gives_the_same_vectors_in_python(folder):
    from closeknit import SentenceEncoder

    expected = read(folder / "answers.json")
    model = SentenceEncoder.load(folder / "models" / "sentences")
    texts = (folder / "inputs" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert_close(model.encode(texts).tolist(), expected["embed"]["sentences"])


def test_a_model_of_several_tasks_answers_the_same_in_python(folder):
    from closeknit import MultiTask

    expected = read(folder / "answers.json")
    model = MultiTask.load(folder / "models" / "tasks")
    for task, data in TASKS.items():
        lines = expected["predict"][f"tasks/{task}"]
        texts: list[Any] = column(folder / data, "text")
        if task != "topic":
            texts = list(zip(texts, column(folder / data, "text2"), strict=True))
        if task == "alike":
            assert_close(model.predict(task, texts).tolist(), [line["score"] for line in lines])
            continue
        classes = model.classes(task)
        rows = model.predict_proba(task, texts).tolist()
        found = [dict(zip(classes, row, strict=True)) for row in rows]
        assert_close(found, [line["probabilities"] for line in lines])
    texts = (folder / "inputs" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert_close(model.encode(texts).tolist(), expected["embed"]["tasks"])


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("kind", [*CLASSIFIERS, "sentences", "tasks"])
def test_a_finished_run_is_known_again(folder, kind):
    """The command that made a model, with --resume, finds the same settings and the same data."""
    model = folder / "models" / kind
    before = (model / "closeknit.json").read_bytes()
    with counted_updates() as updates:
        said = ran(folder, *command_of(folder, kind), "--out", f"models/{kind}", "--resume")
    assert "finished already" in said
    assert updates == [0]
    assert (model / "closeknit.json").read_bytes() == before


def hold_out_rows(patch: pytest.MonkeyPatch) -> None:
    """Hold out rows one by one in new runs, as versions of format 1 did.

    Every text of the data stands there twice, so that a new run has other rows.
    """
    patch.setattr(
        "closeknit.data.distinct_texts.split_distinct",
        lambda examples, share, seed: split(examples.required_labels, share, seed),
    )


@pytest.mark.parametrize("kind", UNFINISHED)
def test_a_checkpoint_resumes_to_the_same_weights(folder, kind, monkeypatch):
    """The run resumes where it was stopped.

    A later version may refuse instead, with a sentence that names the version that wrote it.
    """
    few_filters(monkeypatch)
    unfinished, whole = folder / "unfinished" / kind, folder / "models" / kind
    (state,) = unfinished.glob("checkpoints/**/state.json")
    done = read(state)["number"]
    with counted_updates() as updates:
        ran(folder, *command_of(folder, kind), "--out", f"unfinished/{kind}", "--resume")
    assert not (unfinished / "checkpoints").exists()
    assert_same_weights(unfinished, whole)
    assert_close(read(unfinished / "metrics.json"), read(whole / "metrics.json"))
    hold_out_rows(monkeypatch)
    with counted_updates() as all_updates:
        ran(folder, *command_of(folder, kind), "--out", "again")
    assert done > 0 and updates == [all_updates[0] - done]
    assert_same_weights(folder / "again", whole)


@pytest.mark.parametrize("kind", ["classifier", "mean", "sentences", "tasks"])
def test_a_run_file_makes_the_same_model_again(folder, kind, monkeypatch):
    hold_out_rows(monkeypatch)
    command, file = command_of(folder, kind), f"models/{kind}/run.toml"
    if kind == "tasks":
        ran(folder, "multitask", file, "--out", "again")
    else:
        scored = ("--validation", "inputs/scored.csv") if kind == "sentences" else ()
        ran(folder, *command[:2], "--config", file, *scored, "--out", "again")
    found = read(folder / "again" / "closeknit.json")
    expected = read(folder / "models" / kind / "closeknit.json")
    assert_close(found["run"], expected["run"])
    assert_same_weights(folder / "again", folder / "models" / kind)


# ---------------------------------------------------------------- studies


@pytest.mark.parametrize("study", ["plain", "search"])
def test_a_half_finished_study_resumes_and_repeats_no_run(folder, study):
    out, complete = folder / "studies" / study, folder / "complete"
    expected = lines_of(complete / f"{study}.jsonl")
    files = [out / name for name in ("results.jsonl", "trials.jsonl")]
    kept = {path.name: path.read_bytes() for path in files if path.exists()}
    details = {path.name: path.read_bytes() for path in (out / "details").iterdir()}
    before = sum(content.count(b"\n") for content in kept.values())
    assert 0 < len(lines_of(out / "results.jsonl")) < len(expected)

    with counted_updates() as updates:
        ran(folder, "compare", "--config", f"inputs/{study}.toml", "--out", out)

    found, trials = lines_of(out / "results.jsonl"), []
    assert [line["key"] for line in found] == [line["key"] for line in expected]
    assert_close([timeless(line) for line in found], [timeless(line) for line in expected])
    if study == "search":
        trials = lines_of(out / "trials.jsonl")
        planned = lines_of(complete / f"{study}-trials.jsonl")
        assert_close([timeless(line) for line in trials], [timeless(line) for line in planned])
    for name, content in kept.items():
        assert (out / name).read_bytes().startswith(content), f"{name}: a finished run has changed"
    for name, content in details.items():
        assert (out / "details" / name).read_bytes() == content, f"{name} has changed"
    (each,) = {line["steps"] for line in expected}  # a trial has as many updates as a run
    assert updates == [each * (len(found) + len(trials) - before)]


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    """A line of results without the fields that differ between machines and moments."""
    return {key: value for key, value in line.items() if key not in ("seconds", "versions")}
