"""Learning curves of a model of several tasks: validation scores and training losses by epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from closeknit.charts.axis import format_number
from closeknit.charts.svg import Curve, line_chart
from closeknit.reports.multitask_folder import MultitaskFolder, Records, finite
from closeknit.reports.multitask_training_setup import pretraining_stages
from closeknit.reports.page import whole_ticks

SHOWN_POINTS = 60  # of a curve
AVERAGE_COLOUR = 0


def curves_view(trained: MultitaskFolder) -> dict[str, Any] | None:
    """The metric and the loss of every task by epoch, and the loss of pretraining.

    The result is None if nothing was recorded.
    """
    figures = [{"name": name, "svg": svg} for name, svg in _figures(trained) if svg is not None]
    if not figures:
        return None
    averages = [
        (average, record.get("epoch"))
        for record in trained.history
        if (average := finite(record.get("average"))) is not None
    ]
    legend = [{"name": task.name, "colour": task.colour} for task in trained.tasks]
    best_epoch = None
    if averages:
        legend.append({"name": "average", "colour": AVERAGE_COLOUR})
        best_epoch = finite(max(averages, key=lambda pair: pair[0])[1])
    return {
        "figures": figures,
        "legend": legend,
        "best": best_epoch,
        "weighted": any(task.settings.get("weight", 1.0) != 1.0 for task in trained.tasks),
        "many": len(trained.tasks) > 1,
    }


def _figures(trained: MultitaskFolder) -> list[tuple[str, str | None]]:
    """The names and charts of all figures; a chart is None if nothing was recorded for it."""
    tasks = trained.tasks
    history = trained.history
    many = len(tasks) > 1
    on_validation = "points on validation rows"
    scores = [record_curve(history, task.name, task.name, task.colour, 100.0) for task in tasks]
    losses = [
        record_curve(history, f"loss/{task.name}" if many else "loss", task.name, task.colour)
        for task in tasks
    ]
    shown_together = list(scores)
    if many:
        shown_together.append(record_curve(history, "average", "average", AVERAGE_COLOUR, 100.0))

    name = "All tasks" if many else tasks[0].name
    figures = [
        (name, epoch_chart(shown_together, "Validation scores", on_validation)),
        (
            "Training loss",
            epoch_chart(losses, "Training loss of each task", "training loss", loss=True),
        ),
    ]
    if many:
        for task, curve in zip(tasks, scores, strict=True):
            y_name = f"{task.metric_name}, {on_validation}"
            figures.append((task.name, epoch_chart([curve], f"Validation of {task.name}", y_name)))
    for place, stage in enumerate(pretraining_stages(trained.run), 1):
        method = str(stage.get("method") or "pretraining")
        records = [one for one in trained.pretraining if one.get("stage", 1) == place]
        curve = record_curve(records, "loss", method, AVERAGE_COLOUR)
        chart = epoch_chart([curve], "Loss of pretraining", "training loss")
        figures.append((f"Before the tasks: {method}", chart))
    return figures


def record_curve(records: Records, key: str, name: str, colour: int, scale: float = 1.0) -> Curve:
    """The values recorded under a key by epoch.

    A long curve is thinned out, but keeps its last point.
    """
    recorded = [(finite(record.get("epoch")), finite(record.get(key))) for record in records]
    points = [
        (epoch, scale * value)
        for epoch, value in recorded
        if epoch is not None and value is not None
    ]
    step = max(1, math.ceil(len(points) / SHOWN_POINTS))
    kept = points[::-1][::step][::-1]
    return Curve(
        name,
        colour,
        [epoch for epoch, _ in kept],
        [value for _, value in kept],
        notes=[
            f"{name}, epoch {format_number(epoch)}: {format_number(value)}" for epoch, value in kept
        ],
    )


def epoch_chart(
    curves: Sequence[Curve], label: str, y_name: str, *, loss: bool = False, zero_line: bool = False
) -> str | None:
    """A chart of the curves that have points.

    The result is None if no curve has points. Losses of very different size get a logarithmic axis.
    """
    drawn = [curve for curve in curves if curve.x]
    if not drawn:
        return None
    epochs = sorted({epoch for curve in drawn for epoch in curve.x})
    highest = [max(curve.y) for curve in drawn]
    lowest = min(value for curve in drawn for value in curve.y)
    return line_chart(
        drawn,
        f"{label} by epoch",
        x_name="epoch",
        y_name=y_name,
        log_y=loss and lowest > 0 and max(highest) > 5 * min(highest),
        zero_line=zero_line,
        ticks=epochs if len(epochs) == 1 else whole_ticks(int(epochs[-1])),
    )
