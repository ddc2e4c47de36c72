"""Translation of words, entity linking and entailment: functions, the command and bad input."""

from __future__ import annotations

import json
import math
import random
import zlib

import numpy as np
import pytest

import closeknit as package
from closeknit.data import labelled_pairs_from, lexicon_from, linking_from
from closeknit.embeddings.scores import entailment_scores, lexicon_scores, linking_scores
from closeknit.errors import ConfigError, DataError
from conftest import write_pairs


def vector(text: str) -> list[float]:
    """A fixed random vector of a text; texts with the same first letter are alike."""
    own, shared = (random.Random(zlib.crc32(part.encode())) for part in (text, text[:1]))
    return [own.gauss(0, 1) + shared.gauss(0, 1) for _ in range(6)]


def encode(texts):
    return np.array([vector(text) for text in texts], dtype=np.float32)


def cosine(a: str, b: str) -> float:
    p, q = vector(a), vector(b)
    dot = sum(x * y for x, y in zip(p, q, strict=True))
    return dot / math.sqrt(sum(x * x for x in p) * sum(y * y for y in q))


# ---------------------------------------------------------------- the formulas, in plain Python


def test_translations_are_the_first_by_csls():
    letters = "abcdefghijklmn"
    rows = [(f"{a}-{i}", f"{a}+{i}") for i, a in enumerate(letters)]
    rows += [("a-0", "x+0"), ("c-2", "y+1")]
    candidates = [target for _, target in rows] + [f"{a}+more" for a in letters[:6]]
    lexicon = lexicon_from(rows, candidates)
    for k in (1, 4, 10):

        def near(word, others, k=k):
            nearest = sorted((cosine(word, other) for other in others), reverse=True)[:k]
            return sum(nearest) / len(nearest)

        sources = list(lexicon.translations)
        found = {1: 0, 5: 0}
        for source in sources:
            csls = {
                y: 2 * cosine(source, y) - near(source, lexicon.candidates) - near(y, sources)
                for y in lexicon.candidates
            }
            order = sorted(csls, key=csls.__getitem__, reverse=True)
            for depth in found:
                own = lexicon.translations[source]
                found[depth] += any(word in own for word in order[:depth])
        scores = lexicon_scores(encode, lexicon, neighbours=k)
        assert scores == {
            "accuracy@1": pytest.approx(found[1] / len(sources)),
            "accuracy@5": pytest.approx(found[5] / len(sources)),
            "n": 14,
        }
        assert 0 < found[1] < found[5]
    plain = lexicon_scores(encode, lexicon, neighbours=None)
    nearest = [max(lexicon.candidates, key=lambda word, s=s: cosine(s, word)) for s in sources]
    right = [word in lexicon.translations[s] for s, word in zip(sources, nearest, strict=True)]
    assert plain["accuracy@1"] == pytest.approx(sum(right) / len(right))


def test_a_mention_is_right_if_a_name_of_its_concept_is_among_the_nearest():
    names = [(f"{letter}{i}", f"C{i}") for letter in "abcdefgh" for i in range(3)]
    names += [("a0", "C9")]  # one name of two concepts
    mentions = [(f"{letter} said", f"C{i % 3}") for i, letter in enumerate("abcdefghabc")]
    mentions += [("a0", "C9"), ("b said again", "C1|C2")]
    linking = linking_from(names, mentions)
    ids = {name: {i for other, i in names if other == name} for name, _ in names}
    found = {1: 0, 5: 0}
    for text, answer in mentions:
        order = sorted(ids, key=lambda name, text=text: cosine(text, name), reverse=True)
        for depth in found:
            found[depth] += any(ids[name] & set(answer.split("|")) for name in order[:depth])
    scores = linking_scores(encode, linking)
    assert scores == {
        "accuracy@1": pytest.approx(found[1] / 13),
        "accuracy@5": pytest.approx(found[5] / 13),
        "n": 13,
    }
    assert 0 < found[1] < found[5]
    point = linking_scores(lambda texts: np.ones((len(texts), 3), dtype=np.float32), linking)
    assert point["accuracy@1"] == 0  # a model that says the same of all texts finds nothing


