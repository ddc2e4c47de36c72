"""Files with one JSON object per line."""

from __future__ import annotations

import pytest

from closeknit.json_lines import append_json_line, read_json_lines, remove_unfinished_line


@pytest.mark.parametrize("cut", range(0, 30, 7))
def test_an_unfinished_line_is_removed_wherever_it_was_cut(tmp_path, cut):
    path = tmp_path / "lines.jsonl"
    for number in range(3):
        append_json_line(path, {"key": f"k{number}", "text": "a\u2028b"})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    removed = remove_unfinished_line(path)
    kept = list(read_json_lines(path))
    assert kept == [{"key": f"k{n}", "text": "a\u2028b"} for n in range(len(kept))]
    assert path.stat().st_size == len(whole) - cut - removed
    assert remove_unfinished_line(path) == 0
    append_json_line(path, {"key": "next"})
    assert list(read_json_lines(path))[-1] == {"key": "next"}
    assert len(list(read_json_lines(path))) == len(kept) + 1


def test_a_missing_file_has_no_lines(tmp_path):
    assert list(read_json_lines(tmp_path / "missing.jsonl")) == []
    assert remove_unfinished_line(tmp_path / "missing.jsonl") == 0


def test_damaged_lines_are_skipped(tmp_path):
    path = tmp_path / "lines.jsonl"
    damaged = [b"nonsense", b"[1]", b"", b'{"text": "\xff"}', b"[" * 100_000, b'{"cut": ']
    path.write_bytes(b"\n".join([b'{"number": 1}', *damaged, b'{"number": 2}\n']))
    assert list(read_json_lines(path)) == [{"number": 1}, {"number": 2}]
