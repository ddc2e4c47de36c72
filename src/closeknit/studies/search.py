"""Which settings to try next, and which one to choose, from scores alone.

A search is a generator: it yields a list of candidates, receives their scores, and returns the
options that it chose. Scores that were kept in a file can be sent again, so that an interrupted
search resumes and makes the same choice.
"""

from __future__ import annotations

import importlib.resources
import itertools
import math
import tomllib
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from closeknit.errors import ConfigError, MissingExtra, did_you_mean
from closeknit.settings import SettingsTable, setting

Options = dict[str, Any]
Space = Mapping[str, Any]  # setting -> list of values, or {low, high, log}
METHODS = ("tpe", "random", "halving", "grid")


@dataclass(frozen=True)
class Candidate:
    """A setting that is to be scored on one split of the rows."""

    number: int  # of the setting in its search
    options: Options
    split: int
    stage: int = 0


Search = Generator[list[Candidate], list[float], Options]


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


# ---------------------------------------------------------------- search spaces


def named_space(name: str, objective: str) -> Space:
    """The settings that a space of `spaces.toml` has for an objective."""
    spaces = known_spaces()
    if name not in spaces:
        raise ConfigError(f"unknown search space {name}{did_you_mean(name, spaces)}")
    default = spaces["default"]
    fallback: Space = {key: value for key, value in default["cross_entropy"].items() if "." in key}
    space: Space = spaces[name].get(objective) or default.get(objective, fallback)
    return space