def test_answers_are_told_apart_by_the_cosine():
    generator = random.Random(3)
    rows = [(f"{a}?", f"{generator.choice('abc')}{i}", i % 2) for i, a in enumerate("abcabcabcabc")]
    cosines = [(cosine(first, second), label) for first, second, label in rows]
    pairs = [(p, n) for p, y in cosines if y for n, w in cosines if not w]
    scores = entailment_scores(encode, labelled_pairs_from(rows))
    assert scores == {"auc": pytest.approx(sum(p > n for p, n in pairs) / len(pairs)), "n": 12}


# ---------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path):
    write_pairs(tmp_path / "en-de.csv", [("card", "lost"), ("card", "money"), ("where", "is")],
                ("source", "target"))  # fmt: skip
    write_pairs(tmp_path / "en-fr.csv", [("card", "parcel"), ("where", "late")],
                ("source", "target"))  # fmt: skip
    write_pairs(tmp_path / "names.csv", [("lost card", "C1"), ("refund", "C2"), ("parcel", "C3")],
                ("name", "id"))  # fmt: skip
    write_pairs(tmp_path / "said.csv", [("my card", "C1"), ("money back", "C2")], ("mention", "id"))
    write_pairs(tmp_path / "qa.csv", [("where is my card", "lost", 1), ("where is my card", "a", 0)],
                ("text", "text2", "label"))  # fmt: skip
    write_pairs(
        tmp_path / "words.csv", [("card", "parcel", 2), ("lost", "late", 4), ("card", "card", 9)]
    )
    return tmp_path


def test_every_kind_stands_in_one_table_with_a_mean_for_each(closeknit, tiny, files):
    told = closeknit(
        "evaluate-embeddings", tiny(), "--lexicon", "en-de.csv", "--lexicon", "en-fr.csv",
        "--entities", "names.csv", "--mentions", "said.csv", "--entailment", "qa.csv",
        "--suite", "words.csv", "--suite", "example-words-fr",
    )  # fmt: skip
    for row in (
        "| en-de | accuracy@1 × 100 | 2 |",
        "| en-fr | accuracy@5 × 100 | 2 |",
        "| said | accuracy@1 × 100 | 2 |",
        "| qa | auc × 100 | 2 |",
        "| words | spearman × 100 | 3 |",
        "| words | coverage × 100 | 3 | 100.00 |",
        "| example-words-fr | coverage × 100 | 40 | 0.00 |",
        "| lexicon average | accuracy@1 × 100 | 2 sets |",
        "| pairs average | spearman × 100 | 2 sets |",
    ):
        assert row in told.stdout
    assert "linking average" not in told.stdout  # there is one set of it only
    assert "has no token for 55 of 55 texts (first: 'voiture'); they are scored" in told.stderr
    rows = json.loads(
        closeknit("evaluate-embeddings", tiny(), "--entailment", "qa.csv", "--json").stdout
    )
    ((score,),) = rows.values()
    assert score == {"data": "qa", "measure": "auc", "value": score["value"], "n": 2,
                     "kind": "entailment"}  # fmt: skip


def test_candidates_and_columns_are_chosen(closeknit, tiny, files):
    (files / "words.txt").write_text("lost\nmoney\nlate\nparcel\n")
    done = closeknit("evaluate-embeddings", tiny(), "--lexicon", "en-de.csv",
                     "--candidates", "words.txt")  # fmt: skip
    assert "| en-de | accuracy@1 × 100 | 1 |" in done.stdout
    assert "en-de: 1 of 2 words have no translation among the candidates (first: 'where')" in (
        done.stderr
    )
    rows = [("my card", "lost", "yes", 3), ("my card", "late", "no", 1)]
    write_pairs(files / "other.csv", rows, ("q", "a", "right", "points"))
    options = ("--text", "q", "--text2", "a")
    told = closeknit("evaluate-embeddings", tiny(), "--suite", "other.csv", "--entailment",
                     "other.csv", *options, "--label", "right", "--score", "points").stdout  # fmt: skip
    assert "| other | auc × 100 | 2 |" in told and "| other | spearman × 100 | 2 |" in told
    told = closeknit("evaluate-embeddings", tiny(), "--retrieval", "other.csv", *options).stdout
    assert "| other | mrr × 100 | 1 |" in told
    rows = [(f"{word} {i}", word) for i in range(8) for word in ("card", "parcel")]
    write_pairs(files / "classes.csv", rows, ("q", "c"))
    told = closeknit("evaluate-embeddings", tiny(), "--labelled", "classes.csv", "--text", "q",
                     "--label", "c").stdout  # fmt: skip
    assert "| classes | knn_accuracy × 100 |" in told


