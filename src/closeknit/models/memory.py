"""What many trainings on the same texts share: loaded encoders, tokenised texts and GPU memory."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from closeknit.data.examples import Examples, Rows
from closeknit.encoders.config import EncoderConfig
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.tokenisers import RememberingTokeniser, Tokeniser
from closeknit.encoders.tokens import Shelf
from closeknit.training import randomness
from closeknit.training.loop import Training
from closeknit.training.processes import World
from closeknit.training.randomness import seeded

KINDS = 4  # of runs whose memory a lane keeps


class Stock:
    """What many runs on the same texts share: the encoder's weights as they were loaded, the
    tokenised texts.

    Their models are scored and let go, so an encoder is loaded without transformers where it can
    be.
    """

    def __init__(self, examples: Examples) -> None:
        self.examples = examples
        self.texts = (
            examples.with_class_names(examples.classes) if examples.pairs is None else examples
        )
        self._encoders: dict[tuple[EncoderConfig, int], Encoder] = {}
        self._tokenisers: dict[tuple[str | None, int], RememberingTokeniser] = {}
        self._on_device: dict[
            Any, tuple[Shelf, Tensor]
        ] = {}  # all are kept: captured updates read them

    def take(self, config: EncoderConfig, seed: int, world: World) -> tuple[Encoder, Tokeniser]:
        """The encoder as this seed would load it, to be copied before it learns, and a tokeniser
        that knows the texts.
        """
        drawn = seed if config.lora_rank else 0  # only adapters have weights to draw
        kind, tokens = (
            dataclasses.replace(config, pooling="first"),
            (config.name, config.max_length),
        )
        if (kind, drawn) not in self._encoders:
            with seeded(world, seed, randomness.ENCODER):
                encoder, tokeniser = config.load(bare=True)
            # The same encoder with another dropout rate is kept too: an objective that compares two
            # views of a text first takes the encoder as it is, and then with the rate it needs.
            self._encoders = {
                (other, seed): kept
                for (other, seed), kept in list(self._encoders.items())[-1:]
                if dataclasses.replace(other, dropout=kind.dropout) == kind and seed == drawn
            }
            self._encoders[kind, drawn] = encoder.to(world.device)
            if tokens not in self._tokenisers:
                self._tokenisers[tokens] = RememberingTokeniser(tokeniser, self.texts)
        encoder = self._encoders[kind, drawn]
        if encoder.pooling != config.pooling:  # of the same weights
            encoder = Encoder(encoder.trunk, config.pooling, encoder.name)
        return encoder, self._tokenisers[tokens]

    def on_device(
        self, config: EncoderConfig, labels: Sequence[str], device: torch.device
    ) -> tuple[Shelf, Tensor]:
        """All texts and the numbers of their labels on a device; -1 for labels that are not among
        these.
        """
        where = (config.name, config.max_length), tuple(labels), device
        if where not in self._on_device:
            number = {label: i for i, label in enumerate(labels)}
            numbers = torch.tensor([number.get(label, -1) for label in self.texts.required_labels])
            shelf = Shelf(self._tokenisers[config.name, config.max_length].tokens, device)
            self._on_device[where] = shelf, numbers.to(device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # other streams will read them
        return self._on_device[where]


class Lane:
    """Runs on the texts of a stock that follow each other in the same memory: what one has captured
    serves the next.

    `rows` are the rows of the stock that the next run learns from. Its model is overwritten by the
    next run of its kind.
    """

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.rows: Rows = np.arange(len(stock.examples))
        self.trainings: dict[object, Training] = {}

    def add_names(self, names: Sequence[str]) -> None:
        """Let the next run learn from the names of these classes too."""
        first, classes = len(self.stock.examples), self.stock.examples.classes
        rows = [first + classes.index(name) for name in names]
        self.rows = np.concatenate([self.rows, np.array(rows, dtype=np.int64)])

    def make_room(self, device: torch.device) -> None:
        """Forget the oldest trainings where they are many, or memory is not plenty."""
        while self.trainings and (len(self.trainings) >= KINDS or not memory_is_plenty(device)):
            self.trainings.pop(next(iter(self.trainings)))
            gc.collect()  # a training and its graphs know each other
            torch.cuda.empty_cache()


def memory_is_plenty(device: torch.device) -> bool:
    """Whether a GPU has more memory left than its share that is taken."""
    if device.type != "cuda":
        return True
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free > total / 2
