"""Which settings to try next, and which one to keep. Knows nothing of models: it is told scores.

A search is a generator: it yields a list of tries, is sent their scores, and returns the options it chose. Scores of
earlier tries, kept in a file, can be sent again, so an interrupted search goes on to the same choice.
"""

from __future__ import annotations

import importlib.resources
import itertools
import math
import tomllib
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from closeknit.errors import ConfigError, MissingExtra, did_you_mean
from closeknit.settings import SettingsTable, setting

Options = dict[str, Any]
Space = Mapping[str, Any]  # setting -> list of values, or {low, high, log}
METHODS = ("tpe", "random", "halving", "grid")


@dataclass(frozen=True)
class Try:
    """One setting to be scored on one split of the rows."""

    number: int
    options: Options
    split: int
    stage: int = 0


Steps = Generator[list[Try], list[float], Options]


@dataclass(frozen=True)
class SearchConfig(SettingsTable, table="search"):
    """How settings are searched for.

    tpe and halving give up early on settings that do badly on the first validation parts. tpe asks
    for `batch` settings at a time, however many workers there are, so that its choice does not
    depend on their number.
    """

    method: str = setting(
        "tpe",
        choices=METHODS,
        help="How settings are searched for: by tree-structured Parzen estimators (`tpe`, extra "
        "`search`), at random (`random`), at random with the worse ones given up in stages "
        "(`halving`), or all of them (`grid`).",
    )
    trials: int = setting(
        20, at_least=1, help="Settings that are tried; `grid` tries the whole space instead."
    )
    splits: int = setting(
        0,
        at_least=0,
        help="Validation parts that a setting is scored on at most. 0 is 3 for `tpe` and `halving` "
        "and 1 for the others.",
    )
    keep: int = setting(
        3, at_least=2, help="For `halving`: each stage keeps the best one in this many settings."
    )
    batch: int = setting(4, at_least=1, help="For `tpe`: settings that are tried at a time.")
    space: str = setting(
        "default",
        help="Name of the search space: `default`, or `paper` for the grid of the TripleEntropy paper.",
    )

    @property
    def parts(self) -> int:
        return self.splits or (3 if self.method in ("tpe", "halving") else 1)


def named_space(name: str, objective: str) -> Space:
    """The settings that a space of `spaces.toml` has for an objective."""
    spaces = known_spaces()
    if name not in spaces:
        raise ConfigError(f"unknown search space {name}{did_you_mean(name, spaces)}")
    fallback: Space = {
        key: value for key, value in spaces["default"]["cross_entropy"].items() if "." in key
    }
    found: Space = spaces[name].get(objective) or spaces["default"].get(objective, fallback)
    return found


def known_spaces() -> dict[str, dict[str, Any]]:
    text = (
        importlib.resources.files("closeknit").joinpath("spaces.toml").read_text(encoding="utf-8")
    )
    return tomllib.loads(text)


def check_space(space: Space, where: str) -> None:
    """Refuse an empty list, a range without ends, or anything else."""
    if not space:
        raise ConfigError(f"{where} is empty: it names no setting to search")
    for name, values in space.items():
        if isinstance(values, Mapping):
            low, high = values.get("low"), values.get("high")
            unknown = values.keys() - {"low", "high", "log"}
            numbers = all(
                isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)
            )
            if unknown or not numbers or not low < high or (values.get("log") and low <= 0):  # type: ignore[operator]
                raise ConfigError(
                    f"{where}.{name} is {dict(values)}; write a range as {{low = 0.05, high = 0.7, log = true}}"
                )
        elif not isinstance(values, list) or not values:
            raise ConfigError(f"{where}.{name} is {values!r}; give a list of values, or a range")


def grid_size(space: Space) -> int:
    """How many settings a grid has; ranges have no grid."""
    for name, values in space.items():
        if isinstance(values, Mapping):
            raise ConfigError(
                f"the search space has a range for {name}; a grid needs a list of values"
            )
    return math.prod(len(values) for values in space.values())


def most_tries(config: SearchConfig, space: Space, parts: int) -> int:
    """The most tries a search can take, for telling how long it may be."""
    if config.method == "grid":
        return grid_size(space) * parts
    settings = _settings_wanted(config, space)
    if config.method == "halving":
        return sum(
            amount * (end - start) for amount, start, end in _stages(settings, parts, config.keep)
        )
    return settings * parts


def search(space: Space, config: SearchConfig, parts: int, seed: int) -> Steps:
    """Look for the setting with the best mean score over `parts` splits; the earliest of equals wins.

    Beside the settings of the space, the defaults (no option changed) are tried first, but not by a grid.
    """
    if config.method == "tpe":
        return _tpe(space, config, parts, seed)
    if config.method == "grid":
        names = list(space)
        grid_size(space)
        settings = [
            dict(zip(names, row, strict=True)) for row in itertools.product(*space.values())
        ]
        return _all(settings, parts)
    settings = _random_settings(space, _settings_wanted(config, space), seed)
    return (
        _halving(settings, parts, config.keep)
        if config.method == "halving"
        else _all(settings, parts)
    )


