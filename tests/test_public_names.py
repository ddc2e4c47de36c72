"""Which names users may import, and that the examples import no others."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import closeknit

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PUBLIC_MODULES = {
    "closeknit",
    "closeknit.objectives",
    "closeknit.metrics",
    "closeknit.data",
}
PUBLIC_NAMES = {
    # estimators
    "MultiTask",
    "SentenceEncoder",
    "TextClassifier",
    # what a classifier confuses
    "LabelRelations",
    "relate_labels",
    # data and encoders
    "Encoder",
    "Examples",
    "encode_texts",
    "load",
    "load_encoder",
    # the training loop
    "Batch",
    "Step",
    "Task",
    "make_task",
    "predict_logits",
    "train",
    # objectives
    "Joint",
    "OBJECTIVES",
    "Term",
    # settings
    "DataConfig",
    "EmbeddingConfig",
    "EncoderConfig",
    "MethodConfig",
    "MultiTaskConfig",
    "ObjectiveConfig",
    "RunConfig",
    "TrainConfig",
    # studies
    "Place",
    "Result",
    "Source",
    "Study",
    "read_study",
    "run_study",
    # errors
    "CloseknitError",
    "ConfigError",
    "DataError",
    "MissingExtra",
    "ModelError",
    "Stopped",
    "TrainingError",
}


def test_the_public_names_are_these():
    assert set(closeknit.__all__) == PUBLIC_NAMES
    assert dir(closeknit) == sorted(dir(closeknit))
    assert set(dir(closeknit)) >= PUBLIC_NAMES


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_every_public_name_is_documented(name):
    value = getattr(closeknit, name)
    if name != "OBJECTIVES":  # a table
        assert callable(value), f"closeknit.{name} is a module, and no class or function"
        assert (value.__doc__ or "").strip(), f"closeknit.{name} has no docstring"
        assert not value.__doc__.startswith(f"{name}("), (
            f"closeknit.{name} has an automatic docstring"
        )


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'TextClasifier'"):
        _ = closeknit.TextClasifier


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(closeknit.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen: dict[str, str] = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for imported in statement.names:
            assert imported.asname == imported.name, "only `name as name` is a public import"
            seen[imported.name] = statement.module.removeprefix("closeknit.")
    assert seen == closeknit._MODULES


def test_importing_the_package_imports_no_other_library():
    heavy = {"torch", "transformers", "numpy", "sklearn", "scipy", "typer", "rich"}
    code = f"import closeknit, sys; sys.exit(' '.join({heavy!r} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def imported_names(path: Path) -> list[tuple[str, str]]:
    """The module and the name of every import from Closeknit in a file."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "closeknit":
            found += [(node.module, imported.name) for imported in node.names]
        if isinstance(node, ast.Import):
            names = [imported.name for imported in node.names]
            found += [(name, "") for name in names if name.split(".")[0] == "closeknit"]
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_examples_import_public_names_only(path):
    imports = imported_names(path)
    assert imports, "an example that does not use Closeknit"
    for module, name in imports:
        assert module in PUBLIC_MODULES, f"{module} is not public"
        if module == "closeknit" and name:
            assert name in PUBLIC_NAMES, f"closeknit.{name} is not public"
        assert not name.startswith("_"), f"{module}.{name} is not public"
