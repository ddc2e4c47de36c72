"""Parameter groups, learning rates and the optimizer of a training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from closeknit.encoders.encoder import Encoder
from closeknit.encoders.loading import has_adapters
from closeknit.training.task import Task

if TYPE_CHECKING:
    from closeknit.training.config import TrainConfig


# The default learning rate of low-rank adapters, as a multiple of that of full fine-tuning.
# Measured on TREC with 400 rows, for all-MiniLM-L6-v2 and gte-small at rank 8 (docs/encoders.md).
LORA_FACTOR = 20


def parameter_groups(
    encoder: Encoder, tasks: Sequence[Task], config: TrainConfig
) -> list[dict[str, Any]]:
    """The parameters of the encoder, of heads and of objectives, each group with its learning rate
    and weight decay.

    Biases, normalisations and the parameters of objectives do not decay.
    """
    lr = config.lr if config.lr is not None else config.lr_scale * default_lr(encoder)
    head_lr = config.head_lr if config.head_lr is not None else _head_lr(encoder, config, lr)
    objective_lr = config.objective_lr if config.objective_lr is not None else head_lr
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()

    def add(name: str, modules: Iterable[nn.Module], rate: float, decay: bool) -> None:
        decayed: list[nn.Parameter] = []
        undecayed: list[nn.Parameter] = []
        for module in modules:
            for parameter in module.parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    group = decayed if decay and parameter.dim() > 1 else undecayed
                    group.append(parameter)
        for parameters, amount in ((decayed, config.weight_decay), (undecayed, 0.0)):
            if parameters:
                groups.append(
                    {"params": parameters, "lr": rate, "weight_decay": amount, "name": name}
                )

    # a second encoder among the heads learns at the encoder's rate
    second = [
        module for task in tasks for module in task.heads.modules() if isinstance(module, Encoder)
    ]
    add("encoder", [encoder.trunk, *second], lr, True)
    add("heads", [encoder.top, *(task.heads for task in tasks)], head_lr, True)
    add("objectives", [task.objective for task in tasks], objective_lr, False)
    return groups


def default_lr(encoder: Encoder) -> float:
    """5e-5 for an encoder of 768 dimensions, in inverse proportion for others; TextCNN, which
    starts untrained, 1e-3.

    Low-rank adapters, which start at zero, learn at LORA_FACTOR times that rate.
    """
    if encoder.model_type == "textcnn":
        return 1e-3
    rate = 5e-5 * 768 / encoder.dim
    return LORA_FACTOR * rate if has_adapters(encoder) else rate


def _head_lr(encoder: Encoder, config: TrainConfig, lr: float) -> float:
    """The rate of the heads where none is given: ten times that of the encoder, for TextCNN the
    same.

    Beside adapters at their default rate the heads learn as in full fine-tuning.
    """
    if encoder.model_type == "textcnn":
        return lr
    if config.lr is None and has_adapters(encoder):
        return 10 * lr / LORA_FACTOR
    return 10 * lr


def rate_factor(done: int, steps: int, warmup: float, schedule: str) -> float:
    """What the learning rates are multiplied by in the step that follows `done` steps."""
    warmup_steps = math.ceil(warmup * steps)
    if done < warmup_steps:
        return (done + 1) / (warmup_steps + 1)
    left = (steps - done) / max(
        1, steps - warmup_steps
    )  # 1 after the warm-up, above 0 in the last step
    if schedule == "linear":
        return left
    return 0.5 * (1.0 - math.cos(math.pi * left)) if schedule == "cosine" else 1.0


def build_optimizer(
    groups: list[dict[str, Any]], values: StepValues, device: torch.device
) -> torch.optim.AdamW:
    """AdamW over these groups, which on a GPU reads its learning rates from the step values."""
    fused = device.type in ("cpu", "cuda")
    optimizer = torch.optim.AdamW(groups, fused=fused, capturable=device.type == "cuda")
    values.attach(optimizer.param_groups)
    return optimizer


class StepValues:
    """What differs from update to update besides the rows: learning rates, progress of the
    training, dropout's seed.

    On a GPU these lie on the device, always in the same memory, and are written there before an
    update.
    """

    def __init__(self, rates: Sequence[float], device: torch.device) -> None:
        self.base_rates = list(rates)
        self.base = torch.tensor(self.base_rates, dtype=torch.float32, device=device)
        self.rates = self.base.clone()
        self.factor = torch.ones((), device=device)
        self.seed = torch.zeros((), dtype=torch.int64, device=device)
        self.on_gpu = device.type == "cuda"
        self.progress: float | Tensor = torch.zeros((), device=device) if self.on_gpu else 0.0

    def restart(self, rates: Sequence[float]) -> None:
        """Take the rates of another run, in the same memory."""
        self.base_rates = list(rates)
        self.base.copy_(torch.tensor(self.base_rates, dtype=torch.float32))

    def attach(self, groups: list[dict[str, Any]]) -> None:
        """Let these parameter groups read their rates where they lie on the device."""
        if self.on_gpu:
            for group, rate in zip(groups, self.rates, strict=True):
                group["lr"] = rate

    def write(
        self, factor: float, progress: float, seed: int, groups: list[dict[str, Any]]
    ) -> None:
        """Set the values of the next update."""
        if isinstance(self.progress, Tensor):
            self.factor.fill_(factor)
            self.progress.fill_(progress)
            self.seed.fill_(seed)
        else:
            self.progress = progress
            for group, rate in zip(groups, self.base_rates, strict=True):
                group["lr"] = rate * factor

    def compute_rates(self) -> None:
        """Compute the rates of this update, where they lie on the device."""
        if self.on_gpu:
            torch.mul(self.base, self.factor, out=self.rates)
