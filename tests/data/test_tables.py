"""Files of every format are read alike, and what is wrong with one is explained."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data import Columns, read_file, read_folder, read_table
from closeknit.errors import DataError
from closeknit.json_lines import parse_json_lines

ROWS = [
    ("a card", "lost"),
    ('says "no", twice', "refund"),
    ("two\nlines", "lost"),
    ("ünïcode 猫", "refund"),
]


def write(path, suffix: str):
    file = path / f"all{suffix}"
    if suffix in (".csv", ".tsv"):
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
        ("x.jsonl", b'{"text": ' + b"1" * 5000 + b"}\n", ["line 1", "not JSON", "limit"]),
        ("x.jsonl", b"[" * 100_000, ["line 1", "not JSON"]),
        (
            "x.jsonl",
            b'{"text": "so sad \\ud83d", "label": "b"}\n',
            [r"half a character (\ud83d)", "in row 1"],
        ),
        (
            "x.jsonl",
            b'{"text": "so sad", "label": "b\\udc00"}\n',
            [r"half a character (\udc00)", "in row 1"],
        ),
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
        ("x.csv", b"text,label\nhello,a\nbye,b\nhi,a \n", ['"a" and "a " differ only in spaces']),
        ("x.csv", b"text,label\nhello,a\nbye, \n", ["no label in row 2", "or remove them"]),
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
    st.text(st.characters(exclude_characters="\t\0", exclude_categories=["Cs"]), min_size=1),
    min_size=1,
)


@given(TEXTS)
def test_tsv_files_with_and_without_quotation_marks_are_read_back(texts):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tsv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t").writerows(
                [("text", "label"), *((text, "a") for text in texts)]
            )
        assert read_table(path) == {"text": texts, "label": ["a"] * len(texts)}
        plain = [
            " ".join(re.split(r"[\r\n]", text)) + " end" for text in texts
        ]  # never as a whole in marks
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


def test_damaged_json_lines_can_be_skipped():
    text = '{"a": 1}\n\n{"a": \n[2]\n' + "[" * 100_000 + '\n{"a": 3}'
    assert list(parse_json_lines(text, "x", damaged="skip")) == [{"a": 1}, {"a": 3}]


def test_folders_without_data_or_with_two_files_of_a_part_are_refused(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_folder(tmp_path / "gone")
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(DataError, match=r"has no data files: expected .*; it holds notes\.md"):
        read_folder(tmp_path)
    for suffix in (".csv", ".tsv"):
        write(tmp_path, suffix)
    with pytest.raises(DataError, match=r"holds all\.csv and all\.tsv; keep one of them"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ([1, 1.0], "1 is int in row 1, 1.0 is float in row 2"),
        ([1, "1", 1], "1 is int in row 1, '1' is str in row 2"),
        ([1, True], "1 is int in row 1, True is bool in row 2"),
        ([1, 1.0, True, "1"], "'1' is str in row 4"),
    ],
)
def test_labels_of_several_kinds_are_refused(tmp_path, labels, shown):
    """They would be several classes: 1, 1.0, True and the text "1"."""
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"text {row}", "label": label} for row, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="labels are of several kinds") as refused:
        read_file(path)
    assert shown in str(refused.value)


@pytest.mark.parametrize("labels", [[1, 2], [True, False], ["1", "2"]])
def test_labels_of_one_kind_are_read(tmp_path, labels):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"text {row}", "label": label} for row, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_file(path).labels == [str(label) for label in labels]
