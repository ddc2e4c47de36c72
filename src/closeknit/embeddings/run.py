"""Trains a sentence encoder in a folder."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from closeknit.console import say
from closeknit.data.examples import Examples, Fingerprint
from closeknit.data.scored_pairs import ScoredPairs
from closeknit.data.sentences import Sentences
from closeknit.embeddings.config import EmbeddingConfig
from closeknit.embeddings.control import (
    check_control,
    evaluation_record,
    random_sentences,
    spearman_on,
    training_rows,
)
from closeknit.embeddings.declared import declared_modules
from closeknit.embeddings.fit import EmbeddingFit, check_data
from closeknit.embeddings.model import SentenceModel, is_sentence_encoder
from closeknit.embeddings.negatives import mine_negatives
from closeknit.errors import ModelError
from closeknit.models.run import RunFolder, check_folder
from closeknit.training.processes import leave


def embed_in_folder(
    sentences: Sentences,
    config: EmbeddingConfig,
    out: Path,
    *,
    validation: ScoredPairs | None = None,
    evaluate: Sequence[ScoredPairs] = (),
    exclude_evaluated: bool = False,
    control: str | None = None,
    mine: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a sentence encoder on texts, pairs or triplets, save it in `out`, and return its
    metrics.

    With `mine`, every pair gets a hard negative, found by the encoder before training. The scores
    on the pairs of `evaluate` before and after are part of the metrics. `exclude_evaluated` first
    drops the rows with a text of the evaluation or of the validation. The control `random` first
    trains a second encoder with the same settings on random strings, in the folder
    `control_folder(out)`. Of several processes only the first returns metrics.
    """
    folder = RunFolder.open(out, EmbeddingConfig, resume=resume, overwrite=overwrite)
    world = folder.world
    evaluated = [*evaluate, *([] if validation is None else [validation])]
    check_control(control, exclude_evaluated, evaluated)
    scored = list(evaluate) or (evaluated if control else [])
    beside = dataclasses.replace(folder, path=control_folder(out))
    if control and world.main:
        check_folder(beside.path, resume=resume, overwrite=overwrite)
    check_data(sentences, config.method, mine=mine)
    if world.main and is_sentence_encoder(config.encoder.name):
        _warn_of_trained_encoder(config)
        _note_other_pooling(config)
    log = say if world.main else _say_nothing
    sentences, facts = training_rows(sentences, evaluated, exclude=exclude_evaluated, log=log)
    if mine:
        sentences = _with_mined_negatives(sentences, config, show=world.main)
    if control:
        log("the control: training on random strings")
        strings = random_sentences(sentences, config.train.seed)
        _train(beside, strings, config, validation, {})
        log("training on the texts")
    metrics = _train(folder, sentences, config, validation, facts)
    if world.main and scored:
        metrics = _with_evaluation(out, config, scored, beside.path if control else None)
    leave(world)
    return metrics


def control_folder(out: Path) -> Path:
    """Where the encoder that was trained on random strings is saved: beside the real one."""
    return out.with_name(f"{out.name}-random-strings")


def _say_nothing(text: str) -> None:
    pass


def _train(
    folder: RunFolder,
    sentences: Sentences,
    config: EmbeddingConfig,
    validation: ScoredPairs | None,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Train in a folder; `facts` become part of the metrics."""
    identity = {
        "kind": SentenceModel.kind,
        "run": config.to_dict(),
        "data": {"rows": len(sentences), "digest": _digest(sentences, validation)},
    }

    def build(states: Path) -> EmbeddingFit:
        return EmbeddingFit(
            sentences,
            config,
            validation=validation,
            folder=states,
            resume=folder.resume,
            world=folder.world,
        )

    def add_facts(fit: EmbeddingFit) -> None:
        fit.model.metrics.update(facts)

    return folder.train(identity, config.method.name, build, score=add_facts)


def _with_evaluation(
    out: Path, config: EmbeddingConfig, sets: Sequence[ScoredPairs], control: Path | None
) -> dict[str, Any]:
    """The metrics of a finished run with its scores before and after, which its folder then holds.

    The run may have been finished before, with other evaluation sets or none.
    """
    say(f"scoring on {', '.join(pairs.name for pairs in sets)}")
    model = SentenceModel.load(out)
    evaluation = {"before": spearman_on(SentenceModel.before_training(config).encode, sets)}
    if control is not None:
        evaluation["control"] = spearman_on(SentenceModel.load(control).encode, sets)
    evaluation["after"] = spearman_on(model.encode, sets)
    model.metrics["evaluation"] = evaluation_record(evaluation)
    model.save(out)
    return model.metrics


def _warn_of_trained_encoder(config: EmbeddingConfig) -> None:
    name = config.encoder.name or "the bundled encoder"
    say(
        f"{name} is a trained sentence encoder already: a little more text can make it worse. "
        "Validate on scored pairs (--validation), and compare with `closeknit evaluate-embeddings`"
    )


def _note_other_pooling(config: EmbeddingConfig) -> None:
    """Say where a sentence encoder was trained with another pooling than the run has."""
    name = config.encoder.name
    pooling = config.encoder.pooling
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
    return mine_negatives(SentenceModel.before_training(config).encode, sentences)


def _digest(sentences: Sentences, validation: ScoredPairs | None) -> str:
    """A fingerprint of all texts, of their groups and of the scored pairs."""
    groups = [str(group) for group in sentences.groups]
    parts = [Examples(column, labels=groups) for column in sentences.columns]
    if validation is not None:
        scores = validation.scores.tolist()
        parts.append(Examples(validation.first, validation.second, scores=scores))
    return Fingerprint.of(*parts).digest
