"""What turns pooled vectors into a task's answer, and the layer that all tasks share below it.

A pair is one or two rows for the encoder: its texts apart, the pair joined once, or the pair joined
in both orders. A batch of R pairs with two rows each is 2 R rows, all first ones and then all
second ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from closeknit.objectives.geometry import at_least_float32, unit

HEADS = ("linear", "joined", "paired", "dense_paired")
OUTPUT_ACTIVATIONS = ("none", "tanh", "relu", "gelu")
SIMILARITIES = ("cosine", "dot")


class Top(nn.Module):
    """Dropout on the pooled vector and, where it is shared, a linear layer with tanh before every
    head.
    """

    def __init__(
        self, dim: int, *, dropout: float, shared: bool, shared_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.after = nn.Dropout(shared_dropout)
        self.linear = nn.Linear(dim, dim) if shared else None

    def forward(self, pooled: Tensor) -> Tensor:
        x: Tensor = self.dropout(pooled)  # (R, H)
        if self.linear is None:
            return x
        shared: Tensor = self.after(torch.tanh(self.linear(x)))  # (R, H)
        return shared


def output_activation_of(name: str) -> nn.Module:
    """What stands after the linear layer of a head."""
    modules: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}
    return modules.get(name, nn.Identity)()


class SingleHead(nn.Module):
    """Class logits (R, C) of single texts: one linear layer, and an activation where one is set."""

    rows = 1  # of the encoder for an example

    def __init__(self, dim: int, classes: int, *, output_activation: str = "none") -> None:
        super().__init__()
        self.classes = classes
        self.out = nn.Linear(dim, classes)
        self.after = output_activation_of(output_activation)

    def forward(self, pooled: Tensor) -> Tensor:
        logits: Tensor = self.after(self.out(pooled))
        return logits


class PairHead(nn.Module):
    """The answer for pairs, of `classes` kinds, or a score with `classes` 1.

    linear: the texts' own vectors u and v, laid beside each other:  f(W [u, v])
    joined: one vector p of the pair, joined once:                   f(W p)
    paired: vectors p and q of the pair joined in both orders:       W [a p, b q]
    dense_paired: and one of their difference:                       W [a p, b q, c (p - q)]

    a, b and c are linear layers with one output each; `activation` puts tanh on these. f is the
    `output_activation`. Two classes have one logit l, given as (0, l): the cross-entropy of these
    is the binary one of l. More classes have an output each, here and in a, b and c.
    """

    def __init__(
        self,
        kind: str,
        dim: int,
        classes: int,
        *,
        activation: bool = False,
        output_activation: str = "none",
    ) -> None:
        super().__init__()
        self.kind = kind
        self.classes = classes
        self.rows = 1 if kind == "joined" else 2
        width = 1 if classes <= 2 else classes
        self.activation: nn.Module = nn.Tanh() if activation else nn.Identity()
        self.after = output_activation_of(output_activation)
        self.parts = nn.ModuleList()
        if kind in ("linear", "joined"):
            self.out = nn.Linear(self.rows * dim, width)
            return
        amount = 3 if kind == "dense_paired" else 2
        self.parts.extend(nn.Linear(dim, width) for _ in range(amount))
        self.out = nn.Linear(amount * width, width)
        # The head begins as the sum of its parts, so that tanh need not saturate to reach the ends
        # of a range of scores.
        with torch.no_grad():
            self.out.weight.copy_(torch.eye(width).repeat(1, amount))
            self.out.bias.zero_()

    @property
    def reads_together(self) -> bool:
        """Whether the encoder reads both texts together."""
        return self.kind != "linear"

    def forward(self, pooled: Tensor) -> Tensor:
        if self.kind == "joined":
            answer = self.after(self.out(pooled))  # (R, width)
        elif self.kind == "linear":
            first, second = pooled.chunk(2)  # (R, H) each
            answer = self.after(self.out(torch.cat([first, second], dim=1)))  # (R, width)
        else:
            first, second = pooled.chunk(2)
            read = [first, second, first - second]
            logits = [part(x) for part, x in zip(self.parts, read, strict=False)]  # (R, width) each
            answer = self.out(self.activation(torch.cat(logits, dim=1)))
        if self.classes == 2:
            answer = torch.cat([torch.zeros_like(answer), answer], dim=1)  # (R, 2)
        return torch.as_tensor(answer)


class SimilarityHead(nn.Module):
    """Whether two texts belong together, from the similarity of their own vectors.

    The head has no weights. Its logits (R, 2) are 0 and scale * (similarity - threshold): the class
    `positive` is the answer where the similarity is above the threshold. The threshold is chosen
    on rows with known answers, and saved with the model.
    """

    rows = 2
    classes = 2
    reads_together = False

    def __init__(self, *, positive: int, similarity: str, scale: float) -> None:
        super().__init__()
        self.positive = positive
        self.kind_of_similarity = similarity
        self.scale = scale
        self.threshold: Tensor
        self.register_buffer("threshold", torch.zeros(()))

    def similarity(self, pooled: Tensor) -> Tensor:
        """The similarity (R,) of the texts of each pair, from their vectors (2 R, H)."""
        z = at_least_float32(pooled)
        if self.kind_of_similarity == "cosine":
            z = unit(z)
        first, second = z.chunk(2)  # (R, H) each
        return (first * second).sum(dim=1)

    def forward(self, pooled: Tensor) -> Tensor:
        logit = self.scale * (self.similarity(pooled) - self.threshold)  # (R,)
        zero = torch.zeros_like(logit)
        columns = [logit, zero] if self.positive == 0 else [zero, logit]
        return torch.stack(columns, dim=1)  # (R, 2)
