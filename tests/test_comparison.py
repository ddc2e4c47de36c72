from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from closeknit import comparison, runners
from closeknit.board import Board
from closeknit.comparison import Place, run_study
from closeknit.config import RunConfig
from closeknit.errors import ConfigError, DataError, ModelError, TrainingError
from closeknit.protocol import Outcome, append_line, mend, read_lines, read_results
from closeknit.report import of_last_search
from closeknit.search import SearchConfig
from closeknit.storage import lock_folder
from closeknit.study import Source, Study, with_options
from closeknit.training import NotFinite

ONE = Place(threads=1)


@pytest.fixture
def data(small, tmp_path):
    path = tmp_path / "small.csv"
    texts, labels = small
    path.write_text(
        "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in zip(texts, labels, strict=True))
    )
    return str(path)


@pytest.fixture
def study(tiny, data):
    def make(**more):
        def config(name):
            tables = {
                "encoder": {"name": tiny(), "max_length": 16},
                "objective": {"name": name},
                "train": {"epochs": 1, "batch_size": 12, "lr": 1e-3, "positives": 0},
            }
            return RunConfig.from_dict(tables)

        names = more.pop("names", ("cross_entropy", "supcon"))
        options = {"sizes": (0,), "folds": 2, "seeds": (2, 16), **more}
        return Study((Source(data),), {name: config(name) for name in names}, **options)

    return make


def rows_of(out):
    """The lines of the results but for how long they took, in an order of their own."""
    return sorted(
        json.dumps({k: v for k, v in record.items() if k != "seconds"}, sort_keys=True)
        for record in read_lines(Path(out) / "results.jsonl")
    )


@pytest.mark.parametrize("selection", ["nested", "paper"])
def test_an_objective_with_an_empty_space_is_left_as_it_is(study, tmp_path, selection):
    made = study(
        search=SearchConfig(method="grid"),
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-3]}, "supcon": {}},
        selection=selection,
        seeds=(2,),
    )
    results = run_study(made, tmp_path / "out", place=ONE, show=False)
    assert len(results) == 4
    tried = {record["objective"] for record in read_lines(tmp_path / "out" / "trials.jsonl")}
    assert tried == {"cross_entropy"}


def test_every_run_is_a_line_with_all_that_was_promised(study, tmp_path):
    results = run_study(study(), tmp_path / "out", place=ONE, show=False)
    assert len(results) == 2 * 2 * 2
    lines = list(read_lines(tmp_path / "out" / "results.jsonl"))
    promised = "data size objective options encoder seed fold weighted_f1 accuracy macro_f1 seconds steps versions key".split()
    for line in lines:
        assert set(promised) <= line.keys()
        details = json.loads((tmp_path / "out" / "details" / f"{line['key']}.json").read_text())
        assert len(details["rows"]) == len(details["predicted"]) == len(details["expected"])
        right = sum(a == b for a, b in zip(details["predicted"], details["expected"], strict=True))
        assert right / len(details["rows"]) == pytest.approx(line["accuracy"])
    assert {(r.objective, r.seed, r.fold) for r in results} == {
        (name, seed, fold) for name in ("cross_entropy", "supcon") for seed in (2, 16) for fold in (0, 1)
    }
    kept = list((tmp_path / "out" / "details").glob("*.npz"))
    assert len(kept) == 2  # one map for each objective
    header, *table = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert header.startswith("data,size,objective,runs,weighted_f1_mean") and len(table) == 2
    assert "average" in (tmp_path / "out" / "table.md").read_text()


def test_a_study_gives_the_numbers_of_single_fits(study, tmp_path):
    """What is shared between runs (weights, tokens) changes nothing."""
    from closeknit import catalogue
    from closeknit.classification.fit import fit_model
    from closeknit.data import folds

    made = study(seeds=(2,))
    found = {(r.objective, r.fold): r for r in run_study(made, tmp_path / "out", place=ONE, show=False)}
    examples = catalogue.load(made.data[0].source).training
    for fold, (train, test) in enumerate(folds(examples.required_labels, 2, 2)):
        for name, config in made.objectives.items():
            model = fit_model(examples.select(train), config, labels=examples.classes)
            assert model.evaluate(examples.select(test))["weighted_f1"] == found[name, fold].weighted_f1


