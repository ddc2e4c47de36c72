"""Fine-tuning time against a plain loop and the Hugging Face Trainer: same model, rows, epochs, batch, precision.

python benchmarks/training.py [--data messages] [--epochs 2] [--out FILE]

Prints a Markdown table with seconds, the ratio, and the accuracy of each side, so that no speed is bought with
quality. Every side runs once before it is timed on little data, so that start-up is not counted. With
CLOSEKNIT_DATA set, --data trec or another name of the catalogue works too.
"""

from __future__ import annotations

import argparse
import platform
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

from closeknit import catalogue
from closeknit.config import RunConfig
from closeknit.data import Examples, few_shot
from closeknit.encoder import default_encoder, quiet_transformers
from closeknit.fitting import fit_model
from closeknit.model import versions

BATCH, LENGTH, RATE = 32, 128, 1e-4


def ours(train: Examples, test: Examples, epochs: int) -> tuple[float, float]:
    settings = {"epochs": epochs, "batch_size": BATCH, "lr": RATE, "precision": "fp32"}
    begun = time.perf_counter()
    model = fit_model(train, RunConfig.from_dict({"encoder": {"max_length": LENGTH}, "train": settings}))
    return time.perf_counter() - begun, model.evaluate(test)["accuracy"]


def peer_model(classes: int) -> Any:
    torch.manual_seed(2)
    with quiet_transformers():
        return AutoModelForSequenceClassification.from_pretrained(default_encoder(), num_labels=classes)


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
    rest = [p for n, p in model.named_parameters() if not n.startswith(("classifier", "bert.pooler"))]
    return [{"params": rest, "lr": RATE}, {"params": head, "lr": 10 * RATE}]


def plain_loop(train: Examples, test: Examples, epochs: int) -> tuple[float, float]:
    classes = train.classes
    tokenizer = AutoTokenizer.from_pretrained(default_encoder())
    collate = DataCollatorWithPadding(tokenizer)
    begun = time.perf_counter()
    model, rows = peer_model(len(classes)), rows_of(tokenizer, train, classes)
    optimizer = torch.optim.AdamW(groups(model), weight_decay=0.01)
    steps = epochs * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    generator = np.random.default_rng(2)
    model.train()
    for _ in range(epochs):
        order = generator.permutation(len(rows))
        for start in range(0, len(order), BATCH):
            loss = model(**collate([rows[i] for i in order[start : start + BATCH]])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return time.perf_counter() - begun, accuracy(model, rows_of(tokenizer, test, classes), collate)


def trainer(train: Examples, test: Examples, epochs: int) -> tuple[float, float]:
    classes = train.classes
    tokenizer = AutoTokenizer.from_pretrained(default_encoder())
    collate = DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        model = peer_model(len(classes))
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=RATE, warmup_steps=0.06,
            weight_decay=0.01, seed=2, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(groups(model), weight_decay=0.01)
        Trainer(
            model, arguments, train_dataset=rows_of(tokenizer, train, classes), data_collator=collate,
            optimizers=(optimizer, None),
        ).train()  # fmt: skip
        seconds = time.perf_counter() - begun
    return seconds, accuracy(model.cpu(), rows_of(tokenizer, test, classes), collate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="messages")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "training.md")
    options = parser.parse_args()
    data = catalogue.load(options.data)
    train, test = data.parts["train"], data.parts["test"]
    little = train.select(few_shot(train.required_labels, 2, seed=0))
    sides = {"Closeknit": ours, "plain PyTorch loop": plain_loop, "Hugging Face Trainer": trainer}
    found = {}
    for name, side in sides.items():
        side(little, little, 1)
        found[name] = side(train, test, options.epochs)
    lines = [
        f"# Fine-tuning {len(train)} {options.data} texts, {options.epochs} epochs of batches of {BATCH}, fp32",
        "",
        "| | seconds | times ours | test accuracy |",
        "|---|---|---|---|",
    ]
    base = found["Closeknit"][0]
    lines += [f"| {name} | {s:.1f} | {s / base:.2f} | {a:.4f} |" for name, (s, a) in found.items()]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    shown = ", ".join(f"{name} {number}" for name, number in versions().items())
    lines += ["", f"all-MiniLM-L6-v2 on {device}, {torch.get_num_threads()} threads; {shown}.", ""]
    print("\n".join(lines))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
