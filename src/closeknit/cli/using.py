"""Commands that use what was trained: score, predict, embed."""

from __future__ import annotations

import contextlib
import json as json_library
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.cli.shared import (
    DataSetOption,
    JsonOption,
    ModelArgument,
    app,
    chosen_columns,
    print_json,
    print_scores,
    print_tasks,
)
from closeknit.errors import ConfigError, DataError
from closeknit.metrics import scaled_to_unit_length

if TYPE_CHECKING:
    from closeknit.classification.model import Model
    from closeknit.data.examples import Examples
    from closeknit.data.tables import Columns
    from closeknit.encoder import Encoder


LITTLE = 5e9  # letters times weights: what a thread does in some ten milliseconds


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
        str | None,
        typer.Option(help="Which part to score; default test, else all, validation or train."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Of a model of several tasks, the one that the data are for.")
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a trained model: a classifier on labelled texts; one of several tasks on each, with the average."""
    from closeknit.data import catalogue

    if _kind(model) == "multi_task":
        _evaluate_tasks(model, data, part, task, set_, json)
        return
    if task is not None:
        raise ConfigError(f"--task is for models of several tasks; {model} has one")
    if data is None:
        raise ConfigError(
            "name the data to score the model on: a file, a folder or a catalogue name"
        )
    loaded = _load(model)
    found = catalogue.load(data, chosen_columns(loaded.config.data, set_))
    names = [part] if part else ["test", "all", "validation", "train"]
    examples = next((found.parts[name] for name in names if name in found.parts), None)
    if examples is None:
        raise DataError(f"{data} has no part {part}; it has {', '.join(found.parts)}")
    scores = loaded.evaluate(examples)
    if json:
        print_json(scores)
        return
    chosen = next(name for name, part_ in found.parts.items() if part_ is examples)
    print_scores(scores, f"{found.name} {chosen}")
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
        str | None,
        typer.Option(help="Of a model of several tasks, the one to answer; pairs need a table."),
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Classify texts: a line each with label and probability, or a JSON object each with --json.

    A task that scores pairs gives the score instead.
    """
    labels: list[str]
    if _kind(model) == "multi_task":
        from closeknit.multitask.model import MultiTaskModel

        several = MultiTaskModel.load(model, bare=True)
        if task is None and len(several.tasks) > 1:
            raise ConfigError(
                f"{model} has several tasks; say which with --task: {', '.join(several.tasks)}"
            )
        name = task or several.tasks[0]
        if several.task(name).kind != "classify" and file == "-":
            raise ConfigError(
                f"the task {name} asks about pairs, which need a table: name a file with text and text2"
            )
        examples = _texts(file, several.task(name).columns, set_)
        with _threads_for(several.encoder, examples):
            given, labels = several.predict(name, examples), several.answers[name].labels
    else:
        if task is not None:
            raise ConfigError(f"--task is for models of several tasks; {model} has one")
        loaded = _load(model)
        examples = _texts(file, loaded.config.data, set_)
        with _threads_for(loaded.encoder, examples):
            given, labels = loaded.outputs(examples)[0], loaded.labels
    for line in _answers(examples, given, labels):
        if json:
            print(json_library.dumps(line, ensure_ascii=False))
            continue
        shown = "  |  ".join(
            " ".join(str(line[key]).split()) for key in ("text", "text2") if key in line
        )
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
        Path,
        typer.Option(help="Where to write the vectors, a NumPy file of shape (texts, dimensions)."),
    ],
    pooling: Annotated[
        str | None,
        typer.Option(help="first, mean or own; default the model's own, for a bare encoder mean."),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale every vector to length 1.")
    ] = False,
    half: Annotated[
        bool,
        typer.Option(
            "--half", help="Compute in bfloat16 on a GPU: faster, right to two or three digits."
        ),
    ] = False,
    set_: DataSetOption = None,
) -> None:
    """Turn texts into vectors."""
    import numpy as np

    from closeknit.embeddings.model import load_sentence_model
    from closeknit.encoder import Encoder
    from closeknit.evaluation import outputs
    from closeknit.models.folder import MAIN, read_facts

    if out.suffix != ".npy":
        raise ConfigError(
            f"{out}: the vectors are written as a NumPy file; let its name end in .npy"
        )
    _check_writable(out)
    if (Path(source) / MAIN).exists() and read_facts(Path(source), None)[
        "kind"
    ] == "text_classifier":
        loaded = _load(Path(source))
        encoder = (
            loaded.encoder
            if pooling is None
            else Encoder(loaded.encoder.trunk, pooling, loaded.encoder.name)
        )
        texts = _texts(file, loaded.config.data, set_)
        with _threads_for(encoder, texts):
            vectors = outputs(encoder, None, loaded.tokens(texts), half=half)[1]
        if normalize:
            vectors = scaled_to_unit_length(vectors)
    else:
        texts = _texts(file, None, set_)
        if texts.pairs is not None:
            raise DataError(
                f"{file} holds pairs of texts; a sentence encoder takes single ones: --set data.text2=''"
            )
        model = load_sentence_model(source, pooling=pooling, bare=True)
        with _threads_for(model.encoder, texts):
            vectors = model.encode(texts.texts, normalize=normalize, half=half, show_progress=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.save(out, vectors)
    print(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions: {out}")


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
        list[str] | None,
        typer.Option(
            help="A table of text and text2, or a folder with a test part: is each answer found? Repeatable."
        ),
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
    from closeknit.embeddings.leaderboard import evaluate_models
    from closeknit.embeddings.scores import scores_table

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

        print_json(
            {name: [dataclasses.asdict(score) for score in own] for name, own in scores.items()}
        )
        return
    print(scores_table(scores))
    if plot:
        print(f"\nplot: {plot}")


# ---------------------------------------------------------------- what these share


def _load(folder: Path) -> Model:
    from closeknit.classification.model import Model

    return Model.load(folder, bare=True)


@contextlib.contextmanager
def _threads_for(encoder: Encoder, examples: Examples) -> Iterator[None]:
    """One thread for a word or two: several would save a few milliseconds, and beside other programs cost many more."""
    import torch

    threads = torch.get_num_threads()
    letters = sum(map(len, [*examples.texts, *(examples.pairs or [])]))
    if letters * sum(weights.numel() for weights in encoder.parameters()) < LITTLE:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_writable(out: Path) -> None:
    """Refuse a file that could not be written, before the work and not after it."""
    out = out.absolute()
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if nearest.is_dir() == (nearest == out) or not os.access(nearest, os.W_OK):
        raise ConfigError(
            f"{out} cannot be written: {nearest} is in the way; name another file with --out"
        )


def _kind(folder: Path) -> str:
    """What kind of model a folder holds, without loading it."""
    from closeknit.models.folder import read_facts

    return str(read_facts(folder, None)["kind"])


def _answers(examples: Examples, given: Any, labels: list[str]) -> Iterator[dict[str, Any]]:
    """What a model says of each row: a score, or a label with the probabilities of all."""
    from closeknit.evaluation import softmax

    chances = softmax(given) if labels else given
    for row in range(len(examples)):
        line: dict[str, Any] = {"text": examples.texts[row]}
        if examples.pairs:
            line["text2"] = examples.pairs[row]
        if labels:
            best = int(chances[row].argmax())
            line |= {"label": labels[best], "probability": float(chances[row][best])}
            line["probabilities"] = {
                label: float(p) for label, p in zip(labels, chances[row], strict=True)
            }
        else:
            line["score"] = float(given[row])
        yield line


def _evaluate_tasks(
    folder: Path,
    data: str | None,
    part: str | None,
    task: str | None,
    set_: list[str] | None,
    json: bool,
) -> None:
    """Score a model of several tasks: all of them on their own data, or one on the data given."""
    import dataclasses

    from closeknit.multitask.data import load_tasks, read_task
    from closeknit.multitask.model import MultiTaskModel

    model = MultiTaskModel.load(folder, bare=True)
    if task is not None:
        model.task(task)
    if data is not None and task is None:
        if len(model.tasks) > 1:
            raise ConfigError(
                f"say which task the data are for with --task: {', '.join(model.tasks)}"
            )
        task = model.tasks[0]
    if data is not None and task is not None:
        columns = dataclasses.asdict(chosen_columns(model.task(task).columns, set_))
        settings = dataclasses.replace(model.task(task), data=data, **columns)
        parts = {task: read_task(settings).parts}
    elif set_:
        raise ConfigError("--set names columns of the data given; without data there are none")
    else:  # rows that the run held out are held out here again; which it learnt from, depends on all tasks
        read = model.config if task is None or part == "train" else model.config.only(task)
        parts = {
            name: {
                key: value
                for key, value in (
                    ("train", own.train),
                    ("validation", own.validation),
                    ("test", own.test),
                )
                if value is not None
            }
            for name, own in load_tasks(read).items()
            if task in (None, name)
        }
    chosen: dict[str, str] = {}
    for name, own in parts.items():
        wanted = [part] if part else ["test", "all", "validation", "train"]
        found = next((one for one in wanted if one in own), None)
        if found is None:
            raise DataError(f"task {name} has no part {part}; it has {', '.join(own)}")
        chosen[name] = found
        model.check(name, own[found])
    scores = model.evaluate({name: parts[name][own] for name, own in chosen.items()})
    if json:
        print_json({**scores, "parts": chosen})
        return
    print_tasks({"score": scores}, {name: model.task(name).measure for name in chosen}, chosen)


def _texts(file: str, known: Columns | None, changes: list[str] | None) -> Examples:
    import dataclasses

    from closeknit.data.examples import from_python
    from closeknit.data.tables import Columns, read_file, split_lines

    if known is not None:  # every row is answered, unless it is said here that some may be left out
        known = dataclasses.replace(known, empty="error")
    columns = chosen_columns(known, changes)
    if file == "-":
        if sys.stdin.isatty():
            print("reading texts from the keyboard, a line each; end with Ctrl-D", file=sys.stderr)
        stream = getattr(sys.stdin, "buffer", None)
        lines = split_lines(
            stream.read() if stream else sys.stdin.read().encode(), "standard input"
        )
        if not lines:
            raise DataError("standard input is empty: there is no text")
        return from_python(lines, name="standard input", empty=columns.empty)
    if " " in file.strip() and not Path(file).exists():
        raise DataError(
            f'{file} does not exist; a text itself comes from standard input: echo "{file}" | closeknit …'
        )
    plain = Path(file).suffix.lower() in (".txt", "")
    return read_file(file, Columns(empty=columns.empty) if plain else columns, target=None)
