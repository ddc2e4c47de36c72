"""Tokenisers: what turns texts, or pairs of texts, into token ids."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from closeknit.data.examples import Examples
from closeknit.data.text_changes import UNSPACED_SCRIPTS
from closeknit.encoders.tokens import Tokens, stacked
from closeknit.errors import ConfigError, ModelError


class Tokeniser(Protocol):
    """Turns examples into tokens, and saves itself beside the weights of an encoder.

    `unknown_id` is the token that stands for what the vocabulary does not have, if there is one.
    """

    unknown_id: int | None

    def __call__(self, examples: Examples) -> Tokens: ...

    def save(self, folder: Path) -> None:
        """Writes the files of the tokeniser to a folder."""


TEXTS_AT_ONCE = 1024  # a tokeniser's lists and strings take many times the memory of its arrays


def tokenised_in_chunks(examples: Examples, tokenise: Callable[[Examples], Tokens]) -> Tokens:
    """The tokens of all examples, of which a few at a time are held in the tokeniser's own form."""
    if len(examples) <= TEXTS_AT_ONCE:
        return tokenise(examples)
    starts = range(0, len(examples), TEXTS_AT_ONCE)
    return stacked([tokenise(_slice_of(examples, start)) for start in starts])


def _slice_of(examples: Examples, start: int) -> Examples:
    stop = start + TEXTS_AT_ONCE
    pairs = None if examples.pairs is None else examples.pairs[start:stop]
    return Examples(examples.texts[start:stop], pairs)


