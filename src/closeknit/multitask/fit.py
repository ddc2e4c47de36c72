"""MultiTaskFit: one encoder for several tasks: builds the tasks, drains the loop, keeps the state with the best average."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from closeknit import random_streams
from closeknit.console import say
from closeknit.data import Examples
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.embeddings.model import EmbeddingConfig, with_recipe
from closeknit.encoder import Encoder
from closeknit.errors import ConfigError, DataError
from closeknit.heads import Projection, Weighting
from closeknit.looping import Loop
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.data import TaskData, row_keys
from closeknit.multitask.heads import PairHead
from closeknit.multitask.model import Answers, MultiTaskModel, build_top_and_heads, encoder_rows
from closeknit.objectives import Joint, build_objective
from closeknit.objectives.joint import Term
from closeknit.objectives.similarity import MeanSquared
from closeknit.objectives.softmax import CrossEntropy
from closeknit.processes import World, seeded, this_world
from closeknit.samplers import batches_per_epoch, rows_that_meet
from closeknit.schedules import build_schedule
from closeknit.sentences import Sentences, judged_sentences, read_sentences
from closeknit.surgery import pcgrad
from closeknit.tasks import Shelved, Step, Task, labels_of
from closeknit.tokens import Tokeniser, Tokens
from closeknit.training import train


class MultiTaskFit:
    """One run: iterate over it to train, then take `model`.

    Where all tasks have a validation part, every evaluation (`train.evaluate_every` updates, or an epoch of the schedule)
    scores each, and the state with the best average of their metrics is kept. Checkpoints and `resume` are as for a
    classifier. One task alone is a run like any other.
    """

    def __init__(
        self,
        data: Mapping[str, TaskData],
        config: MultiTaskConfig,
        *,
        sentences: Sentences | None = None,
        folder: Path | None = None,
        resume: bool = False,
        world: World | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.config, self.data, self.tell = config, dict(data), tell
        self.world = world or this_world()
        options = config.train
        missing = [name for name, own in data.items() if own.validation is None]
        if missing and (len(missing) < len(data) or options.patience or options.evaluate_every):
            raise ConfigError(
                f"the task {missing[0]} has no validation part: give it one, or set train.validation to the share of rows "
                "to hold out"
            )
        self.stage = self._pretraining(sentences, folder, resume)
        encoder, tokeniser = self._encoder()
        answers = {name: Answers.of(own.train, config.tasks[name]) for name, own in data.items()}
        with seeded(self.world, options.seed, random_streams.HEADS):
            heads = build_top_and_heads(encoder, config, answers)
        self.model = MultiTaskModel(encoder, heads, tokeniser, answers, config)
        tasks = [self._task(name) for name in config.tasks]
        for name in config.schedule.untrained(list(config.tasks)):
            if self.world.main:
                tell(f"{name} is not trained: schedule.order leaves it out")
        schedule = build_schedule(
            config.schedule, {task.name: task.per_epoch for task in tasks}, options.epochs, options.seed
        )
        combine = pcgrad if config.schedule.surgery == "pcgrad" else None
        self.training = train(
            encoder, tasks, options, world=self.world, schedule=schedule, combine=combine, tell=tell
        )
        self.validation: dict[str, tuple[Examples, Tokens]] = {}
        for name, own in data.items():
            for part in (own.validation, own.test):
                if part is not None:
                    self.model.check(name, part)  # now rather than after the training
            if own.validation is not None:
                self.validation[name] = own.validation, self.model.rows(name, own.validation)
        self.loop = Loop(
            self.training,
            every=options.evaluate_every or schedule.per_epoch,
            evaluate=self._evaluate if self.validation else None,
            metric="average",
            patience=options.patience or 0,
            folder=folder / "tasks" if folder is not None else None,
            resume=resume,
            world=self.world,
        )

    # -- what is trained

    def _pretraining(
        self, sentences: Sentences | None, folder: Path | None, resume: bool
    ) -> EmbeddingFit | None:
        if sentences is None:
            return None
        return EmbeddingFit(
            sentences,
            pretraining_config(self.config, sentences),
            folder=folder / "pretrain" if folder is not None else None,
            resume=resume,
            world=self.world,
            tell=self.tell,
        )

    def _encoder(self) -> tuple[Encoder, Tokeniser]:
        """The encoder to train; after pretraining the very one that learns there."""
        config = self.config.encoder
        if self.stage is not None:
            trained = self.stage.model.encoder
            return Encoder(trained.trunk, config.pooling, trained.name), self.stage.model.tokeniser
        texts = [
            text
            for own in self.data.values()
            for column in (own.train.texts, own.train.pairs or [])
            for text in column
        ]
        with seeded(self.world, self.config.train.seed, random_streams.ENCODER):
            return config.load(Examples(texts))

    def _task(self, name: str) -> Task:
        settings, examples, options = self.config.tasks[name], self.data[name].train, self.config.train
        head, answers = self.model.heads[name], self.model.answers[name]
        tokens = encoder_rows(self.model.tokeniser, head, examples)
        targets = answers.targets(examples)
        rows = len(examples)
        place = list(self.config.tasks).index(name)  # tasks of one size do not draw the same rows
        seed = options.seed + 1_000_003 * place
        objective, heads = self._objective(settings, head, answers, examples, place)
        per_epoch = batches_per_epoch(rows, options.batch_size)
        lengths = tokens.lengths.reshape(-1, rows).max(axis=0)
        tell = self.tell if self.world.main else None
        plan = rows_that_meet(targets, lengths, options.batch_size, seed, objective.rows_of_a_class, tell)
        copies = objective.copies
        starts = (0, rows) if isinstance(head, PairHead) else (0,) * copies
        batch = Shelved(
            tokens,
            labels_of(targets, self.world.device, copies),
            plan,
            per_epoch,
            self.world,
            starts=starts,
        )
        return Task(name, batch, per_epoch, objective, heads, settings.weight)

    def _objective(
        self, settings: TaskConfig, head: nn.Module, answers: Answers, examples: Examples, place: int
    ) -> tuple[Joint, nn.ModuleDict]:
        """What a task's head is taught by, and all heads that it reads."""
        heads = nn.ModuleDict({"logits": head})
        if settings.kind != "classify":
            loss = CrossEntropy() if answers.labels else MeanSquared()
            return Joint([Term("loss", 1.0, loss, "logits")]), heads
        encoder, counts = self.model.encoder, Counter(examples.required_labels)
        with seeded(self.world, self.config.train.seed, random_streams.OBJECTIVE, place):
            objective = build_objective(
                settings.objective,
                encoder.dim,
                len(answers.labels),
                settings.options,
                labels=answers.labels,
                counts=[counts[label] for label in answers.labels],
            )
        if objective.classifier != "head":
            raise ConfigError(
                f"the objective {settings.objective} trains no head; give it a share of cross-entropy (ce_weight above 0)"
            )
        if objective.adaptation is not None:
            raise ConfigError(
                f"{settings.objective} learns from confusions, which only single-task training tells it"
            )
        with seeded(self.world, self.config.train.seed, random_streams.HEADS, place):
            if "projected" in objective.views:
                heads["projected"] = Projection(encoder.dim)
            if "weights" in objective.views or "weighting_logits" in objective.views:
                heads["weighting"] = Weighting(encoder, len(answers.labels))
        return objective, heads

    # -- running

    @property
    def steps(self) -> int:
        return self.training.steps + (self.stage.steps if self.stage is not None else 0)

    def __iter__(self) -> Iterator[Step]:
        before = 0
        if self.stage is not None:
            if self.world.main:
                rows, method = len(self.stage.sentences), self.config.pretrain.method
                self.tell(f"first {method} on {rows:,} rows: {self.stage.steps} of the {self.steps} steps")
            yield from self.stage
            before = self.stage.steps
            self.model.metrics["pretraining"] = self.stage.model.metrics["history"]
            self.training.learners.train()  # the stage leaves the trunk, which both share, without dropout
        for step in self.loop:
            yield dataclasses.replace(step, number=step.number + before)
        self._finish()

    def save_state(self) -> None:
        if self.stage is not None:
            self.stage.save_state()
        if self.training.number:
            self.loop.save_state()

    def _evaluate(self) -> dict[str, float]:
        """Each task's metric and their average; in names with a slash, how the tasks' gradients agree."""
        measures = {name: self.model.task(name).measure for name in self.validation}
        found = {
            name: float(self.model.score(name, examples, tokens)[measures[name]])
            for name, (examples, tokens) in self.validation.items()
        }
        agreement = self.training.agreement() if len(self.training.tasks) > 1 else {}
        return {
            **found,
            "average": float(np.mean(list(found.values()))),
            **{f"gradients/{first}/{second}": value for (first, second), value in agreement.items()},
        }

    def _finish(self) -> None:
        metrics = self.model.metrics
        metrics["history"] = self.loop.history
        metrics["rows"] = {name: len(own.train) for name, own in self.data.items()}
        metrics["updates"] = dict(self.training.taken)
        named = zip(self.training.groups, self.training.rates, strict=True)
        metrics["rates"] = {group["name"]: rate for group, rate in named}
        self.training.learners.eval()


