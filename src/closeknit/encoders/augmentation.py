"""Second views that the encoder makes itself: by dropout, dropped attention heads, adversarial
changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.encoders.encoder import Encoded, Encoder
from closeknit.encoders.run_time_modules import is_plain_linear, linears_reading
from closeknit.errors import ConfigError
from closeknit.objectives.copies import Copies
from closeknit.objectives.geometry import at_least_float32, unit

# ---------------------------------------------------------------- dropout

# The dropout rate of an encoder that has none of its own, where two views of a text need one.
DROPOUT_FOR_VIEWS = 0.1


def _dropout_rates(*roots: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """(module, attribute, rate) of everything in these modules that drops out."""
    rates: list[tuple[nn.Module, str, float]] = []
    for module in (inner for root in roots for inner in root.modules()):
        # Some architectures keep the dropout rate of their attention as a number, not as a module.
        name = "p" if isinstance(module, nn.Dropout) else "attention_dropout"
        rate = getattr(module, name, None)
        if isinstance(rate, float):
            rates.append((module, name, rate))
    return rates


@contextlib.contextmanager
def without_dropout(*roots: nn.Module) -> Iterator[None]:
    """Sets all dropout rates of these modules to 0 inside the `with` block."""
    rates = _dropout_rates(*roots)
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in rates:
            setattr(module, name, rate)


def has_dropout(encoder: Encoder) -> bool:
    """Whether two passes of one text through the encoder differ in training."""
    return any(rate > 0 for _, _, rate in _dropout_rates(encoder))


def dropout_for_views(
    encoder: Encoder, asked: float | None, reader: str, *, second_view: str = "dropout"
) -> float | None:
    """The dropout rate that an encoder must be loaded with, so that two views of a text differ.

    None says that it can stay as it is. `asked` is `encoder.dropout`, and `reader` names what
    compares the views. `second_view` says what makes the second view of a text; only views by
    dropout alone need a rate above 0, so any other value is answered with None.
    """
    if second_view != "dropout" or has_dropout(encoder):
        return None
    if asked is not None:
        raise ConfigError(
            f"encoder.dropout is {asked:g}, but {reader} compares two views of each text that "
            "differ by dropout alone; leave encoder.dropout open, or set it above 0"
        )
    return DROPOUT_FOR_VIEWS


def require_dropout_for_views(
    encoder: Encoder, asked: float | None, reader: str, *, second_view: str
) -> None:
    """Refuse an encoder whose two views of a text would be equal; see `dropout_for_views`."""
    rate = dropout_for_views(encoder, asked, reader, second_view=second_view)
    if rate is not None:
        raise ConfigError(
            f"{encoder.name} has no dropout, but {reader} compares two views of each text that "
            f"differ by dropout alone; set encoder.dropout={rate}"
        )


def dropout_note(encoder: Encoder, rate: float, reader: str) -> str:
    """The line that says that a dropout rate was set."""
    return (
        f"{encoder.name} has no dropout of its own, but {reader} compares two views of each text "
        f"that differ by dropout alone: encoder.dropout is set to {rate}"
    )


# ---------------------------------------------------------------- dropped attention heads

# How the architectures name the layer that multiplies the joined heads by their output weights.
_OUTPUT_LAYERS = ("attention.output.dense", "attention.dense", "attention.out_lin", "attn.Wo")


@contextlib.contextmanager
def drophead(encoder: Encoder, p: float, rows: Tensor | None = None) -> Iterator[None]:
    """Drops whole attention heads in training inside the `with` block.

    For each text and layer, a head is kept with probability 1 - p; at least one head is kept. The
    kept heads are scaled by (number of heads) / (number of kept heads). With `rows` (R,) this
    happens in these rows only.
    """
    heads, layers = _attention_outputs(encoder)

    def drop(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if not module.training:
            return arguments
        joined: Tensor = arguments[0]  # (R, T, heads x d)
        factors = head_factors(joined, heads, p)  # (R, 1, heads x d)
        if rows is not None:
            factors = torch.where(rows[:, None, None], factors, 1.0)
        return (joined * factors.to(joined.dtype), *arguments[1:])

    hooks = [module.register_forward_pre_hook(drop) for module in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _attention_outputs(encoder: Encoder) -> tuple[int, list[nn.Module]]:
    """The number of attention heads, and the layers that multiply the joined heads."""
    config: Any = encoder.config
    heads = int(getattr(config, "num_attention_heads", 0) or getattr(config, "n_heads", 0))
    layers = [
        module
        for name, module in encoder.trunk.named_modules()
        if name.endswith(_OUTPUT_LAYERS)
        # with low-rank adapters around it, the linear layer is their base layer
        and is_plain_linear(getattr(module, "base_layer", module))
    ]
    if not layers or not heads:
        raise ConfigError(
            f"drophead does not know the attention heads of the architecture {encoder.model_type}; use dropout"
        )
    return heads, layers


def head_factors(joined: Tensor, heads: int, p: float) -> Tensor:
    """Random factors (R, 1, heads x d) for joined heads: 0, or heads / (number of kept heads)."""
    chance = torch.rand(len(joined), heads, device=joined.device)  # (R, heads)
    is_largest = chance == chance.max(dim=1, keepdim=True).values  # this head is always kept
    kept = (chance >= p) | is_largest  # (R, heads)
    factor = kept * (heads / kept.sum(1, keepdim=True))  # (R, heads)
    return factor.repeat_interleave(joined.shape[-1] // heads, dim=1)[:, None, :]


# ---------------------------------------------------------------- adversarial changes

FIRST_STEP = 1.0  # length of the random change whose effect shows the direction; see `epsilon`


def adversarial_direction(
    difference: Callable[[Tensor], Tensor], start: Tensor, step: Tensor
) -> Tensor:
    """The direction (R, T, E) in which a change of a text changes the output most (Miyato et al.).

    `difference` gives for changes r (R, T, E) how much each output differs from the one without a
    change, D(r) (R,). D is 0 and has no slope at r = 0, so its second derivative H decides. One
    power iteration brings a random `start` d nearer to the first eigenvector of H:

        d <- g / |g|   with   g = gradient of D at r = step * d / |d|,   which is about step * H d

    `step` (R, 1, 1) is small. A text whose output does not change has the direction 0.
    """
    with torch.enable_grad():
        change = (step * _unit_texts(start)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(difference(change).sum(), change)
    return _unit_texts(gradient)


def _unit_texts(x: Tensor) -> Tensor:
    """Texts (R, T, E), each scaled to length 1 as a whole; zeros stay zeros."""
    return unit(x.flatten(1)).view_as(x)


def output_difference(before: Tensor, after: Tensor, *, are_logits: bool) -> Tensor:
    """How much outputs (R, C) differ, for each row (R,).

    Logits: KL(p || q) of their softmax. Vectors: the squared distance of the unit vectors.
    """
    if not are_logits:
        return (unit(after) - unit(before)).square().sum(-1)
    log_p = F.log_softmax(before, dim=-1)
    log_q = F.log_softmax(after, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def adversarial_change(
    encoder: Encoder,
    inputs: dict[str, Tensor],
    output: Callable[[Encoded], Tensor],
    epsilon: float,
    *,
    are_logits: bool,
) -> Tensor:
    """The change of the word embeddings (R, T, E) that changes the outputs of these texts most.

    Its length for a text is `epsilon` times the root mean square of the text's word embeddings, as
    if these were scaled to a variance of 1 first. Special tokens and padding are not changed. The
    outputs are those without dropout, in float32, by the trunk itself: the difference of two passes
    would otherwise be mostly rounding.
    """
    is_word = ~inputs["special"][..., None]  # (R, T, 1)
    device = inputs["input_ids"].device
    with (
        without_dropout(encoder),
        torch.autocast(device.type, enabled=False),
        linears_reading({}),
        encoder.use_trunk_pass(None),
    ):
        with torch.no_grad(), _changed_embeddings(encoder, None) as seen:
            before = at_least_float32(output(encoder(inputs)))
        embedded = at_least_float32(seen[0]) * is_word  # (R, T, E)
        numbers = is_word.sum((1, 2), keepdim=True).clamp_min(1) * embedded.shape[-1]
        size = (embedded.square().sum((1, 2), keepdim=True) / numbers).sqrt()  # (R, 1, 1)

        def difference(change: Tensor) -> Tensor:
            with _changed_embeddings(encoder, change * is_word):
                after = at_least_float32(output(encoder(inputs)))
            return output_difference(before, after, are_logits=are_logits)

        start = torch.randn_like(embedded) * is_word
        direction = adversarial_direction(difference, start, FIRST_STEP * size)
    return epsilon * size * direction


@contextlib.contextmanager
def _changed_embeddings(encoder: Encoder, change: Tensor | None) -> Iterator[list[Tensor]]:
    """Inside, this change (R, T, E) is added to the word embeddings; the list holds those of each
    pass before it.
    """
    tokens_first = encoder.model_type == "xlnet"  # it embeds (T, R) tokens
    seen: list[Tensor] = []

    def add(module: nn.Module, arguments: tuple[Any, ...], embedded: Tensor) -> Tensor:
        seen.append(embedded.transpose(0, 1) if tokens_first else embedded)
        if change is None:
            return embedded
        return embedded + (change.transpose(0, 1) if tokens_first else change).to(embedded.dtype)

    hook = _word_embeddings(encoder).register_forward_hook(add)
    try:
        yield seen
    finally:
        hook.remove()


def _word_embeddings(encoder: Encoder) -> nn.Module:
    """The layer that turns token numbers into vectors."""
    trunk: Any = encoder.trunk
    if encoder.model_type == "textcnn":
        layer = trunk.embedding
    else:
        try:
            layer = trunk.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            layer = getattr(getattr(trunk, "embeddings", None), "word_embeddings", None)
    if not isinstance(layer, nn.Module):
        raise ConfigError(
            f"an adversarial second view changes word embeddings, and those of the architecture "
            f"{encoder.model_type} are not known; use another second view"
        )
    return layer


# ---------------------------------------------------------------- second copies in a batch


def check_second_copies(encoder: Encoder, copies: Copies) -> None:
    """Refuse a second view that this encoder cannot make."""
    if copies.second_view == "drophead":
        _attention_outputs(encoder)
    if copies.second_view == "adversarial":
        _word_embeddings(encoder)


@contextlib.contextmanager
def second_copies_changed(
    encoder: Encoder,
    heads: Mapping[str, nn.Module],
    copies: Copies,
    inputs: dict[str, Tensor],
    is_second: Tensor,
    *,
    reads_logits: bool,
) -> Iterator[None]:
    """Inside, the encoder reads those rows of a batch that `is_second` (R,) names in the way of the
    second view.

    This is so in training only. `reads_logits` says that the objective trains the logits: then an
    adversarial change is the one that changes the class probabilities most, and else the one that
    changes the pooled vector most.
    """
    if not copies.changes_encoding or not encoder.training:
        yield
    elif copies.second_view == "drophead":
        with drophead(encoder, copies.drophead, is_second):
            yield
    elif not bool(is_second.any()):  # a chunk of a batch that holds first copies only
        yield
    else:
        chosen = {name: value[is_second] for name, value in inputs.items()}
        head = heads["logits"] if reads_logits else nn.Identity()
        with without_dropout(head):
            found = adversarial_change(
                encoder,
                chosen,
                lambda encoded: head(encoded.pooled),
                copies.epsilon,
                are_logits=reads_logits,
            )
        change = found.new_zeros(len(is_second), *found.shape[1:])
        change[is_second] = found
        with _changed_embeddings(encoder, change), encoder.use_trunk_pass(None):
            yield
