"""Trains one encoder for several tasks in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data.examples import Examples, Fingerprint
from closeknit.data.sentences import Sentences
from closeknit.data.splits import Parts
from closeknit.models.folder import (
    ALONE,
    remove_model,
)
from closeknit.models.run import Identity, RunFolder
from closeknit.multitask.config import MultiTaskConfig
from closeknit.multitask.data import fingerprint, load_tasks
from closeknit.multitask.fit import MultiTaskFit
from closeknit.multitask.model import MultiTaskModel
from closeknit.multitask.pretraining import pretraining_sentences
from closeknit.training.processes import failing_together, leave


def multitask_in_folder(
    config: MultiTaskConfig,
    out: Path,
    *,
    alone: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train one encoder for several tasks, save it in `out`, and return its scores.

    With `alone`, every task is first trained by itself, with the same settings, in
    `out/alone/TASK`. Of several processes only the first returns scores.
    """
    folder = RunFolder.open(out, MultiTaskConfig, resume=resume, overwrite=overwrite)
    main = folder.world.main
    log = say if main else lambda text: None
    data = load_tasks(config, log=log)
    run = _TasksRun(data, config, pretraining_sentences(config, data, log=log))
    if resume:  # before the single tasks, which may take long
        folder.check_resumable_together(run.identity(), log=lambda text: None)
    with failing_together(folder.world):
        if main and overwrite:
            with folder.held():
                _remove_single_models(out / ALONE)
    singles: dict[str, Any] = {}
    if alone and len(config.tasks) > 1:
        for name in config.tasks:
            log(f"{name} alone")
            metrics = run.only(name).train(folder.inside(ALONE, name), {})
            singles[name] = _scores_of_task(metrics, name)
        log("all tasks together")
    metrics = run.train(folder, singles)
    if main and singles and "alone" not in metrics:
        # The run was finished before, without the single tasks.
        model = MultiTaskModel.load(out)
        model.metrics["alone"] = metrics["alone"] = singles
        model.save(out)
    leave(folder.world)
    return metrics


def _scores_of_task(metrics: Mapping[str, Any], name: str) -> dict[str, Any]:
    parts = ("train", "validation", "test")
    return {part: metrics[part][name] for part in parts if name in metrics.get(part, {})}


@dataclass(frozen=True)
class _TasksRun:
    """What is trained: the rows of the tasks, their settings, and the sentences of the
    pretraining.
    """

    data: dict[str, Parts]
    config: MultiTaskConfig
    sentences: list[Sentences]  # of each stage of pretraining

    def only(self, name: str) -> _TasksRun:
        """The same run with one task."""
        return _TasksRun({name: self.data[name]}, self.config.only(name), self.sentences)

    def identity(self) -> Identity:
        rows = fingerprint(self.data)
        for number, sentences in enumerate(self.sentences, 1):
            texts = (Examples(column) for column in sentences.columns)
            name = "pretraining" if number == 1 else f"pretraining-{number}"
            rows[name] = Fingerprint.of(*texts).digest
        return {"kind": MultiTaskModel.kind, "run": self.config.to_dict(), "data": rows}

    def train(self, folder: RunFolder, singles: Mapping[str, Any]) -> dict[str, Any]:
        """Train in a folder and return the metrics; `singles` are scores of models that know one
        task.
        """

        def build(states: Path) -> MultiTaskFit:
            return MultiTaskFit(
                self.data,
                self.config,
                sentences=self.sentences,
                folder=states,
                resume=folder.resume,
                world=folder.world,
            )

        def score(fit: MultiTaskFit) -> None:
            if fit.training.number < fit.training.steps and folder.world.main:
                patience = fit.session.patience
                say(
                    f"stopped early after {patience} evaluations without gain; the best one is kept"
                )
            fit.model.analyse(self.data)
            if singles:
                fit.model.metrics["alone"] = singles

        return folder.train(self.identity(), " + ".join(self.config.tasks), build, score)


def _remove_single_models(folder: Path) -> None:
    """Remove the models that were trained on one task each; files of any other origin stay."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for single in list(folder.iterdir()):
        remove_model(single)
    with contextlib.suppress(OSError):
        folder.rmdir()
