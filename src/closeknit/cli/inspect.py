"""Commands that list and describe objectives and data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from closeknit.cli.options import DataSetOption, chosen_columns
from closeknit.errors import ConfigError


def objectives(
    name: Annotated[str | None, typer.Argument(help="The objective to describe.")] = None,
) -> None:
    """List all objectives, or describe one and its options."""
    from closeknit.objectives import OBJECTIVES, describe

    if name is not None:
        print(describe(name))
        return
    width = max(len(known) for known in OBJECTIVES)
    for known, objective in OBJECTIVES.items():
        print(f"{known:<{width}}  {objective.summary.splitlines()[0]}")


def data(
    name: Annotated[
        str | None,
        typer.Argument(help="The data set to describe: a name from the list, a file or a folder."),
    ] = None,
    set_: DataSetOption = None,
) -> None:
    """List the known data sets, or describe one."""
    from closeknit.data.catalogue import CATALOGUE, catalogue_name, describe_source, load

    if name is None:
        if set_:
            raise ConfigError("--set names columns of a data set; name the data set too")
        width = max(len(known) for known in CATALOGUE)
        for known, entry in CATALOGUE.items():
            print(f"{known:<{width}}  {entry.about}  [{describe_source(known)}]")
        return
    found = CATALOGUE.get(catalogue_name(name))
    scored = found is not None and found.scored
    loaded = load(name, chosen_columns(None, set_), target="score" if scored else "label")
    for part, examples in loaded.parts.items():
        kind = "pairs of texts" if examples.pairs else "texts"
        if examples.scores:
            low, high = min(examples.scores), max(examples.scores)
            print(f"{loaded.name} {part}: {len(examples)} {kind}, scores from {low:g} to {high:g}")
            continue
        labels = examples.required_labels
        print(f"{loaded.name} {part}: {len(examples)} {kind}, {len(examples.classes)} classes")
        for label in examples.classes:
            print(f"  {labels.count(label):6d}  {label}")
