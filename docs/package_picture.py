"""The picture of the packages: which package imports which, read from the source."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "closeknit"

# What a package or a file at the top is for, in a few words.
PHRASES = {
    "cli": "the command line",
    "reports": "HTML reports",
    "studies": "objectives compared on the same folds",
    "multitask": "one encoder for several tasks",
    "classification": "text classifiers",
    "embeddings": "sentence encoders",
    "models": "what all saved models share",
    "training": "the training loop",
    "acceleration": "faster passes and updates",
    "encoders": "texts become vectors",
    "objectives": "what a training makes smaller",
    "data": "texts, labels, splits",
    "charts": "SVG and PNG",
    "settings": "settings, declared once",
    "storage": "files of tensors and facts",
    "console": "messages and progress",
    "json_lines": "one JSON object per line",
    "metrics": "scores",
    "errors": "the errors a user can act on",
}

CAPTION = (
    "A dot: the package at the left imports the package above the column. A square: the package itself.",
    "One shaded block is one layer. Its packages do not import each other, and no package imports one above it.",
)

ROW, BAND_GAP = 26, 8
NAMES_LEFT, PHRASES_LEFT, MATRIX_LEFT, COLUMN = 20, 136, 386, 30
HEADER = 112
INK, SOFT, FILL, ACCENT = "#22313a", "#5b6770", "#f3f5f6", "#c8553d"


def layers() -> list[list[str]]:
    """The packages and the files at the top, layer by layer, as import-linter checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["type"] == "layers"]
    found = [[name.strip() for name in line.split("|")] for line in contract["layers"]]
    return [names for names in found if names != ["__main__"]]


def imports() -> dict[str, set[str]]:
    """The packages and top files that each package or top file imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE)
        importer = inside.parts[0].removesuffix(".py")
        if importer in ("__init__", "__main__"):
            continue
        names = set(_imported(ast.parse(path.read_text(encoding="utf-8"))))
        found.setdefault(importer, set()).update(names - {importer})
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    """The first part below `closeknit` of all that is imported, but not for type checkers only."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for statement in node.orelse:
            yield from _imported(statement)
        return
    if isinstance(node, ast.ImportFrom):
        package, _, rest = (node.module or "").partition(".")
        if package == "closeknit":
            names = [rest.split(".")[0]] if rest else [one.name for one in node.names]
            yield from (name for name in names if not name.startswith("__"))
    if isinstance(node, ast.Import):
        for one in node.names:
            if one.name.startswith("closeknit."):
                yield one.name.split(".")[1]
    for child in ast.iter_child_nodes(node):
        yield from _imported(child)


def packages(style: str) -> str:
    """The picture as SVG: one row per package, and a dot for every package that it imports."""
    known = imports()
    bands = layers()
    order = [name for band in bands for name in band]
    width = MATRIX_LEFT + len(order) * COLUMN + 70
    height = HEADER + len(order) * ROW + len(bands) * BAND_GAP + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Which package imports which" font-family="Helvetica, Arial, sans-serif">',
        style,
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    parts += [_header(column, name) for column, name in enumerate(order)]
    y = HEADER
    row = 0
    for band in bands:
        parts.append(
            f'<rect x="8" y="{y}" width="{width - 78}" height="{len(band) * ROW}" rx="6" '
            f'fill="{FILL}"/>'
        )
        for name in band:
            parts += _row(row, name, y, order, known.get(name, set()))
            y += ROW
            row += 1
        y += BAND_GAP
    for line, sentence in enumerate(CAPTION):
        parts.append(
            f'<text x="{NAMES_LEFT}" y="{y + 18 + 18 * line}" font-size="12" '
            f'fill="{SOFT}">{escape(sentence)}</text>'
        )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _centre(column: int) -> float:
    return MATRIX_LEFT + (column + 0.5) * COLUMN


def _header(column: int, name: str) -> str:
    x = _centre(column)
    y = HEADER - 8
    return (
        f'<text x="{x}" y="{y}" font-size="12" fill="{SOFT}" '
        f'transform="rotate(-55 {x} {y})">{escape(name)}</text>'
    )


def _row(row: int, name: str, y: int, order: list[str], imported: set[str]) -> list[str]:
    middle = y + ROW / 2
    x = _centre(row)
    parts = [
        f'<text x="{NAMES_LEFT}" y="{middle + 4.5}" font-size="13" font-weight="600" '
        f'fill="{INK}">{escape(name)}</text>',
        f'<text x="{PHRASES_LEFT}" y="{middle + 4.5}" font-size="12" '
        f'fill="{SOFT}">{escape(PHRASES.get(name, ""))}</text>',
        f'<rect x="{x - 6}" y="{middle - 6}" width="12" height="12" rx="2" fill="#9aa5ab"/>',
    ]
    parts += [
        f'<circle cx="{_centre(column)}" cy="{middle}" r="5" '
        f'fill="{INK if column > row else ACCENT}"/>'
        for column, other in enumerate(order)
        if other in imported
    ]
    return parts
