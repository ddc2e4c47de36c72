"""Saved BERT-like encoders without transformers, whose import takes longer than everything else
that one answer needs.

The modules have the names of those in transformers, so that its files load as they are, and they
give the same numbers, in training too. They cannot be saved: an encoder that will be saved is
loaded by transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.encoders.architecture import PREFIXES, counts_from_padding, position_numbers
from closeknit.encoders.tokenisers import FileTokeniser
from closeknit.storage import read_json, read_tensors

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}
# Settings that make an encoder different from what is built here, unless they have these values.
REQUIRED_SETTINGS = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "quantization_config": None,
}


class Config(SimpleNamespace):
    """The settings of config.json as attributes."""

    def to_dict(self) -> dict[str, Any]:
        """All settings by name."""
        return dict(vars(self))


class Output(NamedTuple):
    """What the encoders of transformers give, as far as it is read here."""

    last_hidden_state: Tensor  # (R, T, H)
    pooler_output: Tensor | None  # (R, H)


class Embeddings(nn.Module):
    """The sum of word, position and, where the architecture has them, type embeddings,
    normalised.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        dim = getattr(config, "embedding_size", config.hidden_size)
        counted = counts_from_padding(config.model_type)
        self.padding_idx = config.pad_token_id if counted else None  # for `position_numbers`
        self.word_embeddings = nn.Embedding(config.vocab_size, dim, padding_idx=config.pad_token_id)
        positions = nn.Embedding(config.max_position_embeddings, dim, padding_idx=self.padding_idx)
        if not counted:  # the order of the tables is that of transformers
            self.position_embeddings = positions
        if config.model_type != "distilbert":
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        if counted:
            self.position_embeddings = positions

    def forward(self, ids: Tensor, types: Tensor | None) -> Tensor:
        positions = position_numbers(ids, self.padding_idx)  # (1, T) or (R, T)
        x = self.word_embeddings(ids)  # (R, T, H)
        if hasattr(self, "token_type_embeddings"):
            x = x + self.token_type_embeddings(torch.zeros_like(ids) if types is None else types)
        x = x + self.position_embeddings(positions)
        embedded: Tensor = self.dropout(self.LayerNorm(x))
        return embedded


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, heads: int, dropout: float
) -> Tensor:
    """Attention of rows (R, T, H), in so many heads."""

    def split(x: Tensor) -> Tensor:
        by_head: Tensor = x.unflatten(-1, (heads, -1))  # (R, T, heads, H/heads)
        return by_head.transpose(1, 2)

    q, k, v = split(query), split(key), split(value)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(2)  # (R, T, H)


class SelfAttention(nn.Module):
    """BERT's attention, without the layer that follows it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        dim = config.hidden_size
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)
        self.num_attention_heads = config.num_attention_heads

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rate = self.dropout.p if self.training else 0.0
        return attend(
            self.query(x),
            self.key(x),
            self.value(x),
            mask,
            heads=self.num_attention_heads,
            dropout=rate,
        )


class Residual(nn.Module):
    """A linear layer, added to what came before and normalised."""

    def __init__(self, width: int, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        added: Tensor = self.LayerNorm(self.dropout(self.dense(x)) + before)
        return added


class Attention(nn.Module):
    """Attention, the linear layer that follows it, and the sum with what came before."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Residual(config.hidden_size, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        attended: Tensor = self.output(self.self(x, mask), x)
        return attended


class Intermediate(nn.Module):
    """The first half of the feed-forward block: a wider linear layer and its activation."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = ACTIVATIONS[config.hidden_act]()

    def forward(self, x: Tensor) -> Tensor:
        wide: Tensor = self.intermediate_act_fn(self.dense(x))
        return wide


class Layer(nn.Module):
    """A layer of BERT, RoBERTa and ELECTRA."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Residual(config.intermediate_size, config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention(x, mask)
        after: Tensor = self.output(self.intermediate(x), x)
        return after


