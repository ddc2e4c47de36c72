"""Processes of a run do the same: they resume, stop, choose and fail together."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from several_processes import run_together
from torch.optim.optimizer import register_optimizer_step_post_hook

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.run import train_in_folder
from closeknit.data import from_python
from closeknit.errors import ConfigError, DataError, Stopped
from closeknit.training.processes import ProcessLost, World
from conftest import TEXTS

ALONE = World(torch.device("cpu"))


def settings_of(tiny, objective: str = "cross_entropy", **train: Any) -> dict[str, Any]:
    """Settings of a quick run without dropout, so that one process and two give the same numbers."""
    options = {"epochs": 3, "batch_size": 9, "lr": 1e-3, "checkpoint_seconds": 9999.0, **train}
    name, _, tokens = objective.partition(" ")
    return {
        "encoder": {"name": tiny(), "max_length": 16, "dropout": 0.0},
        "objective": {"name": name, **({"tokens": tokens} if tokens else {})},
        "train": options,
    }


def fit_of(world, settings, rows, **more) -> ClassifierFit:
    return ClassifierFit(
        from_python(*rows),
        RunConfig.from_dict(settings),
        world=world,
        log=lambda text: None,
        **more,
    )


def train_to_end(world, settings, rows, folders=None, resume=False, until=None):
    """(numbers of the steps, their losses, the weights at the end)."""
    folder = Path(folders[world.rank]) if folders else None
    fit = fit_of(world, settings, rows, folder=folder, resume=resume)
    numbers, losses = [], []
    for step in fit:
        numbers.append(step.number)
        losses.append(step.loss)
        if step.number == until:
            fit.save_state()
            break
    state = fit.training.learners.state_dict()
    return numbers, losses, {name: value.numpy().copy() for name, value in state.items()}


@pytest.fixture(scope="module", autouse=True)
def libraries(tiny):
    """Import what a training imports late, so that each process begins with it."""
    rows = tuple(map(list, zip(*TEXTS, strict=True)))
    train_to_end(ALONE, settings_of(tiny, epochs=1), rows)


def same_weights(a, b, tolerance: float) -> bool:
    return a.keys() == b.keys() and all(np.allclose(a[k], b[k], atol=tolerance) for k in a)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("shared_disk", [True, False])
def test_all_processes_resume_where_the_first_one_stopped(tiny, small, tmp_path, shared_disk):
    settings = settings_of(tiny)
    first = tmp_path / "first"
    second = first if shared_disk else tmp_path / "second"
    _, _, whole = train_to_end(ALONE, settings, small)
    train_to_end(ALONE, settings, small, [first], until=5)
    (numbers, losses, weights), (others, other_losses, other_weights) = run_together(
        train_to_end, settings, small, [first, second], True
    )
    assert numbers == others == list(range(6, 13))
    assert losses == pytest.approx(other_losses, rel=1e-6)
    assert same_weights(weights, other_weights, 0.0)
    assert same_weights(weights, whole, 1e-4)


@pytest.mark.parametrize("steps", [(5, 3), (None, 5)])
def test_processes_that_find_different_checkpoints_are_refused(tiny, small, tmp_path, steps):
    settings = settings_of(tiny)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, step in zip(folders, steps, strict=True):
        if step is not None:
            train_to_end(ALONE, settings, small, [folder], until=step)
    errors = run_together(train_to_end, settings, small, folders, True)
    for rank, error in enumerate(errors):
        assert isinstance(error, ConfigError)
        assert str(folders[rank]) in str(error)
        assert f"step-00000000{steps[1]}" in str(error)
        assert ("no checkpoint" if steps[0] is None else "step-000000005") in str(error)


def test_a_damaged_checkpoint_ends_all_processes(tiny, small, tmp_path):
    (tmp_path / "step-000000004").mkdir()
    first, second = run_together(train_to_end, settings_of(tiny), small, [tmp_path] * 2, True)
    assert "step-000000004" in str(first) and "step-000000004" in str(second)
    assert isinstance(second, ProcessLost) and "process 0" in str(second)


# ---------------------------------------------------------------- stopping


def train_until_signalled(world, settings, source, out, signals, resume=False):
    """Train in a folder; this process sends itself these signals in its fourth update."""
    mine = signals.get(world.rank, ())
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1
        if count == 4:
            for number in mine:
                os.kill(os.getpid(), number)

    handle = register_optimizer_step_post_hook(note)
    try:
        return train_in_folder(source, RunConfig.from_dict(settings), Path(out), resume=resume)
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "signals",
    [
        {1: [signal.SIGTERM]},
        {0: [signal.SIGINT]},
        # Ctrl-C in a terminal reaches the processes, and the launcher sends another signal
        {0: [signal.SIGINT, signal.SIGTERM], 1: [signal.SIGINT, signal.SIGTERM]},
    ],
)
def test_a_signal_to_one_process_stops_all_with_a_saved_state(tiny, small_csv, tmp_path, signals):
    out = tmp_path / "run"
    settings = settings_of(tiny)
    found = run_together(train_until_signalled, settings, str(small_csv), str(out), signals)
    for error in found:
        assert isinstance(error, Stopped), repr(error)
        assert "continue with --resume" in str(error)
    (saved,) = names(out / "checkpoints")
    assert saved in ("step-000000004", "step-000000005")
    metrics, other = run_together(
        train_until_signalled, settings, str(small_csv), str(out), {}, True
    )
    assert other == {} and json.loads((out / "metrics.json").read_text())["steps"] == 12
    assert metrics["steps"] == 12


def test_one_process_alone_still_stops_at_its_signal(tiny, small_csv, tmp_path):
    arguments = settings_of(tiny), str(small_csv), str(tmp_path / "run"), {0: [signal.SIGTERM]}
    (error,) = run_together(train_until_signalled, *arguments, processes=1)
    assert isinstance(error, Stopped) and "after step 4" in str(error)
    assert names(tmp_path / "run" / "checkpoints") == ["step-000000004"]


def end_within_a_step(world, settings, rows, folder):
    """Process 1 disappears in its fifth update."""
    fit = fit_of(world, settings, rows, folder=Path(folder))
    for step in fit:
        if step.number == 4 and world.rank == 1:
            os._exit(9)
    return "finished"


def test_a_process_that_disappears_ends_the_others_with_a_saved_state(tiny, small, tmp_path):
    first, second = run_together(end_within_a_step, settings_of(tiny), small, str(tmp_path))
    assert second == 9
    assert isinstance(first, ProcessLost) and "another process" in str(first)
    assert names(tmp_path) == ["step-000000004"]


# ---------------------------------------------------------------- one result


@pytest.mark.parametrize(("chunk", "processes"), [(0, 2), (3, 2), (0, 3)])
def test_padding_counts_as_in_one_process(tiny, small, chunk, processes):
    settings = settings_of(tiny, "triple_entropy all", chunk_size=chunk, batch_size=16)
    texts = [text if row % 3 else f"{text} please {text}" for row, text in enumerate(small[0])]
    # 33 rows: the last batch has one row, so that a process has none
    rows = texts[:33], small[1][:33]
    _, losses, whole = train_to_end(ALONE, settings, rows)
    for _, own_losses, weights in run_together(train_to_end, settings, rows, processes=processes):
        assert own_losses == pytest.approx(losses, rel=1e-5)
        assert same_weights(weights, whole, 1e-4)


def train_by_own_scores(world, settings, rows):
    """Every process has scores of its own, as on machines that round in other ways."""
    fit = fit_of(world, settings, rows)
    evaluate = fit.session.evaluate
    fit.session.evaluate = lambda: {
        **evaluate(),
        "accuracy": 0.5 + (0.01 if world.rank else -0.01) * fit.training.number,
    }
    last = [step.number for step in fit][-1]
    return last, [record["accuracy"] for record in fit.session.history]


def test_the_scores_of_the_first_process_decide_for_all(tiny, small):
    settings = settings_of(tiny, epochs=8, patience=2, validation=0.3, metric="accuracy")
    first, second = run_together(train_by_own_scores, settings, small)
    assert first == second
    assert len(first[1]) == 3  # the first is the best, two more are without gain


def train_from_own_weights(world, settings, rows):
    """Every process begins with weights of its own, as with other files on each machine."""
    fit = fit_of(world, settings, rows)
    with torch.no_grad():
        for parameter in fit.training.parameters:
            parameter += 0.01 * world.rank
    for _ in fit:
        pass
    return {name: value.numpy() for name, value in fit.training.learners.state_dict().items()}


def test_all_processes_train_the_weights_of_the_first(tiny, small):
    settings = settings_of(tiny)
    first, second = run_together(train_from_own_weights, settings, small)
    assert same_weights(first, second, 0.0)
    assert same_weights(first, train_from_own_weights(ALONE, settings, small), 1e-4)


# ---------------------------------------------------------------- failing


def train_in_own_folder(world, settings, sources, out):
    source = sources[world.rank % len(sources)]
    return train_in_folder(source, RunConfig.from_dict(settings), Path(out))


def test_a_folder_that_is_taken_ends_all_processes(tiny, small_csv, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    arguments = settings_of(tiny), [str(small_csv)], str(tmp_path / "run")
    first, second = run_together(train_in_own_folder, *arguments)
    assert isinstance(first, ConfigError) and "holds notes.txt" in str(first)
    assert isinstance(second, ProcessLost) and "holds notes.txt" in str(second)


def test_processes_with_other_rows_are_refused(tiny, small_csv, tmp_path):
    other = tmp_path / "other" / "small.csv"
    other.parent.mkdir()
    shutil.copy(small_csv, other)
    other.write_text(other.read_text().replace("stolen", "lost"))
    arguments = settings_of(tiny), [str(small_csv), str(other)], str(tmp_path / "run")
    for error in run_together(train_in_own_folder, *arguments):
        assert isinstance(error, DataError) and "process 1 has read other rows" in str(error)
