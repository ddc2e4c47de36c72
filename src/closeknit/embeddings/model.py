"""SentenceModel: an encoder that turns texts into vectors, and the folder it is saved in.

The folder opens in `SentenceTransformer(path)` with the same vectors, and in transformers as a bare encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from closeknit.config import EncoderConfig, build_table
from closeknit.console import progress_bar
from closeknit.devices import existing_device
from closeknit.encoder import Encoder, load_encoder
from closeknit.errors import ConfigError, did_you_mean
from closeknit.evaluation import Floats, encode_texts
from closeknit.models.card import sentence_card
from closeknit.models.export import write_encoder
from closeknit.models.folder import (
    HEADS,
    MAIN,
    METRICS,
    damage_explained,
    describe_folder,
    fill,
    load_saved_encoder,
    read_facts,
    save_folder,
)
from closeknit.storage import read_json, read_tensors, write_tensors
from closeknit.tokens import PretrainedTokeniser, Tokeniser
from closeknit.train_config import TrainConfig

METHODS = ("simcse", "mirror", "multiple_negatives")
LEVELS = ("sentence", "phrase", "word")
NOISES = ("dropout", "drophead", "none")
HEAD_USES = ("auto", "none", "train", "keep")


@dataclass(frozen=True)
class MethodConfig:
    """How an embedding is learnt. Settings left at None or auto follow the method and the data.

    simcse: the same text twice through dropout, or with pairs and triplets what belongs together; InfoNCE.
    mirror: the same text twice, a span masked in the second; NT-Xent; also for phrases and words.
    multiple_negatives: pairs, the answers to all other questions of the batch being wrong.
    """

    name: str = "simcse"
    temperature: float | None = (
        None  # simcse 0.05; mirror 0.04, for phrases and words 0.2; multiple_negatives 0.05
    )
    level: str = "sentence"  # mirror: what the texts are; sentence, phrase or word
    mask: int | None = None  # mirror: letters of the masked span; 5 for sentences, else 0
    noise: str = "dropout"  # what makes two views differ: dropout, drophead, or none (only negatives teach)
    drophead: float = 0.05  # share of attention heads dropped with noise = drophead
    head: str = "auto"  # a dense layer with tanh on the first token: none, train (only), keep; see below
    hard_weight: float = 0.0  # simcse with triplets: added to the logit of a text's own negative
    adapt_epochs: int = 0  # passes of masked-language modelling over the texts beforehand
    adapt_lr: float = 1e-4
    adapt_share: float = 0.15  # of the tokens that are masked in it

    def __post_init__(self) -> None:
        for name, known in (("name", METHODS), ("level", LEVELS), ("noise", NOISES), ("head", HEAD_USES)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"method.{name} is {value}{did_you_mean(str(value), known)}")
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(f"method.temperature is {self.temperature}; it must be above 0")
        for name in ("drophead", "adapt_share"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ConfigError(f"method.{name} is {getattr(self, name)}; it must be between 0 and 1")
        if (self.mask or 0) < 0 or self.adapt_epochs < 0 or self.adapt_lr <= 0:
            raise ConfigError(
                "method.mask and method.adapt_epochs must not be negative, method.adapt_lr must be above 0"
            )

    @property
    def sharpness(self) -> float:
        """The temperature that is meant."""
        if self.temperature is not None:
            return self.temperature
        if self.name == "mirror":
            return 0.04 if self.level == "sentence" else 0.2
        return 0.05

    @property
    def span(self) -> int:
        """The letters that are masked in the second view."""
        if self.mask is not None:
            return self.mask
        return 5 if self.name == "mirror" and self.level == "sentence" else 0

    def head_use(self, pooling: str, paired: bool) -> str:
        """What `auto` means: SimCSE's layer on the first token, dropped after training on texts alone, kept after pairs."""
        if self.head != "auto":
            return self.head
        if self.name != "simcse" or pooling != "first":
            return "none"
        return "keep" if paired else "train"


