"""Each named objective at its defaults on 1,000 rows of TREC and of Banking77: one seed, one split.

CLOSEKNIT_DATA=FOLDER python benchmarks/named_objectives.py [--encoder E] [--epochs 10] [--workers
1] [--out FILE]

This checks that no objective is silently broken. It is not a comparison: one run per objective and
data set says little about which objective is better.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import catalogue, split, subset
from closeknit.models.saved_model import versions
from closeknit.objectives import OBJECTIVES

ROWS = 1000
SEED = 2


@dataclass(frozen=True)
class Run:
    """One objective on one data set."""

    data: str
    objective: str
    encoder: str | None
    epochs: int


@dataclass(frozen=True)
class Scores:
    """What a run reached on the test rows, and how long its training took."""

    accuracy: float
    weighted_f1: float
    seconds: float


def scores_of(run: Run) -> Scores:
    """Trains on four fifths of the rows and tests on the rest."""
    torch.set_num_threads(1 if torch.cuda.is_available() else torch.get_num_threads())
    examples = catalogue.load(run.data).training
    examples = examples.select(subset(examples.required_labels, ROWS, SEED))
    train, test = split(examples.required_labels, 0.2, SEED)
    config = RunConfig.from_dict(
        {
            "encoder": {"name": run.encoder},
            "objective": {"name": run.objective},
            "train": {"epochs": run.epochs, "seed": SEED},
        }
    )
    start = time.perf_counter()
    model = ClassifierFit(examples.select(train), config, labels=examples.classes).run()
    seconds = time.perf_counter() - start
    scores = model.evaluate(examples.select(test))
    return Scores(scores["accuracy"], scores["weighted_f1"], seconds)


def table(
    data_sets: Sequence[str],
    objectives: Sequence[str],
    epochs: int,
    scores: dict[tuple[str, str], Scores],
) -> str:
    """The scores as a Markdown page, each accuracy with its difference to the cross-entropy's."""
    headings = [f"{data}: accuracy, weighted F1, difference of accuracy" for data in data_sets]
    lines = [
        f"# Every named objective at its defaults: {ROWS} rows, a fifth of them tested, seed {SEED}, {epochs} epochs",
        "",
        f"| objective | {' | '.join(headings)} |",
        "|---" * (len(data_sets) + 1) + "|",
    ]
    for objective in objectives:
        cells = []
        for data in data_sets:
            own = scores[data, objective]
            difference = 100 * (own.accuracy - scores[data, "cross_entropy"].accuracy)
            cells.append(
                f"{100 * own.accuracy:.1f}, {100 * own.weighted_f1:.1f}, {difference:+.1f}"
            )
        lines.append(f"| `{objective}` | {' | '.join(cells)} |")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    libraries = ", ".join(f"{name} {number}" for name, number in versions().items())
    return "\n".join([*lines, "", f"{device}; {libraries}.", ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", help="names separated by commas; default trec,banking77")
    parser.add_argument("--encoder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "named_objectives.md"
    )
    options = parser.parse_args()
    if options.data is None and not ("CLOSEKNIT_DATA" in os.environ and torch.cuda.is_available()):
        print(
            "named_objectives.py skipped: it needs CLOSEKNIT_DATA and, to take less than hours, a GPU; "
            "--data NAME runs it"
        )
        return
    data_sets = (options.data or "trec,banking77").split(",")
    objectives = [name for name in OBJECTIVES if name != "joint"]
    runs = [
        Run(data, objective, options.encoder, options.epochs)
        for data in data_sets
        for objective in objectives
    ]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        scores = {
            (run.data, run.objective): one
            for run, one in zip(runs, pool.map(scores_of, runs), strict=True)
        }
    page = table(data_sets, objectives, options.epochs, scores)
    print(page)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