def pretraining_config(config: MultiTaskConfig, sentences: Sentences) -> EmbeddingConfig:
    """The run that the stage before the tasks is: the same encoder and seed, its own method."""
    tables = config.pretrain.tables()
    encoder = {**dataclasses.asdict(config.encoder), "pooling": "mean"}
    train = {
        "seed": config.train.seed,
        "precision": config.train.precision,
        "deterministic": config.train.deterministic,
        "checkpoint_seconds": config.train.checkpoint_seconds,
        **tables["train"],
    }
    try:
        return with_recipe(
            {"encoder": encoder, "method": tables["method"], "train": train}, len(sentences.columns)
        )
    except ConfigError as error:
        text = str(error).replace("method.name", "pretrain.method").replace("method.", "pretrain.")
        raise ConfigError(text.replace("train.", "pretrain.") if "pretrain." not in text else text) from None


def pretraining_sentences(
    config: MultiTaskConfig, data: Mapping[str, TaskData], *, tell: Callable[[str], None] = lambda text: None
) -> Sentences | None:
    """What the stage before the tasks learns from, where there is one."""
    settings = config.pretrain
    if not settings.data:
        return None
    if settings.positives:
        found = judged_sentences(settings.data, settings.positives, settings.negatives)
    else:
        found = read_sentences(settings.data)
    return drawn_sentences(found, config, data, tell=tell)


