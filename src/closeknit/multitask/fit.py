"""MultiTaskFit: one encoder for several tasks: builds the tasks, drains the loop, keeps the state
with the best average.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from torch import nn

from closeknit.console import say
from closeknit.data.distinct_texts import row_keys
from closeknit.data.examples import Examples
from closeknit.data.sentences import Sentences, read_sentences, sentences_from_labelled_pairs
from closeknit.data.splits import Parts
from closeknit.embeddings.config import EmbeddingConfig, with_recipe
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.encoders.augmentation import require_dropout_for_views
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import Projection, Weighting
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.encoders.tokens import Tokens
from closeknit.errors import ConfigError, DataError
from closeknit.models.fit import Fit, Stage
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.heads import PairHead
from closeknit.multitask.model import Answers, MultiTaskModel, build_top_and_heads, encoder_rows
from closeknit.objectives import build_objective
from closeknit.objectives.joint import Joint, Term
from closeknit.objectives.losses.cross_entropy import CrossEntropy
from closeknit.objectives.losses.pair_scores import MeanSquared
from closeknit.training import randomness
from closeknit.training.batches import DeviceBatches, batches_per_epoch, labels_of, rows_that_meet
from closeknit.training.gradients import pcgrad
from closeknit.training.loop import Training, train
from closeknit.training.processes import World, this_world
from closeknit.training.randomness import seeded
from closeknit.training.schedules import build_schedule
from closeknit.training.session import Loop
from closeknit.training.task import Task


class MultiTaskFit(Fit[MultiTaskModel]):
    """One training of one encoder for several tasks: iterate over it to train, then take `model`.

    Where all tasks have a validation part, every evaluation (every `train.evaluate_every` updates,
    or every epoch of the schedule) scores each task, and the state with the best average is kept.
    Checkpoints and `resume` work as for a classifier. A single task is a run like any other.
    """

    def __init__(
        self,
        data: Mapping[str, Parts],
        config: MultiTaskConfig,
        *,
        sentences: Sentences | None = None,
        folder: Path | None = None,
        resume: bool = False,
        world: World | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.config = config
        self.data = dict(data)
        self.tell = tell
        self.world = world or this_world()
        _require_validation(data, config)
        self.pretraining = self._pretraining(sentences, folder, resume)
        self._make_model()
        training = self._make_training()
        self.validation = self._check_parts()
        session = self._main_session(training, folder, resume)
        main = Stage(session, before=self._begin_tasks, after=self._finish)
        self.stages = [*self._pretraining_stages(), main]

    def _make_model(self) -> None:
        encoder, tokeniser = self._encoder()
        tasks = self.config.tasks
        answers = {name: Answers.of(parts.train, tasks[name]) for name, parts in self.data.items()}
        with seeded(self.world, self.config.train.seed, randomness.HEADS):
            heads = build_top_and_heads(encoder, self.config, answers)
        self.model = MultiTaskModel(encoder, heads, tokeniser, answers, self.config)

    def _make_training(self) -> Training:
        options = self.config.train
        tasks = [self._task(name) for name in self.config.tasks]
        for name in self.config.schedule.untrained(list(self.config.tasks)):
            if self.world.main:
                self.tell(f"{name} is not trained: schedule.order leaves it out")
        batches = {task.name: task.per_epoch for task in tasks}
        schedule = build_schedule(self.config.schedule, batches, options.epochs, options.seed)
        combine = pcgrad if self.config.schedule.surgery == "pcgrad" else None
        return train(
            self.model.encoder,
            tasks,
            options,
            world=self.world,
            schedule=schedule,
            combine=combine,
            log=self.tell,
        )

    def _check_parts(self) -> dict[str, tuple[Examples, Tokens]]:
        """The validation part of every task, tokenised. Parts that cannot be scored are refused
        before training.
        """
        validation: dict[str, tuple[Examples, Tokens]] = {}
        for name, parts in self.data.items():
            for part in parts.held_out:
                self.model.check(name, part)
            if parts.validation is not None:
                validation[name] = parts.validation, self.model.rows(name, parts.validation)
        return validation

    def _main_session(self, training: Training, folder: Path | None, resume: bool) -> Loop:
        return Loop(
            training,
            every=self.config.train.evaluate_every or training.schedule.per_epoch,
            evaluate=self._evaluate if self.validation else None,
            metric="average",
            patience=self.config.train.patience or 0,
            folder=folder / "tasks" if folder is not None else None,
            resume=resume,
            world=self.world,
        )

    # -- the stage before the tasks

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

    def _pretraining_stages(self) -> list[Stage]:
        if self.pretraining is None:
            return []
        first, *others = self.pretraining.stages

        def begin() -> None:
            self._announce_pretraining()
            first.before()

        return [dataclasses.replace(first, before=begin), *others]

    def _announce_pretraining(self) -> None:
        if self.pretraining is None or not self.world.main:
            return
        rows, method = len(self.pretraining.sentences), self.config.pretrain.method
        steps = self.pretraining.steps
        self.tell(f"first {method} on {rows:,} rows: {steps} of the {self.steps} steps")

    def _begin_tasks(self) -> None:
        if self.pretraining is not None:
            self.model.metrics["pretraining"] = self.pretraining.model.metrics["history"]
            # Pretraining has switched the trunk, which both stages share, to inference.
            self.training.learners.train()

    # -- what is trained

    def _encoder(self) -> tuple[Encoder, Tokeniser]:
        """The encoder to train; after pretraining the very one that learns there."""
        config = self.config.encoder
        if self.pretraining is not None:
            trained = self.pretraining.model
            encoder = Encoder(trained.encoder.trunk, config.pooling, trained.encoder.name)
            return encoder, trained.tokeniser
        texts = [
            text
            for own in self.data.values()
            for column in (own.train.texts, own.train.pairs or [])
            for text in column
        ]
        with seeded(self.world, self.config.train.seed, randomness.ENCODER):
            return config.load(Examples(texts))

    def _task(self, name: str) -> Task:
        settings, examples, options = (
            self.config.tasks[name],
            self.data[name].train,
            self.config.train,
        )
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
        plan = rows_that_meet(
            targets, lengths, options.batch_size, seed, objective.rows_of_a_class, tell
        )
        copies = objective.copies
        starts = (0, rows) if isinstance(head, PairHead) else (0,) * copies
        batch = DeviceBatches(
            tokens,
            labels_of(targets, self.world.device, copies),
            plan,
            per_epoch,
            self.world,
            starts=starts,
        )
        return Task(name, batch, per_epoch, objective, heads, settings.weight)

    def _objective(
        self,
        settings: TaskConfig,
        head: nn.Module,
        answers: Answers,
        examples: Examples,
        place: int,
    ) -> tuple[Joint, nn.ModuleDict]:
        """What a task's head is taught by, and all heads that it reads."""
        heads = nn.ModuleDict({"logits": head})
        if settings.kind != "classify":
            loss = CrossEntropy() if answers.labels else MeanSquared()
            return Joint([Term("loss", 1.0, loss, "logits")]), heads
        encoder, counts = self.model.encoder, Counter(examples.required_labels)
        with seeded(self.world, self.config.train.seed, randomness.OBJECTIVE, place):
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
        if objective.copies > 1:
            asked = self.config.encoder.dropout
            require_dropout_for_views(encoder, asked, settings.objective)
        if objective.adaptation is not None:
            raise ConfigError(
                f"{settings.objective} learns from confusions, which only single-task training tells it"
            )
        with seeded(self.world, self.config.train.seed, randomness.HEADS, place):
            if "projected" in objective.views:
                heads["projected"] = Projection(encoder.dim)
            if "weights" in objective.views or "weighting_logits" in objective.views:
                heads["weighting"] = Weighting(encoder, len(answers.labels))
        return objective, heads

    # -- running

    def _evaluate(self) -> dict[str, float]:
        """Each task's metric and their average; in names with a slash, how the tasks' gradients
        agree.
        """
        measures = {name: self.model.task(name).measure for name in self.validation}
        found = {
            name: float(self.model.score(name, examples, tokens)[measures[name]])
            for name, (examples, tokens) in self.validation.items()
        }
        agreement = self.training.agreement() if len(self.training.tasks) > 1 else {}
        return {
            **found,
            "average": float(np.mean(list(found.values()))),
            **{
                f"gradients/{first}/{second}": value for (first, second), value in agreement.items()
            },
        }

    def _finish(self) -> None:
        metrics = self.model.metrics
        metrics["history"] = self.session.history
        metrics["rows"] = {name: len(own.train) for name, own in self.data.items()}
        metrics["updates"] = dict(self.training.taken)
        named = zip(self.training.groups, self.training.rates, strict=True)
        metrics["rates"] = {group["name"]: rate for group, rate in named}
        self.training.learners.eval()


