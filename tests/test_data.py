from __future__ import annotations

import csv
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit import catalogue, data
from closeknit.data import (
    Columns,
    Examples,
    from_python,
    read_file,
    read_folder,
    read_table,
    spoken,
    telling_names,
)
from closeknit.errors import DataError

ROWS = [("a card", "lost"), ('says "no", twice', "refund"), ("two\nlines", "lost"), ("ünïcode 猫", "refund")]


def write(path, suffix: str):
    file = path / f"all{suffix}"
    if suffix in (".csv", ".tsv"):
        import csv

        with file.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle, delimiter="\t" if suffix == ".tsv" else ",")
            writer.writerow(["text", "label"])
            writer.writerows(ROWS)
    elif suffix == ".jsonl":
        file.write_text(
            "".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in ROWS), encoding="utf-8"
        )
    else:
        import pyarrow
        import pyarrow.parquet

        columns = {"text": [t for t, _ in ROWS], "label": [c for _, c in ROWS]}
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    examples = read_file(write(tmp_path, suffix))
    assert list(zip(examples.texts, examples.labels, strict=True)) == ROWS
    assert read_folder(tmp_path).parts["all"].texts == examples.texts


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbftext,label\nhello,a\n")
    assert read_file(tmp_path / "x.csv").texts == ["hello"]


def test_columns_by_other_names_and_pairs(tmp_path):
    (tmp_path / "x.csv").write_text("question,answer,kind\nwho,me,a\nwhat,that,b\n")
    examples = read_file(tmp_path / "x.csv", Columns(text="question", text2="answer", label="kind"))
    assert examples.pairs == ["me", "that"]
    assert examples.labels == ["a", "b"]


def test_text1_and_text2_make_pairs_without_being_asked(tmp_path):
    (tmp_path / "x.csv").write_text("text1,text2,label\nwho,me,a\n")
    assert read_file(tmp_path / "x.csv").pairs == ["me"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"", ["empty"]),
        ("x.csv", b"text,label\n", ["empty", "no rows"]),
        ("x.csv", b"texts,label\nhello,a\n", ["no column text", "it has texts, label"]),
        ("x.csv", b"text,class\nhello,a\n", ["no column label", "text, class", "data.label"]),
        ("x.csv", b"text,label\nhello,a\nna\xefve,b\n", ["line 3", "UTF-8"]),
        ("x.csv", b"text,label\nhello,a\n  ,b\n,a\n", ["empty text in rows 2, 3"]),
        ("x.csv", b"text,label\nhello,\n", ["no label in row 1"]),
        ("x.csv", b"text,label\nhello, world,a\n", ["line 2", "3 fields", "header has 2"]),
        ("x.jsonl", b'{"text": "a", "label": "b"}\n{"text": \n', ["line 2", "not JSON"]),
        ("x.jsonl", b'{"text": 7, "label": "b"}\n', ["not a string but int in row 1"]),
        ("x.jsonl", b'{"label": "b"}\n{"text": "a"}\n', ["not a string but NoneType in row 1"]),
        ("x.jsonl", b"[1, 2]\n", ["line 1", "expected an object"]),
        (
            "x.jsonl",
            b'{"text": "so sad \\ud83d", "label": "b"}\n',
            [r"half a character (\ud83d)", "in row 1"],
        ),
        ("x.jsonl", b'{"text": "so sad", "label": "b\\udc00"}\n', [r"half a character (\udc00)", "in row 1"]),
        (
            "x.jsonl",
            b'{"text": "a", "label": "b"}\n{"text": "c", "label": ["b"]}\n',
            ["a list in row 2", "one class"],
        ),
        (
            "x.jsonl",
            b'{"text": "a", "label": "b"}\n{"label": "b"}\n',
            ["NoneType in row 2", "data.empty=drop"],
        ),
        ("x.csv", b"text,label\nhello,a\nbye,b\nhi,a \n", ['"a" and "a " differ by spaces alone']),
        ("x.csv", b"text,label\nhello,a\nbye, \n", ["no label in row 2", "take these rows out"]),
        ("x.tsv", b'text\tlabel\n"so" he said\ta\nb\n', ["line 2", "needs quotes around it"]),
        ("x.csv", b'text,label\n"so" he said,a\n', ["line 2", "needs quotes around it"]),
        ("x.parquet", b"nonsense", ["not a readable Parquet file"]),
        ("x.docx", b"nonsense", ["cannot read .docx"]),
    ],
)
def test_bad_files_are_explained(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        read_file(tmp_path / name)
    for word in words:
        assert word in str(error.value)


TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\t\0", exclude_categories=["Cs"]), min_size=1), min_size=1
)


