"""Commands that compare objectives, and write reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from closeknit.cli.shared import JsonOption, app, print_json, stoppable
from closeknit.errors import ConfigError
from closeknit.settings import changed_tables, given_options, parse_changes
from closeknit.studies.run import finish_study
from closeknit.study_tables import gain_in_words


@app.command(
    epilog="Example: closeknit compare messages --objectives cross_entropy,triple_entropy --sizes 300 --seeds 2"
)
def compare(
    data: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or catalogue names; may stand in --config instead."),
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between; the first is the baseline. Default cross_entropy,triple_entropy."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The study's folder; started again, it goes on.")
    ] = Path("runs/comparison"),
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A hub name, a folder, or textcnn; default the bundled all-MiniLM-L6-v2."
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(help="Rows to draw for each seed, like 1000,4000 or all; default 1000."),
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Folds of each seed; default 5.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Default 2,16,128,2048.")] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Search settings before each run: how many to try, or grid for all of the space; none: as they are, "
            "whatever --config says."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="How to search: tpe (default, extra search), halving, random or grid."),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="What to search: default, or paper for the grid of the TripleEntropy paper."
        ),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            help="Choose settings on parts of each training fold (nested, the default), or on the reported folds (paper)."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training rows; default 10.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows an update; default 64.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the encoder.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A study file in TOML; the options here go before it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting for all, like train.warmup=0.1, or an option of one, like triple_entropy.centers=100; repeatable.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes on this machine; 0 runs in this one.", min=0)
    ] = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Address of a Ray cluster to run on, like auto or 10.0.0.1:6379 (extra cluster)."
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(help="Threads (CPUs) a run; default the cores shared out, on Ray 1.", min=0),
    ] = 0,
    gpus: Annotated[
        float, typer.Option(help="GPUs a run asks for on Ray, like 1 or 0.25.", min=0)
    ] = 0.0,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Discard the runs in --out, once the first new one is done."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare objectives on the same folds: data sets x sizes x objectives x seeds x folds, with tests.

    Each finished run is a line of results.jsonl in --out. Stopped or killed, the same command goes on with the runs that are
    missing. At the end: table.csv, table.md and report.html. Cross-validation takes the train part (or all) of a data set.
    """
    import shlex

    from closeknit.progress import say
    from closeknit.reports.study_page import write_report
    from closeknit.studies.run import Place
    from closeknit.studies.study_file import read_study
    from closeknit.study_statistics import overall_gains
    from closeknit.study_tables import OPTIMISTIC, markdown_table, overall_in_words, paper_table

    asked: dict[str, Any] = {}
    if search is not None:
        if search == "none":
            if method is not None or space is not None:
                raise ConfigError("--search none goes with neither --method nor --space")
        elif search == "grid":
            asked["method"] = "grid"
        elif search.isdecimal() and int(search) > 0:
            asked["trials"] = int(search)
        else:
            raise ConfigError(
                f"--search is {search}; give a number of settings to try, grid or none"
            )
    asked |= {
        key: value for key, value in (("method", method), ("space", space)) if value is not None
    }
    study_options = {
        "data": list(data) if data else None,
        "objectives": _names(objectives),
        "sizes": _whole_numbers("--sizes", sizes, all_is=0),
        "folds": folds,
        "seeds": _whole_numbers("--seeds", seeds),
        "selection": selection,
        "search": asked or ({} if search == "none" else None),
    }
    named = {
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
    }
    changes = changed_tables({}, [*given_options(named), *parse_changes(set_ or [])])
    study = read_study(config, study_options, changes)
    place = Place(workers, ray, threads, gpus)
    with stoppable(f"stopped; the same command goes on with the runs that are missing in {out}"):
        command = "closeknit " + shlex.join(sys.argv[1:])
        lines = finish_study(study, out, place=place, command=command, overwrite=overwrite).lines
        say("writing the report")
        page = write_report(out, lines)
    if json:
        import dataclasses

        print_json({"out": str(out), "lines": [dataclasses.asdict(line) for line in lines]})
        return
    if study.search and study.selection == "paper":
        print(f"{OPTIMISTIC}\n")
    print(f"{paper_table(lines)}\n\n{markdown_table(lines)}\n")
    for overall in overall_gains(lines):
        print(overall_in_words(overall, study.reference))
    for line in lines:
        if line.gain is not None:
            print(gain_in_words(line, study.reference))
    print(
        f"\nresults: {out / 'results.jsonl'}\ntables: {out / 'table.md'}, {out / 'table.csv'}\nreport: {page}"
    )


@app.command(epilog="Example: closeknit report runs/comparison")
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder that `closeknit compare`, finished or not, or `closeknit multitask` wrote."
        ),
    ],
) -> None:
    """Write report.html for a study: tables with tests in plain words, charts, and an analysis of the errors."""
    from closeknit.reports.multitask_page import write_multitask_report
    from closeknit.reports.study_page import write_report

    several = (folder / "closeknit.json").exists() or (folder / "checkpoints").is_dir()
    print(write_multitask_report(folder) if several else write_report(folder))


# ---------------------------------------------------------------- what these share


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _whole_numbers(option: str, text: str | None, all_is: int | None = None) -> list[int] | None:
    """`2,16` -> [2, 16]; where it has a meaning, `all` too."""
    found: list[int] = []
    for name in _names(text) or []:
        if name == "all" and all_is is not None:
            found.append(all_is)
        elif name.isdecimal():
            found.append(int(name))
        else:
            raise ConfigError(
                f"{option} is {text}; give whole numbers with commas between, like 2,16"
            )
    return found or None
