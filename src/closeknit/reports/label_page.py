"""The page about close classes: `labels.html`, and the relations of classes in a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from closeknit.charts.svg_grids import heat_map
from closeknit.classification.label_relations import (
    DESCRIBE,
    MERGE,
    ClassPair,
    LabelRelations,
    relate_labels,
)
from closeknit.errors import DataError, did_you_mean
from closeknit.reports.page import clipped, counted, write_page
from closeknit.reports.predictions import Predictions, read_predictions
from closeknit.reports.study_page.folder import Cell, StudyFolder, cell_name, read_study_folder

PAGE = "labels.html"
SHOWN_PAIRS = 30
LARGEST_MAP = 40  # classes; more cells could not be read


def write_label_page(relations: LabelRelations, folder: Path, subject: str) -> Path:
    """Write `labels.html` into the folder and return its path; `subject` names what was read."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(folder, "labels.html", label_contents(relations, subject), PAGE)


def label_contents(relations: LabelRelations, subject: str) -> dict[str, Any]:
    """The values of the template `labels.html`."""
    shown = [pair for pair in relations.pairs if pair.closeness > 0][:SHOWN_PAIRS]
    order = _drawn_classes(relations, shown)
    names = [relations.labels[c] for c in order]
    chart = heat_map(
        relations.closeness[np.ix_(order, order)], names, names, f"Closeness of classes, {subject}"
    )
    return {
        "title": f"Which classes are close: {subject}",
        "basis": relations.basis,
        "tree": relations.tree(),
        "map": chart,
        "left_out": len(relations.labels) - len(order),
        "advice": advice_sentences(relations),
        "counted": relations.counts is not None,
        "pairs": [_pair_row(pair) for pair in shown],
        "more_pairs": len(relations.pairs) - len(shown),
        "splits": relations.splits,
        "clipped": clipped,
    }


def _drawn_classes(relations: LabelRelations, pairs: Sequence[ClassPair]) -> list[int]:
    """All classes in the order of the tree, or of too many those of the closest pairs."""
    order = relations.order()
    if len(order) <= LARGEST_MAP:
        return order
    wanted: dict[str, None] = {}
    for pair in relations.pairs:
        if len(wanted) + 2 > LARGEST_MAP:
            break
        wanted |= {pair.first: None, pair.second: None}
    return [c for c in order if relations.labels[c] in wanted]


def _pair_row(pair: ClassPair) -> dict[str, Any]:
    return {
        "first": pair.first,
        "second": pair.second,
        "closeness": pair.closeness,
        "first_as_second": pair.first_as_second,
        "second_as_first": pair.second_as_first,
        "share": 100 * pair.share,
        "told_apart": None if pair.told_apart is None else 100 * pair.told_apart,
        "advice": pair.advice,
        "examples": [
            {
                "text": clipped(example.text),
                "expected": example.expected,
                "predicted": example.predicted,
            }
            for example in pair.examples
        ],
    }


def advice_sentences(relations: LabelRelations) -> list[str]:
    """What to do about close classes, a sentence for each kind of advice that applies."""
    sentences = []
    merges = relations.pairs_to(MERGE)
    if merges:
        sentences.append(
            f"Consider merging {_names(merges)}: the model can hardly tell the two classes apart."
        )
    unclear = relations.pairs_to(DESCRIBE)
    if unclear:
        sentences.append(
            f"Describe the difference better between {_names(unclear)}: the model often confuses "
            "them. Read the examples, correct wrong labels, or add texts that show the difference."
        )
    for split in relations.splits:
        first, second = split.rows
        sentences.append(
            f"Consider splitting {split.label}: its texts lie in two groups, of {first} and "
            f"{second} rows."
        )
    if not sentences and relations.counts is not None:
        sentences.append("No two classes are confused so often that they need a change.")
    return sentences


def _names(pairs: Sequence[ClassPair], shown: int = 5) -> str:
    names = [f"{pair.first} and {pair.second}" for pair in pairs[:shown]]
    more = [counted(len(pairs) - shown, "other pair")] if len(pairs) > shown else []
    return "; ".join([*names, *more])


# ---------------------------------------------------------------- of a study


def study_label_relations(
    folder: str | Path, objective: str | None = None, data: str | None = None
) -> tuple[LabelRelations, str]:
    """Which classes the runs of an objective confuse, and what these runs are in words.

    Without a name, the first objective of the study and its first data set are taken.
    """
    study = read_study_folder(Path(folder))
    name = _chosen("objective", objective, study.objectives)
    data_name = _chosen("data set", data, [cell[0] for cell in study.cells])
    cell = max((cell for cell in study.cells if cell[0] == data_name), key=lambda cell: cell[1])
    runs = _stored_runs(study, name, cell)
    if not runs:
        raise DataError(
            f"{folder} has no predictions of {name} on {cell_name(cell)}; only finished runs whose "
            "details were kept have some"
        )
    return _of_runs(runs), f"{name} on {cell_name(cell)}, {counted(len(runs), 'run')}"


def _chosen(kind: str, asked: str | None, known: Sequence[str]) -> str:
    if not known:
        raise DataError("the study has no finished run yet")
    if asked is None:
        return known[0]
    if asked not in known:
        raise DataError(f"the study has no {kind} {asked}{did_you_mean(asked, known)}")
    return asked


def _stored_runs(study: StudyFolder, objective: str, cell: Cell) -> list[Predictions]:
    found = [
        read_predictions(study.folder / "details" / f"{run.key}.json")
        for run in study.runs
        if run.objective == objective and run.cell == cell
    ]
    return [run for run in found if run is not None]


def _of_runs(runs: Sequence[Predictions]) -> LabelRelations:
    """The relations over all runs; runs may order their labels differently."""
    labels = list(dict.fromkeys(label for run in runs for label in run.labels))
    place = {label: i for i, label in enumerate(labels)}
    expected: list[int] = []
    predicted: list[int] = []
    texts: list[str] = []
    for run in runs:
        index = [place[label] for label in run.labels]
        expected += [index[c] for c in run.expected]
        predicted += [index[c] for c in run.predicted]
        texts += [run.texts.get(i, f"row {int(row) + 1}") for i, row in enumerate(run.rows)]
    return relate_labels(labels, np.array(expected), np.array(predicted), texts=texts)
