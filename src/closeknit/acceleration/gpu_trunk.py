"""The forward and backward passes of BERT-like trunks on a GPU in few kernels.

The numbers are those of transformers under autocast, except for rounding. Matrix products stay with
the library; what lies between them is fused, and queries, keys and values are one product. The
values that are added from layer to layer stay in float32, as under autocast.

Nothing here reads from the device to the host, so that an update can be captured in a CUDA graph.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from closeknit.acceleration.half_weights import HalfWeights
from closeknit.encoders.architecture import (
    TransformerLayer,
    attention_heads,
    bert_like_layers,
    embedding_layer,
    has_hooks,
)

PLACES_PER_LAYER = 8  # each place of a layer where dropout is drawn has a number below this
PLACES_PER_TRUNK = 10_000_000  # so that two trunks draw different dropout


class GpuTrunk:
    """The forward pass of a trunk by fused kernels, which read half-precision copies of its
    weights.

    Called with the encoder's inputs it gives the hidden states (R, T, H). `seed` is a number on the
    device. Dropout depends on the seed, on the place in the network and on the number of passes
    since `begin`.
    """

    def __init__(
        self,
        trunk: Any,
        layers: list[TransformerLayer],
        half_weights: HalfWeights,
        dtype: torch.dtype,
        first_place: int = 0,
    ) -> None:
        self.trunk = trunk
        self.layers = layers
        self.half_weights = half_weights
        self.heads = attention_heads(trunk)
        self.dtype = dtype
        self.seed = torch.zeros((), dtype=torch.int64, device=layers[0].query.weight.device)
        self.first_place = first_place
        self.passes = 0

    def begin(self, seed: Tensor) -> None:
        """Start dropout anew with this seed, for another update or to repeat the same one."""
        self.seed = seed
        self.passes = 0

    def fits(self, inputs: dict[str, Tensor]) -> bool:
        """Whether the texts are not too long for this pass, and no hook would be left out."""
        from closeknit.acceleration.triton_attention import LONGEST

        return inputs["input_ids"].shape[1] <= LONGEST and not has_hooks(self.layers)

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        R, T = ids.shape
        lengths = mask.sum(1, dtype=torch.int32)  # (R,)
        place = self.first_place + self.passes * PLACES_PER_LAYER * (len(self.layers) + 1)
        self.passes += 1
        x, half = self._embed(ids, inputs.get("token_type_ids"), place)  # (N, H) twice
        for layer in self.layers:
            place += PLACES_PER_LAYER
            attended = self._attend(half, layer, lengths, T, place)
            x, half = self._add_norm(
                attended,
                x,
                layer.attention_output,
                layer.attention_norm,
                layer.attention_output_dropout.p,
                place + 1,
            )
            wide = self._widen(half, layer)
            x, half = self._add_norm(
                wide, x, layer.narrow, layer.narrow_norm, layer.narrow_dropout.p, place + 2
            )
        return x.view(R, T, -1)

    def _attend(
        self, half: Tensor, layer: TransformerLayer, lengths: Tensor, T: int, place: int
    ) -> Tensor:
        """What each token takes from the tokens of its text (N, H)."""
        qkv = self.half_weights.copy_of(layer.query)  # which holds those of keys and values too
        attended: Tensor = _Attend.apply(
            F.linear(half, qkv.weight),
            torch.cat(qkv.biases),
            lengths,
            T,
            self.heads,
            self.seed,
            place,
            layer.attention_dropout.p,
        )
        return attended

    def _widen(self, half: Tensor, layer: TransformerLayer) -> Tensor:
        copy = self.half_weights.copy_of(layer.widen)
        if type(layer.activation).__name__ in ("GELUActivation", "GELU") and _is_exact(
            layer.activation
        ):
            wide: Tensor = _Gelu.apply(F.linear(half, copy.weight), layer.widen.bias)
            return wide
        wide = layer.activation(F.linear(half, copy.weight, copy.bias))
        return wide

    def _add_norm(
        self, inner: Tensor, x: Tensor, linear: nn.Linear, norm: nn.LayerNorm, p: float, place: int
    ) -> tuple[Tensor, Tensor]:
        a = F.linear(inner, self.half_weights.copy_of(linear).weight)
        normalised: tuple[Tensor, Tensor] = _AddNorm.apply(
            a, linear.bias, x, norm.weight, norm.bias, norm.eps, self.seed, place, p, self.dtype
        )
        return normalised

    def _embed(self, ids: Tensor, token_types: Tensor | None, place: int) -> tuple[Tensor, Tensor]:
        """The embeddings of all tokens (N, H), in float32 and in half precision."""
        parts = embedding_layer(self.trunk)
        T = ids.shape[1]
        z = _lookup(ids, parts.words)
        if parts.padding_id is None:
            z = z + parts.positions.weight[:T]
        else:  # each text has its own positions; the gradient is added up in a fixed order
            z = z + _lookup(parts.position_numbers(ids), parts.positions)
        if parts.types is not None:
            types = parts.types.weight
            if token_types is not None and len(types) > 1:
                z = z + torch.where(token_types.bool()[..., None], types[1], types[0])
            else:
                z = z + types[0]
        norm = parts.norm
        normalised: tuple[Tensor, Tensor] = _AddNorm.apply(
            None,
            None,
            z.flatten(0, 1),
            norm.weight,
            norm.bias,
            norm.eps,
            self.seed,
            place,
            parts.dropout.p,
            self.dtype,
        )
        if parts.projection is None:
            return normalised
        copy = self.half_weights.copy_of(parts.projection)
        half = F.linear(normalised[1], copy.weight, copy.bias)
        return half.float(), half


def build_gpu_trunks(
    trunks: Sequence[Any], learners: nn.Module, dtype: torch.dtype
) -> tuple[HalfWeights, list[GpuTrunk | None]]:
    """Half-precision copies of the weights of all linear layers, and the fused passes of the
    BERT-like trunks.

    A trunk of another kind, and every trunk where Triton is not installed, has None instead.
    """
    has_triton = importlib.util.find_spec("triton") is not None
    layers_of_trunks = [bert_like_layers(trunk) if has_triton else None for trunk in trunks]
    together = [
        group for layers in layers_of_trunks for layer in layers or [] for group in layer.products
    ]
    half_weights = HalfWeights(learners, dtype, together)
    gpu_trunks: list[GpuTrunk | None] = []
    for number, (trunk, layers) in enumerate(zip(trunks, layers_of_trunks, strict=True)):
        first_place = PLACES_PER_TRUNK * number
        known = (
            None if layers is None else GpuTrunk(trunk, layers, half_weights, dtype, first_place)
        )
        gpu_trunks.append(known)
    return half_weights, gpu_trunks


def _lookup(numbers: Tensor, table: nn.Embedding) -> Tensor:
    """Rows (R, T, H) of an embedding by their numbers (R, T); its padding row has no gradient."""
    padding = -1 if table.padding_idx is None else table.padding_idx
    rows: Tensor = _Lookup.apply(numbers.flatten(), table.weight, padding)
    return rows.view(*numbers.shape, -1)


class _AddNorm(torch.autograd.Function):
    """The layer normalisation of rest + dropout(a + bias), in float32 and in half precision.

    Without `a` it is the dropout of the normalisation of `rest`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor | None,
        bias: Tensor | None,
        rest: Tensor,
        gain: Tensor,
        shift: Tensor,
        eps: float,
        seed: Tensor,
        place: int,
        p: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        from closeknit.acceleration import triton_layers as layers

        out, half, total, mean, shrink = layers.norm(
            a, bias, rest, gain, shift, eps, seed, place, p, dtype
        )
        ctx.save_for_backward(total, gain, mean, shrink, seed)
        ctx.place = place
        ctx.p = p
        ctx.half = None if a is None else a.dtype
        ctx.set_materialize_grads(False)
        return out, half

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from closeknit.acceleration import triton_layers as layers

        total, gain, mean, shrink, seed = ctx.saved_tensors
        given = [None if grad is None else grad.contiguous() for grad in grads]
        rest, a, sums = layers.norm_back(
            given[0], given[1], total, gain, mean, shrink, seed, ctx.place, ctx.p, ctx.half
        )
        gain_grad, shift_grad, *more = sums.split(total.shape[1])
        return (
            a,
            more[0] if more else None,
            rest,
            gain_grad,
            shift_grad,
            None,
            None,
            None,
            None,
            None,
        )


