from __future__ import annotations

import numpy as np
import pytest
import torch

from closeknit.data import Examples, from_python
from closeknit.encoders.loading import load_encoder
from closeknit.encoders.tokenisers import WordTokeniser
from closeknit.encoders.tokens import Tokens, stacked
from closeknit.errors import ConfigError


def ragged(pad_left: bool = False) -> Tokens:
    """Rows [1, 2, 3], [4], [5, 6]; 9 pads."""
    return Tokens(
        np.array([1, 2, 3, 4, 5, 6]), np.array([True, False, False, True, True, False]), None,
        np.array([0, 3, 4, 6]), pad_id=9, pad_left=pad_left,
    )  # fmt: skip


def test_padding_goes_to_the_longest_row_of_the_batch():
    inputs = ragged().pad([2, 1])
    assert inputs["input_ids"].tolist() == [[5, 6], [4, 9]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert inputs["special"].tolist() == [[True, False], [True, True]]  # padding counts as special
    assert ragged().pad([0, 1])["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]


def test_padding_on_the_left():
    inputs = ragged(pad_left=True).pad([0, 1])
    assert inputs["input_ids"].tolist() == [[1, 2, 3], [9, 9, 4]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]


def test_selected_rows_keep_their_tokens():
    chosen = ragged().select([2, 0])
    assert chosen.lengths.tolist() == [2, 3]
    assert chosen.pad([1])["input_ids"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlnet"])
def test_tokens_equal_the_tokenizers_own_padding(tiny, kind):
    _, tokeniser = load_encoder(tiny(kind), max_length=6)
    texts, seconds = (
        ["my card was stolen today please help", "refund ?"],
        ["it never came", "my money"],
    )
    for pairs in (None, seconds):
        ours = tokeniser(Examples(texts, pairs)).pad([0, 1])
        theirs = tokeniser.tokenizer(
            texts,
            pairs,
            truncation=True,
            max_length=6,
            padding=True,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        assert torch.equal(ours["special"], theirs.pop("special_tokens_mask").bool())
        assert {key for key in ours if key != "special"} == set(theirs)
        for key, value in theirs.items():
            assert torch.equal(ours[key], value), key


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_rows_that_were_longer_than_the_maximum_are_known(tiny, kind, bare):
    """A text that fits exactly is not cut; in a pair both texts count."""
    _, tokeniser = load_encoder(tiny(kind), max_length=7, bare=bare)
    texts = ["my card was stolen today", "my card was stolen today please", "refund", "late"]
    tokens = tokeniser(Examples(texts))
    assert tokens.truncated.tolist() == [False, True, False, False]
    assert tokens.truncated_share() == 0.25 and tokens.truncated_share(2) == 0.5
    assert tokens.select([1, 3]).truncated.tolist() == [True, False]
    assert stacked([tokens, tokens]).truncated.tolist() == 2 * tokens.truncated.tolist()
    pairs = tokeniser(Examples(["my card", "my card was lost"], ["my", "refund never came"]))
    assert pairs.truncated.tolist() == [False, True]


def test_a_tokenizer_that_does_not_say_what_it_cut_is_asked_again(tiny):
    _, tokeniser = load_encoder(tiny("bert"), max_length=7)

    class OfPython:
        """The same tokenizer without the record of what was cut, as those written in Python."""

        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        def __getattr__(self, name):
            return getattr(self.tokenizer, name)

        def __call__(self, *arguments, **options):
            encoded = self.tokenizer(*arguments, **options)
            return type(encoded)(dict(encoded))

    tokeniser.tokenizer = OfPython(tokeniser.tokenizer)
    texts = ["my card was stolen today", "my card was stolen today please", "refund"]
    assert tokeniser(Examples(texts)).truncated.tolist() == [False, True, False]
    assert tokeniser(Examples(texts, texts)).truncated.tolist() == [True, True, False]


def test_words_that_were_cut_are_known():
    tokeniser = WordTokeniser(["a", "b"], 4)
    assert tokeniser(Examples(["a b a b", "a b a b a", ""])).truncated.tolist() == [
        False,
        True,
        False,
    ]
    pairs = tokeniser(Examples(["a", "a b", "a"], ["b a", "b a", "b a b a"]))
    assert pairs.truncated.tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["bert", "bare", "words"])
def test_texts_in_chunks_give_the_tokens_of_all_at_once(tiny, monkeypatch, name):
    if name == "words":
        tokeniser = WordTokeniser(["my", "card", "was"], 5)
    else:
        _, tokeniser = load_encoder(tiny("bert"), max_length=6, bare=name == "bare")
    texts = [("my card was stolen today please " * 2)[: 3 * place] or "?" for place in range(11)]
    for pairs in (None, texts[::-1]):
        whole = tokeniser(Examples(texts, pairs))
        with monkeypatch.context() as patch:
            patch.setattr("closeknit.encoders.tokenisers.TEXTS_AT_ONCE", 4)
            chunked = tokeniser(Examples(texts, pairs))
        for field in ("ids", "special", "types", "offsets", "truncated"):
            expected, found = getattr(whole, field), getattr(chunked, field)
            assert (expected is None) == (found is None)
            assert expected is None or (
                np.array_equal(expected, found) and expected.dtype == found.dtype
            )


def test_a_tokenizer_never_holds_all_texts_in_its_own_form(tiny, monkeypatch):
    """Its lists and strings take many times the memory of the arrays that are kept."""
    _, tokeniser = load_encoder(tiny("bert"), max_length=6)
    asked = []
    whole = tokeniser._tokenise
    monkeypatch.setattr(tokeniser, "_tokenise", lambda part: asked.append(len(part)) or whole(part))
    assert len(tokeniser(Examples(["my card"] * 5000))) == 5000
    assert sum(asked) == 5000 and max(asked) <= 1024


def test_a_length_without_room_for_text_is_refused(tiny):
    with pytest.raises(ConfigError, match="at least 5"):
        load_encoder(tiny(), max_length=3)
    with pytest.raises(ConfigError, match="at most 64 tokens"):
        load_encoder(tiny(), max_length=128)


def test_a_vocabulary_of_words_ranks_by_frequency_and_survives_saving(tmp_path):
    words = WordTokeniser.build(from_python(["The cat, the dog", "the end"]), 16)
    assert words.words == ["the", ",", "cat", "dog", "end"]
    tokens = words(from_python(["the owl , ended", "Dog!"]))
    assert tokens.pad([0, 1])["input_ids"].tolist() == [[3, 1, 4, 1], [6, 1, 0, 0]]
    words.save(tmp_path)
    assert WordTokeniser.load(tmp_path, 16).id_of == words.id_of


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我爱北京", ["我", "爱", "北", "京"]),
        ("GPT4很好用!", ["gpt4", "很", "好", "用", "!"]),
        ("カタカナと漢字", ["カ", "タ", "カ", "ナ", "と", "漢", "字"]),
        ("ที่นี่ดี", ["ที่", "นี่", "ดี"]),  # marks stay with their character
        ("안녕 세상", ["안녕", "세상"]),  # Korean has blanks
        ("naïve café", ["naïve", "café"]),
        ("𠀋𠮷", ["𠀋", "𠮷"]),
    ],
)
def test_scripts_without_blanks_are_split_into_characters(text, tokens):
    words = WordTokeniser.build(from_python([text]), 32)
    ids = words(from_python([text])).pad([0])["input_ids"][0].tolist()
    assert [words.words[i - 3] for i in ids] == tokens


def test_a_vocabulary_saved_before_characters_were_split_reads_texts_as_then(tmp_path):
    WordTokeniser(["我爱北京", "好"], 8).save(tmp_path)
    words = WordTokeniser.load(tmp_path, 8)
    assert words(from_python(["我爱北京 好"])).pad([0])["input_ids"].tolist() == [[3, 4]]


def test_a_pair_of_words_keeps_both_texts():
    words = WordTokeniser.build(from_python(["a b c d e f"]), 5)
    tokens = words(from_python([("a b c d", "e f a b")]))
    assert tokens.ids.tolist() == [3, 4, 2, 7, 8]
    assert tokens.special.tolist() == [False, False, True, False, False]
