"""The number format of a training's forward passes: float32, or half precision under autocast."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import torch
from torch import Tensor

from closeknit.errors import ConfigError

HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The number format (fp32, bf16 or fp16), and the scaler that fp16's small gradients need."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device = device
        self.half: torch.dtype | None = HALF_TYPES.get(name)
        self.scaler = self._new_scaler()

    @property
    def scales_gradients(self) -> bool:
        """Whether losses are scaled before the backward pass, as fp16 needs."""
        return self.scaler.is_enabled()

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Inside, operations compute in half precision where they can; with fp32 nothing
        changes.
        """
        dtype = self.half or torch.float32
        return torch.autocast(self.device.type, dtype, enabled=self.half is not None)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss as the backward pass has to start from it."""
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def restart(self) -> None:
        """Forget what the scaler has learnt, for another run."""
        self.scaler = self._new_scaler()

    def _new_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def choose_precision(
    asked: str, device: torch.device, log: Callable[[str], None] = lambda line: None
) -> str:
    """The format that was asked for, or for `auto` what the launcher or the device says.

    A CPU cannot train in fp16: a run that asks for it is refused, and where only the launcher asks
    for it, `auto` says that it takes fp32.
    """
    if asked == "auto":
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if launcher == "fp16" and device.type == "cpu":
            log("the launcher asks for fp16, which a CPU cannot train in: precision is fp32")
            return "fp32"
        if launcher in HALF_TYPES:
            return launcher
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if asked == "fp16" and device.type == "cpu":
        raise ConfigError("train.precision is fp16, which a CPU cannot train in; use bf16 or fp32")
    return asked
