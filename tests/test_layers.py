"""Imports point one way: nothing below imports anything above."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "closeknit"
LAYERS = [
    [
        "errors",
        "geometry",
        "metrics",
        "kernels",
        "charts",
        "progress",
        "random_streams",
        "json_lines",
    ],
    ["centers", "analysis", "halves", "stepping", "train_config", "devices"],
    ["blocks"],
    ["plain"],
    ["data"],
    ["objectives", "mistakes"],
    [
        "samplers",
        "report",
        "tokens",
        "tokenisers",
        "textcnn",
        "processes",
        "plots",
        "pages",
        "embedding_scores",
        "label_numbers",
        "python_inputs",
    ],
    ["study_statistics"],
    ["study_tables"],
    ["encoder", "bare", "checkpoint", "tasks", "schedules", "surgery"],
    ["heads", "views", "lean", "graphs", "rates"],
    ["evaluation", "training", "config"],
    ["looping", "models"],
    ["classification", "embeddings"],
    ["embedding_suite", "multitask", "studies"],
    ["demo"],
    ["cli"],
    ["__main__", "__init__"],
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def module_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, wherever in it; not those for types only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    depth = len(path.relative_to(SOURCE).parts)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.body
        for inner in ast.walk(child)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else []
        )
        if isinstance(node, ast.Import):
            found |= {name.split(".")[1] for name in names if name.startswith("closeknit.")}
        elif isinstance(node, ast.ImportFrom):
            package, _, rest = (node.module or "").partition(".")
            if node.level == depth:  # from ..data import x, from .. import data
                found |= {package} if package else set(names)
            elif node.level == 0 and package == "closeknit":
                found |= {rest.split(".")[0]} if rest else set(names)
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
    "name",
    [
        "metrics",
        "report",
        "data",
        "samplers",
        "errors",
        "cli",
        "json_lines",
        "pages",
        "studies.search",
        "studies.results",
    ],
)
def test_what_need_not_know_torch_does_not_import_it(name):
    import subprocess
    import sys

    code = f"import closeknit.{name}, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_objectives_never_see_encoder_tokeniser_or_configuration():
    for path in (SOURCE / "objectives").glob("*.py"):
        assert imports(path) <= {"errors"}, path.name


def test_there_is_no_drawer_for_odds_and_ends():
    assert not {"utils", "helpers", "common", "misc"} & {path.stem for path in FILES}
