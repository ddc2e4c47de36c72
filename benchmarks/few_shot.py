"""Learning from a few rows of each class: time and score beside SetFit, same encoder and rows.

python benchmarks/few_shot.py [--data messages] [--shots 8] [--seeds 0 1] [--iterations 5] [--out FILE]

Needs `pip install setfit`. SetFit tunes the encoder on pairs of rows, --iterations times two for every row (its paper:
20, the default on a GPU), then fits a logistic regression. Closeknit trains encoder and classifier at once, with
cross-entropy and with supervised contrast beside it, at its own rates; both pool by the mean. Nothing was chosen on
the test rows.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch

from closeknit import catalogue
from closeknit.config import RunConfig
from closeknit.data import Examples, few_shot
from closeknit.encoder import default_encoder, quiet_transformers
from closeknit.fitting import fit_model
from closeknit.model import versions

BATCH, EPOCHS, LENGTH = 16, 10, 128

# -> seconds of training by the clock and of the processors, test accuracy
Side = Callable[[Examples, Examples, int], tuple[float, float, float]]


def ours(objective: str) -> Side:
    def run(train: Examples, test: Examples, seed: int) -> tuple[float, float, float]:
        settings = {
            "encoder": {"pooling": "mean", "max_length": LENGTH},
            "objective": {"name": objective},
            "train": {"epochs": EPOCHS, "batch_size": BATCH, "seed": seed, "precision": "fp32"},
        }
        begun, used = time.perf_counter(), time.process_time()
        model = fit_model(train, RunConfig.from_dict(settings))
        wall, cpu = time.perf_counter() - begun, time.process_time() - used
        return wall, cpu, model.evaluate(test)["accuracy"]

    return run


def setfit(iterations: int) -> Side:
    from datasets import Dataset, disable_progress_bars
    from setfit import SetFitModel, Trainer, TrainingArguments

    disable_progress_bars()

    def run(train: Examples, test: Examples, seed: int) -> tuple[float, float, float]:
        rows = Dataset.from_dict({"text": train.texts, "label": train.required_labels})
        with tempfile.TemporaryDirectory() as folder, quiet_transformers():
            begun, used = time.perf_counter(), time.process_time()
            model = SetFitModel.from_pretrained(default_encoder(), labels=train.classes)
            model.model_body.max_seq_length = LENGTH
            arguments = TrainingArguments(
                output_dir=folder, batch_size=BATCH, num_iterations=iterations, seed=seed, report_to="none",
                save_strategy="no", show_progress_bar=False,
            )  # fmt: skip
            Trainer(model, arguments, train_dataset=rows).train()
            wall, cpu = time.perf_counter() - begun, time.process_time() - used
            found = model.predict(test.texts, show_progress_bar=False)
        right = sum(one == other for one, other in zip(found, test.required_labels, strict=True))
        return wall, cpu, right / len(test)

    return run


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="messages")
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=20 if gpu else 5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        theirs = setfit(options.iterations)
    except ImportError as error:
        print(f"few_shot.py skipped: SetFit cannot be imported ({error}); pip install setfit")
        return
    sides = {
        "Closeknit, cross_entropy": ours("cross_entropy"),
        "Closeknit, supcon": ours("supcon"),
        f"SetFit, {options.iterations} iterations": theirs,
    }
    data = catalogue.load(options.data)
    train, test = data.training, data.parts["test"]
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
    warm = train.select(few_shot(train.required_labels, 2, seed=0))
    for seed in options.seeds:
        rows = train.select(few_shot(train.required_labels, options.shots, seed=seed))
        for name, side in sides.items():
            if not found[name]:
                side(warm, warm, 0)
            found[name].append(side(rows, test, seed))
            print(name, seed, found[name][-1], file=sys.stderr, flush=True)
    kinds = len(train.classes)
    lines = [
        f"# {options.shots} rows of each of {kinds} classes of {options.data}: Closeknit and SetFit",
        "",
        f"Batches of {BATCH}, fp32; Closeknit {EPOCHS} epochs. Mean of {len(options.seeds)} draws of the rows; "
        f"accuracy on {len(test)} test rows. Ratio: seconds over those of the first line.",
        "",
        "| | seconds (of the processors) | ratio | test accuracy |",
        "|---|---|---|---|",
    ]
    means = {name: [statistics.mean(v) for v in zip(*runs, strict=True)] for name, runs in found.items()}
    base = next(iter(means.values()))
    for name, (wall, cpu, accuracy) in means.items():
        ratio = f"{wall / base[0]:.2f} ({cpu / base[1]:.2f})"
        lines.append(f"| {name} | {wall:.1f} ({cpu:.1f}) | {ratio} | {accuracy:.4f} |")
    device = torch.cuda.get_device_name() if gpu else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    shown = versions() | {name: version(name) for name in ("setfit", "sentence-transformers")}
    lines += [
        "",
        f"all-MiniLM-L6-v2 on {device}; "
        + ", ".join(f"{name} {number}" for name, number in shown.items())
        + ".",
        "",
    ]
    print("\n".join(lines))
    out = options.out or Path(__file__).parent / "results" / f"few_shot-{'cuda' if gpu else 'cpu'}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
