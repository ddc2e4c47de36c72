"""Ways to make two views of one text: spans masked in the text, attention heads dropped in the encoder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from closeknit.encoder import Encoder
from closeknit.errors import ConfigError

SHORTEST = 30  # letters; shorter texts are left whole, as Mirror-BERT does


def mask_span(text: str, length: int, mask: str, generator: np.random.Generator) -> str:
    """The text with `length` letters at a drawn place replaced by the mask token; short texts stay whole."""
    if length == 0 or len(text) < SHORTEST or len(text) <= length:
        return text
    start = int(generator.integers(len(text) - length + 1))
    return f"{text[:start]} {mask} {text[start + length :]}"


def mask_spans(
    texts: Sequence[str], rows: Sequence[int], length: int, mask: str, seed: int, epoch: int
) -> list[str]:
    """Masked texts of these rows: the same for the same seed, epoch and row."""
    return [mask_span(texts[row], length, mask, np.random.default_rng((seed, epoch, row))) for row in rows]


# Where architectures multiply the joined heads by their output weights.
_OUTPUTS = ("attention.output.dense", "attention.dense", "attention.out_lin", "attn.Wo")


@contextlib.contextmanager
def without_dropout(encoder: Encoder) -> Iterator[None]:
    """Inside, dropout lets everything through."""
    places = [
        (module, name, float(getattr(module, name)))
        for module in encoder.modules()
        # some architectures keep the rate of their attention as a number
        for name in (("p",) if isinstance(module, nn.Dropout) else ("attention_dropout",))
        if isinstance(getattr(module, name, None), float)
    ]
    for module, name, _ in places:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in places:
            setattr(module, name, rate)


@contextlib.contextmanager
def drophead(encoder: Encoder, p: float) -> Iterator[None]:
    """Inside, whole attention heads are dropped in training: drawn for each text and layer, kept with probability 1 - p, one at
    least, and what is kept scaled by heads / kept.
    """
    config: Any = encoder.config
    heads = int(getattr(config, "num_attention_heads", 0) or getattr(config, "n_heads", 0))
    places = [
        module
        for name, module in encoder.trunk.named_modules()
        if name.endswith(_OUTPUTS) and isinstance(module, nn.Linear)
    ]
    if not places or not heads:
        raise ConfigError(
            f"drophead does not know where {encoder.model_type} keeps its attention heads; use dropout"
        )

    def drop(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if not module.training:
            return arguments
        joined: Tensor = arguments[0]  # (R, T, heads x d)
        return (joined * head_factors(joined, heads, p).to(joined.dtype), *arguments[1:])

    hooks = [module.register_forward_pre_hook(drop) for module in places]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def head_factors(joined: Tensor, heads: int, p: float) -> Tensor:
    """Factors (R, 1, heads x d) for rows of joined heads: 0, or heads / kept."""
    chance = torch.rand(len(joined), heads, device=joined.device)
    kept = (chance >= p) | (chance == chance.max(dim=1, keepdim=True).values)  # one at least
    factor = kept * (heads / kept.sum(1, keepdim=True))  # (R, heads)
    return factor.repeat_interleave(joined.shape[-1] // heads, dim=1)[:, None, :]
