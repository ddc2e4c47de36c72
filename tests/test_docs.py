"""What the documents say of files, settings, commands and objectives is so."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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


def test_the_architecture_page_names_every_file():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for path in (ROOT / "src" / "closeknit").iterdir():
        if path.suffix == ".py" and not path.stem.startswith("__"):
            assert f"`{path.stem}`" in page, path.name


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
    assert (tmp_path / "dataflow.svg").read_text() == (
        ROOT / "docs" / "images" / "dataflow.svg"
    ).read_text()
    drawn, kept = (
        (folder / "objectives.svg").read_text() for folder in (tmp_path, ROOT / "docs" / "images")
    )
    assert re.sub(r"[\d.]+", "", drawn) == re.sub(
        r"[\d.]+", "", kept
    )  # the last digits may differ between machines


def test_versions_agree():
    import tomllib

    import closeknit

    assert (
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        == closeknit.__version__
    )