def test_objectives_start_from_the_same_weights_and_take_the_same_batches(study, tmp_path, monkeypatch):
    from closeknit.classification.fit import Fit

    seen: dict[str, list] = {}
    original = Fit.__iter__

    def spying(self):
        state = {
            key: value.clone()
            for key, value in self.training.learners.state_dict().items()
            if "objective" not in key
        }
        rows = [list(self.training.tasks[0].batch(i, 0, 1).rows) for i in range(self.steps)]
        seen.setdefault(self.config.objective.name, []).append((state, rows))
        return original(self)

    monkeypatch.setattr(Fit, "__iter__", spying)
    run_study(study(), tmp_path / "out", place=ONE, show=False)
    for (state, rows), (other_state, other_rows) in zip(seen["cross_entropy"], seen["supcon"], strict=True):
        assert rows == other_rows
        for key, value in state.items():
            assert torch.equal(value, other_state[key]), key


def test_finished_runs_are_not_run_again_and_a_cut_line_is_redone(study, tmp_path, monkeypatch, capsys):
    out, made = tmp_path / "out", study()
    run_study(made, out, place=ONE, show=False)
    whole = rows_of(out)
    path = out / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:40])  # killed while writing the sixth
    done = []
    original = runners._stock
    monkeypatch.setattr(runners, "_stock", lambda job, *rest: done.append(job) or original(job, *rest))
    run_study(made, out, place=ONE)
    assert len(done) == 3
    assert rows_of(out) == whole
    assert all(line.endswith("}\n") for line in path.read_text().splitlines(keepends=True))
    told = capsys.readouterr().err
    assert "half-written" in told and "5 of 8 runs are done already" in told
    done.clear()
    run_study(made, out, place=ONE, show=False)
    assert done == []


def test_a_study_grows(study, tmp_path):
    out = tmp_path / "out"
    run_study(study(seeds=(2,)), out, place=ONE, show=False)
    before = rows_of(out)
    run_study(study(names=("cross_entropy", "supcon", "proxy_nca")), out, place=ONE, show=False)
    assert set(before) < set(rows_of(out))
    assert len(rows_of(out)) == 3 * 2 * 2


def test_the_tables_of_a_study_that_has_grown_hold_all_of_it(study, small_csv, closeknit, tmp_path):
    """As the report does: Holm's correction runs over all that was tried."""
    out, other = tmp_path / "out", tmp_path / "other.csv"
    other.write_text(small_csv.read_text().replace("card", "order"))
    for path in (small_csv, other):
        words = (
            "--encoder",
            next(iter(study().objectives.values())).encoder.name,
            "--set",
            "encoder.max_length=16",
        )
        few = ("--epochs", 1, "--folds", 2, "--seeds", 2, "--sizes", "all", "--threads", 1)
        done = closeknit("compare", path, *words, *few, "--objectives", "cross_entropy,supcon", "--out", out)
    table = (out / "table.csv").read_text()
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == ["other", "other", "small", "small"]
    assert "| small | 36 | supcon |" in done.stdout


def test_a_folder_of_an_encoder_is_known_by_what_it_holds(study, tiny, tmp_path):
    def with_encoder(folder):
        changed = {
            name: dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, name=str(folder)))
            for name, config in made.objectives.items()
        }
        return dataclasses.replace(made, objectives=changed)

    out, made = tmp_path / "out", study(seeds=(2,))
    run_study(made, out, place=ONE, show=False)
    before = (out / "results.jsonl").read_bytes()
    moved = shutil.copytree(tiny(), tmp_path / "moved")
    run_study(with_encoder(moved), out, place=ONE, show=False)  # the same encoder: nothing is run again
    assert (out / "results.jsonl").read_bytes() == before
    weights = load_file(moved / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in weights.items()}, moved / "model.safetensors")
    with pytest.raises(ConfigError, match="another encoder"):
        run_study(with_encoder(moved), out, place=ONE, show=False)


