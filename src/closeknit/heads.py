"""Small modules on top of the encoder, and the views of a batch that objectives read."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .encoder import Encoded, Encoder
from .objectives.geometry import at_least_float32, unit
from .objectives.view import View


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
        self.classes = classes
        self._start(encoder)

    def _start(self, encoder: Encoder) -> None:
        for layer in (self.dense, self.out):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        pooler = getattr(encoder.trunk, "pooler", None)
        pooler = getattr(pooler, "dense", pooler)
        pooler = getattr(pooler, "base_layer", pooler)  # beneath an adapter
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


class NearestCentroid(nn.Module):
    """Logits from the cosine to the mean of each class's training rows; for encoders trained without a head."""

    centers: Tensor

    def __init__(self, dim: int, classes: int, *, sharpness: float = 10.0) -> None:
        super().__init__()
        self.classes, self.sharpness = classes, sharpness
        self.register_buffer("centers", torch.zeros(classes, dim))

    def learn(self, rows: Tensor, y: Tensor) -> None:
        """Take the means of these pooled rows (N, H)."""
        sums = F.one_hot(y, self.classes).to(rows).T @ unit(
            rows
        )  # (C, H), added in the same order every time
        self.centers.copy_(unit(sums))

    def forward(self, pooled: Tensor) -> Tensor:
        logits = self.sharpness * unit(at_least_float32(pooled)) @ self.centers.T  # (R, C)
        return torch.where(
            self.centers.any(1), logits, -self.sharpness
        )  # a class without rows is far from all


class NearestRows(nn.Module):
    """Logits from the k nearest training rows, nearer ones counting more."""

    rows: Tensor
    labels: Tensor

    def __init__(self, dim: int, classes: int, rows: int, *, k: int = 10, sharpness: float = 10.0) -> None:
        super().__init__()
        self.classes, self.k, self.sharpness = classes, k, sharpness
        self.register_buffer("rows", torch.zeros(rows, dim))
        self.register_buffer("labels", torch.zeros(rows, dtype=torch.long))

    def learn(self, rows: Tensor, y: Tensor) -> None:
        """Keep these pooled rows (N, H) and their labels (N,)."""
        self.rows.copy_(unit(rows))
        self.labels.copy_(y)

    def forward(self, pooled: Tensor) -> Tensor:
        near = self.sharpness * unit(at_least_float32(pooled)) @ self.rows.T  # (R, N)
        best, index = near.topk(min(self.k, len(self.rows)), dim=1)  # (R, k)
        votes = torch.zeros(len(pooled), self.classes, device=near.device)
        votes.scatter_add_(1, self.labels[index], (best - best[:, :1]).exp())  # (R, C)
        return votes.clamp_min(1e-9).log()


class Weighting(nn.Module):
    """A second encoder with a classifier of its own, that says how easily a text's class is mistaken."""

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.classifier = Classifier(self.encoder, classes)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.classifier(self.encoder(inputs).pooled)  # (R, C)
        return logits


class Projection(nn.Module):
    """A two-layer perceptron on pooled vectors, for objectives that read the view `projected`."""

    def __init__(self, dim: int, out: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, pooled: Tensor) -> Tensor:
        projected: Tensor = self.layers(pooled)  # (R, out)
        return projected


class LanguageHead(nn.Module):
    """Guesses of tokens (n, vocabulary) from hidden states (n, H), by the layers of the architecture's own language model."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden: Tensor) -> Tensor:
        guesses: Tensor = self.layers(hidden)
        return guesses


def build_heads(encoder: Encoder, classes: int, views: Iterable[str]) -> nn.ModuleDict:
    """The heads that these views need; a classifier always, since it is what predicts."""
    heads = nn.ModuleDict({"logits": Classifier(encoder, classes)})
    if "projected" in views:
        heads["projected"] = Projection(encoder.dim)
    if "weights" in views or "weighting_logits" in views:
        heads["weighting"] = Weighting(encoder, classes)
    return heads


def read_views(
    inputs: dict[str, Tensor],
    encoded: Encoded,
    y: Tensor,
    heads: nn.ModuleDict,
    wanted: Iterable[str],
    *,
    gaps: bool = False,
    chunk: bool = False,
) -> dict[str, View]:
    """The views of a batch that its objective asks for, each computed once, in the encoder's precision.

    With `gaps` a view of tokens has a row for every place of the batch, and label -1 where none is chosen: its shape does
    not depend on the texts. In a `chunk` of a batch padding counts up to the width of the chunk, which is then the batch's.
    """
    asked = list(wanted)
    views: dict[str, View] = {}

    def whole(name: str, z: Tensor) -> None:
        views[name] = View(z, y)

    if "logits" in asked or "head_weights" in asked:
        whole("logits", heads["logits"](encoded.pooled))
    if "weights" in asked or "weighting_logits" in asked:
        whole("weighting_logits", heads["weighting"](inputs))
    for name in asked:
        if name == "projected":
            whole(name, heads[name](encoded.pooled))
        elif name == "pooled":
            whole(name, encoded.pooled)
        elif name == "weights":
            whole(name, torch.softmax(views["weighting_logits"].z, dim=-1))
        elif name == "head_weights":
            whole(name, torch.softmax(views["logits"].z.detach(), dim=-1))
        elif name == "masked_tokens":
            told = y >= 0  # (R, T)
            views[name] = View(heads[name](encoded.hidden[told]), y[told])
        elif name.endswith("tokens"):
            chosen = _chosen_tokens(encoded, name, chunk)  # (R, T)
            if gaps:
                views[name] = View(
                    _products(encoded.hidden).flatten(0, 1), torch.where(chosen, y[:, None], -1).flatten()
                )
                continue
            owner = chosen.nonzero()[:, 0]  # (n,) the row each token belongs to
            views[name] = View(_products(encoded.hidden[chosen]), y[owner])
    return {name: views[name] for name in asked}


def _products(z: Tensor) -> Tensor:
    """Tokens in the precision that products have here: under autocast on a GPU, half."""
    if z.is_cuda and torch.is_autocast_enabled("cuda"):
        return z.to(torch.get_autocast_dtype("cuda"))
    return z


def _chosen_tokens(encoded: Encoded, view: str, chunk: bool) -> Tensor:
    if view == "tokens":
        return encoded.mask
    if view == "content_tokens":
        return encoded.mask & ~encoded.special
    if chunk:
        return torch.ones_like(encoded.mask)
    return encoded.mask.any(0).expand_as(
        encoded.mask
    )  # what the batch would be padded to, were its width its own
