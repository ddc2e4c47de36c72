"""MultiTask: one encoder for several tasks, from Python data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from closeknit.console import follow, say
from closeknit.data.examples import DataSet, Examples, from_python, single_texts
from closeknit.data.sentences import sentences_from
from closeknit.data.splits import Parts
from closeknit.encoders.inference import Floats, encode_texts, softmax
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.data import prepared
from closeknit.multitask.fit import MultiTaskFit
from closeknit.multitask.model import MultiTaskModel
from closeknit.multitask.pretraining import drawn_sentences

_OF_FILES = ("data", "positives", "negatives")  # settings of [pretrain] that say what is read
Rows = tuple[Sequence[Any], Sequence[Any]]  # texts or pairs, and their classes or scores


class MultiTask(BaseEstimator):  # type: ignore[misc]
    """Trains one encoder for several tasks; what is asked is a task's name and texts, or pairs of
    texts.

    `tasks` gives each task its settings, as a table [tasks.NAME] of a study file has them: kind,
    head, weight, metric. Without it, or without a kind, the data tell: single texts are classified;
    pairs with fractional numbers are scored, others classified. `schedule`, `shared`,
    `train_options` and `encoder_options` take the settings of the tables [schedule], [shared],
    [train] and [encoder]; a string as `schedule` is its name. `pretrain` takes those of [pretrain],
    but for `data`, `positives` and `negatives`: the sentences themselves are given to `fit`. For
    several stages of pretraining it is a list with the settings of each stage.
    """

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, Any]] | None = None,
        encoder: str | None = None,
        epochs: int = 5,
        batch_size: int = 64,
        learning_rate: float | None = None,
        max_length: int = 128,
        pooling: str = "first",
        schedule: str | Mapping[str, Any] = "random",
        shared: Mapping[str, Any] | None = None,
        pretrain: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        random_state: int = 2,
        train_options: Mapping[str, Any] | None = None,
        encoder_options: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.tasks = tasks
        self.encoder = encoder
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.pooling = pooling
        self.schedule = schedule
        self.shared = shared
        self.pretrain = pretrain
        self.random_state = random_state
        self.train_options = train_options
        self.encoder_options = encoder_options
        self.verbose = verbose

    def fit(
        self,
        data: Mapping[str, Rows],
        validation: Mapping[str, Rows] | None = None,
        *,
        sentences: Sequence[Any] | None = None,
    ) -> MultiTask:
        """Learn from the rows of each task: (texts, classes), (pairs, classes) or (pairs, scores).

        Tasks without a validation part have `train_options["validation"]`, a tenth by default, of
        their rows held out; the state with the best average is kept. `sentences` are texts, pairs
        or triplets to learn an embedding from beforehand. Where `pretrain` is a list of stages, it
        is a list with the sentences of each stage.
        """
        _check_named(data)
        if validation is not None and not isinstance(validation, Mapping):
            raise DataError(
                'the validation part is a dictionary like the data: {"sentiment": (texts, labels)}'
            )
        for name in validation or {}:
            if name not in data:
                raise DataError(
                    f"the validation part names {name}, which is no task{did_you_mean(name, data)}"
                )
        for name in self.tasks or {}:
            if name not in data:
                raise DataError(f"there are no data for the task {name}{did_you_mean(name, data)}")
        listed = {name: _two(name, given) for name, given in data.items()}
        stages = self._sentences_of_stages(sentences)
        config = self._config(listed, len(stages))
        rows = {name: self._rows(name, given, config.tasks[name]) for name, given in listed.items()}
        held = {
            name: self._rows(name, _two(name, given), config.tasks[name], "validation")
            for name, given in (validation or {}).items()
        }
        sets = {
            name: DataSet(
                name, {"train": own, **({"validation": held[name]} if name in held else {})}
            )
            for name, own in rows.items()
        }
        parts = prepared(sets, config, log=say if self.verbose else lambda text: None)
        self._fit(parts, config, stages)
        self._remember_types(listed)
        return self

    def _fit(
        self, parts: dict[str, Parts], config: MultiTaskConfig, stages: Sequence[Sequence[Any]]
    ) -> None:
        before = [
            drawn_sentences(sentences_from(rows, name="the sentences"), stage, config, parts)
            for rows, stage in zip(stages, config.stages, strict=True)
        ]
        fit = MultiTaskFit(parts, config, sentences=before)
        for _ in follow(fit, " + ".join(config.tasks), show=self.verbose):
            pass
        self.model_ = fit.model
        self.model_.analyse(parts)

    def _sentences_of_stages(self, sentences: Sequence[Any] | None) -> list[Sequence[Any]]:
        """The sentences of each stage of pretraining."""
        if isinstance(self.pretrain, Mapping) or not self.pretrain:
            return [] if sentences is None else [sentences]
        given = [] if sentences is None else list(sentences)
        if len(given) != len(self.pretrain):
            raise ConfigError(
                f"pretrain has {len(self.pretrain)} stages, but fit was given sentences for "
                f"{len(given)}; give a list with the sentences of each stage"
            )
        return given

    def _remember_types(self, data: Mapping[str, Rows]) -> None:
        """Whole numbers and truth values as classes come back as such."""
        for name, given in data.items():
            kinds = {type(value).__name__ for value in given[1]}
            if kinds in ({"int"}, {"bool"}) and self.model_.answers[name].labels:
                answers = self.model_.answers
                answers[name] = dataclasses.replace(answers[name], label_type=kinds.pop())

    def _config(self, data: Mapping[str, Rows], stages: int) -> MultiTaskConfig:
        schedule = (
            {"name": self.schedule} if isinstance(self.schedule, str) else dict(self.schedule)
        )
        train = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "lr": self.learning_rate,
            "seed": self.random_state,
            **(self.train_options or {}),
        }
        encoder = {
            "name": self.encoder,
            "max_length": self.max_length,
            "pooling": self.pooling,
            **(self.encoder_options or {}),
        }
        single = isinstance(self.pretrain, Mapping) or not self.pretrain
        tables = [self.pretrain or {}] if single else list(self.pretrain or ())
        pretrain = [self._stage_settings(table, stages > 0) for table in tables]
        return MultiTaskConfig.from_dict(
            {
                "tasks": {
                    name: {"kind": _kind(rows), **(self.tasks or {}).get(name, {})}
                    for name, rows in data.items()
                },
                "encoder": encoder,
                "schedule": schedule,
                "shared": dict(self.shared or {}),
                "train": train,
                "pretrain": pretrain,
            }
        )

    @staticmethod
    def _stage_settings(given: Any, pretrained: bool) -> dict[str, Any]:
        """The settings of one stage of pretraining."""
        settings = dict(given)
        for key in _OF_FILES:
            if key in settings:
                raise ConfigError(
                    f"pretrain has no {key} here; give fit the sentences, pairs or triplets themselves"
                )
        if settings and not pretrained:
            raise ConfigError("pretrain is set, but fit was given no sentences to learn from")
        return {**settings, "data": "sentences"} if pretrained else settings

    @staticmethod
    def _rows(name: str, given: Rows, task: TaskConfig, part: str = "") -> Examples:
        where = f"task {name}" + (f", {part}" if part else "")
        texts, answers = given
        if task.kind != "pair_score":
            return from_python(texts, [_label(value) for value in answers], name=where)
        examples = from_python(texts, name=where)
        try:
            scores = [float(value) for value in answers]
        except (TypeError, ValueError):
            raise DataError(f"{where}: a score is not a number") from None
        wrong = [row for row, score in enumerate(scores, 1) if not np.isfinite(score)]
        if wrong:
            raise DataError(
                f"{where}: the score in row {wrong[0]} is {scores[wrong[0] - 1]}, not finite"
            )
        return Examples(examples.texts, examples.pairs, None, where, scores)

    # -- asking

    def predict(self, task: str, X: Sequence[Any]) -> npt.NDArray[Any]:
        """The class of each text or pair, or its score in the data's own range."""
        given = self._given(task, X)
        answers = self.model_.answers[task]
        return np.array(answers.classes)[given.argmax(axis=1)] if answers.labels else given

    def predict_proba(self, task: str, X: Sequence[Any]) -> Floats:
        """The probability of each class (R, C), in the order of `classes(task)`."""
        self.classes(task)
        return softmax(self._given(task, X))

    def classes(self, task: str) -> list[Any]:
        """The classes of a task."""
        check_is_fitted(self, "model_")
        self.model_.task(task)
        answers = self.model_.answers[task]
        if not answers.labels:
            raise ConfigError(f"the task {task} scores pairs; it has no classes")
        return answers.classes

    def evaluate(self, data: Mapping[str, Rows]) -> dict[str, Any]:
        """The scores of each task that is named, and the average of their metrics."""
        check_is_fitted(self, "model_")
        _check_named(data)
        return self.model_.evaluate(
            {
                name: self._rows(name, _two(name, given), self.model_.task(name))
                for name, given in data.items()
            }
        )

    def encode(self, texts: Sequence[str], normalize: bool = False) -> Floats:
        """The vectors (R, H) that all tasks share, of single texts."""
        check_is_fitted(self, "model_")
        found = single_texts(texts)
        return encode_texts(self.model_.encoder, self.model_.tokeniser, found, normalize=normalize)

    def _given(self, task: str, X: Sequence[Any]) -> Floats:
        check_is_fitted(self, "model_")
        self.model_.task(task)
        rows = (
            X.to_numpy() if hasattr(X, "to_numpy") else X
        )  # a column or two of a table, as in fit
        return self.model_.predict(task, from_python(rows, name="the texts"))

    # -- on the disk

    def save(self, folder: str | Path) -> None:
        check_is_fitted(self, "model_")
        self.model_.save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> MultiTask:
        """A model that was saved, by Python or by `closeknit multitask`; ready to answer."""
        model = MultiTaskModel.load(folder, device=device)
        tables = model.config.to_dict()
        encoder = tables["encoder"]
        train = tables["train"]
        loaded = cls(
            {name: tables[f"tasks.{name}"] for name in model.tasks},
            encoder["name"],
            train["epochs"],
            train["batch_size"],
            train["lr"],
            encoder["max_length"],
            encoder["pooling"],
            tables["schedule"],
            tables["shared"],
            _stages_as_given(model.config),
            random_state=train["seed"],
            train_options={
                k: v for k, v in train.items() if k not in ("epochs", "batch_size", "lr", "seed")
            },
            encoder_options={
                k: v for k, v in encoder.items() if k not in ("name", "max_length", "pooling")
            },
        )
        loaded.model_ = model
        return loaded