def _settings_wanted(config: SearchConfig, space: Space) -> int:
    """As many as asked for, but no more than there are: those of the grid and the defaults."""
    if any(isinstance(values, Mapping) for values in space.values()):
        return config.trials
    return min(config.trials, grid_size(space) + 1)


def _random_settings(space: Space, amount: int, seed: int) -> list[Options]:
    """The defaults, then settings drawn at random, no two alike; fewer where there are no more."""
    generator = np.random.default_rng((seed, 0x5EA))
    settings: list[Options] = [{}]
    misses = 0  # draws in a row that were there already
    while len(settings) < amount and misses < 100 + 20 * len(settings):
        drawn = {name: _draw(values, generator) for name, values in space.items()}
        misses = misses + 1 if drawn in settings else 0
        if not misses:
            settings.append(drawn)
    return settings


def _draw(values: Any, generator: np.random.Generator) -> Any:
    if not isinstance(values, Mapping):
        return values[int(generator.integers(len(values)))]
    low, high = values["low"], values["high"]
    if isinstance(low, int) and isinstance(high, int):
        if values.get("log"):  # a number takes the room from its own logarithm to that of the next
            drawn = math.exp(generator.uniform(math.log(low), math.log(high + 1)))
            return min(high, int(drawn))
        return int(generator.integers(low, high + 1))
    if values.get("log"):
        return float(f"{math.exp(generator.uniform(math.log(low), math.log(high))):.4g}")
    return float(f"{generator.uniform(low, high):.4g}")


# ---------------------------------------------------------------- methods


def _best(scores: Sequence[Sequence[float]]) -> int:
    means = [sum(own) / len(own) for own in scores]
    return means.index(max(means))


def _all(settings: Sequence[Options], parts: int) -> Steps:
    tries = [Try(n, options, split) for n, options in enumerate(settings) for split in range(parts)]
    scores = yield tries
    return settings[_best([scores[n * parts : (n + 1) * parts] for n in range(len(settings))])]


def _stages(settings: int, parts: int, keep: int) -> list[tuple[int, int, int]]:
    """(settings left, first split, end of splits) of each stage of halving."""
    stages: list[tuple[int, int, int]] = []
    start, end = 0, 1
    while start < parts:
        end = min(end, parts)
        stages.append((settings, start, end))
        start, end, settings = end, end * keep, max(1, -(-settings // keep))
    return stages


def _halving(settings: Sequence[Options], parts: int, keep: int) -> Steps:
    """All settings on one split, the best third on the next two, the best ninth on the next six, and so on."""
    left = list(range(len(settings)))
    scores: list[list[float]] = [[] for _ in settings]
    for stage, (amount, start, end) in enumerate(_stages(len(settings), parts, keep)):
        left = sorted(left, key=lambda n: (-sum(scores[n]) / max(1, len(scores[n])), n))[:amount]
        tries = [
            Try(n, settings[n], split, stage) for n in sorted(left) for split in range(start, end)
        ]
        found = yield tries
        for one, score in zip(tries, found, strict=True):
            scores[one.number].append(score)
    left.sort()
    return settings[left[_best([scores[n] for n in left])]]


def _tpe(space: Space, config: SearchConfig, parts: int, seed: int) -> Steps:
    """Tree-structured Parzen estimators (Optuna); a setting below the median on its first splits is given up."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("searching with tpe (random and halving need none)", "search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(
            seed=seed % 2**32, n_startup_trials=max(4, config.trials // 4), constant_liar=True
        )
        pruner = optuna.pruners.MedianPruner(n_startup_trials=config.batch)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    distributions = {name: _distribution(optuna, values) for name, values in space.items()}
    settings: list[Options] = [{}]
    whole: dict[int, list[float]] = {}
    whole[0] = yield [Try(0, {}, split) for split in range(parts)]
    wanted = _settings_wanted(config, space)
    while len(settings) < wanted:
        batch = range(len(settings), min(len(settings) + config.batch, wanted))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = {n: study.ask(distributions) for n in batch}
        settings += [_rounded(trial.params) for trial in asked.values()]
        scores: dict[int, list[float]] = {n: [] for n in batch}
        alive = list(batch)
        for split in range(parts):
            if not alive:
                break
            found = yield [Try(n, settings[n], split, split) for n in alive]
            for n, score in zip(alive, found, strict=True):
                scores[n].append(score)
                asked[n].report(sum(scores[n]) / len(scores[n]), split)
            alive = [n for n in alive if split + 1 == parts or not asked[n].should_prune()]
        for n in batch:
            if n in alive:
                whole[n] = scores[n]
                study.tell(asked[n], sum(scores[n]) / parts)
            else:
                study.tell(asked[n], state=optuna.trial.TrialState.PRUNED)
    numbers = sorted(whole)
    return settings[numbers[_best([whole[n] for n in numbers])]]


def _distribution(optuna: Any, values: Any) -> Any:
    if not isinstance(values, Mapping):
        return optuna.distributions.CategoricalDistribution(values)
    low, high, log = values["low"], values["high"], bool(values.get("log"))
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, log=log)
    return optuna.distributions.FloatDistribution(low, high, log=log)


def _rounded(options: Mapping[str, Any]) -> Options:
    """Four digits say all there is to a searched number."""
    return {key: float(f"{v:.4g}") if isinstance(v, float) else v for key, v in options.items()}
