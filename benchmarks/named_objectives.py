"""Every named objective at its defaults on 1,000 rows of TREC and of Banking77: one seed, one split.

CLOSEKNIT_DATA=FOLDER python benchmarks/named_objectives.py [--encoder E] [--epochs 10] [--workers 1] [--out FILE]

A check that nothing is silently broken, not a comparison: one run a cell says little about which is better.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from closeknit.classification.fit import ClassifierFit
from closeknit.config import RunConfig
from closeknit.data import catalogue, split, subset
from closeknit.models.saved_model import versions
from closeknit.objectives import OBJECTIVES

ROWS, SEED = 1000, 2


def run(cell: tuple[str, str, str | None, int]) -> tuple[str, str, float, float, float]:
    data, objective, encoder, epochs = cell
    torch.set_num_threads(1 if torch.cuda.is_available() else torch.get_num_threads())
    rows = catalogue.load(data).training
    rows = rows.select(subset(rows.required_labels, ROWS, SEED))
    kept, tested = split(rows.required_labels, 0.2, SEED)
    config = RunConfig.from_dict(
        {
            "encoder": {"name": encoder},
            "objective": {"name": objective},
            "train": {"epochs": epochs, "seed": SEED},
        }
    )
    begun = time.perf_counter()
    model = ClassifierFit(rows.select(kept), config, labels=rows.classes).run()
    seconds = time.perf_counter() - begun
    scores = model.evaluate(rows.select(tested))
    return data, objective, scores["accuracy"], scores["weighted_f1"], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="names with commas between; default trec,banking77")
    parser.add_argument("--encoder")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "named_objectives.md")
    options = parser.parse_args()
    if options.data is None and not ("CLOSEKNIT_DATA" in os.environ and torch.cuda.is_available()):
        print(
            "named_objectives.py skipped: it needs CLOSEKNIT_DATA, and hours without a GPU; --data NAME runs it"
        )
        return
    sets = (options.data or "trec,banking77").split(",")
    names = [name for name in OBJECTIVES if name != "joint"]
    cells = [(data, name, options.encoder, options.epochs) for data in sets for name in names]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        found = {(data, name): (a, f, s) for data, name, a, f, s in pool.map(run, cells)}
    lines = [
        f"# Every named objective at its defaults: {ROWS} rows, a fifth of them tested, seed {SEED}, {options.epochs} epochs",
        "",
        "| objective | "
        + " | ".join(f"{data}: accuracy, weighted F1, difference of accuracy" for data in sets)
        + " |",
        "|---" * (len(sets) + 1) + "|",
    ]
    for name in names:
        shown = []
        for data in sets:
            accuracy, f1, _ = found[data, name]
            gap = 100 * (accuracy - found[data, "cross_entropy"][0])
            shown.append(f"{100 * accuracy:.1f}, {100 * f1:.1f}, {gap:+.1f}")
        lines.append(f"| `{name}` | " + " | ".join(shown) + " |")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines += [
        "",
        f"{device}; " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
        "",
    ]
    print("\n".join(lines))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
