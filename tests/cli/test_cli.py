"""The command line as a user meets it: in a process of its own, stdout apart from stderr."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

FAST = ("--epochs", "25", "--lr", "1e-3", "--batch-size", "12", "--set", "encoder.max_length=16")
LONGER = (*FAST, "--epochs", "60")  # enough for any seed


@pytest.fixture(scope="module")
def workshop(tiny, tmp_path_factory):
    """A folder with data and a trained model that several tests look at."""
    import csv

    from conftest import TEXTS, run_command

    folder = tmp_path_factory.mktemp("workshop")
    with (folder / "small.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *TEXTS])
    arguments = (
        "small.csv",
        "--encoder",
        tiny(),
        "--out",
        "model",
        "--objective",
        "triple_entropy",
        *LONGER,
    )
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
    assert "are among the training rows too" not in err  # equal texts stay on one side
    assert "loss" in err
    assert "loss" not in out


def test_a_text_in_the_place_of_a_file_is_told_where_it_goes(workshop, closeknit):
    for command, more in (("predict", ()), ("embed", ("--out", "vectors.npy"))):
        done = closeknit(command, str(workshop / "model"), "where is my refund", *more, code=2)
        assert 'echo "where is my refund" | closeknit' in done.stderr


def test_evaluate_predict_and_embed(workshop, closeknit):
    model, data = str(workshop / "model"), str(workshop / "small.csv")
    scores = json.loads(closeknit("evaluate", model, data, "--json").stdout)
    measures = {"accuracy", "weighted_f1", "macro_f1", "mcc"}
    assert set(scores) == {*measures, "n", "per_class", "trained_on"}
    assert scores["n"] == 36
    assert scores["accuracy"] > 0.8
    assert "precision" in closeknit("evaluate", model, data).stdout

    lines = closeknit("predict", model, data, "--json").stdout.splitlines()
    assert len(lines) == 36
    first = json.loads(lines[0])
    assert set(first) == {"text", "label", "probability", "probabilities"}
    assert first["probability"] == max(first["probabilities"].values())
    assert sum(first["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    spoken = closeknit(
        "predict", model, "-", stdin="my card was stolen\nwhere is my refund\n"
    ).stdout
    assert [line.split("\t")[0] for line in spoken.splitlines()] == ["lost", "refund"]

    closeknit("embed", model, data, "--out", "vectors.npy")


def test_vectors_are_those_of_the_python_interface(workshop, closeknit, tmp_path, tiny):
    from closeknit import TextClassifier

    (tmp_path / "texts.txt").write_text("my card was stolen\nwhere is my refund\n")
    closeknit("embed", str(workshop / "model"), "texts.txt", "--out", "a.npy")
    expected = TextClassifier.load(workshop / "model").transform(
        ["my card was stolen", "where is my refund"]
    )
    assert np.allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-6)
    closeknit("embed", str(workshop / "model"), "texts.txt", "--out", "b.npy", "--normalize")
    assert np.allclose(np.linalg.norm(np.load(tmp_path / "b.npy"), axis=1), 1.0)
    (tmp_path / "long.txt").write_text("parcel\n")
    closeknit(
        "embed", tiny(), "long.txt", "--out", "c.npy"
    )  # a bare encoder takes texts as long as it can
    assert np.load(tmp_path / "c.npy").shape == (1, 32)


def test_an_existing_folder_is_kept_unless_asked(workshop, closeknit, tiny):
    data, model = str(workshop / "small.csv"), str(workshop / "model")
    same = ("--encoder", tiny(), "--objective", "triple_entropy", *LONGER, "--out", model)
    before = (workshop / "model" / "closeknit.json").read_bytes()
    assert (
        "--resume continues it, --overwrite replaces it"
        in closeknit("train", data, *same, code=2).stderr
    )
    finished = closeknit("train", data, *same, "--resume")
    assert "finished already" in finished.stderr
    assert finished.stdout.startswith("test: accuracy")
    changed = closeknit("train", data, *same, "--resume", "--seed", "9", code=2)
    assert "train.seed was 2 and is 9" in changed.stderr
    assert (
        "cannot go together"
        in closeknit("train", data, *same, "--resume", "--overwrite", code=2).stderr
    )
    assert (workshop / "model" / "closeknit.json").read_bytes() == before


def test_a_finished_run_of_the_recipe_is_known_again(tiny, small_csv, closeknit):
    """Though what it left open was settled when it ran."""
    same = (
        "train",
        small_csv,
        "--encoder",
        tiny(),
        "--epochs",
        "1",
        "--set",
        "encoder.max_length=16",
        "--out",
        "model",
        "--resume",
    )
    first = closeknit(*same)
    again = closeknit(*same)
    assert "finished already" in again.stderr and again.stdout == first.stdout
    changed = closeknit(*same, "--batch-size", "12", code=2).stderr
    assert "train.batch_size was 0 and is 12" in changed


def test_predicting_and_embedding_ask_for_no_labels(tiny, small_csv, tmp_path, closeknit):
    named = small_csv.read_text().replace("text,label", "text,category", 1)
    (tmp_path / "named.csv").write_text(named)
    words = ("--encoder", tiny(), *FAST, "--set", "data.label=category", "--out", "model")
    closeknit("train", "named.csv", *words)
    (tmp_path / "new.csv").write_text("text,category,text2\nwhere is my parcel,,x\n")
    (tmp_path / "NEW.TXT").write_text("where is my parcel\n")
    told = [closeknit("predict", "model", "NEW.TXT").stdout]
    told.append(closeknit("predict", "model", "new.csv", "--set", "data.text2=").stdout)
    assert told[0] == told[1] and told[0].endswith("where is my parcel\n")
    assert (
        "--set data.text2=''"
        in closeknit("embed", tiny(), "new.csv", "--out", "v.npy", code=2).stderr
    )
    closeknit("embed", tiny(), "new.csv", "--set", "data.text2=", "--out", "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (1, 32)


def test_resuming_with_other_data_is_refused(tiny, small_csv, tmp_path, closeknit):
    same = ("--encoder", tiny(), *FAST, "--out", "model")
    states = tmp_path / "model" / "checkpoints"
    states.mkdir(parents=True)
    identity = {"run": None, "data": {"rows": 7, "digest": "x"}}
    from closeknit.classification.config import read_config

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
    assert (
        json.loads((tmp_path / "model" / "closeknit.json").read_text())["run"]["train"]["seed"] == 5
    )
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    refused = closeknit("train", *arguments[:-1], "photos", "--overwrite", code=2)
    assert "holds cat.jpg and is no model folder" in refused.stderr
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"meow"


def test_overwriting_keeps_the_old_model_when_the_new_run_cannot_start(
    tiny, small_csv, tmp_path, closeknit
):
    closeknit("train", small_csv, "--encoder", tiny(), *FAST, "--out", "model")
    closeknit(
        "train",
        small_csv,
        "--encoder",
        str(tmp_path),
        *FAST,
        "--out",
        "model",
        "--overwrite",
        code=2,
    )
    assert (tmp_path / "model" / "closeknit.json").exists()


def test_a_test_part_and_a_validation_part_are_used(tiny, small, tmp_path, closeknit):
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = list(zip(*small, strict=True))
    for part, own in (("train", rows[:18]), ("validation", rows[18:27]), ("test", rows[27:])):
        lines = [json.dumps({"text": text, "label": label}) for text, label in own]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    done = closeknit(
        "train", "parts", "--encoder", tiny(), *FAST, "--set", "train.patience=4", "--json"
    )
    metrics = json.loads(done.stdout)
    assert metrics["model"] == os.path.join("runs", "parts-auto")
    assert metrics["rows"] == 18  # the names of the classes not counted
    assert (
        "class names are learnt as texts too: late, lost, refund (train.class_names=3)"
        in done.stderr
    )
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
        (["train", "small.csv", "--epochs", "-1"], "train.epochs is -1"),
        (["train", "small.csv", "--epochs", "x"], "Invalid value for '--epochs'"),
        (["train", "small.csv", "--batch-size", "-1"], "train.batch_size is -1"),
        (["train", "small.csv", "--lr", "0"], "train.lr is 0"),
        (["train", "small.csv", "--set", "train.warmupp=1"], "did you mean train.warmup"),
        (["train", "small.csv", "--set", "objective.centers=3"], "objective.centers for auto"),
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
        (["embed", "default", "small.csv", "--out", "small.csv/v.npy"], "small.csv is in the way"),
        (["data", "small.csv", "--set", "data.test=0.5"], "only `closeknit train` holds rows out"),
        (["data", "--set", "data.text=x"], "name the data set too"),
        (["train", "small.csv", "--config", "."], ". cannot be read or written: Is a directory"),
        (["report", "small.csv"], "small.csv is a file; name the folder of a study"),
        (["demo", "--out", "small.csv"], "small.csv is a file; name a folder with --out"),
    ],
)
def test_mistakes_get_one_clear_line_and_exit_2(
    tiny, small_csv, tmp_path, closeknit, arguments, words
):
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
    from closeknit.cli import COMMANDS, app

    assert "closeknit demo" in closeknit("--help").stdout
    names = [command.name for command in app.registered_commands]
    assert names == [command.name for command in COMMANDS]
    for name, _, example in COMMANDS:
        text = " ".join(closeknit(name, "--help").stdout.split())
        assert text.endswith(f"Example: {example}")
        assert f"closeknit {name} " in example


def test_the_examples_of_the_help_have_only_options_that_exist():
    import shlex

    import typer

    from closeknit.cli import COMMANDS, app

    group = typer.main.get_command(app)
    for name, _, example in COMMANDS:
        words = shlex.split(example)
        arguments = words[words.index("closeknit") + 2 :]
        with group.commands[name].make_context(name, arguments) as context:
            assert context.params


def test_the_first_line_of_every_help_fits_into_the_list_of_commands(closeknit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = closeknit("--help").stdout.split("Commands:")[1]
    assert "evaluate-embeddings" in listed and "..." not in listed


def test_help_needs_no_large_library():
    import subprocess
    import sys

    code = (
        "import sys, closeknit.cli\n"
        "sys.argv = ['closeknit', 'compare', '--help']\n"
        "try: closeknit.cli.main()\n"
        "except SystemExit: sys.exit(' '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


def test_settings_may_have_spaces_around_them(closeknit, tmp_path):
    (tmp_path / "odd.csv").write_text("message,label\na,b\nb,c\n")
    assert "2 texts" in closeknit("data", "odd.csv", "--set", " data.text = message").stdout


def test_rows_left_out_of_training_are_not_left_out_of_answers(
    tiny, small_csv, tmp_path, closeknit
):
    (tmp_path / "blank.csv").write_text(small_csv.read_text() + '" ",lost\n')
    drop = ("--set", "data.empty=drop")
    closeknit("train", "blank.csv", "--encoder", tiny(), *FAST, *drop, "--out", "model")
    (tmp_path / "new.csv").write_text('text\nmy card\n""\nmy parcel\n')
    for command in (
        ("predict", "model", "new.csv"),
        ("embed", "model", "new.csv", "--out", "v.npy"),
    ):
        assert "empty text in row 2" in closeknit(*command, code=2).stderr
    assert len(closeknit("predict", "model", "new.csv", *drop).stdout.splitlines()) == 2


def test_pipes_get_utf_8_whatever_the_locale(tmp_path):
    import subprocess
    import sys

    (tmp_path / "x.csv").write_text("text,label\nwho,café\nwhat,☃\n", encoding="utf-8")
    command = [sys.executable, "-m", "closeknit", "data", "x.csv"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0 and "☃" in done.stdout.decode("utf-8"), done


def test_scored_pairs_are_described_by_their_scores(closeknit, tmp_path, monkeypatch):
    parts(tmp_path / "stsb", test="text1,text2,score\na,b,0.5\nc,d,4\n")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert closeknit("data", "stsb").stdout == "stsb test: 2 pairs of texts, scores from 0.5 to 4\n"


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
        "comparison",
        "comparison.png",
        "model",
    }
    assert (tmp_path / "demo" / "comparison.png").stat().st_size > 20_000
    assert (tmp_path / "demo" / "comparison" / "report.html").stat().st_size > 20_000
    lines = (tmp_path / "demo" / "comparison" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 4
    other = ("demo", "--out", "demo", "--encoder", tiny("roberta"), "--folds", "2")
    assert "discard them with --overwrite" in closeknit(*other, code=2).stderr
    assert "--overwrite" in closeknit("demo", "--help").stdout
    again = closeknit("demo", "--out", "demo", "--encoder", tiny(), "--folds", "2")
    assert again.stdout == done.stdout
    assert (tmp_path / "demo" / "comparison" / "results.jsonl").read_text().splitlines() == lines


STUDY = ("--sizes", "all", "--folds", "2", "--seeds", "2", *FAST, "--set", "encoder.max_length=16")


def test_compare_prints_tables_and_words_and_writes_a_report(closeknit, small_csv, tiny, tmp_path):
    words = (
        "compare",
        "small.csv",
        "--objectives",
        "cross_entropy,supcon",
        "--encoder",
        tiny(),
        *STUDY,
        "--out",
        "study",
    )
    done = closeknit(*words)
    assert "| weighted F1 | S: small (36) | average |" in done.stdout
    assert re.search(
        r"supcon (gains|loses) [\d.]+ points of weighted F1 (over|against) cross_entropy on small \(36 rows\)",
        done.stdout,
    )
    assert "4/4  small 36 rows  supcon  seed 2  fold 2: weighted F1" in done.stderr
    for name in ("results.jsonl", "table.csv", "table.md", "report.html", "study.json"):
        assert (tmp_path / "study" / name).exists(), name
    (tmp_path / "study" / "report.html").unlink()
    assert closeknit("report", "study").stdout.strip() == "study/report.html"
    assert (tmp_path / "study" / "report.html").stat().st_size > 10_000
    again = json.loads(closeknit(*words, "--json").stdout)
    assert [line["objective"] for line in again["lines"]] == ["cross_entropy", "supcon"]
    refused = closeknit(*words, "--set", "supcon.temperature=0.5", code=2).stderr
    assert "holds runs of supcon with other settings" in refused
    assert "4/4" in closeknit(*words, "--set", "supcon.temperature=0.5", "--overwrite").stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "a study needs data"),
        (("nothere",), "neither a file"),
        (("small.csv", "--objectives", "supconn"), "did you mean supcon"),
        (("small.csv", "--sizes", "ten"), "--sizes is ten; give whole numbers"),
        (("small.csv", "--seeds", "2,x"), "--seeds is 2,x"),
        (("small.csv", "--seeds", ","), '--seeds is ","; give at least one value'),
        (("small.csv", "--objectives", ""), '--objectives is ""; give at least one value'),
        (("small.csv", "--seeds", "²"), "--seeds is ²"),
        (("small.csv", "--search", "²"), "--search is ²"),
        (("small.csv", "--selection", "paper"), "none are searched for; add --search"),
        (("small.csv", "--set", "train.seed=3"), "train.seed has no meaning in a study"),
        (("small.csv", "--folds", "1"), "at least 2"),
        (("small.csv", "--search", "0"), "--search is 0"),
        (("small.csv", "--search", "none", "--space", "paper"), "--search none goes with neither"),
        (("small.csv", "--search", "3", "--method", "tpee"), "did you mean tpe"),
        (("small.csv", "--search", "3", "--space", "papr"), "did you mean paper"),
        (("small.csv", "--search", "3", "--selection", "nestd"), "did you mean nested"),
        (("small.csv", "--workers", "2", "--ray", "auto"), "cannot be used together"),
        (("small.csv", "--set", "train.lrr=1"), "did you mean train.lr"),
        (
            ("small.csv", "--set", "objective.centres=3"),
            "none of cross_entropy, triple_entropy has this option",
        ),
        (
            ("small.csv", "--set", "triple_entrop.centers=3"),
            "no table triple_entrop; did you mean triple_entropy",
        ),
        (("small.csv", "--config", "no.toml"), "no.toml does not exist"),
        (("small.csv", "small.csv"), "two data sets are called small"),
        (("small.csv", "--sizes", "5"), "5 folds need a class with at least 5 rows"),
    ],
)
def test_what_is_wrong_with_a_comparison_is_told_before_it_begins(
    closeknit, small_csv, tmp_path, words, complaint
):
    assert complaint in closeknit("compare", *words, "--out", "study", code=2).stderr
    assert not (tmp_path / "study" / "results.jsonl").exists()


def test_the_printed_table_says_that_it_is_optimistic(closeknit, small_csv, tiny):
    words = ("compare", "small.csv", "--objectives", "cross_entropy", "--encoder", tiny(), *STUDY)
    search = ("--search", "2", "--method", "random", "--selection", "paper")
    assert closeknit(*words, *search, "--out", "paper").stdout.startswith(
        "These scores are optimistic: "
    )
    assert "optimistic" not in closeknit(*words, "--out", "fixed").stdout


def test_options_of_objectives_can_be_set_for_all_or_for_one(small_csv):
    from closeknit.studies.study_file import read_study

    given = {"data": ["small.csv"], "objectives": ["soft_triple", "triple_entropy", "supcon"]}
    changes = {"objective": {"centers": 7}, "triple_entropy": {"gamma": 0.05}}
    found = {
        name: config.objective.options
        for name, config in read_study(None, given, changes).objectives.items()
    }
    assert found == {
        "soft_triple": {"centers": 7},
        "triple_entropy": {"centers": 7, "gamma": 0.05},
        "supcon": {},
    }


def parts(folder, **files):
    folder.mkdir()
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)


def test_a_test_part_that_does_not_fit_is_told_before_training(tiny, tmp_path, closeknit):
    good = "text,label\nmy card,a\nmy parcel,b\ncard lost,a\nparcel late,b\n"
    parts(tmp_path / "odd", train=good, test="text,label\nmy card,c\n")
    done = closeknit("train", "odd", "--encoder", tiny(), *FAST, "--out", "m", code=2)
    assert "does not know the label c" in done.stderr
    assert "step" not in done.stderr
    parts(tmp_path / "pairs", train=good, test="text,text2,label\nmy card,x,a\n")
    assert (
        "holds pairs of texts"
        in closeknit("train", "pairs", "--encoder", tiny(), *FAST, "--out", "m", code=2).stderr
    )
    assert not (tmp_path / "m").exists()


def test_a_foreign_folder_is_left_alone_whatever_is_asked(tiny, small_csv, tmp_path, closeknit):
    mine = (tmp_path / "mine" / "README.md", tmp_path / "project" / "checkpoints" / "best.pt")
    for file in mine:
        file.parent.mkdir(parents=True)
        file.write_text("mine")
    for folder in ("mine", "project"):
        for how in ("--resume", "--overwrite"):
            done = closeknit(
                "train", small_csv, "--encoder", tiny(), *FAST, "--out", folder, how, code=2
            )
            assert "is no model folder; it is left alone" in done.stderr
    assert [file.read_text() for file in mine] == ["mine", "mine"]


def test_a_file_that_comes_into_the_folder_of_a_run_costs_nothing(
    tiny, small_csv, tmp_path, closeknit, monkeypatch
):
    from closeknit.models import run as runs

    def littered(fit, label):
        (tmp_path / "model" / "notes.txt").write_text("mine")
        yield from fit

    monkeypatch.setattr(runs, "follow", littered)
    closeknit("train", small_csv, "--encoder", tiny(), *FAST, "--out", "model")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "model" / "closeknit.json").exists()


def test_overwriting_leaves_files_that_are_not_the_models(tiny, small_csv, tmp_path, closeknit):
    arguments = ("--encoder", tiny(), *FAST, "--out", "model")
    closeknit("train", small_csv, *arguments)
    (tmp_path / "model" / "notes.txt").write_text("mine")
    closeknit("train", small_csv, *arguments, "--overwrite", "--seed", "4")
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"


def test_two_runs_do_not_share_a_folder(tiny, small_csv, tmp_path, closeknit):
    from closeknit.storage import lock_folder

    (tmp_path / "model" / "checkpoints").mkdir(parents=True)
    with lock_folder(tmp_path / "model" / "checkpoints" / "lock", tmp_path / "model"):
        done = closeknit(
            "train", small_csv, "--encoder", tiny(), *FAST, "--out", "model", "--resume", code=2
        )
    assert "another run is using model" in done.stderr


def test_a_files_objective_keeps_its_options_beside_the_same_name(
    tiny, small_csv, tmp_path, closeknit
):
    (tmp_path / "run.toml").write_text('[objective]\nname = "triple_entropy"\ncenters = 5\n')
    same = (
        "--encoder",
        tiny(),
        *FAST,
        "--objective",
        "triple_entropy",
        "--config",
        "run.toml",
        "--out",
        "model",
    )
    closeknit("train", small_csv, *same)
    assert (
        json.loads((tmp_path / "model" / "closeknit.json").read_text())["run"]["objective"][
            "centers"
        ]
        == 5
    )


def test_a_catalogue_data_set_with_blank_rows_trains(tiny, tmp_path, closeknit, monkeypatch):
    rows = "".join(f"card {i},positive\nparcel {i},negative\n" for i in range(6))
    parts(tmp_path / "cr", all="text,label\n ,positive\n" + rows)
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    closeknit("train", "cr", "--encoder", tiny(), *FAST, "--out", "model")
    assert json.loads(closeknit("evaluate", "model", "cr", "--json").stdout)["n"] == 12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["objective.name=3"], "objective.name is 3; it must be a text"),
        (["train.lr=2020-01-01"], "train.lr is"),
        (["encoder.lora_rank=-4"], "must not be negative"),
        (["encoder.max_length=0"], "at least 4"),
        (["objective.label_smoothing=abc"], "objective.label_smoothing is"),
        (
            ["objective.name=triple_entropy", "objective.centers=2.5"],
            "objective.centers is 2.5; it must be a whole number",
        ),
        (
            ["objective.class_weights=uneven"],
            "give a list of weights, a table with a weight for each class name, or",
        ),
    ],
)
def test_settings_of_the_wrong_kind(tiny, small_csv, closeknit, changes, words):
    changes = [part for change in changes for part in ("--set", change)]
    assert (
        words in closeknit("train", small_csv, "--encoder", tiny(), *FAST, *changes, code=2).stderr
    )


def test_odd_tables_are_explained(tmp_path, closeknit):
    (tmp_path / "twice.csv").write_text("text,text,label\na,b,c\n")
    assert "the column text occurs twice" in closeknit("data", "twice.csv", code=2).stderr
    (tmp_path / "named.csv").write_text("message,label\na,b\nb,c\n")
    assert "2 texts" in closeknit("data", "named.csv", "--set", "data.text=message").stdout
    parts(tmp_path / "double", train="text,label\na,b\n")
    (tmp_path / "double" / "train.tsv").write_text("text\tlabel\na\tb\n")
    assert "keep one of them" in closeknit("data", "double", code=2).stderr


def test_standard_input_is_read_as_files_are(workshop, tmp_path):
    import subprocess
    import sys

    def predict(raw: bytes, *more: str):
        command = [
            sys.executable,
            "-m",
            "closeknit",
            "predict",
            str(workshop / "model"),
            "-",
            *more,
        ]
        return subprocess.run(command, input=raw, capture_output=True)

    bad = predict(b"fine\ncaf\xe9\n")
    assert bad.returncode == 2
    assert b"standard input, line 2: not UTF-8" in bad.stderr
    done = predict(
        b"\xef\xbb\xbfcard\r\n\r\nparcel\xe2\x80\xa8late\r\n", "--set", "data.empty=drop"
    )
    assert len(done.stdout.decode().split("\n")) == 3, done


def test_the_version_can_be_asked(closeknit):
    import closeknit as package

    assert closeknit("--version").stdout.strip() == package.__version__


def test_ctrl_c_before_the_first_step_is_told(closeknit, small_csv, tiny, monkeypatch):
    from closeknit.classification import run as runs

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train_in_folder", interrupted)
    assert "stopped before the first step" in closeknit("train", small_csv, code=130).stderr


def test_ctrl_c_within_a_step_or_after_the_last_is_told(
    closeknit, small_csv, tiny, monkeypatch, tmp_path
):
    from closeknit.classification.model import Model
    from closeknit.models import run as runs

    def interrupted(*_):
        raise KeyboardInterrupt

    def twice(fit, label):
        yield next(iter(fit))
        raise KeyboardInterrupt

    def train(out, *more, code=0):
        return closeknit(
            "train", small_csv, "--encoder", tiny(), *FAST, "--out", out, *more, code=code
        )

    train("whole")
    with monkeypatch.context() as patch:
        patch.setattr(runs, "follow", twice)
        assert "stopped within a step" in train("model", code=130).stderr
    for part in ("evaluate", "save"):  # each as long as they like, and nothing is learnt twice
        with monkeypatch.context() as patch:
            patch.setattr(Model, part, interrupted)
            stopped = train("model", "--resume", code=130).stderr
        assert "stopped after the last step" in stopped and "continue with --resume" in stopped
    done = train("model", "--resume")
    assert "step" not in done.stderr and done.stdout.startswith("test: accuracy")
    for name in ("model.safetensors", "heads.safetensors", "metrics.json"):
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "model" / "checkpoints").exists()


def test_evaluate_scores_rows_near_another_label_apart(workshop, tmp_path, closeknit):
    model = str(workshop / "model")
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\nmy card was lost,lost\nrefund my order,refund\n")
    rows = "text,label\ncard lost today,lost\nthe lost order,lost\nmy card refund was lost,refund\n"
    (folder / "test.csv").write_text(rows)
    found = json.loads(closeknit("evaluate", model, "parts", "--json").stdout)
    assert found["near_other_label"]["rows"] == 2 and "accuracy" in found["near_other_label"]
    alone = ("evaluate", model, "parts/test.csv", "--json")
    assert "near_other_label" not in json.loads(closeknit(*alone).stdout)
    named = json.loads(closeknit(*alone, "--train", "parts").stdout)
    assert named["near_other_label"] == found["near_other_label"]
    assert "nearest training text has another label: accuracy" in (
        closeknit("evaluate", model, "parts").stdout
    )
