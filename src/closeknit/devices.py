"""The device that a model is put on."""

from __future__ import annotations

import torch

from closeknit.errors import ModelError


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def existing_device(asked: str | None) -> str:
    device = asked or best_device()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {device} was asked for, but there is no GPU here")
    return device
