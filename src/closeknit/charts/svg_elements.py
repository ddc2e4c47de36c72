"""The elements that the SVG charts share: the frame, texts, grid lines, and shortened names.

A colour is a number. The style sheet of the page says what the classes `.c0`, `.c1`, … (one per
objective or task) and `.k0`, `.k1`, … (one per class of the data) look like, in light and in dark.
All text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from closeknit.charts.axis import Axis, format_number

WIDTH = 340  # pixels; fits the screen of a phone, and a page shows several side by side
SERIES_COLOURS = 12  # colours `.c0` to `.c11`
LETTER_WIDTH = 6.3  # pixels, at the font size of axis labels


def svg_document(
    width: float,
    height: float,
    label: str,
    elements: Sequence[str],
    *,
    wide: bool = False,
    style: str = "chart",
    attributes: str = "",
) -> str:
    """One `<svg>` around the elements.

    `label` is what a screen reader says, `wide` lets the page scroll it.
    """
    return (
        f'<svg class="{style}{" wide" if wide else ""}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(label)}"{attributes}>'
        f"{''.join(elements)}</svg>"
    )


def text_element(
    x: float, y: float, content: str, style: str, *, title: str = "", attributes: str = ""
) -> str:
    """A text at a position; `title` is shown on hover where it says more than the text."""
    hover = f"<title>{escape(title)}</title>" if title and title != content else ""
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{attributes}>{hover}{escape(content)}</text>'
    )


def name_above(name: str) -> str:
    """The name of the vertical axis, in the top left corner."""
    return text_element(0, 11, name, "label start") if name else ""


def horizontal_grid(axis: Axis, left: float, width: float, *, percent: bool = False) -> str:
    """A line and a number for each tick of a vertical axis."""
    elements = []
    for tick in axis.ticks(5):
        y = axis(tick)
        number = f"{100 * tick:.0f} %" if percent else format_number(tick)
        elements.append(f'<path class="grid" d="M{left:.0f} {y:.1f}H{width:.0f}"/>')
        elements.append(text_element(left - 6, y + 4, number, "tick end"))
    return "".join(elements)


def shortened(name: str, letters: int = 16) -> str:
    """The name without its middle if it is long: similar names differ at their ends."""
    if len(name) <= letters:
        return name
    kept = letters - 1
    return f"{name[: kept - kept // 2].rstrip()}…{name[len(name) - kept // 2 :].lstrip()}"


def longest_name(names: Sequence[str]) -> int:
    """The number of letters of the longest name, after shortening."""
    return max((len(shortened(name)) for name in names), default=1)


def wrapped(name: str, letters: int) -> list[str]:
    """The name on at most three lines, broken at its underscores and spaces."""
    lines: list[str] = []
    for word in name.replace("_", " ").split():
        if lines and len(lines[-1]) + 1 + len(word) <= letters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [shortened(line, letters) for line in lines[:3]] or [""]
