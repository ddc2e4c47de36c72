"""Embeddings scored on pairs, suites, classes and retrieval, with encoders made of hashes."""

from __future__ import annotations

import subprocess
import sys
import zlib
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from closeknit import metrics
from closeknit.charts.png import alignment_uniformity
from closeknit.data import Examples, ScoredPairs, load_scored_pairs, read_scored_pairs
from closeknit.data.scored_pairs import SUITES
from closeknit.embeddings.score_tables import Score, evaluate_suite, score_rows, scores_table
from closeknit.embeddings.scores import (
    geometry_scores,
    labelled_scores,
    retrieval_scores,
    sts_scores,
)
from closeknit.errors import ConfigError, DataError, ModelError
from conftest import write_pairs


@cache
def word_vector(word):
    return np.random.default_rng(zlib.crc32(word.encode())).normal(size=64)


def bag_of_words(texts):
    """A fixed random vector for each word, summed: texts that share words are alike."""
    rows = np.zeros((len(texts), 64), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.lower().split():
            row += word_vector(word)
    return rows


class Counting:
    """An encoder that remembers what it was asked."""

    def __init__(self):
        self.calls = []

    def __call__(self, texts):
        self.calls.append(texts)
        return bag_of_words(texts)


PAIRS = ScoredPairs(
    ["a red car", "a red car", "two dogs run", "rain falls"],
    ["a red car drives", "two dogs run", "dogs run fast", "stocks rose today"],
    np.array([4.5, 0.5, 3.5, 0.0]),
    "toy",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of data sets with two of the sts suite and one of the words suite in it."""
    home = tmp_path / "data"
    for name, shift in (("sts13", 0), ("stsb", 1)):
        rows = [(f"w{i} w{i + 1}", f"w{i + shift} w{2 * i}", i % 6) for i in range(30)]
        write_pairs(home / name / "test.csv", rows)
    write_pairs(
        home / "wordsim" / "rg65.csv", [("car", "car", 4), ("car", "dog", 1), ("dog", "cat", 2)]
    )
    monkeypatch.setenv("CLOSEKNIT_DATA", str(home))
    monkeypatch.setitem(sys.modules, "datasets", None)  # nothing is looked for on the hub
    return home


# ---------------------------------------------------------------- measures


def test_sts_is_the_correlation_of_cosines_with_scores():
    first, second = bag_of_words(PAIRS.first).tolist(), bag_of_words(PAIRS.second).tolist()
    cosines = [
        sum(p * q for p, q in zip(a, b, strict=True))
        / (sum(p * p for p in a) * sum(q * q for q in b)) ** 0.5
        for a, b in zip(first, second, strict=True)
    ]
    scores = sts_scores(bag_of_words, PAIRS)
    assert scores["spearman"] == pytest.approx(
        stats.spearmanr(cosines, PAIRS.scores).statistic, abs=1e-10
    )
    assert scores["pearson"] == pytest.approx(
        stats.pearsonr(cosines, PAIRS.scores).statistic, abs=1e-10
    )
    assert scores["n"] == 4 and set(scores) == {"spearman", "pearson", "n"}


def test_every_text_is_encoded_once_in_one_call():
    encode = Counting()
    sts_scores(encode, PAIRS)
    assert encode.calls == [PAIRS.texts] and len(PAIRS.texts) == 6


def test_all_pairs_are_ranked_together_and_the_mean_over_groups_stands_beside():
    angles = {"x": 0.0, "p": 0.1, "q": 0.2, "r": 1.0, "s": 1.1}

    def encode(texts):
        return np.array([[np.cos(angles[t]), np.sin(angles[t])] for t in texts], dtype=np.float32)

    pairs = ScoredPairs(
        ["x"] * 4, ["p", "q", "r", "s"], np.array([2.0, 1.0, 4.0, 3.0]), groups=["a", "a", "b", "b"]
    )
    scores = sts_scores(
        encode, pairs
    )  # right in each group, but the groups stand the wrong way round
    assert scores["spearman_of_groups"] == pytest.approx(1)
    assert scores["spearman"] == pytest.approx(1 - 6 * 16 / (4 * 15))


def test_geometry_takes_pairs_above_four_fifths_of_the_range():
    pairs = ScoredPairs(
        ["a b", "c d", "e f", "g h", "i j"],
        ["a c", "c e", "e g", "g i", "i a"],
        np.array([0, 4, 4.2, 5, 3.9]),
        "five",
    )
    scores = geometry_scores(bag_of_words, pairs, ["a b", "c d", "a b", "k"])
    alike = bag_of_words(["e f", "g h"]), bag_of_words(["e g", "g i"])
    z = bag_of_words(["a b", "c d", "k"])
    assert scores == {
        "alignment": metrics.alignment(*alike),
        "uniformity": metrics.uniformity(z),
        "anisotropy": metrics.anisotropy(z),
        "positives": 2,
        "texts": 3,
    }
    tenths = ScoredPairs(
        pairs.first, pairs.second, np.float64(np.float32(pairs.scores / 5)), "fifths"
    )
    assert geometry_scores(bag_of_words, tenths, ["a", "b"])["positives"] == 2
    assert geometry_scores(bag_of_words, pairs, ["a", "b"], above=3)["positives"] == 4
    with pytest.raises(DataError, match="no pair is scored above 9; the scores go from 0 to 5"):
        geometry_scores(bag_of_words, pairs, ["a", "b"], above=9)
    with pytest.raises(DataError, match="1 texts were given"):
        geometry_scores(bag_of_words, pairs, ["a", "a"])


def test_of_many_texts_some_are_drawn_by_a_seed():
    texts = [f"w{i}" for i in range(40)]
    one, same, other = (
        geometry_scores(bag_of_words, PAIRS, texts, most=10, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same and one["texts"] == 10
    assert one["uniformity"] != other["uniformity"] and one["alignment"] == other["alignment"]


def test_classes_that_use_their_own_words_are_told_apart():
    words = {"fruit": ["apple", "pear", "plum"], "tools": ["hammer", "saw", "drill"]}
    rows = [
        (f"{a} {b} {c}", label)
        for label, own in words.items()
        for a in own
        for b in own
        for c in own
    ]
    train = Examples([t for t, _ in rows[::2]], labels=[y for _, y in rows[::2]], name="train")
    test = Examples([t for t, _ in rows[1::2]], labels=[y for _, y in rows[1::2]], name="test")
    assert labelled_scores(bag_of_words, train, test, k=3) == {
        "knn_accuracy": 1,
        "probe_accuracy": 1,
        "n": len(test),
    }
    one = Examples(["a", "b"], labels=["x", "x"], name="mine")
    with pytest.raises(DataError, match="one class only"):
        labelled_scores(bag_of_words, one, test)
    with pytest.raises(DataError, match="has no labels"):
        labelled_scores(bag_of_words, train, Examples(["a"], name="bare"))
    with pytest.raises(DataError, match="single texts"):
        labelled_scores(bag_of_words, train, Examples(["a"], ["b"], ["x"]))
    with pytest.raises(DataError, match="bare is empty"):
        labelled_scores(bag_of_words, train, Examples([], labels=[], name="bare"))


def test_answers_are_found_by_their_queries():
    pairs = [(f"where is w{i}", f"w{i} is here") for i in range(12)]
    scores = retrieval_scores(bag_of_words, pairs)
    assert scores["mrr"] > 0.8 and scores["recall@10"] == 1 and scores["n"] == 12
    point = retrieval_scores(lambda texts: np.ones((len(texts), 3), dtype=np.float32), pairs)
    assert point["mrr"] == pytest.approx(1 / 12) and point["recall@10"] == 0


def test_equal_answers_are_one_document_and_equal_queries_one_query():
    places = {"q": [1, 0], "r": [0, 1], "yes": [1, 0.1], "no": [0.1, 1], "perhaps": [1, 1]}

    def encode(texts):
        return np.array([places[t] for t in texts], dtype=np.float32)

    pairs = [("q", "yes"), ("r", "yes"), ("q", "no"), ("r", "perhaps")]
    scores = retrieval_scores(encode, pairs)  # q: yes 1st, no 3rd; r: perhaps 2nd, yes 3rd
    assert scores["mrr"] == pytest.approx((1 + 1 / 2) / 2)
    assert scores["recall@1"] == pytest.approx((1 / 2 + 0) / 2)
    assert (scores["recall@5"], scores["n"]) == (1, 2)
    with pytest.raises(DataError, match="no pairs"):
        retrieval_scores(encode, [])


def test_an_encoder_that_fails_is_named():
    with pytest.raises(ModelError, match=r"the shape \(3, 4\) for 6 texts"):
        sts_scores(lambda texts: np.zeros((3, 4), dtype=np.float32), PAIRS)

    def broken(texts):
        rows = bag_of_words(texts)
        rows[[2, 4], 0] = np.nan
        return rows

    with pytest.raises(ModelError, match="'rain falls' is not finite; 1 more vectors"):
        sts_scores(broken, PAIRS)


# ---------------------------------------------------------------- suites


def test_a_suite_scores_what_is_there_and_says_what_is_not(folder):
    told = []
    scores = evaluate_suite(bag_of_words, ["sts", "words"], log=told.append)
    assert [(s.data, s.measure, s.n) for s in scores] == [
        ("sts13", "spearman", 30),
        ("stsb", "spearman", 30),
        ("rg65", "spearman", 3),
    ]
    assert (
        scores[0].value == sts_scores(bag_of_words, read_scored_pairs(folder / "sts13"))["spearman"]
    )
    missing = {name for suite in SUITES.values() for name in suite} - {"sts13", "stsb", "rg65"}
    assert len(told) == len(missing)
    for name, line in zip(
        (name for suite in SUITES.values() for name in suite if name in missing), told, strict=True
    ):
        assert line.startswith("skipped: ") and name in line
        assert ("closeknit[hub]" if name in SUITES["sts"] else f"wordsim/{name}.parquet") in line


def test_what_is_left_out_is_said_on_the_error_stream(folder, capsys):
    evaluate_suite(bag_of_words, ["rg65", "men"])
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.startswith("skipped: men is not on the hub")


def test_each_set_is_encoded_once_whatever_is_measured(folder):
    encode = Counting()
    measures = (
        "spearman",
        "pearson",
        "alignment",
        "uniformity",
        "anisotropy",
        "spearman_of_groups",
    )
    scores = evaluate_suite(encode, ["stsb", "sts13", "stsb"], measures=measures)
    assert len(encode.calls) == 2
    assert [s.measure for s in scores] == list(measures[:-1]) * 2  # these sets have no groups
    pairs = load_scored_pairs("stsb")
    expected = geometry_scores(bag_of_words, pairs, pairs.texts)
    by_measure = {s.measure: s for s in scores if s.data == "stsb"}
    for measure in measures[2:5]:
        assert by_measure[measure].value == expected[measure]
    assert by_measure["alignment"].n == expected["positives"]
    assert by_measure["uniformity"].n == expected["texts"] == len(pairs.texts)


def test_files_and_folders_stand_beside_names(folder, tmp_path):
    own = write_pairs(tmp_path / "own.csv", [("a b", "a b", 5), ("a b", "c d", 1)])
    scores = evaluate_suite(bag_of_words, [own, str(folder / "stsb"), "sts13"])
    assert [s.data for s in scores] == ["own", "stsb", "sts13"]
    assert scores[0] == Score("own", "spearman", pytest.approx(1), 2, "pairs")
    assert evaluate_suite(bag_of_words, own) == [scores[0]]
    assert evaluate_suite(bag_of_words, "sts13") == [scores[2]]


def test_names_that_are_wrong_are_an_error(folder, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="did you mean sts13"):
        evaluate_suite(bag_of_words, ["sts133"])
    with pytest.raises(DataError, match="does not exist"):
        evaluate_suite(bag_of_words, ["nowhere/pairs.csv"])
    with pytest.raises(DataError, match="did you mean simlex999"):
        load_scored_pairs("simlex")
    with pytest.raises(ConfigError, match="unknown measure spearmann; did you mean spearman"):
        evaluate_suite(bag_of_words, "sts", measures=["spearmann"])
    with pytest.raises(DataError, match="no data set was named"):
        evaluate_suite(bag_of_words, [])
    with pytest.raises(DataError, match="nothing to score: men is not on the hub"):
        evaluate_suite(bag_of_words, ["men"], log=lambda text: None)
    write_pairs(folder / "sts12" / "test.csv", [("a", "b")], ("text1", "text2"))
    with pytest.raises(DataError, match="no column score"):
        evaluate_suite(bag_of_words, ["sts"], log=lambda text: None)  # there, but broken
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="which is not a folder"):
        evaluate_suite(bag_of_words, ["sts"])


def test_without_hub_or_library_the_benchmark_is_left_out(folder, monkeypatch):
    def load_dataset(name, *, split):
        raise ConnectionError("no route\nto host")

    (folder / "stsb" / "test.csv").unlink()
    told = []
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert [s.data for s in evaluate_suite(bag_of_words, "sts", log=told.append)] == ["sts13"]
    # Where the hub does not answer, it is asked once only.
    assert "(mteb/sts12-sts: no route)" in told[0] and len(told) == 6
    assert told[-1] == "skipped: sickr is on the hub, which could not be reached"
    monkeypatch.setitem(sys.modules, "datasets", None)
    evaluate_suite(bag_of_words, "sts", log=told.append)
    assert "closeknit[hub]" in told[-1]


# ---------------------------------------------------------------- tables and pictures


def test_a_table_has_a_row_a_measure_a_column_a_model_and_the_average():
    both = {
        "a|b": [Score("sts12", "spearman", 0.5, 3108), Score("stsb", "spearman", 0.7, 1379)],
        "tuned": [
            Score("sts12", "spearman", 0.61234, 3108),
            Score("stsb", "spearman", 0.8, 1379),
            Score("stsb", "alignment", 0.21049, 338),
            *score_rows("mine", {"mrr": 0.25, "n": 40}),
        ],
    }
    assert scores_table(both).splitlines() == [
        r"| data | measure | n | a\|b | tuned |",
        "| --- | --- | ---: | ---: | ---: |",
        "| sts12 | spearman × 100 | 3,108 | 50.00 | 61.23 |",
        "| stsb | spearman × 100 | 1,379 | 70.00 | 80.00 |",
        "| stsb | alignment | 338 | – | 0.210 |",
        "| mine | mrr × 100 | 40 | – | 25.00 |",
        "| STS average | spearman × 100 | 2 of 7 sets | 60.00 | 70.62 |",
    ]


def test_no_average_over_other_sets_than_the_neighbours():
    scores = {
        "whole": [Score("sts12", "spearman", 0.5, 9), Score("sts13", "spearman", 0.7, 9)],
        "part": [Score("sts13", "spearman", 0.9, 8)],
    }
    lines = scores_table(scores).splitlines()
    assert lines[-1] == "| STS average | spearman × 100 | 2 of 7 sets | 60.00 | – |"
    assert lines[3] == "| sts13 | spearman × 100 | 9 / 8 | 70.00 | 90.00 |"
    with pytest.raises(DataError, match="two different values of spearman on stsb"):
        scores_table({"m": [Score("stsb", "spearman", 0.1, 9), Score("stsb", "spearman", 0.2, 9)]})


def test_a_picture_of_alignment_and_uniformity(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    path = tmp_path / "points.png"
    many = {f"model {i}": [(-2.0, 0.1 * i)] for i in range(9)}
    alignment_uniformity(
        path, {**many, "trained": [(-1.0, 0.2), (-2.0, 0.3), (-2.5, 0.25)], "none yet": []}
    )
    assert path.read_bytes().startswith(b"\x89PNG") and not pyplot.get_fignums()
    with pytest.raises(DataError, match="no point"):
        alignment_uniformity(path, {"none yet": []})


def test_scores_do_not_need_torch():
    code = "import closeknit.embeddings.scores, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---------------------------------------------------------------- the real sets


def test_the_real_suites_are_whole(shared, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(shared))
    monkeypatch.setitem(sys.modules, "datasets", None)
    told = []
    scores = evaluate_suite(bag_of_words, ["sts", "words"], log=told.append)
    assert [name in line for name, line in zip(("sts16", "sickr"), told, strict=True)] == [True] * 2
    assert {s.data: s.n for s in scores} == {
        "sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "stsb": 1379,
        "simlex999": 999, "men": 3000, "ws353_all": 353, "rg65": 65, "mc30": 30, "mturk771": 771, "rw": 2034,
        "simverb3500": 3500,
    }  # fmt: skip
    values = {s.data: s.value for s in scores}
    assert all(
        values[name] > 0.25 for name in SUITES["sts"] if name in values
    )  # shared words say something about sentences
    assert all(
        abs(values[name]) < 0.5 for name in SUITES["words"]
    )  # and nothing about single words


def test_positives_of_the_real_benchmark_are_scored_above_four(shared):
    pytest.importorskip("pyarrow")
    pairs = read_scored_pairs(shared / "stsb", "validation")
    scores = geometry_scores(bag_of_words, pairs, pairs.texts, most=500)
    assert scores["positives"] == int((pairs.scores > 4).sum())
    assert (scores["texts"], pairs.name) == (500, "stsb validation")
    assert 0 < scores["alignment"] < 2 and scores["uniformity"] < 0