class DistilAttention(nn.Module):
    """DistilBERT's attention, with the linear layer that follows it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.q_lin = nn.Linear(config.dim, config.dim)
        self.k_lin = nn.Linear(config.dim, config.dim)
        self.v_lin = nn.Linear(config.dim, config.dim)
        self.out_lin = nn.Linear(config.dim, config.dim)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.n_heads = config.n_heads

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rate = self.dropout.p if self.training else 0.0
        mixed = attend(
            self.q_lin(x), self.k_lin(x), self.v_lin(x), mask, heads=self.n_heads, dropout=rate
        )
        attended: Tensor = self.out_lin(mixed)
        return attended


class DistilFeedForward(nn.Module):
    """DistilBERT's feed-forward block: wider, activation, narrow again."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.lin1 = nn.Linear(config.dim, config.hidden_dim)
        self.lin2 = nn.Linear(config.hidden_dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACTIVATIONS[config.activation]()

    def forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.dropout(self.lin2(self.activation(self.lin1(x))))
        return fed


class DistilLayer(nn.Module):
    """A layer of DistilBERT."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = DistilAttention(config)
        self.sa_layer_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)
        self.ffn = DistilFeedForward(config)
        self.output_layer_norm = nn.LayerNorm(config.dim, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.sa_layer_norm(self.attention(x, mask) + x)
        after: Tensor = self.output_layer_norm(self.ffn(x) + x)
        return after


class Layers(nn.Module):
    """All layers of an encoder, one after the other."""

    def __init__(self, kind: Callable[[Any], nn.Module], config: Any) -> None:
        super().__init__()
        self.layer = nn.ModuleList(kind(config) for _ in range(config.num_hidden_layers))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Pooler(nn.Module):
    """BERT's own pooling: a linear layer with tanh on the first token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.dense(hidden[:, 0]))


class BareTrunk(nn.Module):
    """A BERT-like encoder whose parameters are named as in transformers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.base_model_prefix = PREFIXES[config.model_type]
        dim = config.hidden_size
        self.embeddings = Embeddings(config)
        if getattr(config, "embedding_size", dim) != dim:
            self.embeddings_project = nn.Linear(config.embedding_size, dim)
        if config.model_type == "distilbert":
            self.transformer = Layers(DistilLayer, config)
        else:
            self.encoder = Layers(Layer, config)
        self.pooler = None if config.model_type in ("distilbert", "electra") else Pooler(dim)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Output:
        x = self.embeddings(input_ids, token_type_ids)  # (R, T, H)
        if hasattr(self, "embeddings_project"):
            x = self.embeddings_project(x)
        # Looking whether there is padding waits for the device: in serving this costs less than the
        # mask does.
        without_padding = not self.training and bool(attention_mask.all())
        mask = None if without_padding else attention_mask.bool()[:, None, None]  # (R, 1, 1, T)
        layers = self.transformer if self.config.model_type == "distilbert" else self.encoder
        hidden: Tensor = layers(x, mask)
        return Output(hidden, None if self.pooler is None else self.pooler(hidden))


def load_bare(
    folder: Path, max_length: int, *, dropout: float | None = None
) -> tuple[BareTrunk, FileTokeniser] | None:
    """The encoder and tokeniser of a folder; None where the folder holds anything that only
    transformers may know.

    `dropout` replaces every dropout rate.
    """
    if (folder / "adapter_config.json").exists():
        return None
    try:
        config = read_config(folder)
        tokeniser = None if config is None else FileTokeniser.load(folder, max_length)
        if config is None or tokeniser is None:
            return None
        if getattr(config, "type_vocab_size", None) == 1:
            tokeniser.has_token_types = False  # the encoder does not tell two texts of a pair apart
        if dropout is not None:
            set_dropout(config, dropout)
        with torch.device("meta"):  # drawing weights takes longer than reading them
            trunk = BareTrunk(config)
        prefix = f"{trunk.base_model_prefix}."
        found = {
            name.removeprefix(prefix): value
            for name, value in read_tensors(folder / "model.safetensors").items()
        }
        if "pooler.dense.weight" not in found:
            trunk.pooler = None
        # tensors without a place here, such as a classifier's layers, are left to the caller
        known = {name: found[name].float() for name in trunk.state_dict()}
        if any(
            name.startswith(("encoder.", "transformer.")) and name not in known for name in found
        ):
            return None  # layers or parts of layers that the configuration does not mention
        trunk.load_state_dict(known, assign=True)
    except (
        Exception
    ):  # of safetensors and tokenizers too; transformers is asked next and says what is wrong
        return None
    return trunk, tokeniser


def set_dropout(config: Any, rate: float) -> None:
    """Replace every dropout rate of an architecture's configuration."""
    for key, value in config.to_dict().items():
        if "dropout" in key and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, key, rate)


def read_config(folder: Path) -> Config | None:
    """The settings of a folder's encoder; None where this module cannot build such an encoder."""
    facts = read_json(folder / "config.json")
    if facts.get("model_type") not in PREFIXES:
        return None
    if any(facts.get(key, value) != value for key, value in REQUIRED_SETTINGS.items()):
        return None
    if (
        facts["model_type"] == "distilbert"
    ):  # the names that the other architectures have for the same settings
        facts |= {"hidden_size": facts["dim"], "num_attention_heads": facts["n_heads"]}
        facts |= {"num_hidden_layers": facts["n_layers"], "hidden_act": facts["activation"]}
        facts |= {"hidden_dropout_prob": facts["dropout"], "layer_norm_eps": 1e-12}
        facts.setdefault("seq_classif_dropout", 0.2)
    elif facts["model_type"] != "electra":
        facts.pop("embedding_size", None)  # only ELECTRA's embeddings have a width of their own
    facts.setdefault("pad_token_id", 1 if PREFIXES[facts["model_type"]] == "roberta" else 0)
    if (
        facts["hidden_act"] not in ACTIVATIONS
        or facts["hidden_size"] % facts["num_attention_heads"]
    ):
        return None
    return Config(**facts)
