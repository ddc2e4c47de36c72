"""Charts are well-formed SVG, say what they show, and survive whatever they are given."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from closeknit.charts.axis import Axis, axis_for, format_number
from closeknit.charts.svg import (
    Curve,
    Group,
    bars,
    box_plot,
    dumbbell,
    histogram,
    interval,
    line_chart,
)
from closeknit.charts.svg_grids import heat_map, marker, point_map

NASTY = '</svg><script>"x"</script> & <b>'


def every_chart(name: str) -> dict[str, str]:
    """One of each kind, with this name wherever a name can stand."""
    values = np.array([[0.9, 0.1], [0.3, 0.7]])
    return {
        "box_plot": box_plot(
            [Group(name, 0, {name: 80.0, "b": 82.0, "c": 85.0}), Group("x", 1, {name: 81.0})], name, name
        ),
        "line_chart": line_chart(
            [Curve(name, 1, [1, 2, 3], [5, 4, 3.5], [4, 3, 3], [6, 5, 4], [name] * 3)],
            name,
            x_name=name,
            y_name=name,
        ),
        "whiskers": line_chart(
            [Curve(name, 1, [2, 77], [0.5, -0.2], [0.1, -0.9], [0.9, 0.5])], name, log_x=True, zero_line=True, joined=False
        ),
        "histogram": histogram([(name, "right", [0.5, 0.5]), ("w", "wrong", [1.0, 0.0])], [0, 1, 2], name, name),
        "heat_map": heat_map(values, [name, "b"], [name, "b"], name),
        "confusion": heat_map(values, [name, "b"], [name, "b"], name, confusion=True),
        "point_map": point_map(np.array([[0.0, 1.0], [2.0, 3.0]]), [0, 33], [True, False], name),
        "dumbbell": dumbbell([name, "b"], [70.0, 80.0], [75.0, 78.0], 2, name),
        "bars": bars([name, "b"], [0.7, 0.3], 3, name),
        "interval": interval(0.4, -0.1, 0.9, 2.0, 1),
        "marker": marker(9),
    }  # fmt: skip


@pytest.mark.parametrize("kind", every_chart("a"))
def test_every_chart_is_well_formed_and_escapes_names(kind):
    svg = every_chart(NASTY)[kind]
    root = ET.fromstring(svg)
    assert root.tag == "svg" and root.get("viewBox")
    assert "<script" not in svg and "<b>" not in svg
    assert kind == "marker" or (root.get("role") == "img" and root.get("aria-label"))
    assert "nan" not in svg.lower() and "inf" not in svg.lower()


@pytest.mark.parametrize("kind", every_chart("a"))
def test_no_chart_names_a_colour_of_its_own(kind):
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb|style=", every_chart("a")[kind])


def test_every_mark_stays_inside_its_chart():
    for kind, svg in every_chart("name").items():
        root = ET.fromstring(svg)
        width, height = (float(root.get(side)) for side in ("width", "height"))
        for mark in root.iter():
            for x, y in ((mark.get("x"), mark.get("y")), (mark.get("cx"), mark.get("cy"))):
                assert x is None or 0 <= float(x) <= width, kind
                assert y is None or 0 <= float(y) <= height, kind


@pytest.mark.parametrize(
    "values", [[], [5.0], [5.0, 5.0], [0.0, 0.0], [-3.0], [1e-9, 2e-9], [1e6, 3e6], [math.nan, 1.0]]
)
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_fits_any_values(values, log):
    axis = axis_for(values, 0.0, 100.0, log=log)
    assert axis.low < axis.high
    assert 1 <= len(axis.ticks()) <= 12
    assert all(-1e-6 <= axis(tick) <= 100 + 1e-6 for tick in axis.ticks())
    assert all(0 <= axis(v) <= 100 for v in values if math.isfinite(v) and (v > 0 or not log))


def test_ticks_are_round_numbers():
    assert Axis(78.3, 86.2, 0, 1).ticks() == [80, 82, 84, 86]
    assert Axis(0.9, 1200, 0, 1, log=True).ticks() == [1, 10, 100, 1000]


@pytest.mark.parametrize(
    ("value", "digits", "sign", "said"),
    [
        (-1.234, 2, True, "−1.23"),
        (1.234, 2, True, "+1.23"),
        (-0.001, 2, True, "0.00"),
        (0.5, None, False, "0.5"),
        (4000, None, False, "4,000"),
        (250_000, None, False, "250k"),
        (math.nan, 2, False, "–"),
        (-math.inf, 2, False, "−∞"),
    ],
)
def test_numbers_have_a_real_minus_sign(value, digits, sign, said):
    assert format_number(value, digits, sign=sign) == said


def test_runs_are_joined_only_where_both_have_them():
    svg = box_plot([Group("a", 0, {"1": 80, "2": 81}), Group("b", 1, {"2": 82, "3": 83})], "two")
    assert svg.count('class="pair"') == 1


def test_an_empty_cell_of_a_heat_map_is_not_drawn():
    svg = heat_map(
        np.array([[1.0, 0.0], [0.25, 0.75]]), ["a", "b"], ["a", "b"], "three", confusion=True
    )
    assert svg.count("<rect") == 1 + 3
    assert svg.count("cell wrong") == 1
    assert "b → a: 25.0 %" in svg


def test_a_large_heat_map_scrolls_and_a_small_one_fits_a_phone():
    def drawn(n):
        names = [f"class {i}" for i in range(n)]
        return ET.fromstring(heat_map(np.eye(n), names, names, "map", confusion=True))

    assert "wide" in drawn(30).get("class")
    assert "wide" not in drawn(6).get("class") and float(drawn(6).get("width")) < 360


def test_points_know_their_number_kind_and_mark():
    svg = point_map(np.zeros((3, 2)), [0, 8, 0], [False, True, False], "same place")
    assert re.findall(r'data-i="(\d)" data-k="(\d)"', svg) == [("0", "0"), ("1", "8"), ("2", "0")]
    assert svg.count("bad") == 1


def test_an_interval_without_ends_is_cut_at_the_edge():
    svg = interval(0.5, -math.inf, math.inf, 1.0, 0)
    assert 'd="M4.0 10H116.0"' in svg


def test_long_names_lose_their_middle_and_keep_it_on_hover():
    names = [f"a data set with a long name, class {i}" for i in range(2)]
    svg = bars(names, [0.6, 0.4], 0, "bars")
    assert "a data s…class 0" in svg and "a data s…class 1" in svg
    assert f"<title>{names[1]}</title>" in svg


def test_many_boxes_scroll_instead_of_shrinking():
    groups = [Group(f"objective {i}", i, {"run": 80.0 + i}) for i in range(9)]
    assert "wide" in ET.fromstring(box_plot(groups, "many")).get("class")
    assert "wide" not in ET.fromstring(box_plot(groups[:4], "few")).get("class")


def test_shades_of_a_heat_map_run_from_the_smallest_to_the_largest():
    svg = heat_map(np.array([[0.0, 0.8], [0.9, 1.0]]), ["a", "b"], ["a", "b"], "distance")
    assert re.findall(r'fill-opacity="([\d.]+)"', svg) == ["0.10", "0.55", "1.00"]
