"""Studies that search for settings."""

from __future__ import annotations

import dataclasses
import json

import pytest
from small_study import ONE_THREAD, results_of, study_maker, without_seconds

from closeknit.errors import TrainingError
from closeknit.json_lines import read_json_lines
from closeknit.reports.study_page import write_report
from closeknit.studies import folder
from closeknit.studies.jobs import Outcome
from closeknit.studies.plan import JobPlanner
from closeknit.studies.run import Place, run_study
from closeknit.studies.search import SearchConfig
from closeknit.studies.statistics import trials_of_last_search
from closeknit.training.loop import NotFinite


@pytest.fixture
def study(tiny, small_csv):
    return study_maker(tiny(), small_csv)


@pytest.mark.parametrize("selection", ["nested", "paper"])
def test_an_objective_with_an_empty_space_is_left_as_it_is(study, tmp_path, selection):
    made = study(
        search=SearchConfig(method="grid"),
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-3]}, "supcon": {}},
        selection=selection,
        seeds=(2,),
    )
    results = run_study(made, tmp_path / "out", place=ONE_THREAD, show=False)
    assert len(results) == 4
    tried = {record["objective"] for record in read_json_lines(tmp_path / "out" / "trials.jsonl")}
    assert tried == {"cross_entropy"}


def test_a_batch_of_settings_that_are_all_given_up_does_not_end_a_study(
    study, tmp_path, monkeypatch
):
    class Falling:
        """A runner in which every setting is worse than the one before."""

        def __init__(self):
            self.jobs = []

        @property
        def capacity(self):
            return 1 - len(self.jobs)

        def submit(self, job):
            self.jobs.append(job)

        def next_outcome(self):
            job = self.jobs.pop()
            score = 0.9 - 0.01 * job.trial.get("trial", 0)
            scores = dict.fromkeys(("weighted_f1", "accuracy", "macro_f1"), score)
            return Outcome(job.key, scores, encoder="none", details=None)

        def close(self):
            pass

    monkeypatch.setattr(Place, "make_runner", lambda self, examples: Falling())
    made = study(
        seeds=(2,),
        names=("cross_entropy",),
        search=SearchConfig(trials=20),
        spaces={"cross_entropy": {"train.lr": {"low": 1e-5, "high": 1e-2, "log": True}}},
    )
    assert len(run_study(made, tmp_path / "out", show=False)) == 2


