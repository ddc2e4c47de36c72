"""Commands that train: a classifier, a sentence encoder, a model of several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.cli.options import (
    ConfigOption,
    DataArgument,
    EncoderOption,
    JsonOption,
    OverwriteOption,
    ResumeOption,
    SeedOption,
    SetOption,
    all_changes,
    stoppable,
)
from closeknit.cli.output import print_json, print_scores, print_tasks
from closeknit.errors import ConfigError

if TYPE_CHECKING:
    from closeknit.data.sentences import Sentences
    from closeknit.embeddings.config import EmbeddingConfig

STOPPED_EARLY = "stopped before the first step"


def train(
    data: DataArgument,
    objective: Annotated[
        str | None,
        typer.Option(help="A name that `closeknit objectives` lists. Default: auto, a good start."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the model. Default: runs/DATA-OBJECTIVE.")
    ] = None,
    encoder: EncoderOption = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Passes over the training rows. Default: 10; for auto 3 to 30, fewer with more rows."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Rows per update. Default: 64; for auto 16 with few rows, else 32."),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of the encoder. Default: 5e-5 at 768 dimensions, 1e-4 at 384; "
            "auto multiplies it by 0.5 to 1.5."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="The metric that chooses the best epoch: weighted_f1 (the default), accuracy, "
            "macro_f1, mcc, or for two classes auc."
        ),
    ] = None,
    seed: SeedOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune a classifier on labelled texts and save it.

    The data need the columns text and label, and text2 for pairs; --set data.text=COLUMN names
    another column. If the data have neither a test nor a validation set, a fifth of the rows is
    held out to score the model.
    """
    from closeknit.classification.config import read_config
    from closeknit.classification.run import train_in_folder

    named = {
        "objective.name": objective,
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.metric": metric,
        "train.seed": seed,
    }
    run = read_config(config, set_ or [], options=named)
    name = Path(data).resolve().name.partition(".")[0]
    folder = out or Path("runs") / f"{name}-{run.objective.name}"
    with stoppable(STOPPED_EARLY):
        metrics = train_in_folder(data, run, folder, resume=resume, overwrite=overwrite)
    if not metrics:  # this is not the process that prints
        return
    if json:
        print_json({"model": str(folder), **metrics})
        return
    for part in ("validation", "test"):
        if part in metrics:
            print_scores(metrics[part], part)
    if "test" not in metrics and "validation" not in metrics:
        print("the data have no test set, so the model was not scored")
    print(f"model: {folder}")


