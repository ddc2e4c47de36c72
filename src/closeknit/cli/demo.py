"""The command that shows in a few minutes what Closeknit does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closeknit.cli.options import stoppable
from closeknit.errors import ConfigError


def demo(
    out: Annotated[Path, typer.Option(help="The folder for results, picture and model.")] = Path(
        "demo"
    ),
    encoder: Annotated[
        str | None, typer.Option(help="Another encoder than the bundled all-MiniLM-L6-v2.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds to compare on.", min=2, max=10)] = 3,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard the runs that are already in --out.")
    ] = False,
) -> None:
    """Compare two objectives on the bundled messages.

    The two are cross-entropy and TripleEntropy. This takes a few minutes on two cores. If the
    command was stopped, the same command does the runs that are missing.
    """
    from closeknit.cli.demo_run import run_demo

    if out.is_file():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    with stoppable(f"stopped; the same command does the runs that are missing in {out}"):
        done = run_demo(out, folds=folds, encoder=encoder, overwrite=overwrite)
    print(f"\n{done.table}\n\n{done.words}")
    share = f"{100 * done.test_accuracy:.1f} % of {done.test_rows} unseen messages"
    print(f"\nThe saved model classifies {share} correctly:")
    for text, label, probability in done.answers:
        print(f"  {label} ({probability:.2f}): {text}")
    print(f"\nmodel: {done.model}")
    if done.picture:
        print(f"picture: {done.picture}")
    print(f"report: {done.report}")
