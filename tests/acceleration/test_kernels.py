from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: it comes with torch for GPUs",
)
def test_the_kernels_of_a_gpu_give_the_numbers_of_plain_torch():
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip().endswith("OK"), done.stderr[-2000:]
