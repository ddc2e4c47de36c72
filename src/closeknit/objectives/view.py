"""Views: the parts of the model's output that an objective can read."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

VIEWS = (
    "logits",  # class logits of the classifier
    "pooled",  # one vector per text
    "projected",  # the pooled vector after a small perceptron
    "tokens",  # all tokens except padding
    "content_tokens",  # all tokens except padding and special tokens
    "all_tokens",  # all tokens, also padding
    "weighting_logits",  # class logits of a second encoder
    "weights",  # class probabilities of the second encoder
    "head_weights",  # class probabilities of the classifier, without a gradient
    "masked_tokens",  # a language model's predictions of the tokens that were masked
)
# The option `tokens` of triple_entropy, and the view that each of its values means.
TOKEN_VIEWS = {"real": "tokens", "content": "content_tokens", "all": "all_tokens"}


class View(NamedTuple):
    """The rows of one view of a batch, and the label of each row."""

    z: Tensor  # (R, D)
    y: Tensor  # (R,)
