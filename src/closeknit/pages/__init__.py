"""A folder -> one page that explains it: `report.html`, which needs no network and no other file."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

from .. import charts
from ..report import Line, in_words, optimism, over_sets, overall_in_words, standings
from .cells import cell_view
from .folder import Study, cell_name, read_study
from .multitask import multitask_contents
from .searches import search_view
from .tables import gain_by_classes, gain_by_size, gain_rows, p_text, score_table, verdict_kind

__all__ = ["Study", "read_study", "write_multitask_report", "write_report"]

_SELECTION = {
    "fixed": "the settings were fixed beforehand, the same for every run of an objective",
    "nested": "the settings were chosen inside each training part, never on the rows reported here",
    "paper": "the settings were chosen on the very folds reported here",
}


def write_report(folder: Path, lines: list[Line] | None = None) -> Path:
    """Write `report.html` into a study folder, whole or not at all; an unfinished study is shown as far as it is.

    `lines` are the statistics of all runs in the folder, where the caller has computed them already.
    """
    return _write_page(folder, "report.html", _contents(read_study(folder, lines)))


def write_multitask_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a model of several tasks, whole or not at all."""
    return _write_page(folder, "multitask.html", multitask_contents(folder))


def _write_page(folder: Path, template: str, contents: dict[str, Any]) -> Path:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("closeknit", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"number": charts.number, "flat": _flat}
    page = environment.get_template(template).render(**contents)
    target = folder / "report.html"
    fresh = folder / f".report.{os.getpid()}.html"
    try:
        fresh.write_text(page, encoding="utf-8")
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
    return target


def _contents(study: Study) -> dict[str, Any]:
    others = [name for name in study.objectives if name != study.baseline]
    title = f"{others[0]} against {study.baseline}" if len(others) == 1 else (
        f"{len(others)} objectives against {study.baseline}" if others else f"{study.baseline}")  # fmt: skip
    cells = [cell_view(study, i, cell) for i, cell in enumerate(study.cells)]
    return {
        "title": title,
        "summary": _summary(study),
        "progress": _progress(study),
        "verdicts": _verdicts(study),
        "facts": _facts(study),
        "banner": _optimism(study),
        "legend": [
            {"name": name, "colour": study.colour(name), "baseline": name == study.baseline}
            for name in study.objectives
        ],
        "table": score_table(study),
        "gains": gain_rows(study),
        "standings": standings(study.lines),
        "by_size": gain_by_size(study),
        "by_classes": gain_by_classes(study),
        "cells": cells,
        "maps": {view["id"]: view.pop("payload") for cell in cells for view in cell["maps"]},
        "search": search_view(study),
        "made": _made(study),
        "baseline": study.baseline,
    }


def _summary(study: Study) -> str:
    """How often each objective was clearly better than the baseline, clearly worse, or neither."""
    if not study.runs:
        return "No run has finished yet."
    said = []
    for objective, (wins, ties, losses) in standings(study.lines).items():
        parts = [
            (f"clearly better than {study.baseline}", wins),
            (f"no clear difference from {study.baseline}", ties),
            (f"clearly worse than {study.baseline}", losses),
        ]
        total = wins + ties + losses
        told = [f"{words} in {n} of {total} comparisons" if total > 1 else words for words, n in parts if n]
        said.append(f"{objective}: {', '.join(told)}")
    if said and len(said) <= 4:
        overall = [overall_in_words(one, study.baseline) for one in over_sets(study.lines)]
        return " ".join(["; ".join(said) + ".", *overall])
    data = len({data for data, _ in study.cells})
    names = len({run.objective for run in study.runs})
    return f"{names} objective{'s' * (names != 1)} on {data} data set{'s' * (data != 1)}."


