"""Time from the shell to the first answer: `closeknit --help`, `closeknit predict` and `closeknit
embed` on one text.

python benchmarks/startup.py [--repeats 3] [--out FILE]

Every command is a new process; the medians stand beside what the libraries alone take: importing
torch, importing the classes of transformers that load an encoder, and loading the same encoder with
them for one text.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import catalogue, few_shot
from closeknit.encoders.loading import default_encoder
from closeknit.models.saved_model import versions

TEXT = "where is my refund"
CLASSES = "from transformers import AutoConfig, AutoModel, AutoTokenizer, BertModel"
ALONE = f"""
import torch
from transformers import AutoModel, AutoTokenizer
source = {default_encoder()!r}
inputs = AutoTokenizer.from_pretrained(source)([{TEXT!r}], return_tensors="pt")
with torch.inference_mode():
    AutoModel.from_pretrained(source)(**inputs)
"""


def train_little(folder: str) -> None:
    """A classifier that has seen two rows of each class."""
    rows = catalogue.load("messages").training
    little = rows.select(few_shot(rows.required_labels, 2, seed=0))
    ClassifierFit(little, RunConfig.from_dict({"train": {"epochs": 1}})).run().save(folder)


def seconds(arguments: list[str], repeats: int) -> tuple[float, float]:
    """Medians by the clock and of the processors, after a first run that warms the disk."""
    wall, used = [], []
    for _ in range(repeats + 1):
        begun, before = time.perf_counter(), os.times()
        subprocess.run(
            [sys.executable, *arguments], input=TEXT, text=True, capture_output=True, check=True
        )
        after = os.times()
        wall.append(time.perf_counter() - begun)
        used.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
    return statistics.median(wall[1:]), statistics.median(used[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "startup.md"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/model"
        train_little(model)
        commands = {
            "`closeknit --help`": ["-m", "closeknit", "--help"],
            "`closeknit predict` on one text": ["-m", "closeknit", "predict", model],
            "`closeknit embed` on one text": [
                "-m",
                "closeknit",
                "embed",
                model,
                "-",
                "--out",
                f"{folder}/v.npy",
            ],
            "Python alone": ["-c", "pass"],
            "`import torch`": ["-c", "import torch"],
            "`import torch, transformers`": ["-c", "import torch, transformers"],
            f"`{CLASSES}`": ["-c", CLASSES],
            "transformers alone: load the same encoder, encode the text": ["-c", ALONE],
        }
        found = {name: seconds(command, options.repeats) for name, command in commands.items()}
    lines = [
        "# From the shell to the first answer",
        "",
        f"Medians of {options.repeats} new processes, after one that is not counted.",
        "",
        "| | seconds | of the processors |",
        "|---|---|---|",
        *(f"| {name} | {wall:.2f} | {used:.2f} |" for name, (wall, used) in found.items()),
        "",
        f"{platform.machine()}, {os.cpu_count()} cores; "
        + ", ".join(f"{name} {number}" for name, number in versions().items())
        + ".",
        "",
    ]
    print("\n".join(lines))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
