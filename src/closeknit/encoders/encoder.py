"""Encoder: a pretrained trunk (or TextCNN), and how its tokens become one vector per text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from closeknit.encoders.textcnn import TextCNN
from closeknit.errors import ConfigError, ModelError, did_you_mean

POOLINGS = ("first", "mean", "own")


class Encoded(NamedTuple):
    """What the encoder gives for R rows of T tokens."""

    hidden: Tensor  # (R, T, H)
    mask: Tensor  # (R, T) false for padding
    special: Tensor  # (R, T) true for padding and special tokens
    pooled: Tensor  # (R, H)


class TrunkPass(Protocol):
    """Another way to compute a trunk's forward pass, for the batches that it fits.

    It gives the hidden states (R, T, H), or those of the first token alone, (R, 1, H).
    """

    def fits(self, inputs: dict[str, Tensor]) -> bool:
        """Whether these inputs can take this pass."""

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor: ...


class Encoder(nn.Module):
    """A trunk that turns token ids into hidden states, and a pooling that makes one vector of them.

    `first` takes the classification token (in XLNet this is the last token), `mean` the mean of all
    tokens except padding, `own` what the architecture itself offers: the trained pooler of BERT,
    RoBERTa and ALBERT, the maximum over time of TextCNN.
    """

    def __init__(self, trunk: nn.Module, pooling: str, name: str) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ConfigError(f"encoder.pooling is {pooling}{did_you_mean(pooling, POOLINGS)}")
        self.trunk = trunk
        self.name = name
        config: Any = trunk.config
        self.config = config
        self.model_type: str = config.model_type
        self.dim: int = config.hidden_size
        if self.model_type == "textcnn" and pooling == "first":
            pooling = "own"  # a convolution has no classification token
        self.pooling = pooling
        self._check_pooling()
        self.top: nn.Module = nn.Identity()  # what several tasks share above the pooled vector
        self._trunk_pass: TrunkPass | None = None

    def put_on_top(self, top: nn.Module) -> None:
        """Let this module follow the pooling: it turns pooled vectors (R, H) into what all tasks
        read (R, H).
        """
        self.top = top

    @property
    def trunk_pass(self) -> TrunkPass | None:
        """What computes the trunk's forward pass at present; None: the trunk itself."""
        return self._trunk_pass

    @contextlib.contextmanager
    def use_trunk_pass(self, trunk_pass: TrunkPass | None) -> Iterator[None]:
        """Inside, the trunk's forward pass is computed by this, for the batches that it fits; None:
        by the trunk itself.
        """
        before = self._trunk_pass
        self._trunk_pass = trunk_pass
        try:
            yield
        finally:
            self._trunk_pass = before

    def _check_pooling(self) -> None:
        has_pooler = self.model_type == "textcnn" or getattr(self.trunk, "pooler", None) is not None
        if self.pooling == "own" and not has_pooler:
            raise ConfigError(
                f"{self.name} has no trained pooler of its own; use pooling first or mean"
            )
        is_causal = any(getattr(module, "is_causal", False) for module in self.trunk.modules())
        if self.pooling == "first" and is_causal:
            raise ConfigError(
                f"{self.name} reads each token without the tokens after it, so that the first token knows "
                "nothing of the text; use pooling mean, or a BERT-like encoder"
            )

    def forward(self, inputs: dict[str, Tensor]) -> Encoded:
        trunk_inputs = {key: value for key, value in inputs.items() if key != "special"}
        mask = inputs["attention_mask"].bool()  # (R, T)
        own_pooled: Tensor | None = None
        try:
            if self._trunk_pass is not None and self._trunk_pass.fits(trunk_inputs):
                hidden = self._trunk_pass(trunk_inputs)
            else:
                output = self.trunk(**trunk_inputs)
                hidden = output.last_hidden_state
                own_pooled = getattr(output, "pooler_output", None)
        except IndexError:
            self._check_token_ids(inputs["input_ids"])
            raise
        pooled = self.top(self._pool(hidden, mask, own_pooled))
        return Encoded(hidden, mask, inputs["special"], pooled)

    def _check_token_ids(self, ids: Tensor) -> None:
        """Refuses token ids that the encoder has no embedding for."""
        largest = int(ids.max())
        vocabulary = getattr(self.config, "vocab_size", None)
        if vocabulary is not None and largest >= vocabulary:
            raise ModelError(
                f"the tokenizer of {self.name} has a token with the number {largest}, but the encoder knows "
                f"{vocabulary} tokens; if tokens were added, enlarge its embeddings with "
                "resize_token_embeddings and save it again"
            ) from None

    def _pool(self, hidden: Tensor, mask: Tensor, own_pooled: Tensor | None) -> Tensor:
        if self.pooling == "own":
            trunk: Any = self.trunk
            pooled: Tensor = trunk.pooler(hidden) if own_pooled is None else own_pooled
            return pooled
        if self.pooling == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)  # (R, T, 1)
            mean = (hidden * weights).sum(1) / weights.sum(1)  # (R, H)
            dropped: Tensor = self.trunk.dropout(mean) if isinstance(self.trunk, TextCNN) else mean
            return dropped
        return hidden[:, -1] if self.model_type == "xlnet" else hidden[:, 0]
