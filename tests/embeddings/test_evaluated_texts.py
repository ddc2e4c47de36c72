"""Training texts that occur in the evaluation are counted and dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data import ScoredPairs, sentences_from
from closeknit.embeddings.evaluated_texts import normalised_text, overlaps, without_evaluated
from closeknit.errors import DataError


def scored(*pairs, name="scored"):
    first, second = zip(*pairs, strict=True)
    return ScoredPairs(list(first), list(second), np.arange(len(pairs), dtype=float), name)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("A man  is\tplaying a guitar.", "a man is playing a guitar"),
        (" “Where is my card?!” ", "where is my card"),
        ("ﬁne ＣＡＲＤ", "fine card"),  # a ligature and wide letters
        ("Straße", "strasse"),
        ("don't stop, please", "don't stop, please"),  # punctuation inside stays
        ("...", "..."),  # nothing else is left
        ("$5", "$5"),  # a sign of currency is no punctuation
    ],
)
def test_texts_are_compared_without_case_blanks_and_punctuation_at_the_ends(text, normal):
    assert normalised_text(text) == normal


@given(st.text(max_size=30))
def test_normalisation_is_the_same_when_repeated_and_never_empties_a_text(text):
    once = normalised_text(text)
    assert bool(once) == bool("".join(text.split()) and once)
    assert normalised_text(once) == once
    assert normalised_text(f"  {text}\n") == once


def test_the_overlap_is_a_share_of_the_different_evaluation_texts():
    pairs = scored(("A card.", "a card"), ("A parcel", "a refund"), ("a card!", "an order"))
    (found,) = overlaps(["a  CARD", "an order", "something else"], [pairs])
    # a card, a parcel, a refund, an order: two of four
    assert (found.contained, found.texts, found.share) == (2, 4, 0.5)
    assert str(found) == "scored 50.0 % (2 of 4 texts)"


def test_rows_with_a_text_of_the_evaluation_are_dropped():
    pairs = scored(("My card?", "my parcel"))
    texts, dropped = without_evaluated(
        sentences_from(["my card", "My parcel.", "MY PARCEL", "my refund"]), [pairs]
    )
    assert texts.columns == (["my refund"],)
    assert (dropped.rows, dropped.texts) == (3, 2)
    rows = [("a", "b", "my card"), ("my parcel", "c", "d"), ("e", "f", "g")]
    triplets, dropped = without_evaluated(sentences_from(rows), [pairs])
    assert triplets.columns == (["e"], ["f"], ["g"])
    assert (dropped.rows, dropped.texts) == (2, 2)


def test_nothing_left_to_train_on_is_an_error():
    pairs = scored(("my card", "my parcel"), name="mine")
    with pytest.raises(
        DataError, match=r"every row has a text that occurs in the evaluation \(mine\)"
    ):
        without_evaluated(sentences_from(["My card", "my parcel."]), [pairs])


def test_the_list_of_10000_sentences_holds_texts_of_the_test_sets(shared, monkeypatch):
    from closeknit.data import load_scored_pairs, read_sentences

    monkeypatch.setenv("CLOSEKNIT_DATA", str(shared))
    texts = read_sentences(str(shared / "mirror_bert_lists" / "sentences_stsb_10k.parquet"))
    sets = [load_scored_pairs(name) for name in ("sts12", "sts13", "sts14", "sts15", "stsb")]
    shares = [100 * found.share for found in overlaps(texts.columns[0], sets)]
    assert shares == pytest.approx([34.2, 39.0, 46.2, 37.0, 8.7], abs=0.05)
    kept, dropped = without_evaluated(texts, sets)
    assert len(kept) == 10_000 - dropped.rows == 1_770
