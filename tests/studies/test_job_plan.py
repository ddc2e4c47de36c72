"""The folds of a study and the jobs of its runs."""

from __future__ import annotations

import numpy as np
import pytest

from closeknit.data import from_python
from closeknit.studies.designs import StudyData, make_folds
from closeknit.studies.jobs import Outcome
from closeknit.studies.plan import JobPlanner
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, Study
from closeknit.studies.study_file import read_study


@pytest.fixture
def study_data():
    texts = [f"text {i}" for i in range(60)]
    examples = from_python(texts, [f"class {i % 3}" for i in range(60)], name="small")
    return StudyData({"small": examples}, {"small": "print"})


def study_of(**more):
    configs = read_study(
        None, {"data": ["small"], "objectives": ["cross_entropy", "supcon"]}, {}
    ).objectives
    return Study(
        (Source("small"),), configs, **{"sizes": (30, 0), "seeds": (2, 16), "folds": 3, **more}
    )


def test_every_objective_sees_the_same_rows_and_every_row_is_tested_once(study_data):
    study = study_of()
    all_folds = make_folds(study, study_data)
    assert len(all_folds) == 2 * 2 * 3
    for size in (30, 60):
        for seed in (2, 16):
            own = [fold for fold in all_folds if (fold.size, fold.seed) == (size, seed)]
            tested = np.concatenate([fold.test for fold in own])
            assert len(set(tested.tolist())) == len(tested) == size
            for fold in own:
                assert not set(fold.train.tolist()) & set(fold.test.tolist())
                assert len(fold.train) + len(fold.test) == size
    draws = [
        {
            row
            for fold in all_folds
            if (fold.size, fold.seed) == (30, seed)
            for row in fold.test.tolist()
        }
        for seed in (2, 16)
    ]
    assert draws[0] != draws[1]  # rows are drawn anew for each seed
    jobs = [
        next(generator)[0] for generator in JobPlanner(study, study_data).generators(all_folds, {})
    ]
    for first, second in zip(jobs[::2], jobs[1::2], strict=True):
        assert {first.objective, second.objective} == {"cross_entropy", "supcon"}
        assert np.array_equal(first.train, second.train) and np.array_equal(first.test, second.test)
        assert first.config.train == second.config.train
        assert first.config.train.seed == first.seed
    assert len({job.key for job in jobs}) == len(jobs)


def walk(generator, score):
    """All jobs of a generator; a function gives the score of each."""
    jobs, asked = [], next(generator)
    while True:
        jobs += asked
        try:
            asked = generator.send([Outcome(job.key, {"weighted_f1": score(job)}) for job in asked])
        except StopIteration:
            return jobs


def test_nested_selection_never_sees_the_test_fold(study_data):
    study = study_of(search=SearchConfig(method="halving", trials=6), sizes=(0,))
    all_folds = make_folds(study, study_data)
    planner = JobPlanner(study, study_data)
    fold_of_run = [fold for fold in all_folds for _ in study.objectives]
    for fold, generator in zip(fold_of_run, planner.generators(all_folds, {}), strict=True):
        *trials, final = walk(generator, lambda job: job.config.train.lr or 0.0)
        for job in trials:
            assert job.trial
            assert set(job.train.tolist()) | set(job.test.tolist()) <= set(fold.train.tolist())
            assert not set(job.train.tolist()) & set(job.test.tolist())
        assert np.array_equal(final.train, fold.train) and np.array_equal(final.test, fold.test)
        best = max(trials, key=lambda job: job.config.train.lr or 0.0)
        assert final.config.train.lr == best.config.train.lr  # the best one of the trials was taken
        assert final.key == planner.run_key(fold, final.objective)


def test_selection_on_the_reported_folds_uses_them_all(study_data):
    study = study_of(search=SearchConfig(method="random", trials=4), sizes=(0,), selection="paper")
    all_folds = make_folds(study, study_data)
    generators = list(JobPlanner(study, study_data).generators(all_folds, {}))
    assert len(generators) == 2  # one for each objective
    jobs = walk(generators[0], lambda job: job.config.train.lr or 0.0)
    trials, finals = jobs[: 4 * 6], jobs[4 * 6 :]
    assert [job.test.tolist() for job in finals] == [fold.test.tolist() for fold in all_folds]
    assert {tuple(job.test) for job in trials} == {tuple(fold.test) for fold in all_folds}
    assert len({job.config.train.lr for job in finals}) == 1


def test_a_run_is_known_by_everything_that_decides_it(study_data):
    all_folds = make_folds(study_of(), study_data)
    keys = {
        JobPlanner(study_of(**more), study_data).run_key(all_folds[0], "supcon")
        for more in (
            {},
            {"search": SearchConfig()},
            {"search": SearchConfig(trials=7)},
            {"search": SearchConfig(), "spaces": {"supcon": {"temperature": [0.1]}}},
            {"search": SearchConfig(), "selection": "paper"},
            {"search": SearchConfig(), "selection": "paper", "seeds": (2,)},
        )
    }
    assert len(keys) == 6
    more_seeds = JobPlanner(study_of(seeds=(2, 16, 3), folds=3), study_data).run_key(
        all_folds[0], "supcon"
    )
    assert more_seeds in keys  # a study can grow


def test_rare_classes_are_told_of_and_kept():
    examples = from_python(
        [f"t{i}" for i in range(30)], ["a"] * 15 + ["b"] * 14 + ["c"], name="rare"
    )
    said = []
    all_folds = make_folds(
        study_of(sizes=(0,)), StudyData({"rare": examples}, {"rare": "x"}), said.append
    )
    assert sum(len(fold.test) for fold in all_folds if fold.seed == 2) == 30
    assert any("1 classes have fewer than 3 rows" in text for text in said)