def test_other_settings_in_the_same_folder_are_refused(study, tmp_path):
    out, made = tmp_path / "out", study(seeds=(2,))
    run_study(made, out, place=ONE, show=False)
    changed = {
        name: dataclasses.replace(config, train=dataclasses.replace(config.train, lr=2e-3))
        for name, config in made.objectives.items()
    }
    with pytest.raises(ConfigError, match="with other settings"):
        run_study(dataclasses.replace(made, objectives=changed), out, place=ONE, show=False)
    run_study(dataclasses.replace(made, objectives=changed), out, place=ONE, show=False, overwrite=True)
    assert len(rows_of(out)) == 4
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    missing = dataclasses.replace(made, data=(Source("not-there.csv"),))
    with pytest.raises(DataError, match="does not exist"):
        run_study(missing, out, place=ONE, show=False, overwrite=True)
    with lock_folder(out / "lock", out), pytest.raises(ConfigError, match="another run is using"):
        run_study(made, out, place=ONE, show=False, overwrite=True)
    elsewhere = {
        name: dataclasses.replace(
            config, encoder=dataclasses.replace(config.encoder, name=str(tmp_path / "no"))
        )
        for name, config in made.objectives.items()
    }
    with pytest.raises(ModelError, match="encoder"):  # found by the first training
        run_study(dataclasses.replace(made, objectives=elsewhere), out, place=ONE, show=False, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


def test_a_folder_of_something_else_is_left_alone(study, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is no study"):
        run_study(study(), tmp_path / "mine", show=False)
    with pytest.raises(ConfigError, match="is no study"):
        run_study(study(), tmp_path / "mine", show=False, overwrite=True)
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_a_study_killed_while_it_was_set_up_goes_on(study, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lock").touch()
    (tmp_path / "out" / "study.json.unfinished").touch()
    assert len(run_study(study(seeds=(2,)), tmp_path / "out", place=ONE, show=False)) == 4
    comparison._clear(tmp_path / "out")  # for new runs that were never begun
    assert len(run_study(study(seeds=(2,)), tmp_path / "out", place=ONE, show=False)) == 4


def test_what_is_known_of_a_study_tells_where_objectives_differ(study, tmp_path):
    made = study(seeds=(2,))
    other = with_options(made.objectives["supcon"], {"train.lr": 2e-3, "encoder.pooling": "mean"})
    both = {**made.objectives, "supcon": other}
    run_study(dataclasses.replace(made, objectives=both), tmp_path / "out", place=ONE, show=False)
    facts = json.loads((tmp_path / "out" / "study.json").read_text())
    assert facts["config"]["train"]["lr"] == 1e-3 and facts["config"]["encoder"]["pooling"] == "first"
    assert "seed" not in facts["config"]["train"] and "test" not in facts["config"]["data"]
    own = {name: {k: v for k, v in o.items() if "." in k} for name, o in facts["objectives"].items()}
    assert own == {"cross_entropy": {}, "supcon": {"train.lr": 2e-3, "encoder.pooling": "mean"}}


def test_names_with_brackets_are_shown_as_they_are(study, tmp_path):
    from rich.console import Console

    board = Board(4, 0, 4, show=False)
    board.rows = run_study(study(seeds=(2,)), tmp_path / "out", place=ONE, show=False)
    board.rows = [dataclasses.replace(row, data="reviews [en]", objective="[wide]") for row in board.rows]
    console = Console(record=True, file=io.StringIO())
    console.print(board._shown())
    text = console.export_text()
    assert "reviews [en]" in text and "[wide]" in text


def test_two_commands_never_write_to_one_folder(study, tmp_path):
    (tmp_path / "out").mkdir()
    with (
        lock_folder(tmp_path / "out" / "lock", tmp_path / "out"),
        pytest.raises(ConfigError, match="another run is using"),
    ):
        run_study(study(), tmp_path / "out", show=False)
    assert not (tmp_path / "out" / "results.jsonl").exists()


@pytest.mark.parametrize("cut", range(0, 30, 7))
def test_a_file_of_lines_is_mended_wherever_it_was_cut(tmp_path, cut):
    path = tmp_path / "lines.jsonl"
    for number in range(3):
        append_line(path, {"key": f"k{number}", "text": "a\u2028b"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    mend(path)
    kept = list(read_lines(path))
    assert kept == [{"key": f"k{n}", "text": "a\u2028b"} for n in range(len(kept))]
    append_line(path, {"key": "next"})
    assert list(read_lines(path))[-1] == {"key": "next"}
    assert len(list(read_lines(path))) == len(kept) + 1


def test_damaged_lines_are_passed_over(tmp_path):
    (tmp_path / "results.jsonl").write_text('nonsense\n[1]\n{"data": "x"}\n')
    assert read_results(tmp_path / "results.jsonl") == []
    assert read_results(tmp_path / "missing.jsonl") == []


def test_rows_from_before_settings_were_kept_are_read(study, tmp_path):
    run_study(study(seeds=(2,), names=("cross_entropy",)), tmp_path / "out", place=ONE, show=False)
    path = tmp_path / "out" / "results.jsonl"
    (first, second) = map(json.loads, path.read_text().splitlines())
    assert first["settings"]["train"]["lr"] == 1e-3 and first["settings"]["encoder"]["max_length"] == 16
    del first["settings"]
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, second)))
    assert [result.settings == {} for result in read_results(path)] == [True, False]


def test_a_batch_of_settings_that_are_all_given_up_does_not_end_a_study(study, tmp_path, monkeypatch):
    class Falling:
        """A runner in which every setting is worse than the one before."""

        def __init__(self):
            self.jobs = []

        @property
        def room(self):
            return 1 - len(self.jobs)

        def submit(self, job):
            self.jobs.append(job)

        def next(self):
            job = self.jobs.pop()
            score = 0.9 - 0.01 * job.facts.get("trial", 0)
            scores = dict.fromkeys(("weighted_f1", "accuracy", "macro_f1"), score)
            return Outcome(job.key, scores, encoder="none", details=None)

        def close(self):
            pass

    monkeypatch.setattr(Place, "runner", lambda self, texts: Falling())
    made = study(
        seeds=(2,),
        names=("cross_entropy",),
        search=SearchConfig(trials=20),
        spaces={"cross_entropy": {"train.lr": {"low": 1e-5, "high": 1e-2, "log": True}}},
    )
    assert len(run_study(made, tmp_path / "out", show=False)) == 2


def test_the_same_rows_under_two_names_are_refused(study, data, tmp_path):
    made = dataclasses.replace(study(), data=(Source(data, name="a"), Source(data, name="b")))
    with pytest.raises(ConfigError, match="the data sets a and b hold the same rows"):
        run_study(made, tmp_path / "out", show=False)


def test_folds_too_small_to_learn_or_search_in_are_told_before_the_first_run(study, tmp_path):
    rare = tmp_path / "rare.csv"
    rare.write_text("text,label\n" + "".join(f"text {i},common\n" for i in range(12)) + "one,rare\n")
    made = dataclasses.replace(study(), data=(Source(str(rare)),))
    with pytest.raises(DataError, match='all of the class "common", the others are too rare'):
        run_study(made, tmp_path / "out", show=False)
    few = tmp_path / "few.csv"
    few.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(12)))
    searching = study(search=SearchConfig(method="random", trials=2), sizes=(12,))
    with pytest.raises(DataError, match="a search cuts each training fold into 5 parts"):
        run_study(dataclasses.replace(searching, data=(Source(str(few)),)), tmp_path / "out", show=False)
    rare.write_text(
        "text,label\n" + "".join(f"text {i},common\n" for i in range(12)) + "one,rare\ntwo,rare\n"
    )
    alone = dataclasses.replace(searching, data=(Source(str(rare)),), sizes=(0,))
    with pytest.raises(DataError, match="only one class has two rows or more there"):
        run_study(alone, tmp_path / "out", show=False)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- search


