"""Commands that compare objectives, and write reports."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.cli.options import EncoderOption, JsonOption, all_changes, stoppable
from closeknit.cli.output import print_json
from closeknit.errors import ConfigError

if TYPE_CHECKING:
    from closeknit.studies.statistics import Line
    from closeknit.studies.study import Study


def compare(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders or names of data sets. The file --config may name them instead."
        ),
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="Names, separated by commas; the first is the baseline. "
            "Default: cross_entropy,triple_entropy."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder of the study. If it exists, the study is resumed.")
    ] = Path("runs/comparison"),
    encoder: EncoderOption = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Rows to draw for each seed, as in 1000,4000 or all. Default: 1000; with --test "
            "official all training rows."
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            help="Where the test rows come from: folds (cross-validation), official (the test part "
            "of the data set) or rest (the rows that --shots leaves over). Default: folds, or rest "
            "with --shots."
        ),
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option(
            help="Training rows of each class, drawn anew for each seed, as in 8,16,64. In place "
            "of --sizes."
        ),
    ] = None,
    shared_texts: Annotated[
        str | None,
        typer.Option(
            help="Texts of the official test part that also stand in the training rows: refuse "
            "them, drop them from the training rows, or keep them. Default: refuse; drop for data "
            "sets of the catalogue."
        ),
    ] = None,
    equal_texts: Annotated[
        str | None,
        typer.Option(
            help="Rows with the same text: keep them together in one fold, or let them be divided "
            "between training and test rows. Default: together; divided in a folder with older runs."
        ),
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Folds per seed. Default: 5.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, separated by commas. Default: 2,16,128,2048.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Search for the best settings before each run: a number of settings to try, grid "
            "to try all, or none, which overrides the file --config."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How to search: tpe (the default, extra search), halving, random or grid."
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Where to search: default, or paper for the grid of the TripleEntropy paper."
        ),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            help="Choose the settings on parts of each training fold (nested, the default), or on "
            "the reported folds (paper)."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training rows. Default: 10.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per update. Default: 64.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the encoder.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A study file in TOML. Command-line options override the file."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting for all objectives, as in train.warmup=0.1; an option of every "
            "objective that has it, as in objective.copies=2; or an option of one objective, as "
            "in triple_entropy.centers=100. Repeatable.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes on this machine; 0 means no other process.", min=0)
    ] = 0,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster, as in auto or 10.0.0.1:6379 (extra cluster)."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            help="CPU threads per run. Default: an equal share of the cores; on Ray 1.", min=0
        ),
    ] = 0,
    gpus: Annotated[float, typer.Option(help="GPUs per run on Ray, as in 1 or 0.25.", min=0)] = 0.0,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Discard the runs in --out as soon as the first new run is finished.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Compare objectives on the same rows, with tests.

    The study has one run for each data set, size, objective, seed and fold. Each finished run is a
    line of results.jsonl in the folder --out. If the command was stopped, the same command does the
    runs that are missing. At the end it writes table.csv, table.md and report.html.
    Cross-validation uses the training set of a data set, or all rows if it has no parts. With
    --test official the training set is trained on and the test set is tested on, once per seed.
    """
    from closeknit.console import say
    from closeknit.reports.study_page import write_report
    from closeknit.settings import changed_tables
    from closeknit.studies.run import Place, finish_study
    from closeknit.studies.study_file import read_study

    given = {
        "data": list(data) if data else None,
        "objectives": _names("--objectives", objectives),
        "sizes": _whole_numbers("--sizes", sizes, number_for_all=0),
        "test": test,
        "shots": _whole_numbers("--shots", shots),
        "shared_texts": shared_texts,
        "equal_texts": equal_texts,
        "folds": folds,
        "seeds": _whole_numbers("--seeds", seeds),
        "selection": selection,
        "search": _search_settings(search, method, space),
    }
    named = {
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
    }
    study = read_study(config, given, changed_tables({}, all_changes(named, set_)))
    place = Place(workers, ray, threads, gpus)
    with stoppable(f"stopped; the same command does the runs that are missing in {out}"):
        command = "closeknit " + shlex.join(sys.argv[1:])
        lines = finish_study(study, out, place=place, command=command, overwrite=overwrite).lines
        say("writing the report")
        page = write_report(out, lines)
    if json:
        print_json({"out": str(out), "lines": [dataclasses.asdict(line) for line in lines]})
        return
    _print_lines(study, lines)
    print(f"\nresults: {out / 'results.jsonl'}")
    print(f"tables: {out / 'table.md'}, {out / 'table.csv'}")
    print(f"report: {page}")


