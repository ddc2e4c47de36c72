"""`make new-objective` and the tutorial docs/add-an-objective.md, step by step, in a copy of the
repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "add-an-objective.md"
COPIED = ("Makefile", "README.md", "docs", "pyproject.toml", "src", "tests", "tools")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the repository, as far as the tutorial needs it."""
    ignored = shutil.ignore_patterns("__pycache__", "*.svg", "*.png")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def run(root: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def new_objective(root: Path, name: str) -> subprocess.CompletedProcess[str]:
    return run(root, [sys.executable, "tools/new_objective.py", name])


def apply_diff(path: Path, diff: str) -> None:
    """Replaces the lines with - by the lines with +; the lines with - must occur exactly once."""
    old = "".join(line[1:] + "\n" for line in diff.splitlines() if line.startswith("-"))
    new = "".join(line[1:] + "\n" for line in diff.splitlines() if line.startswith("+"))
    text = path.read_text(encoding="utf-8")
    assert old and new and text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def run_line(root: Path, line: str) -> None:
    """One line of a shell block of the tutorial; `# fails` says that it has to fail."""
    command, _, comment = line.partition("  # ")
    words = command.split()
    words = [sys.executable if word == "python" else word for word in words]
    if words[0] == "make":
        words.append(f"PYTHON={sys.executable}")
    done = run(root, words)
    assert (done.returncode != 0) == (comment == "fails"), f"{line}\n{done.stdout}\n{done.stderr}"
    if "pytest" in command and comment == "fails":
        assert "test_it_matches_the_formula" in done.stdout  # not for another reason


def test_the_steps_of_the_tutorial_work(copy):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    blocks = re.findall(
        r"^```(sh|diff)(?: (\S+))?\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.M | re.S
    )
    assert [kind for kind, _, _ in blocks].count("diff") == 4
    for kind, path, block in blocks:
        if kind == "diff":
            apply_diff(copy / path, block)
        else:
            for line in block.splitlines():
                run_line(copy, line)
    for test in ("tests/test_docs.py::test_every_objective_is_in_the_readme_and_has_a_section",
                 "tests/studies/test_search.py::test_there_is_a_space_for_every_joint_objective"):  # fmt: skip
        done = run(copy, [sys.executable, "-m", "pytest", "-q", test])
        assert done.returncode == 0, done.stdout
    changed = ["src/closeknit/objectives", "tests/objectives"]
    done = run(copy, [sys.executable, "-m", "ruff", "check", *changed])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "name", ["aaa_first", "zzz_last", "a_name_that_is_so_long_that_its_row_has_to_be_split"]
)
def test_the_table_keeps_its_format_wherever_the_name_sorts(copy, name):
    assert new_objective(copy, name).returncode == 0
    changed = ["src/closeknit/objectives/registry.py", f"src/closeknit/objectives/losses/{name}.py"]
    for command in (["check"], ["format", "--check", "--line-length", "100"]):
        done = run(copy, [sys.executable, "-m", "ruff", *command, *changed])
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("2nd", "write a Python name in lower case"),
        ("My_loss", "write a Python name in lower case"),
        ("my-loss", "write a Python name in lower case"),
        ("../outside", "write a Python name in lower case"),
        ("lambda", "write a Python name in lower case"),
        ("_private", "begin the name with a letter"),
        ("supcon", "has a supcon or Supcon already"),
        ("geometry", "geometry.py exists already"),
        ("encoder", "test_encoder.py exists already"),
        ("label_aware", "has a label_aware or LabelAware already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(copy, name, words):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    done = new_objective(copy, name)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_name_is_used_only_once(copy):
    assert new_objective(copy, "squared_angle").returncode == 0
    done = new_objective(copy, "squared_angle")
    assert done.returncode == 2 and "exists already" in done.stderr
