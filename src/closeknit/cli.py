"""The command line: one function a command -> one library call -> print.

Results go to stdout, progress and complaints to stderr. Exit 0: done; 1: a check failed; 2: something
for the user to mend; 130: stopped by the user. Libraries are imported inside the commands that use them.
"""

from __future__ import annotations

import contextlib
import json as json_library
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import CloseknitError, ConfigError, DataError, Stopped

if TYPE_CHECKING:
    from .data import Columns, Examples
    from .model import Model

app = typer.Typer(
    name="closeknit",
    help="Fine-tune text encoders with contrastive and metric-learning objectives, and see honestly whether it helped.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Start here: closeknit demo",
)

DataArgument = Annotated[
    str,
    typer.Argument(
        help="A CSV, TSV, JSONL or Parquet file, a folder of train/validation/test files, or a catalogue name."
    ),
]
DataSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Name columns, like data.text=message; or data.empty=drop; repeatable."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change one setting, like train.warmup=0.1 or objective.centers=100; repeatable."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ModelArgument = Annotated[Path, typer.Argument(help="A folder that `closeknit train` wrote.")]


@app.command(epilog="Example: closeknit train messages --objective triple_entropy --out runs/first")
def train(
    data: DataArgument,
    objective: Annotated[str | None, typer.Option(help="See `closeknit objectives`.")] = None,
    out: Annotated[Path | None, typer.Option(help="The model folder; default runs/DATA-OBJECTIVE.")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="A hub name, a folder, or textcnn; default the bundled all-MiniLM-L6-v2."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows; default 10.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows an update; default 64.")] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the encoder; default 5e-5 at 768 dimensions, 1e-4 at 384."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is random; default 2.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A run file in TOML; the options here go before it.")
    ] = None,
    set_: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model in --out.")] = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune a classifier on labelled texts and save it.

    The data needs the columns text and label (and text2 for pairs); name others with --set data.text=COLUMN. A
    data set without a test part has a fifth of its rows held out to score the model.
    """
    from .config import read_config
    from .runs import train_in_folder

    named = {
        "objective.name": objective,
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.seed": seed,
    }
    changes = [f"{key}={json_library.dumps(value)}" for key, value in named.items() if value is not None]
    run = read_config(config, [*changes, *(set_ or [])])
    folder = out or Path("runs") / f"{Path(data).resolve().name.partition('.')[0]}-{run.objective.name}"
    with _stoppable("stopped before the first step"):
        metrics = train_in_folder(data, run, folder, resume=resume, overwrite=overwrite)
    if not metrics:  # not the first of several processes
        return
    if json:
        _print_json({"model": str(folder), **metrics})
        return
    for part in ("validation", "test"):
        if part in metrics:
            _print_scores(metrics[part], part)
    if "test" not in metrics and "validation" not in metrics:
        print("there was no test part to score it on")
    print(f"model: {folder}")


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
    out: Annotated[Path, typer.Option(help="The study's folder; started again, it goes on.")] = Path(
        "runs/comparison"
    ),
    encoder: Annotated[
        str | None,
        typer.Option(help="A hub name, a folder, or textcnn; default the bundled all-MiniLM-L6-v2."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Rows to draw for each seed, like 1000,4000 or all; default 1000.")
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Folds of each seed; default 5.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Default 2,16,128,2048.")] = None,
    search: Annotated[
        str | None,
        typer.Option(help="Search settings before each run: how many to try, or grid for all of the space."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="How to search: tpe (default, extra search), halving, random or grid.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(help="What to search: default, or paper for the grid of the TripleEntropy paper."),
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            help="Choose settings on parts of each training fold (nested, the default), or on the reported folds (paper)."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows; default 10.")] = None,
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
    workers: Annotated[int, typer.Option(help="Processes on this machine; 0 runs in this one.", min=0)] = 0,
    ray: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster to run on, like auto or 10.0.0.1:6379 (extra cluster)."),
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Threads (CPUs) a run; default the cores shared out, on Ray 1.", min=0)
    ] = 0,
    gpus: Annotated[float, typer.Option(help="GPUs a run asks for on Ray, like 1 or 0.25.", min=0)] = 0.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the runs in --out.")] = False,
    json: JsonOption = False,
) -> None:
    """Compare objectives on the same folds: data sets x sizes x objectives x seeds x folds, with tests.

    Each finished run is a line of results.jsonl in --out. Stopped or killed, the same command goes on with the runs that are
    missing. At the end: table.csv, table.md and report.html. Cross-validation takes the train part (or all) of a data set.
    """
    import shlex

    from .comparison import Place, check_study_folder, run_study, write_tables
    from .config import read_tables
    from .pages import write_report
    from .progress import say
    from .report import in_words, markdown_table, paper_table
    from .study import read_study

    asked: dict[str, Any] = {}
    if search is not None:
        if search == "grid":
            asked["method"] = "grid"
        elif search.isdigit() and int(search) > 0:
            asked["trials"] = int(search)
        else:
            raise ConfigError(f"--search is {search}; give a number of settings to try, or grid")
    asked |= {key: value for key, value in (("method", method), ("space", space)) if value is not None}
    given = {
        "data": list(data) if data else None,
        "objectives": _names(objectives),
        "sizes": _whole_numbers("--sizes", sizes, all_is=0),
        "folds": folds,
        "seeds": _whole_numbers("--seeds", seeds),
        "selection": selection,
        "search": asked or None,
    }
    named = {"encoder.name": encoder, "train.epochs": epochs, "train.batch_size": batch_size, "train.lr": lr}
    changes = [f"{key}={json_library.dumps(value)}" for key, value in named.items() if value is not None]
    study = read_study(config, given, read_tables({}, [*changes, *(set_ or [])]))
    check_study_folder(out, overwrite=overwrite)
    place = Place(workers, ray, threads, gpus)
    with _stoppable(f"stopped; the same command goes on with the runs that are missing in {out}"):
        results = run_study(study, out, place=place, command="closeknit " + shlex.join(sys.argv[1:]))
        lines = write_tables(out, study.reference, results)
        say("writing the report")
        page = write_report(out)
    if json:
        import dataclasses

        _print_json({"out": str(out), "lines": [dataclasses.asdict(line) for line in lines]})
        return
    print(f"{paper_table(lines)}\n\n{markdown_table(lines)}\n")
    for line in lines:
        if line.gain is not None:
            print(in_words(line, study.reference))
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
    from .pages import write_multitask_report, write_report

    several = (folder / "closeknit.json").exists() or (folder / "checkpoints").is_dir()
    print(write_multitask_report(folder) if several else write_report(folder))


@app.command(epilog="Example: closeknit evaluate runs/first messages --json")
def evaluate(
    model: ModelArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            help="A file, folder or catalogue name; a model of several tasks knows its own data without it."
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Which part to score; default test, else all of it.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Of a model of several tasks, the one that the data are for.")
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a trained model: a classifier on labelled texts; one of several tasks on each, with the average."""
    from . import catalogue

    if _kind(model) == "multi_task":
        _evaluate_tasks(model, data, part, task, set_, json)
        return
    if task is not None:
        raise ConfigError(f"--task is for models of several tasks; {model} is a text classifier")
    if data is None:
        raise ConfigError("name the data to score the model on: a file, a folder or a catalogue name")
    loaded = _load(model)
    found = catalogue.load(data, _columns(loaded, set_))
    names = [part] if part else ["test", "all", "validation", "train"]
    examples = next((found.parts[name] for name in names if name in found.parts), None)
    if examples is None:
        raise DataError(f"{data} has no part {part}; it has {', '.join(found.parts)}")
    scores = loaded.evaluate(examples)
    if json:
        _print_json(scores)
        return
    chosen = next(name for name, part_ in found.parts.items() if part_ is examples)
    _print_scores(scores, f"{found.name} {chosen}")
    width = max(5, *(len(name) for name in scores["per_class"]))
    print(f"\n{'class':<{width}}  precision  recall      F1     n")
    for name, own in scores["per_class"].items():
        print(
            f"{name:<{width}}  {own['precision']:9.4f}  {own['recall']:6.4f}  {own['f1']:6.4f}  {own['n']:4d}"
        )


@app.command(epilog='Example: echo "where is my refund" | closeknit predict runs/first --json')
def predict(
    model: ModelArgument,
    file: Annotated[
        str,
        typer.Argument(
            help="A text file with a text a line, or a table with the column text; - is standard input."
        ),
    ] = "-",
    task: Annotated[
        str | None, typer.Option(help="Of a model of several tasks, the one to answer; pairs need a table.")
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Classify texts: a line each with label and probability, or a JSON object each with --json.

    A task that scores pairs gives the score instead.
    """
    labels: list[str]
    if _kind(model) == "multi_task":
        from .multitask import MultiTaskModel

        several = MultiTaskModel.load(model)
        if task is None and len(several.tasks) > 1:
            raise ConfigError(f"{model} has several tasks; say which with --task: {', '.join(several.tasks)}")
        name = task or several.tasks[0]
        several.task(name)  # refuses one that it does not have
        examples = _texts(file, None, set_)
        given, labels = several.predict(name, examples), several.answers[name].labels
    else:
        if task is not None:
            raise ConfigError(f"--task is for models of several tasks; {model} is a text classifier")
        loaded = _load(model)
        examples = _texts(file, loaded, set_)
        given, labels = loaded.outputs(examples)[0], loaded.labels
    for line in _answers(examples, given, labels):
        if json:
            print(json_library.dumps(line, ensure_ascii=False))
            continue
        shown = "  |  ".join(" ".join(str(line[key]).split()) for key in ("text", "text2") if key in line)
        answer = f"{line['label']}\t{line['probability']:.4f}" if labels else f"{line['score']:.4f}"
        print(f"{answer}\t{shown}")


@app.command(epilog="Example: closeknit embed runs/first texts.txt --out vectors.npy")
def embed(
    source: Annotated[
        str, typer.Argument(help="A model folder, an encoder's hub name or folder, or `default`.")
    ],
    file: Annotated[
        str, typer.Argument(help="A text file with a text a line, or a table; - is standard input.")
    ],
    out: Annotated[
        Path, typer.Option(help="Where to write the vectors, a NumPy file of shape (texts, dimensions).")
    ],
    pooling: Annotated[
        str | None, typer.Option(help="first, mean or own; default the model's own, for a bare encoder mean.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every vector to length 1.")] = False,
    half: Annotated[
        bool,
        typer.Option("--half", help="Compute in bfloat16 on a GPU: faster, right to two or three digits."),
    ] = False,
    set_: DataSetOption = None,
) -> None:
    """Turn texts into vectors."""
    import numpy as np

    from .encoder import Encoder
    from .evaluation import outputs
    from .model import MAIN, read_facts
    from .sentence_model import load_sentence_model

    if out.suffix != ".npy":
        raise ConfigError(f"{out}: the vectors are written as a NumPy file; let its name end in .npy")
    if (Path(source) / MAIN).exists() and read_facts(Path(source), None)["kind"] == "text_classifier":
        loaded = _load(Path(source))
        encoder = (
            loaded.encoder if pooling is None else Encoder(loaded.encoder.trunk, pooling, loaded.encoder.name)
        )
        vectors = outputs(encoder, None, loaded.tokens(_texts(file, loaded, set_)), half=half)[1]
        if normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    else:
        texts = _texts(file, None, set_)
        if texts.pairs is not None:
            raise DataError(
                f"{file} holds pairs of texts; a sentence encoder takes single ones: --set data.text2=none"
            )
        vectors = load_sentence_model(source, pooling=pooling).encode(
            texts.texts, normalize=normalize, half=half, show_progress=True
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    np.save(out, vectors)
    print(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions: {out}")


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
        str | None, typer.Option(help="A hub name or a folder; default the bundled all-MiniLM-L6-v2.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the new sentence encoder.")] = Path("runs/encoder"),
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows; default by method, 1 to 3.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Texts that meet, each the others' negatives; default by method, 64 to 200."),
    ] = None,
    chunk_size: Annotated[
        int | None, typer.Option(help="Rows in memory at once; the batch and its gradients stay whole.")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate; default by method: 3e-5 to 5e-5, at 384 dimensions up to 1e-4."),
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
    mine: Annotated[bool, typer.Option("--mine", help="Find a hard negative for each pair first.")] = False,
    adapt_epochs: Annotated[
        int | None,
        typer.Option(help="Passes of masked-language modelling over the texts beforehand; default 0."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A run file in TOML; the options here go before it.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, like method.temperature=0.04; repeatable."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the encoder in --out.")] = False,
    json: JsonOption = False,
) -> None:
    """Turn a language model into a sentence encoder, from texts alone, from pairs or from triplets.

    The folder opens in sentence-transformers with the same vectors.
    """
    from .config import read_tables, read_toml
    from .embedding_scores import read_scored_pairs
    from .runs import embed_in_folder
    from .sentence_model import with_recipe
    from .sentences import read_sentences

    columns = {
        role: name
        for role, name in (("text", text), ("text2", text2), ("negative", negative), ("label", label))
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
    changes = [f"{key}={json_library.dumps(value)}" for key, value in named.items() if value is not None]
    tables = read_tables(read_toml(config) if config else {}, [*changes, *(set_ or [])])
    if len(found.columns) == 2:
        tables.setdefault("method", {}).setdefault("name", "multiple_negatives")
    run = with_recipe(tables, len(found.columns) + (mine and paired))
    pairs = read_scored_pairs(validation) if validation else None
    with _stoppable("stopped before the first step"):
        metrics = embed_in_folder(
            found, run, out, validation=pairs, mine=mine, resume=resume, overwrite=overwrite
        )
    if not metrics:
        return
    if json:
        _print_json({"encoder": str(out), **metrics})
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
        typer.Option(help="A hub name, a folder, or textcnn; default the study's, else all-MiniLM-L6-v2."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of the schedule; `docs/multitask.md` says what one is.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of a task in an update.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of the encoder; heads go at ten times it.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides all that is random; default 2.")] = None,
    scale: Annotated[
        float, typer.Option(help="A trial: this share of the rows and epochs, like 0.02.")
    ] = 1.0,
    alone: Annotated[
        bool, typer.Option("--alone", help="First train every task by itself, to compare with.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change one setting, like schedule.name=random or tasks.sts.weight=2; repeatable."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model in --out.")] = False,
    json: JsonOption = False,
) -> None:
    """Train one encoder for several tasks: classes of texts, classes of pairs, scores of pairs.

    The study file has a table [tasks.NAME] for each task with its data and kind, and [schedule], [shared], [encoder], [train]
    and [pretrain] where something else than the defaults is meant. The state with the best average over the tasks is kept.
    """
    from .multitask import read_multitask
    from .pages import write_multitask_report
    from .runs import multitask_in_folder

    named = {
        "encoder.name": encoder,
        "train.epochs": epochs,
        "train.batch_size": batch_size,
        "train.lr": lr,
        "train.head_lr": None if lr is None else 10 * lr,
        "train.seed": seed,
    }
    for given in data or []:
        task, equals, source = given.partition("=")
        if not equals or not source:
            raise ConfigError(f"--data is {given}; write it as TASK=SOURCE, like sts=pairs.csv")
        named[f"tasks.{task}.data"] = source
    changes = [f"{key}={json_library.dumps(value)}" for key, value in named.items() if value is not None]
    config = read_multitask(study, [*changes, *(set_ or [])]).scaled(scale)
    folder = out or Path("runs") / Path(study).stem
    with _stoppable("stopped before the first step"):
        metrics = multitask_in_folder(
            config, folder, scale=scale, alone=alone, resume=resume, overwrite=overwrite
        )
    if not metrics:  # not the first of several processes
        return
    page = write_multitask_report(folder)
    if json:
        _print_json({"model": str(folder), **metrics})
        return
    _print_tasks(metrics, {name: task.measure for name, task in config.tasks.items()})
    print(f"\nmodel: {folder}\nreport: {page}")


@app.command(
    "evaluate-embeddings",
    epilog="Example: closeknit evaluate-embeddings runs/encoder default --suite pairs.csv",
)
def evaluate_embeddings(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Encoders: folders of Closeknit, hub names, other folders; default is the bundled one."
        ),
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="sts, words, one of their data sets, or a file of scored pairs; repeatable; default sts."
        ),
    ] = None,
    labelled: Annotated[
        list[str] | None,
        typer.Option(help="A data set with classes, for k-NN and a linear probe; repeatable."),
    ] = None,
    retrieval: Annotated[
        list[str] | None, typer.Option(help="A table of text and text2: is each answer found? Repeatable.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="mean, first or own; default the model's own, else mean.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw alignment against uniformity into this PNG.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Score embeddings side by side: similarity, words, geometry, k-NN, a linear probe, retrieval."""
    from .embedding_scores import table
    from .embedding_suite import evaluate_models

    scores = evaluate_models(
        models,
        suite if suite is not None else ([] if labelled or retrieval else ["sts"]),
        labelled=labelled or (),
        retrieval=retrieval or (),
        pooling=pooling,
        plot=plot,
    )
    if json:
        import dataclasses

        _print_json({name: [dataclasses.asdict(score) for score in own] for name, own in scores.items()})
        return
    print(table(scores))
    if plot:
        print(f"\nplot: {plot}")


@app.command(epilog="Example: closeknit objectives triple_entropy")
def objectives(name: Annotated[str | None, typer.Argument(help="Tell more of this one.")] = None) -> None:
    """List the objectives that `train` knows, or explain one."""
    from .objectives import OBJECTIVES, describe

    if name is not None:
        print(describe(name))
        return
    width = max(len(known) for known in OBJECTIVES)
    for known, build in OBJECTIVES.items():
        print(f"{known:<{width}}  {(build.__doc__ or '').splitlines()[0]}")


@app.command(epilog="Example: closeknit data messages")
def data(
    name: Annotated[
        str | None, typer.Argument(help="Count its rows and classes; also a file or folder.")
    ] = None,
    set_: DataSetOption = None,
) -> None:
    """List the data sets of the catalogue, or describe one."""
    from .catalogue import CATALOGUE, load, where

    if name is None:
        width = max(len(known) for known in CATALOGUE)
        for known, entry in CATALOGUE.items():
            print(f"{known:<{width}}  {entry.about}  [{where(known)}]")
        return
    found = load(name, _columns(None, set_))
    for part, examples in found.parts.items():
        labels = examples.required_labels
        kind = "pairs of texts" if examples.pairs else "texts"
        print(f"{found.name} {part}: {len(examples)} {kind}, {len(examples.classes)} classes")
        for label in examples.classes:
            print(f"  {labels.count(label):6d}  {label}")


@app.command(epilog="Example: closeknit demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Where results, picture and model go.")] = Path("demo"),
    encoder: Annotated[str | None, typer.Option(help="Another encoder than the bundled one.")] = None,
    folds: Annotated[int, typer.Option(help="Folds to compare on.", min=2, max=10)] = 3,
) -> None:
    """Fine-tune with cross-entropy and with TripleEntropy on the bundled messages, and compare them.

    Takes a few minutes on two cores. Started again, it goes on with the runs that are missing.
    """
    from .demo import run_demo

    with _stoppable(f"stopped; the same command goes on with the runs that are missing in {out}"):
        found = run_demo(out, folds=folds, encoder=encoder)
    print(f"\n{found.table}\n\n{found.words}")
    print(
        f"\nOn {found.test_rows} messages it never saw, the saved model is right in {100 * found.test_accuracy:.1f} %:"
    )
    for text, label, probability in found.answers:
        print(f"  {label} ({probability:.2f}): {text}")
    print(f"\nmodel: {found.model}" + (f"\npicture: {found.picture}" if found.picture else ""))
    print(f"report: {found.report}")


def _tell_version(asked: bool) -> None:
    if asked:
        from . import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


# ---------------------------------------------------------------- shared by the commands


def _load(folder: Path) -> Model:
    from .model import Model

    return Model.load(folder)


def _kind(folder: Path) -> str:
    """What kind of model a folder holds, without loading it."""
    from .model import read_facts

    return str(read_facts(folder, None)["kind"])


def _answers(examples: Examples, given: Any, labels: list[str]) -> Iterator[dict[str, Any]]:
    """What a model says of each row: a score, or a label with the probabilities of all."""
    from .evaluation import softmax

    chances = softmax(given) if labels else given
    for row in range(len(examples)):
        line: dict[str, Any] = {"text": examples.texts[row]}
        if examples.pairs:
            line["text2"] = examples.pairs[row]
        if labels:
            best = int(chances[row].argmax())
            line |= {"label": labels[best], "probability": float(chances[row][best])}
            line["probabilities"] = {label: float(p) for label, p in zip(labels, chances[row], strict=True)}
        else:
            line["score"] = float(given[row])
        yield line


def _evaluate_tasks(
    folder: Path, data: str | None, part: str | None, task: str | None, set_: list[str] | None, json: bool
) -> None:
    """Score a model of several tasks: all of them on their own data, or one on the data given."""
    import dataclasses

    from .multitask import MultiTaskModel, load_tasks

    model = MultiTaskModel.load(folder)
    if task is not None:
        model.task(task)
    if data is not None and task is None:
        if len(model.tasks) > 1:
            raise ConfigError(f"say which task the data are for with --task: {', '.join(model.tasks)}")
        task = model.tasks[0]
    tasks = {name: own for name, own in model.config.tasks.items() if task in (None, name)}
    if data is not None and task is not None:
        columns = dataclasses.asdict(_columns(None, set_))
        columns.pop("test")
        tasks[task] = dataclasses.replace(tasks[task], data=data, leaks="keep", **columns)
    elif set_:
        raise ConfigError("--set names columns of the data given; without data there are none")
    # rows that a run held out for validation are held out here again
    config = dataclasses.replace(
        model.config,
        tasks=tasks,
        schedule=dataclasses.replace(model.config.schedule, order=[], weights={}),
        train=dataclasses.replace(
            model.config.train, validation=0.0 if data else model.config.train.validation
        ),
    )
    rows = {}
    for name, own in load_tasks(config).items():
        parts = {"test": own.test, "validation": own.validation, "train": own.train}
        wanted = [part] if part else ["test", "validation", "train"]
        found = next((parts[one] for one in wanted if parts.get(one) is not None), None)
        if found is None:
            raise DataError(
                f"task {name} has no part {part}; it has {', '.join(k for k, v in parts.items() if v)}"
            )
        rows[name] = found
    scores = model.evaluate(rows)
    if json:
        _print_json(scores)
        return
    measures = {name: model.task(name).measure for name in rows}
    _print_tasks({part or "score": scores}, measures)


def _print_tasks(metrics: dict[str, Any], measures: dict[str, str]) -> None:
    """A line a task with its scores, and the average of all."""
    parts = [part for part in ("validation", "test", "score") if part in metrics]
    alone = metrics.get("alone", {})
    width = max(7, *(len(name) for name in measures))
    columns: list[tuple[str, dict[str, Any]]] = [(part, metrics[part]) for part in parts]
    columns += [(f"{part} alone", {name: own[part] for name, own in alone.items() if part in own})
                for part in parts if alone]  # fmt: skip
    print(f"{'task':<{width}}  {'metric':<12}" + "".join(f"{name:>18}" for name, _ in columns))
    for name, measure in measures.items():
        shown = [f"{own[name][measure]:>18.4f}" if name in own else f"{'':>18}" for _, own in columns]
        print(f"{name:<{width}}  {measure:<12}" + "".join(shown))
    if len(measures) > 1:
        means = []
        for _, own in columns:
            values = [own[name][measure] for name, measure in measures.items() if name in own]
            whole = len(values) == len(measures)
            means.append(f"{sum(values) / len(values):>18.4f}" if whole else f"{'':>18}")
        print(f"{'average':<{width}}  {'':<12}" + "".join(means))


def _columns(model: Model | None, changes: list[str] | None) -> Columns:
    """The columns the model was trained with, or the usual ones, with `--set data.…` on top."""
    import dataclasses

    from .config import DataConfig, read_config

    for change in changes or []:
        if not change.startswith("data."):
            raise ConfigError(
                f"--set {change}: only settings of data can be changed here, like data.text=COLUMN"
            )
    base = dataclasses.asdict(model.config.data if model else DataConfig())
    asked = read_config(None, changes or [])
    given = {change.partition("=")[0].removeprefix("data.") for change in changes or []}
    return DataConfig(**{**base, **{key: getattr(asked.data, key) for key in given}})


def _texts(file: str, model: Model | None, changes: list[str] | None) -> Examples:
    from .data import Columns, from_python, lines_of, read_file

    columns = _columns(model, changes)
    if file == "-":
        if sys.stdin.isatty():
            print("reading texts from the keyboard, a line each; end with Ctrl-D", file=sys.stderr)
        stream = getattr(sys.stdin, "buffer", None)
        lines = lines_of(stream.read() if stream else sys.stdin.read().encode(), "standard input")
        if not lines:
            raise DataError("standard input is empty: there is no text")
        return from_python(lines, name="standard input", empty=columns.empty)
    plain = Path(file).suffix in (".txt", "")
    return read_file(file, Columns(empty=columns.empty) if plain else columns, target=None)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _whole_numbers(option: str, text: str | None, all_is: int | None = None) -> list[int] | None:
    """`2,16` -> [2, 16]; where it has a meaning, `all` too."""
    found: list[int] = []
    for name in _names(text) or []:
        if name == "all" and all_is is not None:
            found.append(all_is)
        elif name.isdigit():
            found.append(int(name))
        else:
            raise ConfigError(f"{option} is {text}; give whole numbers with commas between, like 2,16")
    return found or None


@contextlib.contextmanager
def _stoppable(words: str) -> Iterator[None]:
    """Ctrl-C as a sentence and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(words) from None


def _print_scores(scores: dict[str, Any], name: str) -> None:
    shown = "  ".join(
        f"{key.replace('_', ' ')} {scores[key]:.4f}" for key in ("accuracy", "weighted_f1", "macro_f1")
    )
    print(f"{name}: {shown}  ({scores['n']} rows)")


def _print_json(value: Any) -> None:
    print(json_library.dumps(value, ensure_ascii=False))


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except CloseknitError as error:
        print(f"closeknit: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Stopped) else 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        print("closeknit: stopped", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        print(f"closeknit: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
