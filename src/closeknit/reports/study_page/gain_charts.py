"""Charts of the gain over the baseline: by number of rows and by number of classes."""

from __future__ import annotations

from collections.abc import Sequence

from closeknit.charts.axis import format_number
from closeknit.charts.svg import Curve, line_chart
from closeknit.reports.study_page.folder import Cell, StudyFolder, cell_name

X_OFFSET = (
    0.05  # relative distance between the points of two objectives, so that none hides another
)


def gain_by_size(study: StudyFolder) -> list[dict[str, str]]:
    """A chart for each data set that was studied at several sizes."""
    charts = []
    for data in dict.fromkeys(data for data, _ in study.cells):
        sizes = sorted(size for name, size in study.cells if name == data)
        places = [((data, size), float(size)) for size in sizes]
        curves = [
            curve
            for objective in study.objectives
            if (curve := _gain_curve(study, objective, places)) is not None
        ]
        if len(sizes) > 1 and any(len(curve.x) > 1 for curve in curves):
            svg = line_chart(
                curves,
                f"Gain over {study.baseline} on {data} by number of rows",
                x_name="rows",
                y_name="points of weighted F1",
                log_x=True,
                zero_line=True,
                ticks=sizes,
            )
            charts.append({"name": data, "svg": svg})
    return charts


def gain_by_classes(study: StudyFolder) -> str | None:
    """A chart of all data sets, if they differ in their number of classes."""
    classes = {data: len(study.data_set(data).get("classes") or []) for data, _ in study.cells}
    tested = {classes[line.data] for line in study.lines if line.gain is not None}
    shown = sorted(count for count in tested if count)
    if len(shown) < 2:
        return None
    cells = sorted(
        (cell for cell in study.cells if classes[cell[0]]), key=lambda cell: classes[cell[0]]
    )
    curves = []
    for i, objective in enumerate(study.objectives):
        offset = 1.0 + X_OFFSET * (i - len(study.objectives) / 2)
        places = [(cell, classes[cell[0]] * offset) for cell in cells]
        curve = _gain_curve(study, objective, places)
        if curve is not None:
            curves.append(curve)
    return line_chart(
        curves,
        f"Gain over {study.baseline} by number of classes",
        x_name="classes",
        y_name="points of weighted F1",
        log_x=True,
        zero_line=True,
        joined=False,
        ticks=shown,
    )


def _gain_curve(
    study: StudyFolder, objective: str, places: Sequence[tuple[Cell, float]]
) -> Curve | None:
    """The gains of an objective in points, at the given places (cell, x).

    The result is None if the objective has no gain there.
    """
    x, y, low, high, notes = [], [], [], [], []
    for cell, position in places:
        line = study.line(cell, objective)
        if line is None or line.gain is None:
            continue
        mean = 100 * line.gain.mean
        known = line.gain.is_tested
        x.append(position)
        y.append(mean)
        low.append(100 * line.gain.low if known else mean)
        high.append(100 * line.gain.high if known else mean)
        bounds = ", one run"
        if known:
            lowest = format_number(low[-1], 2, sign=True)
            highest = format_number(high[-1], 2, sign=True)
            bounds = f" ({lowest} to {highest})"
        notes.append(f"{objective}, {cell_name(cell)}: {format_number(mean, 2, sign=True)}{bounds}")
    return Curve(objective, study.colour(objective), x, y, low, high, notes) if x else None
