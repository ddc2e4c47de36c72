"""Experiments of the multi-task paper on one machine, several at a time: a results line each, and a
table beside the paper's.

Needs the data sets sst5, cs224n_sts and qqp in the folder that CLOSEKNIT_DATA names: the course's
sentiment and similarity parts as they are; for paraphrases the course's development part
(cs224n_dev) to score on, and other labelled pairs (`--paraphrases`) to train on. Rows that are in
both are left out of training.

    CLOSEKNIT_DATA=data python benchmarks/multitask.py --experiments 1,3,7,12,14 --lr 1e-4 --jobs 6 --out results
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

TASKS = {"sst": "accuracy", "sts": "pearson", "qqp": "accuracy"}
PUBLISHED = {  # development scores of SST-5, STS, QQP and their average
    1: (0.388, -0.009, 0.380, 0.253), 2: (0.327, 0.866, 0.764, 0.652), 3: (0.498, 0.851, 0.874, 0.741),
    4: (0.483, 0.878, 0.810, 0.724), 5: (0.499, 0.875, 0.822, 0.732), 6: (0.454, 0.864, 0.794, 0.704),
    7: (0.491, 0.866, 0.843, 0.733), 8: (0.510, 0.871, 0.851, 0.744), 9: (0.521, 0.875, 0.842, 0.746),
    10: (0.520, 0.870, 0.851, 0.747), 11: (0.521, 0.872, 0.852, 0.748), 12: (0.510, 0.882, 0.876, 0.756),
    13: (0.511, 0.885, 0.883, 0.760), 14: (0.526, 0.879, 0.880, 0.762), 15: (0.508, 0.881, 0.879, 0.756),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", help="numbers with commas between")
    parser.add_argument(
        "--encoder", default="default", help="a hub name or folder; default is the bundled one"
    )
    parser.add_argument("--name", help="what the table calls the encoder")
    parser.add_argument("--seeds", default="2", help="numbers with commas between")
    parser.add_argument(
        "--lr",
        type=float,
        help="of the encoder, heads ten times that; default the paper's 1e-5 for both",
    )
    parser.add_argument(
        "--alone", action="store_true", help="train the tasks of experiment 14 alone, too"
    )
    parser.add_argument(
        "--set", action="append", default=[], help="a setting for all, like train.precision=bf16"
    )
    parser.add_argument(
        "--only", action="append", default=[], help="a setting of one, like 12:train.batch_size=64"
    )
    parser.add_argument("--paraphrases", default="qqp/wang_dev.parquet,qqp/wang_test.parquet")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/multitask"))
    options = parser.parse_args()
    if options.experiments is None or "CLOSEKNIT_DATA" not in os.environ:
        print(
            "multitask.py skipped: it needs CLOSEKNIT_DATA and hours of a GPU; --experiments 1,3,7,12,14 runs it"
        )
        return
    options.out.mkdir(parents=True, exist_ok=True)
    experiments = [int(number) for number in options.experiments.split(",")]
    jobs = [(number, int(seed)) for seed in options.seeds.split(",") for number in experiments]
    results = options.out / "results.jsonl"
    with ThreadPoolExecutor(options.jobs) as pool, results.open("a", encoding="utf-8") as file:
        for lines in pool.map(lambda job: run(*job, options), jobs):
            for line in lines:
                file.write(json.dumps(line) + "\n")
                file.flush()
    print(table([json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]))


def run(number: int, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One experiment with one seed, by the command line; a line for it and one for the tasks
    alone.
    """
    folder = options.out / "models" / f"exp{number:02d}-{seed}-{options.lr or 'paper'}"
    train = json.dumps(options.paraphrases.split(","))
    own = [one.partition(":")[2] for one in options.only if one.startswith(f"{number}:")]
    settings = [
        f'tasks.qqp.data={{train = {train}, validation = "qqp/cs224n_dev.parquet"}}',
        "tasks.sts.empty=drop",
        *options.set,
        *own,
    ]
    command = [sys.executable, "-m", "closeknit", "multitask", f"exp{number:02d}", "--data", "sts=cs224n_sts",
               "--out", str(folder), "--seed", str(seed), "--overwrite", "--json"]  # fmt: skip
    if options.encoder != "default":
        command += ["--encoder", options.encoder]
    if options.lr:
        command += ["--lr", str(options.lr)]
    alone = options.alone and number == 14
    command += ["--alone"] if alone else []
    command += [part for setting in settings for part in ("--set", setting)]
    begun = time.perf_counter()
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    with (options.out / f"exp{number:02d}-{seed}.log").open("w") as log:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    if done.returncode:
        last = (options.out / f"exp{number:02d}-{seed}.log").read_text().splitlines()[-1:]
        print(f"experiment {number}, seed {seed} failed: {' '.join(last)}", file=sys.stderr)
        return []
    metrics = json.loads(done.stdout)
    seconds = round(time.perf_counter() - begun, 1)
    print(
        f"experiment {number}, seed {seed}: {metrics['validation']['average']:.4f}, {seconds} s",
        file=sys.stderr,
    )
    facts = {
        "encoder": options.name or options.encoder,
        "seed": seed,
        "lr": options.lr or 1e-5,
        "changes": own + options.set,
        "seconds": seconds,
        "paraphrases": options.paraphrases,
    }
    lines = [
        {
            "experiment": str(number),
            **facts,
            **scores(metrics),
            "history": metrics["history"],
            "rows": metrics["rows"],
        }
    ]
    if alone:
        single = {
            part: {name: own[part] for name, own in metrics["alone"].items() if part in own}
            for part in ("validation", "test")
        }
        lines.append({"experiment": "alone", **facts, **scores(single)})
    return lines


def scores(metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Each task's metric on its validation and test part."""
    found: dict[str, dict[str, float]] = {}
    for part in ("validation", "test"):
        own = metrics.get(part, {})
        found[part] = {name: own[name][measure] for name, measure in TASKS.items() if name in own}
        if len(found[part]) == len(TASKS):
            found[part]["average"] = float(np.mean(list(found[part].values())))
    return found


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Mean scores of the seeds, each experiment beside the paper's."""
    groups: dict[tuple[str, str, float, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        changes = ", ".join(line["changes"])
        groups[line["encoder"], line["experiment"], line["lr"], changes].append(line)
    rows = [
        "| encoder | experiment | lr | changes | seeds | SST-5 | STS | QQP | average | paper: SST-5 | STS | QQP | average "
        "| test: SST-5 | STS | seconds |",
        "|---" * 16 + "|",
    ]
    for (encoder, experiment, lr, changes), own in groups.items():
        seen = [np.mean([line["validation"][key] for line in own]) for key in (*TASKS, "average")]
        spread = (
            np.std([line["validation"]["average"] for line in own], ddof=1) if len(own) > 1 else 0.0
        )
        tested = [np.mean([line["test"][key] for line in own]) for key in ("sst", "sts")]
        paper = PUBLISHED[int(experiment)] if experiment.isdigit() else ()
        cells = [
            encoder,
            experiment,
            f"{lr:g}",
            changes,
            str(len(own)),
            *(f"{value:.3f}" for value in seen),
        ]
        if spread:
            cells[-1] += f" ± {spread:.3f}"
        cells += [f"{value:.3f}" for value in paper] or [""] * 4
        cells += [f"{value:.3f}" for value in tested] + [
            f"{np.mean([line['seconds'] for line in own]):.0f}"
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