def _progress(study: Study) -> dict[str, int]:
    """How many runs are done, of how many that the study was last asked for."""
    settings = study.settings
    cells = set()
    for entry in settings.get("data", []):
        rows = entry.get("rows") or math.inf
        cells |= {(entry.get("name"), min(size or rows, rows)) for size in settings.get("sizes") or [rows]}
    folds = settings.get("folds") or max((run.folds for run in study.runs), default=1)
    seeds = set(settings.get("seeds") or {run.seed for run in study.runs})
    names = set(settings.get("objectives") or study.objectives)
    done = sum(
        (run.data, run.size) in cells and run.seed in seeds and run.objective in names for run in study.runs
    )
    return {"done": done, "wanted": len(cells) * len(names) * folds * len(seeds)}


def _verdicts(study: Study) -> list[dict[str, Any]]:
    """A sentence an objective and data set, the surest first; what holds after Holm's correction is marked.

    `family` is how many comparisons that corrects for: those of the same objective.
    """
    tests = Counter(line.objective for line in study.lines if line.gain is not None)
    lines = sorted(study.lines, key=lambda line: 2.0 if line.p_holm is None else line.p_holm)
    return [
        {
            "text": in_words(line, study.baseline),
            "kind": verdict_kind(line),
            "family": tests[line.objective],
            "p": p_text(line.p_holm).replace("< ", "below ") if math.isfinite(line.gain.low) else "–",
        }
        for line in lines
        if line.gain is not None
    ]


def _facts(study: Study) -> list[tuple[str, str]]:
    settings = study.settings
    selection = str(settings.get("selection", "fixed"))
    folds, seeds = settings.get("folds"), settings.get("seeds") or []
    facts = [
        ("Encoder", str(settings.get("encoder") or next((run.encoder for run in study.runs), ""))),
        ("Runs", f"{folds} folds × {len(seeds)} seed{'s' if len(seeds) != 1 else ''}" if folds else ""),
        ("Selection", _SELECTION.get(selection, selection)),
    ]
    search = settings.get("search")
    if search:
        tried = "all settings" if search.get("method") == "grid" else f"{search.get('trials', '?')} trials"
        facts.append(("Search", f"{search.get('method', '')}, {tried}"))
    return [(name, value) for name, value in facts if value]


def _optimism(study: Study) -> dict[str, Any] | None:
    if study.settings.get("selection") != "paper":
        return None
    try:
        found = optimism(study.runs, study.trials)
    except (KeyError, TypeError, AttributeError):  # trials of another make say nothing of it
        found = []
    return {
        "rows": [
            {
                "name": cell_name((one.data, one.size)),
                "objective": one.objective,
                "reported": charts.number(100 * one.reported, 2),
                "honest": charts.number(100 * one.honest, 2),
                "difference": charts.number(100 * (one.reported - one.honest), 2, sign=True),
            }
            for one in found
        ]
    }


# ---------------------------------------------------------------- how it was made


def _made(study: Study) -> dict[str, Any]:
    settings = study.settings
    versions = {
        name: ", ".join(sorted({str(run.versions[name]) for run in study.runs if name in run.versions}))
        for name in dict.fromkeys(name for run in study.runs for name in run.versions)
    }
    return {
        "command": settings.get("command") or "",
        "seeds": ", ".join(str(seed) for seed in settings.get("seeds") or []),
        "versions": versions,
        "settings": _flat(settings.get("config") or {}),
        "objectives": {name: _flat(options) for name, options in settings.get("objectives", {}).items()},
        "search": _flat(settings.get("search") or {}),
        "data": [
            {
                "name": entry.get("name"),
                "rows": f"{entry.get('rows', 0):,}",
                "classes": len(entry.get("classes") or []),
                "pairs": bool(entry.get("pairs")),
            }
            for entry in settings.get("data", [])
        ],
    }


def _flat(options: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted names and values."""
    if not isinstance(options, dict):
        return [(prefix, json.dumps(options, ensure_ascii=False))]
    return [
        pair
        for name, value in options.items()
        for pair in _flat(value, f"{prefix}.{name}" if prefix else name)
    ]
