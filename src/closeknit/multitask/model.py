"""MultiTaskModel: one encoder with a head for each task, and the folder it is saved in.

The folder opens in transformers as a bare encoder and in `SentenceTransformer(path)` as one of
sentences. Nothing in it is pickled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from closeknit.data.examples import Examples, label_numbers
from closeknit.data.splits import Parts
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.inference import Floats, outputs, softmax
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.encoders.tokens import Tokens, stacked
from closeknit.errors import ConfigError, did_you_mean
from closeknit.metrics import classification_scores, pearson, spearman
from closeknit.models.card import multitask_card
from closeknit.models.export import write_encoder
from closeknit.models.folder import (
    HEADS,
    MISTAKES,
)
from closeknit.models.saved_model import SavedModel, fill
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.data import as_asked, named
from closeknit.multitask.heads import PairHead, SimilarityHead, SingleHead, Top
from closeknit.multitask.mistakes import (
    Mistake,
    class_mistakes,
    read_mistakes,
    score_mistakes,
    write_mistakes,
)
from closeknit.multitask.paraphrases import best_threshold, positive_class, ranking_loss
from closeknit.storage import read_tensors, write_tensors

TRAIN_ROWS = 1000  # training rows of a task that are scored after the training


@dataclass(frozen=True)
class Answers:
    """What a task's answers are: classes, or a score with its range and how it is spread."""

    labels: list[str] = field(default_factory=list)
    low: float = 0.0
    high: float = 1.0
    mean: float = 0.0
    spread: float = 1.0
    label_type: str = "str"  # what the labels were before they became names

    @staticmethod
    def of(examples: Examples, task: TaskConfig) -> Answers:
        """As the training rows show them."""
        if task.kind != "pair_score":
            return Answers(examples.classes)
        scores = np.array(examples.required_scores)
        return Answers(
            low=float(scores.min()),
            high=float(scores.max()),
            mean=float(scores.mean()),
            spread=float(scores.std()),
        )

    @property
    def classes(self) -> list[Any]:
        """The labels as they were given."""
        made: dict[str, Any] = {"str": str, "int": int, "bool": lambda text: text == "True"}
        return [made[self.label_type](label) for label in self.labels]

    def targets(self, examples: Examples) -> npt.NDArray[Any]:
        """What the head is to give: class numbers, or scores in units of their spread around their
        mean.
        """
        if self.labels:
            return label_numbers(examples, self.labels)
        scores = (np.array(examples.required_scores) - self.mean) / self.spread
        return np.asarray(scores, dtype=np.float32)

    def scores(self, given: Floats) -> Floats:
        """Scores (R,) in the data's own range from what the head gave, (R, 1)."""
        own = self.mean + self.spread * given[:, 0].astype(np.float64)
        return np.asarray(np.clip(own, self.low, self.high), dtype=np.float32)


def some_rows(examples: Examples, most: int = TRAIN_ROWS) -> Examples:
    """At most so many of the rows, drawn at random, the same ones every time."""
    if len(examples) <= most:
        return examples
    return examples.select(np.sort(np.random.default_rng(0).permutation(len(examples))[:most]))


def build_head(
    task: TaskConfig, dim: int, answers: Answers
) -> SingleHead | PairHead | SimilarityHead:
    """The head that the settings of a task ask for."""
    classes = len(answers.labels) or 1
    if task.ranks:
        loss = ranking_loss(task.options)
        return SimilarityHead(
            positive=positive_class(answers.labels, task.positive),
            similarity=loss.similarity,
            scale=loss.scale,
        )
    if task.kind == "classify":
        return SingleHead(dim, classes, output_activation=task.output_activation)
    return PairHead(
        task.shape,
        dim,
        classes,
        activation=task.activation and task.shape in ("paired", "dense_paired"),
        output_activation=task.output_activation,
    )


