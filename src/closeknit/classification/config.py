"""RunConfig: everything that decides the outcome of training a classifier, but for the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from closeknit.data.tables import Columns
from closeknit.encoders.config import EncoderConfig
from closeknit.errors import ConfigError
from closeknit.objectives import RECIPES
from closeknit.objectives.config import ObjectiveConfig
from closeknit.settings import (
    Changes,
    Configuration,
    check_tables,
    given_options,
    parse_changes,
    read_toml,
    set_value,
    setting,
    tables_of,
)
from closeknit.training.config import TrainConfig

DEFAULT_OBJECTIVE = "auto"  # of a run file or a command that names none


@dataclass(frozen=True)
class DataConfig(Columns, table="data"):
    """Which columns to read, and the share to test on where the data has no test part."""

    test: float = setting(
        0.2,
        at_least=0,
        below=1,
        help="Share of the rows that is held out to score the model where the data has neither a "
        "test nor a validation part. 0 trains on all rows.",
    )


@dataclass(frozen=True)
class RunConfig(Configuration):
    """Everything that decides the outcome of a run, but for the data themselves."""

    data: DataConfig = field(default_factory=DataConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def key_content(self) -> dict[str, dict[str, Any]]:
        """The settings that identify a run, and the later rules that decide its result.

        A rule that changed after runs were stored counts in the key of exactly the runs whose
        result it can change, so that these are computed again and all others are recognised.
        """
        content = super().key_content()
        rules = {name: True for name, holds in self._later_rules().items() if holds}
        return {**content, "rules": rules} if rules else content

    def _later_rules(self) -> dict[str, bool]:
        options = self.objective.options
        terms = [term for term in options.get("terms", ()) if isinstance(term, Mapping)]
        views = {str(term.get("view", "")) for term in terms}
        reads_tokens = self.objective.name == "triple_entropy" or any(
            view.endswith("tokens") for view in views
        )
        weighs_classes = any("class_weights" in table for table in (options, *terms))
        return {
            "validation by distinct text": self.train.validation > 0,
            "lora rate": self.encoder.lora_rank > 0 and self.train.lr is None,
            "parts by mass": self.train.accumulate > 1 and (reads_tokens or weighs_classes),
        }

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Self:
        """The configuration of these tables; unknown names and wrong values are refused.

        Settings that the tables leave out come from the recipe of the objective, where it has one.
        """
        if "tasks" in tables:
            raise ConfigError(
                "[tasks] describes several tasks; train them with closeknit multitask"
            )
        check_tables(cls, tables)
        name = tables.get("objective", {}).get("name")
        recipe = RECIPES.get(name, {}) if isinstance(name, str) else {}
        if tables.get("encoder", {}).get("name") == "textcnn":  # it has one way of pooling, its own
            recipe = {table: values for table, values in recipe.items() if table != "encoder"}
        merged = {
            table: {**recipe.get(table, {}), **tables.get(table, {})} for table in tables_of(cls)
        }
        return super().from_dict(merged)


def read_config(
    path: str | Path | None,
    changes: Sequence[str] = (),
    *,
    options: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A run from a TOML file, or the defaults with the objective `auto`.

    Over the file go the `options` of a command (by `table.setting`; None is not given), and over
    these the changes of `--set`, written as `table.setting=value`.
    """
    tables = read_toml(path) if path is not None else {}
    _change(tables, [*given_options(options or {}), *parse_changes(changes)])
    if isinstance(tables.setdefault("objective", {}), dict):
        tables["objective"].setdefault("name", DEFAULT_OBJECTIVE)
    return RunConfig.from_dict(tables)


def _change(tables: dict[str, Any], changes: Changes) -> None:
    """Change the tables; another objective drops the options of the objective before."""
    for name, value in changes:
        objective = tables.get("objective") if name == "objective.name" else None
        if isinstance(objective, dict) and objective.get("name", value) != value:
            tables["objective"] = {}
        set_value(tables, name.split(".", 1), value)