def _print_lines(study: Study, lines: Sequence[Line]) -> None:
    """Print the tables of a study, then each comparison in words."""
    from closeknit.studies.statistics import overall_gains
    from closeknit.studies.statistics.in_words import (
        gain_in_words,
        means_in_words,
        optimistic_in_words,
        overall_in_words,
    )
    from closeknit.studies.tables import (
        accuracy_table,
        confidence_table,
        markdown_table,
        near_table,
        paper_table,
    )

    if optimistic_in_words(lines):
        print(f"{optimistic_in_words(lines)}\n")
    print(f"{paper_table(lines)}\n\n{markdown_table(lines)}\n")
    for overall in overall_gains(lines):
        print(overall_in_words(overall, study.reference))
    for line in lines:
        if line.gain is not None:
            print(gain_in_words(line, study.reference))
    if means_in_words(lines):
        print(means_in_words(lines))
    for table in (accuracy_table(lines), near_table(lines), confidence_table(lines)):
        if table:
            print(f"\n{table}")


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder that `closeknit compare` wrote, finished or not, or one that `closeknit "
            "multitask` wrote."
        ),
    ],
) -> None:
    """Write the report of a study, or of several tasks.

    The file report.html has tables with statistical tests in plain words, charts, and an analysis
    of the errors.
    """
    from closeknit.reports.multitask_page import write_multitask_report
    from closeknit.reports.study_page import write_report

    if folder.is_file():
        raise ConfigError(f"{folder} is a file; name the folder of a study")
    multitask = (folder / "closeknit.json").exists() or (folder / "checkpoints").is_dir()
    print(write_multitask_report(folder) if multitask else write_report(folder))


# ---------------------------------------------------------------- reading the options


def _search_settings(
    search: str | None, method: str | None, space: str | None
) -> dict[str, Any] | None:
    """The settings of the search: an empty table for no search, None if there is no option."""
    settings: dict[str, Any] = {}
    if search == "none":
        if method is not None or space is not None:
            raise ConfigError("--search none goes with neither --method nor --space")
        return settings
    if search == "grid":
        settings["method"] = "grid"
    elif search is not None and search.isdecimal() and int(search) > 0:
        settings["trials"] = int(search)
    elif search is not None:
        raise ConfigError(f"--search is {search}; give a number of settings to try, grid or none")
    if method is not None:
        settings["method"] = method
    if space is not None:
        settings["space"] = space
    return settings or None


def _names(option: str, text: str | None) -> list[str] | None:
    """The names between commas; None if the option is not given."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f'{option} is "{text}"; give at least one value, or leave the option out')
    return names


def _whole_numbers(
    option: str, text: str | None, number_for_all: int | None = None
) -> list[int] | None:
    """`2,16` as [2, 16]; if `all` is allowed, it counts as `number_for_all`."""
    names = _names(option, text)
    if names is None:
        return None
    numbers: list[int] = []
    for name in names:
        if name == "all" and number_for_all is not None:
            numbers.append(number_for_all)
        elif name.isdecimal():
            numbers.append(int(name))
        else:
            raise ConfigError(
                f"{option} is {text}; give whole numbers, separated by commas, as in 2,16"
            )
    return numbers
