"""Trains a text classifier in a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from closeknit import catalogue
from closeknit.classification.fit import Fit
from closeknit.config import RunConfig
from closeknit.console import say
from closeknit.data import DataSet, Examples, Fingerprint, split, spoken
from closeknit.models.run import begin_run, run_in_folder
from closeknit.processes import leave


@dataclasses.dataclass(frozen=True)
class Parts:
    """The rows a run learns from, chooses by and is scored on."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None


def parts_of(data: DataSet, config: RunConfig, *, tell: bool = True) -> Parts:
    """The parts of a data set; where it has neither test nor validation, a share of its rows is held out."""
    training, validation, test = data.training, data.parts.get("validation"), data.parts.get("test")
    share = config.data.test
    if test is None and validation is None and share > 0:
        kept, held_out = split(training.required_labels, share, config.train.seed)
        if tell:
            say(
                f"{data.name} has no test part: {len(held_out)} of its {len(training)} rows are held out to score "
                "the model (data.test=0 trains on all)"
            )
        training, test = training.select(kept), training.select(held_out)
    if tell and test is not None:
        known = set(zip(training.texts, training.pairs or training.texts, strict=True))
        seen = sum(text in known for text in zip(test.texts, test.pairs or test.texts, strict=True))
        if seen:
            say(
                f"{seen} of the {len(test)} test rows are among the training rows too, word for word: "
                "the score will be better than on new texts"
            )
    return Parts(training, validation, test)


def train_in_folder(
    source: str, config: RunConfig, out: Path, *, resume: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Train on a file, folder or catalogue name, save the model in `out`, and return its scores.

    Of several processes only the first returns scores; the others return nothing.
    """
    world = begin_run(out, resume, overwrite)
    parts = parts_of(catalogue.load(source, config.data), config, tell=world.main)
    identity = {
        "kind": "text_classifier",
        "run": config.to_dict(),
        "data": dataclasses.asdict(Fingerprint.of(parts.train, parts.validation, parts.test)),
    }

    def build(states: Path) -> Fit:
        fit = Fit(parts.train, config, validation=parts.validation, folder=states, resume=resume, world=world)
        if parts.test is not None:
            fit.model.check(parts.test)
        if fit.names and world.main:
            some = ", ".join(spoken(name) for name in fit.names[:3]) + (", …" if len(fit.names) > 3 else "")
            say(f"class names are learnt as texts too: {some} (train.class_names={config.train.class_names})")
        return fit

    def score(fit: Fit) -> None:
        if fit.training.number < fit.steps and world.main:
            say(f"stopped early after {fit.loop.patience} evaluations without gain; the best epoch is kept")
        if parts.test is not None:
            fit.model.metrics["test"] = fit.model.evaluate(parts.test)
        fit.model.metrics["rows"] = fit.rows
        fit.model.metrics["asked"] = identity["run"]  # before settings that were left open were settled
        fit.model.metrics["steps"] = fit.training.number

    metrics = run_in_folder(out, identity, config.objective.name, build, score, resume, overwrite, world)
    leave(world)
    return metrics