def test_pairs_of_one_score_do_not_cost_the_scores_of_others(closeknit, tiny, files):
    write_pairs(files / "flat.csv", [("card", "parcel", 1), ("lost", "late", 1)])
    done = closeknit("evaluate-embeddings", tiny(), "--suite", "flat.csv", "--suite", "words.csv")
    assert "flat: the score of all 2 pairs is 1" in done.stderr
    assert "| words |" in done.stdout and "| flat |" not in done.stdout
    done = closeknit("evaluate-embeddings", tiny(), "--suite", "flat.csv", "--entailment", "qa.csv")
    assert "| qa |" in done.stdout
    done = closeknit("evaluate-embeddings", tiny(), "--suite", "flat.csv", code=2)
    assert done.stderr.count("\n") == 2 and "there is nothing to score" in done.stderr


def test_what_is_wrong_is_one_sentence_before_any_model_is_loaded(closeknit, files):
    (files / "empty.csv").write_text("")
    (files / "one.csv").write_text("text,text2,label\na,b,1\nc,d,1\n")
    (files / "pairs.csv").write_text("text,text2\na,b\n")
    (files / "french.txt").write_text("voiture\n")
    linking = ("--entities", "names.csv", "--mentions", "said.csv")
    wrong = (
        (
            ("--lexicon", "en-de.csv", "--candidates", "french.txt"),
            "of its 2 words, such as 'card'",
        ),
        (
            ("--lexicon", "en-de.csv", *("--candidates", "french.txt") * 2),
            "--lexicon name different numbers of files (2 and 1)",
        ),
        (("--candidates", "french.txt"), "--lexicon name different numbers of files (1 and 0)"),
        (("--lexicon", "empty.csv"), "empty.csv is empty"),
        (("--entailment", "one.csv"), "all 2 rows have the label 1"),
        (("--entailment", "pairs.csv"), "has no column label; it has text, text2"),
        (("--suite", "pairs.csv"), "has no column score; it has text, text2"),
        (("--suite", "empty.csv"), "empty.csv is empty"),
        (("--entities", "names.csv"), "--mentions name different numbers of files (1 and 0)"),
        ((*linking, "--text2", "b"), "--text2 names a column of the files of --suite, --retrieval"),
        (("--lexicon", "en-de.csv", "--score", "s"), "--score names a column of the files of"),
        (("--mentions", "said.csv", "--entities", "exmple-names"), "did you mean example-names"),
    )
    for options, words in wrong:
        done = closeknit("evaluate-embeddings", "no-such-model", *options, code=2)
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_python_can_do_what_the_command_does(tiny, files, monkeypatch):
    monkeypatch.chdir(files)
    scores = package.evaluate_embeddings(
        [tiny()], lexicon=["en-de.csv"], entities=["names.csv"], mentions=["said.csv"]
    )
    (rows,) = scores.values()
    assert [(row.kind, row.measure) for row in rows] == [
        (kind, measure)
        for kind in ("lexicon", "linking")
        for measure in ("accuracy@1", "accuracy@5", "coverage")
    ]
    assert package.scores_table(scores).count("\n") == 8
    with pytest.raises(ConfigError, match="unknown column txt; known: text, text2"):
        package.evaluate_embeddings([tiny()], lexicon=["en-de.csv"], columns={"txt": "a"})
    with pytest.raises(DataError, match="no data set was named"):
        package.evaluate_embeddings([tiny()])
