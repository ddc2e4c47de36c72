"""Texts -> token ids, once; then any list of rows -> one padded tensor each."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from closeknit.data.examples import Examples
from closeknit.errors import ConfigError, ModelError


@dataclass(frozen=True)
class Tokens:
    """The token ids of many texts in one flat array, with what padding needs."""

    ids: npt.NDArray[np.int64]  # (all tokens,)
    special: npt.NDArray[np.bool_]  # (all tokens,) class, separator and the like
    types: npt.NDArray[np.int64] | None  # (all tokens,) which of the two texts
    offsets: npt.NDArray[np.int64]  # (rows + 1,)
    pad_id: int
    pad_type: int = 0
    pad_left: bool = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def select(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Tokens:
        """The tokens of these rows only."""
        spans = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]

        def take(flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([flat[span] for span in spans]) if spans else flat[:0]

        offsets = np.concatenate([[0], np.cumsum(self.lengths[np.asarray(rows, dtype=np.int64)])])
        types = None if self.types is None else take(self.types)
        return Tokens(
            take(self.ids),
            take(self.special),
            types,
            offsets,
            self.pad_id,
            self.pad_type,
            self.pad_left,
        )

    def pad(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """What the encoder takes for these rows, padded to the longest of them."""
        rows = np.asarray(rows, dtype=np.int64)
        return Shelf(self).lay(torch.from_numpy(rows), int(self.lengths[rows].max()))


class Shelf:
    """Tokens on a device, where any rows of them are laid side by side without a word to the host."""

    def __init__(self, tokens: Tokens, device: torch.device | None = None) -> None:
        self.tokens = tokens

        def moved(flat: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(flat).to(device)

        self.ids, self.special, self.offsets = (
            moved(flat) for flat in (tokens.ids, tokens.special, tokens.offsets)
        )
        self.types = None if tokens.types is None else moved(tokens.types)

    def lay(self, rows: Tensor, width: int) -> dict[str, Tensor]:
        """What the encoder takes for these rows (R,), padded to `width` tokens."""
        start = self.offsets[rows]  # (R,)
        lengths = self.offsets[rows + 1] - start
        place = torch.arange(width, device=rows.device)
        if self.tokens.pad_left:
            shift = width - lengths[:, None]
            real, source = place >= shift, start[:, None] + place - shift  # (R, T)
        else:
            real, source = place < lengths[:, None], start[:, None] + place
        source = torch.where(real, source, 0)
        inputs = {
            "input_ids": torch.where(real, self.ids[source], self.tokens.pad_id),
            "attention_mask": real.long(),
            "special": self.special[source] | ~real,
        }
        if self.types is not None:
            inputs["token_type_ids"] = torch.where(real, self.types[source], self.tokens.pad_type)
        return inputs


def stacked(parts: Sequence[Tokens]) -> Tokens:
    """The rows of several, one after the other."""
    first = parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Tokens(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.special for part in parts]),
        None
        if first.types is None
        else np.concatenate([part.types for part in parts if part.types is not None]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        first.pad_id,
        first.pad_type,
        first.pad_left,
    )


class Tokeniser(Protocol):
    """Turns examples into tokens, and saves itself beside the weights."""

    def __call__(self, examples: Examples) -> Tokens: ...

    def save(self, folder: Path) -> None: ...


class PretrainedTokeniser:
    """The tokeniser that came with a pretrained encoder; pairs are joined the way it was trained."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError("this encoder's tokenizer has no padding token; choose a BERT-like encoder")
        smallest = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if max_length < smallest:
            raise ConfigError(f"encoder.max_length is {max_length}; it must be at least {smallest}")
        self.tokenizer, self.max_length = tokenizer, max_length

    def __call__(self, examples: Examples) -> Tokens:
        made = self.tokenizer(
            examples.texts,
            examples.pairs,
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=False,
            return_special_tokens_mask=True,
        )
        types = _flat(made["token_type_ids"]) if "token_type_ids" in made else None
        return Tokens(
            _flat(made["input_ids"]),
            _flat(made["special_tokens_mask"]).astype(bool),
            types,
            _offsets(made["input_ids"]),
            self.tokenizer.pad_token_id,
            self.tokenizer.pad_token_type_id,
            self.tokenizer.padding_side == "left",
        )

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


