"""What BERT and the architectures of its kind have in common, and where each of them differs.

Three forward passes read this description: the encoders that are loaded without transformers, the
fast pass of a training on a CPU and the fused pass of a training on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from closeknit.encoders.run_time_modules import is_plain_linear

# The architectures of BERT's kind. The value is what transformers puts before the names of an
# encoder's tensors where the file also holds a classifier.
PREFIXES = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "electra": "electra",
    "distilbert": "distilbert",
}
HEAD_SIZES = (16, 32, 64, 128)  # numbers per attention head that the fast passes can compute with


def counts_from_padding(model_type: str) -> bool:
    """Whether an architecture counts the positions of real tokens only, as RoBERTa does."""
    return PREFIXES.get(model_type) == "roberta"


def position_numbers(ids: Tensor, padding_id: int | None) -> Tensor:
    """The row of the position table for each token: (1, T), or (R, T) where padding is not counted.

    BERT counts places: 0, 1, 2, ... RoBERTa and its like (those with a `padding_id`) count real
    tokens from padding_id + 1 on, and give a padding token the position padding_id wherever it
    stands: a text can name it too.
    """
    if padding_id is None:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    real = ids != padding_id
    return real.cumsum(1) * real + padding_id


@dataclass(frozen=True)
class EmbeddingLayer:
    """The embeddings of a trunk by their parts."""

    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None  # which of two texts a token belongs to; DistilBERT has none
    norm: nn.LayerNorm
    dropout: nn.Dropout
    projection: (
        nn.Linear | None
    )  # to the width of the layers, where ELECTRA's embeddings are narrower
    padding_id: int | None  # for `position_numbers`

    def position_numbers(self, ids: Tensor) -> Tensor:
        """The row of the position table for each token, (1, T) or (R, T)."""
        return position_numbers(ids, self.padding_id)


@dataclass(frozen=True)
class TransformerLayer:
    """One transformer layer by its parts, whatever the architecture calls them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attention_output: nn.Linear
    attention_norm: nn.LayerNorm
    widen: nn.Linear
    activation: Any
    narrow: nn.Linear
    narrow_norm: nn.LayerNorm
    attention_dropout: nn.Dropout
    attention_output_dropout: nn.Dropout
    narrow_dropout: nn.Dropout

    @property
    def products(self) -> list[tuple[nn.Linear, ...]]:
        """The linear layers, grouped into those that can be computed as one matrix product."""
        return [
            (self.query, self.key, self.value),
            (self.attention_output,),
            (self.widen,),
            (self.narrow,),
        ]

    @property
    def linears(self) -> list[nn.Linear]:
        """All linear layers."""
        return [linear for group in self.products for linear in group]


def embedding_layer(trunk: Any) -> EmbeddingLayer:
    """The parts of the embeddings of a trunk of BERT's kind."""
    embeddings = trunk.embeddings
    counted = counts_from_padding(trunk.config.model_type)
    return EmbeddingLayer(
        words=embeddings.word_embeddings,
        positions=embeddings.position_embeddings,
        types=getattr(embeddings, "token_type_embeddings", None),
        norm=embeddings.LayerNorm,
        dropout=embeddings.dropout,
        projection=getattr(trunk, "embeddings_project", None),
        padding_id=embeddings.padding_idx if counted else None,
    )


def bert_like_layers(trunk: Any) -> list[TransformerLayer] | None:
    """The layers of a BERT-like trunk; None for any other trunk.

    A trunk that was changed, as adapters do, has None too.
    """
    model_type = getattr(trunk.config, "model_type", "")
    if model_type not in PREFIXES:
        return None
    try:
        if model_type == "distilbert":
            layers = [_distilbert_layer(layer) for layer in trunk.transformer.layer]
        else:
            layers = [_bert_layer(layer) for layer in trunk.encoder.layer]
    except AttributeError:
        return None
    unchanged = all(
        is_plain_linear(linear) and linear.bias is not None
        for layer in layers
        for linear in layer.linears
    )
    absolute = getattr(trunk.config, "position_embedding_type", "absolute") in ("absolute", None)
    heads = attention_heads(trunk)
    known_size = heads > 0 and trunk.config.hidden_size // heads in HEAD_SIZES
    is_decoder = getattr(trunk.config, "is_decoder", False)
    return layers if unchanged and absolute and known_size and not is_decoder else None


def attention_heads(trunk: Any) -> int:
    """The number of attention heads of each layer; 0 where the configuration does not say."""
    config = trunk.config
    return int(getattr(config, "num_attention_heads", 0) or getattr(config, "n_heads", 0) or 0)


def has_hooks(layers: Sequence[TransformerLayer]) -> bool:
    """Whether a hook waits for a linear layer to be called, as dropping whole attention heads
    does.
    """
    linears = [linear for layer in layers for linear in layer.linears]
    return any(linear._forward_pre_hooks or linear._forward_hooks for linear in linears)


def _bert_layer(layer: Any) -> TransformerLayer:
    attention = layer.attention.self
    return TransformerLayer(
        query=attention.query,
        key=attention.key,
        value=attention.value,
        attention_output=layer.attention.output.dense,
        attention_norm=layer.attention.output.LayerNorm,
        widen=layer.intermediate.dense,
        activation=layer.intermediate.intermediate_act_fn,
        narrow=layer.output.dense,
        narrow_norm=layer.output.LayerNorm,
        attention_dropout=attention.dropout,
        attention_output_dropout=layer.attention.output.dropout,
        narrow_dropout=layer.output.dropout,
    )


def _distilbert_layer(layer: Any) -> TransformerLayer:
    return TransformerLayer(
        query=layer.attention.q_lin,
        key=layer.attention.k_lin,
        value=layer.attention.v_lin,
        attention_output=layer.attention.out_lin,
        attention_norm=layer.sa_layer_norm,
        widen=layer.ffn.lin1,
        activation=layer.ffn.activation,
        narrow=layer.ffn.lin2,
        narrow_norm=layer.output_layer_norm,
        attention_dropout=layer.attention.dropout,
        attention_output_dropout=nn.Dropout(0.0),  # DistilBERT has none here
        narrow_dropout=layer.ffn.dropout,
    )
