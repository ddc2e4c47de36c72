"""The layers of BERT and its kin in few kernels: the same numbers as transformers' own under autocast, but for rounding.

`fuse` looks whether a trunk is of that form. Products stay with the library; what lies between them is fused, and
queries, keys and values are one product. The sum that runs through the layers is kept in float32, as under autocast.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from closeknit.halves import Halves

ROBERTA = ("roberta", "xlm-roberta", "camembert")  # these count positions from the padding's own on
_BERT = ("bert", "electra", *ROBERTA)
_SITES = 8  # places of a layer where dropout is drawn, at the most


@dataclass(frozen=True)
class Layer:
    """One transformer layer by its parts, whatever the architecture calls them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    mix: nn.Linear
    mix_norm: nn.LayerNorm
    widen: nn.Linear
    activation: Any
    narrow: nn.Linear
    narrow_norm: nn.LayerNorm
    attention_dropout: nn.Dropout
    mix_dropout: nn.Dropout
    narrow_dropout: nn.Dropout

    @property
    def products(self) -> list[tuple[nn.Linear, ...]]:
        """The linear layers, those that are one product together."""
        return [(self.query, self.key, self.value), (self.mix,), (self.widen,), (self.narrow,)]

    @property
    def linears(self) -> tuple[nn.Linear, ...]:
        return self.query, self.key, self.value, self.mix, self.widen, self.narrow


def layers_of(trunk: Any) -> list[Layer] | None:
    """The layers of a trunk of the form of BERT; None for any other, and for one that was changed."""
    kind = getattr(trunk.config, "model_type", "")
    try:
        if kind in _BERT:
            found = [_bert_layer(layer) for layer in trunk.encoder.layer]
        elif kind == "distilbert":
            found = [_distilbert_layer(layer) for layer in trunk.transformer.layer]
        else:
            return None
    except AttributeError:
        return None
    plain = all(
        type(linear) is nn.Linear and linear.bias is not None
        for own in found
        for linear in own.linears
    )
    absolute = getattr(trunk.config, "position_embedding_type", "absolute") in ("absolute", None)
    sized = heads_of(trunk) > 0 and trunk.config.hidden_size // heads_of(trunk) in (16, 32, 64, 128)
    return (
        found
        if plain and absolute and sized and not getattr(trunk.config, "is_decoder", False)
        else None
    )


def hooked(layers: Sequence[Layer]) -> bool:
    """Whether somebody waits for the linear layers to be called, as dropping whole heads does."""
    linears = [linear for own in layers for linear in own.linears]
    return any(linear._forward_pre_hooks or linear._forward_hooks for linear in linears)


def _bert_layer(layer: Any) -> Layer:
    attention, output = layer.attention.self, layer.attention.output
    return Layer(
        attention.query,
        attention.key,
        attention.value,
        output.dense,
        output.LayerNorm,
        layer.intermediate.dense,
        layer.intermediate.intermediate_act_fn,
        layer.output.dense,
        layer.output.LayerNorm,
        attention.dropout,
        output.dropout,
        layer.output.dropout,
    )


def _distilbert_layer(layer: Any) -> Layer:
    own, ffn, none = layer.attention, layer.ffn, nn.Dropout(0.0)
    return Layer(
        own.q_lin,
        own.k_lin,
        own.v_lin,
        own.out_lin,
        layer.sa_layer_norm,
        ffn.lin1,
        ffn.activation,
        ffn.lin2,
        layer.output_layer_norm,
        own.dropout,
        none,
        ffn.dropout,
    )