@given(TEXTS)
def test_tsv_files_with_and_without_quotation_marks_are_read_back(texts):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tsv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t").writerows([("text", "label"), *((text, "a") for text in texts)])
        assert read_table(path) == {"text": texts, "label": ["a"] * len(texts)}
        plain = [" ".join(re.split(r"[\r\n]", text)) + " end" for text in texts]  # never as a whole in marks
        lines = ["text\tlabel", *(f"{text}\ta" for text in plain)]
        path.write_bytes("\n".join(lines).encode())
        assert read_table(path) == {"text": plain, "label": ["a"] * len(plain)}


def test_a_line_break_in_marks_parts_no_row_where_there_is_one_column(tmp_path):
    (tmp_path / "x.tsv").write_text('text\n"one\ntwo"\nthree\n')
    assert read_table(tmp_path / "x.tsv") == {"text": ["one\ntwo", "three"]}


def test_a_mark_that_opens_one_text_and_one_that_ends_another_join_no_rows(tmp_path):
    (tmp_path / "x.tsv").write_text('text\tlabel\n"well, he said\ta\nmore\tb\nand so on"\ta\n')
    assert read_file(tmp_path / "x.tsv").texts == ['"well, he said', "more", 'and so on"']


def test_columns_may_be_parted_by_semicolons_or_tabs(tmp_path):
    for mark in ";\t":
        (tmp_path / "x.csv").write_text(f'text{mark}label\n"yes, it is"{mark}a\nno, not{mark}b\n')
        assert read_file(tmp_path / "x.csv").texts == ["yes, it is", "no, not"]


def test_old_line_ends_and_spaces_in_the_header_are_no_part_of_it(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"text; label\rone, two;a\r")
    assert read_file(tmp_path / "x.csv").texts == ["one, two"]


def test_a_column_that_python_has_no_dates_for_is_told(tmp_path):
    import pyarrow
    import pyarrow.parquet

    far = pyarrow.array([10**18], pyarrow.timestamp("us"))
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a"], "label": ["b"], "at": far}), tmp_path / "x.parquet"
    )
    with pytest.raises(DataError, match="date value out of range"):
        read_file(tmp_path / "x.parquet")


def test_a_second_text_can_be_left_alone(tmp_path):
    (tmp_path / "x.csv").write_text("text,text2,label\nwho,me,a\n")
    assert read_file(tmp_path / "x.csv", Columns(text2="")).pairs is None


def test_labels_are_not_looked_at_where_none_are_wanted(tmp_path):
    (tmp_path / "x.csv").write_text("text,label\nwho,\nwhat,\n")
    for columns in (Columns(), Columns(label="category")):
        assert read_file(tmp_path / "x.csv", columns, target=None).labels is None


def test_a_missing_file_is_told_with_what_is_near(tmp_path):
    (tmp_path / "reviews.csv").write_text("text,label\na,b\n")
    with pytest.raises(DataError, match=r"does not exist; did you mean reviews\.csv"):
        read_file(tmp_path / "revews.csv")


def test_blank_rows_can_be_left_out(tmp_path):
    (tmp_path / "x.csv").write_text("text,label\nhello,a\n ,b\nbye,b\n")
    (tmp_path / "blank.csv").write_text("text,label\n ,a\n ,b\n")
    with pytest.raises(DataError, match="no row is left; all 2 are empty"):
        read_file(tmp_path / "blank.csv", Columns(empty="drop"))
    (tmp_path / "x.jsonl").write_text(
        '{"text": "hello", "label": "a"}\n{"text": null, "label": "b"}\n{"text": "bye", "label": "b"}\n'
    )
    for name in ("x.csv", "x.jsonl"):
        examples = read_file(tmp_path / name, Columns(empty="drop"))
        assert (examples.texts, examples.labels) == (["hello", "bye"], ["a", "b"])


def test_python_input_is_checked():
    import pandas

    assert from_python([("a", "b"), ("c", "d")]).pairs == ["b", "d"]
    for texts, labels, words in [
        ("one string", None, "give a list"),
        ([], None, "empty"),
        (["a", None], None, "not a string but NoneType in row 2"),
        (["a", "b"], ["x"], "2 texts, but 1 labels"),
        ([("a", "b"), "c"], None, "not a pair of texts in row 2"),
        (["a", " "], None, "empty text in row 2"),
        ([("a", "b"), ("a", "\ud83d")], None, "half a character .* in row 2"),
        (["a", "b"], ["x", float("nan")], "no label in row 2"),
        (["a", "b"], np.array([1, np.nan], dtype=np.float32), "no label in row 2"),
        (["a", "b"], pandas.array([1, None], dtype="Int64"), "no label in row 2"),
        (["a", "b"], ["x", pandas.NaT], "no label in row 2"),
        (["a", "b"], ["x", b"y"], "the label is a bytes in row 2"),
        (["a", "b"], np.array([["x"], ["y"]]), "the label is a ndarray in rows 1, 2"),
        (["a", pandas.NA], None, "not a string but NAType in row 2"),
    ]:
        with pytest.raises(DataError, match=words):
            from_python(texts, labels)


