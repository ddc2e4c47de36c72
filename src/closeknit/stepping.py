"""FusedAdamW: torch's AdamW as three kernels, from gradients in whatever precision they are; for a GPU with Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn


class FusedAdamW:
    """Clips, checks and applies the gradients of an optimizer's parameters; its moments stay in the optimizer's state.

    `halves` are the half-precision copies of weights, by the weight's id, which are kept up to date. An update that is not
    finite leaves all as it is, sets `stuck`, and so do all that follow until it is 0 again.
    """

    def __init__(
        self,
        optimizer: torch.optim.AdamW,
        rates: Tensor,
        clip: float,
        stuck: Tensor,
        halves: Mapping[int, Tensor],
        half: torch.dtype,
    ) -> None:
        from closeknit.kernels.adamw import BLOCK

        self.optimizer, self.clip = optimizer, clip
        groups = optimizer.param_groups
        self.parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        device = stuck.device
        amount = len(self.parameters)
        self.steps = torch.zeros(amount, device=device)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.variances = [torch.zeros_like(p) for p in self.parameters]
        self.attach()
        sizes = [p.numel() for p in self.parameters]
        stretches = [
            (number << 32) + part
            for number, size in enumerate(sizes)
            for part in range(-(-size // BLOCK))
        ]

        def table(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        def addresses(tensors: list[Tensor]) -> Tensor:
            return table([tensor.data_ptr() for tensor in tensors])

        copies = [halves.get(id(p)) for p in self.parameters]
        self.tables = {
            "stretches": table(stretches),
            "sizes": table(sizes),
            "weights": addresses([*self.parameters]),
            "means": addresses(self.means),
            "variances": addresses(self.variances),
            "halves": table([0 if copy is None else copy.data_ptr() for copy in copies]),
            "groups": table(
                [number for number, group in enumerate(groups) for _ in group["params"]]
            ),
            "decays": torch.tensor(
                [group["weight_decay"] for group in groups for _ in group["params"]],
                dtype=torch.float32,
                device=device,
            ),
            "rates": rates,
            "stuck": stuck,
            "steps": self.steps,
            "squares": torch.zeros(len(stretches), device=device),
            "first": torch.zeros(amount, device=device),
            "second": torch.zeros(amount, device=device),
            "norm": torch.zeros((), device=device),
            "factor": torch.zeros((), device=device),
            "half": torch.zeros(1, dtype=half, device=device),  # says what half precision is
        }
        self.table = torch.zeros(amount, dtype=torch.int64, device=device)  # addresses of gradients
        self.content: Tensor | None = None  # what it has to hold, while a capture cannot write it

    def attach(self) -> None:
        """Take over the moments that the optimizer has, and let it have ours."""
        for number, p in enumerate(self.parameters):
            own = {
                "step": self.steps[number],
                "exp_avg": self.means[number],
                "exp_avg_sq": self.variances[number],
            }
            for name, value in self.optimizer.state.get(p, {}).items():
                own[name].copy_(value)
            self.optimizer.state[p] = own

    def forget(self) -> None:
        """Begin anew, in the same memory."""
        torch._foreach_zero_([self.steps, *self.means, *self.variances])

    def __call__(self, loss: Tensor, found: Mapping[int, Tensor]) -> Tensor:
        """Update by the gradients that the parameters have, or, by the parameter's id, these; their length."""
        from closeknit.kernels import adamw

        addresses = np.zeros(len(self.parameters), dtype=np.int64)
        kept: list[Tensor] = []
        for number, p in enumerate(self.parameters):
            gradient = p.grad if p.grad is not None else found.get(id(p))
            if gradient is None:
                continue
            gradient = gradient.contiguous()
            if gradient.data_ptr() % 16:
                gradient = gradient.clone()
            kept.append(gradient)
            addresses[number] = gradient.data_ptr() + (gradient.dtype != torch.float32)
        content = torch.from_numpy(addresses)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self.content = content
        else:
            self.table.copy_(content)
        betas, eps = self.optimizer.defaults["betas"], self.optimizer.defaults["eps"]
        logs = (math.log(betas[0]), math.log(betas[1]))
        adamw.update(self.tables, self.table, loss, clip=self.clip, logs=logs, betas=betas, eps=eps)
        return self.tables["norm"]

    def begin_capture(self) -> Tensor:
        """A table of addresses for a graph alone, from memory that no graph reuses; who holds the graph has to hold it."""
        self.table = torch.zeros_like(self.table)
        return self.table

    def finish_capture(self) -> None:
        """Write the addresses that were met."""
        if self.content is not None:
            self.table.copy_(self.content)
        self.table, self.content = torch.zeros_like(self.table), None
