"""Imports point one way: nothing below imports anything above."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "closeknit"
LAYERS = [
    ["errors", "geometry", "metrics", "kernels", "charts", "model_files"],
    ["centers", "search", "analysis", "engine_modules", "stepping", "train_config", "determinism", "precision"],
    ["architecture", "halves", "torch_adamw"],
    ["blocks", "plain"],
    ["objectives", "data", "mistakes"],
    [
        "samplers",
        "catalogue",
        "report",
        "sentences",
        "mining",
        "tokens",
        "textcnn",
        "processes",
        "plots",
        "pages",
        "embedding_scores",
    ],
    ["encoder", "bare", "checkpoint", "tasks", "schedules", "surgery"],
    ["heads", "views", "engine", "rates", "failures", "finite"],
    ["graphs", "backward"],
    ["evaluation", "training", "card"],
    ["config", "progress"],
    ["model", "looping"],
    ["sentence_model"],
    ["fitting", "embedding", "embedding_suite"],
    ["multitask"],
    ["protocol", "runs", "estimators"],
    ["runners", "study"],
    ["plans"],
    ["comparison"],
    ["demo"],
    ["cli"],
    ["__main__", "__init__"],
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def module_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in it."""
    found: set[str] = set()
    depth = len(path.relative_to(SOURCE).parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.body:
                for child in ast.walk(inner):
                    child.level = 0  # imports for types only are not imports
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return found - {module_of(path)}


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SOURCE)) for p in FILES])
def test_nothing_imports_from_above(path):
    own = module_of(path)
    assert own in HEIGHT, f"{own} has no place in the layers"
    for other in imports(path) - {"__version__"}:
        if own != "__init__":
            assert HEIGHT[other] <= HEIGHT[own], f"{own} imports {other}, which stands above it"


@pytest.mark.parametrize(
    "name", ["metrics", "report", "data", "samplers", "errors", "cli", "search", "pages"]
)
def test_what_need_not_know_torch_does_not_import_it(name):
    import subprocess
    import sys

    code = f"import closeknit.{name}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_objectives_never_see_encoder_tokeniser_or_configuration():
    for path in (SOURCE / "objectives").glob("*.py"):
        assert imports(path) <= {"errors", "geometry", "centers"}, path.name


def test_there_is_no_drawer_for_odds_and_ends():
    assert not {"utils", "helpers", "common", "misc"} & {path.stem for path in FILES}