class FileTokeniser:
    """The tokeniser that a pretrained encoder was saved with, read by `tokenizers` alone; for encoders without transformers."""

    FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
    # whether the encoders of these tokenizers are told which of two texts a token belongs to
    TYPED: ClassVar[dict[str, bool]] = {
        "BertTokenizer": True,
        "RobertaTokenizer": False,
        "XLMRobertaTokenizer": False,
        "CamembertTokenizer": False,
        "DistilBertTokenizer": False,
    }
    OF_BERT = ("BertTokenizer", "DistilBertTokenizer")
    GENERAL = (
        "TokenizersBackend",
        "PreTrainedTokenizer",
    )  # these say it in their settings, or it is not known
    STRANGE = (
        "auto_map",
        "split_special_tokens",
        "add_bos_token",
        "add_eos_token",
    )  # what changes the tokens

    def __init__(self, tokenizer: Any, settings: dict[str, Any], typed: bool, folder: Path) -> None:
        self.tokenizer, self.typed, self.folder = tokenizer, typed, folder
        self.pad_id: int = tokenizer.token_to_id(settings["pad_token"])
        self.pad_type: int = settings.get("pad_token_type_id", 0)
        self.pad_left = settings.get("padding_side", "right") == "left"

    @classmethod
    def load(cls, folder: Path, max_length: int) -> FileTokeniser | None:
        """The tokeniser of a folder; None where its settings may mean more than is done here."""
        from tokenizers import Tokenizer

        if not (folder / cls.FILE).exists() or (folder / "added_tokens.json").exists():
            return None
        settings = json.loads((folder / cls.SETTINGS).read_text(encoding="utf-8"))
        kind = str(settings.get("tokenizer_class")).removesuffix("Fast")
        inputs = settings.get("model_input_names")
        if kind not in cls.TYPED and (kind not in cls.GENERAL or inputs is None):
            return None
        if settings.get("backend", "tokenizers") != "tokenizers" or any(
            settings.get(key) for key in cls.STRANGE
        ):
            return None
        tokenizer = Tokenizer.from_file(str(folder / cls.FILE))
        named = {
            value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str)
        }
        extra = (settings.get(key) or [] for key in ("additional_special_tokens", "extra_special_tokens"))
        named |= {
            token for found in extra for token in (found.values() if isinstance(found, dict) else found)
        }
        added = tokenizer.get_added_tokens_decoder().values()
        if not named <= {one.content for one in added if one.special}:
            return None  # transformers would make them special
        more = {one["content"] for one in settings.get("added_tokens_decoder", {}).values()}
        if not more <= {one.content for one in added}:
            return None  # transformers would give them new numbers
        if settings.get("pad_token") not in named:
            return None
        if max_length < tokenizer.num_special_tokens_to_add(True) + 2:
            return None
        if tokenizer.padding is not None:  # from other days; the settings of the folder come before
            stored = {"pad_token_type_id": "pad_type_id", "padding_side": "direction"}
            settings = {key: tokenizer.padding[old] for key, old in stored.items()} | settings
            tokenizer.no_padding()
        side = settings.get("truncation_side", (tokenizer.truncation or {}).get("direction", "right"))
        tokenizer.enable_truncation(max_length, strategy="longest_first", direction=side)
        if kind in cls.TYPED and not _as_remade(tokenizer, kind, settings):
            return None
        return cls(tokenizer, settings, "token_type_ids" in inputs if inputs else cls.TYPED[kind], folder)

    def __call__(self, examples: Examples) -> Tokens:
        texts, pairs = examples.texts, examples.pairs
        made = self.tokenizer.encode_batch(texts if pairs is None else list(zip(texts, pairs, strict=True)))
        ids = [one.ids for one in made]
        return Tokens(
            _flat(ids),
            _flat([one.special_tokens_mask for one in made]).astype(bool),
            _flat([one.type_ids for one in made]) if self.typed else None,
            _offsets(ids),
            self.pad_id,
            self.pad_type,
            self.pad_left,
        )

    def save(self, folder: Path) -> None:
        for name in (self.FILE, self.SETTINGS):
            shutil.copyfile(self.folder / name, folder / name)


