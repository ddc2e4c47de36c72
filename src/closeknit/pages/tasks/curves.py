"""Curves over the epochs: scores, losses, and how the gradients of tasks agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import charts
from ..folder import whole_ticks
from .reading import History, Trained, as_table, colour_of, counted, finite

_POINTS = 60  # of a curve


def curves_view(trained: Trained) -> dict[str, Any] | None:
    """The metric and the loss of every task over the epochs, and the loss of the stage before."""
    tasks, history = trained.tasks, trained.history
    many = len(tasks) > 1
    metrics = [_curve(history, task.name, task.name, task.colour, 100.0) for task in tasks]
    average = _curve(history, "average", "average", 0, 100.0)
    losses = [
        _curve(history, f"loss/{task.name}" if many else "loss", task.name, task.colour) for task in tasks
    ]
    method = str(as_table(trained.run.get("pretrain")).get("method") or "pretraining")
    everything = [*metrics, average] if many else metrics
    said = "points on validation rows"
    figures = [
        ("All tasks" if many else tasks[0].name, _chart(everything, "Validation scores", said)),
        ("Training loss", _chart(losses, "Training loss of each task", "training loss", loss=True)),
    ]
    for task, curve in zip(tasks, metrics, strict=True):
        if many:
            figures.append(
                (task.name, _chart([curve], f"Validation of {task.name}", f"{task.measure}, {said}"))
            )
    before = _curve(trained.pretraining, "loss", method, 0)
    figures.append((f"Before the tasks: {method}", _chart([before], "Loss of pretraining", "training loss")))
    shown = [{"name": name, "svg": svg} for name, svg in figures if svg]
    if not shown:
        return None
    known = [(value, r.get("epoch")) for r in history if (value := finite(r.get("average"))) is not None]
    legend = [{"name": task.name, "colour": task.colour} for task in tasks]
    return {
        "figures": shown,
        "legend": [*legend, {"name": "average", "colour": 0}] if known else legend,
        "best": finite(max(known, key=lambda pair: pair[0])[1]) if known else None,
        "weighted": any(task.settings.get("weight", 1.0) != 1.0 for task in tasks),
        "many": many,
    }


def _curve(history: History, key: str, name: str, colour: int, scale: float = 1.0) -> charts.Curve:
    """What records say under a key, thinned out where there are many; the last one stays."""
    found = [(finite(record.get("epoch")), finite(record.get(key))) for record in history]
    known = [(epoch, scale * value) for epoch, value in found if epoch is not None and value is not None]
    kept = known[::-1][:: max(1, math.ceil(len(known) / _POINTS))][::-1]
    notes = [f"{name}, epoch {charts.number(epoch)}: {charts.number(value)}" for epoch, value in kept]
    return charts.Curve(name, colour, [epoch for epoch, _ in kept], [value for _, value in kept], notes=notes)


def _chart(
    curves: Sequence[charts.Curve], label: str, y_name: str, *, loss: bool = False, zero: bool = False
) -> str | None:
    drawn = [curve for curve in curves if curve.x]
    if not drawn:
        return None
    epochs = sorted({x for curve in drawn for x in curve.x})
    tops, lowest = [max(curve.y) for curve in drawn], min(y for curve in drawn for y in curve.y)
    return charts.line_chart(
        drawn,
        f"{label} by epoch",
        x_name="epoch",
        y_name=y_name,
        log_y=loss and lowest > 0 and max(tops) > 5 * min(tops),
        zero=zero,
        ticks=epochs if len(epochs) == 1 else whole_ticks(int(epochs[-1])),
    )


def gradients_view(trained: Trained) -> dict[str, Any] | None:
    """How the gradients of every two tasks agree, the pair that contradicts most first; nothing for one task."""
    names = {task.name for task in trained.tasks}
    pairs: History = []
    for key in dict.fromkeys(key for record in trained.history for key in record):
        kind, *both = key.split("/")
        values = [value for record in trained.history if (value := finite(record.get(key))) is not None]
        if kind == "gradients" and len(both) == 2 and names.issuperset(both) and values:
            name, colour = " and ".join(both), colour_of(len(pairs))
            pairs.append(
                {
                    "name": name,
                    "colour": colour,
                    "curve": _curve(trained.history, key, name, colour),
                    "mean": sum(values) / len(values),
                    "low": min(values),
                    "below": sum(value < 0 for value in values),
                    "of": len(values),
                }
            )
    if not pairs:
        return None
    ranked = sorted(pairs, key=lambda pair: (-pair["below"] / pair["of"], pair["mean"]))
    return {
        "svg": _chart([pair["curve"] for pair in pairs], "Cosine between gradients", "cosine", zero=True),
        "legend": pairs,
        "rows": ranked,
        "said": _agreement(ranked),
        "surgery": as_table(trained.run.get("schedule")).get("surgery") == "pcgrad",
    }


def _agreement(ranked: History) -> str:
    first, last = ranked[0], ranked[-1]

    def often(pair: dict[str, Any]) -> str:
        times = f"at {pair['below']} of {counted(pair['of'], 'evaluation')}" if pair["below"] else "at none"
        return f"{times} (mean cosine {charts.number(pair['mean'], 2)})"

    if len(ranked) == 1:
        return f"{first['name']} contradict each other {often(first)}."
    if first["below"] * last["of"] > last["below"] * first["of"]:
        return (
            f"{first['name']} contradict each other most often, {often(first)}; "
            f"{last['name']} least often, {often(last)}."
        )
    times = f"at {first['below']} of {counted(first['of'], 'evaluation')}"
    who = f"All pairs contradict each other equally often, {times}" if first["below"] else (
        "No two tasks contradict each other at any evaluation")  # fmt: skip
    least, most = (charts.number(pair["mean"], 2) for pair in (first, last))
    return f"{who}; {first['name']} agree least (mean cosine {least}), {last['name']} most ({most})."
