"""Commands to look around: objectives, data sets, the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closeknit.cli.shared import DataSetOption, app, chosen_columns, stoppable


@app.command(epilog="Example: closeknit objectives triple_entropy")
def objectives(
    name: Annotated[str | None, typer.Argument(help="Tell more of this one.")] = None,
) -> None:
    """List the objectives that `train` knows, or explain one."""
    from closeknit.objectives import OBJECTIVES, describe

    if name is not None:
        print(describe(name))
        return
    width = max(len(known) for known in OBJECTIVES)
    for known, objective in OBJECTIVES.items():
        print(f"{known:<{width}}  {objective.summary.splitlines()[0]}")


@app.command(epilog="Example: closeknit data messages")
def data(
    name: Annotated[
        str | None, typer.Argument(help="Count its rows and classes; also a file or folder.")
    ] = None,
    set_: DataSetOption = None,
) -> None:
    """List the data sets of the catalogue, or describe one."""
    from closeknit.data.catalogue import CATALOGUE, describe_source, load

    if name is None:
        width = max(len(known) for known in CATALOGUE)
        for known, entry in CATALOGUE.items():
            print(f"{known:<{width}}  {entry.about}  [{describe_source(known)}]")
        return
    scored = name in CATALOGUE and CATALOGUE[name].scored
    found = load(name, chosen_columns(None, set_), target="score" if scored else "label")
    for part, examples in found.parts.items():
        kind = "pairs of texts" if examples.pairs else "texts"
        if examples.scores:
            low, high = min(examples.scores), max(examples.scores)
            print(f"{found.name} {part}: {len(examples)} {kind}, scores from {low:g} to {high:g}")
            continue
        labels = examples.required_labels
        print(f"{found.name} {part}: {len(examples)} {kind}, {len(examples.classes)} classes")
        for label in examples.classes:
            print(f"  {labels.count(label):6d}  {label}")


@app.command(epilog="Example: closeknit demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Where results, picture and model go.")] = Path("demo"),
    encoder: Annotated[
        str | None, typer.Option(help="Another encoder than the bundled one.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds to compare on.", min=2, max=10)] = 3,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard the runs that are in --out already.")
    ] = False,
) -> None:
    """Fine-tune with cross-entropy and with TripleEntropy on the bundled messages, and compare them.

    Takes a few minutes on two cores. Started again, it goes on with the runs that are missing.
    """
    from closeknit.demo import run_demo

    with stoppable(f"stopped; the same command goes on with the runs that are missing in {out}"):
        found = run_demo(out, folds=folds, encoder=encoder, overwrite=overwrite)
    print(f"\n{found.table}\n\n{found.words}")
    print(
        f"\nOn {found.test_rows} messages it never saw, the saved model is right in {100 * found.test_accuracy:.1f} %:"
    )
    for text, label, probability in found.answers:
        print(f"  {label} ({probability:.2f}): {text}")
    print(f"\nmodel: {found.model}" + (f"\npicture: {found.picture}" if found.picture else ""))
    print(f"report: {found.report}")