# ---------------------------------------------------------------- splits


labelled = st.lists(st.sampled_from("abcd"), min_size=12, max_size=120).filter(
    lambda labels: len(set(labels)) > 1 and min(Counter(labels).values()) >= 3
)


@given(labelled, st.integers(0, 2**31))
def test_folds_test_every_row_once_in_the_right_proportions(labels, seed):
    parts = data.folds(labels, 3, seed)
    assert sorted(np.concatenate([test for _, test in parts])) == list(range(len(labels)))
    for train, test in parts:
        assert not set(train) & set(test)
        assert len(train) + len(test) == len(labels)
        for label, count in Counter(labels).items():
            assert abs(sum(labels[i] == label for i in test) - count / 3) < 1


@given(labelled, st.integers(0, 2**31), st.floats(0.05, 0.5))
def test_a_split_parts_the_rows_and_leaves_every_class_in_training(labels, seed, fraction):
    kept, held_out = data.split(labels, fraction, seed)
    assert sorted([*kept, *held_out]) == list(range(len(labels)))
    assert {labels[i] for i in kept} == set(labels)
    assert len(held_out) == max(1, round(fraction * len(labels)))
    again = data.split(labels, fraction, seed)
    assert np.array_equal(held_out, again[1])


@given(labelled, st.integers(0, 2**31), st.data())
def test_a_subset_keeps_proportions_to_within_a_row(labels, seed, draw):
    n = draw.draw(st.integers(1, len(labels)))
    rows = data.subset(labels, n, seed)
    assert len(rows) == len(set(rows)) == n
    for label, count in Counter(labels).items():
        assert abs(sum(labels[i] == label for i in rows) - count * n / len(labels)) < 1 + 1e-9


@given(labelled, st.integers(0, 2**31))
def test_few_shot_takes_n_of_each_class(labels, seed):
    rows = data.few_shot(labels, 3, seed)
    assert Counter(labels[i] for i in rows) == dict.fromkeys(set(labels), 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Refund_not_showing_up", "refund not showing up"),
        ("GetWeather", "get weather"),
        ("Sci/Tech", "sci tech"),
        ("not-hate", "not hate"),
        ("very  negative ", "very negative"),
        ("ABBR", "abbr"),
        ("Größe.Preis", "größe preis"),
    ],
)
def test_class_names_are_said_as_words(name, words):
    assert spoken(name) == words


def test_names_that_say_nothing_are_left_out():
    assert (
        telling_names(["0", "1"]) == telling_names(["LABEL_0", "LABEL_1"]) == telling_names(["a", "☀"]) == []
    )
    assert telling_names(["bad", "good", "grade 1", "grade 2", "7"]) == ["bad", "good"]
    assert telling_names(["1 star", "2 stars", "3 stars"]) == []
    assert telling_names(["好", "坏", "w2"]) == ["好", "坏"]
    assert telling_names(["covid19", "flu"]) == ["covid19", "flu"]


@given(st.lists(st.text(max_size=6), unique=True, max_size=8))
def test_names_that_tell_are_words_of_one_class_alone(classes):
    found = telling_names(classes)
    letters = ["".join(filter(str.isalpha, spoken(name))) for name in found]
    assert len(set(letters)) == len(letters) and all(len(own) > 1 or own > "z" for own in letters)
    assert [name for name in classes if name in found] == found


def test_a_row_for_each_class_name_comes_after_the_rows():
    rows = Examples(["great film", "so dull"], labels=["very_good", "bad"], name="films")
    more = rows.with_names(["bad", "very_good", "bad"])
    assert more.texts == ["great film", "so dull", "bad", "very good", "bad"]
    assert more.labels == ["very_good", "bad", "bad", "very_good", "bad"] and more.name == "films"
    with pytest.raises(ValueError, match="no row for a name"):
        from_python([("great", "film")], ["good"]).with_names(["good"])


