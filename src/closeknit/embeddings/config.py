"""EmbeddingConfig: everything that decides how a sentence encoder is learnt, but for the texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from closeknit.encoders.config import EncoderConfig
from closeknit.errors import ConfigError
from closeknit.objectives.copies import READ_BY, SECOND_VIEWS, Copies
from closeknit.settings import Configuration, SettingsTable, check_tables, setting
from closeknit.training.config import TrainConfig

METHODS = ("simcse", "mirror", "multiple_negatives")
LEVELS = ("sentence", "phrase", "word")
NOISES = ("dropout", "drophead", "none")
HEAD_USES = ("auto", "none", "train", "keep")


@dataclass(frozen=True)
class MethodConfig(SettingsTable, table="method"):
    """How an embedding is learnt. Settings left at None or `auto` follow the method and the data.

    simcse: the same text twice through dropout, or with pairs and triplets the texts that belong
      together; InfoNCE.
    mirror: the same text twice, a span masked in the second; NT-Xent; also for phrases and words.
      `second_view` replaces the masked span, and gives `simcse` another second view too.
    multiple_negatives: pairs, where the answers to all other questions of the batch are wrong.
    """

    name: str = setting("simcse", choices=METHODS, help="Method that learns the embedding.")
    temperature: float | None = setting(
        None,
        above=0,
        default_text="by method",
        help="Temperature of the loss; smaller is sharper, and 0.03 to 0.1 is usual. None is 0.05 for "
        "`simcse` and `multiple_negatives`, 0.04 for `mirror`, and 0.2 for `mirror` on phrases or words.",
    )
    level: str = setting(
        "sentence", choices=LEVELS, help="What the texts are that `mirror` learns from."
    )
    mask: int | None = setting(
        None,
        at_least=0,
        default_text="by level",
        help="Characters of the span that is masked in the second view, at a random place, by the "
        "encoder's mask token; texts under 30 characters stay whole. None is 5 for `mirror` on "
        "sentences and for `second_view` `span`, and 0 otherwise.",
    )
    second_view: str | None = setting(
        None,
        choices=SECOND_VIEWS,
        since=2,
        default_text="by method",
        help="What makes the second view of a text differ, beside the noise of both views. "
        "`dropout`: nothing else. `span`: a masked span. `synonyms`: replaced words. `drophead`: "
        "dropped attention heads. `adversarial`: a change of the word embeddings, in the direction "
        "that changes the vector most. `function`: a function that is given in Python. None is "
        "`span` where `mask` is above 0, and else `dropout`.",
    )
    synonyms: str | None = setting(
        None,
        since=2,
        default_text="the bundled list",
        help="For `second_view` `synonyms`: a file with a group of words per line, separated by tabs.",
    )
    synonym_share: float = setting(
        Copies.synonym_share,
        above=0,
        at_most=1,
        since=2,
        help="For `second_view` `synonyms`: the share of the words with a synonym that are replaced, "
        "and at least one.",
    )
    epsilon: float = setting(
        Copies.epsilon,
        above=0,
        since=2,
        help="For `second_view` `adversarial`: the length of the change of a text's word embeddings, "
        "in units of their root mean square.",
    )
    noise: str = setting(
        "dropout",
        choices=NOISES,
        help="What the encoder draws anew for both views of a text. `dropout`: dropout. `drophead`: "
        "whole attention heads are dropped, drawn for each text, and there is no dropout. `none`: "
        "nothing; with `second_view` `dropout` both views are then the same, and only the negatives "
        "teach.",
    )
    drophead: float = setting(
        Copies.drophead,
        above=0,
        below=1,
        help="Share of the attention heads that `noise` `drophead` or `second_view` `drophead` drops.",
    )
    head: str = setting(
        "auto",
        choices=HEAD_USES,
        help="SimCSE's dense layer with tanh on the first token. `none`: no layer. `train`: dropped "
        "after training. `keep`: part of the encoder. `auto`: with pooling `first`, `train` for texts "
        "and `keep` for pairs; with pooling `mean`, `none`. The wrong choice costs 20 points.",
    )
    hard_weight: float = setting(
        0.0, help="For `simcse` with triplets: added to the logit of a text's hard negative."
    )
    adapt_epochs: int = setting(
        0,
        at_least=0,
        help="Passes of masked-language modelling over the texts before the method, for a domain that "
        "the encoder does not know.",
    )
    adapt_lr: float = setting(1e-4, above=0, help="Learning rate of the masked-language modelling.")
    adapt_share: float = setting(
        0.15, above=0, below=1, help="Share of the tokens that masked-language modelling masks."
    )

    @property
    def sharpness(self) -> float:
        """The temperature with its default resolved."""
        if self.temperature is not None:
            return self.temperature
        if self.name == "mirror":
            return 0.04 if self.level == "sentence" else 0.2
        return 0.05

    def check_relations(self) -> None:
        """Refuse second views that contradict other settings."""
        if self.second_view == "span" and self.mask == 0:
            raise ConfigError(
                "method.second_view is span, but method.mask is 0: no character would be masked; "
                "leave method.mask out, or set it to 3 to 10"
            )
        if self.second_view == self.noise == "drophead":
            raise ConfigError(
                "method.noise=drophead drops heads in both views already; leave method.second_view "
                "out, or set method.noise=dropout"
            )

    @property
    def span(self) -> int:
        """The number of characters that are masked in the second view."""
        usual = Copies.mask if self.name == "mirror" and self.level == "sentence" else 0
        if self.second_view is not None:
            usual = Copies.mask if self.second_view == "span" else 0
        return usual if self.mask is None else self.mask

    @property
    def copies(self) -> Copies:
        """How the two copies of a single text differ, with the second view resolved."""
        by_mask = "span" if self.span else "dropout"
        view = by_mask if self.second_view is None else self.second_view
        values: dict[str, Any] = {
            "mask": self.span,
            "synonyms": self.synonyms,
            "synonym_share": self.synonym_share,
            "drophead": self.drophead,
            "epsilon": self.epsilon,
        }
        read = {option: values[option] for option, reader in READ_BY.items() if reader == view}
        return Copies(copies=2, second_view=view, **read)

    def head_use(self, pooling: str, paired: bool) -> str:
        """How SimCSE's layer is used, with `auto` resolved.

        `auto` is SimCSE's layer on the first token, dropped after training on texts alone and kept
        after training on pairs.
        """
        if self.head != "auto":
            return self.head
        if self.name != "simcse" or pooling != "first":
            return "none"
        return "keep" if paired else "train"


@dataclass(frozen=True)
class EmbeddingConfig(Configuration):
    """Everything that decides the outcome of learning an embedding, but for the texts
    themselves.
    """

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(pooling="mean"))
    method: MethodConfig = field(default_factory=MethodConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=1))

    def check_relations(self) -> None:
        """Refuse encoders that cannot be trained, and settings that only classifiers have."""
        if self.encoder.name == "textcnn":
            raise ConfigError(
                "a sentence encoder starts from a pretrained one; textcnn has no weights to start from"
            )
        if self.encoder.frozen:
            raise ConfigError(
                "encoder.frozen leaves nothing to learn: only the encoder is trained here"
            )
        self.train.require_settled()


# Settings of [train] that a method has where none are given; simcse differs with pairs.
RECIPES: dict[str, dict[str, Any]] = {
    "simcse": {"epochs": 1, "batch_size": 64, "lr": 3e-5},
    "simcse, pairs": {"epochs": 3, "batch_size": 512, "chunk_size": 512},
    "mirror": {"epochs": 1, "batch_size": 200, "lr": 4e-5},
    "multiple_negatives": {"epochs": 1, "batch_size": 64},
}


def with_recipe(tables: Mapping[str, Mapping[str, Any]], columns: int) -> EmbeddingConfig:
    """The configuration of these tables, with the recipe of the method for what they leave out.

    `columns` is the number of texts per row of the data.
    """
    check_tables(EmbeddingConfig, tables)
    name = str(tables.get("method", {}).get("name", "simcse"))
    recipe = RECIPES.get(f"{name}, pairs" if columns > 1 and name == "simcse" else name, {})
    return EmbeddingConfig.from_dict({**tables, "train": {**recipe, **tables.get("train", {})}})
