"""The lines that a study keeps, in the current format, in earlier ones and in later ones."""

from __future__ import annotations

import dataclasses
import json

import pytest
from small_study import ONE_THREAD, study_maker

from closeknit import __version__
from closeknit.errors import DataError
from closeknit.json_lines import append_json_line, read_json_lines
from closeknit.studies.results import (
    FORMAT,
    Result,
    migrate,
    read_results,
    read_trials,
    result_record,
)
from closeknit.studies.run import run_study
from closeknit.studies.search import SearchConfig

RESULT = Result(
    data="small",
    size=36,
    objective="supcon",
    options={"temperature": 0.1},
    encoder="tiny",
    seed=2,
    fold=0,
    folds=5,
    selection="fixed",
    weighted_f1=0.5,
    accuracy=0.5,
    macro_f1=0.5,
    seconds=1.0,
    steps=4,
    versions={"closeknit": "9.1.0"},
    key="0f3a",
    settings={"train": {"lr": 1e-3}},
    source="small.csv",
)
RECORD = result_record(RESULT)
FORMAT_1 = {key: value for key, value in RECORD.items() if key != "format"}


@pytest.fixture
def study(tiny, small_csv):
    return study_maker(tiny(), small_csv)


@pytest.fixture
def file(tmp_path):
    """Write lines to a file."""

    def write(*records):
        path = tmp_path / "lines.jsonl"
        for record in records:
            append_json_line(path, record)
        return path

    return write


# ---------------------------------------------------------------- results


def test_damaged_lines_are_skipped(tmp_path):
    (tmp_path / "results.jsonl").write_text('nonsense\n[1]\n{"data": "x"}\n')
    assert read_results(tmp_path / "results.jsonl") == []
    assert read_results(tmp_path / "missing.jsonl") == []


def test_a_result_is_read_as_it_was_written_and_once(file):
    other = dataclasses.replace(RESULT, key="17b0")
    path = file(RECORD, result_record(other), RECORD)
    assert read_results(path) == [RESULT, other]


def test_lines_without_the_later_fields_are_read(file):
    later = ("test", "shots", "near_other_label", "truncated")
    older = {key: value for key, value in RECORD.items() if key not in later}
    (found,) = read_results(file(older))
    assert found == RESULT
    assert (found.test, found.shots, found.near_other_label) == ("folds", 0, None)
    assert found.truncated is None


def test_lines_of_format_1_are_read(file):
    oldest = {k: v for k, v in FORMAT_1.items() if k not in ("settings", "source")}
    assert read_results(file(FORMAT_1)) == [RESULT]
    (migrated,) = read_results(file({**oldest, "key": "17b0"}))[1:]
    assert migrated == dataclasses.replace(RESULT, key="17b0", settings={}, source="")
    assert migrate(oldest).keys() == RECORD.keys()


@pytest.mark.parametrize("missing", ["settings", "source", "accuracy"])
def test_an_incomplete_line_of_the_current_format_is_skipped(file, missing):
    assert read_results(file({k: v for k, v in RECORD.items() if k != missing})) == []


def test_a_line_of_a_later_format_is_refused_with_the_version_that_wrote_it(file):
    path = file(RECORD, {**RECORD, "format": FORMAT + 1, "key": "17b0", "calibration": 0.1})
    with pytest.raises(DataError, match=rf"format {FORMAT + 1}, written by Closeknit 9\.1\.0"):
        read_results(path)


@pytest.mark.parametrize("record", [RECORD, FORMAT_1])
def test_unknown_fields_are_refused_by_name(file, record):
    path = file({**record, "calibration": 0.1, "brier": 0.2})
    with pytest.raises(DataError, match=r"9\.1\.0, has unknown fields: brier, calibration"):
        read_results(path)


# ---------------------------------------------------------------- trials


def test_trials_of_both_formats_are_read_and_later_ones_refused(file):
    trials = [
        {"key": "a", "score": 0.5},
        {"format": FORMAT, "key": "b", "score": 0.6},
        {"key": "c"},
    ]
    assert read_trials(file(*trials)) == trials[:2]
    later = {"format": FORMAT + 1, "versions": {"closeknit": "9.1.0"}, "key": "d", "score": 0.7}
    path = file(later)
    with pytest.raises(DataError, match=r"written by Closeknit 9\.1\.0"):
        read_trials(path)


# ---------------------------------------------------------------- studies


def searching(study):
    return study(
        names=("cross_entropy",),
        seeds=(2,),
        search=SearchConfig(method="grid"),
        spaces={"cross_entropy": {"train.lr": [1e-4, 1e-3]}},
    )


def test_every_file_of_a_study_names_its_format(study, tmp_path):
    out = tmp_path / "out"
    run_study(searching(study), out, place=ONE_THREAD, show=False)
    results = list(read_json_lines(out / "results.jsonl"))
    trials = list(read_json_lines(out / "trials.jsonl"))
    description = json.loads((out / "study.json").read_text())
    assert len(results) == 2 and len(trials) == 4
    for record in (*results, *trials, description):
        assert record["format"] == FORMAT
        assert record["versions"]["closeknit"] == __version__
    assert results[0]["settings"]["encoder"]["max_length"] == 16


@pytest.mark.parametrize("name", ["results.jsonl", "trials.jsonl"])
def test_lines_of_format_1_are_not_run_again_and_keep_their_bytes(study, tmp_path, name):
    out = tmp_path / "out"
    run_study(searching(study), out, place=ONE_THREAD, show=False)
    first, *others = read_json_lines(out / name)
    old = {key: value for key, value in first.items() if key not in ("format", "settings")}
    if name == "trials.jsonl":
        del old["versions"]
        (out / "results.jsonl").unlink()
    (out / name).unlink()
    append_json_line(out / name, old)
    before = (out / name).read_bytes()
    run_study(searching(study), out, place=ONE_THREAD, show=False)
    assert (out / name).read_bytes().startswith(before)
    found = list(read_json_lines(out / name))
    assert [record["key"] for record in found] == [record["key"] for record in (first, *others)]


@pytest.mark.parametrize("name", ["results.jsonl", "trials.jsonl", "study.json"])
def test_a_study_that_a_later_version_has_written_is_left_unchanged(study, tmp_path, name):
    out = tmp_path / "out"
    run_study(searching(study), out, place=ONE_THREAD, show=False)
    text = (out / name).read_text()
    changed = text.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    assert changed != text
    (out / name).write_text(
        changed.replace(f'"closeknit": "{__version__}"', '"closeknit": "9.1.0"')
    )
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match=rf"{name} holds data .* written by Closeknit 9\.1\.0"):
        run_study(searching(study), out, place=ONE_THREAD, show=False)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    run_study(searching(study), out, place=ONE_THREAD, show=False, overwrite=True)
    assert all(record["format"] == FORMAT for record in read_json_lines(out / "results.jsonl"))
