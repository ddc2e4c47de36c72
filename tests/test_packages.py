"""The shape of the package: few files at the top, small packages, and imports that stay quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "closeknit"
FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)

MOST_FILES_AT_THE_TOP = 8
MOST_PACKAGES = 15
MOST_PACKAGES_WITHIN_PACKAGES = 3
MOST_FILES_IN_A_PACKAGE = 14
MOST_LINES_IN_A_FILE = 450
MOST_LINES_IN_A_FUNCTION = 60


@pytest.mark.parametrize(
    "name",
    [
        "cli",
        "data",
        "data.splits",
        "embeddings.score_tables",
        "embeddings.scores",
        "errors",
        "json_lines",
        "metrics",
        "reports.multitask_page",
        "reports.study_page",
        "settings",
        "studies.search",
        "studies.statistics",
        "training.config",
    ],
)
def test_what_needs_no_torch_does_not_import_it(name):
    code = f"import closeknit.{name}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_there_is_no_drawer_for_odds_and_ends():
    assert not {"utils", "helpers", "common", "misc"} & {path.stem for path in FILES}


def test_few_files_lie_at_the_top():
    at_the_top = [path.name for path in FILES if path.parent == SOURCE]
    assert len(at_the_top) <= MOST_FILES_AT_THE_TOP, at_the_top


def test_there_are_few_packages_and_none_is_large():
    at_the_top = [package.name for package in PACKAGES if package.parent == SOURCE]
    within = [package.name for package in PACKAGES if package.parent != SOURCE]
    assert len(at_the_top) <= MOST_PACKAGES, at_the_top
    assert len(within) <= MOST_PACKAGES_WITHIN_PACKAGES, within
    for package in PACKAGES:
        files = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES_IN_A_PACKAGE, (package.name, files)


def test_files_and_functions_can_be_read_in_one_sitting():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= MOST_LINES_IN_A_FILE, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.body[0].lineno + 1
                assert lines <= MOST_LINES_IN_A_FUNCTION, (
                    f"{path.name}: {node.name} has {lines} lines"
                )


def test_every_module_and_every_public_function_says_what_it_gives():
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.name != "__main__.py":
            assert ast.get_docstring(tree), f"{path.relative_to(SOURCE)} has no docstring"
