"""Charts with axes as SVG text: box plots, curves, histograms, bars and comparisons of two values.

Every function returns one `<svg>`. It needs no library, takes its colours from the style sheet of
the page, and is readable at the width of a phone. A `label` is what a screen reader says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from closeknit.charts.axis import Axis, axis_for, format_number
from closeknit.charts.svg_elements import (
    LETTER_WIDTH,
    WIDTH,
    horizontal_grid,
    longest_name,
    name_above,
    shortened,
    svg_document,
    text_element,
    wrapped,
)

LEAST_TICK_DISTANCE = 30  # pixels between the numbers below a chart; a closer one is not written
BOX_LEFT = 50  # pixels left of the first box of a box plot
LEAST_BOX_SLOT = 66.0  # pixels that a box and its name have


@dataclass(frozen=True)
class Group:
    """One box of a box plot: a value for each named run."""

    name: str
    colour: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """Points in the order of x, with an optional interval and an optional text for each."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    notes: Sequence[str] = ()


# ---------------------------------------------------------------- box plots


def box_plot(groups: Sequence[Group], label: str, y_name: str = "") -> str:
    """A box for each group, with all its points; thin lines join the points of the same run."""
    slot = max(LEAST_BOX_SLOT, (WIDTH - 56) / max(len(groups), 1))
    width = BOX_LEFT + slot * len(groups)
    top, bottom = 36.0, 214.0
    axis = axis_for([value for group in groups for value in group.values.values()], bottom, top)
    centres = [BOX_LEFT + slot * (i + 0.5) for i in range(len(groups))]

    elements = [horizontal_grid(axis, 46, width), name_above(y_name)]
    for i, (left, right) in enumerate(itertools.pairwise(groups)):
        elements += _run_lines(left, right, centres[i], centres[i + 1], axis)
    lines_of_names = 1
    for x, group in zip(centres, groups, strict=True):
        elements += [f'<g class="c{group.colour}">', *_box(x, axis, group), "</g>"]
        name_lines = wrapped(group.name, int(slot / LETTER_WIDTH))
        lines_of_names = max(lines_of_names, len(name_lines))
        for number, line in enumerate(name_lines):
            elements.append(text_element(x, bottom + 20 + 14 * number, line, "label"))
    height = bottom + 14 + 14 * lines_of_names
    return svg_document(width, height, label, elements, wide=width > WIDTH + 20)


def _run_lines(
    left: Group, right: Group, left_centre: float, right_centre: float, axis: Axis
) -> list[str]:
    """A thin line for each run that both groups have."""
    elements = []
    for run in left.values:
        if run in right.values:
            start, end = axis(left.values[run]), axis(right.values[run])
            path = f"M{left_centre:.1f} {start:.1f}L{right_centre:.1f} {end:.1f}"
            elements.append(f'<path class="pair" d="{path}"/>')
    return elements


def _box(x: float, axis: Axis, group: Group) -> list[str]:
    """The box from the first to the third quartile, its whiskers, the points and the mean above."""
    values = sorted(group.values.values())
    if not values:
        return []
    elements = []
    if len(values) > 2:
        quartiles = np.quantile(values, (0.25, 0.5, 0.75))
        first, median, third = (axis(float(quartile)) for quartile in quartiles)
        elements += [
            f'<path class="whisker" d="M{x:.1f} {axis(values[0]):.1f}V{axis(values[-1]):.1f}"/>',
            f'<rect class="box" x="{x - 17:.1f}" y="{third:.1f}" width="34" '
            f'height="{first - third:.1f}" rx="3"/>',
            f'<path class="median" d="M{x - 17:.1f} {median:.1f}h34"/>',
        ]
    for run, value in group.values.items():
        hover = f"{group.name}, {run}: {format_number(value, 2)}"
        elements.append(_dot(x, axis(value), 3, hover))
    mean = float(np.mean(values))
    above = axis(values[-1]) - 8
    hover = f"mean {format_number(mean, 2)}"
    elements.append(text_element(x, above, format_number(mean, 1), "value", title=hover))
    return elements


def _dot(x: float, y: float, radius: float, hover: str) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(hover)}</title></circle>'


# ---------------------------------------------------------------- curves