def encoder_rows(tokeniser: Tokeniser, head: nn.Module, examples: Examples) -> Tokens:
    """What the encoder reads for examples: a row each, or for heads that read two rows of a pair
    all first rows and then all second ones.
    """
    if not isinstance(head, PairHead | SimilarityHead):
        return tokeniser(Examples(examples.texts))
    first, second = examples.texts, examples.pairs
    assert second is not None
    if not head.reads_together:
        return stacked([tokeniser(Examples(first)), tokeniser(Examples(second))])
    if head.rows == 1:
        return tokeniser(Examples(first, second))
    return stacked([tokeniser(Examples(first, second)), tokeniser(Examples(second, first))])


@dataclass
class MultiTaskModel(SavedModel):
    """Answers for every task, from one encoder."""

    kind: ClassVar[str] = "multi_task"

    encoder: Encoder
    heads: nn.ModuleDict  # a task's head under its name
    tokeniser: Tokeniser
    answers: dict[str, Answers]
    config: MultiTaskConfig
    metrics: dict[str, Any] = field(default_factory=dict)
    mistakes: dict[str, list[Mistake]] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        return list(self.config.tasks)

    def task(self, name: str) -> TaskConfig:
        if name not in self.config.tasks:
            raise ConfigError(
                f"this model has no task {name}{did_you_mean(name, self.config.tasks)}"
            )
        return self.config.tasks[name]

    def check(self, name: str, examples: Examples) -> None:
        """Refuse examples that a task could not be scored on."""
        with named(name):
            self.answers[name].targets(as_asked(examples, self.task(name)))

    def rows(self, name: str, examples: Examples) -> Tokens:
        return encoder_rows(self.tokeniser, self.heads[name], as_asked(examples, self.task(name)))

    def given(self, name: str, tokens: Tokens) -> Floats:
        """What the task's head gives for the rows of examples: logits (R, C), or (R, 1) for
        scores.
        """
        return self._read(name, outputs(self.encoder, None, tokens)[1])

    def _read(self, name: str, vectors: Floats) -> Floats:
        """What the task's head gives for the pooled vectors of its rows."""
        pooled = torch.from_numpy(vectors)
        head = self.heads[name].eval()
        with torch.inference_mode():
            device = next(itertools.chain(head.parameters(), head.buffers())).device
            found: Floats = head(pooled.to(device)).float().cpu().numpy()
        return found

    def predict(self, name: str, examples: Examples) -> Floats:
        """Logits (R, C) of a task with classes; scores (R,) in the data's own range of one with
        scores.
        """
        given = self.given(name, self.rows(name, examples))
        return given if self.answers[name].labels else self.answers[name].scores(given)

    def score(
        self,
        name: str,
        examples: Examples,
        tokens: Tokens | None = None,
        *,
        choose_threshold: bool = False,
    ) -> dict[str, Any]:
        """The scores of one task on examples that have its answers.

        With `choose_threshold`, a task that compares two vectors first chooses on these examples
        the threshold that gives its metric the best value.
        """
        expected = self.answers[name].targets(as_asked(examples, self.task(name)))
        rows = self.rows(name, examples) if tokens is None else tokens
        vectors = outputs(self.encoder, None, rows)[1]
        head = self.heads[name]
        if choose_threshold and isinstance(head, SimilarityHead):
            similarity = head.similarity(torch.from_numpy(vectors)).numpy()
            measure = self.task(name).measure
            head.threshold.fill_(best_threshold(similarity, expected == head.positive, measure))
        return _scores(self.answers[name], expected, self._read(name, vectors), examples)

    def evaluate(self, data: dict[str, Examples]) -> dict[str, Any]:
        """The scores of each task, and the average of their metrics."""
        found = {name: self.score(name, examples) for name, examples in data.items()}
        return {**found, "average": self.average(found)}

    def average(self, scores: dict[str, dict[str, Any]]) -> float:
        return float(np.mean([own[self.task(name).measure] for name, own in scores.items()]))

    def analyse(self, data: dict[str, Parts]) -> None:
        """Score all tasks, and note what each gets wrong on its test part, or else its validation
        part.

        The scores on training rows show how far a task is overfitted. They are computed on at most
        `TRAIN_ROWS` rows per task, drawn at random.
        """
        for part in ("train", "validation", "test"):
            rows: dict[str, Examples | None] = {
                name: some_rows(own.train) if part == "train" else getattr(own, part)
                for name, own in data.items()
            }
            present = {name: examples for name, examples in rows.items() if examples is not None}
            if not present:
                continue
            found: dict[str, Any] = {}
            for name, examples in present.items():
                given = self.given(name, self.rows(name, examples))
                answers = self.answers[name]
                found[name] = _scores(answers, answers.targets(examples), given, examples)
                if data[name].scored is examples:  # the test part comes last
                    self.mistakes[name] = (
                        class_mistakes(examples, answers.labels, softmax(given))
                        if answers.labels
                        else score_mistakes(examples, answers.scores(given))
                    )
            if len(present) == len(data):
                found["average"] = self.average(found)
            self.metrics[part] = found

    # -- the folder

    def own_facts(self) -> dict[str, Any]:
        return {"answers": {name: asdict(answers) for name, answers in self.answers.items()}}

    def modules(self) -> Sequence[nn.Module]:
        return self.encoder, self.heads

    def card(self) -> Callable[[dict[str, Any], dict[str, Any]], str]:
        return multitask_card

    def write_weights(self, folder: Path) -> None:
        top = self.encoder.top
        assert isinstance(top, Top)
        # sentence-transformers has one place for a dense layer: the encoder's own pooler takes it
        dense = None if self.encoder.pooling == "own" else top.linear
        write_encoder(folder, self.encoder, self.config.encoder.max_length, dense=dense)
        write_tensors(folder / HEADS, self._top_and_heads().state_dict())
        if self.mistakes:
            (folder / MISTAKES).mkdir()
            for name, mistakes in self.mistakes.items():
                write_mistakes(folder / MISTAKES / f"{name}.csv", mistakes)

    def read_weights(self, folder: Path) -> None:
        fill(self._top_and_heads(), read_tensors(folder / HEADS), folder / HEADS)
        for name in self.tasks:
            self.mistakes[name] = read_mistakes(folder / MISTAKES / f"{name}.csv")

    def _top_and_heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"top": self.encoder.top, "heads": self.heads})

    @classmethod
    def read_settings(cls, tables: dict[str, Any]) -> MultiTaskConfig:
        return MultiTaskConfig.from_dict(tables)

    @classmethod
    def from_facts(
        cls,
        facts: dict[str, Any],
        settings: MultiTaskConfig,
        encoder: Encoder,
        tokeniser: Tokeniser,
    ) -> Self:
        answers = {name: Answers(**facts["answers"][name]) for name in settings.tasks}
        heads = build_top_and_heads(encoder, settings, answers)
        return cls(encoder, heads, tokeniser, answers, settings)


def build_top_and_heads(
    encoder: Encoder, config: MultiTaskConfig, answers: dict[str, Answers]
) -> nn.ModuleDict:
    """Give the encoder its top, and make a head for each task."""
    shared = config.shared
    encoder.put_on_top(
        Top(
            encoder.dim,
            dropout=shared.dropout,
            shared=shared.layer,
            shared_dropout=shared.layer_dropout,
        )
    )
    return nn.ModuleDict(
        {name: _named_head(name, config, encoder.dim, answers[name]) for name in config.tasks}
    )


def _named_head(
    name: str, config: MultiTaskConfig, dim: int, answers: Answers
) -> SingleHead | PairHead | SimilarityHead:
    with named(name):
        return build_head(config.tasks[name], dim, answers)


def _scores(
    answers: Answers, expected: npt.NDArray[Any], given: Floats, examples: Examples
) -> dict[str, Any]:
    if answers.labels:
        return classification_scores(expected, given.argmax(axis=1), answers.labels)
    truth, found = np.array(examples.required_scores), answers.scores(given)
    return {
        "pearson": pearson(truth, found),
        "spearman": spearman(truth, found),
        "mean_error": float(np.abs(truth - found).mean()),
        "n": len(truth),
    }
