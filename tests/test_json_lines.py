from __future__ import annotations

from closeknit.json_lines import read_json_lines


def test_damaged_lines_and_lines_without_an_object_are_skipped(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[1, 2]\n"text"\nnull\n{"b": \xff}\n{"c": "\xc3\xa9"}\n{"cut": ')
    assert list(read_json_lines(path)) == [{"a": 1}, {"c": "é"}]


def test_a_missing_file_has_no_lines(tmp_path):
    assert list(read_json_lines(tmp_path / "missing.jsonl")) == []


def test_a_line_separator_inside_a_text_does_not_end_a_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "one\u2028two"}\n', encoding="utf-8")
    assert list(read_json_lines(path)) == [{"text": "one\u2028two"}]
