"""Which tasks give a batch to an update, and what an epoch of several tasks is.

A schedule is a function of the update's number alone, so that a run can be resumed at any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from closeknit.errors import ConfigError, did_you_mean
from closeknit.settings import SettingsTable, setting

SCHEDULES = ("together", "mixed", "sequential", "round_robin", "random", "annealed")
SURGERIES = ("none", "pcgrad")
REDUCTIONS = ("sum", "mean")
TURNS = ("batch", "pass")
Plan = Callable[[int], list[npt.NDArray[np.int64]]]  # epoch -> its batches, as row numbers
# Settings that only some schedules read.
_READERS = {
    "order": ("sequential", "round_robin"),
    "turn": ("round_robin",),
    "weights": ("random", "annealed", "mixed"),
    "power": ("random", "mixed"),
    "anneal": ("annealed",),
}
# What tells the random numbers for one purpose from others of the same seed.
_TASK_ORDER = 7
_MIXTURE = 9
_POOL = 8  # mini-batches whose rows are sorted by length together


@dataclass(frozen=True)
class Schedule:
    """`turns(n)` names the tasks of the update that follows n updates.

    An epoch has `per_epoch` updates, the run has `steps`. The loss of an update is the sum of the
    losses of its tasks, or with `mean_of_tasks` their mean.
    """

    per_epoch: int
    steps: int
    turns: Callable[[int], Sequence[str]]
    mean_of_tasks: bool = False


@dataclass(frozen=True)
class ScheduleConfig(SettingsTable, table="schedule"):
    """Whose turn it is, and how the gradients of tasks that share an update are put together.

    together: an update takes a batch of every task. An epoch is a pass over the largest; smaller
        tasks begin again.
    mixed: the rows of an update's batch come from all tasks, and the loss is the mean of the tasks'
        losses. An epoch has as many rows as all tasks together.
    sequential: all epochs of the first task of `order`, then all of the next. An epoch is the run's
        length by `epochs`.
    round_robin: tasks in `order`, in which one may stand more than once. With turn = "batch" they
        change after every update, and an epoch lasts until every task has been passed over; with
        "pass" a turn is a pass over the whole task, and an epoch is one round.
    random: every epoch has as many updates as all tasks have batches, and shuffles them; a task's
        share of them is proportional to its weight times its batches to the `power`: 1 takes every
        batch once, 0 all tasks alike.
    annealed: random, with a power that falls from 1 by `anneal` until the last epoch: large tasks
        first, all alike at the end.
    """

    name: str = setting(
        "random",
        choices=SCHEDULES,
        help="Schedule: which tasks give a mini-batch to an update, and what an epoch is.",
    )
    order: list[str] = setting(
        default_factory=list,
        example='["first", "second"]',
        help="The tasks in order, for `sequential` and `round_robin`. Empty is the order of the file. "
        "A task that is left out is scored but not trained, and has no part in the average that "
        "chooses the best state.",
    )
    turn: str = setting(
        "batch",
        choices=TURNS,
        help="For `round_robin`: whether the task changes after every mini-batch (`batch`) or after a "
        "pass over the whole task (`pass`).",
    )
    weights: dict[str, float] = setting(
        default_factory=dict,
        above=0,
        help="Weights of the tasks in `random`, `annealed` and `mixed`; a task that is not named has "
        "weight 1.",
    )
    power: float = setting(
        1.0,
        at_least=0,
        help="For `random`: a task's share of the updates is proportional to its weight times its "
        "number of mini-batches to this power. 1 takes every mini-batch once, and 0 gives all tasks "
        "the same number. For `mixed` the same holds for the rows of a batch.",
    )
    anneal: float = setting(
        0.8,
        at_least=0,
        at_most=1,
        help="For `annealed`: how far the power falls from 1 until the last epoch.",
    )
    surgery: str = setting(
        "none",
        choices=SURGERIES,
        help="Gradient surgery. `pcgrad` removes from each task's gradient what points against "
        "another task's; with `together` and `mixed` only.",
    )
    surgery_reduction: str = setting(
        "sum",
        since=2,
        choices=REDUCTIONS,
        help="How gradient surgery combines the gradients of the tasks for what they share: their "
        "`sum` or their `mean`.",
    )

    def check_relations(self) -> None:
        """Refuse settings that the chosen schedule does not read."""
        if self.surgery == "none" and self.surgery_reduction != "sum":
            raise ConfigError(
                f"schedule.surgery_reduction is {self.surgery_reduction}, but schedule.surgery is "
                'none; set schedule.surgery to "pcgrad", or leave schedule.surgery_reduction out'
            )
        if self.surgery != "none" and self.name not in ("together", "mixed"):
            raise ConfigError(
                f"schedule.surgery is {self.surgery}, which needs the gradients of all tasks in one update, but "
                f'schedule.name is {self.name}; set schedule.name to "together"'
            )
        for key, readers in _READERS.items():
            if key in self.changed_from_defaults() and self.name not in readers:
                raise ConfigError(f"schedule.{key} is for {_listed(readers)}, not for {self.name}")

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


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b` or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def together(batches: Mapping[str, int], epochs: int) -> Schedule:
    """Every update takes a batch of each task; an epoch is a pass over the largest one."""
    names = tuple(batches)
    longest = max(batches.values())
    return Schedule(longest, epochs * longest, lambda number: names)


def build_schedule(
    config: ScheduleConfig, batches: Mapping[str, int], epochs: int, seed: int
) -> Schedule:
    """The schedule of a run; `batches` says how many batches each task has.

    A `mixed` schedule is made by `Mixture` instead, because it counts rows.
    """
    if config.name == "mixed":
        raise ValueError("the schedule mixed counts rows; make it with Mixture.of(...).schedule()")
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
    orders: dict[int, npt.NDArray[np.int64]] = {}  # epoch -> the task of each update, by its number

    def turns(number: int) -> tuple[str]:
        epoch, place = divmod(number, total)
        if epoch not in orders:
            orders.clear()  # only the current one is kept
            power = config.power
            if config.name == "annealed":
                power = 1.0 - config.anneal * epoch / max(1, epochs - 1)
            counts = _shares_by_power(batches, config.weights, power)
            order = np.random.default_rng((seed, _TASK_ORDER, epoch)).permutation(total)
            orders[epoch] = np.repeat(np.arange(len(names)), counts)[order]
        return (names[orders[epoch][place]],)

    return Schedule(total, epochs * total, turns)


@dataclass(frozen=True)
class Mixture:
    """Which rows of each task meet in each update of the schedule `mixed`.

    Every batch holds the tasks in proportion to the rows that an epoch takes of them, as nearly as
    whole rows allow; which rows these are is drawn at random. A task with fewer rows than an epoch
    has updates takes part in as many updates as it has rows, drawn at random.
    """

    rows: Mapping[str, int]  # that each task has
    counts: Mapping[str, int]  # rows of each task that an epoch takes
    updates: int  # of an epoch
    seed: int

    @staticmethod
    def of(config: ScheduleConfig, rows: Mapping[str, int], batch_size: int, seed: int) -> Mixture:
        """An epoch has as many rows as all tasks together, in batches of this size."""
        config.check(list(rows))
        counts = _shares_by_power(rows, config.weights, config.power).tolist()
        updates = math.ceil(sum(rows.values()) / batch_size)
        return Mixture(rows, dict(zip(rows, counts, strict=True)), updates, seed)

    def per_epoch(self, name: str) -> int:
        """The number of updates of an epoch in which a task has rows."""
        return min(self.updates, self.counts[name])

    def sizes(self, epoch: int) -> npt.NDArray[np.int64]:
        """The rows (T, U) that each task has in each update of an epoch."""
        generator = np.random.default_rng((self.seed, _MIXTURE, epoch))
        order = generator.permutation(self.updates)
        sizes = np.empty((len(self.counts), self.updates), dtype=np.int64)
        place = 0
        for task, count in enumerate(self.counts.values()):
            sizes[task], left_over = divmod(count, self.updates)
            # what is left over goes to the updates that follow those of the task before
            sizes[task, order[(place + np.arange(left_over)) % self.updates]] += 1
            place += left_over
        return sizes

    def plan(self, name: str, lengths: npt.NDArray[np.int64], seed: int) -> Plan:
        """The batches of one task: its rows in the updates that have some, epoch by epoch."""
        task = list(self.counts).index(name)
        count = self.counts[name]
        passes = -(-count // self.rows[name])

        def plan(epoch: int) -> list[npt.NDArray[np.int64]]:
            sizes = self.sizes(epoch)[task]
            sizes = sizes[sizes > 0]
            generator = np.random.default_rng((seed, epoch))
            drawn = [generator.permutation(self.rows[name]) for _ in range(passes)]
            return _dealt(np.concatenate(drawn)[:count], sizes, lengths, generator)

        return plan

    def schedule(self, epochs: int) -> Schedule:
        """The tasks of each update."""
        names = np.array(list(self.counts))
        known: dict[int, npt.NDArray[np.int64]] = {}  # epoch -> sizes

        def turns(number: int) -> Sequence[str]:
            epoch, update = divmod(number, self.updates)
            if epoch not in known:
                known.clear()  # only the current one is kept
                known[epoch] = self.sizes(epoch)
            return tuple(names[known[epoch][:, update] > 0].tolist())

        return Schedule(self.updates, epochs * self.updates, turns, mean_of_tasks=True)


def _dealt(
    order: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> list[npt.NDArray[np.int64]]:
    """The rows in this order as batches of these sizes, with texts of similar length together.

    Rows are sorted by length only inside a pool of a few batches that follow each other.
    """
    batches: list[npt.NDArray[np.int64]] = [order[:0]] * len(sizes)
    start = 0
    for first in range(0, len(sizes), _POOL):
        members = first + generator.permutation(len(sizes[first : first + _POOL]))
        ends = np.cumsum(sizes[members])
        rows = order[start : start + int(ends[-1])]
        rows = rows[np.argsort(-lengths[rows], kind="stable")]
        for member, piece in zip(members.tolist(), np.split(rows, ends[:-1]), strict=True):
            batches[member] = piece
        start += len(rows)
    return batches


def _shares_by_power(
    sizes: Mapping[str, int], weights: Mapping[str, float], power: float
) -> npt.NDArray[np.int64]:
    """What each task gets of the sum of all sizes, in proportion to weight * size ** power."""
    log_sizes = np.log(list(sizes.values()))
    log_weights = np.log([weights.get(name, 1.0) for name in sizes])
    logs = log_weights + power * log_sizes  # logarithms keep a large power finite
    return shares(np.exp(logs - logs.max()), sum(sizes.values()))


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
