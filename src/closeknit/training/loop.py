"""The training loop: `train` gives a `Training`, and iterating over that trains.

Each iteration is one update and yields a step. Logging, evaluating, saving and stopping are up to
the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from closeknit.acceleration.engine import (
    Engine,
    UpdateNumbers,
    UpdateParts,
    UpdateWork,
    choose_engine,
)
from closeknit.acceleration.precision import Precision, choose_precision
from closeknit.encoders.augmentation import check_second_copies
from closeknit.encoders.encoder import Encoder
from closeknit.errors import ConfigError, TrainingError
from closeknit.training.agreement import gradient_agreement
from closeknit.training.batches import ChangedTexts, DeviceBatches
from closeknit.training.config import TrainConfig
from closeknit.training.cuda_graphs import CudaGraphs, PaddedBatches, why_not_captured
from closeknit.training.failures import (
    FiniteCheck,
    Position,
    SkippedUpdates,
    describe_not_finite,
)
from closeknit.training.gradients import BatchGradients, SeparateGradients
from closeknit.training.optimizer import StepValues, build_optimizer, parameter_groups, rate_factor
from closeknit.training.processes import (
    World,
    average,
    average_gradients,
    return_memory,
    this_world,
)
from closeknit.training.randomness import (
    SURGERY,
    DropoutSeeds,
    deterministic_algorithms,
    fixed_seed,
    mix,
)
from closeknit.training.schedules import Schedule, together
from closeknit.training.task import Batch, NamedNumbers, NumbersOnDevice, Step, Task

# (gradients (T, P) of the tasks of an update, generator) -> the one gradient (P,) that is applied
Combine = Callable[[Tensor, torch.Generator], Tensor]


class Training:
    """A run of the loop: iterate to train; `state` and `load_state` hold all that changes."""

    def __init__(
        self,
        encoder: Encoder,
        tasks: Sequence[Task],
        config: TrainConfig,
        *,
        world: World | None = None,
        schedule: Schedule | None = None,
        combine: Combine | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        _check_settled(config)
        for task in tasks:
            check_second_copies(encoder, task.objective.second_copies)
        self.encoder = encoder
        self.tasks = list(tasks)
        self.config = config
        self.world = world or this_world()
        self.log = log if self.world.main else lambda line: None
        self.schedule = schedule or together(
            {task.name: task.per_epoch for task in tasks}, config.epochs
        )
        self.combine = combine
        self.position = Position(0, {task.name: 0 for task in self.tasks})
        if self.world.device.type == "cpu":
            return_memory()  # of trainings before this one
        self.learners = _all_learners(encoder, self.tasks)
        self.learners.to(self.world.device).train()
        self.groups = parameter_groups(encoder, self.tasks, config)
        self.parameters = [p for group in self.groups for p in group["params"]]
        if not self.parameters:
            raise ConfigError(
                "encoder.frozen leaves nothing to learn: the objective has neither a classifier "
                "nor parameters that can be trained"
            )
        self.shared = [p for p in encoder.parameters() if p.requires_grad]  # by all tasks
        self.rates = [float(group["lr"]) for group in self.groups]
        self.step_values = StepValues(self.rates, self.world.device)
        self.optimizer = build_optimizer(self.groups, self.step_values, self.world.device)
        self.precision = Precision(
            choose_precision(config.precision, self.world.device, self.log), self.world.device
        )
        self.skipped = SkippedUpdates()
        self.finite = FiniteCheck(
            self.world.device, scales_gradients=self.precision.scales_gradients
        )
        self.engine = self._choose_engine()
        self.gradients = self._batch_gradients()
        self.padded = self._capture_updates()

    # -- what a run is made of

    def _choose_engine(self) -> Engine:
        kinds = DeviceBatches | ChangedTexts
        sources = [task.batch for task in self.tasks if isinstance(task.batch, kinds)]
        parts = UpdateParts(
            self.optimizer,
            self.precision,
            self.step_values.rates,
            self.config.clip,
            self.finite.not_finite,
            self.finite.flagged,
        )
        padded_left = any(source.padded_left for source in sources)
        return choose_engine(parts, self.learners, padded_left=padded_left)

    def _batch_gradients(self) -> BatchGradients:
        one_gpu = self.world.device.type == "cuda" and self.world.size == 1
        return BatchGradients(
            self.encoder,
            self.engine,
            self.precision,
            self.world,
            self.step_values,
            chunk_size=self.config.chunk_size,
            keep_unchosen_tokens=one_gpu and all(task.objective.takes_gaps for task in self.tasks),
        )

    def _capture_updates(self) -> PaddedBatches | None:
        """Let the engine capture updates in CUDA graphs; None where they are launched directly."""
        if self.world.device.type != "cuda" or not self.config.graphs:
            return None
        reason = why_not_captured(self)
        if reason is not None:
            self.log(f"updates are launched kernel by kernel, as they cannot be captured: {reason}")
            return None
        self.engine.launcher = CudaGraphs(self.engine, self.world.device, self.log)
        return PaddedBatches(self.tasks, self.config.epochs, self.apply)

    @property
    def steps(self) -> int:
        """The number of updates of the whole run."""
        return self.schedule.steps

    @property
    def number(self) -> int:
        """The number of updates done."""
        return self.position.number

    @property
    def taken(self) -> dict[str, int]:
        """The number of batches taken from each task."""
        return self.position.taken

    @property
    def dropout_seeds(self) -> DropoutSeeds:
        """The seeds of dropout in the next update."""
        return DropoutSeeds(self.config.seed, self.number, self.world.rank)

    # -- updates

    def __iter__(self) -> Iterator[Step]:
        while self.number < self.steps:
            yield self._step()
        self.end()

    def end(self) -> None:
        """No update follows: say how many were skipped, and refuse a run in which all were."""
        self._raise_if_hopeless(last=True)
        if self.skipped.total:
            self.log(
                f"{self.skipped.total} of {self.number} updates were skipped, because their "
                "gradients were not finite in fp16 (train.precision=bf16 or fp32 skips none)"
            )

    def _step(self) -> Step:
        factor = rate_factor(self.number, self.steps, self.config.warmup, self.config.schedule)
        if not all(module.training for module in self.learners.values()):
            self.learners.train()  # the caller has evaluated since the last step
        names = self.schedule.turns(self.number)
        turn = [task for task in self.tasks if task.name in names]
        seed = self.dropout_seeds.of_update
        progress = self.number / self.steps
        self.step_values.write(factor, progress, seed, self.optimizer.param_groups)
        self.engine.prepare_update()
        deterministic = self.config.deterministic and self.world.device.type == "cuda"
        with fixed_seed(self.world, seed), deterministic_algorithms(deterministic):
            numbers = self.engine.run(self._next_update(turn))
        step = self._as_step(numbers, self.rates[0] * factor)
        self.finite.add(self.position.copy(), step)
        for task in turn:
            self.position.taken[task.name] += 1
        self.position.number += 1
        self._raise_if_failed(self.finite.check_if_due(self.number, last=self.number == self.steps))
        if self.precision.scales_gradients:
            self.skipped.add(step)
            self._raise_if_hopeless(last=False)
        return step

    def _next_update(self, turn: Sequence[Task]) -> UpdateWork:
        """The update with the next batch of these tasks."""
        if self.padded is not None:
            return self.padded.work(turn, self.taken)
        parts = self.config.accumulate
        batches = {
            task.name: [task.batch(self.taken[task.name], part, parts) for part in range(parts)]
            for task in turn
        }
        return UpdateWork((), 0, [], lambda _: self.apply(turn, batches))

    def _as_step(self, numbers: UpdateNumbers, lr: float) -> Step:
        losses, terms, values = numbers
        on_device = NumbersOnDevice(values)
        first_term = len(losses)
        grad_norm = first_term + len(terms)
        return Step(
            self.number + 1,
            (self.number + 1) / self.schedule.per_epoch,
            NamedNumbers(on_device, {name: place for place, name in enumerate(losses)}),
            NamedNumbers(on_device, {name: place for place, name in enumerate(terms, first_term)}),
            NamedNumbers(on_device, {"grad_norm": grad_norm}),
            lr,
        )

    def apply(self, turn: Sequence[Task], batches: Mapping[str, Sequence[Batch]]) -> UpdateNumbers:
        """Do the update with these batches of tasks, each of which comes in parts.

        This reads nothing step-specific from the host, so it can be captured: an update of the same
        shape differs only in values that lie on the device.
        """
        self.engine.clear_gradients()
        losses: dict[str, Tensor] = {}
        terms: dict[str, Tensor] = {}
        combined = self.combine is not None and len(turn) > 1 and bool(self.shared)
        separate = SeparateGradients(self.shared, len(turn)) if combined else None
        only_batch = len(turn) == 1 and self.config.accumulate == 1 and self.world.size == 1
        seeds = self.dropout_seeds
        share = 1.0 / len(turn) if self.schedule.mean_of_tasks else 1.0
        with self.engine.forward_context(self.step_values.seed):
            for row, task in enumerate(turn):
                loss, task_terms = self.gradients.of_task(
                    task,
                    batches[task.name],
                    dataclasses.replace(seeds, task=self.tasks.index(task)),
                    weight=share * task.weight,
                    only_batch=only_batch,
                )
                losses[task.name] = loss
                for name, value in task_terms.items():
                    terms[name if len(self.tasks) == 1 else f"{task.name}/{name}"] = value
                if separate is not None:
                    separate.take(row)
        self._exchange_gradients(separate)
        self.step_values.compute_rates()
        total_loss = torch.stack(list(losses.values())).sum()
        # Clipping the weighted gradient of one task alone would cancel a weight above 1. The limit
        # therefore has the same weight: this clips the task's gradient, and then weights it.
        clip_scale = turn[0].weight if len(turn) == 1 else 1.0
        norm = self.engine.apply_update(total_loss, clip_scale=clip_scale)
        values = [tensor.detach().float() for tensor in (*losses.values(), *terms.values(), norm)]
        return tuple(losses), tuple(terms), torch.stack(values)

    def _exchange_gradients(self, separate: SeparateGradients | None) -> None:
        """Average gradients over processes, and combine those of tasks that are kept separate."""
        if separate is not None and self.combine is not None:
            average(separate.rows, self.world)
            generator = torch.Generator().manual_seed(mix(self.config.seed, SURGERY, self.number))
            separate.give_back(self.combine(separate.rows, generator))
            shared = {id(p) for p in self.shared}
            average_gradients([p for p in self.parameters if id(p) not in shared], self.world)
        else:
            average_gradients(self.parameters, self.world)

    def check_finite(self) -> None:
        """Raise if an update since the last check was not finite; the run then stands before it."""
        self._raise_if_failed(self.finite.check())

    def _raise_if_failed(self, failed: tuple[Position, Step] | None) -> None:
        if failed is None:
            return
        self.position, step = failed
        raise NotFinite(
            describe_not_finite(step, self.tasks, self.taken, self.rates[0], self.precision.name)
        )

    def _raise_if_hopeless(self, *, last: bool) -> None:
        if self.skipped.hopeless(self.number, last=last):
            raise NotFinite(self.skipped.describe(self.number, self.rates[0]))

    def agreement(
        self, batches: int = 2, *, names: Sequence[str] | None = None
    ) -> dict[tuple[str, str], float]:
        """The cosine between the gradients of every two tasks for the parameters they share, on
        their first few batches; `names` chooses the tasks.
        """
        tasks = [task for task in self.tasks if names is None or task.name in names]
        if not self.shared or len(tasks) < 2:
            return {}
        self.learners.eval()
        self.optimizer.zero_grad(set_to_none=True)
        deterministic = self.config.deterministic and self.world.device.type == "cuda"
        with deterministic_algorithms(deterministic):
            found = gradient_agreement(
                tasks,
                self.shared,
                self.gradients,
                self.dropout_seeds,
                batches=batches,
                parts=self.config.accumulate,
            )
        self.optimizer.zero_grad(set_to_none=True)
        return found

    # -- other runs, and checkpoints

    @torch.no_grad()
    def restart(
        self,
        learners: nn.ModuleDict,
        batch: DeviceBatches | ChangedTexts,
        per_epoch: int,
        config: TrainConfig,
    ) -> None:
        """Begin another run of one task in the memory of this one, with the weights of modules of
        the same form.

        What was captured serves the new run too. The configuration may differ in seed, epochs,
        rates and their schedule.
        """
        old_tensors = [*self.learners.parameters(), *self.learners.buffers()]
        new_tensors = [*learners.parameters(), *learners.buffers()]
        for old, new in zip(old_tensors, new_tensors, strict=True):
            old.copy_(new, non_blocking=True)
        (task,) = self.tasks
        self.config = config
        self.tasks = [dataclasses.replace(task, batch=batch, per_epoch=per_epoch)]
        self.schedule = together({task.name: per_epoch}, config.epochs)
        self.position = Position(0, {task.name: 0})
        self.rates = [float(g["lr"]) for g in parameter_groups(self.encoder, self.tasks, config)]
        self.step_values.restart(self.rates)
        self.finite.restart()
        self.skipped = SkippedUpdates()
        self.learners.train()
        self.precision.restart()
        self.engine.restart()
        if self.padded is not None and isinstance(self.engine.launcher, CudaGraphs):
            self.padded = PaddedBatches(self.tasks, config.epochs, self.apply)
            self.engine.launcher.keep_only(self.padded.has_shape)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, facts): the weights, the optimizer's moments and where the run stands."""
        self.check_finite()
        tensors = {f"learners/{key}": value for key, value in self.learners.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
        scaler = self.precision.scaler.state_dict()
        facts: dict[str, Any] = {"number": self.number, "taken": self.taken, "scaler": scaler}
        if self.precision.scales_gradients:
            facts["skipped"] = dataclasses.asdict(self.skipped)
        return tensors, facts

    def load_state(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Resume a run where `state` left it."""
        prefix = "learners/"
        weights = {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        self.learners.load_state_dict(weights)
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer/"):
                _, index, name = key.split("/")
                moments.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.position = Position(facts["number"], dict(facts["taken"]))
        self.step_values.attach(self.optimizer.param_groups)
        self.engine.read_optimizer_state()
        if self.precision.scales_gradients:
            self.precision.scaler.load_state_dict(facts["scaler"])
            self.skipped = SkippedUpdates(**facts.get("skipped", {}))


class NotFinite(TrainingError):
    """The loss or its gradient is NaN or infinite; the weights are those of the step before."""


def train(
    encoder: Encoder,
    tasks: Sequence[Task],
    config: TrainConfig,
    *,
    world: World | None = None,
    schedule: Schedule | None = None,
    combine: Combine | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Training:
    """Train by iterating over the result; every iteration is one update and gives a Step.

    `schedule` says which tasks give a batch to an update (default: every task, in every update).
    `combine` makes one gradient of those that the tasks of an update have for the encoder (default:
    their sum); the parameters of heads and objectives have their own gradients only.
    """
    return Training(
        encoder, tasks, config, world=world, schedule=schedule, combine=combine, log=log
    )


def _check_settled(config: TrainConfig) -> None:
    for name in ("epochs", "lr_scale"):
        if not getattr(config, name):
            raise ConfigError(
                f"train.{name} is 0, which leaves it to the number of rows and classes, but the "
                "loop does not know these; give a number above 0"
            )


def _all_learners(encoder: Encoder, tasks: Sequence[Task]) -> nn.ModuleDict:
    """Everything that is trained, under the names that checkpoints use."""
    learners = nn.ModuleDict({"encoder": encoder})
    for task in tasks:
        learners[f"{task.name}_heads"] = task.heads
        learners[f"{task.name}_objective"] = task.objective
    return learners