def test_other_seeds_give_other_rows():
    labels = ["a", "b"] * 50
    assert not np.array_equal(data.subset(labels, 20, 1), data.subset(labels, 20, 2))
    assert not np.array_equal(data.folds(labels, 5, 1)[0][1], data.folds(labels, 5, 2)[0][1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: data.folds(["a"] * 9, 3, 0), "one class only"),
        (
            lambda: data.folds(["a"] * 9 + ["b"] * 2, 3, 0),
            r"at least 3 rows of each class; too few of b \(2\)",
        ),
        (lambda: data.folds(["a", "b"] * 9, 1, 0), "at least 2"),
        (lambda: data.subset(["a", "b"], 3, 0), "there are 2"),
        (lambda: data.few_shot(["a", "a", "b"], 2, 0), r"too few of b \(1\)"),
        (lambda: data.split(["a", "b"], 1.0, 0), "between 0 and 1"),
        (lambda: data.split(["a", "b"], 0.5, 0), "cannot be held out"),
    ],
)
def test_impossible_splits_are_refused(call, words):
    with pytest.raises(DataError, match=words):
        call()


# ---------------------------------------------------------------- catalogue


def test_the_bundled_messages_have_a_fixed_test_part():
    found = catalogue.load("messages")
    assert {name: len(part) for name, part in found.parts.items()} == {"train": 528, "test": 264}
    for part, rows in (("train", 44), ("test", 22)):
        assert set(Counter(found.parts[part].labels).values()) == {rows}
    assert len(found.training.classes) == 12


def test_no_two_messages_are_near_duplicates():
    """No pair shares a quarter of its five-letter pieces, nor half of its words."""
    import re

    found = catalogue.load("messages")
    texts = [text for part in found.parts.values() for text in part.texts]
    assert len(set(texts)) == len(texts) >= 12 * 60

    def pieces(text):
        clean = " ".join(re.findall(r"\w+", text.lower()))
        return {clean[i : i + 5] for i in range(len(clean) - 4)}, set(clean.split())

    made = [pieces(text) for text in texts]
    for i, (letters, words) in enumerate(made):
        for j in range(i):
            for own, other, limit in ((letters, made[j][0], 0.25), (words, made[j][1], 0.5)):
                assert len(own & other) <= limit * len(own | other), (texts[i], texts[j])


def test_messages_do_not_begin_alike():
    found = catalogue.load("messages")
    texts = [text.lower() for part in found.parts.values() for text in part.texts]
    openings = Counter(" ".join(text.split()[:3]) for text in texts)
    assert openings.most_common(1)[0][1] <= 8


def test_unknown_names_and_paths_are_told_apart(tmp_path):
    with pytest.raises(DataError, match="did you mean messages"):
        catalogue.load("mesages")
    with pytest.raises(DataError, match="does not exist"):
        catalogue.load(str(tmp_path / "no" / "file.csv"))
    with pytest.raises(DataError, match="no data files"):
        catalogue.load(str(tmp_path))


def test_a_local_folder_of_the_catalogues_layout_is_used(tmp_path, monkeypatch):
    (tmp_path / "cr").mkdir()
    (tmp_path / "cr" / "all.csv").write_text("text,label\nfine,positive\n,positive\nbad,negative\n")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    assert catalogue.load("cr").training.texts == ["fine", "bad"]  # its blank rows are known
    assert catalogue.where("cr") == str(tmp_path / "cr")
    assert catalogue.where("trec").startswith("hub")


def test_goemotions_keeps_rows_with_one_emotion(tmp_path, monkeypatch):
    (tmp_path / "goemotions").mkdir()
    (tmp_path / "goemotions" / "train.csv").write_text("text,label\na,joy\nb,joy|fear\nc,neutral\nd,fear\n")
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    assert catalogue.load("goemotions").training.labels == ["joy", "fear"]


def test_hub_rows_become_examples():
    import datasets

    entry = catalogue.CATALOGUE["emoint"]
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["anger", "joy"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["grr", "yay"], "label": [0, 1]}, features=features)
    assert catalogue._hub_part(rows, entry, "emoint").labels == ["anger", "joy"]


def test_what_the_hub_does_not_give_is_said(monkeypatch):
    import datasets

    def refuse(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.delenv("CLOSEKNIT_DATA", raising=False)
    with pytest.raises(DataError, match=r"trec could not be loaded from the hub .*no route.*CLOSEKNIT_DATA"):
        catalogue.load("trec")
    with pytest.raises(DataError, match="isear is not on the hub"):
        catalogue.load("isear")


def test_real_data_sets_load(shared):
    found = catalogue.load(shared / "trec")
    assert [len(found.parts[p]) for p in ("train", "test")] == [5452, 500]
    assert len(catalogue.load(shared / "cr").training) == 3771  # 3,775 less four blank rows
    assert len(catalogue.load(shared / "goemotions").training) == 23485
    assert catalogue.load(shared / "mrpc").training.pairs is not None
