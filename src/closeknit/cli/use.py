"""Commands that use trained models: evaluate, predict, embed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.cli.options import DataSetOption, JsonOption, ModelArgument, chosen_columns
from closeknit.cli.output import print_classes, print_json, print_scores, print_tasks
from closeknit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from closeknit.classification.model import Model
    from closeknit.data import Columns, Examples
    from closeknit.encoder import Encoder
    from closeknit.evaluation import Floats
    from closeknit.multitask.model import MultiTaskModel

# Letters times weights: below it, one thread needs some ten milliseconds.
LITTLE_WORK = 5e9

# What is scored if --part is not given: the first of these that the data have.
PARTS_TO_SCORE = ("test", "all", "validation", "train")


# ---------------------------------------------------------------- evaluate


def evaluate(
    model: ModelArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            help="A file, a folder or the name of a data set. A model of several tasks knows its "
            "own data, and needs none."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="The part to score. Default: test, else all, validation or train."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The task that the data belong to, for a model of several tasks."),
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a trained model on labelled texts.

    A model of several tasks is scored on each task, and the average is printed too.
    """
    if _kind(model) == "multi_task":
        _evaluate_tasks(model, data, part, task, set_, json)
        return
    if task is not None:
        raise ConfigError(f"--task is for models of several tasks; {model} has one")
    if data is None:
        raise ConfigError(
            "name the data to score the model on: a file, a folder or the name of a data set"
        )
    from closeknit import catalogue

    classifier = _load_classifier(model)
    loaded = catalogue.load(data, chosen_columns(classifier.config.data, set_))
    chosen = _part_to_score(loaded.parts, part, data)
    scores = classifier.evaluate(loaded.parts[chosen])
    if json:
        print_json(scores)
        return
    print_scores(scores, f"{loaded.name} {chosen}")
    print_classes(scores["per_class"])


def _part_to_score(parts: Mapping[str, Examples], asked: str | None, what: str) -> str:
    """The name of the part to score; a part that the data do not have is refused."""
    for name in [asked] if asked else PARTS_TO_SCORE:
        if name in parts:
            return name
    raise DataError(f"{what} has no part {asked}; it has {', '.join(parts)}")


def _evaluate_tasks(
    folder: Path,
    data: str | None,
    part: str | None,
    task: str | None,
    set_: list[str] | None,
    json: bool,
) -> None:
    """Score a model of several tasks: each on its own data, or one task on the data given."""
    from closeknit.multitask.model import MultiTaskModel

    model = MultiTaskModel.load(folder, bare=True)
    if task is not None:
        model.task(task)  # refuses an unknown name
    if data is not None:
        parts = _given_parts(model, data, task, set_)
    elif set_:
        raise ConfigError("--set names columns of the data, but no data are given")
    else:
        parts = _own_parts(model, part, task)
    chosen: dict[str, str] = {}
    for name, found in parts.items():
        chosen[name] = _part_to_score(found, part, f"task {name}")
        model.check(name, found[chosen[name]])
    scores = model.evaluate({name: parts[name][scored] for name, scored in chosen.items()})
    if json:
        print_json({**scores, "parts": chosen})
        return
    print_tasks({"score": scores}, {name: model.task(name).measure for name in chosen}, chosen)


def _given_parts(
    model: MultiTaskModel, data: str, task: str | None, set_: list[str] | None
) -> dict[str, Mapping[str, Examples]]:
    """The parts of the data on the command line, under the name of their task."""
    from closeknit.multitask.data import read_task

    if task is None and len(model.tasks) > 1:
        raise ConfigError(
            f"name the task that the data belong to with --task: {', '.join(model.tasks)}"
        )
    task = task or model.tasks[0]
    settings = model.task(task)
    columns = dataclasses.asdict(chosen_columns(settings.columns, set_))
    return {task: read_task(dataclasses.replace(settings, data=data, **columns)).parts}


def _own_parts(
    model: MultiTaskModel, part: str | None, task: str | None
) -> dict[str, Mapping[str, Examples]]:
    """The parts of the data that the model was trained with, for one task or for all.

    Rows that were held out in the training are held out again. Which rows the model was trained on
    depends on all tasks, so for the training set all of them are read.
    """
    from closeknit.multitask.data import load_tasks

    config = model.config if task is None or part == "train" else model.config.only(task)
    parts: dict[str, Mapping[str, Examples]] = {}
    for name, loaded in load_tasks(config).items():
        if task not in (None, name):
            continue
        named = {"train": loaded.train, "validation": loaded.validation, "test": loaded.test}
        parts[name] = {key: value for key, value in named.items() if value is not None}
    return parts


# ---------------------------------------------------------------- predict


