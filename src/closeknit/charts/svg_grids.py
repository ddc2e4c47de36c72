"""Heat maps and maps of points, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from closeknit.charts.axis import format_number
from closeknit.charts.svg_elements import (
    LETTER_WIDTH,
    WIDTH,
    longest_name,
    shortened,
    svg_document,
    text_element,
)

Floats = npt.NDArray[np.float64]

CLASS_COLOURS = 8  # `.k0` to `.k7`; each comes in several shapes
SHAPES = 4
SMALLEST_SHOWN = 0.0005  # a smaller value counts as an empty cell of a heat map
MAP_SIDE = 340.0
MAP_MARGIN = 12.0


def heat_map(
    values: Floats,
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    *,
    confusion: bool = False,
) -> str:
    """Values from 0 to 1 as shades, from the smallest above 0 to the largest.

    Values near 0 are not drawn.

    With `confusion` the values are shares of their row. The diagonal has another colour than the
    rest, and small shares off the diagonal are shaded strongly, because a mistake of a few per
    cent is what a reader looks for.
    """
    side = _cell_side(len(rows))
    letters = longest_name((*rows, *columns))
    left = 10 + LETTER_WIDTH * letters
    top = 12 + 0.75 * LETTER_WIDTH * letters
    width = left + side * len(columns) + 0.7 * LETTER_WIDTH * letters
    height = top + side * len(rows) + 4
    elements = [
        f'<rect class="field" x="{left:.1f}" y="{top:.1f}" '
        f'width="{side * len(columns):.1f}" height="{side * len(rows):.1f}"/>',
        *_heat_map_names(rows, columns, left, top, side),
    ]
    shown = np.nan_to_num(values) >= SMALLEST_SHOWN
    shades = (
        _confusion_shades(values, rows, columns) if confusion else _linear_shades(values, shown)
    )
    for i, j in zip(*np.nonzero(shown), strict=True):
        x = left + side * j
        y = top + side * i
        value = float(values[i, j])
        elements += _heat_map_cell(
            x, y, side, value, float(shades[i, j]), rows[i], columns[j], confusion=confusion
        )
    return svg_document(width, height, label, elements, wide=width > WIDTH + 20)


def _cell_side(rows: int) -> float:
    """The side of a cell in pixels: the more rows, the smaller."""
    if rows <= 4:
        return 46.0
    if rows <= 8:
        return 34.0
    return 24.0 if rows <= 14 else 17.0


def _heat_map_names(
    rows: Sequence[str], columns: Sequence[str], left: float, top: float, side: float
) -> list[str]:
    """The names of the rows on the left, and those of the columns above, turned."""
    elements = []
    for i, name in enumerate(rows):
        y = top + side * (i + 0.5) + 4
        elements.append(text_element(left - 6, y, shortened(name), "label end", title=name))
    for j, name in enumerate(columns):
        x = left + side * (j + 0.5) + 3
        y = top - 6
        turned = f' transform="rotate(-45 {x:.1f} {y:.1f})"'
        elements.append(
            text_element(x, y, shortened(name), "label start", title=name, attributes=turned)
        )
    return elements


def _linear_shades(values: Floats, shown: npt.NDArray[np.bool_]) -> Floats:
    """Opacities from 0.1 for the smallest shown value to 1 for the largest."""
    low, high = (
        (float(values[shown].min()), float(values[shown].max())) if shown.any() else (0.0, 1.0)
    )
    if high <= low:
        return np.ones_like(values)
    return np.asarray(0.1 + 0.9 * (values - low) / (high - low), dtype=np.float64)


def _confusion_shades(values: Floats, rows: Sequence[str], columns: Sequence[str]) -> Floats:
    """Opacities of a confusion matrix: the share itself on the diagonal, more elsewhere."""
    right = np.array([[row == column for column in columns] for row in rows], dtype=bool)
    return np.where(right, values, np.minimum(1.0, np.maximum(values, 0.0) ** 0.6))


def _heat_map_cell(
    x: float,
    y: float,
    side: float,
    value: float,
    shade: float,
    row: str,
    column: str,
    *,
    confusion: bool,
) -> list[str]:
    if confusion:
        style = "cell right" if row == column else "cell wrong"
        hover = f"{row} → {column}: {100 * value:.1f} %"
        number = f"{100 * value:.0f}"
    else:
        style = "cell"
        hover = f"{row}, {column}: {format_number(value, 2)}"
        number = format_number(value, 2).lstrip("0").replace("1.00", "1")
    elements = [
        f'<rect class="{style}" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.0f}" '
        f'height="{side - 1:.0f}" fill-opacity="{shade:.2f}"><title>{escape(hover)}</title></rect>'
    ]
    if side >= 24 and value >= 0.005:
        on_dark = " on" if shade > 0.55 else ""
        elements.append(text_element(x + side / 2, y + side / 2 + 4, number, f"value{on_dark}"))
    return elements


def point_map(points: Floats, kinds: Sequence[int], marked: Sequence[bool], label: str) -> str:
    """A scatter plot of points (n, 2) with colours and shapes by kind, and rings on marked points.

    Point i has the attribute `data-i`, by which the page finds its text.
    """
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (MAP_SIDE - 2 * MAP_MARGIN) / max(float((high - low).max()), 1e-9)
    middle = (low + high) / 2
    elements = [
        f'<rect class="field" x="0" y="0" width="{MAP_SIDE:.0f}" height="{MAP_SIDE:.0f}" rx="8"/>'
    ]
    for i, (point, kind) in enumerate(zip(points, kinds, strict=True)):
        x, y = ((point - middle) * scale + MAP_SIDE / 2).tolist()
        style = f"p k{kind % CLASS_COLOURS}" + (" bad" if marked[i] else "")
        outline = _shape(kind // CLASS_COLOURS % SHAPES, x, MAP_SIDE - y)
        elements.append(f'<path class="{style}" data-i="{i}" data-k="{kind}" d="{outline}"/>')
    return svg_document(
        MAP_SIDE, MAP_SIDE, label, elements, style="map", attributes=' tabindex="0"'
    )


def marker(kind: int) -> str:
    """The sign of a kind in a map of points, for its legend."""
    outline = _shape(kind // CLASS_COLOURS % SHAPES, 6, 6)
    return (
        f'<svg class="sign" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">'
        f'<path class="p k{kind % CLASS_COLOURS}" d="{outline}"/></svg>'
    )


def _shape(shape: int, x: float, y: float) -> str:
    """The outline of a circle, square, triangle or diamond, all of about the same area."""
    if shape == 0:
        return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0-8 0"
    if shape == 1:
        return f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7z"
    if shape == 2:
        return f"M{x:.1f} {y - 5:.1f}l5 8.6h-10z"
    return f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5-5z"
