"""The stages before the tasks: what they are as runs of their own, and what they learn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from closeknit.data.distinct_texts import row_keys
from closeknit.data.examples import Examples
from closeknit.data.sentences import Sentences, read_sentences, sentences_from_labelled_pairs
from closeknit.data.splits import Parts
from closeknit.embeddings.config import EmbeddingConfig, with_recipe
from closeknit.errors import ConfigError, DataError
from closeknit.multitask.config import MultiTaskConfig, PretrainConfig
from closeknit.settings import numbered

_SEED_STEP = 7_000_003  # between the seeds of two stages


def pretraining_config(
    config: MultiTaskConfig, place: int, sentences: Sentences
) -> EmbeddingConfig:
    """The run that a stage before the tasks is: the same encoder, its own method and seed."""
    stage = config.stages[place]
    tables = stage.tables()
    encoder = {**dataclasses.asdict(config.encoder), "pooling": "mean"}
    train = {
        "seed": config.train.seed + _SEED_STEP * place,
        "precision": config.train.precision,
        "deterministic": config.train.deterministic,
        "checkpoint_seconds": config.train.checkpoint_seconds,
        **tables["train"],
    }
    try:
        return with_recipe(
            {"encoder": encoder, "method": tables["method"], "train": train}, len(sentences.columns)
        )
    except ConfigError as error:
        name = numbered("pretrain", place)
        text = str(error).replace("method.name", f"{name}.method").replace("method.", f"{name}.")
        raise ConfigError(
            text.replace("train.", f"{name}.") if f"{name}." not in text else text
        ) from None


def pretraining_sentences(
    config: MultiTaskConfig,
    data: Mapping[str, Parts],
    *,
    log: Callable[[str], None] = lambda text: None,
) -> list[Sentences]:
    """What each stage before the tasks learns from."""
    return [
        drawn_sentences(_read_stage(stage), stage, config, data, log=log) for stage in config.stages
    ]


def _read_stage(stage: PretrainConfig) -> Sentences:
    if stage.positives:
        return sentences_from_labelled_pairs(stage.data, stage.positives, stage.negatives)
    return read_sentences(stage.data)


def drawn_sentences(
    sentences: Sentences,
    stage: PretrainConfig,
    config: MultiTaskConfig,
    data: Mapping[str, Parts],
    *,
    log: Callable[[str], None] = lambda text: None,
) -> Sentences:
    """As many as the stage asks for, drawn at random, without pairs that a task is chosen
    by or scored on.
    """
    held = {
        key
        for name, own in data.items()
        for part in own.held_out
        if part.pairs is not None and config.tasks[name].leaks == "drop"
        for key in row_keys(part)
    }
    first, *others = (
        sentences.columns
    )  # what belongs to a text, and what does not: both are told of a pair
    told = [row_keys(Examples(first, other)) for other in others] if held else []
    kept = [row for row in range(len(sentences)) if not any(keys[row] in held for keys in told)]
    if len(kept) < len(sentences):
        where = "also in the validation or test part of a task"
        if not kept:
            raise DataError(f"{sentences.name}: every row of pretraining is {where}")
        left = len(sentences) - len(kept)
        log(f"pretraining: {left:,} of {len(sentences):,} rows are {where} and are left out")
        sentences = sentences.select(kept)
    rows = stage.rows or len(sentences)
    scale = config.trial.scale
    if scale < 1.0:
        rows = max(16, round(scale * rows))
    if rows >= len(sentences):
        return sentences
    chosen = np.random.default_rng(config.train.seed).permutation(len(sentences))[:rows]
    return sentences.select(np.sort(chosen).tolist())
