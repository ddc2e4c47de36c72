"""Ways to make different views of one text: masked spans, dropout and dropped attention heads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from closeknit.encoders.encoder import Encoder
from closeknit.errors import ConfigError

SHORTEST = 30  # characters; shorter texts are not masked, as in Mirror-BERT


def mask_span(text: str, length: int, mask: str, generator: np.random.Generator) -> str:
    """The text with `length` characters at a random place replaced by the mask token.

    Texts shorter than SHORTEST stay unchanged.
    """
    if length == 0 or len(text) < SHORTEST or len(text) <= length:
        return text
    start = int(generator.integers(len(text) - length + 1))
    return f"{text[:start]} {mask} {text[start + length :]}"


def mask_spans(
    texts: Sequence[str], rows: Sequence[int], length: int, mask: str, seed: int, epoch: int
) -> list[str]:
    """These rows of the texts, masked; the same seed, epoch and row give the same masked text."""
    masked: list[str] = []
    for row in rows:
        generator = np.random.default_rng((seed, epoch, row))
        masked.append(mask_span(texts[row], length, mask, generator))
    return masked


# ---------------------------------------------------------------- dropout

# The dropout rate of an encoder that has none of its own, where two views of a text need one.
DROPOUT_FOR_VIEWS = 0.1


def _dropout_rates(encoder: Encoder) -> list[tuple[nn.Module, str, float]]:
    """(module, attribute, rate) of everything in an encoder that drops out."""
    rates: list[tuple[nn.Module, str, float]] = []
    for module in encoder.modules():
        # Some architectures keep the dropout rate of their attention as a number, not as a module.
        name = "p" if isinstance(module, nn.Dropout) else "attention_dropout"
        rate = getattr(module, name, None)
        if isinstance(rate, float):
            rates.append((module, name, rate))
    return rates


@contextlib.contextmanager
def without_dropout(encoder: Encoder) -> Iterator[None]:
    """Sets all dropout rates of the encoder to 0 inside the `with` block."""
    rates = _dropout_rates(encoder)
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


def require_dropout_for_views(encoder: Encoder, asked: float | None, reader: str) -> None:
    """Refuse an encoder whose two views of a text would be equal; see `dropout_for_views`."""
    rate = dropout_for_views(encoder, asked, reader)
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
def drophead(encoder: Encoder, p: float) -> Iterator[None]:
    """Drops whole attention heads in training inside the `with` block.

    For each text and layer, a head is kept with probability 1 - p; at least one head is kept. The
    kept heads are scaled by (number of heads) / (number of kept heads).
    """
    config: Any = encoder.config
    heads = int(getattr(config, "num_attention_heads", 0) or getattr(config, "n_heads", 0))
    layers = [
        module
        for name, module in encoder.trunk.named_modules()
        if name.endswith(_OUTPUT_LAYERS) and _is_linear(module)
    ]
    if not layers or not heads:
        raise ConfigError(
            f"drophead does not know the attention heads of the architecture {encoder.model_type}; use dropout"
        )

    def drop(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if not module.training:
            return arguments
        joined: Tensor = arguments[0]  # (R, T, heads x d)
        return (joined * head_factors(joined, heads, p).to(joined.dtype), *arguments[1:])

    hooks = [module.register_forward_pre_hook(drop) for module in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, by itself or with a low-rank adapter around it."""
    return isinstance(getattr(module, "base_layer", module), nn.Linear)


def head_factors(joined: Tensor, heads: int, p: float) -> Tensor:
    """Random factors (R, 1, heads x d) for joined heads: 0, or heads / (number of kept heads)."""
    chance = torch.rand(len(joined), heads, device=joined.device)  # (R, heads)
    is_largest = chance == chance.max(dim=1, keepdim=True).values  # this head is always kept
    kept = (chance >= p) | is_largest  # (R, heads)
    factor = kept * (heads / kept.sum(1, keepdim=True))  # (R, heads)
    return factor.repeat_interleave(joined.shape[-1] // heads, dim=1)[:, None, :]
