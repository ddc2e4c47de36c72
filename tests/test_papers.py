"""docs/papers.md names tests, study files, commands and pages that exist, and no cell is empty."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "papers.md"
TEXT = PAGE.read_text(encoding="utf-8")
COLUMNS = ["where", "in the paper", "here", "test", "command or study", "measured"]


class Row(NamedTuple):
    """A row of the page: where it stands in the paper, and what belongs to it."""

    section: str
    where: str
    what: str
    name: str
    test: str
    command: str
    measured: str


def rows_of_the_page() -> list[Row]:
    found = []
    for section in TEXT.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("|")]
        assert cells(lines[0]) == COLUMNS, title
        for line in lines[2:]:
            assert len(cells(line)) == len(COLUMNS), line
            found.append(Row(title, *cells(line)))
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


ROWS = rows_of_the_page()
COMMANDS = sorted({re.findall(r"`([^`]+)`", row.command)[0] for row in ROWS})


def test_every_paper_has_its_rows_and_no_cell_is_empty():
    assert len(ROWS) >= 30
    for paper in ("TripleEntropy", "SimCSE", "Mirror-BERT", "label-aware", "Multi-task", "CLLD"):
        assert any(paper in row.section for row in ROWS), paper
    for row in ROWS:
        assert all(row), row
    places = [(row.section, row.where, row.what) for row in ROWS]
    assert len(places) == len(set(places)), "a row stands on the page twice"


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    for row in ROWS:
        named = re.fullmatch(r"`([\w/]+\.py)::(test_\w+)`", row.test)
        assert named, f"{row.where}: {row.test} names no test"
        file, name = named.groups()
        assert (ROOT / "tests" / file).is_file(), f"{row.where}: no file tests/{file}"
        assert name in functions_of(file), f"{row.where}: tests/{file} has no {name}"


def test_every_named_file_exists():
    for path in re.findall(r"\b(?:studies|benchmarks)/[\w-]+\.(?:toml|py)\b(?!::)", TEXT):
        assert (ROOT / path).is_file(), f"docs/papers.md names {path}; no such file"


def anchor(heading: str) -> str:
    """The name by which a link finds a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_every_measurement_is_a_link_or_says_why_there_is_none():
    for row in ROWS:
        said = (
            "](" in row.measured
            or "not measured yet" in row.measured
            or "cannot be measured here: " in row.measured
        )
        assert said, f"{row.where}: {row.measured}"


def test_links_of_the_page_lead_to_headings():
    for target, fragment in re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", TEXT):
        page = PAGE.parent / target
        assert page.is_file(), f"docs/papers.md points to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
            assert fragment in map(anchor, headings), f"{target} has no heading #{fragment}"


def test_other_pages_lead_to_this_one():
    for page in ("architecture.md", "results/README.md"):
        assert "papers.md" in (ROOT / "docs" / page).read_text(encoding="utf-8"), page


class ReadyToRun(Exception):
    """A command has read its settings and would begin its work now."""


@pytest.fixture
def stopped_before_work(tmp_path, monkeypatch):
    """Commands stop where their work would begin; the files that the page speaks of are there."""
    import closeknit.classification.run
    import closeknit.embeddings.control
    import closeknit.embeddings.run
    import closeknit.multitask.run
    import closeknit.studies.run
    from closeknit.data.scored_pairs import SUITES

    def stop(*given: Any, **options: Any) -> None:
        raise ReadyToRun(*given)

    def known_sets(names: list[str] | None, **options: Any) -> None:
        known = {*SUITES, *(data for suite in SUITES.values() for data in suite)}
        assert set(names or []) <= known, names

    monkeypatch.setattr(closeknit.classification.run, "train_in_folder", stop)
    monkeypatch.setattr(closeknit.embeddings.run, "embed_in_folder", stop)
    monkeypatch.setattr(closeknit.multitask.run, "multitask_in_folder", stop)
    monkeypatch.setattr(closeknit.studies.run, "finish_study", stop)
    monkeypatch.setattr(closeknit.embeddings.control, "evaluation_sets", known_sets)
    shutil.copytree(ROOT / "studies", tmp_path / "studies", ignore=lambda *_: {"results"})
    (tmp_path / "sentences.txt").write_text("the first sentence\nthe second one\n")
    (tmp_path / "words.txt").write_text("cat\ndog\n")
    (tmp_path / "pairs.csv").write_text("text,text2\na cat,a kitten\na dog,a puppy\n")
    (tmp_path / "triplets.csv").write_text(
        "text,text2,negative\na cat,a kitten,a car\na dog,a puppy,a log\n"
    )
    (tmp_path / "study.toml").write_text('[tasks.mood]\ndata = "mood.csv"\nkind = "classify"\n')
    monkeypatch.chdir(tmp_path)


def check_closeknit(words: list[str]) -> None:
    """The command has these options, and its settings can be read."""
    from closeknit.cli import app
    from closeknit.data.catalogue import is_catalogue_name

    group = typer.main.get_command(app)
    name, *arguments = words
    with group.commands[name].make_context(name, arguments) as context:
        if name in ("train", "embeddings", "multitask", "compare"):
            with pytest.raises(ReadyToRun) as reached:
                group.commands[name].invoke(context)
            if name == "compare":
                sources = [one.source for one in reached.value.args[0].data]
                assert sources, words
                for source in sources:
                    assert is_catalogue_name(source) or source.endswith(".csv"), source
        elif name == "data":
            assert is_catalogue_name(context.params["name"]), words


def check_benchmark(script: str, arguments: list[str]) -> None:
    """The script has these options."""
    tree = ast.parse((ROOT / script).read_text(encoding="utf-8"))
    options = {
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    for word in arguments:
        assert not word.startswith("--") or word in options, f"{script} has no option {word}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_begun(command, stopped_before_work):
    program, *words = shlex.split(command)
    if program == "closeknit":
        check_closeknit(words)
    else:
        assert program == "python", command
        check_benchmark(words[0], words[1:])