@pytest.mark.parametrize("method", ["random", "halving", "tpe"])
def test_a_search_goes_on_to_the_same_choice(study, tmp_path, method):
    made = study(
        seeds=(2,),
        names=("cross_entropy",),
        search=SearchConfig(method=method, trials=4, splits=2),
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-3, 1e-2], "label_smoothing": [0.0, 0.1]}},
    )
    run_study(made, tmp_path / "whole", place=ONE_THREAD, show=False)
    whole = results_of(tmp_path / "whole")
    assert all('"selection": "nested"' in row for row in whole)
    trials = (tmp_path / "whole" / "trials.jsonl").read_text().splitlines(keepends=True)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "study.json").write_text((tmp_path / "whole" / "study.json").read_text())
    (cut / "trials.jsonl").write_text("".join(trials[:5]) + trials[5][:20])
    run_study(made, cut, place=ONE_THREAD, show=False)
    assert results_of(cut) == whole
    again = [without_seconds(trial) for trial in read_json_lines(cut / "trials.jsonl")]
    first = [
        without_seconds(trial) for trial in read_json_lines(tmp_path / "whole" / "trials.jsonl")
    ]
    assert again == first  # no trial twice, none lost
    assert {
        "data",
        "objective",
        "seed",
        "fold",
        "split",
        "trial",
        "options",
        "score",
        "key",
    } <= first[0].keys()


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
    final_job = JobPlanner._final_job
    append = folder.append_json_line

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(JobPlanner, "_final_job", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(searching(5), out, place=ONE_THREAD, show=False)
    monkeypatch.setattr(JobPlanner, "_final_job", final_job)
    trained = []
    monkeypatch.setattr(
        folder, "append_json_line", lambda path, line: (trained.append(line), append(path, line))
    )
    run_study(searching(3), out, place=ONE_THREAD, show=False)
    again = [line for line in trained if "trial" in line and line["fold"] == 0]
    assert {line["trial"] for line in again} == {0, 1, 2}
    assert all(line["seconds"] == 0.0 for line in again)  # none was trained twice
    shown = trials_of_last_search(read_json_lines(out / "trials.jsonl"))
    run_study(searching(3), tmp_path / "fresh", place=ONE_THREAD, show=False)
    fresh = list(read_json_lines(tmp_path / "fresh" / "trials.jsonl"))
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
    results = run_study(made, tmp_path / "out", place=ONE_THREAD, show=False)
    assert {result.selection for result in results} == {"paper"}
    trials = list(read_json_lines(tmp_path / "out" / "trials.jsonl"))
    assert len(trials) == 3 * 4
    means = {}
    for trial in trials:
        means.setdefault(json.dumps(trial["options"]), []).append(trial["score"])
    best = max(sum(scores) for scores in means.values()) / 4
    assert sum(r.weighted_f1 for r in results) / 4 == pytest.approx(best)
    text = (tmp_path / "out" / "table.md").read_text()
    assert "optimistic" in text and "left out of the choice" in text


@pytest.mark.parametrize("searched_first", [True, False])
def test_only_objectives_chosen_on_the_reported_folds_are_called_optimistic(
    study, tmp_path, searched_first
):
    """Whatever the last command was: the runs say how their settings were chosen."""
    searched = study(
        names=("cross_entropy",),
        seeds=(2,),
        search=SearchConfig(method="random", trials=2),
        selection="paper",
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-2]}},
    )
    plain = study(names=("supcon",), seeds=(2,))
    for made in (searched, plain) if searched_first else (plain, searched):
        run_study(made, tmp_path / "out", place=ONE_THREAD, show=False)
    text = (tmp_path / "out" / "table.md").read_text()
    assert "**The scores of cross_entropy are optimistic" in text
    page = write_report(tmp_path / "out").read_text()
    assert "The scores of cross_entropy are optimistic" in page
    assert "cross_entropy: the settings were chosen on the same folds" in page
    assert "supcon: the settings were fixed beforehand" in page


def test_an_objective_without_a_search_space_is_not_optimistic(study, tmp_path):
    made = study(
        seeds=(2,),
        search=SearchConfig(method="random", trials=2),
        selection="paper",
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-2]}, "supcon": {}},
    )
    results = run_study(made, tmp_path / "out", place=ONE_THREAD, show=False)
    assert {(r.objective, r.selection) for r in results} == {
        ("cross_entropy", "paper"),
        ("supcon", "fixed"),
    }


def test_a_setting_that_breaks_the_training_scores_nothing(study, tmp_path, monkeypatch):
    from closeknit.classification.fit import ClassifierFit

    original = ClassifierFit.__iter__

    def breaking(self):
        if self.config.train.lr == 1.0:
            raise NotFinite("the loss became nan")
        return original(self)

    monkeypatch.setattr(ClassifierFit, "__iter__", breaking)
    made = study(
        seeds=(2,),
        names=("cross_entropy",),
        search=SearchConfig(method="grid"),
        spaces={"cross_entropy": {"train.lr": [1.0, 1e-3]}},
    )
    run_study(made, tmp_path / "out", place=ONE_THREAD, show=False)
    assert 0.0 in [trial["score"] for trial in read_json_lines(tmp_path / "out" / "trials.jsonl")]
    fixed = study(seeds=(2,))
    broken = {
        name: dataclasses.replace(
            config, train=dataclasses.replace(config.train, lr=1.0 if name == "supcon" else 1e-3)
        )
        for name, config in fixed.objectives.items()
    }
    with pytest.raises(TrainingError, match=r"2 of 4 runs failed, the first: supcon on small"):
        run_study(
            dataclasses.replace(fixed, objectives=broken),
            tmp_path / "broken",
            place=ONE_THREAD,
            show=False,
        )
    assert len(results_of(tmp_path / "broken")) == 2  # the others are kept
