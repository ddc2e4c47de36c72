"""Trains a text classifier in a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.model import Model
from closeknit.console import say
from closeknit.data import catalogue
from closeknit.data.class_names import class_name_as_words
from closeknit.data.distinct_texts import note_of_repeated_rows, split_for_run
from closeknit.data.examples import DataSet, Fingerprint
from closeknit.data.splits import Parts
from closeknit.models.run import RunFolder
from closeknit.training.processes import leave

SPLIT = "split"  # in what a run keeps of its data: how rows were held out


def train_in_folder(
    source: str, config: RunConfig, out: Path, *, resume: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Train on a file, folder or catalogue name, save the model in `out`, and return its scores.

    Of several processes only the first returns scores; the others return nothing.
    """
    folder = RunFolder.open(out, RunConfig, resume=resume, overwrite=overwrite)
    world = folder.world
    kept = folder.kept_data() if resume else None
    # Runs that were begun before rows were split by text are resumed with the rows they had.
    split_rows = kept is not None and SPLIT not in kept
    data = catalogue.load(source, config.data)
    parts = parts_of(data, config, announce=world.main, split_rows=split_rows)
    fingerprint = dataclasses.asdict(Fingerprint.of(parts.train, parts.validation, parts.test))
    identity = {
        "kind": Model.kind,
        "run": config.to_dict(),
        "data": fingerprint if split_rows else {**fingerprint, SPLIT: "by text"},
    }

    def build(states: Path) -> ClassifierFit:
        fit = ClassifierFit(
            parts.train,
            config,
            validation=parts.validation,
            folder=states,
            resume=resume,
            world=world,
            split_rows=split_rows,
        )
        if parts.test is not None:
            fit.model.check(parts.test)
        if fit.names and world.main:
            _announce_class_names(fit)
        return fit

    def score(fit: ClassifierFit) -> None:
        if fit.training.number < fit.steps and world.main:
            patience = fit.session.patience
            say(f"stopped early after {patience} evaluations without gain; the best epoch is kept")
        fit.model.remember_training(parts.train)
        metrics = fit.model.metrics
        if parts.test is not None:
            metrics["test"] = fit.model.evaluate(parts.test)
        metrics["rows"] = fit.rows
        metrics["asked"] = identity["run"]  # the settings before open ones were resolved
        metrics["steps"] = fit.training.number

    metrics = folder.train(identity, config.objective.name, build, score)
    leave(world)
    return metrics


def _announce_class_names(fit: ClassifierFit) -> None:
    shown = ", ".join(class_name_as_words(name) for name in fit.names[:3])
    more = ", …" if len(fit.names) > 3 else ""
    times = fit.config.train.class_names
    say(f"class names are learnt as texts too: {shown}{more} (train.class_names={times})")


def parts_of(
    data: DataSet, config: RunConfig, *, announce: bool = True, split_rows: bool = False
) -> Parts:
    """The parts of a data set. Where it has neither a test nor a validation part, a share of its
    rows is held out, by distinct text unless `split_rows` is set.
    """
    training = data.training
    validation, test = data.parts.get("validation"), data.parts.get("test")
    share = config.data.test
    if test is None and validation is None and share > 0:
        kept, held_out = split_for_run(training, share, config.train.seed, split_rows=split_rows)
        if announce:
            say(
                f"{data.name} has no test part: {len(held_out)} of its {len(training)} rows are held out to score "
                "the model (data.test=0 trains on all)"
            )
        training, test = training.select(kept), training.select(held_out)
    note = None if test is None else note_of_repeated_rows(training, test, "test")
    if announce and note is not None:
        say(note)
    return Parts(training, validation, test)