def _as_remade(tokenizer: Any, kind: str, settings: dict[str, Any]) -> bool:
    """Whether the parts of a file are those that transformers' class of this name makes from the settings instead."""
    from tokenizers import models, normalizers, pre_tokenizers

    normalizer, model, bert = tokenizer.normalizer, tokenizer.model, kind in FileTokeniser.OF_BERT
    splitter: Any
    if bert:
        made = normalizers.BertNormalizer(
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
            strip_accents=settings.get("strip_accents"),
            lowercase=settings.get("do_lower_case", True),
        )
        splitter = pre_tokenizers.BertPreTokenizer()
        alike = (
            _state(normalizer) == _state(made)
            and isinstance(model, models.WordPiece)
            and model.unk_token == settings.get("unk_token", "[UNK]")
            and (model.continuing_subword_prefix, model.max_input_chars_per_word) == ("##", 100)
        )
    elif kind == "RobertaTokenizer":
        splitter = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
        alike = normalizer is None
    else:
        scheme = "always" if settings.get("add_prefix_space", True) else "never"
        words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme=scheme)]
        splitter = pre_tokenizers.Sequence(words)
        alike = normalizer is None or isinstance(normalizer, normalizers.Precompiled)
    first = settings.get("cls_token", "[CLS]" if bert else "<s>")
    last = settings.get("sep_token", "[SEP]" if bert else "</s>")
    frame = tokenizer.encode("", "").tokens == [first, *[last] * (2 if bert else 3)]
    return alike and frame and _state(tokenizer.pre_tokenizer) == _state(splitter)


def _state(part: Any) -> Any:
    """A part of a tokenizer as its file has it."""
    return None if part is None else json.loads(part.__getstate__())


class RememberingTokeniser:
    """A tokeniser that has turned these examples into tokens once, and only looks them up from then on."""

    def __init__(self, tokeniser: Tokeniser, examples: Examples) -> None:
        self.tokeniser, self.tokens = tokeniser, tokeniser(examples)
        self.row = {key: row for row, key in enumerate(self._keys(examples))}

    def __call__(self, examples: Examples) -> Tokens:
        rows = [self.row.get(key) for key in self._keys(examples)]
        known = [row for row in rows if row is not None]
        return self.tokens.select(known) if len(known) == len(rows) else self.tokeniser(examples)

    @staticmethod
    def _keys(examples: Examples) -> list[tuple[str, str | None]]:
        return [
            (text, examples.pairs[i] if examples.pairs else None) for i, text in enumerate(examples.texts)
        ]

    def save(self, folder: Path) -> None:
        self.tokeniser.save(folder)


class WordTokeniser:
    """Lower-cased words and punctuation marks with a vocabulary of their own; for TextCNN."""

    PAD, UNKNOWN, SEPARATOR = 0, 1, 2
    FILE = "vocabulary.json"
    _word = re.compile(r"\w+|[^\w\s]")

    def __init__(self, words: Sequence[str], max_length: int) -> None:
        self.words, self.max_length = list(words), max_length
        self.number = {word: i + 3 for i, word in enumerate(self.words)}

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
        rows: list[list[int]] = []
        for i, text in enumerate(examples.texts):
            row = self._ids(text)
            if examples.pairs is not None:  # of two long texts each has half of the room
                second, room = self._ids(examples.pairs[i]), self.max_length - 1
                row = [*row[: max(room // 2, room - len(second))], self.SEPARATOR, *second]
            rows.append(row[: self.max_length] or [self.UNKNOWN])
        ids = _flat(rows)
        return Tokens(ids, ids == self.SEPARATOR, None, _offsets(rows), self.PAD)

    def _ids(self, text: str) -> list[int]:
        return [self.number.get(word, self.UNKNOWN) for word in self._word.findall(text.lower())]

    def save(self, folder: Path) -> None:
        (folder / self.FILE).write_text(json.dumps(self.words, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, max_length: int) -> WordTokeniser:
        try:
            return cls(json.loads((folder / cls.FILE).read_text(encoding="utf-8")), max_length)
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder / cls.FILE} is missing or damaged ({error})") from None


def _flat(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.fromiter((value for row in rows for value in row), dtype=np.int64)


def _offsets(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
