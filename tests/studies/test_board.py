"""The progress of a study as it is shown."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from small_study import ONE_THREAD, study_maker

from closeknit.classification.config import RunConfig
from closeknit.studies import board as board_module
from closeknit.studies.board import ProgressBoard
from closeknit.studies.jobs import Job, Outcome
from closeknit.studies.run import run_study

ROWS = np.arange(4)
JOB = Job("small", 36, "supcon", 2, 0, ROWS, ROWS, ("a", "b"), RunConfig(), "key")


@pytest.fixture
def study(tiny, small_csv):
    return study_maker(tiny(), small_csv)


def test_names_with_brackets_are_shown_as_they_are(study, tmp_path):
    from rich.console import Console

    results = run_study(study(seeds=(2,)), tmp_path / "out", place=ONE_THREAD, show=False)
    results = [
        dataclasses.replace(result, data="reviews [en]", objective="[wide]") for result in results
    ]
    board = ProgressBoard(runs=4, max_jobs=4, baseline="cross_entropy", show=False)
    board.done(JOB, Outcome("key", {"weighted_f1": 0.5}), results)
    console = Console(record=True, file=io.StringIO())
    console.print(board._shown())
    text = console.export_text()
    assert "reviews [en]" in text and "[wide]" in text


def test_statistics_are_computed_once_for_each_new_result(study, tmp_path, monkeypatch):
    results = run_study(study(seeds=(2,)), tmp_path / "out", place=ONE_THREAD, show=False)
    calls = []
    original = board_module.summarise
    monkeypatch.setattr(
        board_module, "summarise", lambda *given: calls.append(given) or original(*given)
    )
    board = ProgressBoard(runs=4, max_jobs=4, baseline="cross_entropy", show=False)
    for number in (1, 2, 3):
        board.done(JOB, Outcome("key", {"weighted_f1": 0.5}), results[:number])
        board._shown()
        board._shown()
        assert len(calls) == number
        assert list(calls[-1][0]) == results[:number]