class PretrainedTokeniser:
    """The tokeniser of a pretrained encoder; pairs are joined as in the encoder's pretraining."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError(
                "this encoder's tokenizer has no padding token; choose a BERT-like encoder"
            )
        smallest = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if max_length < smallest:
            raise ConfigError(f"encoder.max_length is {max_length}; it must be at least {smallest}")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.unknown_id: int | None = tokenizer.unk_token_id

    def __call__(self, examples: Examples) -> Tokens:
        return tokenised_in_chunks(examples, self._tokenise)

    def _tokenise(self, examples: Examples) -> Tokens:
        encoded = self.tokenizer(
            examples.texts,
            examples.pairs,
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=False,
            return_special_tokens_mask=True,
        )
        return Tokens(
            ids=_flat(encoded["input_ids"]),
            special=_flat(encoded["special_tokens_mask"]).astype(bool),
            types=_flat(encoded["token_type_ids"]) if "token_type_ids" in encoded else None,
            offsets=_offsets(encoded["input_ids"]),
            pad_id=self.tokenizer.pad_token_id,
            pad_type=self.tokenizer.pad_token_type_id,
            pad_left=self.tokenizer.padding_side == "left",
            truncated=self._truncated(examples, encoded),
        )

    def _truncated(self, examples: Examples, encoded: Any) -> npt.NDArray[np.bool_]:
        """Which rows were longer than `max_length`."""
        if encoded.encodings is not None:
            return np.array([bool(one.overflowing) for one in encoded.encodings], dtype=bool)
        # A tokenizer that is written in Python does not say: the longest rows are tokenised again.
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        truncated = lengths >= self.max_length
        for row in np.flatnonzero(truncated):
            second = None if examples.pairs is None else examples.pairs[row]
            whole = self.tokenizer(examples.texts[row], second, verbose=False)
            truncated[row] = len(whole["input_ids"]) > self.max_length
        return truncated

    def save(self, folder: Path) -> None:
        """Writes the files of the tokeniser to a folder."""
        self.tokenizer.save_pretrained(folder)


# ---------------------------------------------------------------- without transformers


class FileTokeniser:
    """The tokeniser of a saved encoder, read by the library `tokenizers` alone.

    It serves encoders that are loaded without transformers.
    """

    FILE = "tokenizer.json"
    SETTINGS = "tokenizer_config.json"
    # The tokenizer classes whose behaviour is known here, and whether their encoders get
    # token_type_ids.
    HAS_TOKEN_TYPES: ClassVar[dict[str, bool]] = {
        "BertTokenizer": True,
        "RobertaTokenizer": False,
        "XLMRobertaTokenizer": False,
        "CamembertTokenizer": False,
        "DistilBertTokenizer": False,
    }
    OF_BERT = ("BertTokenizer", "DistilBertTokenizer")
    # General classes: their settings have to say what the encoder gets.
    GENERAL = ("TokenizersBackend", "PreTrainedTokenizer")
    # Settings that change the tokens in a way that is not implemented here.
    NOT_SUPPORTED = ("auto_map", "split_special_tokens", "add_bos_token", "add_eos_token")

    def __init__(
        self, tokenizer: Any, settings: dict[str, Any], has_token_types: bool, folder: Path
    ) -> None:
        self.tokenizer = tokenizer
        self.has_token_types = has_token_types
        self.folder = folder
        self.pad_id: int = tokenizer.token_to_id(settings["pad_token"])
        self.unknown_id: int | None = tokenizer.token_to_id(str(settings.get("unk_token")))
        self.pad_type: int = settings.get("pad_token_type_id", 0)
        self.pad_left = settings.get("padding_side", "right") == "left"
        self.mask_token: str | None = settings.get("mask_token")

    @classmethod
    def load(cls, folder: Path, max_length: int) -> FileTokeniser | None:
        """The tokeniser of a folder; None if transformers might read that folder differently."""
        from tokenizers import Tokenizer

        if not (folder / cls.FILE).exists() or (folder / "added_tokens.json").exists():
            return None
        settings = json.loads((folder / cls.SETTINGS).read_text(encoding="utf-8"))
        kind = str(settings.get("tokenizer_class")).removesuffix("Fast")
        if not cls._is_supported(kind, settings):
            return None
        tokenizer = Tokenizer.from_file(str(folder / cls.FILE))
        if not _knows_all_tokens(tokenizer, settings):
            return None
        if max_length < tokenizer.num_special_tokens_to_add(True) + 2:
            return None
        if tokenizer.padding is not None:  # the settings of the folder override what the file says
            stored = {"pad_token_type_id": "pad_type_id", "padding_side": "direction"}
            settings = {key: tokenizer.padding[old] for key, old in stored.items()} | settings
            tokenizer.no_padding()
        stored_side = (tokenizer.truncation or {}).get("direction", "right")
        side = settings.get("truncation_side", stored_side)
        tokenizer.enable_truncation(max_length, strategy="longest_first", direction=side)
        if kind in cls.HAS_TOKEN_TYPES and not _is_as_transformers_builds_it(
            tokenizer, kind, settings
        ):
            return None
        inputs = settings.get("model_input_names")
        has_token_types = "token_type_ids" in inputs if inputs else cls.HAS_TOKEN_TYPES[kind]
        return cls(tokenizer, settings, has_token_types, folder)

    @classmethod
    def _is_supported(cls, kind: str, settings: dict[str, Any]) -> bool:
        says_inputs = settings.get("model_input_names") is not None
        if kind not in cls.HAS_TOKEN_TYPES and not (kind in cls.GENERAL and says_inputs):
            return False
        if settings.get("backend", "tokenizers") != "tokenizers":
            return False
        return not any(settings.get(key) for key in cls.NOT_SUPPORTED)

    def __call__(self, examples: Examples) -> Tokens:
        return tokenised_in_chunks(examples, self._tokenise)

    def _tokenise(self, examples: Examples) -> Tokens:
        texts: list[Any] = list(examples.texts)
        if examples.pairs is not None:
            texts = list(zip(examples.texts, examples.pairs, strict=True))
        encoded = self.tokenizer.encode_batch(texts)
        ids = [one.ids for one in encoded]
        return Tokens(
            ids=_flat(ids),
            special=_flat([one.special_tokens_mask for one in encoded]).astype(bool),
            types=_flat([one.type_ids for one in encoded]) if self.has_token_types else None,
            offsets=_offsets(ids),
            pad_id=self.pad_id,
            pad_type=self.pad_type,
            pad_left=self.pad_left,
            truncated=np.array([bool(one.overflowing) for one in encoded], dtype=bool),
        )

    def save(self, folder: Path) -> None:
        """Copies the files of the tokeniser to a folder."""
        for name in (self.FILE, self.SETTINGS):
            shutil.copyfile(self.folder / name, folder / name)


def _knows_all_tokens(tokenizer: Any, settings: dict[str, Any]) -> bool:
    """Whether the tokens that the settings name are in the file, as transformers would have
    them.
    """
    special = {
        value
        for key, value in settings.items()
        if key.endswith("_token") and isinstance(value, str)
    }
    for key in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(key) or []
        special |= set(extra.values() if isinstance(extra, dict) else extra)
    in_file = tokenizer.get_added_tokens_decoder().values()
    if not special <= {one.content for one in in_file if one.special}:
        return False  # transformers would make these tokens special
    added = {one["content"] for one in settings.get("added_tokens_decoder", {}).values()}
    if not added <= {one.content for one in in_file}:
        return False  # transformers would give these tokens new numbers
    return settings.get("pad_token") in special


def _is_as_transformers_builds_it(tokenizer: Any, kind: str, settings: dict[str, Any]) -> bool:
    """Whether the file agrees with the settings.

    For these classes transformers ignores parts of the file, and builds them from the settings
    instead.
    """
    if kind in FileTokeniser.OF_BERT:
        splitter, parts_agree = _bert_parts(tokenizer, settings)
    elif kind == "RobertaTokenizer":
        splitter, parts_agree = _roberta_parts(tokenizer, settings)
    else:
        splitter, parts_agree = _sentencepiece_parts(tokenizer, settings)
    of_bert = kind in FileTokeniser.OF_BERT
    first = settings.get("cls_token", "[CLS]" if of_bert else "<s>")
    last = settings.get("sep_token", "[SEP]" if of_bert else "</s>")
    separators = 2 if of_bert else 3  # in an empty pair
    frame_agrees = tokenizer.encode("", "").tokens == [first, *[last] * separators]
    return parts_agree and frame_agrees and _state(tokenizer.pre_tokenizer) == _state(splitter)


def _bert_parts(tokenizer: Any, settings: dict[str, Any]) -> tuple[Any, bool]:
    """(the pre-tokenizer of BERT, whether normalizer and model are BERT's)."""
    from tokenizers import models, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    model = tokenizer.model
    agree = (
        _state(tokenizer.normalizer) == _state(normalizer)
        and isinstance(model, models.WordPiece)
        and model.unk_token == settings.get("unk_token", "[UNK]")
        and model.continuing_subword_prefix == "##"
        and model.max_input_chars_per_word == 100
    )
    return pre_tokenizers.BertPreTokenizer(), agree


def _roberta_parts(tokenizer: Any, settings: dict[str, Any]) -> tuple[Any, bool]:
    """(the pre-tokenizer of RoBERTa, whether there is no normalizer)."""
    from tokenizers import pre_tokenizers

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    return splitter, tokenizer.normalizer is None


def _sentencepiece_parts(tokenizer: Any, settings: dict[str, Any]) -> tuple[Any, bool]:
    """(the pre-tokenizer of XLM-RoBERTa and CamemBERT, whether the normalizer is one of theirs)."""
    from tokenizers import normalizers, pre_tokenizers

    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
    )
    normalizer = tokenizer.normalizer
    return splitter, normalizer is None or isinstance(normalizer, normalizers.Precompiled)