class FusedTrunk:
    """A trunk's forward pass by fused kernels, reading half-precision copies of its weights.

    Called with the encoder's inputs it gives the hidden states (R, T, H). `seed` is a number on the device: dropout is a
    function of it, of the place in the network and of how many passes went before since `begin`.
    """

    def __init__(
        self,
        trunk: Any,
        layers: list[Layer],
        halves: Halves,
        heads: int,
        dtype: torch.dtype,
        first: int = 0,
    ) -> None:
        self.trunk, self.layers, self.halves, self.heads, self.dtype = (
            trunk,
            layers,
            halves,
            heads,
            dtype,
        )
        self.seed = torch.zeros((), dtype=torch.int64, device=layers[0].query.weight.device)
        self.first, self.passes = first, 0

    def begin(self, seed: Tensor) -> None:
        """What follows is another update, or the same one again: its dropout is that of this seed."""
        self.seed, self.passes = seed, 0

    def fits(self, inputs: dict[str, Tensor]) -> bool:
        """Whether this batch can be taken: not too long, and no hook that would be passed by."""
        from closeknit.kernels.layers import LONGEST

        return inputs["input_ids"].shape[1] <= LONGEST and not hooked(self.layers)

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        R, T = ids.shape
        lengths = mask.sum(1, dtype=torch.int32)  # (R,)
        site = self.first + self.passes * _SITES * (len(self.layers) + 1)
        self.passes += 1
        x, half = self._embed(ids, mask, inputs.get("token_type_ids"), site)  # (N, H) twice
        for layer in self.layers:
            site += _SITES
            qkv = self.halves.of(layer.query)
            mixed = _Attend.apply(
                F.linear(half, qkv.weight),
                torch.cat(qkv.biases),
                lengths,
                T,
                self.heads,
                self.seed,
                site,
                layer.attention_dropout.p,
            )
            x, half = self._add_norm(
                mixed, x, layer.mix, layer.mix_norm, layer.mix_dropout.p, site + 1
            )
            wide = self._widen(half, layer)
            x, half = self._add_norm(
                wide, x, layer.narrow, layer.narrow_norm, layer.narrow_dropout.p, site + 2
            )
        return x.view(R, T, -1)

    def _widen(self, half: Tensor, layer: Layer) -> Tensor:
        copy = self.halves.of(layer.widen)
        if type(layer.activation).__name__ in ("GELUActivation", "GELU") and _exact(
            layer.activation
        ):
            wide: Tensor = _Gelu.apply(F.linear(half, copy.weight), layer.widen.bias)
            return wide
        wide = layer.activation(F.linear(half, copy.weight, copy.bias))
        return wide

    def _add_norm(
        self, inner: Tensor, x: Tensor, linear: nn.Linear, norm: nn.LayerNorm, p: float, site: int
    ) -> tuple[Tensor, Tensor]:
        a = F.linear(inner, self.halves.of(linear).weight)
        found: tuple[Tensor, Tensor] = _AddNorm.apply(
            a, linear.bias, x, norm.weight, norm.bias, norm.eps, self.seed, site, p, self.dtype
        )
        return found

    def _embed(self, ids: Tensor, mask: Tensor, types: Any, site: int) -> tuple[Tensor, Tensor]:
        own: Any = self.trunk.embeddings
        R, T = ids.shape
        words = own.word_embeddings
        z = _Lookup.apply(
            ids.flatten(), words.weight, -1 if words.padding_idx is None else words.padding_idx
        )
        z = z.view(R, T, -1)
        table = own.position_embeddings.weight
        if self.trunk.config.model_type in ROBERTA:
            first = (
                own.padding_idx + 1
            )  # positions are counted from there, and padding stands at the one before
            z = z + torch.where(
                mask.bool()[..., None], table[first : first + T], table[first - 1].detach()
            )
        else:
            z = z + table[:T]
        if hasattr(own, "token_type_embeddings"):
            kinds = own.token_type_embeddings.weight
            second = types is not None and len(kinds) > 1
            z = z + (
                torch.where(types.bool()[..., None], kinds[1], kinds[0]) if second else kinds[0]
            )
        norm = own.LayerNorm
        found: tuple[Tensor, Tensor] = _AddNorm.apply(
            None,
            None,
            z.flatten(0, 1),
            norm.weight,
            norm.bias,
            norm.eps,
            self.seed,
            site,
            own.dropout.p,
            self.dtype,
        )
        project = getattr(self.trunk, "embeddings_project", None)
        if project is None:
            return found
        copy = self.halves.of(project)
        half = F.linear(found[1], copy.weight, copy.bias)
        return half.float(), half


