"""train(): the one loop. It yields; logging, evaluating, saving and stopping are the caller's."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from closeknit.encoder import Encoder
from closeknit.encoder_views import read_views
from closeknit.errors import ConfigError, TrainingError
from closeknit.graphs import Graphs, Numbers, why_not
from closeknit.lean import Lean
from closeknit.objectives.view import View
from closeknit.processes import (
    World,
    average,
    average_gradients,
    gather,
    mix,
    return_memory,
    seeded,
    this_world,
)
from closeknit.rates import Cues, parameter_groups, rate_factor
from closeknit.schedules import Schedule, together
from closeknit.stepping import FusedAdamW
from closeknit.surgery import Apart, cosines
from closeknit.tasks import Batch, Fetched, Shelved, Step, Task, Values
from closeknit.train_config import TrainConfig

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DROPOUT, SURGERY = (
    1,
    6,
)  # tell apart the random numbers that are made of one seed for different ends

LOOK_EVERY = 32  # updates between looks at whether all were finite, on a GPU

# (gradients (T, P) of the tasks of an update, generator) -> the one (P,) that is applied
Combine = Callable[[Tensor, torch.Generator], Tensor]


class Training:
    """A run of the loop: iterate to train; `state` and `load_state` hold everything that moves."""

    def __init__(
        self,
        encoder: Encoder,
        tasks: Sequence[Task],
        config: TrainConfig,
        *,
        world: World | None = None,
        schedule: Schedule | None = None,
        combine: Combine | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        for name in ("epochs", "lr_scale"):
            if not getattr(config, name):
                raise ConfigError(
                    f"train.{name} is 0, to be settled by the number of rows and classes, which the loop does not know; "
                    "give a number above 0"
                )
        self.encoder, self.tasks, self.config = encoder, list(tasks), config
        self.world = world or this_world()
        self.schedule = schedule or together(
            {task.name: task.per_epoch for task in tasks}, config.epochs
        )
        self.combine = combine
        self.steps = self.schedule.steps
        self.number = 0  # updates done
        self.taken = {task.name: 0 for task in self.tasks}  # batches drawn from each task
        self.learners = nn.ModuleDict({"encoder": encoder})
        for task in self.tasks:
            self.learners[f"{task.name}_heads"] = task.heads
            self.learners[f"{task.name}_objective"] = task.objective
        if self.world.device.type == "cpu":
            return_memory()  # of trainings before this one
        self.learners.to(self.world.device).train()
        self.groups = parameter_groups(encoder, self.tasks, config)
        self.parameters = [p for group in self.groups for p in group["params"]]
        if not self.parameters:
            raise ConfigError(
                "encoder.frozen leaves nothing to learn: the objective has neither a classifier nor anything of its own"
            )
        self.shared = [p for p in encoder.parameters() if p.requires_grad]  # by all tasks
        self.rates = [float(group["lr"]) for group in self.groups]
        self.cues = Cues(self.rates, self.world.device)
        fused, on_gpu = self.world.device.type in ("cpu", "cuda"), self.world.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.groups, fused=fused, capturable=on_gpu)
        self.cues.attach(self.optimizer.param_groups)
        self.deterministic = config.deterministic and self.world.device.type == "cuda"
        self.precision = choose_precision(config.precision, self.world.device)
        self.scaler = self._make_scaler()
        # Whether an update was not finite is noted on the device, which from then on applies none, and looked at now and
        # then: each look waits for all that is queued.
        self.stuck = torch.zeros((), device=self.world.device)
        self.guarded = fused and not self.scaler.is_enabled()
        self.later = self.guarded and on_gpu
        self.look_every = LOOK_EVERY if self.later else 1
        self.unseen: list[tuple[dict[str, int], Step]] = []  # batches taken before, and the step
        self.note: tuple[int, Tensor, torch.cuda.Event] | None = (
            None  # how things stood after an update
        )
        self.gaps = (
            on_gpu
            and self.world.size == 1
            and all(task.objective.takes_gaps for task in self.tasks)
        )
        self.lean = self._make_lean()
        self.stepper = self._make_stepper()
        reason = why_not(self) if on_gpu and self.config.graphs else None
        if reason is not None and self.world.main:
            tell(f"updates are launched kernel by kernel, as they cannot be captured: {reason}")
        self.graphs = (
            Graphs(self, tell) if on_gpu and self.config.graphs and reason is None else None
        )

    def _make_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.world.device.type, enabled=self.precision == "fp16")

    def _make_lean(self) -> Lean | None:
        """Less work for the same numbers, where the device and the precision have it."""
        half, device = _DTYPES.get(self.precision), self.world.device
        shelved = [task.batch for task in self.tasks if isinstance(task.batch, Shelved)]
        padded_left = any(
            batch.shelf.tokens.pad_left for batch in shelved
        )  # which fused layers cannot do
        if device.type == "cpu" or (device.type == "cuda" and half is not None and not padded_left):
            encoders = [module for module in self.learners.modules() if isinstance(module, Encoder)]
            return Lean(encoders, self.learners, half or torch.float32, device)
        return None

    def _make_stepper(self) -> FusedAdamW | None:
        """All of an update after its gradients in few kernels, where a GPU can."""
        plain = all(
            p.dtype == torch.float32 and p.is_contiguous() and p.data_ptr() % 16 == 0
            for p in self.parameters
        )
        able = self.world.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        if not able or not plain or self.scaler.is_enabled():
            return None
        copies = {} if self.lean is None or self.lean.halves is None else self.lean.halves.by_master
        half = _DTYPES.get(self.precision, torch.bfloat16)
        return FusedAdamW(
            self.optimizer, self.cues.rates, self.config.clip, self.stuck, copies, half
        )

    def __iter__(self) -> Iterator[Step]:
        while self.number < self.steps:
            yield self._step()

    def _step(self) -> Step:
        factor = rate_factor(self.number, self.steps, self.config.warmup, self.config.schedule)
        if not all(module.training for module in self.learners.values()):
            self.learners.train()  # the caller has evaluated since the last step
        names = self.schedule.turns(self.number)
        turn = [task for task in self.tasks if task.name in names]
        place = (self.config.seed, DROPOUT, self.number, self.world.rank)
        self.cues.give(factor, self.number / self.steps, mix(*place), self.optimizer.param_groups)
        if self.lean is not None:
            self.lean.refresh(kept=self.stepper is not None)
        with seeded(self.world, *place), _deterministic(self.deterministic):
            losses, terms, values = self._next_update(turn)
        fetched = Fetched(values)
        start = len(losses)
        step = Step(
            self.number + 1,
            (self.number + 1) / self.schedule.per_epoch,
            Values(fetched, {name: i for i, name in enumerate(losses)}),
            Values(fetched, {name: start + i for i, name in enumerate(terms)}),
            Values(fetched, {"grad_norm": start + len(terms)}),
            self.rates[0] * factor,
        )
        self.unseen.append((dict(self.taken), step))
        for task in turn:
            self.taken[task.name] += 1
        self.number += 1
        if self.number == self.steps or (len(self.unseen) >= self.look_every and not self.later):
            self.look()
        elif self.later and self.number % self.look_every == 0:
            self._glance()
        return step

    def _next_update(self, turn: Sequence[Task]) -> Numbers:
        """The update with the next batch of these tasks."""
        if self.graphs is not None:
            drawn = [
                task.batch.draw(self.taken[task.name])
                for task in turn
                if isinstance(task.batch, Shelved)
            ]
            return self.graphs.update(turn, drawn)
        parts = self.config.accumulate
        batches = {
            task.name: [task.batch(self.taken[task.name], part, parts) for part in range(parts)]
            for task in turn
        }
        return self.apply(turn, batches)

    def apply(self, turn: Sequence[Task], batches: Mapping[str, Sequence[Batch]]) -> Numbers:
        """The update with these batches of tasks, each in parts; what is read here of the host is the same in every update of
        this shape, so that it can be captured.
        """
        self.optimizer.zero_grad(set_to_none=True)
        if self.lean is not None:
            self.lean.clear()
        losses: dict[str, Tensor] = {}
        terms: dict[str, Tensor] = {}
        kept_apart = self.combine is not None and len(turn) > 1 and bool(self.shared)
        apart = Apart(self.shared, len(turn)) if kept_apart else None
        # gradients that are added to or exchanged are so in float32
        several = (
            len(turn) > 1
            or self.config.accumulate > 1
            or self.world.size > 1
            or self.stepper is None
        )
        with self.lean.used(self.cues.seed) if self.lean is not None else contextlib.nullcontext():
            for row, task in enumerate(turn):
                loss, own = self._backward(task, batches[task.name], several)
                losses[task.name] = loss
                for name, value in own.items():
                    terms[name if len(self.tasks) == 1 else f"{task.name}/{name}"] = value
                if apart is not None:
                    apart.take(row)
        self._combine(apart)
        norm = self._update(losses)
        values = torch.stack(
            [tensor.detach().float() for tensor in (*losses.values(), *terms.values(), norm)]
        )
        return tuple(losses), tuple(terms), values

    def look(self) -> None:
        """Raise if an update since the last look was not finite; the run then stands before it."""
        unseen, self.unseen = self.unseen, []
        self.note = None
        if not unseen or (self.guarded and not bool(self.stuck)):
            return
        for taken, step in unseen:
            finite = all(math.isfinite(loss) for loss in step.losses.values())
            if not finite or not (math.isfinite(step.grad_norm) or self.scaler.is_enabled()):
                self.number, self.taken = step.number - 1, taken
                self.stuck.zero_()
                raise NotFinite(self._what_went_wrong(step))

    def _glance(self) -> None:
        """As `look`, but at what was noted some updates ago, so that nothing waits for the device."""
        if self.note is not None:
            number, seen, done = self.note
            done.synchronize()  # it is long past
            if bool(seen):
                self.look()
            self.unseen = [(taken, step) for taken, step in self.unseen if step.number > number]
        seen = torch.empty((), pin_memory=True)
        seen.copy_(self.stuck, non_blocking=True)
        self.note = self.number, seen, torch.cuda.current_stream().record_event()

    def _combine(self, apart: Apart | None) -> None:
        """Gradients as the update applies them: the mean over processes, and of tasks that were kept apart one."""
        if apart is not None and self.combine is not None:
            average(apart.rows, self.world)
            generator = torch.Generator().manual_seed(mix(self.config.seed, SURGERY, self.number))
            apart.give(self.combine(apart.rows, generator))
            shared = {id(p) for p in self.shared}
            average_gradients([p for p in self.parameters if id(p) not in shared], self.world)
        else:
            average_gradients(self.parameters, self.world)

    def agreement(self, batches: int = 2) -> dict[tuple[str, str], float]:
        """The cosine between the gradients of every two tasks for what they share, on their first few batches.

        Nothing is updated, and dropout is off; the same batches every time make the values comparable.
        """
        if not self.shared:
            return {}
        apart = Apart(self.shared, len(self.tasks))
        self.learners.eval()
        self.optimizer.zero_grad(set_to_none=True)
        with _deterministic(self.deterministic):
            for row, task in enumerate(self.tasks):
                for number in range(min(batches, task.per_epoch)):
                    for part in range(self.config.accumulate):
                        batch = task.batch(number, part, self.config.accumulate)
                        if len(batch.rows):
                            self._gradients(
                                task, batch.to(self.world.device), float(len(batch.rows))
                            )
                apart.take(row)
        self.optimizer.zero_grad(set_to_none=True)
        average(apart.rows, self.world)
        found = cosines(apart.rows).tolist()
        names = [task.name for task in self.tasks]
        return {
            (first, second): found[i][j]
            for i, first in enumerate(names)
            for j, second in enumerate(names)
            if i < j
        }

    def _backward(
        self, task: Task, parts: Sequence[Batch], several: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Gradients of one task's next batch, worked through in parts; the loss and its terms."""
        pieces = [piece for piece in parts if len(piece.rows)]
        whole = sum(len(piece.rows) for piece in pieces)
        total, values = torch.zeros((), device=self.world.device), dict[str, Tensor]()
        for batch in pieces:
            share = len(batch.rows) / whole
            try:
                loss, own = self._gradients(task, batch.to(self.world.device), task.weight * share)
            except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(_memory_advice(self.config, batch)) from error
            if self.lean is not None and several:
                self.lean.collect()
            total += task.weight * share * loss.detach()
            for name, value in own.items():
                values[name] = values.get(name, 0.0) + share * value.detach()
        return total, values

    def _gradients(
        self, task: Task, batch: Batch, weight: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch and its terms; adds its gradients, times the weight, to all parameters."""
        size = self.config.chunk_size
        if not 0 < size < len(batch.labels):
            loss, values = self._objective(task, self._views(task, batch), batch.filler)
            self.scaler.scale(loss * weight).backward()
            return loss, values
        # Gradient caching: views without a graph, the objective's gradients with respect to them, and then chunk by
        # chunk, under the same dropout, on into the encoder.
        chunks = batch.chunks(
            size, alike="all_tokens" in task.objective.views
        )  # which reads the padding too
        with torch.no_grad():
            parts = [self._views(task, chunk, number) for number, chunk in enumerate(chunks)]
        whole = {
            name: View(
                torch.cat([part[name].z for part in parts]),
                torch.cat([part[name].y for part in parts]),
            )
            for name in task.objective.views
        }
        for view in whole.values():
            view.z.requires_grad_()
        loss, values = self._objective(task, whole, batch.filler)
        self.scaler.scale(loss * weight).backward()
        sizes = {name: [len(part[name].z) for part in parts] for name in whole}
        del parts
        slopes = {
            name: view.z.grad.split(sizes[name])
            for name, view in whole.items()
            if view.z.grad is not None
        }
        for number, chunk in enumerate(chunks):
            views = self._views(task, chunk, number)
            learning = [name for name in slopes if views[name].z.requires_grad]
            torch.autograd.backward(
                [views[name].z for name in learning], [slopes[name][number] for name in learning]
            )
        return loss, values

    def _views(self, task: Task, batch: Batch, chunk: int | None = None) -> dict[str, View]:
        """What the objective reads of a batch; a chunk of one has a dropout of its own, the same every time."""
        dtype = _DTYPES.get(self.precision, torch.float32)
        place = (self.config.seed, DROPOUT, self.number, self.world.rank)
        dropout = (
            seeded(self.world, *place, chunk) if chunk is not None else contextlib.nullcontext()
        )
        if chunk is not None and self.lean is not None:
            self.lean.begin(torch.full_like(self.cues.seed, mix(*place, chunk)))
        with (
            dropout,
            torch.autocast(self.world.device.type, dtype, enabled=self.precision in _DTYPES),
        ):
            if self.lean is not None:
                self.lean.read(self.encoder, task.objective.views)
            encoded = self.encoder(batch.inputs)
            return read_views(
                batch.inputs,
                encoded,
                batch.labels,
                task.heads,
                task.objective.views,
                gaps=self.gaps,
                chunk=chunk is not None,
            )

    def _objective(
        self, task: Task, views: Mapping[str, View], filler: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        copies = task.objective.copies
        gathered = {
            name: gather(view, self.world, filler, 1 if name.endswith("tokens") else copies)
            for name, view in views.items()
        }
        loss, values = task.objective(gathered, self.cues.progress)
        return loss, values

    def _update(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Apply the gradients, unless something is not finite; their length before clipping."""
        self.cues.set_rates()
        total = torch.stack(list(losses.values())).sum()
        if self.stepper is not None:
            return self.stepper(total, {} if self.lean is None else self.lean.gradients())
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip, foreach=True)
        if self.guarded:
            self.stuck.copy_(torch.maximum(self.stuck, (~torch.isfinite(total + norm)).float()))
            self.optimizer.found_inf = self.stuck  # type: ignore[attr-defined]  # where it is 1 the fused update leaves all as it is
            self.optimizer.step()
        elif bool(torch.isfinite(total)) and (
            self.scaler.is_enabled() or bool(torch.isfinite(norm))
        ):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return norm

    def _what_went_wrong(self, step: Step) -> str:
        losses, turn = step.losses, [task for task in self.tasks if task.name in step.losses]
        bad = [task for task in turn if not math.isfinite(losses[task.name])] or turn
        task = bad[0]
        rows = task.batch(self.taken[task.name], 0, 1).rows
        shown = ", ".join(str(row + 1) for row in sorted(rows)[:8]) + (
            " …" if len(rows) > 8 else ""
        )
        what = (
            f"the loss became {losses[task.name]}"
            if not math.isfinite(losses[task.name])
            else "the gradient is not finite"
        )
        return (
            f"step {self.number + 1}: {what}, on training rows {shown}. Nothing of this step was applied. Likely causes: "
            f"a learning rate that is too high (lr {self.rates[0]:g}; try a third of it), "
            "too large a scale or too small a gamma or temperature of the objective"
            + (
                ""
                if self.precision == "fp32"
                else f", or {self.precision} precision (try train.precision=fp32)"
            )
        )

    @torch.no_grad()
    def restart(
        self, learners: nn.ModuleDict, batch: Shelved, per_epoch: int, config: TrainConfig
    ) -> None:
        """Begin another run of one task in the memory of this one, with the weights of modules of the same form.

        What was captured serves the new run too. The configuration may differ in seed, epochs, rates and their schedule.
        """
        for pairs in (
            zip(self.learners.parameters(), learners.parameters(), strict=True),
            zip(self.learners.buffers(), learners.buffers(), strict=True),
        ):
            for own, new in pairs:
                own.copy_(new, non_blocking=True)
        (task,) = self.tasks
        self.config = config
        self.tasks = [dataclasses.replace(task, batch=batch, per_epoch=per_epoch)]
        self.schedule = together({task.name: per_epoch}, config.epochs)
        self.steps, self.number, self.taken, self.unseen = (
            self.schedule.steps,
            0,
            {task.name: 0},
            [],
        )
        self.rates = [float(g["lr"]) for g in parameter_groups(self.encoder, self.tasks, config)]
        self.cues.start(self.rates)
        self.stuck.zero_()
        self.note = None
        self.learners.train()
        self.scaler = self._make_scaler()
        if self.stepper is not None:
            self.stepper.forget()
        else:  # in place, as captured updates write there
            for state in self.optimizer.state.values():
                for moment in state.values():
                    moment.zero_()
        if self.lean is not None:
            self.lean.stale = True
        if self.graphs is not None:
            self.graphs.choose_widths()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, facts): the weights, the optimizer's moments and where the run stands."""
        self.look()
        tensors = {f"learners/{key}": value for key, value in self.learners.state_dict().items()}
        for index, parameter in enumerate(self.parameters):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{index}/{key}"] = torch.as_tensor(value)
        facts = {"number": self.number, "taken": self.taken, "scaler": self.scaler.state_dict()}
        return tensors, facts

    def load_state(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Take up a run where `state` left it."""
        prefix = "learners/"
        own = {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        self.learners.load_state_dict(own)
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer/"):
                _, index, name = key.split("/")
                moments.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.number = facts["number"]
        self.taken = dict(facts["taken"])
        self.cues.attach(self.optimizer.param_groups)
        if self.stepper is not None:
            self.stepper.attach()
        if self.lean is not None:
            self.lean.stale = True
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(facts["scaler"])


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
    tell: Callable[[str], None] = lambda line: None,
) -> Training:
    """Train by iterating over the result; every iteration is one update and gives a Step.

    `schedule` says whose turn it is (default: every task, in every update). `combine` makes one gradient of those that
    the tasks of an update have for the encoder (default: their sum); heads and what objectives own have theirs alone.
    """
    return Training(
        encoder, tasks, config, world=world, schedule=schedule, combine=combine, tell=tell
    )


def choose_precision(asked: str, device: torch.device) -> str:
    if asked == "auto":
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if launcher in _DTYPES:
            return launcher
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if asked == "fp16" and device.type == "cpu":
        raise ConfigError("train.precision is fp16, which a CPU cannot train in; use bf16 or fp32")
    return asked


@contextlib.contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Inside, kernels that add in random order are avoided, as a GPU would otherwise use them."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise TrainingError(f"{str(error).split('.')[0]}; set train.deterministic=false") from error
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return (
        isinstance(error, torch.cuda.OutOfMemoryError | MemoryError)
        or "can't allocate memory" in text
        or "out of memory" in text
    )


def _memory_advice(config: TrainConfig, batch: Batch) -> str:
    rows, width = batch.inputs["input_ids"].shape
    return (
        f"memory is full with {rows} texts of up to {width} tokens at once. Lower encoder.max_length or train.batch_size, "
        f"or keep the batch and work through it in parts: train.accumulate={2 * config.accumulate}"
    )