def drawn_sentences(
    sentences: Sentences,
    config: MultiTaskConfig,
    data: Mapping[str, TaskData],
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Sentences:
    """As many as the configuration asks for, drawn at random, without pairs that a task is chosen by or scored on."""
    held = {
        key
        for name, own in data.items()
        for part in own.held
        if part.pairs is not None and config.tasks[name].leaks == "drop"
        for key in row_keys(part)
    }
    first, *others = sentences.columns  # what belongs to a text, and what does not: both are told of a pair
    told = [row_keys(Examples(first, other)) for other in others] if held else []
    kept = [row for row in range(len(sentences)) if not any(keys[row] in held for keys in told)]
    if len(kept) < len(sentences):
        where = "also in the validation or test part of a task"
        if not kept:
            raise DataError(f"{sentences.name}: every row of pretraining is {where}")
        left = len(sentences) - len(kept)
        tell(f"pretraining: {left:,} of {len(sentences):,} rows are {where} and are left out")
        sentences = sentences.select(kept)
    rows, scale = config.pretrain.rows or len(sentences), config.trial.scale
    if scale < 1.0:
        rows = max(16, round(scale * rows))
    if rows >= len(sentences):
        return sentences
    chosen = np.random.default_rng(config.train.seed).permutation(len(sentences))[:rows]
    return sentences.select(np.sort(chosen).tolist())


def fit_tasks(data: Mapping[str, TaskData], config: MultiTaskConfig, **options: Any) -> MultiTaskModel:
    """Train to the end without looking at the steps."""
    fit = MultiTaskFit(data, config, **options)
    for _ in fit:
        pass
    return fit.model
