"""A trained text classifier: encoder, heads, tokeniser and labels.

Its folder can also be loaded by transformers, as a sequence classifier where the architecture has
one, and by sentence-transformers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from closeknit.charts.png import distance_map
from closeknit.classification.config import RunConfig
from closeknit.classification.label_relations import (
    LabelRelations,
    relate_directions,
    relate_labels,
)
from closeknit.data.distinct_texts import row_hashes
from closeknit.data.examples import Examples, label_numbers
from closeknit.data.nearest import near_other_label, scores_near_other_label
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import NearestCentroid, NearestRows, build_heads, class_directions
from closeknit.encoders.inference import Floats, outputs, softmax
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.encoders.tokens import Tokens
from closeknit.errors import DataError, MissingExtra, ModelError
from closeknit.metrics import classification_scores
from closeknit.models.card import model_card
from closeknit.models.export import write_encoder
from closeknit.models.folder import (
    HEADS,
    LABEL_DISTANCE,
    OBJECTIVE,
    TRAINED_ROWS,
)
from closeknit.models.saved_model import SavedModel, fill
from closeknit.storage import read_tensors, write_tensors


@dataclass
class Model(SavedModel):
    """A text classifier that can predict, embed, score itself, and be saved."""

    kind: ClassVar[str] = "text_classifier"

    encoder: Encoder
    heads: nn.ModuleDict
    tokeniser: Tokeniser
    labels: list[str]
    config: RunConfig
    paired: bool = False
    label_type: str = "str"  # the type of the labels before they became names
    objective: dict[str, Tensor] = field(default_factory=dict)  # what the objective has learnt
    metrics: dict[str, Any] = field(default_factory=dict)
    # Hashes of the training rows, sorted; None: unknown, as for models of earlier versions.
    trained_rows: npt.NDArray[np.uint64] | None = None

    def remember_training(self, examples: Examples) -> None:
        """Remember by hashes which rows were trained on, so that `evaluate` can tell them."""
        self.trained_rows = np.unique(row_hashes(examples))

    def tokens(self, examples: Examples) -> Tokens:
        """The token ids of examples that this model can read."""
        self._refuse_other_input(examples)
        return self.tokeniser(examples)

    def check(self, examples: Examples) -> None:
        """Refuse examples that this model could not be scored on."""
        label_numbers(examples, self.labels)
        self._refuse_other_input(examples)

    def _refuse_other_input(self, examples: Examples) -> None:
        if self.paired != (examples.pairs is not None):
            kinds = ("single texts", "pairs of texts")
            raise DataError(
                f"{examples.name} holds {kinds[not self.paired]}; this model takes {kinds[self.paired]}"
            )

    def outputs(self, examples: Examples) -> tuple[Floats, Floats]:
        """(logits (R, C), pooled vectors (R, H))."""
        return outputs(self.encoder, self.heads, self.tokens(examples))

    def evaluate(self, examples: Examples, training: Examples | None = None) -> dict[str, Any]:
        """Scores on labelled examples; a label that the model does not know is refused.

        `trained_on` is the number of these examples that were part of the training, up to case and
        punctuation, where the model knows its training rows. With the training rows,
        `near_other_label` holds the scores on those examples whose nearest training text has
        another label.
        """
        expected = label_numbers(examples, self.labels)
        logits, _ = self.outputs(examples)
        predicted = logits.argmax(axis=1)
        scores = classification_scores(expected, predicted, self.labels, logits)
        if self.trained_rows is not None:
            known = np.isin(row_hashes(examples), self.trained_rows)
            scores["trained_on"] = int(known.sum())
        if training is not None:
            near = near_other_label(training, examples)
            found = scores_near_other_label(near, expected, predicted, self.labels)
            scores["near_other_label"] = found
        return scores

    def label_relations(self, examples: Examples | None = None) -> LabelRelations:
        """Which classes are close, by the answers on labelled examples or by the head's weights."""
        if examples is None:
            return relate_directions(self.labels, class_directions(self.heads["logits"]))
        expected = label_numbers(examples, self.labels)
        logits, pooled = self.outputs(examples)
        texts = examples.texts
        if examples.pairs is not None:
            texts = [f"{one} | {two}" for one, two in zip(texts, examples.pairs, strict=True)]
        return relate_labels(
            self.labels,
            expected,
            logits.argmax(axis=1),
            probabilities=softmax(logits),
            vectors=pooled,
            texts=texts,
        )

    # -- the folder

    def own_facts(self) -> dict[str, Any]:
        return {
            "labels": self.labels,
            "label_type": self.label_type,
            "paired": self.paired,
            "heads": {name: _head_facts(head) for name, head in self.heads.items()},
        }

    def modules(self) -> Sequence[nn.Module]:
        return self.encoder, self.heads

    def card(self) -> Callable[[dict[str, Any], dict[str, Any]], str]:
        return model_card

    def write_weights(self, folder: Path) -> None:
        write_encoder(folder, self.encoder, self.config.encoder.max_length, classifier=self)
        write_tensors(folder / HEADS, self.heads.state_dict())
        if self.objective:
            write_tensors(folder / OBJECTIVE, self.objective)
            self._draw_label_distances(folder)
        if self.trained_rows is not None:
            np.save(folder / TRAINED_ROWS, self.trained_rows, allow_pickle=False)

    def _draw_label_distances(self, folder: Path) -> None:
        """A picture of the learnt label distances, where the objective has some and matplotlib is
        installed.
        """
        for name, value in self.objective.items():
            if name.endswith(".distance"):
                with contextlib.suppress(MissingExtra):
                    distance_map(
                        folder / LABEL_DISTANCE,
                        value.numpy(),
                        self.labels,
                        self.metrics.get("history", []),
                    )

    def read_weights(self, folder: Path) -> None:
        fill(self.heads, read_tensors(folder / HEADS), folder / HEADS)
        if (folder / OBJECTIVE).exists():
            self.objective = read_tensors(folder / OBJECTIVE)
        if (folder / TRAINED_ROWS).exists():
            self.trained_rows = _read_hashes(folder / TRAINED_ROWS)

    @classmethod
    def read_settings(cls, tables: dict[str, Any]) -> RunConfig:
        return RunConfig.from_dict(tables)

    @classmethod
    def from_facts(
        cls, facts: dict[str, Any], settings: RunConfig, encoder: Encoder, tokeniser: Tokeniser
    ) -> Self:
        labels = facts["labels"]
        if not isinstance(labels, list) or len(set(labels)) != len(labels):
            raise ValueError("labels is not a list of different names")
        heads = _build_heads(encoder, len(labels), facts["heads"])
        return cls(
            encoder,
            heads,
            tokeniser,
            labels,
            settings,
            paired=facts["paired"],
            label_type=facts["label_type"],
        )


def _read_hashes(path: Path) -> npt.NDArray[np.uint64]:
    try:
        hashes: npt.NDArray[np.uint64] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise ModelError(f"{path} is damaged: it holds no array of numbers") from None
    if hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise ModelError(f"{path} is damaged: it holds no list of hashes")
    return hashes


_NEAREST: dict[str, Any] = {"NearestCentroid": NearestCentroid, "NearestRows": NearestRows}


def _head_facts(head: nn.Module) -> dict[str, Any]:
    """What is needed to build a head again, beside its tensors."""
    facts: dict[str, Any] = {"kind": type(head).__name__}
    return facts | ({"rows": len(head.rows)} if isinstance(head, NearestRows) else {})


def _build_heads(encoder: Encoder, classes: int, facts: dict[str, Any]) -> nn.ModuleDict:
    heads = build_heads(encoder, classes, facts)
    kind = facts["logits"]["kind"]
    if kind in _NEAREST:
        size = {key: value for key, value in facts["logits"].items() if key != "kind"}
        heads["logits"] = _NEAREST[kind](encoder.dim, classes, **size)
    return heads
