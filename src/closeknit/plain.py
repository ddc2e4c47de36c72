"""The layers of BERT and its kin on a CPU: padding is left out, and so is what nobody reads.

Linear layers and normalisations see the real tokens only. Where just the first token of each text is read, the last layer
computes no other. Dropout takes 16 random bits a number: drawing its masks is a sixth of the time otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from closeknit.blocks import ROBERTA, Layer, heads_of, hooked


class PlainTrunk:
    """A trunk's forward pass in training. Called with the encoder's inputs it gives the hidden states (R, T, H).

    With `first_only` they are those of the first token, (R, 1, H). Without `packed` padding is computed too, for views that
    read it.
    """

    def __init__(self, trunk: Any, layers: list[Layer]) -> None:
        self.trunk, self.layers, self.heads = trunk, layers, heads_of(trunk)
        self.first_only, self.packed = False, True

    def begin(self, seed: Tensor) -> None:
        """Dropout is seeded by torch's own generator."""

    def fits(self, inputs: dict[str, Tensor]) -> bool:
        """Whether this batch can be taken: no other precision, no padding first, no hook that would be passed by."""
        usual = not torch.is_autocast_enabled("cpu") and bool(inputs["attention_mask"][:, 0].all())
        return usual and not hooked(self.layers)

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        R, T = ids.shape
        full = not self.packed or bool(mask.all())
        places = (
            None if full else mask.flatten().nonzero()[:, 0]
        )  # (N,) of the tokens that are computed
        start = (
            torch.arange(R) * T if full else F.pad(mask.sum(1).cumsum(0), (1, 0))[:-1]
        )  # (R,) first tokens
        exact = self.layers[0].query.weight.dtype
        barred = torch.zeros(R, 1, T, dtype=exact).masked_fill_(~mask[:, None, :], -torch.inf)
        barred = barred.repeat_interleave(self.heads, 0)  # (R heads, 1, T)
        x = self._embed(ids, inputs.get("token_type_ids"), places)  # (N, H)
        for number, layer in enumerate(self.layers):
            last = self.first_only and number == len(self.layers) - 1
            asking = x[start] if last else x  # (Q, H)
            mixed = self._attend(layer, asking, x, places, barred, R, T, last)
            x = _norm(layer.mix_norm, asking + thinned(layer.mix(mixed), layer.mix_dropout.p))
            wide = layer.activation(layer.widen(x))
            x = _norm(layer.narrow_norm, x + thinned(layer.narrow(wide), layer.narrow_dropout.p))
        if self.first_only:
            return x.view(R, 1, -1)
        return _laid(x, places, R * T).view(R, T, -1)

    def _attend(
        self,
        layer: Layer,
        asking: Tensor,
        x: Tensor,
        places: Tensor | None,
        barred: Tensor,
        R: int,
        T: int,
        last: bool,
    ) -> Tensor:
        """What each token that asks (Q, H) takes from all tokens (N, H) of its text."""
        q, k, v = layer.query(asking), layer.key(x), layer.value(x)
        width = 1 if last else T
        q = q if last else _laid(q, places, R * T)

        def split(z: Tensor, tokens: int) -> Tensor:
            return (
                z.view(R, tokens, self.heads, -1)
                .transpose(1, 2)
                .reshape(R * self.heads, tokens, -1)
            )

        found: Tensor = _Attention.apply(
            split(q, width),
            split(_laid(k, places, R * T), T),
            split(_laid(v, places, R * T), T),
            barred,
            layer.attention_dropout.p if self.trunk.training else 0.0,
        )
        joined = found.view(R, self.heads, width, -1).transpose(1, 2).reshape(R * width, -1)
        return joined if last or places is None else joined[places]

    def _embed(self, ids: Tensor, types: Tensor | None, places: Tensor | None) -> Tensor:
        own: Any = self.trunk.embeddings
        R, T = ids.shape

        def chosen(grid: Tensor) -> Tensor:
            return grid.flatten() if places is None else grid.flatten()[places]

        position = torch.arange(T).expand(R, T)
        if self.trunk.config.model_type in ROBERTA:
            real = ids != own.padding_idx  # a text may name the padding token too
            position = real.cumsum(1) * real + own.padding_idx
        z = own.word_embeddings(chosen(ids)) + own.position_embeddings(chosen(position))  # (N, H)
        if hasattr(own, "token_type_embeddings"):
            kinds = torch.zeros_like(ids) if types is None else types
            z = z + own.token_type_embeddings(chosen(kinds))
        x = thinned(_norm(own.LayerNorm, z), own.dropout.p if own.training else 0.0)
        project = getattr(self.trunk, "embeddings_project", None)
        return x if project is None else project(x)


def _norm(norm: Any, x: Tensor) -> Tensor:
    found: Tensor = norm(x)
    return found


def _laid(x: Tensor, places: Tensor | None, tokens: int) -> Tensor:
    """Rows (N, H) at their places among so many; zeros elsewhere."""
    return x if places is None else x.new_zeros(tokens, x.shape[1]).index_copy(0, places, x)


# ---------------------------------------------------------------- dropout


def thinned(x: Tensor, p: float) -> Tensor:
    """Dropout, seeded by torch's generator."""
    if p == 0.0:
        return x
    found: Tensor = _Thinned.apply(x, p)
    return found


def kept(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """Where dropout lets numbers through, and what it multiplies those by: p is taken to 16 bits."""
    amount, limit = shape.numel(), round(p * 65536)
    seed = int(torch.randint(2**62, ()))
    bits = np.random.SFC64(seed).random_raw(-(-amount // 4)).view(np.int16)[:amount]
    return (torch.from_numpy(bits) >= limit - 32768).view(shape), 65536 / (65536 - limit)


class _Thinned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        keep, ctx.scale = kept(x.shape, p)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None


class _Attention(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + barred), dropout, times v: B heads of Q rows that ask and T that answer."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, barred: Tensor, p: float) -> Tensor:
        ctx.size = q.shape[-1] ** -0.5
        share = torch.baddbmm(barred, q, k.mT, alpha=ctx.size).softmax(-1)  # (B, Q, T)
        keep, ctx.scale = kept(share.shape, p) if p > 0 else (None, 1.0)
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
