from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from closeknit.classification.config import DataConfig, RunConfig
from closeknit.errors import ConfigError, DataError
from closeknit.studies.search import SearchConfig
from closeknit.studies.study import Source, Study, with_options
from closeknit.studies.study_file import read_study

TOML = """
[study]
data = ["trec", { source = "banking77", classes = 4, name = "four" }]
sizes = [100, "all"]
seeds = [2, 16]
folds = 3
baseline = "cross_entropy"

[encoder]
max_length = 32

[train]
epochs = 3

[objectives.cross_entropy]

[objectives.wide]
name = "triple_entropy"
centers = 2000
train = { lr = 3e-5 }

[search]
method = "random"
trials = 5

[search.spaces.wide]
gamma = [0.05, 0.1]
"train.lr" = { low = 1e-5, high = 1e-3, log = true }
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "study.toml"
        path.write_text(text)
        return path

    return write


def test_a_study_file_is_read_whole(file):
    study = read_study(file(TOML), {}, {})
    assert study.data == (Source("trec"), Source("banking77", name="four", classes=4))
    assert (study.sizes, study.seeds, study.folds) == ((100, 0), (2, 16), 3)
    plain, wide = study.objectives["cross_entropy"], study.objectives["wide"]
    assert plain.train.epochs == wide.train.epochs == 3
    assert (plain.train.lr, wide.train.lr) == (None, 3e-5)
    assert wide.objective.name == "triple_entropy" and wide.objective.options == {"centers": 2000}
    assert plain.train.positives == wide.train.positives == 0  # the same batches for all
    assert study.search == SearchConfig(method="random", trials=5)
    assert study.space("wide") == {
        "gamma": [0.05, 0.1],
        "train.lr": {"low": 1e-5, "high": 1e-3, "log": True},
    }
    assert "train.lr" in study.space("cross_entropy")


def test_the_command_line_goes_before_the_file(file):
    given = {"data": ["cr"], "seeds": [7], "folds": 2, "search": {"trials": 9}, "sizes": None}
    study = read_study(file(TOML), given, {"train": {"epochs": 1}, "encoder": {"name": "textcnn"}})
    assert study.data == (Source("cr"),)
    assert study.seeds == (7,) and study.folds == 2 and study.sizes == (100, 0)
    assert study.search.trials == 9 and study.search.method == "random"
    assert study.objectives["wide"].train.epochs == 1
    assert study.objectives["wide"].encoder.name == "textcnn"


def test_the_command_line_goes_before_what_the_file_says_of_one_objective(file):
    study = read_study(file(TOML), {}, {"train": {"lr": 1e-4}})
    assert [config.train.lr for config in study.objectives.values()] == [1e-4, 1e-4]


def test_the_command_line_can_do_without_the_files_search(file):
    study = read_study(file(TOML), {"search": {}}, {})
    assert study.search is None and study.spaces == {}
    assert list(study.objectives) == list(read_study(file(TOML), {}, {}).objectives)


def test_choosing_on_the_reported_folds_needs_something_to_choose(file):
    plain = TOML.partition("[search]")[0].replace("folds = 3", 'folds = 3\nselection = "paper"')
    for path, given in ((file(plain), {}), (None, {"data": ["cr"], "selection": "paper"})):
        with pytest.raises(ConfigError, match="none are searched for; add --search"):
            read_study(path, given, {})
    assert read_study(file(plain), {"search": {"trials": 3}}, {}).selection == "paper"
    assert read_study(file(plain), {"search": {}}, {}).search is None  # --search none


def test_the_command_line_can_take_some_of_the_files_objectives(file):
    study = read_study(file(TOML), {"objectives": ["cross_entropy"]}, {})
    assert list(study.objectives) == ["cross_entropy"] and study.spaces == {}
    other = read_study(file(TOML), {"objectives": ["cross_entropy", "supcon", "wide"]}, {})
    assert other.objectives["supcon"].train.epochs == 3 and "gamma" in other.space("wide")
    assert read_study(file(TOML), {"objectives": ["supcon", "wide"]}, {}).reference == "supcon"
    with pytest.raises(ConfigError, match="unknown objective wyde; did you mean wide"):
        read_study(file(TOML), {"objectives": ["wyde"]}, {})
    with pytest.raises(ConfigError, match=r"study\.objectives is 5"):
        read_study(
            file(TOML.replace("folds = 3", "folds = 3\nobjectives = 5")),
            {"objectives": ["wide"]},
            {},
        )
    with pytest.raises(ConfigError, match="did you mean wide"):
        read_study(
            file(TOML.replace("spaces.wide", "spaces.wid")),
            {"objectives": ["cross_entropy", "wide"]},
            {},
        )
    left_over = TOML.replace('baseline = "cross_entropy"', 'objectives = ["cross_entropy"]')
    with pytest.raises(ConfigError, match=r"\[objectives\.wide\] is not among"):
        read_study(file(left_over), {}, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[study]", "[stduy]"), r"unknown table \[stduy\]; did you mean study"),
        (("sizes =", "szes ="), "unknown setting study.szes; did you mean study.sizes"),
        (("sizes = [100", 'sizes = ["many"'), "must be a list of whole numbers, or all"),
        (("sizes = [100", "sizes = [-1"), "none may be negative"),
        (("seeds = [2, 16]", "seeds = [2, 2]"), "one is given twice"),
        (("seeds = [2, 16]", "seeds = []"), "needs seeds"),
        (("folds = 3", "folds = 1"), "at least 2"),
        (("folds = 3", 'folds = "3"'), "must be a whole number"),
        (("folds = 3", "hard_sets = 3"), "hard_sets is 3; it must be a table"),
        (
            ("folds = 3", "hard_sets = { trec = 3 }"),
            r'hard_sets\.trec is 3; it must be a list of lists of texts, like \[\["refund"',
        ),
        (("folds = 3", 'hard_sets = { trec = ["0", "1"] }'), "it must be a list of lists of texts"),
        (("folds = 3", "hard_sets = { trec = [[0, 1]] }"), "it must be a list of lists of texts"),
        (("folds = 3", "selection = 3"), "selection is 3; it must be a text"),
        (("seeds = [2, 16]", "seeds = [2, 4294967296]"), "the seed 4294967296 is too large"),
        (("classes = 4", 'classes = "4"'), 'study.data.classes is "4"; it must be a whole number'),
        (
            ("classes = 4", "labels = [0, 1]"),
            r'labels is \[0, 1\]; it must be a list of texts, like \["0", "1"\]',
        ),
        (('name = "four"', "name = 4"), "study.data.name is 4; it must be a text"),
        (("epochs = 3", "seed = 3"), r"train\.seed has no meaning in a study.*--seeds"),
        (
            ("train = { lr = 3e-5 }", "train = { seed = 3 }"),
            r"train\.seed has no meaning in a study",
        ),
        (
            ("[train]", "[data]\ntest = 0.3\n[train]"),
            r"data\.test has no meaning in a study.*--folds",
        ),
        (
            ('"train.lr" = {', '"train.seed" = {'),
            r"has train\.seed; rows and seeds are those of the study",
        ),
        (
            ("gamma = [0.05, 0.1]", '"data.text" = ["a"]'),
            r"has data\.text; rows and seeds are those",
        ),
        (("train = { lr = 3e-5 }", "train = 3"), "write a table like"),
        (
            ("centers = 2000", "centres = 2000"),
            "objective.centres for triple_entropy; did you mean objective.centers",
        ),
        (
            ("classes = 4", "clases = 4"),
            "unknown setting study.data.clases; did you mean study.data.classes",
        ),
        (
            ('baseline = "cross_entropy"', 'baseline = "cross_entrop"'),
            "is not among the objectives; did you mean",
        ),
        (("trials = 5", "trails = 5"), "unknown setting search.trails; did you mean search.trials"),
        (("trials = 5", 'trials = "5"'), "whole number"),
        (('method = "random"', 'method = "tpee"'), "did you mean tpe"),
        (('method = "random"', 'method = "grid"'), "a grid needs a list"),
        (("[search.spaces.wide]", "[search.spaces.wid]"), "no such objective; did you mean wide"),
        (("gamma = [0.05, 0.1]", "gamma = [0.05, -1.0]"), None),
        (("gamma = [0.05", 'gamma = ["much"'), "objective.gamma"),
        (("gamma = [0.05", "gama = [0.05"), "objective.gama"),
        (("[study]", "[study"), "not valid TOML"),
        (('name = "triple_entropy"', "name = 3"), "objectives.wide.name is 3; it must be a text"),
        (("[objectives.wide]\nname", "[objectives.wide]\nnaem"), "wide"),
    ],
)
def test_typing_errors_are_named(file, change, words):
    text = TOML.replace(*change)
    assert text != TOML
    if words is None:  # told when the objective is built
        read_study(file(text), {}, {})
        return
    with pytest.raises(ConfigError, match=words):
        read_study(file(text), {}, {})


@pytest.mark.parametrize("spaces", ['spaces = "default"', '[search.spaces]\nwide = ["x"]'])
def test_spaces_are_a_table_for_each_objective(file, spaces):
    text = TOML.partition("[search.spaces.wide]")[0] + spaces
    for given in ({}, {"objectives": ["wide"]}):
        with pytest.raises(ConfigError, match="write a table for each objective"):
            read_study(file(text), given, {})


def test_without_a_file_there_are_defaults():
    study = read_study(None, {"data": ["messages"]}, {})
    assert list(study.objectives) == ["cross_entropy", "triple_entropy"]
    assert study.reference == "cross_entropy"
    assert (study.sizes, study.folds, study.seeds, study.search) == (
        (1000,),
        5,
        (2, 16, 128, 2048),
        None,
    )
    with pytest.raises(ConfigError, match="needs data"):
        read_study(None, {}, {})
    with pytest.raises(ConfigError, match="given twice"):
        read_study(None, {"data": ["messages"], "objectives": ["supcon", "supcon"]}, {})
    with pytest.raises(ConfigError, match="did you mean supcon"):
        read_study(None, {"data": ["messages"], "objectives": ["supconn"]}, {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": ("trec",)}, "give a tuple of sources"),
        ({"data": "trec"}, "give a tuple of sources"),
        ({"objectives": ["supcon"]}, "give a RunConfig for each name"),
        ({"objectives": {"supcon": "supcon"}}, "give a RunConfig for each name"),
        ({"sizes": 100}, "give a list"),
        ({"sizes": ("all",)}, "give whole numbers"),
        (
            {"objectives": {"a": RunConfig(), "b": RunConfig(data=DataConfig(text="other"))}},
            "differ in their settings of data",
        ),
    ],
)
def test_a_study_made_in_python_is_checked(given, words):
    whole = {"data": (Source("trec"),), "objectives": {"cross_entropy": RunConfig()}}
    Study(**whole)
    with pytest.raises(ConfigError, match=words):
        Study(**{**whole, **given})


def test_options_reach_their_tables():
    config = read_study(None, {"data": ["messages"]}, {}).objectives["triple_entropy"]
    changed = with_options(config, {"train.lr": 1e-3, "gamma": 0.05})
    assert changed.train.lr == 1e-3 and changed.objective.options == {"gamma": 0.05}
    assert with_options(config, {}) == config
    with pytest.raises(ConfigError, match=r"train\.lrr"):
        with_options(config, {"train.lrr": 1.0})


# ---------------------------------------------------------------- data sets


def test_classes_can_be_chosen(tmp_path):
    path = tmp_path / "four.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{'abcd'[i % 4]}\n" for i in range(40)))
    config = RunConfig()
    name, whole = Source(str(path)).load(config)
    three, two = (Source(str(path), classes=n).load(config)[1] for n in (3, 2))
    assert name == "four" and len(whole) == 40
    assert len(three) == 30 and len(two) == 20 and set(two.classes) < set(three.classes)
    assert Source(str(path), labels=("a", "c")).load(config)[1].classes == ["a", "c"]
    with pytest.raises(ConfigError, match="has no class e"):
        Source(str(path), labels=("a", "e")).load(config)
    with pytest.raises(ConfigError, match="9 classes of"):
        Source(str(path), classes=9).load(config)


def test_parts_of_a_data_set_can_be_taken_together(tmp_path, file):
    for part, rows in (("train", 6), ("test", 4)):
        own = "".join(f"{part}{i},{'ab'[i % 2]}\n" for i in range(rows))
        (tmp_path / f"{part}.csv").write_text("text,label\n" + own)
    (tmp_path / "validation.csv").write_text("text,text2,label\none,two,a\n")
    study = file(
        f'[study]\ndata = [{{source = "{tmp_path}", name = "both", parts = ["train", "test"]}}]'
    )
    (source,) = read_study(study, {}, {}).data
    config = RunConfig()
    name, both = source.load(config)
    assert name == both.name == "both" and both.labels == list("ababababab")
    assert both.texts == [f"train{i}" for i in range(6)] + [f"test{i}" for i in range(4)]
    assert len(Source(str(tmp_path)).load(config)[1]) == 6  # the training part alone
    with pytest.raises(DataError, match="has no part tset; it has"):
        Source(str(tmp_path), parts=("train", "tset")).load(config)
    with pytest.raises(DataError, match="not all of train, validation have pairs"):
        Source(str(tmp_path), parts=("train", "validation")).load(config)


# ---------------------------------------------------------------- the study files of this repository


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "studies").glob("*.toml")), ids=lambda p: p.stem
)
def test_the_study_files_of_the_results_can_be_read(path):
    from closeknit.data.catalogue import CATALOGUE

    made = runpy.run_path(str(path.parent / "fresh.py"))["SETS"]
    study = read_study(path, {}, {})
    both = {*made, *CATALOGUE}
    fresh = {*made}
    known = {
        "fresh": fresh,
        "many_classes": fresh,
        **dict.fromkeys(("encoder", "uneven", "class_names"), both),
    }.get(path.stem, {*CATALOGUE})
    assert {source.source for source in study.data} <= known
    assert study.reference == {"class_names": "auto_without_names"}.get(path.stem, "cross_entropy")
    searched = [
        study.space(name)
        for name, config in study.objectives.items()
        if study.search and config.objective.name != "auto"
    ]
    assert all(space == searched[0] for space in searched)  # an equal budget for every objective
    assert f"({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")
