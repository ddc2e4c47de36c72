"""Commands that train: a classifier, a sentence encoder, several tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from closeknit.cli.shared import (
    DataArgument,
    JsonOption,
    SetOption,
    app,
    print_json,
    print_scores,
    print_tasks,
    stoppable,
)
from closeknit.errors import ConfigError
from closeknit.settings import changed_tables, given_options, parse_changes


@app.command(epilog="Example: closeknit train messages --objective triple_entropy --out runs/first")
def train(
    data: DataArgument,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Default auto, the recipe to start with; `closeknit objectives` lists them."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The model folder; default runs/DATA-OBJECTIVE.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A hub name, a folder, or textcnn; default the bundled all-MiniLM-L6-v2."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training rows; default 10, for auto 3 to 30 by their number."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Rows an update; default 64, for auto 16 or 32 by their number."),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of the encoder; default 5e-5 at 768 dimensions, 1e-4 at 384, for auto times 0.5 to 1.5."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is random; default 2.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A run file in TOML; the options here go before it.")
    ] = None,
    set_: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run in --out.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model in --out.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune a classifier on labelled texts and save it.

    The data needs the columns text and label (and text2 for pairs); name others with --set data.text=COLUMN. A
    data set with neither a test nor a validation part has a fifth of its rows held out to score the model.
    """
    from closeknit.classification.run import train_in_folder
    from closeknit.config import read_config

    named = {
        "objective.name": objective,
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.seed": seed,
    }
    run = read_config(config, set_ or [], options=named)
    folder = (
        out or Path("runs") / f"{Path(data).resolve().name.partition('.')[0]}-{run.objective.name}"
    )
    with stoppable("stopped before the first step"):
        metrics = train_in_folder(data, run, folder, resume=resume, overwrite=overwrite)
    if not metrics:  # not the first of several processes
        return
    if json:
        print_json({"model": str(folder), **metrics})
        return
    for part in ("validation", "test"):
        if part in metrics:
            print_scores(metrics[part], part)
    if "test" not in metrics and "validation" not in metrics:
        print("there was no test part to score it on")
    print(f"model: {folder}")


