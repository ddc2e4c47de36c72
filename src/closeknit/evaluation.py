"""What a trained encoder says of texts: embed once, without padding waste."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from .encoder import Encoder
from .tokens import Tokens

Floats = npt.NDArray[np.float32]


@torch.inference_mode()
def outputs(
    encoder: Encoder, heads: nn.ModuleDict | None, tokens: Tokens, *, budget: int = 8192
) -> tuple[Floats, Floats]:
    """(logits (R, C), pooled (R, H)) of tokenised texts, in their order.

    Texts are taken longest first and batched by tokens: `budget` is the most of them at once. Without
    heads the logits have no columns.
    """
    encoder.eval()
    if heads is not None:
        heads.eval()
    device = next(encoder.parameters()).device
    order = np.argsort(-tokens.lengths, kind="stable")
    pooled = np.empty((len(tokens), encoder.dim), dtype=np.float32)
    classes = heads["logits"].classes if heads is not None else 0
    logits = np.empty((len(tokens), int(classes)), dtype=np.float32)  # type: ignore[arg-type]
    start = 0
    while start < len(order):
        rows = order[start : start + max(1, budget // int(tokens.lengths[order[start]]))]
        inputs = {name: value.to(device) for name, value in tokens.pad(rows).items()}
        encoded = encoder(inputs)
        pooled[rows] = encoded.pooled.float().cpu().numpy()
        if heads is not None:
            logits[rows] = heads["logits"](encoded.pooled).float().cpu().numpy()
        start += len(rows)
    return logits, pooled


def softmax(logits: Floats) -> Floats:
    """Probabilities (R, C), each row summing to 1."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares
