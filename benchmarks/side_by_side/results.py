"""Ratios with their intervals, and the table that shows them."""

from __future__ import annotations

from typing import Any

import numpy as np

RESAMPLES = 4000  # of the bootstrap


def median_ratio(before: list[float], after: list[float]) -> dict[str, float]:
    """The median of the ratios of all rounds, with its interval."""
    ratios = np.divide(after, before)
    return interval(float(np.median(ratios)), resampled_medians(ratios))


def resampled_medians(ratios: np.ndarray) -> np.ndarray:
    """The medians of so many bootstrap samples of the rounds."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(ratios), size=(RESAMPLES, len(ratios)))
    medians: np.ndarray = np.median(ratios[drawn], axis=1)
    return medians


def interval(value: float, resampled: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return {"value": value, "low": float(low), "high": float(high)}


def table(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    lines = [
        f"# Training step times: {facts['after']} beside {facts['before']}",
        "",
        f"Median milliseconds per step over {facts['rounds']} rounds in turns. The ratio is after / before, with a "
        "95 % bootstrap interval over the rounds.",
        "",
        "| case (texts x tokens) | before | after | ratio | ratio of processor time | last loss: before, after |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['case']} | | | failed | | |")
            continue
        times = [f"{1e3 * float(np.median(row[side])):.2f}" for side in ("before", "after")]
        losses = f"{row['before_loss']:.4f}, {row['after_loss']:.4f}"
        shown = " | ".join([*times, show(row["ratio"]), show(row["ratio_processors"]), losses])
        lines.append(f"| {row['case']} | {shown} |")
    measured = [row for row in rows if "error" not in row]
    if measured:
        wall, processors = (overall(measured, suffix) for suffix in ("", "_processors"))
        lines.append(f"| geometric mean | | | {show(wall)} | {show(processors)} | |")
    lines += ["", facts["machine"], ""]
    lines += [f"{row['case']} failed. {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines)


def show(ratio: dict[str, float]) -> str:
    return f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def overall(rows: list[dict[str, Any]], suffix: str) -> dict[str, float]:
    """The geometric mean of the cases' ratios."""
    ratios = [np.divide(row[f"after{suffix}"], row[f"before{suffix}"]) for row in rows]
    value = np.exp(np.mean([np.log(np.median(of_case)) for of_case in ratios]))
    generator = np.random.default_rng(0)
    resampled = [
        np.log(generator.permutation(resampled_medians(of_case))) for of_case in ratios
    ]  # permuted, as the cases were not drawn together
    return interval(float(value), np.exp(np.mean(resampled, axis=0)))
