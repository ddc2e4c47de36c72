"""Vectors to search and cluster by: does fine-tuning on some classes help with these, and with
classes it never saw?

CLOSEKNIT_DATA=FOLDER python benchmarks/vectors.py [--data banking77 …] [--draws 0 1] [--only auto
…] [--out FILE]

Half of the classes of a data set, drawn anew each time, are known: 1,000 of their training rows are
learnt from. Then test rows of the known classes and those of the others, 1,000 of each at the most,
are turned into vectors, pooled by the mean for every objective. Two things are measured on each
half: the share of texts whose nearest other text is of the same class (search), and how well
k-means, told the number of classes, finds them (cluster; adjusted mutual information). The settings
of each objective are its defaults; nothing is chosen by the test rows. Every run is a line of
FILE.jsonl; runs that are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import Examples, catalogue, subset
from closeknit.encoders.config import EncoderConfig
from closeknit.encoders.inference import Floats, encode_texts
from closeknit.metrics import unit_rows
from closeknit.models.saved_model import versions

ROWS, TESTED = 1000, 1000
MEASURES = ("search", "cluster")
HALVES = ("known", "new")
OBJECTIVES: dict[str, dict[str, Any] | None] = {
    "the encoder as it is": None,
    "cross_entropy": {},
    "auto": {},
    "supcon": {},
    "supcon alone": {"name": "supcon", "ce_weight": 0.0},
    "soft_triple alone": {"name": "soft_triple", "ce_weight": 0.0},
    "triplet alone": {"name": "triplet", "ce_weight": 0.0},
}


def halves(data: str, draw: int) -> tuple[Examples, dict[str, Examples]]:
    """The rows to learn from, and the test rows of known and of new classes."""
    parts = catalogue.load(data).parts
    train, test = parts["train"], parts["test"]
    names = np.random.default_rng(draw).permutation(train.classes)
    known = set(names[: len(names) // 2].tolist())

    def drawn(part: Examples, wanted: bool, most: int) -> Examples:
        own = part.select(
            i for i, label in enumerate(part.required_labels) if (label in known) == wanted
        )
        return own.select(subset(own.required_labels, min(most, len(own)), draw))

    return drawn(train, True, ROWS), {
        "known": drawn(test, True, TESTED),
        "new": drawn(test, False, TESTED),
    }


def scores(z: Floats, labels: list[str], seed: int) -> dict[str, float]:
    unit, y = unit_rows(z), np.asarray(labels)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: npt.NDArray[np.bool_] = y[cosines.argmax(axis=1)] == y
    groups = KMeans(len(set(labels)), n_init=10, random_state=seed).fit_predict(unit)
    return {
        "search": float(nearest.mean()),
        "cluster": float(adjusted_mutual_info_score(y, groups)),
    }


def run(data: str, objective: str, draw: int) -> dict[str, Any]:
    train, tested = halves(data, draw)
    options = OBJECTIVES[objective]
    if options is None:
        encoder, tokeniser = EncoderConfig(pooling="mean").load()
        vectors = {
            half: encode_texts(encoder, tokeniser, rows.texts) for half, rows in tested.items()
        }
    else:
        tables = {
            "encoder": {"pooling": "mean"},
            "objective": {"name": objective, **options},
            "train": {"seed": draw},
        }
        model = ClassifierFit(train, RunConfig.from_dict(tables)).run()
        vectors = {half: model.outputs(rows)[1] for half, rows in tested.items()}
    found = {
        half: scores(vectors[half], rows.required_labels, draw) for half, rows in tested.items()
    }
    return {"data": data, "objective": objective, "draw": draw, **found, "versions": versions()}


def table(rows: list[dict[str, Any]]) -> str:
    sets = list(dict.fromkeys(row["data"] for row in rows))
    titles = [
        f"{data}, {half} classes: {measure}"
        for data in sets
        for half in HALVES
        for measure in MEASURES
    ]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    for objective in OBJECTIVES:
        cells = []
        for data in sets:
            own = [row for row in rows if row["data"] == data and row["objective"] == objective]
            for half in HALVES:
                for measure in MEASURES:
                    values = [100 * row[half][measure] for row in own]
                    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
                    cells.append(f"{np.mean(values):.1f}{spread} ({len(values)})" if values else "")
        lines.append(f"| {objective} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", help="default banking77")
    parser.add_argument("--draws", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--only", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "vectors.jsonl"
    )
    options = parser.parse_args()
    if options.data is None and not ("CLOSEKNIT_DATA" in os.environ and torch.cuda.is_available()):
        print(
            "vectors.py skipped: it needs CLOSEKNIT_DATA, and an hour without a GPU; --data NAME runs it"
        )
        return
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["data"], row["objective"], row["draw"]) for row in rows}
    for draw in options.draws:
        for data in options.data or ["banking77"]:
            for objective in options.only:
                if (data, objective, draw) in done:
                    continue
                rows.append(run(data, objective, draw))
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(data, draw, objective, {half: rows[-1][half] for half in HALVES}, flush=True)
    text = (
        "# Vectors to search and cluster by, after fine-tuning on half of the classes\n\n"
        f"{ROWS:,} rows of the known classes; up to {TESTED:,} test rows of known and of new classes; mean pooling throughout; "
        "points, mean ± standard deviation (draws). Search: the nearest other text is of the same class. Cluster: adjusted "
        "mutual information of k-means.\n\n" + table(rows) + "\n"
    )
    print(text)
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