def predict(
    model: ModelArgument,
    file: Annotated[
        str,
        typer.Argument(
            help="A text file with one text per line, or a table with the column text. - stands "
            "for standard input."
        ),
    ] = "-",
    task: Annotated[
        str | None,
        typer.Option(help="The task to predict, for a model of several tasks. Pairs need a table."),
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Classify texts, or score pairs of texts.

    Each text gets a line with its label, the probability and the text; a pair that is scored gets a
    line with the score and the pair. --json prints one JSON object per text.
    """
    if _kind(model) == "multi_task":
        examples, outputs, labels = _predict_task(model, file, task, set_)
    else:
        if task is not None:
            raise ConfigError(f"--task is for models of several tasks; {model} has one")
        classifier = _load_classifier(model)
        examples = _read_texts(file, classifier.config.data, set_)
        with _threads_for(classifier.encoder, examples):
            outputs = classifier.outputs(examples)[0]
        labels = classifier.labels
    for answer in _answers(examples, outputs, labels):
        if json:
            print_json(answer)
            continue
        texts = [answer[key] for key in ("text", "text2") if key in answer]
        shown = "  |  ".join(" ".join(text.split()) for text in texts)
        if labels:
            print(f"{answer['label']}\t{answer['probability']:.4f}\t{shown}")
        else:
            print(f"{answer['score']:.4f}\t{shown}")


def _predict_task(
    folder: Path, file: str, task: str | None, set_: list[str] | None
) -> tuple[Examples, Floats, list[str]]:
    """Texts, outputs and labels for one of several tasks; a task of scores has no labels."""
    from closeknit.multitask.model import MultiTaskModel

    model = MultiTaskModel.load(folder, bare=True)
    if task is None and len(model.tasks) > 1:
        raise ConfigError(
            f"{folder} has several tasks; choose one with --task: {', '.join(model.tasks)}"
        )
    name = task or model.tasks[0]
    if model.task(name).kind != "classify" and file == "-":
        raise ConfigError(
            f"the task {name} is about pairs of texts; name a table with the columns text and text2"
        )
    examples = _read_texts(file, model.task(name).columns, set_)
    with _threads_for(model.encoder, examples):
        return examples, model.predict(name, examples), model.answers[name].labels


def _answers(examples: Examples, outputs: Floats, labels: list[str]) -> Iterator[dict[str, Any]]:
    """The answer for each row: a score, or a label with the probabilities of all labels."""
    from closeknit.evaluation import softmax

    values = softmax(outputs) if labels else outputs
    for row in range(len(examples)):
        answer: dict[str, Any] = {"text": examples.texts[row]}
        if examples.pairs:
            answer["text2"] = examples.pairs[row]
        if labels:
            best = int(values[row].argmax())
            answer["label"] = labels[best]
            answer["probability"] = float(values[row][best])
            probabilities = (float(value) for value in values[row])
            answer["probabilities"] = dict(zip(labels, probabilities, strict=True))
        else:
            answer["score"] = float(values[row])
        yield answer


# ---------------------------------------------------------------- embed


def embed(
    source: Annotated[
        str,
        typer.Argument(
            help="A model folder, an encoder's folder or name on the Hugging Face Hub, or default."
        ),
    ],
    file: Annotated[
        str,
        typer.Argument(
            help="A text file with one text per line, or a table. - stands for standard input."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="The file for the vectors: a NumPy array of shape (texts, dimensions)."),
    ],
    pooling: Annotated[
        str | None,
        typer.Option(
            help="first, mean or own (the encoder's pooler). Default: that of the model; for an "
            "encoder that was not trained here, mean."
        ),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale every vector to length 1.")
    ] = False,
    half: Annotated[
        bool,
        typer.Option(
            "--half", help="Compute in bfloat16 on a GPU: faster, exact to two or three digits."
        ),
    ] = False,
    set_: DataSetOption = None,
) -> None:
    """Turn texts into vectors."""
    import numpy as np

    from closeknit.models.folder import MAIN

    if out.suffix != ".npy":
        raise ConfigError(
            f"{out}: the vectors are written as a NumPy file; its name must end in .npy"
        )
    _check_writable(out)
    folder = Path(source)
    if (folder / MAIN).exists() and _kind(folder) == "text_classifier":
        vectors = _vectors_of_classifier(folder, file, pooling, normalize, half, set_)
    else:
        vectors = _vectors_of_encoder(source, file, pooling, normalize, half, set_)
    out.parent.mkdir(parents=True, exist_ok=True)
    np.save(out, vectors)
    print(f"{len(vectors)} vectors of {vectors.shape[1]} dimensions: {out}")


def _vectors_of_classifier(
    folder: Path,
    file: str,
    pooling: str | None,
    normalize: bool,
    half: bool,
    set_: list[str] | None,
) -> Floats:
    """The pooled vectors (R, H) of single texts or of pairs."""
    import numpy as np

    from closeknit.encoder import Encoder
    from closeknit.evaluation import outputs

    classifier = _load_classifier(folder)
    encoder = classifier.encoder
    if pooling is not None:
        encoder = Encoder(encoder.trunk, pooling, encoder.name)
    texts = _read_texts(file, classifier.config.data, set_)
    with _threads_for(encoder, texts):
        vectors = outputs(encoder, None, classifier.tokens(texts), half=half)[1]
    if normalize:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def _vectors_of_encoder(
    source: str,
    file: str,
    pooling: str | None,
    normalize: bool,
    half: bool,
    set_: list[str] | None,
) -> Floats:
    """The vectors (R, D) of single texts; pairs are refused."""
    from closeknit.embeddings.model import load_sentence_model

    texts = _read_texts(file, None, set_)
    if texts.pairs is not None:
        raise DataError(
            f"{file} holds pairs of texts; a sentence encoder takes single texts. "
            "To read the first column only, add --set data.text2=''"
        )
    model = load_sentence_model(source, pooling=pooling, bare=True)
    with _threads_for(model.encoder, texts):
        return model.encode(texts.texts, normalize=normalize, half=half, show_progress=True)


def _check_writable(out: Path) -> None:
    """Refuse a file that cannot be written, before the work and not after it."""
    out = out.absolute()
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if nearest.is_dir() == (nearest == out) or not os.access(nearest, os.W_OK):
        raise ConfigError(
            f"{out} cannot be written: {nearest} is in the way; name another file with --out"
        )


# ---------------------------------------------------------------- evaluate-embeddings


def evaluate_embeddings(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Encoders: folders, names on the Hugging Face Hub, or default for the bundled one."
        ),
    ],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="sts, words, one of their data sets, or a file of scored pairs. Repeatable. "
            "Default: sts."
        ),
    ] = None,
    labelled: Annotated[
        list[str] | None,
        typer.Option(help="A data set with classes, for k-NN and a linear probe. Repeatable."),
    ] = None,
    retrieval: Annotated[
        list[str] | None,
        typer.Option(
            help="A table of text and text2, or a folder with a test part: is text2 found for each "
            "text? Repeatable."
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="mean, first or own. Default: that of the model, else mean."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A PNG file: draw alignment against uniformity into it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare encoders by several measures.

    They are similarity of sentences and of words, geometry, k-NN, a linear probe, and retrieval.
    """
    from closeknit.embedding_scores import table
    from closeknit.embedding_suite import evaluate_models

    default_suite = [] if labelled or retrieval else ["sts"]
    scores = evaluate_models(
        models,
        suite if suite is not None else default_suite,
        labelled=labelled or (),
        retrieval=retrieval or (),
        pooling=pooling,
        plot=plot,
    )
    if json:
        rows = {name: list(map(dataclasses.asdict, found)) for name, found in scores.items()}
        print_json(rows)
        return
    print(table(scores))
    if plot:
        print(f"\nplot: {plot}")


# ---------------------------------------------------------------- what these share


def _kind(folder: Path) -> str:
    """What kind of model a folder holds, without loading the model."""
    from closeknit.models.folder import read_facts

    return str(read_facts(folder, None)["kind"])


def _load_classifier(folder: Path) -> Model:
    from closeknit.classification.model import Model

    return Model.load(folder, bare=True)


@contextlib.contextmanager
def _threads_for(encoder: Encoder, examples: Examples) -> Iterator[None]:
    """Use one thread for a few texts.

    Several threads would save a few milliseconds, and cost many more beside other programs.
    """
    import torch

    threads = torch.get_num_threads()
    letters = sum(map(len, [*examples.texts, *(examples.pairs or [])]))
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    if letters * weights < LITTLE_WORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _read_texts(file: str, known: Columns | None, changes: list[str] | None) -> Examples:
    """The texts to answer, from a file or from standard input; labels are not needed."""
    from closeknit.data import Columns, read_file

    if known is not None:  # no row goes unanswered, unless --set data.empty=drop says so
        known = dataclasses.replace(known, empty="error")
    columns = chosen_columns(known, changes)
    if file == "-":
        return _read_standard_input(columns.empty)
    if " " in file.strip() and not Path(file).exists():
        raise DataError(
            f"{file} does not exist; a text is read from standard input: "
            f'echo "{file}" | closeknit …'
        )
    is_text_file = Path(file).suffix.lower() in (".txt", "")
    return read_file(file, Columns(empty=columns.empty) if is_text_file else columns, target=None)


def _read_standard_input(empty: str) -> Examples:
    """One text per line; `empty` says what to do with empty lines."""
    from closeknit.data import from_python, lines_of

    if sys.stdin.isatty():
        print("reading one text per line from the keyboard; end with Ctrl-D", file=sys.stderr)
    stream = getattr(sys.stdin, "buffer", None)
    content = stream.read() if stream else sys.stdin.read().encode()
    lines = lines_of(content, "standard input")
    if not lines:
        raise DataError("standard input is empty: there is no text")
    return from_python(lines, name="standard input", empty=empty)
