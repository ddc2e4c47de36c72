"""Clipping, the check for values that are not finite, and AdamW, in three kernels on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class FusedAdamW:
    """Applies gradients in whatever precision they are; the moments stay in the state of torch's
    optimizer.

    `copies` are the half-precision copies of weights by the weight's id, which are kept up to date.
    An update that is not finite leaves everything as it is and sets `not_finite` to 1; so does
    every update after it, until `not_finite` is 0 again.
    """

    reads_half_gradients = True
    keeps_copies = True
    ready_to_capture = True  # all memory is there before the first update

    def __init__(
        self,
        optimizer: torch.optim.AdamW,
        rates: Tensor,
        clip: float,
        not_finite: Tensor,
        copies: Mapping[int, Tensor],
        half: torch.dtype,
    ) -> None:
        self.optimizer = optimizer
        self.clip = clip
        self.parameters: list[nn.Parameter] = [
            p for group in optimizer.param_groups for p in group["params"]
        ]
        device = not_finite.device
        self.steps = torch.zeros(len(self.parameters), device=device)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.variances = [torch.zeros_like(p) for p in self.parameters]
        self.read_state()
        self.tables = self._tables(rates, not_finite, copies, half)
        self.gradient_addresses = self._table([0] * len(self.parameters))
        self.captured_addresses: Tensor | None = (
            None  # for the table above, which a capture cannot write
        )

    def _table(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.steps.device)

    def _tables(
        self, rates: Tensor, not_finite: Tensor, copies: Mapping[int, Tensor], half: torch.dtype
    ) -> dict[str, Tensor]:
        """What the kernels read and write, by name; tensors are known to them by their
        addresses.
        """
        from closeknit.acceleration.triton_adamw import BLOCK

        device = self.steps.device
        groups = self.optimizer.param_groups
        amount = len(self.parameters)
        sizes = [p.numel() for p in self.parameters]
        blocks = [
            (number << 32) + part
            for number, size in enumerate(sizes)
            for part in range(-(-size // BLOCK))
        ]
        copies_in_order = [copies.get(id(p)) for p in self.parameters]
        decays = [group["weight_decay"] for group in groups for _ in group["params"]]

        def addresses(tensors: list[Any]) -> Tensor:
            return self._table([0 if tensor is None else tensor.data_ptr() for tensor in tensors])

        return {
            "blocks": self._table(blocks),
            "sizes": self._table(sizes),
            "weights": addresses([*self.parameters]),
            "means": addresses([*self.means]),
            "variances": addresses([*self.variances]),
            "copies": addresses([*copies_in_order]),
            "groups": self._table(
                [number for number, group in enumerate(groups) for _ in group["params"]]
            ),
            "decays": torch.tensor(decays, dtype=torch.float32, device=device),
            "rates": rates,
            "not_finite": not_finite,
            "steps": self.steps,
            "squares": torch.zeros(len(blocks), device=device),
            "first_corrections": torch.zeros(amount, device=device),
            "second_corrections": torch.zeros(amount, device=device),
            "norm": torch.zeros((), device=device),
            "clip_factor": torch.zeros((), device=device),
            "half_type": torch.zeros(
                1, dtype=half, device=device
            ),  # its type says what half precision is
        }

    def read_state(self) -> None:
        """Take over the moments that the optimizer's state holds, and put ours in their place."""
        for number, p in enumerate(self.parameters):
            moments = {
                "step": self.steps[number],
                "exp_avg": self.means[number],
                "exp_avg_sq": self.variances[number],
            }
            for name, value in self.optimizer.state.get(p, {}).items():
                moments[name].copy_(value)
            self.optimizer.state[p] = moments

    def restart(self) -> None:
        """Begin anew, in the same memory."""
        torch._foreach_zero_([self.steps, *self.means, *self.variances])

    def apply(
        self, total_loss: Tensor, half_gradients: Mapping[int, Tensor], *, clip_scale: float = 1.0
    ) -> Tensor:
        """Update the parameters unless something is not finite; give the gradient's length before
        clipping.

        The gradient of a parameter is its own, or the one that `half_gradients` holds under the
        parameter's id.
        """
        from closeknit.acceleration import triton_adamw as adamw

        addresses = np.zeros(len(self.parameters), dtype=np.int64)
        alive: list[Tensor] = []  # the kernels know addresses only
        for number, p in enumerate(self.parameters):
            gradient = p.grad if p.grad is not None else half_gradients.get(id(p))
            if gradient is None:
                continue
            gradient = gradient.contiguous()
            if gradient.data_ptr() % 16:
                gradient = gradient.clone()
            alive.append(gradient)
            addresses[number] = gradient.data_ptr() + (gradient.dtype != torch.float32)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self.captured_addresses = torch.from_numpy(addresses)
        else:
            self.gradient_addresses.copy_(torch.from_numpy(addresses))
        betas = self.optimizer.defaults["betas"]
        eps = self.optimizer.defaults["eps"]
        logs = (math.log(betas[0]), math.log(betas[1]))
        adamw.update(
            self.tables,
            self.gradient_addresses,
            total_loss,
            clip=self.clip * clip_scale,
            logs=logs,
            betas=betas,
            eps=eps,
        )
        return self.tables["norm"]

    def begin_capture(self) -> Tensor | None:
        """Make a table of addresses for one graph alone, in memory that no graph reuses.

        Whoever holds the graph has to hold this table too.
        """
        self.gradient_addresses = torch.zeros_like(self.gradient_addresses)
        return self.gradient_addresses

    def finish_capture(self) -> None:
        """Write the addresses that the capture met into the graph's table, and take another table
        for what follows.
        """
        if self.captured_addresses is not None:
            self.gradient_addresses.copy_(self.captured_addresses)
        self.gradient_addresses = torch.zeros_like(self.gradient_addresses)
        self.captured_addresses = None