class _Attend(torch.autograd.Function):
    """Attention of all heads over queries, keys and values side by side (N, 3 H); their biases are
    added here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        biases: Tensor,
        lengths: Tensor,
        T: int,
        heads: int,
        seed: Tensor,
        place: int,
        p: float,
    ) -> Tensor:
        from closeknit.acceleration import triton_attention as attention

        ctx.save_for_backward(qkv, biases, lengths, seed)
        ctx.T = T
        ctx.heads = heads
        ctx.place = place
        ctx.p = p
        return attention.attend(qkv, biases, lengths, T, heads, seed, place, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.acceleration import triton_attention as attention

        qkv, biases, lengths, seed = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_qkv, grad_biases = attention.attend_back(
            qkv, biases, lengths, grad, ctx.T, ctx.heads, seed, ctx.place, ctx.p
        )
        return grad_qkv, grad_biases, None, None, None, None, None, None


def gpu_dropout(x: Tensor, seed: Tensor, place: int, p: float) -> Tensor:
    """Dropout of rate p that depends on a seed on the device and on its place in the network."""
    dropped: Tensor = _Drop.apply(x, seed, place, p)
    return dropped


class _Drop(torch.autograd.Function):
    """Dropout, which is the same function of a gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, place: int, p: float) -> Tensor:
        from closeknit.acceleration import triton_dropout as dropout

        ctx.save_for_backward(seed)
        ctx.place = place
        ctx.p = p
        return dropout.drop(x, seed, place, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.acceleration import triton_dropout as dropout

        (seed,) = ctx.saved_tensors
        return dropout.drop(grads[0], seed, ctx.place, ctx.p), None, None, None


class _Gelu(torch.autograd.Function):
    """gelu(x + bias)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        from closeknit.acceleration import triton_layers as layers

        ctx.save_for_backward(x, bias)
        return layers.gelu(x, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.acceleration import triton_layers as layers

        return layers.gelu_back(grads[0].contiguous(), *ctx.saved_tensors)


def _is_exact(activation: Any) -> bool:
    """Whether a GELU is computed by the error function, as the kernel does, and not by tanh."""
    approximate = getattr(activation, "approximate", None) == "tanh"
    return not approximate and not getattr(activation, "use_gelu_python", False)


class _Lookup(torch.autograd.Function):
    """Rows of an embedding, with a gradient that is always added up in the same order."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, skipped: int) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = len(weight)
        ctx.skipped = skipped
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.acceleration import triton_layers as layers

        (ids,) = ctx.saved_tensors
        return None, layers.scatter(ids, grads[0].contiguous(), ctx.rows, ctx.skipped), None