@pytest.mark.parametrize("method", ["random", "halving", "tpe"])
def test_a_search_goes_on_to_the_same_choice(study, tmp_path, method):
    made = study(
        seeds=(2,),
        names=("cross_entropy",),
        search=SearchConfig(method=method, trials=4, splits=2),
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-3, 1e-2], "label_smoothing": [0.0, 0.1]}},
    )
    run_study(made, tmp_path / "whole", place=ONE, show=False)
    whole = rows_of(tmp_path / "whole")
    assert all('"selection": "nested"' in row for row in whole)
    trials = (tmp_path / "whole" / "trials.jsonl").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "study.json").write_text((tmp_path / "whole" / "study.json").read_text())
    (cut / "trials.jsonl").write_text("".join(trials[:5]) + trials[5][:20])
    run_study(made, cut, place=ONE, show=False)
    assert rows_of(cut) == whole
    again = [{k: v for k, v in t.items() if k != "seconds"} for t in read_lines(cut / "trials.jsonl")]
    first = [
        {k: v for k, v in t.items() if k != "seconds"}
        for t in read_lines(tmp_path / "whole" / "trials.jsonl")
    ]
    assert again == first  # no trial twice, none lost
    assert {"data", "objective", "seed", "fold", "split", "trial", "options", "score", "key"} <= first[
        0
    ].keys()


