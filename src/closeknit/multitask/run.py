"""Trains one encoder for several tasks in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data import Examples, Fingerprint
from closeknit.models.folder import (
    ALONE,
    remove_model,
)
from closeknit.models.run import begin_run, check_resumable, folder_held, run_in_folder
from closeknit.multitask.config import MultiTaskConfig
from closeknit.multitask.data import TaskData, fingerprint, load_tasks
from closeknit.multitask.fit import MultiTaskFit, pretraining_sentences
from closeknit.multitask.model import MultiTaskModel
from closeknit.processes import World, leave
from closeknit.sentences import Sentences


def multitask_in_folder(
    config: MultiTaskConfig,
    out: Path,
    *,
    alone: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train one encoder for several tasks, save it in `out`, and return its scores.

    With `alone` every task is first trained by itself, in the same way, in `out/alone/TASK`. Of several processes only the first
    returns scores.
    """
    world = begin_run(out, resume, overwrite)
    tell = say if world.main else lambda text: None
    data = load_tasks(config, tell=tell)
    sentences = pretraining_sentences(config, data, tell=tell)
    identity = _identity_of(data, config, sentences)
    if world.main and resume:  # before the single tasks, which may take long
        check_resumable(out, identity, tell=lambda text: None)
    if world.main and overwrite:
        with folder_held(out):
            _remove_single_models(out / ALONE)
    singles: dict[str, Any] = {}
    for name in config.tasks if alone and len(config.tasks) > 1 else ():
        tell(f"{name} alone")
        rows, single = {name: data[name]}, config.only(name)
        known = _identity_of(rows, single, sentences)
        fitted = _multitask(rows, single, sentences, known, out / ALONE / name, resume, overwrite, world)
        singles[name] = {
            part: fitted[part][name] for part in ("validation", "test") if name in fitted.get(part, {})
        }
    metrics = _multitask(data, config, sentences, identity, out, resume, overwrite, world, singles)
    if world.main and singles and "alone" not in metrics:  # the run had been finished before, without them
        model = MultiTaskModel.load(out)
        model.metrics["alone"] = metrics["alone"] = singles
        model.save(out)
    leave(world)
    return metrics


def _identity_of(
    data: dict[str, TaskData], config: MultiTaskConfig, sentences: Sentences | None
) -> dict[str, Any]:
    rows = fingerprint(data)
    if sentences is not None:
        texts = (Examples(column) for column in sentences.columns)
        rows["pretraining"] = Fingerprint.of(*texts).digest
    return {"kind": "multi_task", "run": config.to_dict(), "data": rows}


def _multitask(
    data: dict[str, TaskData],
    config: MultiTaskConfig,
    sentences: Sentences | None,
    identity: Mapping[str, Any],
    out: Path,
    resume: bool,
    overwrite: bool,
    world: World,
    singles: dict[str, Any] | None = None,
) -> dict[str, Any]:
    def build(states: Path) -> MultiTaskFit:
        return MultiTaskFit(data, config, sentences=sentences, folder=states, resume=resume, world=world)

    def score(fit: MultiTaskFit) -> None:
        if fit.training.number < fit.training.steps and world.main:
            say(f"stopped early after {fit.loop.patience} evaluations without gain; the best one is kept")
        fit.model.analyse(data)
        if singles:
            fit.model.metrics["alone"] = singles

    label = " + ".join(config.tasks)
    return run_in_folder(out, identity, label, build, score, resume, overwrite, world)


def _remove_single_models(folder: Path) -> None:
    """Remove the models that were trained on one task each; files of any other origin stay."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for single in list(folder.iterdir()):
        remove_model(single)
    with contextlib.suppress(OSError):
        folder.rmdir()
