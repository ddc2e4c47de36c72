"""Examples from Python are checked, selected and extended by class names."""

from __future__ import annotations

import numpy as np
import pytest

from closeknit.data import DataSet, Examples, from_python
from closeknit.data.examples import Fingerprint
from closeknit.errors import DataError


def test_python_input_is_checked():
    import pandas

    assert from_python([("a", "b"), ("c", "d")]).pairs == ["b", "d"]
    for texts, labels, words in [
        ("one string", None, "give a list"),
        ([], None, "empty"),
        (["a", None], None, "not a string but NoneType in row 2"),
        (["a", "b"], ["x"], "2 texts, but 1 labels"),
        ([("a", "b"), "c"], None, "not a pair of texts in row 2"),
        ([("a", "b"), "cd", ("e", "f"), b"gh"], None, "not a pair of texts in rows 2, 4"),
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


def test_a_row_for_each_class_name_comes_after_the_rows():
    rows = Examples(["great film", "so dull"], labels=["very_good", "bad"], name="films")
    more = rows.with_class_names(["bad", "very_good", "bad"])
    assert more.texts == ["great film", "so dull", "bad", "very good", "bad"]
    assert more.labels == ["very_good", "bad", "bad", "very_good", "bad"] and more.name == "films"
    with pytest.raises(ValueError, match="cannot be added to pairs of texts"):
        from_python([("great", "film")], ["good"]).with_class_names(["good"])


def test_parts_of_a_data_set_are_merged_in_the_order_asked_for():
    train = from_python(["a", "b"], ["x", "y"])
    test = from_python(["c"], ["x"])
    data = DataSet("letters", {"train": train, "test": test, "more": from_python(["d"])})
    merged = data.merged(["test", "train", "test"])
    assert (merged.texts, merged.labels, merged.name) == (
        ["c", "a", "b"],
        ["x", "x", "y"],
        "letters",
    )
    with pytest.raises(DataError, match="has no part validation; it has train, test, more"):
        data.merged(["validation"])
    with pytest.raises(DataError, match="not all of train, more have labels"):
        data.merged(["train", "more"])


def test_a_fingerprint_changes_with_every_column():
    rows = Examples(["a", "b"], ["c", "d"], ["x", "y"], scores=[1.0, 2.0])
    others = [
        Examples(["a", "B"], rows.pairs, rows.labels, scores=rows.scores),
        Examples(rows.texts, ["c", "D"], rows.labels, scores=rows.scores),
        Examples(rows.texts, rows.pairs, ["x", "x"], scores=rows.scores),
        Examples(rows.texts, rows.pairs, rows.labels, scores=[1.0, 3.0]),
        rows.select([1, 0]),
    ]
    expected = Fingerprint.of(rows)
    assert expected.rows == 2 and Fingerprint.of(None, rows.select([0, 1]), None) == expected
    assert len({expected.digest, *(Fingerprint.of(other).digest for other in others)}) == 6
