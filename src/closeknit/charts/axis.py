"""Axes of a chart: which values they span, where a value lies, and how its number is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Maps the values from `low` to `high` to the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel at which a value lies."""
        low, high = self.low, self.high
        if self.log:
            low = math.log(low)
            high = math.log(high)
            value = math.log(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the axis: multiples of 1, 2 or 5 times a power of ten."""
        if self.log:
            return self._logarithmic_ticks()
        rough_step = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough_step))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough_step * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]

    def _logarithmic_ticks(self) -> list[float]:
        """The coarsest of three scales that gives at least three ticks, else the two ends."""
        lowest_power = math.floor(math.log10(self.low))
        highest_power = math.ceil(math.log10(self.high))
        powers = range(lowest_power, highest_power + 1)
        for digits in ((1,), (1, 3), (1, 2, 5)):
            values = [digit * 10.0**power for power in powers for digit in digits]
            inside = [value for value in values if self._contains(value)]
            if len(inside) >= 3:
                return inside
        return sorted({self.low, self.high})

    def _contains(self, value: float) -> bool:
        return self.low * 0.999 <= value <= self.high * 1.001


def axis_for(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    include_zero: bool = False,
) -> Axis:
    """An axis that holds all finite values with a small margin.

    A logarithmic one ignores values up to 0.
    """
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(usable), max(usable)
    if log:
        factor = max((high / low) ** 0.06, 1.05)
        return Axis(low / factor, high * factor, start, end, log=True)
    if include_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.06 * (high - low) or max(abs(high) * 0.02, 0.5)
    return Axis(low - margin, high + margin, start, end)


def format_number(value: float, digits: int | None = None, *, sign: bool = False) -> str:
    """A number as text, with a typographic minus sign; without `digits` it is as short as possible.

    NaN becomes a dash. With `sign`, positive numbers get a plus sign; a number that rounds to 0
    has no sign.
    """
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
