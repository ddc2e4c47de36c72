"""The anisotropy of each layer: against plain loops, on the command line, and as a picture."""

from __future__ import annotations

import itertools
import json
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from closeknit.data.examples import Examples
from closeknit.embeddings.layers import layer_anisotropy, layers_table
from closeknit.embeddings.model import load_sentence_model
from closeknit.errors import DataError

TEXTS = [
    "where is my card",
    "the parcel is late please help",
    "refund",
    "i lost my new card today",
    "swap the broken order",
]


def mean_cosine(vectors: list[list[float]]) -> float:
    """The mean cosine of all pairs of different rows, in loops."""
    values = []
    for i, a in enumerate(vectors):
        for b in vectors[:i]:
            lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
            values.append(sum(x * y for x, y in zip(a, b, strict=True)) / lengths)
    return sum(values) / len(values)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "modernbert", "xlnet"])
def test_the_anisotropy_of_layers_is_that_of_loops_over_pairs(tiny, kind):
    model = load_sentence_model(tiny(kind))
    found = layer_anisotropy(model, [*TEXTS, TEXTS[0]], seed=3)
    draws = np.random.default_rng(3).random(len(TEXTS))
    words: list[list[list[float]]] = []
    whole: list[list[list[float]]] = []
    for text, draw in zip(TEXTS, draws, strict=True):  # one by one, without padding
        inputs = model.tokeniser(Examples([text])).pad([0])
        content = (~inputs.pop("special"))[0].nonzero()[:, 0].tolist()
        with torch.inference_mode():
            states = model.encoder.eval().trunk(**inputs, output_hidden_states=True).hidden_states
        place = content[int(draw * len(content))]
        words.append([layer[0, place].tolist() for layer in states])
        whole.append(
            [[sum(column) / len(column) for column in zip(*layer[0].tolist(), strict=True)]
             for layer in states]
        )  # fmt: skip
    assert [row.layer for row in found] == list(range(3))
    for row in found:
        assert row.n == 5
        assert row.words == pytest.approx(
            mean_cosine([text[row.layer] for text in words]), abs=1e-5
        )
        assert row.texts == pytest.approx(
            mean_cosine([text[row.layer] for text in whole]), abs=1e-5
        )


def test_the_last_layer_of_whole_texts_is_the_pooled_vector(tiny):
    from closeknit.metrics import anisotropy

    model = load_sentence_model(tiny())
    last = layer_anisotropy(model, TEXTS)[-1]
    assert last.texts == pytest.approx(anisotropy(model.encode(TEXTS)), abs=1e-5)


def test_many_texts_are_drawn_and_too_few_are_refused(tiny):
    model = load_sentence_model(tiny())
    assert layer_anisotropy(model, TEXTS, most=3)[0].n == 3
    assert layer_anisotropy(model, TEXTS, most=3) == layer_anisotropy(model, TEXTS, most=3)
    with pytest.raises(DataError, match="1 different texts with tokens were given"):
        layer_anisotropy(model, ["card", "card"])


def test_layers_are_shown_and_drawn_on_the_command_line(closeknit, tiny, tmp_path):
    rows = "".join(f"{a},{b},{i}\n" for i, (a, b) in enumerate(itertools.pairwise(TEXTS)))
    (tmp_path / "scored.csv").write_text("text1,text2,score\n" + rows)
    asked = ("evaluate-embeddings", tiny(), tiny("roberta"), "--suite", "scored.csv")
    found = layer_anisotropy(load_sentence_model(tiny()), TEXTS)
    shown = closeknit(*asked, "--layers", "new/layers.svg").stdout
    assert f"| 1 | {found[1].words:.3f} | {found[1].texts:.3f} |" in shown
    root = ElementTree.fromstring((tmp_path / "new" / "layers.svg").read_text())
    assert root.tag.endswith("svg")
    values = json.loads(closeknit(*asked, "--layers", "layers.png", "--json").stdout)[tiny()]
    words = [row["value"] for row in values if row["measure"] == "word_anisotropy"]
    assert words == pytest.approx([row.words for row in found])
    assert (tmp_path / "layers.png").stat().st_size > 5000
    wrong = closeknit(*asked, "--layers", "layers.pdf", code=2).stderr
    assert "must end in .png or .svg" in wrong


def test_models_with_different_numbers_of_layers_share_a_table(tiny):
    found = layer_anisotropy(load_sentence_model(tiny()), TEXTS)
    table = layers_table({"a|b": found, "short": found[:2]}).splitlines()
    assert table[0] == r"| layer | a\|b: words | a\|b: texts | short: words | short: texts |"
    assert table[-1].endswith("| – | – |")
    assert len(table) == 2 + 3
