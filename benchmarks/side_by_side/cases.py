"""What is trained: the cases, their texts and the encoder with random weights."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 6
BATCHES = 16  # mini-batches per epoch


@dataclass(frozen=True)
class Kind:
    """What is trained: an estimator by its public name, and its arguments."""

    estimator: str
    options: dict[str, Any]


KINDS = {
    "cross_entropy": Kind("TextClassifier", {"objective": "cross_entropy"}),
    "triple_entropy": Kind("TextClassifier", {"objective": "triple_entropy"}),
    "auto": Kind("TextClassifier", {"objective": "auto"}),
    "label_aware": Kind("TextClassifier", {"objective": "lcl"}),
    "clld": Kind("TextClassifier", {"objective": "clld"}),
    "simcse": Kind("SentenceEncoder", {"method": "simcse"}),
    "multitask_pcgrad": Kind("MultiTask", {"schedule": {"name": "together", "surgery": "pcgrad"}}),
    "textcnn": Kind("TextClassifier", {"objective": "cross_entropy", "encoder": "textcnn"}),
}


@dataclass(frozen=True)
class Setting:
    """What a device is measured with."""

    sizes: tuple[tuple[int, int], ...]  # (tokens per text, texts per mini-batch)
    hidden: int
    layers: int
    words: int
    warm_up: int  # steps
    seconds: float  # per version and round
    rounds: int


SETTINGS = {
    "cpu": Setting(((32, 32), (128, 16)), 128, 4, 4000, warm_up=6, seconds=0.25, rounds=12),
    "cuda": Setting(
        ((32, 32), (128, 32), (256, 16)),
        768,
        12,
        30_000,
        warm_up=3 * BATCHES,  # a few epochs, so that all graphs are captured
        seconds=0.3,
        rounds=10,
    ),
}


@dataclass(frozen=True)
class Case:
    """One row of the table, as it is sent to the workers."""

    kind: str
    tokens: int
    batch_size: int
    encoder: str  # the folder of the encoder with random weights
    words: int
    warm_up: int
    epochs: int

    @property
    def title(self) -> str:
        return f"{self.kind}, {self.batch_size} x {self.tokens}"


def vocabulary(amount: int) -> list[str]:
    """So many different words of small letters, always the same ones."""
    consonants = "bcdfghjklmnprstvwz"
    syllables = ["".join(pair) for pair in itertools.product(consonants, "aeiou")]
    words = ["".join(pair) for pair in itertools.product(syllables, syllables)]
    longer = ("".join(three) for three in itertools.product(syllables, syllables, syllables))
    words += itertools.islice(longer, max(0, amount - len(words)))
    order = np.random.default_rng(0).permutation(len(words))
    return [words[place] for place in order[:amount]]


def draw_texts(amount: int, longest: int, spread: int, words: int, seed: int) -> list[str]:
    """Texts of so many words at most, and of up to `spread` words less."""
    generator = np.random.default_rng(seed)
    known = np.array(vocabulary(words))
    lengths = longest - generator.integers(spread + 1, size=amount)
    return [" ".join(known[generator.integers(len(known), size=length)]) for length in lengths]


def training_data(case: Case) -> list[Any]:
    """The arguments of the estimator's `fit`.

    Texts with their two special tokens, and pairs with their three, are at most 7 tokens shorter
    than the width. So there is padding, but a GPU's graphs have one width and none is captured
    late.
    """
    rows = BATCHES * case.batch_size
    generator = np.random.default_rng(1)
    names = vocabulary(CLASSES)
    texts = draw_texts(rows, case.tokens - 2, 6, case.words, seed=2)
    labels = [names[number] for number in generator.permutation(rows) % CLASSES]
    estimator = KINDS[case.kind].estimator
    if estimator == "SentenceEncoder":
        return [texts]
    if estimator == "TextClassifier":
        return [texts, labels]
    first = draw_texts(rows, case.tokens // 2 - 2, 3, case.words, seed=3)
    second = draw_texts(rows, case.tokens // 2 - 2, 3, case.words, seed=4)
    pairs = list(zip(first, second, strict=True))
    same = [("no", "yes")[number % 2] for number in generator.permutation(rows)]
    scores = [float(score) for score in generator.uniform(0, 5, size=rows)]
    return [{"topic": (texts, labels), "same": (pairs, same), "score": (pairs, scores)}]


def make_encoder(folder: Path, setting: Setting, positions: int) -> None:
    """A BERT with random weights, and a tokenizer that knows the words of the texts."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    numbers = {word: i for i, word in enumerate([*special, *vocabulary(setting.words)])}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(numbers),
        hidden_size=setting.hidden,
        num_hidden_layers=setting.layers,
        num_attention_heads=max(1, setting.hidden // 64),
        intermediate_size=4 * setting.hidden,
        max_position_embeddings=positions,
    )
    torch.manual_seed(0)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
