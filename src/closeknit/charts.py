"""Charts as SVG text: no library, coloured by the page's style sheet, legible at the width of a phone.

A colour is a number: the page says what `.c0`, `.c1`, ... (objectives) and `.k0`, `.k1`, ... (classes)
look like, in light and in dark. Every function returns one `<svg>` whose text is escaped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH = 340  # fits a phone between its margins; the page lays several side by side
HUES = 12  # of objectives
COLOURS = 8  # of classes, each in several shapes
SHAPES = 4
_LETTER = 6.3  # width of a letter at the size of axis labels


@dataclass(frozen=True)
class Group:
    """One box of a box plot: a value for each named run."""

    name: str
    colour: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """Points in the order of x, perhaps with an interval around each."""

    name: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    notes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Axis:
    """Values between low and high on pixels between start and end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(value) if self.log else value
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers inside the axis: steps of 1, 2 or 5 times a power of ten."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for digits in ((1,), (1, 3), (1, 2, 5)):
                found = [d * 10.0**p for p in powers for d in digits if self._holds(d * 10.0**p)]
                if len(found) >= 3:
                    return found
            return sorted({self.low, self.high})
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _holds(self, value: float) -> bool:
        return self.low * 0.999 <= value <= self.high * 1.001


def axis_for(
    values: Sequence[float], start: float, end: float, *, log: bool = False, zero: bool = False
) -> Axis:
    """An axis around the finite values, with a little air; `zero` makes it hold 0."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(finite), max(finite)
    if log:
        spread = max((high / low) ** 0.06, 1.05)
        return Axis(low / spread, high * spread, start, end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    air = 0.06 * (high - low) or max(abs(high) * 0.02, 0.5)
    return Axis(low - air, high + air, start, end)


def number(value: float, digits: int | None = None, *, sign: bool = False) -> str:
    """A number with a real minus sign; without `digits` as short as it can be said."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if digits is not None:
        text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
        if float(text) == 0.0:
            text = text.lstrip("+-")
    elif abs(value) >= 1_000 and value == round(value):
        text = f"{value:,.0f}" if abs(value) < 100_000 else f"{value / 1000:,.4g}k"
    else:
        text = f"{value:{'+' if sign else ''}.4g}"
    return text.replace("-", "−")


def box_plot(groups: Sequence[Group], label: str, y_name: str = "") -> str:
    """A box a group with all its points; points of the same run are joined by a thin line."""
    slot = max(66.0, (WIDTH - 56) / max(len(groups), 1))
    width, top, bottom = 50 + slot * len(groups), 36.0, 214.0
    axis = axis_for([v for g in groups for v in g.values.values()], bottom, top)
    centre = [50 + slot * (i + 0.5) for i in range(len(groups))]
    parts = [_grid(axis, 46, width), _name_above(y_name)]
    for i, (left, right) in enumerate(itertools.pairwise(groups)):
        for run in (run for run in left.values if run in right.values):
            a, b = axis(left.values[run]), axis(right.values[run])
            parts.append(f'<path class="pair" d="M{centre[i]:.1f} {a:.1f}L{centre[i + 1]:.1f} {b:.1f}"/>')
    for x, group in zip(centre, groups, strict=True):
        parts += [f'<g class="c{group.colour}">', *_box(x, axis, group), "</g>"]
        for line, words in enumerate(_broken(group.name, int(slot / _LETTER))):
            parts.append(_text(x, bottom + 20 + 14 * line, words, "label"))
    lines = max((len(_broken(g.name, int(slot / _LETTER))) for g in groups), default=1)
    return _svg(width, bottom + 14 + 14 * lines, label, parts, wide=width > WIDTH + 20)


def line_chart(
    curves: Sequence[Curve],
    label: str,
    *,
    x_name: str = "",
    y_name: str = "",
    log_x: bool = False,
    log_y: bool = False,
    zero: bool = False,
    joined: bool = True,
    ticks: Sequence[float] = (),
) -> str:
    """Curves with bands, or with `joined` off points with whiskers; `zero` draws a line at 0.

    `ticks` are the values written below, where round numbers would not do.
    """
    width, height, left, top, bottom = WIDTH, 232, 46.0, 24.0, 190.0
    x_axis = axis_for([x for c in curves for x in c.x], left + 6, width - 12, log=log_x)
    heights = [y for c in curves for y in (*c.y, *c.low, *c.high)]
    y_axis = axis_for(heights, bottom, top, log=log_y, zero=zero)
    parts = [_grid(y_axis, left, width), _name_above(y_name)]
    last = -math.inf
    for tick in ticks or x_axis.ticks(5):
        x = x_axis(tick)
        if x - last >= 30:  # one that would run into the one before is left out
            parts.append(_text(x, bottom + 17, number(tick), "tick"))
            last = x
    parts.append(_text((left + width) / 2, bottom + 35, x_name, "label"))
    if zero:
        y = y_axis(0.0)
        parts.append(f'<path class="zero" d="M{left:.0f} {y:.1f}H{width}"/>')
    for curve in curves:
        parts += [f'<g class="c{curve.colour}">', *_curve(curve, x_axis, y_axis, joined), "</g>"]
    return _svg(width, height, label, parts)


