"""Everything that the page of a study shows: summary, facts, and all sections."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from closeknit.charts.axis import format_number
from closeknit.reports.page import counted, flat_settings
from closeknit.reports.study_page.data_set_charts import data_set_view
from closeknit.reports.study_page.folder import StudyFolder, cell_name
from closeknit.reports.study_page.gain_charts import gain_by_classes, gain_by_size
from closeknit.reports.study_page.score_tables import (
    confidence_rows,
    gain_rows,
    near_rows,
    score_table,
)
from closeknit.reports.study_page.search_charts import search_view
from closeknit.studies.statistics import (
    Line,
    Optimism,
    OverallGain,
    optimism,
    overall_gains,
    standings,
)
from closeknit.studies.statistics.in_words import (
    gain_in_words,
    how_tested,
    means_in_words,
    optimistic_in_words,
    overall_in_words,
    truncated_shares,
)

MOST_SUMMARISED = 4  # objectives whose outcomes fit into the summary

_SELECTION = {
    "fixed": "the settings were fixed beforehand, the same for every run of an objective",
    "nested": "the settings were chosen inside each training part, never on the rows reported here",
    "paper": "the settings were chosen on the same folds that are reported here",
}


def page_contents(study: StudyFolder) -> dict[str, Any]:
    """The values of the template `study.html`."""
    data_sets = [data_set_view(study, number, cell) for number, cell in enumerate(study.cells)]
    maps = {
        text_map["id"]: text_map.pop("payload") for view in data_sets for text_map in view["maps"]
    }
    return {
        "title": _title(study),
        "summary": _summary(study),
        "progress": _progress(study),
        "verdicts": _verdicts(study),
        "facts": _facts(study),
        "banner": _optimism_banner(study),
        "legend": [
            {"name": name, "colour": study.colour(name), "baseline": name == study.baseline}
            for name in study.objectives
        ],
        "table": score_table(study),
        "gains": gain_rows(study),
        "how_tested": how_tested(study.lines),
        "means": means_in_words(study.lines),
        "near": near_rows(study),
        "confidence": confidence_rows(study),
        "standings": standings(study.lines),
        "by_size": gain_by_size(study),
        "by_classes": gain_by_classes(study),
        "cells": data_sets,
        "maps": maps,
        "search": search_view(study),
        "method": _method(study),
        "baseline": study.baseline,
    }


def _title(study: StudyFolder) -> str:
    others = study.other_objectives
    if not others:
        return study.baseline
    if len(others) == 1:
        return f"{others[0]} against {study.baseline}"
    return f"{len(others)} objectives against {study.baseline}"


# ---------------------------------------------------------------- the verdict


def _summary(study: StudyFolder) -> str:
    """How often each objective was clearly better than the baseline, clearly worse, or neither."""
    if not study.runs:
        return "No run has finished yet."
    outcomes = [
        f"{objective}: {_outcomes_in_words(counts, study.baseline)}"
        for objective, counts in standings(study.lines).items()
    ]
    if outcomes and len(outcomes) <= MOST_SUMMARISED:
        overall: Sequence[OverallGain] = overall_gains(study.lines)
        sentences = [overall_in_words(one, study.baseline) for one in overall]
        return " ".join(["; ".join(outcomes) + ".", *sentences])
    objectives = {run.objective for run in study.runs}
    data_sets = {data for data, _ in study.cells}
    return f"{counted(len(objectives), 'objective')} on {counted(len(data_sets), 'data set')}."


def _outcomes_in_words(counts: tuple[int, int, int], baseline: str) -> str:
    wins, ties, losses = counts
    total = wins + ties + losses
    parts = [
        (f"clearly better than {baseline}", wins),
        (f"no clear difference from {baseline}", ties),
        (f"clearly worse than {baseline}", losses),
    ]
    if total == 1:
        return next(words for words, count in parts if count)
    return ", ".join(
        f"{words} in {count} of {total} comparisons" for words, count in parts if count
    )


def _progress(study: StudyFolder) -> dict[str, int]:
    """How many runs are finished, out of the number that the study last asked for."""
    settings = study.settings
    cells = set()
    for data_set in settings.get("data", []):
        rows = data_set.get("rows") or math.inf
        classes = data_set.get("training_classes") or len(data_set.get("classes") or [])
        drawn = [shots * classes for shots in settings.get("shots") or []]
        for size in drawn or settings.get("sizes") or [rows]:
            cells.add((data_set.get("name"), min(size or rows, rows)))
    folds = settings.get("folds") or max((run.folds for run in study.runs), default=1)
    seeds = set(settings.get("seeds") or {run.seed for run in study.runs})
    objectives = set(settings.get("objectives") or study.objectives)
    finished = sum(
        run.cell in cells and run.seed in seeds and run.objective in objectives
        for run in study.runs
    )
    return {"done": finished, "wanted": len(cells) * len(objectives) * folds * len(seeds)}


def _verdicts(study: StudyFolder) -> list[dict[str, Any]]:
    """A sentence for each objective and data set, the smallest p-value first."""

    def p_value(line: Line) -> float:
        return 2.0 if line.p_holm is None else line.p_holm

    # Holm's method corrects for all comparisons of the same objective.
    comparisons = Counter(line.objective for line in study.lines if line.p_holm is not None)
    verdicts = []
    for line in sorted(study.lines, key=p_value):
        if line.gain is not None:
            sentence = gain_in_words(line, study.baseline, comparisons[line.objective])
            verdicts.append({"text": sentence, "kind": line.outcome})
    return verdicts


def _facts(study: StudyFolder) -> list[tuple[str, str]]:
    """The encoder, the number of runs, and how settings were chosen.

    What is unknown is left out.
    """
    settings = study.settings
    encoder = settings.get("encoder") or next((run.encoder for run in study.runs), "")
    facts = [("Encoder", str(encoder))]
    facts += _design_facts(settings)
    cut = truncated_shares(study.lines)
    cut_in_words = ", ".join(f"{data} {share}" for data, share in cut.items())
    facts.append(("Training texts cut at encoder.max_length", cut_in_words))
    facts.append(("Selection", _selections(study)))
    search = settings.get("search")
    if search:
        tried = f"{search.get('trials', '?')} trials"
        if search.get("method") == "grid":
            tried = "all settings"
        facts.append(("Search", f"{search.get('method', '')}, {tried}"))
    return [(name, value) for name, value in facts if value]


def _selections(study: StudyFolder) -> str:
    """How the settings of the runs were chosen; objectives are named where they differ.

    Before the first run it is what the study asks for.
    """
    objectives: dict[str, list[str]] = {}
    for selection, objective in dict.fromkeys((run.selection, run.objective) for run in study.runs):
        objectives.setdefault(selection, []).append(objective)
    if not objectives:
        objectives[str(study.settings.get("selection", "fixed"))] = []
    if len(objectives) == 1:
        return "".join(_SELECTION.get(selection, selection) for selection in objectives)
    return "; ".join(
        f"{', '.join(names)}: {_SELECTION.get(selection, selection)}"
        for selection, names in objectives.items()
    )


_TEST_ROWS = {
    "official": "the test part of each data set",
    "rest": "all rows that were not drawn for training",
}


def _design_facts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How often each objective was trained, on which rows, and where the test rows come from."""
    seeds = counted(len(settings.get("seeds") or []), "seed")
    test = str(settings.get("test") or "folds")
    if test == "folds":
        folds = settings.get("folds")
        return [("Runs", f"{folds} folds × {seeds}")] if folds else []
    facts = [("Runs", seeds), ("Test rows", _TEST_ROWS.get(test, test))]
    shots = settings.get("shots")
    if shots:
        facts.append(("Training rows per class", ", ".join(map(str, shots))))
    return facts