def embeddings(
    data: Annotated[
        str,
        typer.Argument(
            help="A text file with one text per line, or a table with the column text, with text "
            "and text2, or with text, text2 and negative."
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            help="simcse, mirror or multiple_negatives. Default: simcse; for pairs "
            "multiple_negatives."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A name on the Hugging Face Hub, or a folder. Default: all-MiniLM-L6-v2."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the new sentence encoder.")] = Path(
        "runs/encoder"
    ),
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows. Default: 1 to 3, by method.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Rows per update; each row is compared with all others. Default: 64 to 512, by "
            "method."
        ),
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(help="Rows in memory at once. The gradient is still that of the whole batch."),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate. Default: 3e-5 to 5e-5, by method; up to 1e-4 at 384 dimensions."
        ),
    ] = None,
    seed: SeedOption = None,
    pooling: Annotated[
        str | None, typer.Option(help="mean, first or own (the encoder's pooler). Default: mean.")
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            help="A table of pairs with scores (text1, text2, score). The state with the best "
            "score on them is kept."
        ),
    ] = None,
    evaluate: Annotated[
        list[str] | None,
        typer.Option(
            help="sts, words, one of their data sets, or a file of scored pairs: show the scores "
            "before and after the training. Repeatable."
        ),
    ] = None,
    exclude_evaluated: Annotated[
        bool,
        typer.Option(
            "--exclude-evaluated",
            help="Drop the rows with a text that occurs in --evaluate or --validation.",
        ),
    ] = False,
    control: Annotated[
        str | None,
        typer.Option(
            help="random: also train on random strings, and show how much of the gain they give."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text.")] = None,
    text2: Annotated[str | None, typer.Option(help="The column of the matching text.")] = None,
    negative: Annotated[
        str | None, typer.Option(help="The column of a text that does not match.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="A column of classes: rows of one class are not used as negatives."),
    ] = None,
    mine: Annotated[
        bool, typer.Option("--mine", help="First find a hard negative for each pair.")
    ] = False,
    adapt_epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of masked-language modelling before the training. Default: 0."),
    ] = None,
    config: ConfigOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change one setting, as in method.temperature=0.04. Repeatable."
        ),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Train a sentence encoder on texts, pairs or triplets.

    The start is a language model, or another sentence encoder. The folder can be opened with
    sentence-transformers, which gives the same vectors.
    """
    from closeknit.console import say
    from closeknit.data.scored_pairs import read_scored_pairs
    from closeknit.data.sentences import read_sentences
    from closeknit.embeddings.control import evaluation_sets
    from closeknit.embeddings.run import embed_in_folder

    roles = {"text": text, "text2": text2, "negative": negative, "label": label}
    columns = {role: name for role, name in roles.items() if name is not None}
    sentences = read_sentences(data, columns=columns)
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
    run = _embedding_config(sentences, config, all_changes(named, set_), mine)
    pairs = read_scored_pairs(validation, prefer="validation") if validation else None
    with stoppable(STOPPED_EARLY):
        metrics = embed_in_folder(
            sentences,
            run,
            out,
            validation=pairs,
            evaluate=evaluation_sets(evaluate, log=say),
            exclude_evaluated=exclude_evaluated,
            control=control,
            mine=mine,
            resume=resume,
            overwrite=overwrite,
        )
    if not metrics:  # this is not the process that prints
        return
    if json:
        print_json({"encoder": str(out), **metrics})
        return
    _print_geometry(metrics)
    _print_evaluation(metrics)
    print(f"encoder: {out}")


def _embedding_config(
    sentences: Sentences, config: Path | None, changes: list[tuple[str, Any]], mine: bool
) -> EmbeddingConfig:
    """The settings of the run; the default method depends on the number of columns."""
    from closeknit.embeddings.config import with_recipe
    from closeknit.settings import changed_tables, read_toml

    tables = changed_tables(read_toml(config) if config else {}, changes)
    columns = len(sentences.columns)
    if columns == 2 and isinstance(tables.setdefault("method", {}), dict):
        tables["method"].setdefault("name", "multiple_negatives")
    mined = mine and columns > 1  # a mined negative is one column more
    return with_recipe(tables, columns + mined)


def _print_geometry(metrics: Mapping[str, Any]) -> None:
    """Print the scores on the validation pairs before and after the training."""
    measures = ("spearman", "alignment", "uniformity", "anisotropy")
    for title, key in (("before", "before"), ("after", "validation")):
        if key in metrics:
            shown = "  ".join(f"{measure} {metrics[key][measure]:.4f}" for measure in measures)
            print(f"{title}: {shown}")


def _print_evaluation(metrics: Mapping[str, Any]) -> None:
    """Print the scores on the evaluation sets before and after, and those of the control."""
    from closeknit.embeddings.control import evaluation_table

    if "evaluation" in metrics:
        print(evaluation_table(metrics["evaluation"]))


def multitask(
    study: Annotated[
        str,
        typer.Argument(
            help="A file with the tasks in TOML, or a recipe: exp01 to exp15 are the experiments "
            "of the multi-task paper; docs/multitask.md lists their controls."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder of the model. Default: runs/STUDY.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Other data for a task, as in sts=pairs.csv. Repeatable."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="A name on the Hugging Face Hub, a folder, or textcnn. Default: that of the file, "
            "else all-MiniLM-L6-v2."
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Epochs of the task schedule; docs/multitask.md says what one is."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a task per update.")] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the encoder. The heads have ten times this rate."),
    ] = None,
    seed: SeedOption = None,
    scale: Annotated[
        float,
        typer.Option(
            help="Only this share of the epochs and of the rows, for a trial, as in 0.02."
        ),
    ] = 1.0,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="First train each task by itself, for comparison."),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change one setting, as in schedule.name=random or tasks.sts.weight=2. "
            "Repeatable.",
        ),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    json: JsonOption = False,
) -> None:
    """Train one encoder for several tasks.

    A task is to find classes of texts, classes of pairs, or scores of pairs.

    The file has a table for each task, for example [tasks.mood] with data = "mood.csv" and kind =
    "classify". The other kinds are "pair_classify" (columns text, text2 and label) and "pair_score"
    (columns text, text2 and score). The tables [schedule], [shared], [encoder], [train] and
    [pretrain] change the defaults. The state with the best average score is kept.
    """
    from closeknit.multitask.run import multitask_in_folder
    from closeknit.multitask.study_file import read_multitask
    from closeknit.reports.multitask_page import write_multitask_report

    named = {
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.head_lr": None if lr is None else 10 * lr,
        "train.seed": seed,
        **_data_of_tasks(data or []),
    }
    config = read_multitask(study, set_ or [], options=named)
    if scale != 1.0:
        config = config.scaled(scale)
    folder = out or Path("runs") / Path(study).stem
    with stoppable(STOPPED_EARLY):
        metrics = multitask_in_folder(
            config, folder, alone=alone, resume=resume, overwrite=overwrite
        )
    if not metrics:  # this is not the process that prints
        return
    page = write_multitask_report(folder)
    if json:
        print_json({"model": str(folder), **metrics})
        return
    if "test" in metrics or "validation" in metrics:
        print_tasks(metrics, {name: task.measure for name, task in config.tasks.items()})
    else:
        print("the data have neither a validation nor a test set, so the model was not scored")
    print(f"\nmodel: {folder}\nreport: {page}")


def _data_of_tasks(given: list[str]) -> dict[str, str]:
    """`--data sts=pairs.csv` as a setting of the task."""
    settings: dict[str, str] = {}
    for option in given:
        task, equals, source = option.partition("=")
        if not (task and equals and source):
            raise ConfigError(f"--data is {option}; write it as TASK=SOURCE, as in sts=pairs.csv")
        settings[f"tasks.{task}.data"] = source
    return settings
