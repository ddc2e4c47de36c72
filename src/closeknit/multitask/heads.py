"""What turns pooled vectors into a task's answer, and the layer that all tasks share below it.

A pair is two rows for the encoder: its texts apart, or the pair joined in both orders. A batch of R
pairs is 2 R rows, all first ones and then all second ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HEADS = ("linear", "paired", "dense_paired")


class Top(nn.Module):
    """Dropout on the pooled vector and, where it is shared, a linear layer with tanh before every
    head.
    """

    def __init__(
        self, dim: int, *, dropout: float, shared: bool, shared_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout, self.after = nn.Dropout(dropout), nn.Dropout(shared_dropout)
        self.linear = nn.Linear(dim, dim) if shared else None

    def forward(self, pooled: Tensor) -> Tensor:
        x: Tensor = self.dropout(pooled)  # (R, H)
        if self.linear is None:
            return x
        shared: Tensor = self.after(torch.tanh(self.linear(x)))  # (R, H)
        return shared


class SingleHead(nn.Module):
    """Class logits (R, C) of single texts: one linear layer."""

    rows = 1  # of the encoder for an example

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.out = nn.Linear(dim, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.out(pooled)
        return logits


class PairHead(nn.Module):
    """The answer for pairs, of `classes` kinds, or a score with `classes` 1.

    linear: the texts' own vectors u and v, laid beside each other:  W [u, v]
    paired: vectors p and q of the pair joined in both orders:       W [a p, b q]
    dense_paired: and one of their difference:                       W [a p, b q, c (p - q)]

    a, b and c are linear layers with one output each; `activation` puts tanh on these. Two classes
    have one logit l, given as (0, l): the cross-entropy of these is the binary one of l. More
    classes have an output each, here and in a, b and c.
    """

    rows = 2

    def __init__(self, kind: str, dim: int, classes: int, *, activation: bool = False) -> None:
        super().__init__()
        self.kind, self.classes = kind, classes
        width = 1 if classes <= 2 else classes
        self.activation: nn.Module = nn.Tanh() if activation else nn.Identity()
        self.parts = nn.ModuleList()
        if kind == "linear":
            self.out = nn.Linear(2 * dim, width)
        else:
            amount = 3 if kind == "dense_paired" else 2
            self.parts.extend(nn.Linear(dim, width) for _ in range(amount))
            self.out = nn.Linear(amount * width, width)
            with torch.no_grad():  # begins as the sum of its parts, so that tanh need not saturate to reach a score's ends
                self.out.weight.copy_(torch.eye(width).repeat(1, amount))
                self.out.bias.zero_()

    @property
    def joined(self) -> bool:
        """Whether the encoder reads both texts together."""
        return self.kind != "linear"

    def forward(self, pooled: Tensor) -> Tensor:
        first, second = pooled.chunk(2)  # (R, H) each
        if self.kind == "linear":
            answer = self.out(torch.cat([first, second], dim=1))  # (R, width)
        else:
            read = [first, second, first - second]
            logits = [part(x) for part, x in zip(self.parts, read, strict=False)]  # (R, width) each
            answer = self.out(self.activation(torch.cat(logits, dim=1)))
        if self.classes == 2:
            answer = torch.cat([torch.zeros_like(answer), answer], dim=1)  # (R, 2)
        return torch.as_tensor(answer)
