"""The command line as a user meets it: in a process of its own, stdout apart from stderr."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

FAST = ("--epochs", "25", "--lr", "1e-3", "--batch-size", "12", "--set", "encoder.max_length=16")


@pytest.fixture(scope="module")
def workshop(tiny, tmp_path_factory):
    """A folder with data and a trained model that several tests look at."""
    import csv

    from conftest import TEXTS, run_command

    folder = tmp_path_factory.mktemp("workshop")
    with (folder / "small.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *TEXTS])
    arguments = ("small.csv", "--encoder", tiny(), "--out", "model", "--objective", "triple_entropy", *FAST)
    done = run_command(folder, ("train", *arguments))
    assert done.returncode == 0, done.stderr
    (folder / "train.out").write_text(done.stdout)
    (folder / "train.err").write_text(done.stderr)
    return folder


def test_training_tells_its_scores_on_stdout_and_its_progress_on_stderr(workshop):
    out, err = (workshop / "train.out").read_text(), (workshop / "train.err").read_text()
    assert out.startswith("test: accuracy")
    assert "model: model" in out
    assert "held out to score" in err
    assert "loss" in err
    assert "loss" not in out


def test_evaluate_predict_and_embed(workshop, closeknit):
    model, data = str(workshop / "model"), str(workshop / "small.csv")
    scores = json.loads(closeknit("evaluate", model, data, "--json").stdout)
    assert set(scores) == {"accuracy", "weighted_f1", "macro_f1", "n", "per_class"}
    assert scores["n"] == 36
    assert scores["accuracy"] > 0.8
    assert "precision" in closeknit("evaluate", model, data).stdout

    lines = closeknit("predict", model, data, "--json").stdout.splitlines()
    assert len(lines) == 36
    first = json.loads(lines[0])
    assert set(first) == {"text", "label", "probability", "probabilities"}
    assert first["probability"] == max(first["probabilities"].values())
    assert sum(first["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    spoken = closeknit("predict", model, "-", stdin="my card was stolen\nwhere is my refund\n").stdout
    assert [line.split("\t")[0] for line in spoken.splitlines()] == ["lost", "refund"]

    closeknit("embed", model, data, "--out", "vectors.npy")


def test_vectors_are_those_of_the_python_interface(workshop, closeknit, tmp_path, tiny):
    from closeknit import TextClassifier

    (tmp_path / "texts.txt").write_text("my card was stolen\nwhere is my refund\n")
    closeknit("embed", str(workshop / "model"), "texts.txt", "--out", "a.npy")
    expected = TextClassifier.load(workshop / "model").transform(["my card was stolen", "where is my refund"])
    assert np.allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-6)
    closeknit("embed", str(workshop / "model"), "texts.txt", "--out", "b.npy", "--normalize")
    assert np.allclose(np.linalg.norm(np.load(tmp_path / "b.npy"), axis=1), 1.0)
    (tmp_path / "long.txt").write_text("parcel\n")
    bare = closeknit("embed", tiny(), "long.txt", "--out", "c.npy", code=2)
    assert "at most 64 tokens" in bare.stderr  # the default is 128


def test_an_existing_folder_is_kept_unless_asked(workshop, closeknit, tiny):
    data, model = str(workshop / "small.csv"), str(workshop / "model")
    same = ("--encoder", tiny(), "--objective", "triple_entropy", *FAST, "--out", model)
    before = (workshop / "model" / "closeknit.json").read_bytes()
    assert (
        "--resume goes on with it, --overwrite replaces it" in closeknit("train", data, *same, code=2).stderr
    )
    finished = closeknit("train", data, *same, "--resume")
    assert "finished already" in finished.stderr
    assert finished.stdout.startswith("test: accuracy")
    changed = closeknit("train", data, *same, "--resume", "--seed", "9", code=2)
    assert "train.seed was 2 and is 9" in changed.stderr
    assert "cannot go together" in closeknit("train", data, *same, "--resume", "--overwrite", code=2).stderr
    assert (workshop / "model" / "closeknit.json").read_bytes() == before


def test_resuming_with_other_data_is_refused(tiny, small_csv, tmp_path, closeknit):
    same = ("--encoder", tiny(), *FAST, "--out", "model")
    states = tmp_path / "model" / "checkpoints"
    states.mkdir(parents=True)
    identity = {"run": None, "data": {"rows": 7, "digest": "x"}}
    from closeknit.config import read_config

    run = read_config(
        None,
        [
            "train.epochs=25",
            "train.lr=1e-3",
            "train.batch_size=12",
            "encoder.max_length=16",
            f'encoder.name="{tiny()}"',
        ],
    )
    identity["run"] = run.to_dict()
    (states / "run.json").write_text(json.dumps(identity))
    assert "began with 7 rows" in closeknit("train", small_csv, *same, "--resume", code=2).stderr


def test_overwriting_replaces_a_model_but_never_a_folder_of_something_else(
    tiny, small_csv, tmp_path, closeknit
):
    arguments = (str(small_csv), "--encoder", tiny(), *FAST, "--out", "model")
    closeknit("train", *arguments)
    closeknit("train", *arguments, "--overwrite", "--seed", "5")
    assert json.loads((tmp_path / "model" / "closeknit.json").read_text())["run"]["train"]["seed"] == 5
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    refused = closeknit("train", *arguments[:-1], "photos", "--overwrite", code=2)
    assert "holds cat.jpg and is no model folder" in refused.stderr
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"meow"


def test_overwriting_keeps_the_old_model_when_the_new_run_cannot_start(tiny, small_csv, tmp_path, closeknit):
    closeknit("train", small_csv, "--encoder", tiny(), *FAST, "--out", "model")
    closeknit("train", small_csv, "--encoder", str(tmp_path), *FAST, "--out", "model", "--overwrite", code=2)
    assert (tmp_path / "model" / "closeknit.json").exists()


def test_a_test_part_and_a_validation_part_are_used(tiny, small, tmp_path, closeknit):
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = list(zip(*small, strict=True))
    for part, own in (("train", rows[:18]), ("validation", rows[18:27]), ("test", rows[27:])):
        lines = [json.dumps({"text": text, "label": label}) for text, label in own]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    done = closeknit("train", "parts", "--encoder", tiny(), *FAST, "--set", "train.patience=4", "--json")
    metrics = json.loads(done.stdout)
    assert metrics["model"] == os.path.join("runs", "parts-cross_entropy")
    assert metrics["rows"] == 18
    assert metrics["test"]["n"] == 9
    assert metrics["validation"]["n"] == 9
    assert "held out" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "missing.csv"], "missing.csv does not exist"),
        (["train", "mesages"], "did you mean messages"),
        (["train", "small.csv", "--objective", "cross_entropi"], "did you mean cross_entropy"),
        (["train", "small.csv", "--encoder", "no-such/encoder"], "encoder no-such/encoder"),
        (["train", "small.csv", "--epochs", "0"], "train.epochs is 0"),
        (["train", "small.csv", "--epochs", "x"], "Invalid value for '--epochs'"),
        (["train", "small.csv", "--batch-size", "-1"], "train.batch_size is -1"),
        (["train", "small.csv", "--lr", "0"], "train.lr is 0"),
        (["train", "small.csv", "--set", "train.warmupp=1"], "did you mean warmup"),
        (["train", "small.csv", "--set", "objective.centers=3"], "objective.centers for cross_entropy"),
        (["train", "small.csv", "--config", "no.toml"], "no.toml does not exist"),
        (["train", "small.csv", "--out", "small.csv"], "small.csv is a file"),
        (["train", "small.csv", "--epoch", "3"], "No such option"),
        (["train", "one.csv"], "one class only"),
        (["train", "empty.csv"], "empty.csv is empty"),
        (["train", "small.csv", "--set", "data.label=kind"], "no column kind; it has text, label"),
        (["train"], "Missing argument"),
        (["trian"], "No such command"),
        (["evaluate", "nowhere", "small.csv"], "nowhere does not exist"),
        (["predict", ".", "small.csv"], "no model folder"),
        (["objectives", "triple"], "unknown objective triple"),
        (["data", "trecc"], "did you mean trec"),
        (["embed", "nowhere/at-all", "small.csv", "--out", "v.npy"], "encoder nowhere/at-all"),
        (["embed", "default", "small.csv", "--out", "v.txt"], "end in .npy"),
    ],
)
def test_mistakes_get_one_clear_line_and_exit_2(tiny, small_csv, tmp_path, closeknit, arguments, words):
    (tmp_path / "one.csv").write_text("text,label\na,x\nb,x\n")
    (tmp_path / "empty.csv").write_text("")
    done = closeknit(*arguments, code=2)
    assert words in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists(), "nothing may be left behind"


def test_labels_unknown_to_the_model_are_refused(workshop, closeknit, tmp_path):
    (tmp_path / "new.csv").write_text("text,label\nmy card,losst\n")
    done = closeknit("evaluate", str(workshop / "model"), "new.csv", code=2)
    assert "does not know the label losst; did you mean lost" in done.stderr


def test_every_commands_help_ends_with_an_example(closeknit):
    from closeknit.cli import app

    assert "closeknit demo" in closeknit("--help").stdout
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        text = " ".join(closeknit(name, "--help").stdout.split())
        if name != "version":
            assert f"Example: closeknit {name}" in text or f"| closeknit {name}" in text


def test_objectives_and_data_list_what_there_is(closeknit, monkeypatch):
    assert "triple_entropy" in closeknit("objectives").stdout
    assert "centers" in closeknit("objectives", "triple_entropy").stdout
    monkeypatch.setenv("CLOSEKNIT_DATA", "")
    listed = closeknit("data").stdout
    for name in ("trec", "sst2", "imdb", "20newsgroups", "goemotions", "messages"):
        assert name in listed
    assert "528 texts, 12 classes" in closeknit("data", "messages").stdout


def test_columns_of_training_are_remembered(tiny, small, tmp_path, closeknit):
    rows = "".join(f"{text},{label}\n" for text, label in zip(*small, strict=True))
    (tmp_path / "odd.csv").write_text("message,kind\n" + rows)
    names = ("--set", "data.text=message", "--set", "data.label=kind")
    closeknit("train", "odd.csv", "--encoder", tiny(), *FAST, *names, "--out", "model")
    assert json.loads(closeknit("evaluate", "model", "odd.csv", "--json").stdout)["n"] == 36
    assert len(closeknit("predict", "model", "odd.csv").stdout.splitlines()) == 36
    assert (
        "only settings of data"
        in closeknit("predict", "model", "odd.csv", "--set", "train.lr=1", code=2).stderr
    )


def test_a_closed_pipe_is_no_error(workshop):
    import subprocess
    import sys

    command = f"{sys.executable} -m closeknit predict model small.csv | head -1"
    done = subprocess.run(command, shell=True, cwd=workshop, capture_output=True, text=True)
    assert done.stderr == ""


def test_the_demo_runs_to_its_end_and_goes_on_where_it_stopped(closeknit, tmp_path, tiny):
    done = closeknit("demo", "--out", "demo", "--encoder", tiny(), "--folds", "2")
    assert "| triple_entropy | 2 |" in done.stdout
    assert "paired runs" in done.stdout
    assert {p.name for p in (tmp_path / "demo").iterdir()} == {
        "results.jsonl",
        "table.md",
        "comparison.png",
        "model",
    }
    assert (tmp_path / "demo" / "comparison.png").stat().st_size > 20_000
    lines = (tmp_path / "demo" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 4
    again = closeknit("demo", "--out", "demo", "--encoder", tiny(), "--folds", "2")
    assert again.stdout == done.stdout
    assert (tmp_path / "demo" / "results.jsonl").read_text().splitlines() == lines