@pytest.mark.parametrize("selection", ["nested", "paper"])
def test_a_search_that_was_given_up_for_another_leaves_no_trace_in_the_report(
    study, tmp_path, monkeypatch, selection
):
    def searching(trials):
        return study(
            seeds=(2,),
            names=("cross_entropy",),
            search=SearchConfig(method="random", trials=trials),
            selection=selection,
            spaces={"cross_entropy": {"train.lr": [1e-4, 5e-4, 2e-3, 5e-3, 1e-2]}},
        )

    out = tmp_path / "out"
    final, asked = comparison.Planner._final, comparison.append_line

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison.Planner, "_final", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(searching(5), out, place=ONE, show=False)
    monkeypatch.setattr(comparison.Planner, "_final", final)
    trained = []
    monkeypatch.setattr(
        comparison, "append_line", lambda path, line: (trained.append(line), asked(path, line))
    )
    run_study(searching(3), out, place=ONE, show=False)
    again = [line for line in trained if "trial" in line and line["fold"] == 0]
    assert {line["trial"] for line in again} == {0, 1, 2}
    assert all(line["seconds"] == 0.0 for line in again)  # none was trained twice
    shown = of_last_search(read_lines(out / "trials.jsonl"))
    run_study(searching(3), tmp_path / "fresh", place=ONE, show=False)
    fresh = list(read_lines(tmp_path / "fresh" / "trials.jsonl"))
    assert [(t["key"], t["run"], t["score"]) for t in shown] == [
        (t["key"], t["run"], t["score"]) for t in fresh
    ]


def test_choosing_on_the_reported_folds_is_called_optimistic(study, tmp_path):
    made = study(
        names=("cross_entropy",),
        search=SearchConfig(method="random", trials=3),
        selection="paper",
        spaces={"cross_entropy": {"train.lr": [1e-4, 5e-4, 1e-2]}},
    )
    results = run_study(made, tmp_path / "out", place=ONE, show=False)
    assert {result.selection for result in results} == {"paper"}
    trials = list(read_lines(tmp_path / "out" / "trials.jsonl"))
    assert len(trials) == 3 * 4
    means = {}
    for trial in trials:
        means.setdefault(json.dumps(trial["options"]), []).append(trial["score"])
    best = max(sum(scores) for scores in means.values()) / 4
    assert sum(r.weighted_f1 for r in results) / 4 == pytest.approx(best)
    text = (tmp_path / "out" / "table.md").read_text()
    assert "optimistic" in text and "left out of the choice" in text


def test_a_setting_that_breaks_the_training_scores_nothing(study, tmp_path, monkeypatch):
    from closeknit.classification.fit import Fit

    original = Fit.__iter__

    def breaking(self):
        if self.config.train.lr == 1.0:
            raise NotFinite("the loss became nan")
        return original(self)

    monkeypatch.setattr(Fit, "__iter__", breaking)
    made = study(
        seeds=(2,),
        names=("cross_entropy",),
        search=SearchConfig(method="grid"),
        spaces={"cross_entropy": {"train.lr": [1.0, 1e-3]}},
    )
    run_study(made, tmp_path / "out", place=ONE, show=False)
    assert 0.0 in [trial["score"] for trial in read_lines(tmp_path / "out" / "trials.jsonl")]
    fixed = study(seeds=(2,))
    broken = {
        name: dataclasses.replace(
            config, train=dataclasses.replace(config.train, lr=1.0 if name == "supcon" else 1e-3)
        )
        for name, config in fixed.objectives.items()
    }
    with pytest.raises(TrainingError, match=r"2 of 4 runs failed, the first: supcon on small"):
        run_study(dataclasses.replace(fixed, objectives=broken), tmp_path / "broken", place=ONE, show=False)
    assert len(rows_of(tmp_path / "broken")) == 2  # the others are kept


# ---------------------------------------------------------------- processes


def test_workers_give_the_same_bits(study, tmp_path):
    made = study()
    run_study(made, tmp_path / "here", place=ONE, show=False)
    run_study(made, tmp_path / "workers", place=Place(workers=2, threads=1), show=False)
    assert rows_of(tmp_path / "workers") == rows_of(tmp_path / "here")