def line_chart(
    curves: Sequence[Curve],
    label: str,
    *,
    x_name: str = "",
    y_name: str = "",
    log_x: bool = False,
    log_y: bool = False,
    zero_line: bool = False,
    joined: bool = True,
    ticks: Sequence[float] = (),
) -> str:
    """Curves with a band for their intervals; with `joined=False` single points with whiskers.

    `zero_line` draws a dashed line at 0. `ticks` are the values written below the chart; without
    them round numbers are chosen.
    """
    width = WIDTH
    height = 232
    left = 46.0
    top = 24.0
    bottom = 190.0
    x_axis = axis_for([x for curve in curves for x in curve.x], left + 6, width - 12, log=log_x)
    y_values = [y for curve in curves for y in (*curve.y, *curve.low, *curve.high)]
    y_axis = axis_for(y_values, bottom, top, log=log_y, include_zero=zero_line)

    elements = [horizontal_grid(y_axis, left, width), name_above(y_name)]
    last = -math.inf
    for tick in ticks or x_axis.ticks(5):
        x = x_axis(tick)
        if x - last >= LEAST_TICK_DISTANCE:
            elements.append(text_element(x, bottom + 17, format_number(tick), "tick"))
            last = x
    elements.append(text_element((left + width) / 2, bottom + 35, x_name, "label"))
    if zero_line:
        elements.append(f'<path class="zero" d="M{left:.0f} {y_axis(0.0):.1f}H{width}"/>')
    for curve in curves:
        drawn = (
            _joined_curve(curve, x_axis, y_axis)
            if joined
            else _single_points(curve, x_axis, y_axis)
        )
        elements += [f'<g class="c{curve.colour}">', *drawn, "</g>"]
    return svg_document(width, height, label, elements)


def _joined_curve(curve: Curve, x_axis: Axis, y_axis: Axis) -> list[str]:
    """The band of the intervals, the line, and a dot for each point."""
    points = [(x_axis(x), y_axis(y)) for x, y in zip(curve.x, curve.y, strict=True)]
    elements = []
    if curve.low:
        upper = [
            f"{x_axis(x):.1f} {y_axis(y):.1f}" for x, y in zip(curve.x, curve.high, strict=True)
        ]
        lower = [
            f"{x_axis(x):.1f} {y_axis(y):.1f}" for x, y in zip(curve.x, curve.low, strict=True)
        ]
        outline = "L".join([*upper, *reversed(lower)])
        elements.append(f'<path class="band" d="M{outline}Z"/>')
    if len(points) > 1:
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        elements.append(f'<path class="line" d="M{path}"/>')
    for i, (x, y) in enumerate(points):
        elements.append(_dot(x, y, 2.5, _note(curve, i)))
    return elements


def _single_points(curve: Curve, x_axis: Axis, y_axis: Axis) -> list[str]:
    """A dot for each point, with a whisker where its interval is finite."""
    elements = []
    intervals = zip(curve.x, curve.low, curve.high, strict=True) if curve.low else ()
    for x, low, high in intervals:
        if math.isfinite(low) and math.isfinite(high):
            path = f"M{x_axis(x):.1f} {y_axis(low):.1f}V{y_axis(high):.1f}"
            elements.append(f'<path class="whisker" d="{path}"/>')
    for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
        elements.append(_dot(x_axis(x), y_axis(y), 4, _note(curve, i)))
    return elements


def _note(curve: Curve, point: int) -> str:
    if curve.notes:
        return curve.notes[point]
    return f"{curve.name}: {format_number(curve.y[point])} at {format_number(curve.x[point])}"


# ---------------------------------------------------------------- histograms and bars


def histogram(
    series: Sequence[tuple[str, str, Sequence[float]]],
    edges: Sequence[float],
    label: str,
    x_name: str = "",
) -> str:
    """Shares in bins between edges, one area per series of (name, CSS class, shares)."""
    width = WIDTH
    height = 190
    left = 46.0
    top = 24.0
    bottom = 150.0
    x_axis = Axis(edges[0], edges[-1], left, width - 10)
    highest = max((max(shares, default=0) for _, _, shares in series), default=0)
    y_axis = Axis(0.0, max(highest, 1e-9), bottom, top)

    elements = [horizontal_grid(y_axis, left, width, percent=True)]
    for name, style, shares in series:
        steps = [f"M{x_axis(edges[0]):.1f} {bottom:.1f}"]
        for share, right_edge in zip(shares, edges[1:], strict=True):
            steps.append(f"V{y_axis(share):.1f}H{x_axis(right_edge):.1f}")
        outline = "".join(steps) + f"V{bottom:.1f}"
        elements.append(
            f'<path class="area {style}" d="{outline}"><title>{escape(name)}</title></path>'
        )
    for tick in x_axis.ticks(5):
        elements.append(text_element(x_axis(tick), bottom + 17, format_number(tick), "tick"))
    elements.append(text_element((left + width) / 2, bottom + 35, x_name, "label"))
    return svg_document(width, height, label, elements)


