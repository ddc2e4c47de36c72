"""Views: the parts of the model's output that an objective can read."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from closeknit.errors import ConfigError, did_you_mean

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
# The values of the option `tokens` of metric losses, and the view that each of them means.
TOKEN_VIEWS = {"real": "tokens", "content": "content_tokens", "all": "all_tokens"}
ONE_VECTOR = "pooled"  # the value of `tokens` for one vector per text
VALUES_OF_TOKENS = {**TOKEN_VIEWS, ONE_VECTOR: "pooled"}
# How many rows of tokens the losses that compare rows in pairs read in an update, unless a
# configuration says otherwise. They need memory for the square of this number.
TOKEN_ROWS = 1024


class View(NamedTuple):
    """The rows of one view of a batch, and the label of each row."""

    z: Tensor  # (R, D)
    y: Tensor  # (R,)


def view_of_tokens(tokens: str) -> str:
    """The view that a value of the option `tokens` means; refuses an unknown value."""
    if tokens not in VALUES_OF_TOKENS:
        hint = did_you_mean(str(tokens), VALUES_OF_TOKENS)
        raise ConfigError(f"objective.tokens is {tokens}{hint}")
    return VALUES_OF_TOKENS[tokens]


def rows_of_tokens(tokens: str, token_rows: int) -> int:
    """How many rows of tokens a loss reads at most in an update; 0 for one vector per text.

    A number that was given for nothing is refused.
    """
    if isinstance(token_rows, bool) or not isinstance(token_rows, int) or token_rows < 2:
        raise ConfigError(
            f"objective.token_rows is {token_rows}; it must be a whole number of at least 2"
        )
    if tokens != ONE_VECTOR:
        return token_rows
    if token_rows != TOKEN_ROWS:
        raise ConfigError(
            f"objective.token_rows is {token_rows}, but objective.tokens is {ONE_VECTOR}, so that "
            "no tokens are read; set objective.tokens to real, content or all"
        )
    return 0
