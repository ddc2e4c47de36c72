"""MultiTaskFit: one encoder for several tasks: builds the tasks, drains the loop, keeps the state
with the best average.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from closeknit.console import say
from closeknit.data.examples import Examples
from closeknit.data.sentences import Sentences
from closeknit.data.splits import Parts
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.encoders.augmentation import require_dropout_for_views
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import Projection, Weighting
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.encoders.tokens import Tokens
from closeknit.errors import ConfigError
from closeknit.models.fit import Fit, Stage
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.data import named
from closeknit.multitask.heads import PairHead, SimilarityHead
from closeknit.multitask.model import (
    Answers,
    MultiTaskModel,
    build_top_and_heads,
    encoder_rows,
    some_rows,
)
from closeknit.multitask.paraphrases import (
    MULTIPLE_NEGATIVES,
    groups_of_positives,
    ranking_loss,
    targets_of_pairs,
)
from closeknit.multitask.pretraining import pretraining_config
from closeknit.objectives import build_objective
from closeknit.objectives.joint import Joint, Term
from closeknit.objectives.losses.cross_entropy import CrossEntropy
from closeknit.objectives.losses.pair_scores import MeanSquared
from closeknit.objectives.losses.text_views import Folded
from closeknit.training import randomness
from closeknit.training.batches import (
    DeviceBatches,
    Plan,
    batches_per_epoch,
    labels_of,
    rows_that_meet,
    with_second_copies,
)
from closeknit.training.gradients import pcgrad
from closeknit.training.loop import Training, train
from closeknit.training.processes import World, this_world
from closeknit.training.randomness import seeded
from closeknit.training.schedules import Mixture, build_schedule
from closeknit.training.session import Loop
from closeknit.training.task import Task

# Training rows on which a threshold is chosen, where there is no validation part.
THRESHOLD_ROWS = 10_000


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
        sentences: Sentences | Sequence[Sentences] = (),
        folder: Path | None = None,
        resume: bool = False,
        world: World | None = None,
        log: Callable[[str], None] = say,
    ) -> None:
        self.config = config
        self.data = dict(data)
        self.log = log
        self.world = world or this_world()
        _require_validation(data, config)
        stages = [sentences] if isinstance(sentences, Sentences) else list(sentences)
        self.pretrainings: list[EmbeddingFit] = []
        for place, own in enumerate(stages):
            self.pretrainings.append(self._pretraining(place, own, folder, resume))
        self._make_model()
        self.mixture = self._make_mixture()
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

    def _make_mixture(self) -> Mixture | None:
        """Which rows meet in a batch, where a batch holds rows of all tasks."""
        if self.config.schedule.name != "mixed":
            return None
        rows = {name: len(self._learnt_rows(name)) for name in self.config.tasks}
        options = self.config.train
        return Mixture.of(self.config.schedule, rows, options.batch_size, options.seed)

    def _make_training(self) -> Training:
        options = self.config.train
        tasks = [self._task(name) for name in self.config.tasks]
        for name in self.config.untrained:
            if self.world.main:
                self.log(
                    f"{name} is scored but not trained: schedule.order leaves it out, and so does "
                    "the average that chooses the best state"
                )
        batches = {task.name: task.per_epoch for task in tasks}
        settings = self.config.schedule
        if self.mixture is not None:
            schedule = self.mixture.schedule(options.epochs)
        else:
            schedule = build_schedule(settings, batches, options.epochs, options.seed)
        combine = None
        if settings.surgery == "pcgrad":
            combine = functools.partial(pcgrad, reduction=settings.surgery_reduction)
        return train(
            self.model.encoder,
            tasks,
            options,
            world=self.world,
            schedule=schedule,
            combine=combine,
            log=self.log,
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

    # -- the stages before the tasks

    def _pretraining(
        self, place: int, sentences: Sentences, folder: Path | None, resume: bool
    ) -> EmbeddingFit:
        name = "pretrain" if place == 0 else f"pretrain-{place + 1}"
        return EmbeddingFit(
            sentences,
            pretraining_config(self.config, place, sentences),
            start=self.pretrainings[-1].model if self.pretrainings else None,
            folder=folder / name if folder is not None else None,
            resume=resume,
            world=self.world,
            log=self.log,
        )

    def _pretraining_stages(self) -> list[Stage]:
        stages: list[Stage] = []
        for place, pretraining in enumerate(self.pretrainings):
            first, *others = pretraining.stages
            begin = functools.partial(self._begin_pretraining, place, first.before)
            stages += [dataclasses.replace(first, before=begin), *others]
        return stages

    def _begin_pretraining(self, place: int, before: Callable[[], None]) -> None:
        pretraining = self.pretrainings[place]
        # The stage before has switched the trunk, which all stages share, to inference.
        pretraining.training.learners.train()
        if self.world.main:
            rows = len(pretraining.sentences)
            method = self.config.stages[place].method
            order = "then" if place else "first"
            steps = pretraining.steps
            self.log(f"{order} {method} on {rows:,} rows: {steps} of the {self.steps} steps")
        before()

    def _begin_tasks(self) -> None:
        if not self.pretrainings:
            return
        records = [fit.model.metrics["history"] for fit in self.pretrainings]
        if len(records) > 1:
            records = [
                [{**record, "stage": place} for record in own]
                for place, own in enumerate(records, 1)
            ]
        self.model.metrics["pretraining"] = [record for own in records for record in own]
        self.training.learners.train()

    # -- what is trained

    def _encoder(self) -> tuple[Encoder, Tokeniser]:
        """The encoder to train; after pretraining the very one that learns there."""
        config = self.config.encoder
        if self.pretrainings:
            trained = self.pretrainings[-1].model
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
        settings = self.config.tasks[name]
        head = self.model.heads[name]
        place = list(self.config.tasks).index(name)  # tasks of one size do not draw the same rows
        seed = self.config.train.seed + 1_000_003 * place
        examples = self._learnt_rows(name)
        tokens = encoder_rows(self.model.tokeniser, head, examples)
        rows = len(examples)
        lengths = tokens.lengths.reshape(-1, rows).max(axis=0)
        if settings.ranks:
            loss = Folded(ranking_loss(settings.options), 2)
            objective = Joint([Term(settings.objective, 1.0, loss, "pooled")])
            heads = nn.ModuleDict({"logits": head})
            with named(name):
                groups = groups_of_positives(examples)
            targets = targets_of_pairs(groups, self.world.device)
            plan, per_epoch = self._plan(name, objective, groups, lengths, seed)
            self._check_ranked_batches(name)
        else:
            answers = self.model.answers[name]
            objective, heads = self._objective(settings, head, answers, examples, place)
            expected = answers.targets(examples)
            targets = labels_of(expected, self.world.device, objective.copies)
            plan, per_epoch = self._plan(name, objective, expected, lengths, seed)
        pairs_of_rows = isinstance(head, PairHead | SimilarityHead) and head.rows == 2
        starts = (0, rows) if pairs_of_rows else (0,) * objective.copies
        batch = DeviceBatches(tokens, targets, plan, per_epoch, self.world, starts=starts)
        changed = with_second_copies(
            batch, objective.second_copies, examples, tokens, self.model.tokeniser, seed
        )
        return Task(name, changed, per_epoch, objective, heads, settings.weight)

    def _learnt_rows(self, name: str) -> Examples:
        """The training rows; of a task that ranks, those of pairs that belong together."""
        examples = self.data[name].train
        head = self.model.heads[name]
        if not isinstance(head, SimilarityHead):
            return examples
        expected = self.model.answers[name].targets(examples)
        return examples.select(np.flatnonzero(expected == head.positive).tolist())

    def _plan(
        self,
        name: str,
        objective: Joint,
        targets: npt.NDArray[Any],
        lengths: npt.NDArray[np.int64],
        seed: int,
    ) -> tuple[Plan, int]:
        """Which rows of a task meet, and how many batches an epoch has of it."""
        options = self.config.train
        log = self.log if self.world.main else None
        if self.mixture is None:
            k = objective.rows_of_a_class
            plan = rows_that_meet(targets, lengths, options.batch_size, seed, k, log)
            return plan, batches_per_epoch(len(lengths), options.batch_size)
        if objective.rows_of_a_class:
            raise ConfigError(
                f"the objective of {name} compares rows of a class, which mixed batches do not bring "
                "together; choose another schedule.name or another objective"
            )
        return self.mixture.plan(name, lengths, seed), self.mixture.per_epoch(name)

    def _check_ranked_batches(self, name: str) -> None:
        """Refuse batches in which a pair has no other pair as a negative."""
        options = self.config.train
        rows = options.batch_size
        if self.mixture is not None:
            rows = self.mixture.counts[name] // self.mixture.updates
        if rows // options.accumulate < 2:
            raise ConfigError(
                f"a batch, or a part of one, has {rows // options.accumulate} pairs of {name} that "
                f"belong together, and {MULTIPLE_NEGATIVES} needs at least 2; raise "
                "train.batch_size, or lower train.accumulate"
            )

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
        encoder = self.model.encoder
        counts = Counter(examples.required_labels)
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
            require_dropout_for_views(
                encoder,
                asked,
                settings.objective,
                second_view=objective.second_copies.second_view,
            )
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
        """Each task's metric, and the average of those that are trained; in names with a slash,
        how the gradients of these agree.
        """
        measures = {name: self.model.task(name).measure for name in self.validation}
        found = {
            name: float(
                self.model.score(name, examples, tokens, choose_threshold=True)[measures[name]]
            )
            for name, (examples, tokens) in self.validation.items()
        }
        trained = [name for name in self.config.tasks if name not in self.config.untrained]
        agreement = self.training.agreement(names=trained)
        return {
            **found,
            "average": float(np.mean([found[name] for name in trained])),
            **{
                f"gradients/{first}/{second}": value for (first, second), value in agreement.items()
            },
        }

    def _finish(self) -> None:
        for name, task in self.config.tasks.items():
            if task.ranks and name not in self.validation:
                rows = some_rows(self.data[name].train, THRESHOLD_ROWS)
                self.model.score(name, rows, choose_threshold=True)
        metrics = self.model.metrics
        metrics["history"] = self.session.history
        metrics["rows"] = {name: len(own.train) for name, own in self.data.items()}
        metrics["updates"] = dict(self.training.taken)
        groups = zip(self.training.groups, self.training.rates, strict=True)
        metrics["rates"] = {group["name"]: rate for group, rate in groups}
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
