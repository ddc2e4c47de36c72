"""Fine-tuning time against a plain loop and the Hugging Face Trainer: same model, rows, epochs,
batch, precision.

python benchmarks/training.py [--data messages] [--epochs 2] [--repeats 1] [--threads 2] [--sides ours trainer]
                              [--out FILE]

Prints a Markdown table with the median seconds of each side, the processor seconds in brackets (on
a machine that is shared they are the steadier figure), the ratios, and the accuracy, so that no
speed is bought with quality. All sides run in turns, after a run on little data, so that start-up
is not counted. The Trainer makes its batches as it does by default: random rows, padded by
DataCollatorWithPadding. With CLOSEKNIT_DATA set, --data takes any name of the catalogue, or mixed:
400 short customer reviews (cr) and 400 film reviews (imdb), cut to 128 tokens, as one task.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import Examples, catalogue, few_shot, subset
from closeknit.encoders.loading import default_encoder, quiet_transformers
from closeknit.models.saved_model import versions

BATCH, LENGTH, RATE = 32, 128, 1e-4
MIXED = ("cr", "imdb")  # short texts and long ones

Times = tuple[float, float]  # by the clock, of the processors


class Timer:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.begun, self.used = time.perf_counter(), time.process_time()

    def read(self) -> Times:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.begun, time.process_time() - self.used


def rows(data: str) -> tuple[Examples, Examples]:
    """(training, test) rows; of mixed data 400 and 200 of each kind."""
    if data != "mixed":
        found = catalogue.load(data)
        return found.training, found.parts["test"]
    train, test = Examples([], labels=[]), Examples([], labels=[])
    for name in MIXED:
        whole = catalogue.load(name).training
        drawn = whole.select(subset(whole.required_labels, 600, 2))
        tested = subset(drawn.required_labels, 200, 2)
        kept = np.setdiff1d(np.arange(600), tested)
        train, test = joined(train, drawn.select(kept)), joined(test, drawn.select(tested))
    return train, test


def joined(first: Examples, second: Examples) -> Examples:
    return Examples(
        [*first.texts, *second.texts], labels=[*first.required_labels, *second.required_labels]
    )


def ours(train: Examples, test: Examples, epochs: int, seed: int) -> tuple[Times, float]:
    settings = {
        "epochs": epochs,
        "batch_size": BATCH,
        "lr": RATE,
        "precision": "fp32",
        "seed": seed,
    }
    timer = Timer()
    model = ClassifierFit(
        train, RunConfig.from_dict({"encoder": {"max_length": LENGTH}, "train": settings})
    ).run()
    return timer.read(), model.evaluate(test)["accuracy"]


def peer_model(classes: int, seed: int) -> Any:
    torch.manual_seed(seed)
    with quiet_transformers():
        return AutoModelForSequenceClassification.from_pretrained(
            default_encoder(), num_labels=classes
        )


def rows_of(tokenizer: Any, examples: Examples, classes: list[str]) -> list[dict[str, Any]]:
    made = tokenizer(examples.texts, truncation=True, max_length=LENGTH)
    labels = [classes.index(label) for label in examples.required_labels]
    return [{"input_ids": ids, "attention_mask": mask, "labels": label}
            for ids, mask, label in zip(made["input_ids"], made["attention_mask"], labels, strict=True)]  # fmt: skip


def accuracy(model: Any, rows: list[dict[str, Any]], collate: Any) -> float:
    model.eval()
    right = 0
    with torch.inference_mode():
        for start in range(0, len(rows), 64):
            batch = collate(rows[start : start + 64])
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(-1) == labels).sum())
    return right / len(rows)


def groups(model: Any) -> list[dict[str, Any]]:
    """The same rates as ours: the classifier learns ten times as fast as the encoder."""
    head = [p for n, p in model.named_parameters() if n.startswith(("classifier", "bert.pooler"))]
    rest = [
        p for n, p in model.named_parameters() if not n.startswith(("classifier", "bert.pooler"))
    ]
    return [{"params": rest, "lr": RATE}, {"params": head, "lr": 10 * RATE}]


def plain_loop(train: Examples, test: Examples, epochs: int, seed: int) -> tuple[Times, float]:
    classes = train.classes
    tokenizer = AutoTokenizer.from_pretrained(default_encoder())
    collate = DataCollatorWithPadding(tokenizer)
    timer = Timer()
    model, made = peer_model(len(classes), seed), rows_of(tokenizer, train, classes)
    optimizer = torch.optim.AdamW(groups(model), weight_decay=0.01)
    steps = epochs * -(-len(made) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    generator = np.random.default_rng(seed)
    model.train()
    for _ in range(epochs):
        order = generator.permutation(len(made))
        for start in range(0, len(order), BATCH):
            loss = model(**collate([made[i] for i in order[start : start + BATCH]])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return timer.read(), accuracy(model, rows_of(tokenizer, test, classes), collate)


def trainer(train: Examples, test: Examples, epochs: int, seed: int) -> tuple[Times, float]:
    classes = train.classes
    tokenizer = AutoTokenizer.from_pretrained(default_encoder())
    collate = DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        timer = Timer()
        model = peer_model(len(classes), seed)
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=RATE, warmup_steps=0.06,
            weight_decay=0.01, seed=seed, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(
            groups(model), weight_decay=0.01, fused=True
        )  # the Trainer's default
        Trainer(
            model, arguments, train_dataset=rows_of(tokenizer, train, classes), data_collator=collate,
            optimizers=(optimizer, None),
        ).train()  # fmt: skip
        times = timer.read()
    return times, accuracy(model.cpu(), rows_of(tokenizer, test, classes), collate)


SIDES = {
    "ours": ("Closeknit", ours),
    "plain": ("plain PyTorch loop", plain_loop),
    "trainer": ("Hugging Face Trainer", trainer),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="messages")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train, test = rows(options.data)
    little = train.select(few_shot(train.required_labels, 2, seed=0))
    sides = {SIDES[name][0]: SIDES[name][1] for name in options.sides}
    for side in sides.values():
        side(little, little, 1, 2)
    found: dict[str, list[tuple[Times, float]]] = {name: [] for name in sides}
    for seed in range(2, 2 + options.repeats):
        for name, side in sides.items():
            found[name].append(side(train, test, options.epochs, seed))
            print(name, found[name][-1], file=sys.stderr, flush=True)
    lines = [
        f"# Fine-tuning on {len(train)} {options.data} texts: {options.epochs} epochs, batches of {BATCH}, fp32",
        "",
        f"Runs in turns, each with a seed of its own: {options.repeats}. Median seconds; ratios: the other side over ours.",
        "",
        "| | seconds (of the processors) | ratio | test accuracy, mean (every run) |",
        "|---|---|---|---|",
    ]
    medians = {
        name: [statistics.median(run[0][i] for run in runs) for i in (0, 1)]
        for name, runs in found.items()
    }
    base = medians["Closeknit"]
    for name, (wall, cpu) in medians.items():
        scores = [score for _, score in found[name]]
        lines.append(
            f"| {name} | {wall:.1f} ({cpu:.1f}) | {wall / base[0]:.2f} ({cpu / base[1]:.2f}) | "
            f"{statistics.mean(scores):.4f} ({', '.join(f'{score:.4f}' for score in scores)}) |"
        )
    gpu = torch.cuda.is_available()
    device = (
        torch.cuda.get_device_name()
        if gpu
        else f"{platform.machine()} CPU, {options.threads} threads"
    )
    shown = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines += ["", f"all-MiniLM-L6-v2 on {device}; {shown}.", ""]
    print("\n".join(lines))
    name = f"training-{options.data}-{'cuda' if gpu else 'cpu'}.md"
    out = options.out or Path(__file__).parent / "results" / name
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
