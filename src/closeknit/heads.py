"""Small modules on top of the encoder, and the views of a batch that objectives read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .encoder import Encoded, Encoder
from .geometry import at_least_float32
from .objectives.joint import View


@dataclass(frozen=True)
class Shape:
    """The classification head of a transformers architecture, and what it calls its layers there."""

    dense: str
    out: str
    activation: str = "tanh"
    dropout: str = "hidden_dropout_prob"  # the rate's name in the configuration
    drop_input: bool = False  # dropout before the dense layer too
    norm: str | None = None


# Ours are built alike, so that a saved model is also a sequence classifier of its architecture.
SHAPES: dict[str, Shape] = {
    "bert": Shape("bert.pooler.dense", "classifier"),
    "albert": Shape("albert.pooler", "classifier", dropout="classifier_dropout_prob"),
    "roberta": Shape("classifier.dense", "classifier.out_proj", drop_input=True),
    "xlm-roberta": Shape("classifier.dense", "classifier.out_proj", drop_input=True),
    "camembert": Shape("classifier.dense", "classifier.out_proj", drop_input=True),
    "electra": Shape("classifier.dense", "classifier.out_proj", "gelu", drop_input=True),
    "distilbert": Shape("pre_classifier", "classifier", "relu", "seq_classif_dropout"),
    "xlnet": Shape("sequence_summary.summary", "logits_proj", dropout="summary_last_dropout"),
    "modernbert": Shape("head.dense", "classifier", "gelu", "classifier_dropout", norm="head.norm"),
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "gelu": nn.GELU, "relu": nn.ReLU}


class Classifier(nn.Module):
    """Class logits from pooled vectors: a dense layer of the architecture's own form, then a linear one.

    With pooling `own` the encoder has been through its dense layer already, so there is none here.
    """

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        dim, config = encoder.dim, encoder.config
        shape = SHAPES.get(encoder.model_type, Shape("", ""))
        rate = getattr(config, "classifier_dropout", None)
        self.dropout = nn.Dropout(float(getattr(config, shape.dropout, 0.1) if rate is None else rate))
        self.drop_input = shape.drop_input
        self.dense: nn.Module = nn.Identity()
        self.activation: nn.Module = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        if encoder.pooling != "own":
            self.dense = nn.Linear(
                dim, dim, bias=getattr(config, "classifier_bias", True) or shape.norm is None
            )
            self.activation = _ACTIVATIONS[shape.activation]()
            if shape.norm:
                self.norm = nn.LayerNorm(dim, eps=config.norm_eps, bias=config.norm_bias)
        self.out = nn.Linear(dim, classes)
        self._start(encoder)

    def _start(self, encoder: Encoder) -> None:
        for layer in (self.dense, self.out):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        pooler = getattr(encoder.trunk, "pooler", None)
        pooler = getattr(pooler, "dense", pooler)
        if (
            encoder.model_type in ("bert", "albert")
            and isinstance(pooler, nn.Linear)
            and encoder.pooling == "first"
        ):
            self.dense.load_state_dict(pooler.state_dict())

    def forward(self, pooled: Tensor) -> Tensor:
        if self.drop_input:
            pooled = self.dropout(pooled)
        x = self.norm(self.activation(self.dense(pooled)))  # (R, H)
        logits: Tensor = self.out(self.dropout(x))  # (R, C)
        return logits


class Projection(nn.Module):
    """A two-layer perceptron on pooled vectors, for objectives that read the view `projected`."""

    def __init__(self, dim: int, out: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, pooled: Tensor) -> Tensor:
        projected: Tensor = self.layers(pooled)  # (R, out)
        return projected


def build_heads(encoder: Encoder, classes: int, views: Iterable[str]) -> nn.ModuleDict:
    """The heads that these views need; a classifier always, since it is what predicts."""
    heads = nn.ModuleDict({"logits": Classifier(encoder, classes)})
    if "projected" in views:
        heads["projected"] = Projection(encoder.dim)
    return heads


def read_views(encoded: Encoded, y: Tensor, heads: nn.ModuleDict, wanted: Iterable[str]) -> dict[str, View]:
    """The views of a batch that its objective asks for, in float32 or better, each computed once."""
    views: dict[str, View] = {}
    for name in wanted:
        if name in heads:
            views[name] = View(at_least_float32(heads[name](encoded.pooled)), y)
        elif name == "pooled":
            views[name] = View(at_least_float32(encoded.pooled), y)
        else:
            chosen = _chosen_tokens(encoded, name)  # (R, T)
            owner = chosen.nonzero()[:, 0]  # (n,) the row each token belongs to
            views[name] = View(at_least_float32(encoded.hidden[chosen]), y[owner])
    return views


def _chosen_tokens(encoded: Encoded, view: str) -> Tensor:
    if view == "tokens":
        return encoded.mask
    if view == "content_tokens":
        return encoded.mask & ~encoded.special
    return torch.ones_like(encoded.mask)
