"""At which rates what learns, and what else differs from update to update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from closeknit.encoder import Encoder
from closeknit.tasks import Task

if TYPE_CHECKING:
    from closeknit.train_config import TrainConfig


def parameter_groups(
    encoder: Encoder, tasks: Sequence[Task], config: TrainConfig
) -> list[dict[str, Any]]:
    """Encoder, heads and what objectives own, each at its rate; biases, norms and proxies undecayed."""
    textcnn = encoder.model_type == "textcnn"
    lr = config.lr if config.lr is not None else config.lr_scale * default_lr(encoder)
    head_lr = config.head_lr if config.head_lr is not None else (lr if textcnn else 10 * lr)
    objective_lr = config.objective_lr if config.objective_lr is not None else head_lr
    groups: list[dict[str, Any]] = []
    seen: set[int] = set()

    def add(name: str, modules: Iterable[nn.Module], rate: float, decay: bool) -> None:
        kept: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for module in modules:
            for parameter in module.parameters():
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    (kept if decay and parameter.dim() > 1 else plain).append(parameter)
        for parameters, amount in ((kept, config.weight_decay), (plain, 0.0)):
            if parameters:
                groups.append(
                    {"params": parameters, "lr": rate, "weight_decay": amount, "name": name}
                )

    # a second encoder among the heads learns at an encoder's rate
    second = [
        module for task in tasks for module in task.heads.modules() if isinstance(module, Encoder)
    ]
    add("encoder", [encoder.trunk, *second], lr, True)
    add("heads", [encoder.top, *(task.heads for task in tasks)], head_lr, True)
    add("objectives", [task.objective for task in tasks], objective_lr, False)
    return groups


def default_lr(encoder: Encoder) -> float:
    """5e-5 for an encoder of 768 dimensions, in inverse proportion for others; TextCNN starts from nothing."""
    return 1e-3 if encoder.model_type == "textcnn" else 5e-5 * 768 / encoder.dim


def rate_factor(done: int, steps: int, warmup: float, schedule: str) -> float:
    """What the learning rates are multiplied by in the step after `done` ones."""
    rising = math.ceil(warmup * steps)
    if done < rising:
        return (done + 1) / (rising + 1)
    left = (steps - done) / max(1, steps - rising)  # 1 at the top, above 0 in the last step
    if schedule == "linear":
        return left
    return 0.5 * (1.0 - math.cos(math.pi * left)) if schedule == "cosine" else 1.0


class Cues:
    """What differs from update to update besides the rows: learning rates, the progress of the training, the seed.

    On a GPU they lie on the device, always in the same place, and are written there before an update.
    """

    def __init__(self, rates: Sequence[float], device: torch.device) -> None:
        self.plain = list(rates)
        self.base = torch.tensor(self.plain, dtype=torch.float32, device=device)
        self.rates, self.factor = self.base.clone(), torch.ones((), device=device)
        self.seed = torch.zeros((), dtype=torch.int64, device=device)
        self.progress: float | Tensor = (
            torch.zeros((), device=device) if device.type == "cuda" else 0.0
        )

    def start(self, rates: Sequence[float]) -> None:
        """Other rates, in the same place."""
        self.plain = list(rates)
        self.base.copy_(torch.tensor(self.plain, dtype=torch.float32))

    def attach(self, groups: list[dict[str, Any]]) -> None:
        """Let these parameter groups read their rates where they lie on the device."""
        if isinstance(self.progress, Tensor):
            for group, rate in zip(groups, self.rates, strict=True):
                group["lr"] = rate

    def give(self, factor: float, progress: float, seed: int, groups: list[dict[str, Any]]) -> None:
        if isinstance(self.progress, Tensor):
            self.factor.fill_(factor)
            self.progress.fill_(progress)
            self.seed.fill_(seed)
        else:
            self.progress = progress
            for group, rate in zip(groups, self.plain, strict=True):
                group["lr"] = rate * factor

    def set_rates(self) -> None:
        """The rates of this update, where they lie on the device."""
        if isinstance(self.progress, Tensor):
            torch.mul(self.base, self.factor, out=self.rates)
