"""EmbeddingFit: a sentence encoder from texts, pairs or triplets, by SimCSE, Mirror-BERT or
multiple negatives.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.console import say
from closeknit.data.examples import Examples
from closeknit.data.scored_pairs import ScoredPairs
from closeknit.data.sentences import Sentences
from closeknit.embeddings.config import EmbeddingConfig, MethodConfig
from closeknit.embeddings.model import Dense, SentenceModel
from closeknit.embeddings.scores import geometry_scores, sts_scores
from closeknit.encoders.augmentation import (
    drophead,
    dropout_for_views,
    dropout_note,
    require_dropout_for_views,
    without_dropout,
)
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import LanguageHead
from closeknit.encoders.loading import load_language_head
from closeknit.encoders.tokenisers import PretrainedTokeniser, Tokeniser, mask_token_of
from closeknit.encoders.tokens import Tokens, stacked, truncation_note
from closeknit.errors import ConfigError, DataError
from closeknit.models.fit import Fit, Stage
from closeknit.objectives.copies import Copies, TextFunction
from closeknit.objectives.joint import Joint, Term
from closeknit.objectives.losses.cross_entropy import CrossEntropy
from closeknit.objectives.losses.text_views import Folded, InfoNCE, MultipleNegatives, NTXent
from closeknit.training import randomness
from closeknit.training.batches import (
    DeviceBatches,
    Plan,
    batches_per_epoch,
    length_grouped,
    rows_of_batches,
    with_second_copies,
)
from closeknit.training.loop import train
from closeknit.training.processes import World, this_world
from closeknit.training.randomness import seeded
from closeknit.training.session import Loop
from closeknit.training.task import Batch, Task


class EmbeddingFit(Fit[SentenceModel]):
    """One training of a sentence encoder: iterate over it to train, then take `model`.

    With scored pairs as `validation`, Spearman's correlation is computed at every evaluation (every
    `train.evaluate_every` steps, or every epoch), and the best state is kept. Checkpoints and
    `resume` work as for a classifier. With `start`, the encoder of another model is trained on,
    that very one and no copy of it. `second_view` is the function of
    `method.second_view = "function"`.
    """

    def __init__(
        self,
        sentences: Sentences,
        config: EmbeddingConfig,
        *,
        validation: ScoredPairs | None = None,
        start: SentenceModel | None = None,
        folder: Path | None = None,
        resume: bool = False,
        world: World | None = None,
        second_view: TextFunction | None = None,
        log: Callable[[str], None] = say,
    ) -> None:
        self.config = config
        self.second_view = second_view
        self.sentences = sentences
        self.validation = validation
        self.log = log
        self.world = world or this_world()
        check_data(sentences, config.method)
        _check_training(config, validated=validation is not None)
        encoder, tokeniser = self._load_encoder() if start is None else self._taken_on(start)
        self.model = SentenceModel(encoder, tokeniser, self.config)
        self._make_head()
        main = Stage(self._main_session(folder, resume), around=self._noise, after=self._finish)
        self.stages = [main]
        if config.method.adapt_epochs:
            adaptation = self._adaptation(folder, resume)
            first = Stage(adaptation, before=self._note_start, after=self._note_adaptation)
            self.stages = [first, main]
        else:
            self.stages = [dataclasses.replace(main, before=self._note_start)]

    def _load_encoder(self) -> tuple[Encoder, Tokeniser]:
        """The encoder to train; with dropout where the two views of a text need it."""
        config = self.config
        with seeded(self.world, config.train.seed, randomness.ENCODER):
            encoder, tokeniser = config.encoder.load()
        method = config.method.name
        difference = config.method.difference_of_views(paired=len(self.sentences.columns) > 1)
        rate = dropout_for_views(encoder, config.encoder.dropout, method, second_view=difference)
        if rate is None:
            return encoder, tokeniser
        if self.world.main:
            self.log(dropout_note(encoder, rate, method))
        dropping = dataclasses.replace(config.encoder, dropout=rate)
        self.config = dataclasses.replace(config, encoder=dropping)
        with seeded(self.world, config.train.seed, randomness.ENCODER):
            return dropping.load()

    def _taken_on(self, start: SentenceModel) -> tuple[Encoder, Tokeniser]:
        """The encoder of another model, with the pooling of this training."""
        method = self.config.method
        encoder = Encoder(start.encoder.trunk, self.config.encoder.pooling, start.encoder.name)
        difference = method.difference_of_views(paired=len(self.sentences.columns) > 1)
        asked = self.config.encoder.dropout
        require_dropout_for_views(encoder, asked, method.name, second_view=difference)
        return encoder, start.tokeniser

    def _make_head(self) -> None:
        """The dense layer on the pooled vector, where the method has one."""
        pooling = self.model.encoder.pooling
        self.head_use = self.config.method.head_use(pooling, paired=len(self.sentences.columns) > 1)
        self.heads = nn.ModuleDict()
        if self.head_use == "none":
            return
        if pooling == "own":
            raise ConfigError(
                "pooling own has the encoder's dense layer already; use method.head=none"
            )
        with seeded(self.world, self.config.train.seed, randomness.HEADS):
            self.heads["projected"] = Dense(self.model.encoder.dim)

    def _main_session(self, folder: Path | None, resume: bool) -> Loop:
        method = self.config.method
        options = self.config.train
        views = Folded(loss_of(method), max(2, len(self.sentences.columns)))
        term = Term(method.name, 1.0, views, "projected" if self.heads else "pooled")
        joint = Joint([term], copies=method.copies if len(self.sentences.columns) == 1 else 1)
        joint.set_text_function(self.second_view)
        batch, per_epoch = self._batches(self.model.tokeniser, joint.second_copies)
        task = Task(method.name, batch, per_epoch, joint, self.heads)
        training = train(self.model.encoder, [task], options, world=self.world, log=self.log)
        return Loop(
            training,
            every=options.evaluate_every or per_epoch,
            evaluate=self._evaluate if self.validation is not None else None,
            metric="spearman",
            patience=options.patience or 0,
            folder=folder / "learn" if folder is not None else None,
            resume=resume,
            world=self.world,
        )

    # -- what the training is fed with

    def _batches(
        self, tokeniser: Tokeniser, copies: Copies
    ) -> tuple[Callable[[int, int, int], Batch], int]:
        """V views of B texts stacked into one list of rows; y says view and group of each."""
        options = self.config.train
        texts = self.sentences.columns
        examples = [Examples(column) for column in texts]
        parts = [tokeniser(column) for column in examples]
        lengths = np.max([part.lengths for part in parts], axis=0)
        whole = stacked(parts)
        rows = len(self.sentences)
        self._note_truncation(whole)
        plan = length_grouped(lengths, options.batch_size, options.seed)
        per_epoch = batches_per_epoch(rows, options.batch_size)
        groups = torch.from_numpy(self._groups_of_views()).to(self.world.device)  # (V, R)
        starts = [rows * column for column in range(len(texts))] if len(texts) > 1 else [0, 0]

        def targets(share: Tensor) -> Tensor:
            """(V B, 2): the view and the group of each text."""
            view = torch.arange(len(starts), device=share.device).repeat_interleave(len(share))
            return torch.stack([view, groups[:, share].flatten()], dim=1)

        batches = DeviceBatches(whole, targets, plan, per_epoch, self.world, starts=starts)
        seed = options.seed
        batch = with_second_copies(batches, copies, examples[0], parts[0], tokeniser, seed)
        return batch, per_epoch

    def _note_truncation(self, tokens: Tokens) -> None:
        """Record and say which share of the texts is longer than `max_length`."""
        share = tokens.truncated_share()
        self.model.metrics["truncated"] = round(share, 4)
        if share and self.world.main:
            self.log(truncation_note(share, self.config.encoder.max_length))

    def _groups_of_views(self) -> npt.NDArray[np.int64]:
        """The group of each text of each view, (V, R); -1 for a hard negative that has none."""
        groups = self.sentences.groups
        if len(self.sentences.columns) < 3:
            return np.stack([groups, groups])
        negatives = self.sentences.groups_of_negatives()
        wrong = int((negatives == groups).sum())
        if wrong and self.world.main:
            self.log(
                f"{wrong:,} of {len(groups):,} hard negatives are texts that belong to their own row: "
                "they are not used as negatives of it"
            )
        return np.stack([groups, groups, negatives])

    def _adaptation(self, folder: Path | None, resume: bool) -> Loop:
        """Masked-language modelling on all texts, before anything else."""
        method = self.config.method
        options = self.config.train
        encoder = self.model.encoder
        tokeniser = self.model.tokeniser
        with seeded(self.world, options.seed, randomness.HEADS, 1):
            head = LanguageHead(load_language_head(self.config.encoder.name, encoder))
        texts = list(dict.fromkeys(text for column in self.sentences.columns for text in column))
        tokens = tokeniser(Examples(texts))
        per_epoch = batches_per_epoch(len(texts), options.batch_size)
        settings = dataclasses.replace(
            options,
            epochs=method.adapt_epochs,
            lr=method.adapt_lr,
            head_lr=method.adapt_lr,
            evaluate_every=0,
        )
        plan = length_grouped(tokens.lengths, options.batch_size, options.seed)
        masking = masked_batches(
            tokens, plan, per_epoch, tokeniser, method.adapt_share, options.seed, self.world
        )
        objective = Joint([Term("masked_language", 1.0, CrossEntropy(), "masked_tokens")])
        task = Task("adapt", masking, per_epoch, objective, nn.ModuleDict({"masked_tokens": head}))
        training = train(encoder, [task], settings, world=self.world, log=self.log)
        return Loop(
            training,
            every=per_epoch,
            folder=folder / "adapt" if folder is not None else None,
            resume=resume,
            world=self.world,
        )

    # -- running

    @contextlib.contextmanager
    def _noise(self) -> Iterator[None]:
        """What makes two views of a text differ."""
        method = self.config.method
        encoder = self.model.encoder
        with contextlib.ExitStack() as stack:
            if method.noise != "dropout":
                stack.enter_context(without_dropout(encoder))
            if method.noise == "drophead":
                stack.enter_context(drophead(encoder, method.drophead))
            yield

    @property
    def _kept(self) -> Dense | None:
        """The layer that becomes part of the vectors, where one does."""
        dense = self.heads["projected"] if self.head_use == "keep" else None
        assert dense is None or isinstance(dense, Dense)
        return dense

    def _evaluate(self) -> dict[str, float]:
        return self._scores(dataclasses.replace(self.model, dense=self._kept))

    def _scores(self, model: SentenceModel) -> dict[str, float]:
        assert self.validation is not None
        scores = {"spearman": sts_scores(model.encode, self.validation)["spearman"]}
        geometry = geometry_scores(model.encode, self.validation, self.validation.texts)
        return scores | {name: geometry[name] for name in ("alignment", "uniformity", "anisotropy")}

    def _note_start(self) -> None:
        """Where the encoder stands before training: the first point of its path, and what it must
        become better than.
        """
        if self.validation is None:
            return
        before = self.session.scores_of_first_process(self._scores(self.model))
        self.model.metrics["before"] = before
        self.session.keep(before["spearman"])

    def _note_adaptation(self) -> None:
        self.model.metrics["adaptation"] = self.stages[0].session.history

    def _finish(self) -> None:
        self.model.dense = self._kept
        self.model.metrics["history"] = self.session.history
        self.model.metrics["rows"] = len(self.sentences)
        if self.validation is not None:
            start = self.model.metrics["before"]
            best = max([start, *self.session.history], key=lambda record: record["spearman"])
            self.model.metrics["validation"] = {k: v for k, v in best.items() if k != "loss"}
            if best is start:
                self.model.dense = (
                    None  # a layer that was never trained is no part of the encoder as it was
                )
                if self.world.main:
                    self.log(
                        "no evaluation was better than the encoder as it was before: it is kept as it was"
                    )
        self.model.encoder.eval()


def _check_training(config: EmbeddingConfig, *, validated: bool) -> None:
    """Refuse settings of the training that an embedding cannot have."""
    options = config.train
    if options.patience and not validated:
        raise ConfigError("train.patience needs scored pairs to validate on")
    if options.validation:
        raise ConfigError(
            "train.validation holds out rows with labels; an embedding is validated on scored pairs (--validation)"
        )
    if options.batch_size // options.accumulate < 2:
        raise ConfigError(
            f"train.batch_size={options.batch_size} in train.accumulate={options.accumulate} parts leaves one row per "
            "part, and a contrastive loss needs at least two; let train.batch_size be at least twice train.accumulate"
        )


def check_data(sentences: Sentences, method: MethodConfig, *, mine: bool = False) -> None:
    """Refuse data that a method cannot learn from, and settings that would do nothing; with `mine`
    negatives are to come.
    """
    columns = len(sentences.columns)
    if mine and columns != 2:
        held = "single texts" if columns == 1 else "a negative for each pair already"
        raise DataError(
            f"{sentences.name} holds {held}; --mine finds negatives for pairs: columns text and text2"
        )
    if method.name == "multiple_negatives" and columns == 1:
        raise DataError(
            f"{sentences.name} holds single texts; multiple_negatives needs pairs: columns text and text2"
        )
    if method.name == "mirror" and columns > 1:
        raise DataError(
            f"{sentences.name} holds pairs; mirror learns from single texts: use simcse or multiple_negatives"
        )
    if method.noise == "none" and columns > 1:
        raise ConfigError("method.noise=none is for single texts: pairs differ by themselves")
    usual = MethodConfig()
    negatives = mine or columns == 3
    view = method.copies.second_view if columns == 1 else "that of a pair"
    for setting, used, purpose in (
        ("level", method.name == "mirror", "says what mirror's texts are"),
        ("second_view", columns == 1, "makes a second view of a single text, not of pairs"),
        (
            "similarity",
            method.name == "multiple_negatives",
            "says how multiple_negatives compares two vectors",
        ),
        ("mask", view == "span", "masks a span in the second view of a single text"),
        ("synonyms", view == "synonyms", "is for method.second_view=synonyms"),
        ("synonym_share", view == "synonyms", "is for method.second_view=synonyms"),
        ("epsilon", view == "adversarial", "is for method.second_view=adversarial"),
        ("pull", method.name == "mirror", "is for mirror"),
        (
            "hard_weight",
            method.name == "simcse" and negatives,
            "weighs the hard negatives of simcse",
        ),
        (
            "drophead",
            "drophead" in (method.noise, view),
            "is for method.noise=drophead or method.second_view=drophead",
        ),
        ("adapt_lr", method.adapt_epochs, "is for method.adapt_epochs"),
        ("adapt_share", method.adapt_epochs, "is for method.adapt_epochs"),
    ):
        value = getattr(method, setting)
        without_effect = value == getattr(usual, setting) or (value == 0 and value is not False)
        if not used and not without_effect:
            raise ConfigError(
                f"method.{setting} is {value}, but it {purpose}; here it would do nothing"
            )
    if len(np.unique(sentences.groups)) < 2:
        raise DataError(
            f"{sentences.name}: all rows share a text or a label, directly or through others; there is nothing to tell apart"
        )


def loss_of(method: MethodConfig) -> nn.Module:
    if method.name == "simcse":
        return InfoNCE(temperature=method.sharpness, hard_weight=method.hard_weight)
    if method.name == "mirror":
        return NTXent(temperature=method.sharpness, pull=method.pull)
    return MultipleNegatives(scale=1.0 / method.sharpness, similarity=method.similarity)


def masked_batches(
    tokens: Tokens,
    plan: Plan,
    per_epoch: int,
    tokeniser: Tokeniser,
    share: float,
    seed: int,
    world: World,
) -> Callable[[int, int, int], Batch]:
    """Batches for masked-language modelling: of the chosen tokens 8 in 10 are masked, 1 replaced, 1
    left as it is.

    The labels (R, T) are the true tokens where they are to be told, and -1 elsewhere.
    """
    assert isinstance(tokeniser, PretrainedTokeniser)
    if mask_token_of(tokeniser) is None:
        raise ConfigError(
            "this encoder's tokenizer has no mask token, which masked-language modelling needs; use "
            "method.adapt_epochs=0"
        )
    mask = int(tokeniser.tokenizer.mask_token_id)
    words = len(tokeniser.tokenizer)
    rows_of = rows_of_batches(plan, per_epoch, world)

    def batch(number: int, part: int = 0, parts: int = 1) -> Batch:
        _, rows, own, filler = rows_of(number, part, parts)
        inputs = tokens.pad(own)
        generator = torch.Generator().manual_seed(
            int(
                np.random.SeedSequence(
                    (seed, randomness.MASKING, number, world.rank, part)
                ).generate_state(1)[0]
            )
        )
        ids = inputs["input_ids"]  # (R, T)
        chosen = (torch.rand(ids.shape, generator=generator) < share) & ~inputs["special"]
        if not bool(chosen.any()):  # a batch of very short texts
            chosen[
                0,
                int((~inputs["special"][0]).nonzero()[0])
                if bool((~inputs["special"][0]).any())
                else 0,
            ] = True
        fate = torch.rand(ids.shape, generator=generator)
        other = torch.randint(words, ids.shape, generator=generator)
        seen = torch.where(
            chosen & (fate < 0.8), mask, torch.where(chosen & (fate < 0.9), other, ids)
        )
        return Batch({**inputs, "input_ids": seen}, torch.where(chosen, ids, -1), rows, filler)

    return batch