def bars(names: Sequence[str], values: Sequence[float], colour: int, label: str) -> str:
    """Horizontal bars of shares, in the given order."""
    left = 12 + LETTER_WIDTH * longest_name(names)
    width = float(WIDTH)
    row_height = 24.0
    axis = Axis(0.0, max(max(values, default=0.0), 1e-9), left, width - 46)

    elements = [f'<g class="c{colour}">']
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 4 + row_height * i
        length = max(axis(max(value, 0.0)) - left, 1.0)
        percent = f"{100 * value:.0f} %"
        elements.append(text_element(left - 6, y + 15, shortened(name), "label end", title=name))
        elements.append(
            f'<rect class="fill" x="{left:.1f}" y="{y + 3:.1f}" width="{length:.1f}" '
            f'height="15" rx="2">'
            f"<title>{escape(name)}: {percent}</title></rect>"
        )
        elements.append(text_element(left + length + 5, y + 15, percent, "value start"))
    elements.append("</g>")
    return svg_document(width, 8 + row_height * len(names), label, elements)


# ---------------------------------------------------------------- two values


def dumbbell(
    names: Sequence[str],
    before: Sequence[float],
    after: Sequence[float],
    colour: int,
    label: str,
    notes: Sequence[str] = (),
) -> str:
    """One row per name: a hollow dot before, a full dot after, and their difference."""
    left = 12 + LETTER_WIDTH * longest_name(names)
    width = float(WIDTH)
    row_height = 22.0
    axis = axis_for([*before, *after], left + 6, width - 46)
    bottom = 8 + row_height * len(names)

    elements = []
    for tick in axis.ticks(4):
        x = axis(tick)
        elements.append(f'<path class="grid" d="M{x:.1f} 4V{bottom:.1f}"/>')
        elements.append(text_element(x, bottom + 16, format_number(tick), "tick"))
    for i, (name, old, new) in enumerate(zip(names, before, after, strict=True)):
        y = 8 + row_height * (i + 0.5)
        note = notes[i] if notes else f"{name}: {format_number(old, 1)} → {format_number(new, 1)}"
        direction = "up" if new > old else "down" if new < old else ""
        difference = format_number(new - old, 1, sign=True)
        elements.append(text_element(left - 6, y + 4, shortened(name), "label end", title=name))
        elements.append(
            f'<g class="c{colour}"><title>{escape(note)}</title>'
            f'<path class="bar {direction}" d="M{axis(old):.1f} {y:.1f}H{axis(new):.1f}"/>'
            f'<circle class="hollow" cx="{axis(old):.1f}" cy="{y:.1f}" r="4"/>'
            f'<circle class="dot" cx="{axis(new):.1f}" cy="{y:.1f}" r="4.5"/></g>'
        )
        elements.append(text_element(width - 2, y + 4, difference, f"value end {direction}"))
    return svg_document(width, bottom + 24, label, elements)


def interval(mean: float, low: float, high: float, reach: float, colour: int) -> str:
    """A mean with its interval, on an axis from -reach to reach with a line at 0.

    It fits into a cell of a table.
    """
    axis = Axis(-reach, reach, 4, 116)
    start, end = (axis(max(-reach, min(reach, value))) for value in (low, high))
    bounds = f"{format_number(low, 2, sign=True)} to {format_number(high, 2, sign=True)}"
    hover = escape(f"{format_number(mean, 2, sign=True)} ({bounds})")
    elements = [
        '<path class="zero" d="M60 1V19"/>',
        f'<g class="c{colour}"><title>{hover}</title><path class="whisker" d="M{start:.1f} 10H{end:.1f}"/>',
        f'<circle class="dot" cx="{axis(mean):.1f}" cy="10" r="4"/></g>',
    ]
    return svg_document(120, 20, hover, elements, style="spark")