def histogram(
    series: Sequence[tuple[str, str, Sequence[float]]], edges: Sequence[float], label: str, x_name: str = ""
) -> str:
    """Shares in bins, one stepped area each: (name, its CSS class, shares) over the bin edges."""
    width, height, left, top, bottom = WIDTH, 190, 46.0, 24.0, 150.0
    x_axis = Axis(edges[0], edges[-1], left, width - 10)
    y_axis = Axis(0.0, max(max((max(v, default=0) for _, _, v in series), default=0), 1e-9), bottom, top)
    parts = [_grid(y_axis, left, width, percent=True)]
    for name, style, shares in series:
        steps = [f"M{x_axis(edges[0]):.1f} {bottom:.1f}"]
        for share, end in zip(shares, edges[1:], strict=True):
            steps.append(f"V{y_axis(share):.1f}H{x_axis(end):.1f}")
        outline = "".join(steps) + f"V{bottom:.1f}"
        parts.append(f'<path class="area {style}" d="{outline}"><title>{escape(name)}</title></path>')
    parts += [_text(x_axis(t), bottom + 17, number(t), "tick") for t in x_axis.ticks(5)]
    parts.append(_text((left + width) / 2, bottom + 35, x_name, "label"))
    return _svg(width, height, label, parts)


def heat_map(
    values: Floats, rows: Sequence[str], columns: Sequence[str], label: str, *, confusion: bool = False
) -> str:
    """Values from 0 to 1 as shades, from the smallest above 0 to the largest; empty cells are left out.

    With `confusion` values are shares of a row, the diagonal has its own colour, and the shades of the
    rest grow fast, for a mistake of a few per cent is what one looks for.
    """
    side = 46.0 if len(rows) <= 4 else 34.0 if len(rows) <= 8 else 24.0 if len(rows) <= 14 else 17.0
    longest = max((len(_short(name)) for name in (*rows, *columns)), default=1)
    left, top = 10 + _LETTER * longest, 12 + 0.75 * _LETTER * longest
    width, height = left + side * len(columns) + 0.7 * _LETTER * longest, top + side * len(rows) + 4
    parts = [
        f'<rect class="field" x="{left:.1f}" y="{top:.1f}" '
        f'width="{side * len(columns):.1f}" height="{side * len(rows):.1f}"/>'
    ]
    for i, name in enumerate(rows):
        parts.append(_text(left - 6, top + side * (i + 0.5) + 4, _short(name), "label end", title=name))
    for j, name in enumerate(columns):
        x, y = left + side * (j + 0.5) + 3, top - 6
        turned = f' transform="rotate(-45 {x:.1f} {y:.1f})"'
        parts.append(_text(x, y, _short(name), "label start", title=name, more=turned))
    seen = np.nan_to_num(values) >= 0.0005
    low, high = (float(values[seen].min()), float(values[seen].max())) if seen.any() else (0.0, 1.0)
    for i, j in zip(*np.nonzero(seen), strict=True):
        value = float(values[i, j])
        right = confusion and rows[i] == columns[j]
        if confusion:
            shade = value if right else min(1.0, value**0.6)
        else:
            shade = 0.1 + 0.9 * (value - low) / (high - low) if high > low else 1.0
        style = "cell right" if right else "cell wrong" if confusion else "cell"
        x, y = left + side * j, top + side * i
        said = f"{rows[i]} → {columns[j]}: {100 * value:.1f} %" if confusion else (
            f"{rows[i]}, {columns[j]}: {number(value, 2)}")  # fmt: skip
        shown = f"{100 * value:.0f}" if confusion else number(value, 2).lstrip("0").replace("1.00", "1")
        parts.append(
            f'<rect class="{style}" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{side - 1:.0f}" '
            f'height="{side - 1:.0f}" fill-opacity="{shade:.2f}"><title>{escape(said)}</title></rect>'
        )
        if side >= 24 and value >= 0.005:
            dark = " on" if shade > 0.55 else ""
            parts.append(_text(x + side / 2, y + side / 2 + 4, shown, f"value{dark}"))
    return _svg(width, height, label, parts, wide=width > WIDTH + 20)


