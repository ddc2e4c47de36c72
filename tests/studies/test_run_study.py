"""Studies as a whole: what is run, written, resumed and refused."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_study import ONE_THREAD, results_of, study_maker

from closeknit.errors import ConfigError, DataError, ModelError
from closeknit.json_lines import read_json_lines
from closeknit.reports.study_page import write_report
from closeknit.storage import lock_folder
from closeknit.studies import runners
from closeknit.studies.folder import StudyFolder
from closeknit.studies.plan import JobPlanner
from closeknit.studies.run import run_study
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, with_options
from closeknit.training.config import OPEN_SETTINGS


@pytest.fixture
def study(tiny, small_csv):
    return study_maker(tiny(), small_csv)


def test_every_run_is_a_line_with_all_that_was_promised(study, tmp_path):
    results = run_study(study(), tmp_path / "out", place=ONE_THREAD, show=False)
    assert len(results) == 2 * 2 * 2
    lines = list(read_json_lines(tmp_path / "out" / "results.jsonl"))
    promised = "data size objective options encoder seed fold weighted_f1 accuracy macro_f1 seconds steps versions key".split()
    for line in lines:
        assert set(promised) <= line.keys()
        details = json.loads((tmp_path / "out" / "details" / f"{line['key']}.json").read_text())
        assert len(details["rows"]) == len(details["predicted"]) == len(details["expected"])
        right = sum(a == b for a, b in zip(details["predicted"], details["expected"], strict=True))
        assert right / len(details["rows"]) == pytest.approx(line["accuracy"])
    assert {(r.objective, r.seed, r.fold) for r in results} == {
        (name, seed, fold)
        for name in ("cross_entropy", "supcon")
        for seed in (2, 16)
        for fold in (0, 1)
    }
    kept = list((tmp_path / "out" / "details").glob("*.npz"))
    assert len(kept) == 2  # one map for each objective
    header, *table = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert header.startswith("data,size,objective,runs,weighted_f1_mean") and len(table) == 2
    assert "average" in (tmp_path / "out" / "table.md").read_text()


def test_a_study_gives_the_numbers_of_single_fits(study, tmp_path):
    """What is shared between runs (weights, tokens) changes nothing."""
    from closeknit.classification.fit import ClassifierFit
    from closeknit.data import catalogue, folds

    made = study(seeds=(2,))
    found = {
        (r.objective, r.fold): r
        for r in run_study(made, tmp_path / "out", place=ONE_THREAD, show=False)
    }
    examples = catalogue.load(made.data[0].source).training
    for fold, (train, test) in enumerate(folds(examples.required_labels, 2, 2)):
        for name, config in made.objectives.items():
            model = ClassifierFit(examples.select(train), config, labels=examples.classes).run()
            assert (
                model.evaluate(examples.select(test))["weighted_f1"]
                == found[name, fold].weighted_f1
            )


def test_objectives_start_from_the_same_weights_and_take_the_same_batches(
    study, tmp_path, monkeypatch
):
    from closeknit.classification.fit import ClassifierFit

    seen: dict[str, list] = {}
    original = ClassifierFit.__iter__

    def spying(self):
        state = {
            key: value.clone()
            for key, value in self.training.learners.state_dict().items()
            if "objective" not in key
        }
        rows = [list(self.training.tasks[0].batch(i, 0, 1).rows) for i in range(self.steps)]
        seen.setdefault(self.config.objective.name, []).append((state, rows))
        return original(self)

    monkeypatch.setattr(ClassifierFit, "__iter__", spying)
    run_study(study(), tmp_path / "out", place=ONE_THREAD, show=False)
    for (state, rows), (other_state, other_rows) in zip(
        seen["cross_entropy"], seen["supcon"], strict=True
    ):
        assert rows == other_rows
        for key, value in state.items():
            assert torch.equal(value, other_state[key]), key


def test_finished_runs_are_not_run_again_and_a_cut_line_is_redone(
    study, tmp_path, monkeypatch, capsys
):
    out, made = tmp_path / "out", study()
    run_study(made, out, place=ONE_THREAD, show=False)
    whole = results_of(out)
    path = out / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:40])  # killed while writing the sixth
    done = []
    original = runners._stock_for
    monkeypatch.setattr(
        runners, "_stock_for", lambda job, *rest: done.append(job) or original(job, *rest)
    )
    run_study(made, out, place=ONE_THREAD)
    assert len(done) == 3
    assert results_of(out) == whole
    assert all(line.endswith("}\n") for line in path.read_text().splitlines(keepends=True))
    told = capsys.readouterr().err
    assert "was unfinished; that run is repeated" in told and "5 of 8 runs are done already" in told
    done.clear()
    run_study(made, out, place=ONE_THREAD, show=False)
    assert done == []


def test_a_study_grows(study, tmp_path):
    out = tmp_path / "out"
    run_study(study(seeds=(2,)), out, place=ONE_THREAD, show=False)
    before = results_of(out)
    run_study(
        study(names=("cross_entropy", "supcon", "proxy_nca")), out, place=ONE_THREAD, show=False
    )
    assert set(before) < set(results_of(out))
    assert len(results_of(out)) == 3 * 2 * 2


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
        done = closeknit(
            "compare", path, *words, *few, "--objectives", "cross_entropy,supcon", "--out", out
        )
    table = (out / "table.csv").read_text()
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == [
        "other",
        "other",
        "small",
        "small",
    ]
    assert "| small | 36 | supcon |" in done.stdout


def test_a_folder_of_an_encoder_is_known_by_what_it_holds(study, tiny, tmp_path):
    def with_encoder(folder):
        changed = {
            name: dataclasses.replace(
                config, encoder=dataclasses.replace(config.encoder, name=str(folder))
            )
            for name, config in made.objectives.items()
        }
        return dataclasses.replace(made, objectives=changed)

    out, made = tmp_path / "out", study(seeds=(2,))
    run_study(made, out, place=ONE_THREAD, show=False)
    before = (out / "results.jsonl").read_bytes()
    moved = shutil.copytree(tiny(), tmp_path / "moved")
    run_study(
        with_encoder(moved), out, place=ONE_THREAD, show=False
    )  # the same encoder: nothing is run again
    assert (out / "results.jsonl").read_bytes() == before
    weights = load_file(moved / "model.safetensors")
    save_file(
        {name: tensor + 1e-3 for name, tensor in weights.items()}, moved / "model.safetensors"
    )
    with pytest.raises(ConfigError, match="another encoder"):
        run_study(with_encoder(moved), out, place=ONE_THREAD, show=False)


def test_other_settings_in_the_same_folder_are_refused(study, tmp_path):
    out, made = tmp_path / "out", study(seeds=(2,))
    run_study(made, out, place=ONE_THREAD, show=False)
    changed = {
        name: dataclasses.replace(config, train=dataclasses.replace(config.train, lr=2e-3))
        for name, config in made.objectives.items()
    }
    with pytest.raises(ConfigError, match="with other settings"):
        run_study(dataclasses.replace(made, objectives=changed), out, place=ONE_THREAD, show=False)
    run_study(
        dataclasses.replace(made, objectives=changed),
        out,
        place=ONE_THREAD,
        show=False,
        overwrite=True,
    )
    assert len(results_of(out)) == 4
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    missing = dataclasses.replace(made, data=(Source("not-there.csv"),))
    with pytest.raises(DataError, match="does not exist"):
        run_study(missing, out, place=ONE_THREAD, show=False, overwrite=True)
    with lock_folder(out / "lock", out), pytest.raises(ConfigError, match="another run is using"):
        run_study(made, out, place=ONE_THREAD, show=False, overwrite=True)
    elsewhere = {
        name: dataclasses.replace(
            config, encoder=dataclasses.replace(config.encoder, name=str(tmp_path / "no"))
        )
        for name, config in made.objectives.items()
    }
    with pytest.raises(ModelError, match="encoder"):  # found by the first training
        run_study(
            dataclasses.replace(made, objectives=elsewhere),
            out,
            place=ONE_THREAD,
            show=False,
            overwrite=True,
        )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


def test_a_folder_of_something_else_is_left_alone(study, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"holds letter\.txt but no study"):
        run_study(study(), tmp_path / "mine", show=False)
    with pytest.raises(ConfigError, match=r"holds letter\.txt but no study"):
        run_study(study(), tmp_path / "mine", show=False, overwrite=True)
    assert (tmp_path / "mine" / "letter.txt").exists()


def test_a_study_killed_while_it_was_set_up_goes_on(study, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lock").touch()
    (tmp_path / "out" / "study.json.unfinished").touch()
    assert len(run_study(study(seeds=(2,)), tmp_path / "out", place=ONE_THREAD, show=False)) == 4
    StudyFolder(tmp_path / "out").clear()  # for new runs that were never begun
    assert len(run_study(study(seeds=(2,)), tmp_path / "out", place=ONE_THREAD, show=False)) == 4


def test_what_is_known_of_a_study_tells_where_objectives_differ(study, tmp_path):
    made = study(seeds=(2,))
    other = with_options(made.objectives["supcon"], {"train.lr": 2e-3, "encoder.pooling": "mean"})
    both = {**made.objectives, "supcon": other}
    run_study(
        dataclasses.replace(made, objectives=both), tmp_path / "out", place=ONE_THREAD, show=False
    )
    facts = json.loads((tmp_path / "out" / "study.json").read_text())
    assert (
        facts["config"]["train"]["lr"] == 1e-3 and facts["config"]["encoder"]["pooling"] == "first"
    )
    assert "seed" not in facts["config"]["train"] and "test" not in facts["config"]["data"]
    own = {
        name: {k: v for k, v in o.items() if "." in k} for name, o in facts["objectives"].items()
    }
    assert own == {"cross_entropy": {}, "supcon": {"train.lr": 2e-3, "encoder.pooling": "mean"}}


def test_two_commands_never_write_to_one_folder(study, tmp_path):
    (tmp_path / "out").mkdir()
    with (
        lock_folder(tmp_path / "out" / "lock", tmp_path / "out"),
        pytest.raises(ConfigError, match="another run is using"),
    ):
        run_study(study(), tmp_path / "out", show=False)
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_the_same_rows_under_two_names_are_refused(study, small_csv, tmp_path):
    path = str(small_csv)
    made = dataclasses.replace(study(), data=(Source(path, name="a"), Source(path, name="b")))
    with pytest.raises(ConfigError, match="the data sets a and b hold the same rows"):
        run_study(made, tmp_path / "out", show=False)


def test_folds_too_small_to_learn_or_search_in_are_told_before_the_first_run(study, tmp_path):
    rare = tmp_path / "rare.csv"
    rare.write_text(
        "text,label\n" + "".join(f"text {i},common\n" for i in range(12)) + "one,rare\n"
    )
    made = dataclasses.replace(study(), data=(Source(str(rare)),))
    with pytest.raises(
        DataError, match='all of the class "common", because the other classes are too rare'
    ):
        run_study(made, tmp_path / "out", show=False)
    few = tmp_path / "few.csv"
    few.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(12)))
    searching = study(search=SearchConfig(method="random", trials=2), sizes=(12,))
    with pytest.raises(DataError, match="a search cuts each training fold into 5 parts"):
        run_study(
            dataclasses.replace(searching, data=(Source(str(few)),)), tmp_path / "out", show=False
        )
    rare.write_text(
        "text,label\n" + "".join(f"text {i},common\n" for i in range(12)) + "one,rare\ntwo,rare\n"
    )
    alone = dataclasses.replace(searching, data=(Source(str(rare)),), sizes=(0,))
    with pytest.raises(DataError, match="only one class has two rows or more there"):
        run_study(alone, tmp_path / "out", show=False)
    assert not (tmp_path / "out").exists()


def test_the_statistics_of_a_comparison_are_computed_once(
    small_csv, tiny, closeknit, tmp_path, monkeypatch
):
    from closeknit.reports.study_page import folder as page_folder
    from closeknit.studies import folder as study_folder

    calls = []
    original = study_folder.summarise
    for module in (page_folder, study_folder):
        monkeypatch.setattr(
            module, "summarise", lambda *given: calls.append(given) or original(*given)
        )
    options = ("--objectives", "cross_entropy,supcon", "--folds", 2, "--seeds", 2, "--epochs", 1)
    command = ("compare", small_csv, *options, "--sizes", "all", "--encoder", tiny())
    closeknit(*command, "--threads", 1, "--set", "encoder.max_length=16", "--out", "study")
    assert len(calls) == 1
    compared = (tmp_path / "study" / "report.html").read_text()
    closeknit("report", "study")
    assert len(calls) == 2
    assert (tmp_path / "study" / "report.html").read_text() == compared


def test_a_study_says_once_per_data_set_how_many_texts_are_cut(study, small_csv, tmp_path, capsys):
    made = study(("cross_entropy", "supcon"), seeds=(2,))
    short = {
        name: dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, max_length=5))
        for name, config in made.objectives.items()
    }
    run_study(dataclasses.replace(made, objectives=short), tmp_path / "out", place=ONE_THREAD)
    said = [line for line in capsys.readouterr().err.splitlines() if "are longer than" in line]
    assert len(said) == 1
    lines = list(read_json_lines(tmp_path / "out" / "results.jsonl"))
    shares = [line["truncated"] for line in lines]
    assert len(shares) == 4 and min(shares) > 0.2
    assert f"small: {100 * shares[0]:.0f} % of the training texts are longer than 5" in said[0]
    mean = f"small {100 * sum(shares) / len(shares):.0f} %"
    table = (tmp_path / "out" / "table.md").read_text()
    assert f"Training texts that are longer than encoder.max_length and were cut: {mean}." in table
    page = write_report(tmp_path / "out").read_text()
    assert "Training texts cut at encoder.max_length" in page and mean in page
    run_study(study(seeds=(2,)), tmp_path / "whole", place=ONE_THREAD)  # no text is cut
    assert "longer than" not in capsys.readouterr().err
    assert "were cut" not in (tmp_path / "whole" / "table.md").read_text()


# ---------------------------------------------------------------- what a folder puts together


def changed(study, **settings):
    """The same study with other settings of all objectives, written as `train__epochs`."""
    options = {name.replace("__", "."): value for name, value in settings.items()}
    configs = {name: with_options(config, options) for name, config in study.objectives.items()}
    return dataclasses.replace(study, objectives=configs)


@pytest.fixture(params=["recorded", "not recorded"])
def run_in_folder(study, tmp_path, request):
    """A folder with the runs of seed 2; earlier versions did not record what identifies them."""
    out = tmp_path / "out"
    run_study(study(seeds=(2,)), out, place=ONE_THREAD, show=False)
    if request.param == "not recorded":
        path = out / "study.json"
        facts = json.loads(path.read_text())
        del facts["identities"]
        path.write_text(json.dumps(facts))
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        for line in lines:
            del line["tested"]
        (out / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train__epochs": 2}, "train.epochs was 1 and is 2"),
        ({"encoder__pooling": "mean"}, "encoder.pooling was first and is mean"),
        ({"train__batch_size": 0}, "holds runs of"),  # the key tells what it comes to
    ],
)
def test_other_seeds_with_other_settings_are_refused(study, run_in_folder, settings, words):
    before = (run_in_folder / "results.jsonl").read_bytes()
    other = changed(study(seeds=(16,)), **settings)
    with pytest.raises(ConfigError, match=words):
        run_study(other, run_in_folder, place=ONE_THREAD, show=False)
    assert (run_in_folder / "results.jsonl").read_bytes() == before


def test_another_encoder_with_another_seed_is_refused(study, run_in_folder):
    other = changed(study(seeds=(16,)), encoder__name="textcnn")
    with pytest.raises(ConfigError, match="another encoder"):
        run_study(other, run_in_folder, place=ONE_THREAD, show=False)


def test_other_folds_or_rows_with_another_seed_are_refused(study, run_in_folder, small_csv):
    with pytest.raises(ConfigError, match="folds was 2 and is 3"):
        run_study(study(seeds=(16,), folds=3), run_in_folder, place=ONE_THREAD, show=False)
    head, *rows = small_csv.read_text().splitlines()
    small_csv.write_text("\n".join([head, *reversed(rows)]) + "\n")
    with pytest.raises(ConfigError, match=r"holds runs of .*rows"):
        run_study(study(seeds=(16,)), run_in_folder, place=ONE_THREAD, show=False)


def test_the_same_settings_with_another_seed_are_accepted(study, run_in_folder):
    results = run_study(study(seeds=(16,)), run_in_folder, place=ONE_THREAD, show=False)
    assert len(results) == 4 and len(results_of(run_in_folder)) == 8


def test_settings_of_an_objective_without_runs_bind_nobody(study, tmp_path):
    out = tmp_path / "out"
    run_study(study(seeds=(2,)), out, place=ONE_THREAD, show=False)
    (out / "results.jsonl").unlink()
    run_study(changed(study(seeds=(2,)), train__epochs=2), out, place=ONE_THREAD, show=False)
    facts = json.loads((out / "study.json").read_text())["identities"]
    assert facts["objectives"]["supcon"]["settings"]["train"]["epochs"] == 2
    assert facts["data"]["small"]["folds"] == 2


def test_a_folder_remembers_the_objectives_of_earlier_commands(study, tmp_path):
    out = tmp_path / "out"
    run_study(study(seeds=(2,)), out, place=ONE_THREAD, show=False)
    run_study(study(("cross_entropy",), seeds=(2,)), out, place=ONE_THREAD, show=False)
    with pytest.raises(ConfigError, match=r"runs of supcon .* train\.lr was 0\.001 and is 0\.002"):
        other = changed(study(("supcon",), seeds=(16,)), train__lr=2e-3)
        run_study(other, out, place=ONE_THREAD, show=False)


# ---------------------------------------------------------------- open settings


@pytest.fixture
def opened(study, monkeypatch):
    """A study with open settings, which come to something else when rows are held out."""
    monkeypatch.setattr("closeknit.training.config.EPOCHS_OF_1000", 0.9)
    made = changed(
        study(("cross_entropy",), seeds=(2,)),
        train__epochs=0,
        train__batch_size=0,
        train__lr_scale=0.0,
        train__validation=0.4,
    )
    train = made.objectives["cross_entropy"].train
    assert train.settled(18, 3).epochs != train.settled(11, 3).epochs
    return made


def test_results_hold_what_open_settings_came_to(opened, tmp_path):
    results = run_study(opened, tmp_path / "out", place=ONE_THREAD, show=False)
    train = opened.objectives["cross_entropy"].train
    for result in results:
        found = result.settings["train"]
        settled = train.settled(11, 3)  # of the rows that were left to learn from
        assert (found["epochs"], found["batch_size"], found["lr_scale"]) == (
            settled.epochs,
            settled.batch_size,
            settled.lr_scale,
        )
        assert result.steps == found["epochs"]  # one batch has all 11 rows


def test_a_run_with_held_out_rows_is_not_taken_for_another(opened, tmp_path):
    """Open settings are resolved for the rows that are learnt from, in the key too."""
    out = tmp_path / "out"
    run_study(opened, out, place=ONE_THREAD, show=False)
    train = opened.objectives["cross_entropy"].train.settled(18, 3)
    all_rows = {name: getattr(train, name) for name in ("epochs", "batch_size", "lr_scale")}
    other = changed(opened, **{f"train__{name}": value for name, value in all_rows.items()})
    with pytest.raises(ConfigError, match=r"train\.epochs was 0 and is"):
        run_study(other, out, place=ONE_THREAD, show=False)
    (out / "study.json").write_text("{}")  # the key alone tells it too
    with pytest.raises(ConfigError, match="holds runs of cross_entropy"):
        run_study(other, out, place=ONE_THREAD, show=False)


def test_runs_whose_key_resolved_open_settings_for_all_rows_are_recognised(
    opened, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    as_before = JobPlanner._rows_learnt_from
    monkeypatch.setattr(JobPlanner, "_rows_learnt_from", lambda self, config, fold: len(fold.train))
    run_study(opened, out, place=ONE_THREAD, show=False)
    monkeypatch.setattr(JobPlanner, "_rows_learnt_from", as_before)
    (out / "study.json").write_text("{}")
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for line in lines:  # earlier versions wrote the settings as they were asked for
        line["settings"]["train"] |= {"epochs": 0, "batch_size": 0, "lr_scale": 0.0}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (out / "results.jsonl").write_text(text)
    settled = opened.objectives["cross_entropy"].train.settled(18, 3)
    named = {f"train__{name}": getattr(settled, name) for name in OPEN_SETTINGS}
    with pytest.raises(ConfigError, match=r"train\.epochs was 0 and is"):  # the key is the same
        run_study(changed(opened, **named), out, place=ONE_THREAD, show=False)
    assert len(run_study(opened, out, place=ONE_THREAD, show=False)) == 2
    assert (out / "results.jsonl").read_text() == text
    more = dataclasses.replace(opened, seeds=(2, 16))
    assert len(run_study(more, out, place=ONE_THREAD, show=False)) == 4