def known_spaces() -> dict[str, dict[str, Any]]:
    """The spaces of `spaces.toml`: name -> objective -> settings."""
    file = importlib.resources.files("closeknit.studies").joinpath("spaces.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def check_space(space: Space, where: str) -> None:
    """Refuse values that are neither a list with values nor a range with two ends."""
    if not space:
        raise ConfigError(f"{where} is empty: it names no setting to search")
    for name, values in space.items():
        if isinstance(values, Mapping):
            _check_range(values, f"{where}.{name}")
        elif not isinstance(values, list) or not values:
            raise ConfigError(f"{where}.{name} is {values!r}; give a list of values, or a range")


def _check_range(values: Mapping[str, Any], where: str) -> None:
    low, high = values.get("low"), values.get("high")
    unknown = values.keys() - {"low", "high", "log"}
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    if unknown or not numbers or not low < high or (values.get("log") and low <= 0):  # type: ignore[operator]
        raise ConfigError(
            f"{where} is {dict(values)}; write a range as {{low = 0.05, high = 0.7, log = true}}"
        )


def grid_size(space: Space) -> int:
    """The number of settings in a grid; a range has no grid and is refused."""
    for name, values in space.items():
        if isinstance(values, Mapping):
            raise ConfigError(
                f"the search space has a range for {name}; a grid needs a list of values"
            )
    return math.prod(len(values) for values in space.values())


# ---------------------------------------------------------------- the search


def search(space: Space, config: SearchConfig, splits: int, seed: int) -> Search:
    """Search for the setting with the best mean score over the splits; of equals the first wins.

    Except in a grid, the default settings (no option changed) are tried first, in addition to those
    of the space.
    """
    if config.method == "tpe":
        return _tpe(space, config, splits, seed)
    if config.method == "grid":
        names = list(space)
        grid_size(space)
        settings = [
            dict(zip(names, row, strict=True)) for row in itertools.product(*space.values())
        ]
        return _try_all(settings, splits)
    settings = _random_settings(space, _settings_to_try(config, space), seed)
    if config.method == "halving":
        return _halving(settings, splits, config.keep)
    return _try_all(settings, splits)


def max_candidates(config: SearchConfig, space: Space, splits: int) -> int:
    """The largest number of candidates that a search can ask for; used to estimate the time
    left.
    """
    if config.method == "grid":
        return grid_size(space) * splits
    settings = _settings_to_try(config, space)
    if config.method == "halving":
        stages = _halving_stages(settings, splits, config.keep)
        return sum(amount * (end - start) for amount, start, end in stages)
    return settings * splits


def _settings_to_try(config: SearchConfig, space: Space) -> int:
    """As many settings as asked for, but not more than the grid and the defaults have."""
    if any(isinstance(values, Mapping) for values in space.values()):
        return config.trials
    return min(config.trials, grid_size(space) + 1)


def _random_settings(space: Space, amount: int, seed: int) -> list[Options]:
    """The defaults, then random settings without repetition; fewer if the space has fewer."""
    generator = np.random.default_rng((seed, 0x5EA))
    settings: list[Options] = [{}]
    repetitions = 0  # consecutive draws of settings that were drawn before
    while len(settings) < amount and repetitions < 100 + 20 * len(settings):
        drawn = {name: _draw(values, generator) for name, values in space.items()}
        if drawn in settings:
            repetitions += 1
        else:
            repetitions = 0
            settings.append(drawn)
    return settings


def _draw(values: Any, generator: np.random.Generator) -> Any:
    """A value of a list, or a number of a range."""
    if not isinstance(values, Mapping):
        return values[int(generator.integers(len(values)))]
    low, high = values["low"], values["high"]
    if isinstance(low, int) and isinstance(high, int):
        if values.get("log"):  # each whole number n gets the interval from log(n) to log(n + 1)
            drawn = math.exp(generator.uniform(math.log(low), math.log(high + 1)))
            return min(high, int(drawn))
        return int(generator.integers(low, high + 1))
    if values.get("log"):
        return _four_digits(math.exp(generator.uniform(math.log(low), math.log(high))))
    return _four_digits(generator.uniform(low, high))


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")


# ---------------------------------------------------------------- methods


def _best(scores: Sequence[Sequence[float]]) -> int:
    """The position of the best mean score."""
    means = [sum(of_setting) / len(of_setting) for of_setting in scores]
    return means.index(max(means))


def _try_all(settings: Sequence[Options], splits: int) -> Search:
    """Score every setting on every split."""
    candidates = [
        Candidate(number, options, split)
        for number, options in enumerate(settings)
        for split in range(splits)
    ]
    scores = yield candidates
    by_setting = [scores[start : start + splits] for start in range(0, len(scores), splits)]
    return settings[_best(by_setting)]


def _halving_stages(settings: int, splits: int, keep: int) -> list[tuple[int, int, int]]:
    """For each stage: the number of settings left, its first split, and the end of its splits."""
    stages: list[tuple[int, int, int]] = []
    start, end = 0, 1
    while start < splits:
        end = min(end, splits)
        stages.append((settings, start, end))
        start, end = end, end * keep
        settings = max(1, -(-settings // keep))
    return stages


def _halving(settings: Sequence[Options], splits: int, keep: int) -> Search:
    """Score settings in stages, of which each keeps the best 1/`keep` and takes more splits.

    With `keep` = 3: all settings on one split, the best third on the next two splits, the best
    ninth on the next six.
    """
    left = list(range(len(settings)))
    scores: list[list[float]] = [[] for _ in settings]

    def rank(number: int) -> tuple[float, int]:
        return -sum(scores[number]) / max(1, len(scores[number])), number

    for stage, (amount, start, end) in enumerate(_halving_stages(len(settings), splits, keep)):
        left = sorted(left, key=rank)[:amount]
        candidates = [
            Candidate(number, settings[number], split, stage)
            for number in sorted(left)
            for split in range(start, end)
        ]
        received = yield candidates
        for candidate, score in zip(candidates, received, strict=True):
            scores[candidate.number].append(score)
    left.sort()
    return settings[left[_best([scores[number] for number in left])]]


def _tpe(space: Space, config: SearchConfig, splits: int, seed: int) -> Search:
    """Tree-structured Parzen estimators (Optuna), which ask for a batch of settings at a time.

    A setting whose mean score on its first splits is below the median is given up.
    """
    optuna = _import_optuna()
    optuna_study = _optuna_study(optuna, config, seed)
    distributions = {name: _distribution(optuna, values) for name, values in space.items()}
    settings: list[Options] = [{}]
    complete: dict[int, list[float]] = {}  # number of a setting -> its scores on all splits
    complete[0] = yield [Candidate(0, {}, split) for split in range(splits)]
    wanted = _settings_to_try(config, space)
    while len(settings) < wanted:
        batch = range(len(settings), min(len(settings) + config.batch, wanted))
        with _without_warnings():
            asked = {number: optuna_study.ask(distributions) for number in batch}
        settings += [_rounded(trial.params) for trial in asked.values()]
        scores: dict[int, list[float]] = {number: [] for number in batch}
        alive = list(batch)
        for split in range(splits):
            if not alive:
                break
            received = yield [Candidate(number, settings[number], split, split) for number in alive]
            for number, score in zip(alive, received, strict=True):
                scores[number].append(score)
                asked[number].report(sum(scores[number]) / len(scores[number]), split)
            if split + 1 < splits:
                alive = [number for number in alive if not asked[number].should_prune()]
        for number in batch:
            if number in alive:
                complete[number] = scores[number]
                optuna_study.tell(asked[number], sum(scores[number]) / splits)
            else:
                optuna_study.tell(asked[number], state=optuna.trial.TrialState.PRUNED)
    numbers = sorted(complete)
    return settings[numbers[_best([complete[number] for number in numbers])]]


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtra("searching with tpe (random and halving need none)", "search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _optuna_study(optuna: Any, config: SearchConfig, seed: int) -> Any:
    with _without_warnings():
        sampler = optuna.samplers.TPESampler(
            seed=seed % 2**32, n_startup_trials=max(4, config.trials // 4), constant_liar=True
        )
        pruner = optuna.pruners.MedianPruner(n_startup_trials=config.batch)
        return optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide Optuna's warnings that some of its options are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _distribution(optuna: Any, values: Any) -> Any:
    if not isinstance(values, Mapping):
        return optuna.distributions.CategoricalDistribution(values)
    low, high = values["low"], values["high"]
    log = bool(values.get("log"))
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, log=log)
    return optuna.distributions.FloatDistribution(low, high, log=log)


def _rounded(options: Mapping[str, Any]) -> Options:
    """The options with four digits, which are enough for a searched number."""
    return {
        key: _four_digits(value) if isinstance(value, float) else value
        for key, value in options.items()
    }
