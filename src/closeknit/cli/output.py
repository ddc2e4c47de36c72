"""What commands print on standard output: scores as tables, or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

PARTS = ("train", "validation", "test", "score")


def print_json(value: Any) -> None:
    """Print one JSON value on a line; JSON has no infinite numbers and no NaN, so they are null."""
    print(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """The value with null for each number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def print_scores(scores: Mapping[str, Any], name: str) -> None:
    """Print the scores of a classifier on one line."""
    measures = ("accuracy", "weighted_f1", "macro_f1", "mcc", "auc")
    shown = "  ".join(
        f"{measure.replace('_', ' ')} {scores[measure]:.4f}"
        for measure in measures
        if measure in scores  # AUC is for two classes, and older models have no MCC in their files
    )
    print(f"{name}: {shown}  ({scores['n']} rows)")


def print_near_rows(scores: Mapping[str, Any] | None) -> None:
    """Print the scores on rows whose nearest training text, by its words, has another label."""
    if scores is None:
        return
    if not scores["rows"]:
        print("no row has a nearest training text with another label")
        return
    shown = f"accuracy {scores['accuracy']:.4f}  weighted f1 {scores['weighted_f1']:.4f}"
    print(f"nearest training text has another label: {shown}  ({scores['rows']} rows)")


def print_classes(per_class: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one line per class with its precision, recall and F1."""
    width = max(5, *(len(name) for name in per_class))
    print(f"\n{'class':<{width}}  precision  recall      F1     n")
    for name, scores in per_class.items():
        precision, recall, f1 = (scores[measure] for measure in ("precision", "recall", "f1"))
        print(f"{name:<{width}}  {precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {scores['n']:4d}")


def print_tasks(
    metrics: Mapping[str, Any],
    measures: Mapping[str, str],
    parts_scored: Mapping[str, str] | None = None,
) -> None:
    """Print one line per task with its scores, and the average of all tasks.

    `measures` names the measure of each task; `parts_scored` the part of the data that each task
    was scored on.
    """
    columns = _columns_of_tasks(metrics)
    width = max(7, *(len(name) for name in measures))
    print(f"{'task':<{width}}  {'metric':<12}" + "".join(f"{title:>18}" for title, _ in columns))
    for task, measure in measures.items():
        cells = [_cell(scores[task][measure] if task in scores else None) for _, scores in columns]
        part = f"  {parts_scored[task]}" if parts_scored else ""
        print(f"{task:<{width}}  {measure:<12}" + "".join(cells) + part)
    if len(measures) > 1:
        means = [_cell(_mean(scores, measures)) for _, scores in columns]
        print(f"{'average':<{width}}  {'':<12}" + "".join(means))


def _columns_of_tasks(metrics: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The title and the scores of each column: first all tasks together, then each alone."""
    parts = [part for part in PARTS if part in metrics]
    alone = metrics.get("alone", {})
    columns: list[tuple[str, Mapping[str, Any]]] = [(part, metrics[part]) for part in parts]
    for part in parts if alone else []:
        scores = {task: found[part] for task, found in alone.items() if part in found}
        columns.append((f"{part} alone", scores))
    return columns


def _mean(scores: Mapping[str, Any], measures: Mapping[str, str]) -> float | None:
    """The mean over all tasks; None if a task has no score."""
    if not measures.keys() <= scores.keys():
        return None
    return float(sum(scores[task][measure] for task, measure in measures.items())) / len(measures)


def _cell(value: float | None) -> str:
    return f"{value:>18.4f}" if value is not None else f"{'':>18}"
