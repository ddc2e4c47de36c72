"""The same bits for the same seed on a GPU.

By default torch chooses kernels there that may add in random order.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from closeknit.errors import TrainingError


@contextlib.contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Inside, if wanted, torch uses only kernels that give the same bits every time."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings: Any = torch.utils.deterministic  # type: ignore[attr-defined,unused-ignore]
    enabled_before = torch.are_deterministic_algorithms_enabled()
    fill_before = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # no code reads such memory
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise TrainingError(f"{str(error).split('.')[0]}; set train.deterministic=false") from error
    finally:
        torch.use_deterministic_algorithms(enabled_before)
        settings.fill_uninitialized_memory = fill_before
