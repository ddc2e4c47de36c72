"""Worker processes, and studies that are killed."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_study import ONE_THREAD, results_of, study_maker, trials_of

from closeknit.errors import ConfigError, MissingExtra, TrainingError
from closeknit.json_lines import read_json_lines
from closeknit.studies import runners
from closeknit.studies.designs import StudyData, make_folds
from closeknit.studies.plan import JobPlanner
from closeknit.studies.run import Place, run_study
from closeknit.studies.search import SearchConfig
from closeknit.training.processes import World


@pytest.fixture
def study(tiny, small_csv):
    return study_maker(tiny(), small_csv)


def test_workers_give_the_same_bits(study, tmp_path):
    made = study()
    run_study(made, tmp_path / "here", place=ONE_THREAD, show=False)
    run_study(made, tmp_path / "workers", place=Place(workers=2, threads=1), show=False)
    assert results_of(tmp_path / "workers") == results_of(tmp_path / "here")


def first_jobs(made):
    """The data of a study, and the first job of each of its runs."""
    data = StudyData.load(made)
    generators = JobPlanner(made, data).generators(make_folds(made, data), {})
    return data, [next(generator)[0] for generator in generators]


def test_jobs_that_take_turns_give_the_outcomes_of_jobs_alone(study, monkeypatch):
    """As on a GPU, but without streams; more jobs start once the memory of the first is known."""
    data, jobs = first_jobs(study())
    jobs = [dataclasses.replace(job, keep_details=True, keep_vectors=False) for job in jobs]
    monkeypatch.setattr(runners, "memory_is_plenty", lambda device: True)
    monkeypatch.setattr(runners, "UPDATES_PER_TURN", 1)

    def outcomes(slots):
        """The scores and losses of all jobs, and how many jobs were busy when each one ended."""
        monkeypatch.setattr(
            runners, "_make_slots", lambda _: [runners._Slot(None) for _ in range(slots)]
        )
        runner = runners.InProcessRunner(data.examples, 1)
        waiting, found, busy = list(jobs), {}, []
        while len(found) < len(jobs):
            while waiting and runner.capacity > 0:
                runner.submit(waiting.pop(0))
            outcome = runner.next_outcome()
            found[outcome.key] = outcome.scores, outcome.details["history"]
            busy.append(1 + sum(not slot.is_free for slot in runner.slots))
        runner.close()
        return found, busy

    alone, one_by_one = outcomes(1)
    in_turns, together = outcomes(3)
    assert alone == in_turns
    assert set(one_by_one) == {1}
    assert together[0] == 1 and max(together) == 3


def test_a_worker_that_dies_is_replaced(study, tmp_path):
    data, jobs = first_jobs(study())
    runner = runners.ProcessPoolRunner(data.examples, 1, 1)
    try:
        for job in jobs[:2]:
            runner.submit(job)
        first = runner.next_outcome()
        os.kill(next(iter(runner.pool._processes)), signal.SIGKILL)
        second = runner.next_outcome()
        runner.submit(jobs[2])
        third = runner.next_outcome()
    finally:
        runner.close()
    assert [first.key, second.key, third.key] == [job.key for job in jobs[:3]]


def test_workers_that_always_die_are_given_up(study, tmp_path, monkeypatch):
    data, jobs = first_jobs(study())
    monkeypatch.setattr(runners, "_start_worker", _die)
    monkeypatch.setattr(runners, "MAX_RETRIES", 1)
    runner = runners.ProcessPoolRunner(data.examples, 1, 1)
    with pytest.raises(TrainingError, match="fewer --workers"):
        runner.submit(jobs[0])
        runner.next_outcome()
    runner.close()


def _die(*arguments):
    os._exit(9)


STUDY = "--objectives cross_entropy,supcon --sizes all --folds 2 --seeds 2,16 --epochs 1 --batch-size 12 --lr 1e-3"


def words(tiny, data, out, *more):
    place = ("--encoder", tiny(), "--out", str(out), "--threads", "1", *more)
    return ("compare", str(data), *STUDY.split(), *place, "--set", "encoder.max_length=16")


def test_workers_end_with_the_command_that_was_killed(small_csv, tiny, tmp_path, closeknit):
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "closeknit", *words(tiny, small_csv, out, "--workers", "2")]
    command = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(read_json_lines(out / "results.jsonl")):
        assert command.poll() is None, command.stderr.read()
        time.sleep(0.05)
    command.kill()
    command.communicate()
    ended = time.monotonic() + 30
    while subprocess.run(["pgrep", "-g", str(command.pid)], capture_output=True).returncode == 0:
        assert time.monotonic() < ended, "workers outlive their command"
        time.sleep(0.2)
    after = closeknit(*words(tiny, small_csv, out))
    assert "runs are done already" in after.stderr and "report.html" in after.stdout
    closeknit(*words(tiny, small_csv, tmp_path / "whole"))
    assert results_of(out) == results_of(tmp_path / "whole")


class Unreadable(Exception):
    """An error that cannot be made again from what pickle keeps of it."""

    def __init__(self, first, second):
        super().__init__(first)


def _without_peft(job, examples, threads):
    raise MissingExtra("LoRA (encoder.lora_rank)", "lora")


def _with_an_unreadable_error(job, examples, threads):
    raise Unreadable("no such revision", 2)


def _use_without_peft():
    runners._do_job = _without_peft


def _use_an_unreadable_error():
    runners._do_job = _with_an_unreadable_error


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        (_use_without_peft, MissingExtra, r"LoRA .*closeknit\[lora\]"),
        (_use_an_unreadable_error, TrainingError, "a run failed: Unreadable: no such revision"),
    ],
)
def test_an_error_of_a_worker_is_told_as_it_is(study, monkeypatch, start, error, message):
    data, jobs = first_jobs(study())
    monkeypatch.setattr(runners, "_start_worker", functools.partial(_started_with, start))
    runner = runners.ProcessPoolRunner(data.examples, 1, 1)
    try:
        runner.submit(jobs[0])
        with pytest.raises(error, match=message):
            runner.next_outcome()
    finally:
        runner.close()


def _started_with(change, examples, threads, parent, started):
    """A worker with the data that it should have, and a change of what a job does."""
    runners._worker_examples = examples
    change()


def test_a_study_that_a_launcher_starts_several_times_is_refused(study, tmp_path, monkeypatch):
    world = World(torch.device("cpu"), rank=1, size=2)
    monkeypatch.setattr("closeknit.studies.run.this_world", lambda: world)
    with pytest.raises(ConfigError, match=r"2 processes of this study.*--workers"):
        run_study(study(), tmp_path / "study", place=ONE_THREAD, show=False)
    assert not (tmp_path / "study").exists()


def _study_in_child(made, out):
    run_study(made, out, place=ONE_THREAD, show=False)


def test_killed_at_twenty_random_moments_it_ends_with_the_same_rows(study, tmp_path):
    """Each start is killed after a random time, until twenty kills have hit; every study ends as an
    undisturbed one.
    """
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
    whole, trials = results_of(tmp_path / "whole"), trials_of(tmp_path / "whole")
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
        assert results_of(out) == whole
        assert trials_of(out) == trials
    assert kills == 20


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
        assert [runners.threads_per_worker(workers) for workers in (0, 1, 2, 20)] == shares