def _require_validation(data: Mapping[str, Parts], config: MultiTaskConfig) -> None:
    """Refuse a task without a validation part where the settings or the other tasks need one."""
    missing = [name for name, parts in data.items() if parts.validation is None]
    needed = config.train.patience or config.train.evaluate_every
    if missing and (len(missing) < len(data) or needed):
        raise ConfigError(
            f"the task {missing[0]} has no validation part: give it one, or set train.validation to the share of rows "
            "to hold out"
        )


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
        raise ConfigError(
            text.replace("train.", "pretrain.") if "pretrain." not in text else text
        ) from None


def pretraining_sentences(
    config: MultiTaskConfig,
    data: Mapping[str, Parts],
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Sentences | None:
    """What the stage before the tasks learns from, where there is one."""
    settings = config.pretrain
    if not settings.data:
        return None
    if settings.positives:
        found = sentences_from_labelled_pairs(settings.data, settings.positives, settings.negatives)
    else:
        found = read_sentences(settings.data)
    return drawn_sentences(found, config, data, tell=tell)


def drawn_sentences(
    sentences: Sentences,
    config: MultiTaskConfig,
    data: Mapping[str, Parts],
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Sentences:
    """As many as the configuration asks for, drawn at random, without pairs that a task is chosen
    by or scored on.
    """
    held = {
        key
        for name, own in data.items()
        for part in own.held_out
        if part.pairs is not None and config.tasks[name].leaks == "drop"
        for key in row_keys(part)
    }
    first, *others = (
        sentences.columns
    )  # what belongs to a text, and what does not: both are told of a pair
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