@dataclass(frozen=True)
class EmbeddingConfig:
    """Everything that decides the outcome of learning an embedding, but for the texts themselves."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(pooling="mean"))
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=1))

    def __post_init__(self) -> None:
        if self.encoder.name == "textcnn":
            raise ConfigError(
                "a sentence encoder starts from a pretrained one; textcnn has no weights to start from"
            )
        if self.encoder.frozen:
            raise ConfigError("encoder.frozen leaves nothing to learn: the encoder is what is trained here")
        self.train.require_settled()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        import dataclasses

        return {table: dataclasses.asdict(getattr(self, table)) for table in _TABLES}

    @staticmethod
    def from_dict(tables: Mapping[str, Mapping[str, Any]]) -> EmbeddingConfig:
        _check_tables(tables)
        defaults: dict[str, dict[str, Any]] = {"encoder": {"pooling": "mean"}, "train": {"epochs": 1}}
        made = {
            table: build_table(kind, table, {**defaults.get(table, {}), **tables.get(table, {})})
            for table, kind in _TABLES.items()
        }
        return EmbeddingConfig(**made)


_TABLES: dict[str, Any] = {"encoder": EncoderConfig, "method": MethodConfig, "train": TrainConfig}


def _check_tables(tables: Mapping[str, object]) -> None:
    for table, values in tables.items():
        if table not in _TABLES:
            raise ConfigError(f"unknown table [{table}]{did_you_mean(table, _TABLES)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{table} is not a table; write [{table}] and its settings below")


# What a method starts from where nothing is said: by method, and for simcse by whether there are pairs.
RECIPES: dict[str, dict[str, Any]] = {
    "simcse": {"epochs": 1, "batch_size": 64, "lr": 3e-5},
    "simcse, pairs": {"epochs": 3, "batch_size": 512, "chunk_size": 512},
    "mirror": {"epochs": 1, "batch_size": 200, "lr": 4e-5},
    "multiple_negatives": {"epochs": 1, "batch_size": 64},
}


def with_recipe(tables: Mapping[str, Mapping[str, Any]], columns: int) -> EmbeddingConfig:
    """The configuration of these tables, with the method's recipe where they say nothing."""
    _check_tables(tables)
    name = str(tables.get("method", {}).get("name", "simcse"))
    recipe = RECIPES.get(f"{name}, pairs" if columns > 1 and name == "simcse" else name, {})
    return EmbeddingConfig.from_dict({**tables, "train": {**recipe, **tables.get("train", {})}})


class Dense(nn.Module):
    """SimCSE's layer on the first token: linear, then tanh."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, pooled: Tensor) -> Tensor:
        return torch.tanh(self.linear(pooled))


@dataclass
class SentenceModel:
    """Texts in, vectors out."""

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
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return pooled

    def to(self, device: str) -> SentenceModel:
        self.encoder.to(device).eval()
        if self.dense is not None:
            self.dense.to(device).eval()
        return self

    @classmethod
    def untrained(
        cls, name: str | None, *, pooling: str = "mean", max_length: int | None = None
    ) -> SentenceModel:
        """A pretrained encoder as it is."""
        encoder, tokeniser = load_encoder(name, pooling=pooling, max_length=max_length)
        assert isinstance(tokeniser, PretrainedTokeniser)
        config = EmbeddingConfig(EncoderConfig(name, pooling, tokeniser.max_length))
        return cls(encoder, tokeniser, config).to(existing_device(None))

    def save(self, folder: str | Path) -> None:
        save_folder(Path(folder), self._write)

    def _write(self, folder: Path) -> None:
        last = self.dense.linear if self.dense is not None else None
        write_encoder(folder, self.encoder, self.config.encoder.max_length, dense=last)
        self.tokeniser.save(folder)
        if self.dense is not None:
            write_tensors(folder / HEADS, self.dense.state_dict())
        own = {"dense": self.dense is not None}
        describe_folder(
            folder, "sentence_encoder", self.encoder, self.config.to_dict(), self.metrics, sentence_card, own
        )

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, bare: bool = False) -> SentenceModel:
        """The model of a folder; a `bare` one is there sooner, and can be used but neither trained nor saved."""
        folder = Path(folder)
        facts = read_facts(folder, "sentence_encoder")
        with damage_explained(folder):
            config = EmbeddingConfig.from_dict(facts["run"])
            length = config.encoder.max_length
            encoder, tokeniser = load_saved_encoder(folder, facts["encoder"], length, bare=bare)
            dense = Dense(encoder.dim) if facts["dense"] else None
        if dense is not None:
            fill(dense, read_tensors(folder / HEADS), folder / HEADS)
        return cls(encoder, tokeniser, config, dense, read_json(folder / METRICS)).to(existing_device(device))


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
    """Whether an encoder was trained for sentences already, as far as its files or its name tell."""
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
    """A model folder of Closeknit (of any kind), or any encoder by name or folder, mean-pooled unless told otherwise.

    A `bare` one is there sooner where it is a model folder, and can be used but neither trained nor saved.
    """
    if (Path(source) / MAIN).exists():
        facts = read_facts(Path(source), None)
        if facts["kind"] == "sentence_encoder":
            model = SentenceModel.load(source, bare=bare)
            if pooling is not None and pooling != model.encoder.pooling:
                model.encoder, model.dense = Encoder(model.encoder.trunk, pooling, model.encoder.name), None
            return model
        length = facts["run"]["encoder"]["max_length"]
        encoder, tokeniser = load_saved_encoder(Path(source), facts["encoder"], length, bare=bare)
        shared = _shared_layer(Path(source), encoder) if facts["kind"] == "multi_task" else None
        if pooling is not None and pooling != encoder.pooling:
            encoder, shared = Encoder(encoder.trunk, pooling, encoder.name), None
        config = EmbeddingConfig(EncoderConfig(str(source), encoder.pooling, length))
        return SentenceModel(encoder, tokeniser, config, shared).to(existing_device(None))
    name = None if str(source) == "default" else str(source)
    return SentenceModel.untrained(name, pooling=pooling or "mean")
