"""What identifies the runs of a study: the rows and splits of each data set, and the settings of
each objective. Runs that differ in any of it are never put into one line of a table.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closeknit.classification.config import RunConfig
from closeknit.encoders.loading import identity as encoder_identity
from closeknit.errors import ConfigError
from closeknit.settings import differences
from closeknit.studies.designs import StudyData
from closeknit.studies.results import Result
from closeknit.studies.study import Study
from closeknit.training.config import OPEN_SETTINGS

Identity = dict[str, Any]
Identities = dict[str, dict[str, Identity]]  # "data" or "objectives" -> name -> identity

_TABLES = ("encoder", "objective", "train")
_MAX_SHOWN = 3


def identities(study: Study, data: StudyData) -> Identities:
    """What identifies the runs of a study, as study.json records it."""
    return {
        "data": {name: _of_data(study, data, name) for name in data.examples},
        "objectives": {name: _of_objective(study, name) for name in study.objectives},
    }


def _of_data(study: Study, data: StudyData, name: str) -> Identity:
    return {
        "fingerprint": data.fingerprints[name],
        "training_rows": len(data.training_rows(name)),
        "test": study.test,
        "folds": study.splits_per_seed,
        "equal_texts": study.equal_texts or "together",
    }


def _of_objective(study: Study, name: str) -> Identity:
    """How the settings are chosen, and all settings but the seed, as they are read from JSON."""
    config = study.objectives[name]
    settings = {table: dict(config.to_dict()[table]) for table in _TABLES}
    del settings["train"]["seed"]
    search: dict[str, Any] | None = None
    if study.search is not None and study.space(name):
        search = {**dataclasses.asdict(study.search), "space": dict(study.space(name))}
    identity: Identity = json.loads(
        json.dumps(
            {
                "selection": study.selection_of(name),
                "search": search,
                "encoder": encoder_identity(config.encoder.name),
                "settings": settings,
            }
        )
    )
    return identity


def merged(asked: Identities, recorded: Identities, results: Sequence[Result]) -> Identities:
    """The identities that were asked for, and the recorded ones of the runs in the folder."""
    return {kind: {**_of_runs(recorded, kind, results), **asked[kind]} for kind in asked}


def _of_runs(recorded: Identities, kind: str, results: Sequence[Result]) -> dict[str, Identity]:
    """The recorded identities of which there are runs; what was never run binds nobody."""
    names = {run.data if kind == "data" else run.objective for run in results}
    found = recorded.get(kind)
    table = found if isinstance(found, Mapping) else {}
    return {name: one for name, one in table.items() if name in names and isinstance(one, dict)}


# ---------------------------------------------------------------- differences


def refuse_other_identities(
    folder: Path, asked: Identities, recorded: Identities, results: Sequence[Result]
) -> None:
    """Refuse data sets and objectives of which the folder has runs with another identity."""
    data, objectives = asked["data"], asked["objectives"]
    for run in results:
        if run.data in data:
            splits = {"test": run.test, "folds": run.folds}
            _refuse(folder, run.data, _data_differences(splits, data[run.data]))
    for name, found in _of_runs(recorded, "data", results).items():
        if name in data:
            _refuse(folder, name, _data_differences(found, data[name]))
    known = _of_runs(recorded, "objectives", results)
    for name, found in known.items():
        if name in objectives:
            _refuse(folder, name, _objective_differences(found, objectives[name]))
    for run in results:
        if run.objective in objectives and run.objective not in known:
            _refuse(folder, run.objective, _run_differences(run, objectives[run.objective]))


def _data_differences(found: Identity, asked: Identity) -> list[str]:
    """Where the identities of a data set differ; what is not recorded is no difference."""
    unequal = [name for name in asked if name in found and found[name] != asked[name]]
    if "fingerprint" in unequal:
        return ["the data set had other rows, or its rows in another order"]
    return [f"{name} was {found[name]} and is {asked[name]}" for name in unequal]


def _objective_differences(found: Identity, asked: Identity) -> list[str]:
    """Where the identities of an objective differ."""
    listed = [
        f"{name} was {found.get(name)} and is {asked[name]}"
        for name in ("selection", "search")
        if found.get(name) != asked[name]
    ]
    settings, now = _without_encoder(found["settings"]), _without_encoder(asked["settings"])
    if found.get("encoder") != asked["encoder"]:
        names = [one["settings"]["encoder"]["name"] or "the bundled one" for one in (found, asked)]
        listed.append(f"it had another encoder ({names[0]}, now {names[1]})")
    return listed + _setting_differences(settings, now)


def _run_differences(run: Result, asked: Identity) -> list[str]:
    """Where a run differs from an objective that the folder records nothing of.

    Earlier versions recorded nothing. What a search chose for the run is no difference.
    """
    if asked["search"]:
        same = run.selection == asked["selection"]
        return [] if same else [f"selection was {run.selection} and is {asked['selection']}"]
    settings = {**run.settings, "objective": run.options}
    return _setting_differences(_without_encoder(settings), _without_encoder(asked["settings"]))


def _without_encoder(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings without the name of the encoder, which may be that of a folder that was moved,
    and without the seed.
    """
    kept = {table: dict(values) for table, values in settings.items()}
    kept.get("encoder", {}).pop("name", None)
    kept.get("train", {}).pop("seed", None)
    return kept


def _setting_differences(
    found: dict[str, dict[str, Any]], asked: dict[str, dict[str, Any]]
) -> list[str]:
    """Where settings differ. A setting that is open on one side may come to the same on the other,
    which the keys of the runs tell. They do not where an earlier version resolved it and a
    validation part was held out.
    """
    before, now = found.get("train", {}), asked["train"]
    same = {
        name: now[name]
        for name in OPEN_SETTINGS
        if not now[name] or (not before.get(name) and not now["validation"])
    }
    found = {**found, "train": {**before, **same}} if before else found
    # The name of the encoder and the seed are compared elsewhere.
    shared: dict[str, dict[str, Any]] = {"encoder": {"name": None}, "train": {"seed": 0}}
    before, now = (
        {table: {**values, **shared.get(table, {})} for table, values in settings.items()}
        for settings in ({**asked, **found}, asked)
    )
    return differences(RunConfig, before, {**RunConfig().to_dict(), **now})


def _refuse(folder: Path, name: str, listed: Sequence[str]) -> None:
    if not listed:
        return
    shown = "; ".join(listed[:_MAX_SHOWN])
    more = f"; and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
    raise ConfigError(
        f"{folder} holds runs of {name} with other settings or rows, which cannot be put together "
        f"with those of this study: {shown}{more}. Name another folder with --out, or "
        "discard them with --overwrite"
    )