def _state(part: Any) -> Any:
    """A part of a tokenizer as its file describes it."""
    return None if part is None else json.loads(part.__getstate__())


# ---------------------------------------------------------------- remembering


class RememberingTokeniser:
    """A tokeniser that has tokenised some examples already, and looks them up from then on."""

    def __init__(self, tokeniser: Tokeniser, examples: Examples) -> None:
        self.tokeniser = tokeniser
        self.tokens = tokeniser(examples)
        self.unknown_id = tokeniser.unknown_id
        self.row_of = {key: row for row, key in enumerate(self._keys(examples))}

    def __call__(self, examples: Examples) -> Tokens:
        rows = [self.row_of.get(key) for key in self._keys(examples)]
        known_rows = [row for row in rows if row is not None]
        if len(known_rows) < len(rows):
            return self.tokeniser(examples)
        return self.tokens.select(known_rows)

    @staticmethod
    def _keys(examples: Examples) -> list[tuple[str, str | None]]:
        """What tells rows apart: the text, and the second text of a pair."""
        if not examples.pairs:
            return [(text, None) for text in examples.texts]
        return [(text, examples.pairs[i]) for i, text in enumerate(examples.texts)]

    def save(self, folder: Path) -> None:
        """Writes the files of the tokeniser to a folder."""
        self.tokeniser.save(folder)


