"""Learning from a few rows of each class: time and score beside SetFit, same encoder and rows.

CLOSEKNIT_DATA=FOLDER python benchmarks/few_shot.py [--data messages …] [--shots 8] [--seeds 0] [--encoder FOLDER]
    [--only closeknit] [--class-names 0] [--out FILE]
python benchmarks/few_shot.py --together    (what the kept runs of the CPU and of the GPU say together)

Needs `pip install setfit`. SetFit tunes the encoder on pairs of rows, --iterations times two for
every row (20 in its paper), then fits a logistic regression. Closeknit's objective `auto` trains
encoder and classifier at once. Both use the bundled encoder (or --encoder) with pooling by the
mean, and their own defaults; what was tried on these data sets before is told in
docs/results/recipe.md. There are 1,000 test rows at the most. Every run is a line of FILE.jsonl;
runs that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import Examples, catalogue
from closeknit.encoders.loading import default_encoder, quiet_transformers
from closeknit.models.saved_model import versions
from closeknit.studies.statistics import gains_over_data_sets

LENGTH, TESTED = 128, 1000

# -> seconds of training by the clock and of the processors, test accuracy
Side = Callable[[Examples, Examples, int], tuple[float, float, float]]


def closeknit(encoder: str, class_names: int | None) -> Side:
    own = {} if class_names is None else {"class_names": class_names}

    def run(train: Examples, test: Examples, seed: int) -> tuple[float, float, float]:
        settings = {
            "encoder": {"name": encoder, "max_length": LENGTH},
            "objective": {"name": "auto"},
            "train": {"seed": seed, "precision": "fp32", **own},
        }
        begun, used = time.perf_counter(), time.process_time()
        model = ClassifierFit(train, RunConfig.from_dict(settings)).run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter() - begun, time.process_time() - used
        return wall, cpu, model.evaluate(test)["accuracy"]

    return run


def setfit(encoder: str, iterations: int) -> Side:
    from datasets import Dataset, disable_progress_bars
    from setfit import SetFitModel, Trainer, TrainingArguments

    disable_progress_bars()

    def run(train: Examples, test: Examples, seed: int) -> tuple[float, float, float]:
        rows = Dataset.from_dict({"text": train.texts, "label": train.required_labels})
        with tempfile.TemporaryDirectory() as folder, quiet_transformers():
            begun, used = time.perf_counter(), time.process_time()
            model = SetFitModel.from_pretrained(encoder, labels=train.classes)
            model.model_body.max_seq_length = LENGTH
            arguments = TrainingArguments(
                output_dir=folder, num_iterations=iterations, seed=seed, report_to="none",
                save_strategy="no", show_progress_bar=False,
            )  # fmt: skip
            Trainer(model, arguments, train_dataset=rows).train()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            wall, cpu = time.perf_counter() - begun, time.process_time() - used
            found = model.predict(test.texts, show_progress_bar=False)
        right = sum(one == other for one, other in zip(found, test.required_labels, strict=True))
        return wall, cpu, right / len(test)

    return run


def parts(name: str) -> tuple[Examples, Examples]:
    """Rows to draw from, and at most 1,000 others to test on."""
    data, generator = catalogue.load(name), np.random.default_rng(3)
    train, test = data.training, data.parts.get("test")
    if test is None:
        order = generator.permutation(len(train))
        train, test = train.select(np.sort(order[TESTED:])), train.select(np.sort(order[:TESTED]))
    known = set(train.required_labels)  # a class of one row may have it among the test rows
    test = test.select([row for row, label in enumerate(test.required_labels) if label in known])
    if len(test) > TESTED:
        test = test.select(np.sort(generator.permutation(len(test))[:TESTED]))
    return train, test


def drawn(train: Examples, shots: int, seed: int) -> Examples:
    """So many rows of each class, or all there are."""
    names, generator = np.asarray(train.required_labels), np.random.default_rng(seed)
    rows = [
        generator.permutation(np.flatnonzero(names == label))[:shots] for label in np.unique(names)
    ]
    return train.select(np.sort(np.concatenate(rows)))


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["messages"])
    parser.add_argument("--shots", type=int, nargs="+", default=[8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--encoder")
    parser.add_argument(
        "--only", choices=("closeknit", "setfit"), help="train this side; the other's runs are kept"
    )
    parser.add_argument(
        "--class-names", type=int, help="of auto, where another number is to be tried"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--together", action="store_true", help="train nothing; test all kept runs")
    options = parser.parse_args()
    if options.together:
        print(together(f"SetFit, {options.iterations} iterations"))
        return
    encoder = options.encoder or default_encoder()
    peer = f"SetFit, {options.iterations} iterations"
    sides: dict[str, Side] = {}
    if options.only != "setfit":
        names = options.class_names
        side = (
            "Closeknit" if names is None else f"Closeknit, class_names = {names}"
        )  # kept, not in the table
        sides[side] = closeknit(encoder, names)
    if options.only != "closeknit":
        try:
            sides[peer] = setfit(encoder, options.iterations)
        except ImportError as error:
            print(f"few_shot.py skipped: SetFit cannot be imported ({error}); pip install setfit")
            return
    stem = (
        f"few_shot-{Path(encoder).name}" if options.encoder else "few_shot"
    )  # runs of another are others
    out = options.out or Path(__file__).parent / "results" / f"{stem}-{'cuda' if gpu else 'cpu'}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = out.with_suffix(".jsonl")
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done: dict[tuple[Any, ...], dict[str, Any]] = {
        (r["data"], r["shots"], r["seed"], r["side"]): r for r in known
    }
    warm = False
    for shots in options.shots:
        for name in options.data:
            train, test = parts(name)
            for seed in options.seeds:
                for side, work in sides.items():
                    if (name, shots, seed, side) in done:
                        continue
                    if not warm:  # what is loaded once is nobody's time
                        two = np.isin(train.required_labels, train.classes[:2])
                        few = drawn(train.select(np.flatnonzero(two)), 2, 0)
                        for other in sides.values():
                            other(few, few, 0)
                        warm = True
                    rows = drawn(train, shots, seed)
                    wall, cpu, accuracy = work(rows, test, seed)
                    record = {"data": name, "shots": shots, "seed": seed, "side": side, "classes": len(rows.classes),
                              "seconds": wall, "cpu_seconds": cpu, "accuracy": accuracy}  # fmt: skip
                    done[name, shots, seed, side] = record
                    with kept.open("a") as file:
                        file.write(json.dumps(record) + "\n")
                    print(record, file=sys.stderr, flush=True)
    out.write_text(table(list(done.values()), peer, encoder, gpu), encoding="utf-8")
    print(out.read_text())


def ahead(records: list[dict[str, Any]], peer: str) -> dict[tuple[int, str], float]:
    """The mean difference of accuracy for each number of rows and data set, over the draws that
    both sides have.
    """
    accuracy = {(r["shots"], r["data"], r["side"], r["seed"]): r["accuracy"] for r in records}
    draws: dict[tuple[int, str], list[float]] = {}
    for (shots, name, side, seed), peers in accuracy.items():
        own = accuracy.get((shots, name, "Closeknit", seed))
        if side == peer and own is not None:
            draws.setdefault((shots, name), []).append(own - peers)
    return {cell: statistics.mean(values) for cell, values in draws.items()}


def together(peer: str) -> str:
    """The tests over all data sets; those that ran on a GPU, with more draws, count with these runs
    alone.
    """
    results, gains = Path(__file__).parent / "results", dict[tuple[int, str], float]()
    for kind in ("cpu", "cuda"):
        kept = (results / f"few_shot-{kind}.jsonl").read_text().splitlines()
        gains |= ahead([json.loads(line) for line in kept], peer)
    title = "# A few rows of each class: Closeknit's `auto` and SetFit, on all data sets"
    text = "\n".join(
        [title, "", "Runs on a GPU, and on a CPU where there are none.", "", *tested(gains), ""]
    )
    (results / "few_shot.md").write_text(text, encoding="utf-8")
    return text


def tested(gains: dict[tuple[int, str], float]) -> list[str]:
    """The mean over data sets for each number of rows, and whether it may be chance; data sets that
    share texts count once.
    """
    by_shots: dict[str, list[tuple[str, float]]] = {}
    for (shots, name), gain in sorted(gains.items()):
        by_shots.setdefault(str(shots), []).append((name, gain))
    lines = [
        "Points of accuracy that Closeknit is ahead. Data sets that share texts count once; Student's t and Wilcoxon's signed",
        "ranks are over what counts.",
        "",
        "| rows a class | data sets | mean | counted as | mean | 95 % interval | p | p, Holm | Wilcoxon |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in gains_over_data_sets(by_shots):
        plain, test = statistics.mean(gain for _, gain in by_shots[one.objective]), one.gain
        lines.append(
            f"| {one.objective} | {one.data_sets} | {100 * plain:+.2f} | {one.pools} | {100 * test.mean:+.2f} | "
            f"{100 * test.low:+.2f} to {100 * test.high:+.2f} | {test.p_value:.3f} | {one.p_holm:.3f} | {one.p_signed_rank:.3f} |"
        )
    return lines


def table(records: list[dict[str, Any]], peer: str, encoder: str, gpu: bool) -> str:
    lines = [
        "# A few rows of each class: Closeknit's `auto` and SetFit",
        "",
        "The same encoder, rows and test rows (1,000 at the most); means over draws of the rows. Seconds of training"
        + ("." if gpu else ", of the processor."),
        "",
        f"| data | classes | rows a class | draws | accuracy: Closeknit | {peer} | seconds: Closeknit | {peer} | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, shots in sorted(
        {(r["data"], r["shots"]) for r in records}, key=lambda cell: (cell[1], cell[0])
    ):
        own = [r for r in records if (r["data"], r["shots"]) == (name, shots)]
        both = {r["seed"] for r in own if r["side"] == peer} & {
            r["seed"] for r in own if r["side"] == "Closeknit"
        }
        if not both:
            continue

        def mean(
            side: str, key: str, own: list[dict[str, Any]] = own, both: set[int] = both
        ) -> float:
            return statistics.mean(r[key] for r in own if r["side"] == side and r["seed"] in both)

        a, b = mean("Closeknit", "accuracy"), mean(peer, "accuracy")
        clock = "seconds" if gpu else "cpu_seconds"  # the machine may have other work
        s, t = mean("Closeknit", clock), mean(peer, clock)
        lines.append(
            f"| {name} | {own[0]['classes']} | {shots} | {len(both)} | {a:.3f} | {b:.3f} | {s:.1f} | {t:.1f} | {t / s:.2f} |"
        )
    lines += ["", *tested(ahead(records, peer))]
    device = (
        torch.cuda.get_device_name() if gpu else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    )
    others = [name for name in ("setfit", "sentence_transformers") if find_spec(name)]
    shown = versions() | {name: version(name) for name in others}
    made = ", ".join(f"{name} {number}" for name, number in shown.items())
    named = "all-MiniLM-L6-v2" if encoder == default_encoder() else Path(encoder).name
    threads = f", {torch.get_num_threads()} threads" if not gpu else ""
    return "\n".join([*lines, "", f"{named} on {device}{threads}; {made}.", ""])


if __name__ == "__main__":
    main()
