"""Designs: official test parts and a few rows per class, as jobs and on the command line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from small_study import ONE_THREAD, results_of, study_maker

from closeknit.classification.config import RunConfig
from closeknit.data import folds, from_python
from closeknit.data.distinct_texts import folds_of_distinct_texts, row_keys
from closeknit.errors import ConfigError, DataError
from closeknit.studies.designs import StudyData, make_folds
from closeknit.studies.plan import JobPlanner
from closeknit.studies.run import run_study
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, Study
from closeknit.studies.study_file import read_study

OBJECTIVES = {"cross_entropy": RunConfig()}


def study(source="messages", **more):
    return Study((Source(str(source)),), OBJECTIVES, **{"seeds": (1, 2), **more})


def write_parts(folder: Path, train, test) -> Path:
    folder.mkdir()
    for part, rows in (("train", train), ("test", test)):
        lines = "".join(f"{text},{label}\n" for text, label in rows)
        (folder / f"{part}.csv").write_text("text,label\n" + lines)
    return folder


def distinct(n, start=0):
    return [(f"text number {i}", "ab"[i % 2]) for i in range(start, start + n)]


def test_official_parts_are_trained_and_tested_on_once_per_seed():
    official = study(test="official")
    assert official.sizes == (0,) and official.splits_per_seed == 1
    data = StudyData.load(official)
    first, second = make_folds(official, data)
    examples = data.examples["messages"]
    assert len(examples) == 528 + 264
    assert first.test.tolist() == second.test.tolist() == list(range(528, 792))
    assert first.train.tolist() == second.train.tolist() == list(range(528))
    planner = JobPlanner(official, data)
    keys = {planner.run_key(fold, "cross_entropy") for fold in (first, second)}
    assert len(keys) == 2


def test_sizes_draw_training_rows_and_leave_the_test_part_whole():
    some = study(test="official", sizes=(48,))
    data = StudyData.load(some)
    first, second = make_folds(some, data)
    assert len(first.train) == len(second.train) == 48
    assert first.train.tolist() != second.train.tolist()
    assert len(first.test) == 264


@pytest.mark.parametrize("test", ["official", "rest", ""])
def test_shots_are_rows_of_each_class(test):
    few = study(test=test, shots=(8, 2))
    data = StudyData.load(few)
    labels = data.examples["messages"].required_labels
    found = make_folds(few, data)
    assert [(fold.shots, fold.seed, fold.size) for fold in found] == [
        (2, 1, 24), (2, 2, 24), (8, 1, 96), (8, 2, 96),
    ]  # fmt: skip
    for fold in found:
        assert set(Counter(labels[row] for row in fold.train).values()) == {fold.shots}
        assert not set(fold.train.tolist()) & set(fold.test.tolist())
        if test == "official":
            assert fold.test.tolist() == list(range(528, 792))
        else:
            assert len(fold.test) == 528 - fold.size
    assert found[0].train.tolist() != found[1].train.tolist()


def test_rest_leaves_texts_out_that_were_trained_on():
    texts = [f"text {i}" for i in range(20)] + ["the same"] * 20
    examples = from_python(texts, ["ab"[i % 2] for i in range(40)], name="twice")
    data = StudyData({"twice": examples}, {"twice": "print"})
    few = Study((Source("twice"),), OBJECTIVES, seeds=(1, 2, 3), shots=(4,))
    left_out = 0
    for fold in make_folds(few, data):
        trained = {texts[row] for row in fold.train}
        assert not trained & {texts[row] for row in fold.test}
        left_out += 40 - len(fold.train) - len(fold.test)
    assert left_out > 0


def test_shared_texts_are_refused_dropped_or_kept(tmp_path):
    path = write_parts(tmp_path / "own", distinct(20), [*distinct(4, 100), *distinct(2)])
    with pytest.raises(
        DataError,
        match=r'2 of the 6 test rows of own have a text .* the first is "text number 0".*'
        "--shared-texts drop",
    ):
        StudyData.load(study(path, test="official"))
    said: list[str] = []
    dropped = StudyData.load(study(path, test="official", shared_texts="drop"), said.append)
    assert dropped.training_rows("own").tolist() == list(range(2, 20))
    assert len(dropped.official["own"]) == 6 and "2 training rows are left out" in said[0]
    kept = StudyData.load(study(path, test="official", shared_texts="keep"), said.append)
    assert len(kept.training_rows("own")) == 20


def test_classes_are_chosen_in_both_parts(tmp_path):
    train = [(f"one {i}", "abcd"[i % 4]) for i in range(40)]
    test = [(f"two {i}", "abcd"[i % 4]) for i in range(8)]
    path = str(write_parts(tmp_path / "four", train, test))
    config = RunConfig()
    name, examples, test_rows = Source(path, labels=("a", "d")).load_with_test_part(config)
    assert (name, len(examples), test_rows) == ("four-2-classes", 24, 4)
    assert examples.classes == ["a", "d"] and examples.texts[-1].startswith("two")
    with pytest.raises(ConfigError, match="official test part is not trained on"):
        Source(path, parts=("train", "test")).load_with_test_part(config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shots": (8,), "sizes": (100,)}, "give one of the two"),
        ({"shots": (0,)}, "give at least 1"),
        ({"shots": (8,), "test": "folds"}, "give test as official or rest"),
        ({"test": "rest"}, "give shots"),
        ({"test": "ofical"}, "did you mean official"),
        ({"shared_texts": "drop"}, "give test as official too"),
        ({"shots": (8, 8)}, "given twice"),
    ],
)
def test_designs_that_contradict_themselves_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        study(**options)


def test_more_shots_than_a_class_has_rows():
    few = study(shots=(45,))
    with pytest.raises(DataError, match=r"45 rows per class .* has 44 .* at most 44 shots"):
        make_folds(few, StudyData.load(few))


def test_no_test_part(tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\nx,a\ny,b\n")
    with pytest.raises(DataError, match="has no part test; it has all"):
        StudyData.load(study(tmp_path / "rows.csv", test="official"))


def test_a_study_file_has_the_same_settings(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text('[study]\ndata = ["messages"]\ntest = "official"\nshots = [8, 16]\n')
    found = read_study(file, {}, {})
    assert (found.test, found.shots, found.sizes) == ("official", (8, 16), ())
    assert read_study(file, {"sizes": [100]}, {}).shots == ()
    with pytest.raises(ConfigError, match="leave folds out"):
        read_study(file, {"folds": 3}, {})


def test_an_option_that_some_objectives_lack_is_said(capsys):
    names = {"data": ["messages"], "objectives": ["cross_entropy", "triple_entropy"]}
    read_study(None, names, {"objective": {"centers": 10}})
    assert "cross_entropy has no such option and stays as it is" in capsys.readouterr().err


# ---------------------------------------------------------------- the command


@pytest.fixture
def compare(tiny, tmp_path, closeknit):
    kinds = {"lost": "card lost", "late": "parcel late", "refund": "money back"}
    train, test = (
        [(f"{words} {kind} {i}", name) for name, words in kinds.items() for i in range(6)]
        for kind in ("today", "help")
    )
    write_parts(tmp_path / "parts", train, test[:-1])

    def run(*options, out="study", code=0):
        fast = ("--epochs", 1, "--threads", 1, "--set", "encoder.max_length=16")
        names = ("--objectives", "cross_entropy,supcon", "--seeds", "1,2,3")
        return closeknit(
            "compare", "parts", *names, *fast, *options, "--encoder", tiny(), "--out", out, code=code
        )  # fmt: skip

    return run


def test_the_command_compares_a_few_shots_on_the_official_part(compare, tmp_path):
    done = compare("--test", "official", "--shots", 2)
    rows = [
        json.loads(line) for line in (tmp_path / "study/results.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 6
    assert {(r["test"], r["shots"], r["size"], r["folds"]) for r in rows} == {("official", 2, 6, 1)}
    by_seed = {r["seed"]: r["near_other_label"]["rows"] for r in rows}
    assert all(by_seed[r["seed"]] == r["near_other_label"]["rows"] for r in rows)
    assert "3 seeds and 17 test rows" in done.stdout
    assert "Similar texts, different labels" in done.stdout
    page = (tmp_path / "study/report.html").read_text()
    assert "the test part of each data set" in page and 'id="near"' in page
    assert "Unfinished" not in page and 'id="confidence"' in page
    before = results_of(tmp_path / "study")
    compare("--test", "official", "--shots", 2)
    assert results_of(tmp_path / "study") == before

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    printed = compare("--test", "official", "--shots", 2, "--json").stdout
    assert json.loads(printed, parse_constant=refuse)["lines"][0]["gain"] is None
    one_pair = compare("--test", "official", "--seeds", 1, "--json", out="one").stdout
    lines = json.loads(one_pair, parse_constant=refuse)["lines"]
    assert lines[1]["gain"]["low"] is None and lines[1]["p_holm"] is None
    said = compare("--shots", 2, code=2).stderr
    assert "holds runs that were tested on official test parts" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shots", "7"), "7 rows per class"),
        (("--shots", "eight"), "give whole numbers"),
        (("--test", "official", "--folds", "3"), "leave folds out"),
        (("--shots", "8", "--sizes", "100"), "give one of the two"),
    ],
)
def test_bad_input_is_a_sentence(compare, options, words):
    done = compare(*options, code=2)
    assert words in done.stderr and "Traceback" not in done.stderr


def test_rows_of_a_design_are_whole_numbers():
    few = study(shots=(3,))
    for fold in make_folds(few, StudyData.load(few)):
        assert fold.train.dtype == fold.test.dtype == np.int64


# ---------------------------------------------------------------- equal texts


def repeated(path: Path, times: int) -> Path:
    """A file in which every text stands several times, in other letters and with other signs."""
    signs = ("{}", "{}!", "{} ...")
    rows = [
        f'"{signs[turn % 3].format(f"{word} number {i}")}",{word}'
        for i in range(20)
        for word in ("late", "Lost")
        for turn in range(times)
    ]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.mark.parametrize("sizes", [(0,), (90,)])
def test_rows_with_the_same_text_are_in_the_same_fold(tmp_path, sizes):
    made = study(repeated(tmp_path / "rows.csv", 3), sizes=sizes, folds=4, seeds=(2, 16))
    data, said = StudyData.load(made), []
    texts = row_keys(data.examples["rows"])
    for fold in make_folds(made, data, said.append):
        assert not {texts[row] for row in fold.train} & {texts[row] for row in fold.test}
    assert len(said) == 1 and "rows with the same text are in the same fold" in said[0]
    if sizes == (0,):
        assert "rows, 120 rows: 120 rows have the text of another row" in said[0]
        tested = np.concatenate([fold.test for fold in make_folds(made, data, said.append)[:4]])
        assert sorted(tested.tolist()) == list(range(120))


def test_divided_equal_texts_are_counted(tmp_path):
    made = study(
        repeated(tmp_path / "rows.csv", 3), sizes=(0,), folds=4, seeds=(2,), equal_texts="divided"
    )
    data, said = StudyData.load(made), []
    texts = row_keys(data.examples["rows"])
    count = sum(
        texts[row] in {texts[row] for row in fold.train}
        for fold in make_folds(made, data, said.append)
        for row in fold.test
    )
    assert count and f"{count:,} of the 120 test rows have a text that is among" in said[0]


@pytest.mark.parametrize("choice", ["together", "divided"])
def test_different_texts_have_the_folds_of_their_rows(tmp_path, choice):
    made = study(
        repeated(tmp_path / "rows.csv", 1), sizes=(0,), folds=4, seeds=(2,), equal_texts=choice
    )
    data, said = StudyData.load(made), []
    found = [(fold.train, fold.test) for fold in make_folds(made, data, said.append)]
    expected = folds(data.examples["rows"].required_labels, 4, 2)
    for (train, test), (expected_train, expected_test) in zip(found, expected, strict=True):
        assert np.array_equal(train, expected_train) and np.array_equal(test, expected_test)
    assert said == []


def test_the_validation_parts_of_a_search_keep_equal_texts_together(tmp_path):
    made = study(
        repeated(tmp_path / "rows.csv", 3),
        sizes=(0,),
        folds=2,
        seeds=(2,),
        search=SearchConfig(method="random", trials=2),
        spaces={"cross_entropy": {"train.lr": [0.1, 0.2]}},
    )
    data = StudyData.load(made)
    texts = row_keys(data.examples["rows"])
    all_folds = make_folds(made, data, lambda _: None)
    for generator in JobPlanner(made, data).generators(all_folds, {}):
        for job in next(generator):
            assert not {texts[row] for row in job.train} & {texts[row] for row in job.test}


def test_too_few_distinct_texts_for_folds_are_a_sentence(tmp_path):
    (tmp_path / "few.csv").write_text("text,label\n" + "late,a\nlost,b\n" * 8)
    made = study(tmp_path / "few.csv", sizes=(0,), folds=4)
    with pytest.raises(DataError, match="4 folds need a class with at least 4 distinct texts"):
        make_folds(made, StudyData.load(made), lambda _: None)


@given(
    labels=st.lists(st.sampled_from("abc"), min_size=12, max_size=40),
    groups=st.integers(0, 2**32),
    k=st.integers(2, 3),
)
def test_folds_of_distinct_texts_test_each_row_once_and_divide_no_text(labels, groups, k):
    generator = np.random.default_rng(groups)
    group_of = generator.integers(0, len(labels), len(labels))
    first = {group: row for row, group in reversed(list(enumerate(group_of.tolist())))}
    assume(max(Counter(labels[row] for row in first.values()).values()) >= k)
    assume(len({labels[row] for row in first.values()}) > 1)
    pairs = folds_of_distinct_texts(labels, group_of, k, 7)
    assert sorted(np.concatenate([test for _, test in pairs]).tolist()) == list(range(len(labels)))
    for train, test in pairs:
        assert not set(group_of[train].tolist()) & set(group_of[test].tolist())
        assert len(train) + len(test) == len(labels)


def test_a_folder_of_an_earlier_version_resumes_with_the_folds_that_it_has(tiny, tmp_path):
    source = repeated(tmp_path / "rows.csv", 3)
    make = study_maker(tiny(), source)
    old = make(("cross_entropy",), seeds=(2,), equal_texts="divided")
    run_study(old, tmp_path / "out", place=ONE_THREAD, show=False)
    path = tmp_path / "out" / "study.json"
    facts = json.loads(path.read_text())
    del facts["equal_texts"], facts["identities"]  # earlier versions record neither
    path.write_text(json.dumps(facts))
    lines = [json.loads(line) for line in results_of(tmp_path / "out")]
    for line in lines:
        line |= {"tested": "", "seconds": 1.0}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "out" / "results.jsonl").write_text(text)
    before = results_of(tmp_path / "out")
    resumed = make(("cross_entropy",), seeds=(2, 16), equal_texts="")
    run_study(resumed, tmp_path / "out", place=ONE_THREAD, show=False)
    assert set(before) < set(results_of(tmp_path / "out"))
    with pytest.raises(ConfigError, match="equal_texts was divided and is together"):
        other = make(("cross_entropy",), seeds=(3,), equal_texts="together")
        run_study(other, tmp_path / "out", place=ONE_THREAD, show=False)
    new = run_study(
        make(("cross_entropy",), equal_texts=""), tmp_path / "new", place=ONE_THREAD, show=False
    )
    assert not {result.key for result in new} & {json.loads(line)["key"] for line in before}
