"""A run in one frozen dataclass: read from TOML, changed by `--set`, printed and saved in full."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data import SUFFIXES, Columns, Examples
from .encoder import Encoder
from .encoder_loading import load_encoder
from .errors import ConfigError, did_you_mean
from .objectives import RECIPES, objective_options
from .tokenisers import Tokeniser
from .train_config import TrainConfig

DEFAULT_OBJECTIVE = "auto"  # of a run file or a command that names none


@dataclass(frozen=True)
class DataConfig(Columns):
    """Which columns to read, and what share to test on where the data has no test part."""

    test: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.test < 1.0:
            raise ConfigError(f"data.test is {self.test}; it must be from 0 to below 1")


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder, and how it is used; None is the bundled all-MiniLM-L6-v2."""

    name: str | None = None
    pooling: str = "first"
    max_length: int = 128
    dropout: float | None = None
    lora_rank: int = 0
    frozen: bool = False  # leave its weights as they are, and train only what stands on it

    def __post_init__(self) -> None:
        if self.max_length < 4:
            raise ConfigError(f"encoder.max_length is {self.max_length}; it must be at least 4")
        if self.lora_rank < 0:
            raise ConfigError(f"encoder.lora_rank is {self.lora_rank}; it must not be negative")
        if self.lora_rank and self.name == "textcnn":
            raise ConfigError("encoder.lora_rank adapts pretrained weights; textcnn has none")
        if self.frozen and (self.lora_rank or self.name == "textcnn"):
            raise ConfigError(
                "encoder.frozen leaves pretrained weights as they are; not with textcnn or lora_rank"
            )

    def load(self, vocabulary: Examples | None = None, *, bare: bool = False) -> tuple[Encoder, Tokeniser]:
        """The encoder that is meant, and its tokeniser; `vocabulary` gives TextCNN the texts its words come from.

        A `bare` one is there sooner, where its kind can be, and cannot be saved.
        """
        return load_encoder(
            self.name,
            pooling=self.pooling,
            max_length=self.max_length,
            dropout=self.dropout,
            lora_rank=self.lora_rank,
            frozen=self.frozen,
            vocabulary=vocabulary,
            bare=bare,
        )