def mask_token_of(tokeniser: Tokeniser) -> str | None:
    """The text of the encoder's mask token; None where its tokenizer has none."""
    if isinstance(tokeniser, RememberingTokeniser):
        tokeniser = tokeniser.tokeniser
    if isinstance(tokeniser, FileTokeniser):
        token = tokeniser.mask_token
    else:
        token = getattr(getattr(tokeniser, "tokenizer", None), "mask_token", None)
    return None if token is None else str(token)


# ---------------------------------------------------------------- words


# Signs of scripts without blanks that belong to the character before them.
_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd\u102b-\u103e\u17b4-\u17d3"
    "\u3099\u309a\uff9e\uff9f"
)
_CHARACTER = f"[{UNSPACED_SCRIPTS}][{_MARKS}]*"


class WordTokeniser:
    """Lower-cased words and punctuation marks, with the training texts' vocabulary; for TextCNN.

    Scripts without blanks between words are split into characters. Vocabularies that were saved
    before this rule hold longer pieces of such scripts; their texts are split as they were then.
    """

    PAD, UNKNOWN, SEPARATOR = 0, 1, 2
    FILE = "vocabulary.json"
    _word = re.compile(rf"{_CHARACTER}|(?:(?![{UNSPACED_SCRIPTS}])\w)+|[^\w\s]")
    _word_before = re.compile(r"\w+|[^\w\s]")
    _several_characters = re.compile(f"{_CHARACTER}(?![{_MARKS}])[{UNSPACED_SCRIPTS}]")

    def __init__(self, words: Sequence[str], max_length: int) -> None:
        self.words = list(words)
        self.max_length = max_length
        self.unknown_id: int | None = self.UNKNOWN
        self.id_of = {word: i + 3 for i, word in enumerate(self.words)}
        if any(self._several_characters.search(word) for word in self.words):
            self._word = self._word_before

    @classmethod
    def build(cls, examples: Examples, max_length: int, *, largest: int = 50_000) -> WordTokeniser:
        """The vocabulary of these texts, most frequent words first."""
        counts: Counter[str] = Counter()
        for text in [*examples.texts, *(examples.pairs or [])]:
            counts.update(cls._word.findall(text.lower()))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[:largest], max_length)

    def __len__(self) -> int:
        return len(self.words) + 3

    def __call__(self, examples: Examples) -> Tokens:
        return tokenised_in_chunks(examples, self._tokenise)

    def _tokenise(self, examples: Examples) -> Tokens:
        rows: list[list[int]] = []
        truncated = np.zeros(len(examples), dtype=bool)
        for i, text in enumerate(examples.texts):
            row = self._ids(text)
            whole = len(row)
            if examples.pairs is not None:
                second = self._ids(examples.pairs[i])
                whole += 1 + len(second)
                row = self._joined(row, second)
            truncated[i] = whole > self.max_length
            rows.append(row[: self.max_length] or [self.UNKNOWN])
        ids = _flat(rows)
        return Tokens(
            ids,
            ids == self.SEPARATOR,
            None,
            _offsets(rows),
            self.PAD,
            truncated=truncated,
        )

    def _joined(self, first: list[int], second: list[int]) -> list[int]:
        """Both texts of a pair. If both are long, each gets half of the tokens."""
        available = self.max_length - 1
        for_first = max(available // 2, available - len(second))
        return [*first[:for_first], self.SEPARATOR, *second]

    def _ids(self, text: str) -> list[int]:
        return [self.id_of.get(word, self.UNKNOWN) for word in self._word.findall(text.lower())]

    def save(self, folder: Path) -> None:
        """Writes the vocabulary to a folder."""
        (folder / self.FILE).write_text(
            json.dumps(self.words, ensure_ascii=False), encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: Path, max_length: int) -> WordTokeniser:
        """The tokeniser whose vocabulary lies in this folder."""
        try:
            return cls(json.loads((folder / cls.FILE).read_text(encoding="utf-8")), max_length)
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder / cls.FILE} is missing or damaged ({error})") from None


def _flat(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    total = sum(len(row) for row in rows)
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=total)


def _offsets(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