def point_map(points: Floats, kinds: Sequence[int], marked: Sequence[bool], label: str) -> str:
    """A scatter map (n, 2): the colour and shape of a point say its kind, a ring that it is marked.

    Point i carries `data-i`, by which the page finds the text to show.
    """
    side, edge = 340.0, 12.0
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (side - 2 * edge) / max(float((high - low).max()), 1e-9)
    middle = (low + high) / 2
    parts = [f'<rect class="field" x="0" y="0" width="{side:.0f}" height="{side:.0f}" rx="8"/>']
    for i, (point, kind) in enumerate(zip(points, kinds, strict=True)):
        x, y = ((point - middle) * scale + side / 2).tolist()
        style = f"p k{kind % COLOURS}" + (" bad" if marked[i] else "")
        outline = _shape(kind // COLOURS % SHAPES, x, side - y)
        parts.append(f'<path class="{style}" data-i="{i}" data-k="{kind}" d="{outline}"/>')
    return _svg(side, side, label, parts, style="map", more=' tabindex="0"')


def marker(kind: int) -> str:
    """The sign of a kind in a point map, for its legend."""
    outline = _shape(kind // COLOURS % SHAPES, 6, 6)
    return (
        f'<svg class="sign" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">'
        f'<path class="p k{kind % COLOURS}" d="{outline}"/></svg>'
    )


def dumbbell(
    names: Sequence[str],
    before: Sequence[float],
    after: Sequence[float],
    colour: int,
    label: str,
    notes: Sequence[str] = (),
) -> str:
    """A row a name: a hollow dot before, a full one after, joined; the difference stands at the end."""
    longest = max((len(_short(name)) for name in names), default=1)
    left, width, row = 12 + _LETTER * longest, float(WIDTH), 22.0
    axis = axis_for([*before, *after], left + 6, width - 46)
    bottom = 8 + row * len(names)
    parts = []
    for tick in axis.ticks(4):
        x = axis(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} 4V{bottom:.1f}"/>')
        parts.append(_text(x, bottom + 16, number(tick), "tick"))
    for i, (name, a, b) in enumerate(zip(names, before, after, strict=True)):
        y = 8 + row * (i + 0.5)
        note = escape(notes[i] if notes else f"{name}: {number(a, 1)} → {number(b, 1)}")
        way = "up" if b > a else "down" if b < a else ""
        parts.append(_text(left - 6, y + 4, _short(name), "label end", title=name))
        parts.append(
            f'<g class="c{colour}"><title>{note}</title>'
            f'<path class="bar {way}" d="M{axis(a):.1f} {y:.1f}H{axis(b):.1f}"/>'
            f'<circle class="hollow" cx="{axis(a):.1f}" cy="{y:.1f}" r="4"/>'
            f'<circle class="dot" cx="{axis(b):.1f}" cy="{y:.1f}" r="4.5"/></g>'
        )
        parts.append(_text(width - 2, y + 4, number(b - a, 1, sign=True), f"value end {way}"))
    return _svg(width, bottom + 24, label, parts)


def bars(names: Sequence[str], values: Sequence[float], colour: int, label: str) -> str:
    """Horizontal bars of shares, in the order given."""
    longest = max((len(_short(name)) for name in names), default=1)
    left, width, row = 12 + _LETTER * longest, float(WIDTH), 24.0
    axis = Axis(0.0, max(max(values, default=0.0), 1e-9), left, width - 46)
    parts = [f'<g class="c{colour}">']
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 4 + row * i
        long = max(axis(max(value, 0.0)) - left, 1.0)
        parts.append(_text(left - 6, y + 15, _short(name), "label end", title=name))
        parts.append(
            f'<rect class="fill" x="{left:.1f}" y="{y + 3:.1f}" width="{long:.1f}" height="15" rx="2">'
            f"<title>{escape(name)}: {100 * value:.0f} %</title></rect>"
        )
        parts.append(_text(left + long + 5, y + 15, f"{100 * value:.0f} %", "value start"))
    return _svg(width, 8 + row * len(names), label, [*parts, "</g>"])


def interval(mean: float, low: float, high: float, reach: float, colour: int) -> str:
    """A mean with its interval around a line at zero, small enough for a cell of a table."""
    axis = Axis(-reach, reach, 4, 116)
    a, b = (axis(max(-reach, min(reach, v))) for v in (low, high))
    said = escape(
        f"{number(mean, 2, sign=True)} ({number(low, 2, sign=True)} to {number(high, 2, sign=True)})"
    )
    parts = [
        '<path class="zero" d="M60 1V19"/>',
        f'<g class="c{colour}"><title>{said}</title><path class="whisker" d="M{a:.1f} 10H{b:.1f}"/>',
        f'<circle class="dot" cx="{axis(mean):.1f}" cy="10" r="4"/></g>',
    ]
    return _svg(120, 20, said, parts, style="spark")


def _box(x: float, axis: Axis, group: Group) -> list[str]:
    values = sorted(group.values.values())
    if not values:
        return []
    first, middle, third = (axis(float(q)) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    parts = []
    if len(values) > 2:
        parts += [
            f'<path class="whisker" d="M{x:.1f} {axis(values[0]):.1f}V{axis(values[-1]):.1f}"/>',
            f'<rect class="box" x="{x - 17:.1f}" y="{third:.1f}" width="34" height="{first - third:.1f}" rx="3"/>',
            f'<path class="median" d="M{x - 17:.1f} {middle:.1f}h34"/>',
        ]
    for run, value in group.values.items():
        said = escape(f"{group.name}, {run}: {number(value, 2)}")
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{axis(value):.1f}" r="3"><title>{said}</title></circle>'
        )
    mean = float(np.mean(values))
    above = axis(values[-1]) - 8
    parts.append(_text(x, above, number(mean, 1), "value", title=f"mean {number(mean, 2)}"))
    return parts


def _curve(curve: Curve, x_axis: Axis, y_axis: Axis, joined: bool) -> list[str]:
    at = [(x_axis(x), y_axis(y)) for x, y in zip(curve.x, curve.y, strict=True)]
    parts = []
    around = list(zip(curve.low, curve.high, strict=True))
    if around and joined:
        upper = [f"{x:.1f} {y_axis(high):.1f}" for (x, _), (_, high) in zip(at, around, strict=True)]
        lower = [f"{x:.1f} {y_axis(low):.1f}" for (x, _), (low, _) in zip(at, around, strict=True)]
        parts.append(f'<path class="band" d="M{"L".join([*upper, *reversed(lower)])}Z"/>')
    if around and not joined:
        for (x, _), (low, high) in zip(at, around, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                parts.append(f'<path class="whisker" d="M{x:.1f} {y_axis(low):.1f}V{y_axis(high):.1f}"/>')
    if len(at) > 1 and joined:
        parts.append(f'<path class="line" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in at)}"/>')
    for i, (x, y) in enumerate(at):
        said = (
            curve.notes[i] if curve.notes else f"{curve.name}: {number(curve.y[i])} at {number(curve.x[i])}"
        )
        radius = 4 if not joined else 2.5
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(said)}</title></circle>'
        )
    return parts


def _grid(axis: Axis, left: float, width: float, *, percent: bool = False) -> str:
    parts = []
    for tick in axis.ticks(5):
        y = axis(tick)
        said = f"{100 * tick:.0f} %" if percent else number(tick)
        parts.append(f'<path class="grid" d="M{left:.0f} {y:.1f}H{width:.0f}"/>')
        parts.append(_text(left - 6, y + 4, said, "tick end"))
    return "".join(parts)


def _shape(shape: int, x: float, y: float) -> str:
    """A circle, square, triangle or diamond of about the same area around a point."""
    if shape == 0:
        return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0-8 0"
    if shape == 1:
        return f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7z"
    if shape == 2:
        return f"M{x:.1f} {y - 5:.1f}l5 8.6h-10z"
    return f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5-5z"


def _name_above(name: str) -> str:
    return _text(0, 11, name, "label start") if name else ""


def _text(x: float, y: float, content: str, style: str, *, title: str = "", more: str = "") -> str:
    hover = f"<title>{escape(title)}</title>" if title and title != content else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{more}>{hover}{escape(content)}</text>'


def _short(name: str, letters: int = 16) -> str:
    """A long name without its middle: names that belong together differ at one end or the other."""
    if len(name) <= letters:
        return name
    kept = letters - 1
    return f"{name[: kept - kept // 2].rstrip()}…{name[len(name) - kept // 2 :].lstrip()}"


def _broken(name: str, letters: int) -> list[str]:
    """A name over at most three lines, broken at its underscores and spaces."""
    lines: list[str] = []
    for word in name.replace("_", " ").split():
        if lines and len(lines[-1]) + 1 + len(word) <= letters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [_short(line, letters) for line in lines[:3]] or [""]


def _svg(
    width: float,
    height: float,
    label: str,
    parts: Sequence[str],
    *,
    wide: bool = False,
    style: str = "chart",
    more: str = "",
) -> str:
    return (
        f'<svg class="{style}{" wide" if wide else ""}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(label)}"{more}>'
        f"{''.join(parts)}</svg>"
    )