@dataclass(frozen=True)
class ObjectiveConfig:
    """A name of the OBJECTIVES table and the options it takes."""

    name: str = "cross_entropy"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError(f"objective.name is {_shown(self.name)}; it must be a text")
        known = objective_options(self.name)
        for option, value in self.options.items():
            if option not in known:
                near = did_you_mean(option, known)
                raise ConfigError(f"unknown setting objective.{option} for {self.name}{near}")
            kind = type(known[option])
            if kind in (int, float, bool, str) and not _fits(value, kind):
                raise ConfigError(f"objective.{option} is {_shown(value)}; it must be {_in_words(kind)}")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the outcome of a run, but for the data themselves."""

    data: DataConfig = DataConfig()
    encoder: EncoderConfig = EncoderConfig()
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Four flat tables, every default spelt out, as in a TOML file."""
        options = {**objective_options(self.objective.name), **self.objective.options}
        return {
            "data": dataclasses.asdict(self.data),
            "encoder": dataclasses.asdict(self.encoder),
            "objective": {"name": self.objective.name, **options},
            "train": dataclasses.asdict(self.train),
        }

    @staticmethod
    def from_dict(tables: Mapping[str, Mapping[str, Any]]) -> RunConfig:
        """The configuration of these tables, with what comes with the objective where they say nothing.

        Unknown names and wrong types are refused.
        """
        for table, values in tables.items():
            if table == "tasks":
                raise ConfigError("[tasks] describes several tasks; train them with closeknit multitask")
            if table not in _TABLES and table != "objective":
                raise ConfigError(f"unknown table [{table}]{did_you_mean(table, [*_TABLES, 'objective'])}")
            if not isinstance(values, Mapping):
                raise ConfigError(f"{table} is not a table; write [{table}] and its settings below")
        objective = dict(tables.get("objective", {}))
        name = objective.pop("name", "cross_entropy")
        defaults = objective_options(name) if isinstance(name, str) else {}
        options = {
            key: value for key, value in objective.items() if key not in defaults or value != defaults[key]
        }
        recipe = RECIPES.get(name, {}) if isinstance(name, str) else {}
        if tables.get("encoder", {}).get("name") == "textcnn":  # has one way of pooling that is its own
            recipe = {table: values for table, values in recipe.items() if table != "encoder"}
        made = {
            table: build_table(kind, table, {**recipe.get(table, {}), **tables.get(table, {})})
            for table, kind in _TABLES.items()
        }
        return RunConfig(objective=ObjectiveConfig(name, options), **made)

    def to_toml(self) -> str:
        return to_toml(self.to_dict())


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Flat tables as a TOML file; what is None is left out."""
    lines: list[str] = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{k} = {_toml(v)}" for k, v in values.items() if v is not None), ""]
    return "\n".join(lines)


_TABLES: dict[str, Any] = {"data": DataConfig, "encoder": EncoderConfig, "train": TrainConfig}


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if Path(path).suffix.lower() in SUFFIXES:
            raise ConfigError(
                f"{path} is a file of texts; a TOML file with settings is wanted here"
            ) from None
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def read_config(path: str | Path | None, changes: Sequence[str] = ()) -> RunConfig:
    """A run from a TOML file (or the defaults: the objective `auto`), with `table.setting=value` changes on top."""
    tables: dict[str, dict[str, Any]] = read_toml(path) if path is not None else {}
    tables = read_tables(tables, changes)
    if isinstance(tables.setdefault("objective", {}), dict):
        tables["objective"].setdefault("name", DEFAULT_OBJECTIVE)
    return RunConfig.from_dict(tables)


def read_tables(tables: dict[str, dict[str, Any]], changes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables with `table.setting=value` changes on top."""
    for change in changes:
        setting, equals, text = change.partition("=")
        table, dot, key = setting.strip().partition(".")
        if not (equals and dot and key):
            raise ConfigError(
                f"cannot read --set {change}; write it as table.setting=value, like train.warmup=0.1"
            )
        if not isinstance(tables.setdefault(table, {}), dict):
            raise ConfigError(f"{table} is not a table; write [{table}] and its settings below")
        value = _value(text.strip())
        if table == "objective" and key == "name" and value != tables[table].get("name", value):
            tables[table] = {}  # another objective has other options
        tables[table][key] = value
    return tables


# Settings that do not change what a run ends with.
_HARMLESS = {("train", "checkpoint_seconds")}


def differences(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """`train.lr was 5e-05 and is 0.0001`, one for each setting that differs."""
    found: list[str] = []
    for table in dict.fromkeys([*before, *now]):
        old, new = before.get(table, {}), now.get(table, {})
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key) and (table, key) not in _HARMLESS:
                found.append(f"{table}.{key} was {old.get(key)} and is {new.get(key)}")
    return found


def build_table(kind: Any, table: str, values: Mapping[str, Any]) -> Any:
    """A dataclass of settings from a table; unknown names and wrong types are refused."""
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"unknown setting {table}.{key}{did_you_mean(key, known)}")
        if not _fits(value, hints[key]):
            quoted = str in _kinds(hints[key]) and isinstance(value, int | float)
            words = f"; a number is one in quotes: '{table}.{key}=\"{_shown(value)}\"'" if quoted else ""
            raise ConfigError(f"{table}.{key} is {_shown(value)}; it must be {_in_words(hints[key])}{words}")
    return kind(**values)


def _shown(value: object) -> str:
    return json.dumps(value, default=str)


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, without what their elements are."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(kind) or kind for kind in kinds)


def _fits(value: object, hint: Any) -> bool:
    kinds = _kinds(hint)
    if Any in kinds:
        return True
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int):
        return int in kinds or float in kinds
    return isinstance(value, kinds)


def _in_words(hint: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        list: "a list",
        dict: "a table",
        types.NoneType: "none",
    }
    return " or ".join(words.get(kind, str(kind)) for kind in _kinds(hint))


def _value(text: str) -> Any:
    """A value as TOML would read it; `none` is None; anything else is a text."""
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(own)}" for key, own in value.items() if own is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(own) for own in value) + "]"
    return json.dumps(value, ensure_ascii=False)
