"""A folder of several tasks -> one page: curves, how the gradients agree, single-task against multi-task, mistakes."""

from __future__ import annotations

from pathlib import Path


def write_multitask_report(folder: Path) -> Path:
    raise NotImplementedError
