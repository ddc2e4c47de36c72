"""Trains a sentence encoder in a folder."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data.examples import Examples, Fingerprint
from closeknit.data.scored_pairs import ScoredPairs
from closeknit.data.sentences import Sentences
from closeknit.embeddings.config import EmbeddingConfig
from closeknit.embeddings.declared import declared_modules
from closeknit.embeddings.fit import EmbeddingFit, check_data
from closeknit.embeddings.model import SentenceModel, is_sentence_encoder
from closeknit.embeddings.negatives import mine_negatives
from closeknit.errors import ModelError
from closeknit.models.run import RunFolder
from closeknit.training.processes import leave


def embed_in_folder(
    sentences: Sentences,
    config: EmbeddingConfig,
    out: Path,
    *,
    validation: ScoredPairs | None = None,
    mine: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a sentence encoder on texts, pairs or triplets, save it in `out`, and return its
    metrics.

    With `mine`, every pair gets a hard negative, found by the encoder before training. Of several
    processes only the first returns metrics.
    """
    folder = RunFolder.open(out, EmbeddingConfig, resume=resume, overwrite=overwrite)
    world = folder.world
    check_data(sentences, config.method, mine=mine)
    if world.main and is_sentence_encoder(config.encoder.name):
        _warn_of_trained_encoder(config)
        _note_other_pooling(config)
    if mine:
        sentences = _with_mined_negatives(sentences, config, show=world.main)
    identity = {
        "kind": SentenceModel.kind,
        "run": config.to_dict(),
        "data": {"rows": len(sentences), "digest": _digest(sentences, validation)},
    }

    def build(states: Path) -> EmbeddingFit:
        return EmbeddingFit(
            sentences, config, validation=validation, folder=states, resume=resume, world=world
        )

    metrics = folder.train(identity, config.method.name, build, score=lambda fit: None)
    leave(world)
    return metrics


def _warn_of_trained_encoder(config: EmbeddingConfig) -> None:
    name = config.encoder.name or "the bundled encoder"
    say(
        f"{name} is a trained sentence encoder already: a little more text can make it worse. "
        "Validate on scored pairs (--validation), and compare with `closeknit evaluate-embeddings`"
    )


def _note_other_pooling(config: EmbeddingConfig) -> None:
    """Say where a sentence encoder was trained with another pooling than the run has."""
    name, pooling = config.encoder.name, config.encoder.pooling
    if name is None:
        return
    with contextlib.suppress(ModelError):  # a declaration that cannot be followed is not followed
        declared = declared_modules(name)
        if declared is not None and declared.pooling != pooling:
            say(
                f"{name} was trained with pooling {declared.pooling}; this run uses {pooling} "
                "(encoder.pooling)"
            )


def _with_mined_negatives(
    sentences: Sentences, config: EmbeddingConfig, *, show: bool
) -> Sentences:
    if show:
        say(f"mining a hard negative for each of {len(sentences):,} pairs")
    settings = config.encoder
    untrained = SentenceModel.untrained(
        settings.name, pooling=settings.pooling, max_length=settings.max_length
    )
    return mine_negatives(untrained.encode, sentences)


def _digest(sentences: Sentences, validation: ScoredPairs | None) -> str:
    """A fingerprint of all texts, of their groups and of the scored pairs."""
    groups = [str(group) for group in sentences.groups]
    parts = [Examples(column, labels=groups) for column in sentences.columns]
    if validation is not None:
        scores = validation.scores.tolist()
        parts.append(Examples(validation.first, validation.second, scores=scores))
    return Fingerprint.of(*parts).digest