def fuse(
    trunks: Sequence[Any], learners: nn.Module, dtype: torch.dtype
) -> tuple[Halves, list[FusedTrunk | None]]:
    """Half-precision copies of all linear layers of the learners, and the fused passes of the trunks that have that form."""
    fit = importlib.util.find_spec("triton") is not None
    layers = [layers_of(trunk) if fit else None for trunk in trunks]
    halves = Halves(
        learners,
        dtype,
        [group for found in layers for own in found or [] for group in own.products],
    )
    fused: list[FusedTrunk | None] = []
    for number, (trunk, found) in enumerate(zip(trunks, layers, strict=True)):
        if found is None:
            fused.append(None)
            continue
        first = 10_000_000 * number  # trunks side by side do not drop the same numbers
        fused.append(FusedTrunk(trunk, found, halves, heads_of(trunk), dtype, first))
    return halves, fused


def heads_of(trunk: Any) -> int:
    return int(
        getattr(trunk.config, "num_attention_heads", 0) or getattr(trunk.config, "n_heads", 0) or 0
    )


class _AddNorm(torch.autograd.Function):
    """(normalised, the same in half precision) of rest + dropout(a + bias), or of rest alone and then dropout."""

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
        site: int,
        p: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        from closeknit.kernels import layers

        out, half, total, mean, shrink = layers.norm(
            a, bias, rest, gain, shift, eps, seed, site, p, dtype
        )
        ctx.save_for_backward(total, gain, mean, shrink, seed)
        ctx.site, ctx.p, ctx.half = site, p, None if a is None else a.dtype
        ctx.set_materialize_grads(False)
        return out, half

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from closeknit.kernels import layers

        total, gain, mean, shrink, seed = ctx.saved_tensors
        given = [None if grad is None else grad.contiguous() for grad in grads]
        rest, a, sums = layers.norm_back(
            given[0], given[1], total, gain, mean, shrink, seed, ctx.site, ctx.p, ctx.half
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
    """Attention of all heads over the packed queries, keys and values (N, 3 H), to which their biases are added here."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        biases: Tensor,
        lengths: Tensor,
        T: int,
        heads: int,
        seed: Tensor,
        site: int,
        p: float,
    ) -> Tensor:
        from closeknit.kernels import layers

        ctx.save_for_backward(qkv, biases, lengths, seed)
        ctx.T, ctx.heads, ctx.site, ctx.p = T, heads, site, p
        return layers.attend(qkv, biases, lengths, T, heads, seed, site, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.kernels import layers

        qkv, biases, lengths, seed = ctx.saved_tensors
        grad = grads[0].contiguous()
        own, sums = layers.attend_back(
            qkv, biases, lengths, grad, ctx.T, ctx.heads, seed, ctx.site, ctx.p
        )
        return own, sums, None, None, None, None, None, None


def dropped(x: Tensor, seed: Tensor, site: int, p: float) -> Tensor:
    """Dropout that is a function of a seed on the device and of its place in the network."""
    found: Tensor = _Drop.apply(x, seed, site, p)
    return found


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, site: int, p: float) -> Tensor:
        from closeknit.kernels import layers

        ctx.save_for_backward(seed)
        ctx.site, ctx.p = site, p
        return layers.drop(x, seed, site, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.kernels import layers

        (seed,) = ctx.saved_tensors
        return layers.drop(grads[0], seed, ctx.site, ctx.p), None, None, None


class _Gelu(torch.autograd.Function):
    """gelu(x + bias)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        from closeknit.kernels import layers

        ctx.save_for_backward(x, bias)
        return layers.gelu(x, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.kernels import layers

        return layers.gelu_back(grads[0].contiguous(), *ctx.saved_tensors)


def _exact(activation: Any) -> bool:
    """Whether a gelu is the one with the error function."""
    approximate = getattr(activation, "approximate", None) == "tanh"
    return not approximate and not getattr(activation, "use_gelu_python", False)


class _Lookup(torch.autograd.Function):
    """Rows of an embedding, with a gradient that is always summed in the same order."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, skipped: int) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.skipped = len(weight), skipped
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from closeknit.kernels import layers

        (ids,) = ctx.saved_tensors
        return None, layers.scatter(ids, grads[0].contiguous(), ctx.rows, ctx.skipped), None