def _optimism_banner(study: StudyFolder) -> dict[str, Any] | None:
    """By how much scores are too high because the settings were chosen on the reported folds."""
    words = optimistic_in_words(study.lines)
    if not words:
        return None
    estimates: list[Optimism] = []
    with contextlib.suppress(KeyError, TypeError, AttributeError):  # trials in another format
        estimates = optimism(study.runs, study.trials)
    return {
        "words": words,
        "rows": [
            {
                "name": cell_name((one.data, one.size)),
                "objective": one.objective,
                "reported": format_number(100 * one.reported, 2),
                "honest": format_number(100 * one.honest, 2),
                "difference": format_number(100 * (one.reported - one.honest), 2, sign=True),
            }
            for one in estimates
        ],
    }


# ---------------------------------------------------------------- the method


def _method(study: StudyFolder) -> dict[str, Any]:
    """How the study was run: the command, the data, all settings and the versions of libraries."""
    settings = study.settings
    objectives = settings.get("objectives", {})
    return {
        "command": settings.get("command") or "",
        "seeds": ", ".join(str(seed) for seed in settings.get("seeds") or []),
        "versions": _versions(study),
        "settings": flat_settings(settings.get("config") or {}),
        "objectives": {name: flat_settings(options) for name, options in objectives.items()},
        "search": flat_settings(settings.get("search") or {}),
        "data": [
            {
                "name": data_set.get("name"),
                "rows": f"{data_set.get('rows', 0):,}",
                "classes": len(data_set.get("classes") or []),
                "pairs": bool(data_set.get("pairs")),
            }
            for data_set in settings.get("data", [])
        ],
    }


def _versions(study: StudyFolder) -> dict[str, str]:
    """The versions of each library that the runs used."""
    versions: dict[str, set[str]] = {}
    for run in study.runs:
        for library, version in run.versions.items():
            versions.setdefault(library, set()).add(str(version))
    return {library: ", ".join(sorted(used)) for library, used in versions.items()}