def _stages_as_given(config: MultiTaskConfig) -> Any:
    """The settings of pretraining as `MultiTask` takes them."""
    stages = [
        {key: value for key, value in stage.to_dict().items() if key not in _OF_FILES}
        for stage in config.stages
    ]
    if len(stages) > 1:
        return stages
    return stages[0] if stages else None


def _check_named(data: Any) -> None:
    if not isinstance(data, Mapping) or not data:
        raise DataError(
            'the data are a dictionary like {"sentiment": (texts, labels)}, with a task or more'
        )


def _two(name: str, given: Any) -> Rows:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise DataError(
            f"the data of the task {name} are not two lists, (texts, labels) or (pairs, scores)"
        )
    texts, answers = (_list(values) for values in given)
    if len(texts) != len(answers):
        raise DataError(f"task {name} has {len(texts)} texts and {len(answers)} answers")
    if not texts:
        raise DataError(f"task {name} is empty: there is no text")
    return texts, answers


def _list(values: Any) -> list[Any]:
    """A list from a list, an array, or a column or several of a table."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if hasattr(values, "tolist"):
        listed: list[Any] = values.tolist()
        return listed
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _kind(given: Rows) -> str:
    """What the data look like."""
    texts, answers = given
    if isinstance(texts[0], str):
        return "classify"
    return "pair_score" if any(isinstance(value, float) for value in answers) else "pair_classify"


def _label(value: Any) -> Any:
    if isinstance(value, float):
        raise DataError(
            f"a class is the fractional number {value}; give names or whole numbers, or kind pair_score"
        )
    return value
