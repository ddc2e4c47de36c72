"""TextCNN: word embeddings, convolutions of three widths, the maximum over time (Kim, 2014)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TextCNNConfig:
    """The sizes of a TextCNN, with the attribute names that transformers configurations have."""

    vocabulary: int
    embedding: int = 300
    filters: int = 100
    widths: tuple[int, ...] = (3, 4, 5)
    dropout: float = 0.5

    model_type = "textcnn"
    classifier_dropout = 0.0  # the pooled vector already went through dropout

    @property
    def hidden_size(self) -> int:
        """The dimension of hidden states and of the pooled vector."""
        return self.filters * len(self.widths)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON data, for the saved model."""
        return {"model_type": self.model_type, **asdict(self)}


class TextCNN(nn.Module):
    """A convolutional encoder: a text is described by the maximum over its tokens' convolutions.

    With embeddings of E dimensions, H = filters x widths: inputs (R, T) -> hidden states (R, T, H)
    and pooled vectors (R, H).
    """

    def __init__(self, config: TextCNNConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.embedding, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding, config.filters, width) for width in config.widths
        )
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def create(cls, vocabulary: int, *, dropout: float = 0.5) -> TextCNN:
        """A new encoder with random weights for a vocabulary of this size."""
        return cls(TextCNNConfig(vocabulary, dropout=dropout))

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TextCNN:
        """A new encoder with random weights and the settings of a saved model."""
        options = {key: value for key, value in settings.items() if key != "model_type"}
        options["widths"] = tuple(options["widths"])
        return cls(TextCNNConfig(**options))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        is_token = attention_mask.bool().unsqueeze(-1)  # (R, T, 1), false for padding
        words = (self.embedding(input_ids) * is_token).transpose(1, 2)  # (R, E, T)
        maps: list[Tensor] = []
        for width, convolution in zip(self.config.widths, self.convolutions, strict=True):
            padded = F.pad(words, ((width - 1) // 2, width // 2))  # (R, E, T + width - 1)
            maps.append(convolution(padded))  # (R, filters, T)
        hidden = torch.relu(torch.cat(maps, dim=1)).transpose(1, 2) * is_token  # (R, T, H)
        pooled = self.dropout(hidden.amax(dim=1))  # (R, H)
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=pooled)
