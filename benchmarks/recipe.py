"""What the objective `auto` costs and what its parts are worth, beside cross-entropy.

python benchmarks/recipe.py [--data messages] [--repeats 3] [--out FOLDER]: seconds, by turns; recipe-time-DATA-DEVICE.md
CLOSEKNIT_DATA=FOLDER python benchmarks/recipe.py --parts [--data trec …] [--shots 8] [--draws 4] [--only auto …] [--encoder …]
    [--vary "objective.consistency=1" "train.lr_scale=0.5; train.epochs=12"]
python benchmarks/recipe.py --table FILE.jsonl: the table of kept runs

With --parts variants of the recipe are trained on 1,000 rows of many data sets, or with --shots on
so many of each class, and tested on up to 1,500 others, the same for all variants. This is where
the recipe was chosen; whether it holds is asked by `closeknit compare --config studies/small.toml`,
with cross-entropy tuned inside each training fold. Every run is a line of recipe.jsonl; runs that
are there are not done again. Meant for a GPU: about a quarter of a second a run.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import Examples, catalogue
from closeknit.json_lines import append_json_line, read_json_lines
from closeknit.models.memory import Stock
from closeknit.models.saved_model import versions
from closeknit.studies.jobs import Job
from closeknit.studies.runners import InProcessRunner, threads_per_worker

ROWS, TESTED = 1000, 1500
SETS = "trec mr cr sst2 mrpc sst5 isear empathetic_dialogues goemotions banking77 subj mpqa".split()

Tables = dict[str, dict[str, Any]]


def joint(
    contrast: float = 0.0, consistency: float = 0.0, copies: int = 1, temperature: float = 0.2
) -> dict[str, Any]:
    terms: list[dict[str, Any]] = [{"objective": "CrossEntropy", "weight": 1.0}]
    if contrast:
        terms.append({"objective": "SupCon", "weight": contrast, "temperature": temperature})
    if consistency:
        terms.append({"objective": "Consistency", "weight": consistency})
    return {"name": "joint", "copies": copies, "terms": terms}


def variants(changes: list[str]) -> dict[str, Tables]:
    """Cross-entropy with six settings, the steps to the recipe, and the recipe as it is and with
    these changes.
    """
    mean, small = {"pooling": "mean"}, {"epochs": 0, "batch_size": 0, "lr_scale": 0}
    found: dict[str, Tables] = {
        f"cross_entropy, {rate:g}, {epochs} epochs": {
            "objective": {"name": "cross_entropy"},
            "train": {"lr": rate, "epochs": epochs},
        }
        for rate in (5e-5, 1e-4, 2e-4)
        for epochs in (10, 20)
    }
    for rate in (1e-4, 2e-4):
        found[f"mean pooling, {rate:g}"] = {"encoder": mean, "train": {"lr": rate}}
    steps = {
        "mean pooling, small batches": joint(),
        "and contrast": joint(0.5),
        "two passes": joint(copies=2),
        "two passes, contrast": joint(0.5, copies=2),
        "two passes, consistency": joint(0.0, 4.0, 2),
    }
    for name, objective in steps.items():
        found[name] = {"encoder": mean, "objective": objective, "train": small}
    for change in ["", *changes]:
        tables = tomllib.loads(change.replace(";", "\n"))
        name = f"auto, {change}" if change else "auto"
        found[name] = {**tables, "objective": {"name": "auto", **tables.get("objective", {})}}
    return found


def jobs(
    name: str,
    examples: Examples,
    made: dict[str, Tables],
    draws: int,
    encoder: str | None,
    shots: int,
) -> list[Job]:
    """All runs on a data set, those of one variant after each other, so that they share their
    memory.
    """
    found = []
    for variant, tables in made.items():
        for draw in range(draws):
            order = np.random.default_rng(1000 + draw).permutation(len(examples))
            train, test = order[:ROWS], order[ROWS : ROWS + TESTED]
            if shots:
                names = np.asarray(examples.required_labels)[order]
                train = np.concatenate(
                    [order[names == label][:shots] for label in examples.classes]
                )
                test = np.setdiff1d(order, train, assume_unique=True)
                test = np.random.default_rng(draw).permutation(test)[:TESTED]
            own = {
                "encoder": {"name": encoder, **tables.get("encoder", {})},
                "objective": tables.get("objective", {"name": "cross_entropy"}),
                "train": {"positives": 0, **tables.get("train", {}), "seed": 2 + 14 * draw},
            }
            config = RunConfig.from_dict(own)
            key = f"{name}/{variant}/{draw}" + (f"/{shots}" if shots else "")
            if encoder:  # runs of another are others
                key = f"{Path(encoder).name}/{key}"
            labels = tuple(examples.classes)
            found.append(
                Job(
                    name, len(train), variant, 2 + 14 * draw, draw, train, test, labels, config, key
                )
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="variants whose names begin so")
    parser.add_argument(
        "--vary", nargs="+", default=[], help="settings to try the recipe with, as in TOML"
    )
    parser.add_argument("--table", type=Path)
    parser.add_argument("--encoder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.table:
        print(table(read_json_lines(options.table)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.parts:
        name = (options.data or ["messages"])[0]
        text = times(name, options.repeats, options.encoder)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        (options.out / f"recipe-time-{name}-{device}.md").write_text(text, encoding="utf-8")
        print(text)
        return
    made = {
        name: tables
        for name, tables in variants(options.vary).items()
        if not options.only or any(name.startswith(begin) for begin in options.only)
    }
    stem = f"recipe-{options.shots}" if options.shots else "recipe"
    path = options.out / f"{stem}.jsonl"
    done = {record["key"]: record for record in read_json_lines(path)}
    for name in options.data or SETS:
        examples = catalogue.load(name).training
        wanted = [
            job
            for job in jobs(name, examples, made, options.draws, options.encoder, options.shots)
            if job.key not in done
        ]
        runner = InProcessRunner({name: examples}, threads_per_worker(0))
        of = {job.key: job for job in wanted}
        waiting, finished = list(wanted), 0
        while finished < len(wanted):
            while waiting and runner.capacity > 0:
                runner.submit(waiting.pop(0))
            outcome = runner.next_outcome()
            job, finished = of[outcome.key], finished + 1
            record = {"key": job.key, "shots": options.shots, "data": name, "variant": job.objective, "draw": job.fold,
                      "steps": outcome.steps, "seconds": round(outcome.seconds, 3), "error": outcome.error,
                      **outcome.scores}  # fmt: skip
            append_json_line(path, record)
            done[job.key] = record
        runner.close()
        print(f"{name}: {len(wanted)} runs", file=sys.stderr, flush=True)
    text = table(list(done.values())) + f"\n{machine()}\n"
    (options.out / f"{stem}.md").write_text(text, encoding="utf-8")
    print(text)


def times(name: str, repeats: int, encoder: str | None) -> str:
    """Seconds of training, the sides by turns, each after a run that loads what is loaded once."""
    data = catalogue.load(name)
    order = np.random.default_rng(0).permutation(len(data.training))
    rows, rest = (
        data.training.select(order[:ROWS]),
        data.training.select(order[ROWS : ROWS + TESTED]),
    )
    test = data.parts.get("test", rest)
    sides: dict[str, Tables] = {
        f"cross_entropy, {epochs} epochs": {
            "objective": {"name": "cross_entropy"},
            "train": {"epochs": epochs},
        }
        for epochs in (10, 20)
    } | {"auto": {"objective": {"name": "auto"}}}
    configs = {
        side: RunConfig.from_dict({**tables, "encoder": {"name": encoder}})
        for side, tables in sides.items()
    }
    stock, few = Stock(rows), rows.select(range(32))
    for config in configs.values():
        ClassifierFit(few, config).run()
    found: dict[str, list[tuple[float, float, float]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, config in configs.items():
            begun, used = time.perf_counter(), time.process_time()
            model = ClassifierFit(rows, config, stock=stock).run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            took = time.perf_counter() - begun, time.process_time() - used
            found[side].append((*took, model.evaluate(test)["weighted_f1"]))
    lines = [
        f"# The time that `auto` takes: {len(rows):,} rows of {name}",
        "",
        f"Median of {repeats} runs, by turns; score on {len(test):,} test rows; ratio over 10 epochs of cross-entropy.",
        "",
        "| | seconds (of the processors) | ratio | weighted F1 |",
        "|---|---|---|---|",
    ]
    base = np.median([wall for wall, _, _ in found["cross_entropy, 10 epochs"]])
    for side, runs in found.items():
        wall, cpu, score = (float(np.median(values)) for values in zip(*runs, strict=True))
        lines.append(f"| {side} | {wall:.2f} ({cpu:.2f}) | {wall / base:.2f} | {100 * score:.2f} |")
    return "\n".join([*lines, "", machine(), ""])


def machine() -> str:
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return (
        f"{device}; " + ", ".join(f"{name} {number}" for name, number in versions().items()) + "."
    )


def table(records: Iterable[dict[str, Any]]) -> str:
    """How far each variant is from the recipe on the same draws, for each number of rows."""
    blocks: dict[int, dict[tuple[str, str, int], dict[str, Any]]] = {}
    for record in records:
        if record["error"] is None:
            cell = record["data"], record["variant"], record["draw"]
            blocks.setdefault(record.get("shots", 0), {})[cell] = record
    return "\n".join(_block(shots, runs) for shots, runs in sorted(blocks.items()))


def _block(shots: int, runs: dict[tuple[str, str, int], dict[str, Any]]) -> str:
    found: dict[
        tuple[str, str], list[float]
    ] = {}  # (data, variant) -> points from the recipe, a draw each
    levels: dict[str, list[float]] = {}
    for (data, variant, draw), record in runs.items():
        reference = runs.get((data, "auto", draw))
        if reference is None:
            continue
        score, base = 100 * record["weighted_f1"], 100 * reference["weighted_f1"]
        if variant == "auto":
            levels.setdefault(data, []).append(base)
        else:
            found.setdefault((data, variant), []).append(score - base)
    lines = [
        f"# {shots} rows a class" if shots else f"# {ROWS:,} rows",
        "",
        "Weighted F1 of `auto`, and how many points each variant is from it on the same draws; behind the stroke their number.",
        "The mean is over data sets, with its standard error.",
        "",
        "| | " + " | ".join(levels) + " | mean |",
        "|---|" + "---|" * (len(levels) + 1),
    ]
    cells = [f"{np.mean(own):.2f} / {len(own)}" for own in levels.values()]
    whole = float(np.mean([np.mean(own) for own in levels.values()])) if levels else float("nan")
    lines.append(f"| auto | {' | '.join(cells)} | {whole:.2f} |")
    for variant in dict.fromkeys(variant for _, variant in found):
        own = {data: found[data, variant] for data in levels if (data, variant) in found}
        cells = [
            f"{np.mean(own[data]):+.2f} / {len(own[data])}" if data in own else ""
            for data in levels
        ]
        means = [float(np.mean(gaps)) for gaps in own.values()]
        error = f" ± {np.std(means, ddof=1) / len(means) ** 0.5:.2f}" if len(means) > 1 else ""
        lines.append(f"| {variant} | {' | '.join(cells)} | {np.mean(means):+.2f}{error} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
