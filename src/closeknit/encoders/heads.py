"""Heads: small modules on top of the encoder, which predict classes or project vectors."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.encoders.encoder import Encoder
from closeknit.objectives.geometry import at_least_float32, unit


@dataclass(frozen=True)
class Shape:
    """The classification head of a transformers architecture, and the names of its layers there."""

    dense: str
    out: str
    activation: str = "tanh"
    dropout: str = "hidden_dropout_prob"  # the name of the dropout rate in the configuration
    drop_input: bool = False  # dropout before the dense layer too
    norm: str | None = None


# Our classifiers have the same form, so that a saved model is also a sequence classifier of its
# architecture.
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
    """Class logits from pooled vectors: a dense layer as in the architecture, then a linear one.

    With pooling `own`, the encoder contains the dense layer already, so the classifier has none.
    """

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        config = encoder.config
        shape = SHAPES.get(encoder.model_type, Shape("", ""))
        rate = getattr(config, "classifier_dropout", None)
        self.dropout = nn.Dropout(
            float(getattr(config, shape.dropout, 0.1) if rate is None else rate)
        )
        self.drop_input = shape.drop_input
        self.dense: nn.Module = nn.Identity()
        self.activation: nn.Module = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        if encoder.pooling != "own":
            has_bias = getattr(config, "classifier_bias", True) or shape.norm is None
            self.dense = nn.Linear(encoder.dim, encoder.dim, bias=has_bias)
            self.activation = _ACTIVATIONS[shape.activation]()
            if shape.norm:
                self.norm = nn.LayerNorm(encoder.dim, eps=config.norm_eps, bias=config.norm_bias)
        self.out = nn.Linear(encoder.dim, classes)
        self.classes = classes
        self._initialise(encoder)

    def _initialise(self, encoder: Encoder) -> None:
        """Random weights; the dense layer starts as the pretrained pooler where BERT has it."""
        for layer in (self.dense, self.out):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        if encoder.model_type in ("bert", "albert") and encoder.pooling == "first":
            pooler = getattr(encoder.trunk, "pooler", None)
            pooler = getattr(pooler, "dense", pooler)
            pooler = getattr(pooler, "base_layer", pooler)  # beneath a low-rank adapter
            if isinstance(pooler, nn.Linear):
                self.dense.load_state_dict(pooler.state_dict())

    def forward(self, pooled: Tensor) -> Tensor:
        if self.drop_input:
            pooled = self.dropout(pooled)
        x = self.norm(self.activation(self.dense(pooled)))  # (R, H)
        logits: Tensor = self.out(self.dropout(x))  # (R, C)
        return logits


class NearestCentroid(nn.Module):
    """Logits from the cosine to each class's mean training row, for encoders without a head."""

    centers: Tensor

    def __init__(self, dim: int, classes: int, *, sharpness: float = 10.0) -> None:
        super().__init__()
        self.classes = classes
        self.sharpness = sharpness
        self.register_buffer("centers", torch.zeros(classes, dim))

    def learn(self, rows: Tensor, y: Tensor) -> None:
        """Takes the class means of these pooled rows (N, H) with labels y (N,)."""
        # A matrix product always adds the rows in the same order.
        sums = F.one_hot(y, self.classes).to(rows).T @ unit(rows)  # (C, H)
        self.centers.copy_(unit(sums))

    def forward(self, pooled: Tensor) -> Tensor:
        logits = self.sharpness * unit(at_least_float32(pooled)) @ self.centers.T  # (R, C)
        has_rows = self.centers.any(1)  # (C,)
        return torch.where(
            has_rows, logits, -self.sharpness
        )  # a class without rows is far from every text


class NearestRows(nn.Module):
    """Logits from the k nearest training rows; nearer rows count more."""

    rows: Tensor
    labels: Tensor

    def __init__(
        self, dim: int, classes: int, rows: int, *, k: int = 10, sharpness: float = 10.0
    ) -> None:
        super().__init__()
        self.classes = classes
        self.k = k
        self.sharpness = sharpness
        self.register_buffer("rows", torch.zeros(rows, dim))
        self.register_buffer("labels", torch.zeros(rows, dtype=torch.long))

    def learn(self, rows: Tensor, y: Tensor) -> None:
        """Keeps these pooled rows (N, H) and their labels (N,)."""
        self.rows.copy_(unit(rows))
        self.labels.copy_(y)

    def forward(self, pooled: Tensor) -> Tensor:
        near = self.sharpness * unit(at_least_float32(pooled)) @ self.rows.T  # (R, N)
        nearest, index = near.topk(min(self.k, len(self.rows)), dim=1)  # (R, k)
        votes = torch.zeros(len(pooled), self.classes, device=near.device)  # (R, C)
        votes.scatter_add_(1, self.labels[index], (nearest - nearest[:, :1]).exp())
        return votes.clamp_min(1e-9).log()


def class_directions(head: nn.Module) -> npt.NDArray[np.float32]:
    """A vector per class (C, D) of a head that predicts: its weights, or the mean of its rows."""
    if isinstance(head, NearestCentroid):
        directions = head.centers
    elif isinstance(head, NearestRows):
        of_class = F.one_hot(head.labels, head.classes).to(head.rows)  # (N, C)
        directions = of_class.T @ head.rows
    else:
        assert isinstance(head, Classifier)
        directions = head.out.weight
    array: npt.NDArray[np.float32] = directions.detach().float().cpu().numpy()
    return array


class Weighting(nn.Module):
    """A second encoder with a classifier; its probabilities say how easily classes are mistaken."""

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
    """A language model's layers: hidden states (n, H) to predictions (n, vocabulary)."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden: Tensor) -> Tensor:
        predictions: Tensor = self.layers(hidden)  # (n, vocabulary)
        return predictions


def build_heads(encoder: Encoder, classes: int, views: Iterable[str]) -> nn.ModuleDict:
    """The heads that these views need, and always a classifier, because it predicts."""
    heads = nn.ModuleDict({"logits": Classifier(encoder, classes)})
    if "projected" in views:
        heads["projected"] = Projection(encoder.dim)
    if "weights" in views or "weighting_logits" in views:
        heads["weighting"] = Weighting(encoder, classes)
    return heads
