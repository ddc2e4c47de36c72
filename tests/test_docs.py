"""What the documents say of files, settings, commands and objectives is so."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "closeknit"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def settings_of(page: str, table: str) -> dict[str, str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"(`[{table}]`)")[1]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text.split("\n## ")[0], re.M)
    return {name: default.strip("`") for name, default in rows}


def test_the_tables_of_settings_are_complete_and_right():
    from closeknit.encoders.config import EncoderConfig
    from closeknit.training.config import TrainConfig

    for page, table, config in (
        ("training.md", "train", TrainConfig()),
        ("encoders.md", "encoder", EncoderConfig()),
    ):
        documented = settings_of(page, table)
        actual = dataclasses.asdict(config)
        assert documented.keys() == actual.keys()
        for name, value in actual.items():
            said = documented[name]
            assert said == str(value).lower() or float(said) == value, name


def test_every_objective_is_in_the_readme_and_has_a_section():
    from closeknit.objectives import OBJECTIVES

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    for name in OBJECTIVES:
        assert f"| `{name}` |" in readme
        assert f"\n## `{name}`" in page


def architecture_rows() -> dict[str, str]:
    """The row of each package in docs/architecture.md; "" is the top of the package."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Which file holds what")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?:`([\w/]+)/`|the top)(?::.*?)? \| (.*) \|$", table, re.M)
    return dict(rows)


def files_by_package() -> dict[str, set[str]]:
    """The Python files of each package of the source."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if not path.stem.startswith("__"):
            package = path.parent.relative_to(SOURCE).as_posix()
            found.setdefault(package.removeprefix("."), set()).add(path.stem)
    return found


def test_the_architecture_page_names_every_file_in_the_row_of_its_package():
    rows = architecture_rows()
    files = files_by_package()
    assert rows.keys() == files.keys(), "docs/architecture.md needs one row per package"
    for package, stems in files.items():
        named = set(re.findall(r"`(\w+)`", rows[package]))
        row = f"the row of `{package}/`" if package else "the first row"
        for stem in sorted(stems - named):
            raise AssertionError(f"docs/architecture.md: add `{stem}` and a few words to {row}")
        begins_a_phrase = set(re.findall(r"(?:^|<br>)`(\w+)`", rows[package]))
        for stem in sorted(begins_a_phrase - stems):
            raise AssertionError(f"docs/architecture.md: remove `{stem}` from {row}; no such file")


def test_the_answers_of_the_architecture_page_are_files():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Which file do I change for")[1].split("\n## ")[0]
    answers = re.findall(r"^\| (?:a|an|another) .*? \| (.*) \|$", table, re.M)
    assert len(answers) == 10
    for answer in answers:
        paths = re.findall(r"`([\w/]+\.py)`", answer)
        assert paths, answer
        for path in paths:
            assert (SOURCE / path).is_file(), f"docs/architecture.md names {path}; no such file"


def test_the_readme_can_be_read_quickly():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", readme, flags=re.S)
    for block in prose.split("\n\n"):
        lines = block.strip().splitlines()
        if lines and not lines[0].startswith("|"):
            assert len(lines) <= 4, f"README.md: more than four lines: {lines[0]}"
    for cell in re.findall(r"(?<=\|)[^|\n]+(?=\|)", prose):
        assert len(cell.split()) <= 30, f"README.md: more than 30 words in a cell: {cell}"


def test_commands_in_the_documents_exist():
    from closeknit.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    for page in PAGES:
        for block in re.findall(r"```\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            for name in re.findall(r"(?:^|\| |-m )closeknit (\w+)", block, re.M):
                assert name in known, f"{page.name}: closeknit {name}"


def test_the_pictures_of_the_documents_are_those_that_make_docs_draws(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make.py"), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for name in ("dataflow.svg", "packages.svg"):
        drawn, kept = (
            (folder / name).read_text(encoding="utf-8")
            for folder in (tmp_path, ROOT / "docs" / "images")
        )
        assert drawn == kept, f"docs/images/{name} is out of date; run `make docs`"
    drawn, kept = (
        (folder / "objectives.svg").read_text() for folder in (tmp_path, ROOT / "docs" / "images")
    )
    assert re.sub(r"[\d.]+", "", drawn) == re.sub(
        r"[\d.]+", "", kept
    )  # the last digits may differ between machines


def test_the_picture_of_the_packages_shows_every_import_below_the_importer(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import package_picture

    order = [name for layer in package_picture.layers() for name in layer]
    imports = package_picture.imports()
    assert set(imports) == set(order) == set(package_picture.PHRASES)
    assert "acceleration" in imports["training"]
    for importer, imported in imports.items():
        for name in imported:
            assert order.index(name) > order.index(importer), f"{importer} imports {name}"


def test_versions_agree():
    import tomllib

    import closeknit

    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        == closeknit.__version__
    )
