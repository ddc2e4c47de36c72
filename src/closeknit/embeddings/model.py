"""SentenceModel: an encoder that turns texts into vectors, and the folder it is saved in.

The folder opens in `SentenceTransformer(path)` with the same vectors, and in transformers as a bare
encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from closeknit.console import progress_bar
from closeknit.embeddings.config import EmbeddingConfig
from closeknit.embeddings.declared import declared_modules
from closeknit.encoders.config import EncoderConfig
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.inference import Floats, encode_texts, existing_device
from closeknit.encoders.loading import load_encoder
from closeknit.encoders.tokenisers import PretrainedTokeniser, Tokeniser
from closeknit.metrics import scaled_to_unit_length
from closeknit.models.card import sentence_card
from closeknit.models.export import write_encoder
from closeknit.models.folder import (
    HEADS,
    MAIN,
    read_facts,
)
from closeknit.models.saved_model import SavedModel, fill, load_saved_encoder
from closeknit.storage import read_tensors, write_tensors


class Dense(nn.Module):
    """SimCSE's layer on the first token: linear, then tanh."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, pooled: Tensor) -> Tensor:
        return torch.tanh(self.linear(pooled))


@dataclass
class SentenceModel(SavedModel):
    """Texts in, vectors out."""

    kind: ClassVar[str] = "sentence_encoder"

    encoder: Encoder
    tokeniser: Tokeniser
    config: EmbeddingConfig
    dense: Dense | None = None  # part of the vector, where it was kept
    metrics: dict[str, Any] = field(default_factory=dict)

    @torch.inference_mode()
    def encode(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = False,
        batch_size: int | None = None,
        show_progress: bool = False,
        half: bool = False,
    ) -> Floats:
        """The vectors (R, H) of texts; at most `batch_size` texts of 128 tokens at once.

        `half` computes in bfloat16 on a GPU: faster, and right to two or three digits.
        """
        with progress_bar("texts", len(texts), show=show_progress) as advance:
            pooled = encode_texts(
                self.encoder,
                self.tokeniser,
                texts,
                budget=None if batch_size is None else 128 * batch_size,
                half=half,
                progress=advance,
            )
        if self.dense is not None:
            device = next(self.dense.parameters()).device
            pooled = self.dense.eval()(torch.from_numpy(pooled).to(device)).float().cpu().numpy()
        if normalize:
            pooled = scaled_to_unit_length(pooled)
        return pooled

    @classmethod
    def untrained(
        cls, name: str | None, *, pooling: str = "mean", max_length: int | None = None
    ) -> SentenceModel:
        """A pretrained encoder as it is."""
        encoder, tokeniser = load_encoder(name, pooling=pooling, max_length=max_length)
        assert isinstance(tokeniser, PretrainedTokeniser)
        config = EmbeddingConfig(EncoderConfig(name, pooling, tokeniser.max_length))
        return cls(encoder, tokeniser, config).to(existing_device(None))

    @classmethod
    def before_training(cls, config: EmbeddingConfig) -> SentenceModel:
        """The encoder that a run with this configuration starts from."""
        start = config.encoder
        return cls.untrained(start.name, pooling=start.pooling, max_length=start.max_length)

    # -- the folder

    def own_facts(self) -> dict[str, Any]:
        return {"dense": self.dense is not None}

    def modules(self) -> Sequence[nn.Module]:
        return (self.encoder,) if self.dense is None else (self.encoder, self.dense)

    def card(self) -> Callable[[dict[str, Any], dict[str, Any]], str]:
        return sentence_card

    def write_weights(self, folder: Path) -> None:
        last = self.dense.linear if self.dense is not None else None
        write_encoder(folder, self.encoder, self.config.encoder.max_length, dense=last)
        if self.dense is not None:
            write_tensors(folder / HEADS, self.dense.state_dict())

    def read_weights(self, folder: Path) -> None:
        if self.dense is not None:
            fill(self.dense, read_tensors(folder / HEADS), folder / HEADS)

    @classmethod
    def read_settings(cls, tables: dict[str, Any]) -> EmbeddingConfig:
        return EmbeddingConfig.from_dict(tables)

    @classmethod
    def from_facts(
        cls,
        facts: dict[str, Any],
        settings: EmbeddingConfig,
        encoder: Encoder,
        tokeniser: Tokeniser,
    ) -> Self:
        return cls(encoder, tokeniser, settings, Dense(encoder.dim) if facts["dense"] else None)


# Families of sentence encoders, as their hub names and folders show.
_TUNED_NAMES = (
    "sentence-transformers/",
    "gte-",
    "e5-",
    "bge-",
    "all-minilm",
    "all-mpnet",
    "simcse",
    "sentence-t5",
)


def is_sentence_encoder(name: str | None) -> bool:
    """Whether an encoder was trained for sentences already, as far as its files or its name
    tell.
    """
    if name is None or (Path(name) / "modules.json").exists():
        return True
    return any(sign in name.lower() for sign in _TUNED_NAMES)


def _shared_layer(folder: Path, encoder: Encoder) -> Dense | None:
    """The layer that all tasks of a model share, where they share one."""
    tensors = read_tensors(folder / HEADS)
    if "top.linear.weight" not in tensors:
        return None
    dense = Dense(encoder.dim)
    dense.linear.load_state_dict({key: tensors[f"top.linear.{key}"] for key in ("weight", "bias")})
    return dense


def load_sentence_model(
    source: str | Path, *, pooling: str | None = None, bare: bool = False
) -> SentenceModel:
    """A model folder of Closeknit (of any kind), or any encoder by name or folder.

    Unless told otherwise, an encoder is pooled as its `modules.json` declares, and by the mean
    where it declares nothing.

    A `bare` one is there sooner where it is a model folder, and can be used but neither trained nor
    saved.
    """
    if (Path(source) / MAIN).exists():
        facts = read_facts(Path(source), None)
        if facts["kind"] == "sentence_encoder":
            model = SentenceModel.load(source, bare=bare)
            if pooling is not None and pooling != model.encoder.pooling:
                model.encoder = Encoder(model.encoder.trunk, pooling, model.encoder.name)
                model.dense = None
            return model
        length = facts["run"]["encoder"]["max_length"]
        encoder, tokeniser = load_saved_encoder(Path(source), facts["encoder"], length, bare=bare)
        shared = _shared_layer(Path(source), encoder) if facts["kind"] == "multi_task" else None
        if pooling is not None and pooling != encoder.pooling:
            encoder = Encoder(encoder.trunk, pooling, encoder.name)
            shared = None
        config = EmbeddingConfig(EncoderConfig(str(source), encoder.pooling, length))
        return SentenceModel(encoder, tokeniser, config, shared).to(existing_device(None))
    if str(source) == "default":
        return SentenceModel.untrained(None, pooling=pooling or "mean")
    declared = declared_modules(source) if pooling is None else None
    if declared is None:
        return SentenceModel.untrained(str(source), pooling=pooling or "mean")
    model = SentenceModel.untrained(str(source), pooling=declared.pooling)
    if declared.dense is not None:
        model.dense = Dense(model.encoder.dim)
        fill(model.dense.linear, declared.dense, Path(source) / "modules.json")
        model.to(existing_device(None))
    return model