@app.command(
    epilog="Example: closeknit embeddings sentences.txt --method simcse --encoder bert-base-uncased --out encoder"
)
def embeddings(
    data: Annotated[
        str,
        typer.Argument(
            help="A text file with a line each, or a table with text, with text and text2, or with text, text2 and negative."
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="simcse, mirror or multiple_negatives; default simcse, for pairs multiple_negatives."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="A hub name or a folder; default the bundled all-MiniLM-L6-v2."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the new sentence encoder.")] = Path(
        "runs/encoder"
    ),
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows; default by method, 1 to 3.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Texts that meet, each the others' negatives; default by method, 64 to 512."
        ),
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(help="Rows in memory at once; the batch and its gradients stay whole."),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate; default by method: 3e-5 to 5e-5, at 384 dimensions up to 1e-4."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is random; default 2.")] = None,
    pooling: Annotated[str | None, typer.Option(help="mean (default), first or own.")] = None,
    validation: Annotated[
        str | None,
        typer.Option(help="Scored pairs (text1, text2, score): the best state on them is kept."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column that holds the text.")] = None,
    text2: Annotated[str | None, typer.Option(help="The column of what belongs to it.")] = None,
    negative: Annotated[str | None, typer.Option(help="The column of what does not.")] = None,
    label: Annotated[
        str | None,
        typer.Option(help="A column of classes: rows of one class are no negatives of each other."),
    ] = None,
    mine: Annotated[
        bool, typer.Option("--mine", help="Find a hard negative for each pair first.")
    ] = False,
    adapt_epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes of masked-language modelling over the texts beforehand; default 0."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A run file in TOML; the options here go before it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, like method.temperature=0.04; repeatable."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run in --out.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the encoder in --out.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Turn a language model into a sentence encoder, from texts alone, from pairs or from triplets.

    The folder opens in sentence-transformers with the same vectors.
    """
    from closeknit.data.scored_pairs import read_scored_pairs
    from closeknit.data.sentences import read_sentences
    from closeknit.embedding_config import with_recipe
    from closeknit.embeddings.run import embed_in_folder
    from closeknit.settings import read_toml

    columns = {
        role: name
        for role, name in (
            ("text", text),
            ("text2", text2),
            ("negative", negative),
            ("label", label),
        )
        if name is not None
    }
    found = read_sentences(data, columns=columns)
    paired = len(found.columns) > 1
    named = {
        "method.name": method,
        "method.adapt_epochs": adapt_epochs,
        "encoder.name": encoder,
        "encoder.pooling": pooling,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.chunk_size": chunk_size,
        "train.lr": lr,
        "train.seed": seed,
    }
    tables = changed_tables(
        read_toml(config) if config else {}, [*given_options(named), *parse_changes(set_ or [])]
    )
    if len(found.columns) == 2 and isinstance(tables.setdefault("method", {}), dict):
        tables["method"].setdefault("name", "multiple_negatives")
    run = with_recipe(tables, len(found.columns) + (mine and paired))
    pairs = read_scored_pairs(validation, prefer="validation") if validation else None
    with stoppable("stopped before the first step"):
        metrics = embed_in_folder(
            found, run, out, validation=pairs, mine=mine, resume=resume, overwrite=overwrite
        )
    if not metrics:
        return
    if json:
        print_json({"encoder": str(out), **metrics})
        return
    for name, key in (("before", "before"), ("after", "validation")):
        if key in metrics:
            shown = "  ".join(
                f"{measure} {metrics[key][measure]:.4f}"
                for measure in ("spearman", "alignment", "uniformity", "anisotropy")
            )
            print(f"{name}: {shown}")
    print(f"encoder: {out}")


@app.command(epilog="Example: closeknit multitask exp14 --scale 0.02 --out runs/trial")
def multitask(
    study: Annotated[
        str,
        typer.Argument(
            help="A study file in TOML, or a recipe: exp01 to exp15 are the experiments of the multi-task paper."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The model folder; default runs/STUDY.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Other data for a task, like sts=pairs.csv; repeatable."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A hub name, a folder, or textcnn; default the study's, else all-MiniLM-L6-v2."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of the schedule; `docs/multitask.md` says what one is."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a task in an update.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the encoder; heads go at ten times it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is random; default 2.")] = None,
    scale: Annotated[
        float,
        typer.Option(
            help="A trial: this share of the epochs and of the rows of every part, like 0.02."
        ),
    ] = 1.0,
    alone: Annotated[
        bool, typer.Option("--alone", help="First train every task by itself, to compare with.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change one setting, like schedule.name=random or tasks.sts.weight=2; repeatable.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run in --out.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model in --out.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train one encoder for several tasks: classes of texts, classes of pairs, scores of pairs.

    The study file has a table for each task, like [tasks.mood] with data = "mood.csv" and kind = "classify"; the other kinds are
    "pair_classify" (columns text, text2 and label) and "pair_score" (text, text2 and score). [schedule], [shared], [encoder],
    [train] and [pretrain] stand where something else than the defaults is meant. The state with the best average is kept.
    """
    from closeknit.multitask.config import read_multitask
    from closeknit.multitask.run import multitask_in_folder
    from closeknit.reports.multitask_page import write_multitask_report

    named = {
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.head_lr": None if lr is None else 10 * lr,
        "train.seed": seed,
    }
    for pair in data or []:
        task, equals, source = pair.partition("=")
        if not equals or not source:
            raise ConfigError(f"--data is {pair}; write it as TASK=SOURCE, like sts=pairs.csv")
        named[f"tasks.{task}.data"] = source
    config = read_multitask(study, set_ or [], options=named)
    if scale != 1.0:
        config = config.scaled(scale)
    folder = out or Path("runs") / Path(study).stem
    with stoppable("stopped before the first step"):
        metrics = multitask_in_folder(
            config, folder, alone=alone, resume=resume, overwrite=overwrite
        )
    if not metrics:  # not the first of several processes
        return
    page = write_multitask_report(folder)
    if json:
        print_json({"model": str(folder), **metrics})
        return
    if "test" in metrics or "validation" in metrics:
        print_tasks(metrics, {name: task.measure for name, task in config.tasks.items()})
    else:
        print("there was neither a validation nor a test part to score it on")
    print(f"\nmodel: {folder}\nreport: {page}")
