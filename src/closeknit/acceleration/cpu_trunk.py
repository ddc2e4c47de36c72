"""The passes of BERT-like trunks on a CPU, which leave out padding and what nothing reads.

Linear layers and normalisations compute real tokens only, and no padding. Where only the first
token of each text is read, the last layer computes no other. Dropout takes 16 random bits per
number: drawing its masks would otherwise be a sixth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from closeknit.encoders.architecture import (
    TransformerLayer,
    attention_heads,
    embedding_layer,
    has_hooks,
)


@dataclass(frozen=True)
class TokenGrid:
    """Which tokens of a batch are computed. The batch is a grid of R texts with T places each."""

    rows: int
    width: int
    # (N,) the places that are computed, as indices into the flat batch; None means all places.
    places: Tensor | None
    first_tokens: Tensor  # (R,) index of the first token of each text among the computed tokens
    attention_bias: Tensor  # (R heads, 1, T) -inf where a place is padding, else 0

    def chosen(self, grid: Tensor) -> Tensor:
        """The values (N,) of a grid (R, T) at the computed places."""
        return grid.flatten() if self.places is None else grid.flatten()[self.places]

    def spread(self, x: Tensor) -> Tensor:
        """Rows (N, H) at their places of the whole batch (R T, H), with zeros elsewhere."""
        if self.places is None:
            return x
        return x.new_zeros(self.rows * self.width, x.shape[1]).index_copy(0, self.places, x)


class CpuTrunk:
    """The forward pass of a trunk in training. Called with the encoder's inputs it gives the hidden
    states (R, T, H).

    With `first_only` these are those of the first token, (R, 1, H). With `skip_padding` False
    padding is computed too, for views that read it.
    """

    def __init__(self, trunk: Any, layers: list[TransformerLayer]) -> None:
        self.trunk = trunk
        self.layers = layers
        self.heads = attention_heads(trunk)
        self.first_only = False
        self.skip_padding = True

    def fits(self, inputs: dict[str, Tensor]) -> bool:
        """Whether this pass can compute the batch: no autocast, no text that begins with padding,
        no hook left out.
        """
        if torch.is_autocast_enabled("cpu"):
            return False
        return bool(inputs["attention_mask"][:, 0].all()) and not has_hooks(self.layers)

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        grid = self._grid(inputs["attention_mask"].bool())
        x = self._embed(inputs["input_ids"], inputs.get("token_type_ids"), grid)  # (N, H)
        for number, layer in enumerate(self.layers):
            first_only = self.first_only and number == len(self.layers) - 1
            queried = x[grid.first_tokens] if first_only else x  # (Q, H)
            attended = self._attend(layer, queried, x, grid, first_only)
            attended = cpu_dropout(
                layer.attention_output(attended), layer.attention_output_dropout.p
            )
            x = layer.attention_norm(queried + attended)
            wide = layer.activation(layer.widen(x))
            x = layer.narrow_norm(x + cpu_dropout(layer.narrow(wide), layer.narrow_dropout.p))
        if self.first_only:
            return x.view(grid.rows, 1, -1)
        return grid.spread(x).view(grid.rows, grid.width, -1)

    def _grid(self, mask: Tensor) -> TokenGrid:
        R, T = mask.shape
        weight_type = self.layers[0].query.weight.dtype
        bias = torch.zeros(R, 1, T, dtype=weight_type).masked_fill_(~mask[:, None, :], -torch.inf)
        bias = bias.repeat_interleave(self.heads, 0)
        if not self.skip_padding or bool(mask.all()):
            return TokenGrid(R, T, None, torch.arange(R) * T, bias)
        first_tokens = F.pad(mask.sum(1).cumsum(0), (1, 0))[:-1]
        return TokenGrid(R, T, mask.flatten().nonzero()[:, 0], first_tokens, bias)

    def _attend(
        self, layer: TransformerLayer, queried: Tensor, x: Tensor, grid: TokenGrid, first_only: bool
    ) -> Tensor:
        """What each queried token (Q, H) takes from all tokens (N, H) of its text."""
        q, k, v = layer.query(queried), layer.key(x), layer.value(x)
        width = 1 if first_only else grid.width

        def split(z: Tensor, tokens: int) -> Tensor:
            """A matrix per head: (R heads, tokens, H / heads)."""
            by_head = z.view(grid.rows, tokens, self.heads, -1).transpose(1, 2)
            return by_head.reshape(grid.rows * self.heads, tokens, -1)

        mixed: Tensor = _Attention.apply(
            split(q if first_only else grid.spread(q), width),
            split(grid.spread(k), grid.width),
            split(grid.spread(v), grid.width),
            grid.attention_bias,
            layer.attention_dropout.p if self.trunk.training else 0.0,
        )
        joined = (
            mixed.view(grid.rows, self.heads, width, -1)
            .transpose(1, 2)
            .reshape(grid.rows * width, -1)
        )
        return joined if first_only or grid.places is None else joined[grid.places]

    def _embed(self, ids: Tensor, token_types: Tensor | None, grid: TokenGrid) -> Tensor:
        """The embeddings (N, H) of the tokens that are computed."""
        parts = embedding_layer(self.trunk)
        positions = parts.position_numbers(ids).expand(grid.rows, grid.width)
        z = parts.words(grid.chosen(ids)) + parts.positions(grid.chosen(positions))
        if parts.types is not None:
            z = z + parts.types(
                grid.chosen(torch.zeros_like(ids) if token_types is None else token_types)
            )
        x = cpu_dropout(parts.norm(z), parts.dropout.p if parts.dropout.training else 0.0)
        return x if parts.projection is None else parts.projection(x)


def cpu_dropout(x: Tensor, p: float) -> Tensor:
    """Dropout of rate p, seeded by torch's generator."""
    if p == 0.0:
        return x
    dropped: Tensor = _Dropout.apply(x, p)
    return dropped


def keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """Which numbers dropout keeps, and what it multiplies them by; p is rounded to 16 bits."""
    amount = shape.numel()
    limit = round(p * 65536)
    seed = int(torch.randint(2**62, ()))
    bits = np.random.SFC64(seed).random_raw(-(-amount // 4)).view(np.int16)[:amount]
    return (torch.from_numpy(bits) >= limit - 32768).view(shape), 65536 / (65536 - limit)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = keep_mask(x.shape, p)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None


class _Attention(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + bias), dropout, times v: B heads of Q queries and T keys."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, p: float) -> Tensor:
        ctx.size = q.shape[-1] ** -0.5
        share = torch.baddbmm(bias, q, k.mT, alpha=ctx.size).softmax(-1)  # (B, Q, T)
        keep, ctx.scale = keep_mask(share.shape, p) if p > 0 else (None, 1.0)
        ctx.save_for_backward(q, k, v, share, keep)
        return torch.bmm(share if keep is None else share * keep, v).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, share, keep = ctx.saved_tensors
        grad = grads[0] * ctx.scale
        used = share if keep is None else share * keep
        dv = torch.bmm(used.mT, grad)
        slope = torch.bmm(grad, v.mT)  # (B, Q, T)
        if keep is not None:
            slope.mul_(keep)
        slope = torch._softmax_backward_data(slope, share, -1, share.dtype)
        return (
            torch.bmm(slope, k).mul_(ctx.size),
            torch.bmm(slope.mT, q).mul_(ctx.size),
            dv,
            None,
            None,
        )
