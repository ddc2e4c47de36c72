"""Trains a sentence encoder in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data import Examples, Fingerprint
from closeknit.embedding_scores import ScoredPairs
from closeknit.embeddings.fit import EmbeddingFit, check_data
from closeknit.embeddings.model import EmbeddingConfig, SentenceModel, is_sentence_encoder
from closeknit.mining import mine_negatives
from closeknit.models.run import begin_run, run_in_folder
from closeknit.processes import leave
from closeknit.sentences import Sentences


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
    """Learn a sentence encoder from texts, pairs or triplets, save it in `out`, and return how it came out.

    With `mine`, pairs get a hard negative each, found by the encoder as it is. Of several processes only the first returns
    anything.
    """
    world = begin_run(out, resume, overwrite)
    check_data(sentences, config.method, mine=mine)
    if world.main and is_sentence_encoder(config.encoder.name):
        say(
            f"{config.encoder.name or 'the bundled encoder'} is a trained sentence encoder already: a little more text can make "
            "it worse. Validate on scored pairs (--validation), and compare with `closeknit evaluate-embeddings`"
        )
    if mine:
        if world.main:
            say(f"mining a hard negative for each of {len(sentences):,} pairs")
        settings = config.encoder
        start = SentenceModel.untrained(
            settings.name, pooling=settings.pooling, max_length=settings.max_length
        )
        sentences = mine_negatives(start.encode, sentences)
    groups = [str(group) for group in sentences.groups]
    parts = [Examples(column, labels=groups) for column in sentences.columns]
    if validation is not None:
        parts.append(Examples(validation.first, validation.second, scores=validation.scores.tolist()))
    data = {"rows": len(sentences), "digest": Fingerprint.of(*parts).digest}
    identity = {"kind": "sentence_encoder", "run": config.to_dict(), "data": data}

    def build(states: Path) -> EmbeddingFit:
        return EmbeddingFit(
            sentences, config, validation=validation, folder=states, resume=resume, world=world
        )

    metrics = run_in_folder(
        out, identity, config.method.name, build, lambda fit: None, resume, overwrite, world
    )
    leave(world)
    return metrics