def test_a_worker_that_dies_is_replaced(study, tmp_path):
    made = study()
    loaded = comparison.Loaded.of(made)
    cells = comparison.cells_of(made, loaded)
    jobs = [next(plan)[0] for plan in comparison.Planner(made, loaded).plans(cells, {})][:3]
    pool = runners.Workers(loaded.texts, 1, 1)
    try:
        for job in jobs[:2]:
            pool.submit(job)
        first = pool.next()
        os.kill(next(iter(pool.pool._processes)), signal.SIGKILL)
        second = pool.next()
        pool.submit(jobs[2])
        third = pool.next()
    finally:
        pool.close()
    assert [first.key, second.key, third.key] == [job.key for job in jobs]


def test_workers_that_always_die_are_given_up(study, tmp_path, monkeypatch):
    made = study()
    loaded = comparison.Loaded.of(made)
    job = next(next(iter(comparison.Planner(made, loaded).plans(comparison.cells_of(made, loaded), {}))))[0]
    monkeypatch.setattr(runners, "_begin_worker", _die)
    monkeypatch.setattr(runners, "RETRIES", 1)
    pool = runners.Workers(loaded.texts, 1, 1)
    with pytest.raises(TrainingError, match="fewer --workers"):
        pool.submit(job)
        pool.next()
    pool.close()


def _die(*arguments):
    os._exit(9)


STUDY = "--objectives cross_entropy,supcon --sizes all --folds 2 --seeds 2,16 --epochs 1 --batch-size 12 --lr 1e-3"


def words(data, tiny, out, *more):
    place = ("--encoder", tiny(), "--out", str(out), "--threads", "1", *more)
    return ("compare", data, *STUDY.split(), *place, "--set", "encoder.max_length=16")


def test_workers_end_with_the_command_that_was_killed(data, tiny, tmp_path, closeknit):
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "closeknit", *words(data, tiny, out, "--workers", "2")]
    command = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(read_lines(out / "results.jsonl")):
        assert command.poll() is None, command.stderr.read()
        time.sleep(0.05)
    command.kill()
    command.communicate()
    ended = time.monotonic() + 30
    while subprocess.run(["pgrep", "-g", str(command.pid)], capture_output=True).returncode == 0:
        assert time.monotonic() < ended, "workers outlive their command"
        time.sleep(0.2)
    after = closeknit(*words(data, tiny, out))
    assert "runs are done already" in after.stderr and "report.html" in after.stdout
    closeknit(*words(data, tiny, tmp_path / "whole"))
    assert rows_of(out) == rows_of(tmp_path / "whole")


def _study_in_child(made, out):
    run_study(made, out, place=ONE, show=False)


def test_killed_at_twenty_random_moments_it_ends_with_the_same_rows(study, tmp_path):
    """Each start is killed after a random time, until twenty kills have hit; every study ends as an undisturbed one."""
    made = study(
        names=("cross_entropy", "supcon"),
        search=SearchConfig(method="halving", trials=3, splits=2),
        spaces={name: {"train.lr": [1e-4, 1e-3]} for name in ("cross_entropy", "supcon")},
    )
    context = multiprocessing.get_context("fork")  # starts in no time: the libraries are there

    def begin(out):
        child = context.Process(target=_study_in_child, args=(made, out))
        child.start()
        return child

    begun = time.monotonic()
    child = begin(tmp_path / "whole")
    child.join()
    assert child.exitcode == 0
    took = time.monotonic() - begun
    whole, trials = rows_of(tmp_path / "whole"), trials_of(tmp_path / "whole")
    generator = random.Random(3)
    kills, studies = 0, 0
    while kills < 20:
        out = tmp_path / f"study-{studies}"
        studies += 1
        while True:
            child = begin(out)
            if kills < 20:
                child.join(generator.uniform(0, 0.5 * took))
                if child.is_alive():
                    os.kill(child.pid, signal.SIGKILL)
                    kills += 1
            child.join()
            if child.exitcode == 0:
                break
            assert child.exitcode == -signal.SIGKILL
        assert rows_of(out) == whole
        assert trials_of(out) == trials
    assert kills == 20


def trials_of(out):
    return sorted(
        json.dumps({k: v for k, v in t.items() if k != "seconds"}) for t in read_lines(out / "trials.jsonl")
    )


def test_threads_are_shared_out_and_never_more_than_asked_for(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    for asked, shares in (
        ("", [8, 8, 4, 1]),
        ("3", [3, 3, 3, 1]),
        ("1", [1, 1, 1, 1]),
        ("0", [1, 1, 1, 1]),
        ("4,2", [8, 8, 4, 1]),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert [runners.threads_each(workers) for workers in (0, 1, 2, 20)] == shares
