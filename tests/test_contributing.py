"""The diffs in CONTRIBUTING.md fit the source, and do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIFFS = re.findall(
    r"^```diff (\S+)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S
)

SETTING = """
from closeknit.training.config import TrainConfig

assert TrainConfig().adam_epsilon == 1e-8
assert "adam_epsilon" not in TrainConfig().key_content()
assert TrainConfig(adam_epsilon=1e-6).key_content()["adam_epsilon"] == 1e-6
try:
    TrainConfig.from_dict({"adam_epsilon": 0.0})
except Exception as error:
    assert "train.adam_epsilon" in str(error)
else:
    raise AssertionError("a wrong value was accepted")
"""
ENGINE = """
from types import SimpleNamespace
import torch
from closeknit.acceleration import engine

engine.choose_updater = lambda parts, copies: None
module = torch.nn.Linear(2, 1)
precision = SimpleNamespace(device=torch.device("mps"), half=None)
parts = SimpleNamespace(precision=precision, optimizer=torch.optim.AdamW(module.parameters()))
chosen = engine.choose_engine(parts, module, padded_left=False)
assert type(chosen).__name__ == "MpsEngine"
module(torch.ones(1, 2)).sum().backward()
chosen.clear_gradients()
assert module.weight.grad is not None and not module.weight.grad.any()
"""


def patched(folder: Path, diffs: list[tuple[str, str]]) -> None:
    """Copies the source into a folder and applies the diffs; their context must occur once."""
    shutil.copytree(
        ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "bundled")
    )
    for name, diff in diffs:
        lines = diff.splitlines()
        old = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
        new = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
        path = folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"CONTRIBUTING.md: this is not in {name}:\n{old}"
        path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("src/closeknit/training/config.py", SETTING),
        ("src/closeknit/acceleration/engine.py", ENGINE),
    ],
)
def test_the_diffs_of_the_worked_examples_work(tmp_path, file, code):
    diffs = [(name, diff) for name, diff in DIFFS if name == file]
    assert diffs
    patched(tmp_path, diffs)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_there_are_no_other_diffs():
    assert {name for name, _ in DIFFS} == {
        "src/closeknit/training/config.py",
        "src/closeknit/acceleration/engine.py",
    }
