"""Reads the file of a multi-task run, or the recipe of this name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from closeknit.data.tables import holds_data
from closeknit.errors import ConfigError, did_you_mean
from closeknit.multitask.config import MultiTaskConfig
from closeknit.settings import (
    Changes,
    given_options,
    listed_tables,
    parse_changes,
    read_toml,
    set_value,
)

RECIPES = Path(__file__).parent / "recipes"


def recipes() -> dict[str, Path]:
    """The studies that ship with Closeknit, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def read_multitask(
    source: str, changes: Sequence[str] = (), *, options: Mapping[str, Any] | None = None
) -> MultiTaskConfig:
    """A run from a TOML file or from the recipe of this name.

    Over the file go the `options` of a command (by `table.setting` or `tasks.NAME.setting`; None is
    not given), and over these the changes of `--set`, written as `table.setting=value`.
    """
    path = _study_file(source)
    try:
        tables = read_toml(path)
        _change(tables, [*given_options(options or {}), *parse_changes(changes)])
        return MultiTaskConfig.from_dict(_placed(tables, path.parent))
    except ConfigError as error:
        raise ConfigError(str(error) if str(path) in str(error) else f"{source}: {error}") from None


def _study_file(source: str) -> Path:
    """The file that a study is read from: a recipe of this name, or the file itself."""
    known = recipes()
    if source in known:
        return known[source]
    if Path(source).is_dir():
        raise ConfigError(
            f"{source} is a folder; name a study file in TOML, or a recipe: {', '.join(known)}"
        )
    if Path(source).suffix == ".toml" or Path(source).exists():
        return Path(source)
    raise ConfigError(f"{source} is neither a file nor a recipe{did_you_mean(source, known)}")


def _placed(tables: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The tables with absolute paths, so that a saved model finds its data again.

    Files and folders are looked for in the current folder, then beside the study file.
    """

    def place(source: Any) -> Any:
        if isinstance(source, dict):
            return {part: place(files) for part, files in source.items()}
        if isinstance(source, list):
            return [place(file) for file in source]
        if isinstance(source, str) and source:
            plain = not Path(source).suffix and "/" not in source  # may be a name of the catalogue
            for path in (Path(source), beside / source):
                if holds_data(path) if plain else path.exists():
                    return str(path.resolve())
        return source

    tasks = tables.get("tasks")
    stages = list(tasks.values()) if isinstance(tasks, dict) else []
    for stage in [*stages, *listed_tables(tables, "pretrain")]:
        if isinstance(stage, dict) and "data" in stage:
            stage["data"] = place(stage["data"])
    return tables


def _change(tables: dict[str, Any], changes: Changes) -> None:
    """Change the tables; tasks, the weights of tasks and the second and later stages of
    pretraining have names of three parts.
    """
    stages = tables.get("pretrain")
    if isinstance(stages, list) and stages:  # as they are numbered in the names of changes
        numbers = range(2, len(stages) + 1)
        further = {str(number): stages[number - 1] for number in numbers}
        tables["pretrain"] = {**stages[0], **further} if isinstance(stages[0], dict) else stages
    for name, value in changes:
        path = name.split(".")
        if path[0] == "tasks":
            _check_task_path(path, tables.get("tasks", {}))
        elif path[:2] != ["schedule", "weights"] and not _is_later_stage(path):
            path = name.split(".", 1)
        set_value(tables, path, value)


def _is_later_stage(path: list[str]) -> bool:
    return path[0] == "pretrain" and len(path) > 2 and path[1].isdigit()


def _check_task_path(path: list[str], tasks: Any) -> None:
    """Refuse a change of a task that does not exist or that names no setting."""
    name = ".".join(path)
    if len(path) != 3 or not isinstance(tasks, dict):
        raise ConfigError(f"cannot set {name}; write it as tasks.NAME.setting=value")
    if path[1] not in tasks:
        raise ConfigError(
            f"cannot set {name}: there is no task {path[1]}{did_you_mean(path[1], tasks)}"
        )
