"""Folds x seeds -> Result rows: every objective sees the same rows, folds, heads and batch order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import RunConfig
from .data import Examples, Fingerprint, folds
from .fitting import Fit
from .model import versions
from .progress import follow


@dataclass(frozen=True)
class Result:
    """One run: what was trained on what, and how it scored on rows it never saw."""

    data: str
    size: int
    objective: str
    encoder: str
    seed: int
    fold: int
    folds: int
    weighted_f1: float
    accuracy: float
    macro_f1: float
    seconds: float
    steps: int
    key: str
    options: dict[str, Any]
    versions: dict[str, str]


def cross_validate(
    examples: Examples,
    configs: Mapping[str, RunConfig],
    *,
    k: int = 5,
    seeds: Sequence[int] = (2, 16, 128, 2048),
    results: Path | None = None,
    show: bool = True,
) -> Iterator[Result]:
    """Train and score every configuration on every fold of every seed.

    With `results`, each finished run is a line of that file, and a run that is in it already is
    taken from there instead of being run again.
    """
    done = {result.key: result for result in read_results(results)} if results is not None else {}
    for seed in seeds:
        parts = folds(examples.required_labels, k, seed)
        for fold, (train_rows, test_rows) in enumerate(parts):
            training, testing = examples.select(train_rows), examples.select(test_rows)
            for name, config in configs.items():
                config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
                key = _key(config, training, testing)
                if key not in done:
                    label = f"{name}, seed {seed}, fold {fold + 1} of {k}"
                    result = _run(examples.name, name, config, training, testing, label, show)
                    done[key] = dataclasses.replace(result, seed=seed, fold=fold, folds=k, key=key)
                    if results is not None:
                        append_result(results, done[key])
                yield done[key]


def _run(
    data: str, name: str, config: RunConfig, training: Examples, testing: Examples, label: str, show: bool
) -> Result:
    begun = time.perf_counter()
    fit = Fit(training, config, labels=sorted({*training.classes, *testing.classes}))
    for _ in follow(fit, label, show=show):
        pass
    scores = fit.model.evaluate(testing)
    seconds = time.perf_counter() - begun
    return Result(
        data, len(training) + len(testing), name, fit.model.encoder.name, 0, 0, 0,
        scores["weighted_f1"], scores["accuracy"], scores["macro_f1"], seconds, fit.training.number, "",
        config.to_dict()["objective"], versions(),
    )  # fmt: skip


def _key(config: RunConfig, training: Examples, testing: Examples) -> str:
    """What identifies a run: its whole configuration and its rows."""
    content = [config.to_dict(), dataclasses.asdict(Fingerprint.of(training, testing))]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def append_result(path: Path, result: Result) -> None:
    """Add a line; one that an earlier run left half-written is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(dataclasses.asdict(result)).encode() + b"\n")


def read_results(path: Path) -> list[Result]:
    """The whole lines of a results file; a line that was cut short is passed over."""
    if not path.exists():
        return []
    found: list[Result] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(Result(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return found
