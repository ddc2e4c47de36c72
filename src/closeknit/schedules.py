"""Which tasks give a batch to an update, and what an epoch of several tasks is.

A schedule is a function of the update's number alone, so that a run can be resumed at any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, did_you_mean

SCHEDULES = ("together", "sequential", "round_robin", "random", "annealed")
SURGERIES = ("none", "pcgrad")
TURNS = ("batch", "pass")
_TASK_ORDER = 7  # tells the random numbers for the order of tasks from others of the same seed


@dataclass(frozen=True)
class Schedule:
    """`turns(n)` names the tasks of the update that follows n updates.

    An epoch has `per_epoch` updates, the run has `steps`.
    """

    per_epoch: int
    steps: int
    turns: Callable[[int], Sequence[str]]


@dataclass(frozen=True)
class ScheduleConfig:
    """Whose turn it is, and how the gradients of tasks that share an update are put together.

    together: an update takes a batch of every task. An epoch is a pass over the largest; smaller tasks begin again.
    sequential: all epochs of the first task of `order`, then all of the next. An epoch is the run's length by `epochs`.
    round_robin: tasks in `order`, in which one may stand more than once. With turn = "batch" they change after every
      update, and an epoch lasts until every task has been passed over; with "pass" a turn is a pass over the whole task, and an
      epoch is one round.
    random: every epoch has as many updates as all tasks have batches, and shuffles them; a task's share of them is
      proportional to its weight times its batches to the `power`: 1 takes every batch once, 0 all tasks alike.
    annealed: random, with a power that falls from 1 by `anneal` until the last epoch: large tasks first, all alike at the end.
    """

    name: str = "random"
    order: list[str] = field(
        default_factory=list
    )  # default: the tasks as listed; one left out is not trained
    turn: str = "batch"
    weights: dict[str, float] = field(default_factory=dict)  # of the tasks in random and annealed; default 1
    power: float = 1.0
    anneal: float = 0.8
    surgery: str = "none"  # pcgrad projects away what contradicts another task; with together only

    def __post_init__(self) -> None:
        for key, known in (("name", SCHEDULES), ("turn", TURNS), ("surgery", SURGERIES)):
            value = getattr(self, key)
            if value not in known:
                raise ConfigError(f"schedule.{key} is {value}{did_you_mean(str(value), known)}")
        if self.surgery != "none" and self.name != "together":
            raise ConfigError(
                f"schedule.surgery is {self.surgery}, which needs the gradients of all tasks in one update, but "
                f'schedule.name is {self.name}; set schedule.name to "together"'
            )
        if not (math.isfinite(self.power) and self.power >= 0 and 0 <= self.anneal <= 1):
            raise ConfigError("schedule.power must be 0 or more, schedule.anneal from 0 to 1")
        for key, default, readers in (
            ("order", [], ("sequential", "round_robin")),
            ("turn", ScheduleConfig.turn, ("round_robin",)),
            ("weights", {}, ("random", "annealed")),
            ("power", ScheduleConfig.power, ("random",)),
            ("anneal", ScheduleConfig.anneal, ("annealed",)),
        ):
            if getattr(self, key) != default and self.name not in readers:
                raise ConfigError(f"schedule.{key} is for {' and '.join(readers)}, not for {self.name}")
        for name, weight in self.weights.items():
            good = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not good or not (weight > 0 and math.isfinite(weight)):
                raise ConfigError(f"schedule.weights.{name} is {weight}; it must be a number above 0")

    def check(self, tasks: Sequence[str]) -> None:
        """Refuse names that are no tasks."""
        for key, names in (("order", self.order), ("weights", list(self.weights))):
            for name in names:
                if name not in tasks:
                    raise ConfigError(
                        f"schedule.{key} names {name}, which is no task{did_you_mean(str(name), tasks)}"
                    )
        if self.name == "sequential" and len(set(self.order)) < len(self.order):
            raise ConfigError("schedule.order of a sequential schedule names a task twice")

    def untrained(self, tasks: Sequence[str]) -> list[str]:
        """The tasks that never have a turn."""
        return [name for name in tasks if self.order and name not in self.order]


def together(batches: Mapping[str, int], epochs: int) -> Schedule:
    """Every update takes a batch of each task; an epoch is a pass over the largest one."""
    names = tuple(batches)
    longest = max(batches.values())
    return Schedule(longest, epochs * longest, lambda number: names)


def build_schedule(
    config: ScheduleConfig, batches: Mapping[str, int], epochs: int, seed: int
) -> Schedule:
    """The schedule of a run; `batches` says how many batches each task has."""
    config.check(list(batches))
    order = config.order or list(batches)
    if config.name == "together":
        return together(batches, epochs)
    if config.name == "sequential":
        return _repeated([name for name in order for _ in range(epochs * batches[name])], epochs)
    if config.name == "round_robin":
        if config.turn == "pass":
            once = [name for name in order for _ in range(batches[name])]
        else:
            rounds = max(math.ceil(batches[name] / order.count(name)) for name in order)
            once = order * rounds
        return Schedule(len(once), epochs * len(once), lambda number: (once[number % len(once)],))
    return _drawn(config, batches, epochs, seed)


def _repeated(turns: list[str], epochs: int) -> Schedule:
    """The tasks of a whole run in this order, one per update."""
    return Schedule(len(turns) // epochs, len(turns), lambda number: (turns[number],))


def _drawn(config: ScheduleConfig, batches: Mapping[str, int], epochs: int, seed: int) -> Schedule:
    """Every epoch has as many updates as all tasks have batches, in random order."""
    names = list(batches)
    total = sum(batches.values())
    log_sizes = np.log([batches[name] for name in names])
    log_weights = np.log([config.weights.get(name, 1.0) for name in names])
    orders: dict[int, npt.NDArray[np.int64]] = {}  # epoch -> the task of each update, by its number

    def turns(number: int) -> tuple[str]:
        epoch, place = divmod(number, total)
        if epoch not in orders:
            orders.clear()  # only the current one is kept
            power = config.power
            if config.name == "annealed":
                power = 1.0 - config.anneal * epoch / max(1, epochs - 1)
            logs = log_weights + power * log_sizes  # logarithms keep a large power finite
            counts = shares(np.exp(logs - logs.max()), total)
            order = np.random.default_rng((seed, _TASK_ORDER, epoch)).permutation(total)
            orders[epoch] = np.repeat(np.arange(len(names)), counts)[order]
        return (names[orders[epoch][place]],)

    return Schedule(total, epochs * total, turns)


def shares(weights: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """Whole numbers from 1 on that add up to `total`, in proportion to the weights.

    They are rounded by the method of largest remainders.
    """
    if total < len(weights):
        raise ValueError(f"{total} cannot be divided into {len(weights)} shares of at least 1")
    exact = weights / weights.sum() * total
    counts: npt.NDArray[np.int64] = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() > total:  # what the smallest were given is taken from the largest
        counts[np.argmax(counts)] -= 1
    remainders = exact - counts
    for index in np.argsort(-remainders, kind="stable")[: total - int(counts.sum())]:
        counts[index] += 1
    return counts
