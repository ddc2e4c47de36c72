"""Model: encoder, heads, tokeniser and labels together, and the folder it is saved in.

The folder is at once ours (`TextClassifier.load`), a transformers model (`AutoModel`, and a sequence
classifier where the architecture has one) and a sentence-transformers model. Nothing in it is pickled.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from closeknit.config import RunConfig
from closeknit.data import Examples
from closeknit.devices import existing_device
from closeknit.encoder import Encoder
from closeknit.errors import DataError, MissingExtra, ModelError
from closeknit.evaluation import Floats, outputs
from closeknit.heads import NearestCentroid, NearestRows, build_heads
from closeknit.label_numbers import label_numbers
from closeknit.metrics import classification_scores
from closeknit.models.card import model_card
from closeknit.models.export import write_encoder
from closeknit.models.folder import (
    HEADS,
    LABEL_DISTANCE,
    MAIN,
    METRICS,
    OBJECTIVE,
    damage_explained,
    describe_folder,
    fill,
    load_saved_encoder,
    read_facts,
    save_folder,
)
from closeknit.objectives import build_objective
from closeknit.plots import distance_map
from closeknit.storage import (
    read_json,
    read_tensors,
    write_tensors,
)
from closeknit.tokens import Tokeniser, Tokens


@dataclass
class Model:
    """A text classifier that can predict, embed, score itself, and be saved."""

    encoder: Encoder
    heads: nn.ModuleDict
    tokeniser: Tokeniser
    labels: list[str]
    config: RunConfig
    paired: bool = False
    label_type: str = "str"  # what the labels were before they became names
    objective: dict[str, Tensor] = field(default_factory=dict)  # what the objective learnt
    metrics: dict[str, Any] = field(default_factory=dict)

    def tokens(self, examples: Examples) -> Tokens:
        self._check_paired(examples)
        return self.tokeniser(examples)

    def check(self, examples: Examples) -> None:
        """Refuse examples that this model could not be scored on."""
        label_numbers(examples, self.labels)
        self._check_paired(examples)

    def _check_paired(self, examples: Examples) -> None:
        if self.paired != (examples.pairs is not None):
            kinds = ("single texts", "pairs of texts")
            raise DataError(
                f"{examples.name} holds {kinds[not self.paired]}; this model takes {kinds[self.paired]}"
            )

    def outputs(self, examples: Examples) -> tuple[Floats, Floats]:
        """(logits (R, C), pooled vectors (R, H))."""
        return outputs(self.encoder, self.heads, self.tokens(examples))

    def evaluate(self, examples: Examples) -> dict[str, Any]:
        """Scores on labelled examples; a label the model does not know is refused."""
        expected = label_numbers(examples, self.labels)
        logits, _ = self.outputs(examples)
        return classification_scores(expected, logits.argmax(axis=1), self.labels)

    def save(self, folder: str | Path) -> None:
        """Write the model folder; `closeknit.json` comes last, so a folder that has it is whole."""
        save_folder(Path(folder), self._write)

    def _write(self, folder: Path) -> None:
        write_encoder(folder, self.encoder, self.config.encoder.max_length, classifier=self)
        self.tokeniser.save(folder)
        write_tensors(folder / HEADS, self.heads.state_dict())
        if self.objective:
            write_tensors(folder / OBJECTIVE, self.objective)
            self._draw_distances(folder)
        own = {
            "labels": self.labels,
            "label_type": self.label_type,
            "paired": self.paired,
            "heads": {name: _head_facts(head) for name, head in self.heads.items()},
        }
        describe_folder(
            folder, "text_classifier", self.encoder, self.config.to_dict(), self.metrics, model_card, own
        )

    def _draw_distances(self, folder: Path) -> None:
        """A picture of learnt label distances, where there are any and pictures can be drawn."""
        for key, value in self.objective.items():
            if key.endswith(".distance"):
                with contextlib.suppress(MissingExtra):
                    distance_map(folder / LABEL_DISTANCE, value.numpy(), self.labels)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, bare: bool = False) -> Model:
        """The model of a folder; says what is wrong with one that is damaged or does not fit together.

        A `bare` one is there sooner, and can be used but neither trained nor saved.
        """
        folder = Path(folder)
        facts = read_facts(folder)
        with damage_explained(folder):
            labels, kind, paired, label_type = (
                facts["labels"],
                facts["encoder"],
                facts["paired"],
                facts["label_type"],
            )
            if not isinstance(labels, list) or len(set(labels)) != len(labels):
                raise ModelError(f"{folder / MAIN} is damaged: labels is not a list of different names")
            config = RunConfig.from_dict(facts["run"])
            encoder, tokeniser = load_saved_encoder(folder, kind, config.encoder.max_length, bare=bare)
            heads = _build_heads(encoder, len(labels), facts["heads"])
        fill(heads, read_tensors(folder / HEADS), folder / HEADS)
        objective = read_tensors(folder / OBJECTIVE) if (folder / OBJECTIVE).exists() else {}
        metrics = read_json(folder / METRICS)
        model = cls(
            encoder,
            heads,
            tokeniser,
            labels,
            config,
            paired,
            label_type,
            objective,
            metrics,
        )
        return model.to(existing_device(device))

    def to(self, device: str) -> Model:
        self.encoder.to(device).eval()
        self.heads.to(device).eval()
        return self

    def rebuilt_objective(self) -> nn.Module:
        """The objective as it was at the end of training, its proxies included."""
        joint = build_objective(
            self.config.objective.name,
            self.encoder.dim,
            len(self.labels),
            {key: value for key, value in self.config.objective.options.items() if key != "class_weights"},
            labels=self.labels,
        )
        joint.load_state_dict(self.objective)
        return joint


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
