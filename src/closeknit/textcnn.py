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
    vocabulary: int
    embedding: int = 300
    filters: int = 100
    widths: tuple[int, ...] = (3, 4, 5)
    dropout: float = 0.5

    model_type = "textcnn"
    classifier_dropout = 0.0  # the pooled vector is dropped out already

    @property
    def hidden_size(self) -> int:
        return self.filters * len(self.widths)

    def to_dict(self) -> dict[str, Any]:
        return {"model_type": self.model_type, **asdict(self)}


class TextCNN(nn.Module):
    """Every token is described by the convolutions centered on it; a text by their maximum."""

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
        return cls(TextCNNConfig(vocabulary, dropout=dropout))

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TextCNN:
        options = {key: value for key, value in settings.items() if key != "model_type"}
        options["widths"] = tuple(options["widths"])
        return cls(TextCNNConfig(**options))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        real = attention_mask.bool().unsqueeze(-1)  # (R, T, 1)
        words = self.embedding(input_ids) * real  # (R, T, E)
        across = words.transpose(1, 2)  # (R, E, T)
        maps = torch.cat(
            [
                convolution(F.pad(across, ((width - 1) // 2, width // 2)))
                for width, convolution in zip(self.config.widths, self.convolutions, strict=True)
            ],
            dim=1,
        )  # (R, H, T)
        hidden = torch.relu(maps).transpose(1, 2) * real  # (R, T, H)
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=self.dropout(hidden.amax(dim=1)))
