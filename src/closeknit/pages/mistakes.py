"""The errors of the models on one data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import analysis, charts
from ..analysis import Predictions
from ..metrics import Integers
from .folder import Study, cell_name

SHOWN_MISTAKES = 40  # of each objective
SHOWN_LETTERS = 400  # of a text


def confident_mistakes(study: Study, stored: dict[str, list[Predictions]]) -> list[dict[str, Any]]:
    found = [
        {
            "objective": objective,
            "colour": study.colour(objective),
            "text": cut(mistake.text),
            "expected": mistake.expected,
            "predicted": mistake.predicted,
            "confidence": mistake.confidence,
            "runs": mistake.runs,
        }
        for objective, runs in stored.items()
        for mistake in analysis.confident_mistakes(runs, SHOWN_MISTAKES)
    ]
    return sorted(found, key=lambda mistake: -mistake["confidence"])


def entropies(
    study: Study, cell: tuple[str, int], stored: dict[str, list[Predictions]]
) -> list[dict[str, Any]]:
    split = {objective: analysis.entropy_by_outcome(runs) for objective, runs in stored.items()}
    split = {objective: (r, w) for objective, (r, w) in split.items() if len(r) + len(w)}
    top = max((float(v.max()) for pair in split.values() for v in pair if len(v)), default=0.0)
    if top <= 0.0:
        return []
    edges = np.linspace(0.0, top, 21)
    return [
        {
            "objective": objective,
            "colour": study.colour(objective),
            "right": charts.number(float(right.mean()), 3) if len(right) else "–",
            "wrong": charts.number(float(wrong.mean()), 3) if len(wrong) else "–",
            "svg": charts.histogram(
                [
                    (f"right: {len(right):,} predictions", "right", analysis.shares_in_bins(right, edges)),
                    (f"wrong: {len(wrong):,} predictions", "wrong", analysis.shares_in_bins(wrong, edges)),
                ],
                edges.tolist(),
                f"Entropy of right and wrong predictions of {objective} on {cell_name(cell)}",
                "entropy in nats",
            ),
        }
        for objective, (right, wrong) in split.items()
    ]


def hard_label_sets(
    study: Study,
    cell: tuple[str, int],
    runs: dict[str, list[Predictions]],
    counts: dict[str, Integers],
    labels: Sequence[str],
) -> dict[str, Any] | None:
    """The sets of classes that are hard to tell apart, and how well each objective does on them."""
    given = (study.settings.get("hard_sets") or {}).get(cell[0])
    if given:
        sets = [[str(name) for name in one] for one in given]
    elif study.baseline in counts:
        sets = [[labels[c] for c in one] for one in analysis.hard_sets(counts[study.baseline])]
    else:
        return None
    rows = []
    for names in sets:
        scores = {objective: analysis.scores_within(own, names) for objective, own in runs.items()}
        shown = {name: pair for name, pair in scores.items() if pair is not None}
        best = max((round(100 * f1, 2) for f1, _ in shown.values()), default=0.0)
        if shown:
            rows.append(
                {
                    "names": names,
                    "scores": [
                        {
                            "f1": charts.number(100 * shown[name][0], 2),
                            "accuracy": charts.number(100 * shown[name][1], 2),
                            "best": len(shown) > 1 and round(100 * shown[name][0], 2) == best,
                        }
                        if name in shown
                        else None
                        for name in runs
                    ],
                }
            )
    return {"given": bool(given), "objectives": list(runs), "rows": rows} if rows else None


def cut(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1].rstrip() + "…"
