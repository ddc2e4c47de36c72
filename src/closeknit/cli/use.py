"""Commands that use trained models: evaluate, predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.cli.inputs import kind_of, load_classifier, read_texts, threads_for
from closeknit.cli.options import DataSetOption, JsonOption, ModelArgument, chosen_columns
from closeknit.cli.output import (
    print_classes,
    print_json,
    print_near_rows,
    print_scores,
    print_tasks,
)
from closeknit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from closeknit.data.examples import Examples
    from closeknit.encoders.inference import Floats
    from closeknit.multitask.model import MultiTaskModel

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
    train: Annotated[
        str | None,
        typer.Option(
            help="The training rows, for the score on rows whose nearest training text has another "
            "label. Default: the part train of the data, if another part is scored."
        ),
    ] = None,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a trained model on labelled texts.

    Rows whose nearest training text has another label are scored apart too. A model of several
    tasks is scored on each task, and the average is printed too.
    """
    if kind_of(model) == "multi_task":
        if train is not None:
            raise ConfigError("--train is for models of one task; this one has several")
        _evaluate_tasks(model, data, part, task, set_, json)
        return
    if task is not None:
        raise ConfigError(f"--task is for models of several tasks; {model} has one")
    if data is None:
        raise ConfigError(
            "name the data to score the model on: a file, a folder or the name of a data set"
        )
    from closeknit.console import say
    from closeknit.data import catalogue

    classifier = load_classifier(model)
    columns = chosen_columns(classifier.config.data, set_)
    loaded = catalogue.load(data, columns)
    chosen = part_to_score(loaded.parts, part, data)
    training = loaded.parts.get("train") if chosen != "train" else None
    if train is not None:
        training = catalogue.load(train, columns).training
    scores = classifier.evaluate(loaded.parts[chosen], training)
    if scores.get("trained_on"):
        say(
            f"{scores['trained_on']} of the {scores['n']} rows were part of the training, up to case "
            "and punctuation: the scores are better than on new texts"
        )
    if json:
        print_json(scores)
        return
    print_scores(scores, f"{loaded.name} {chosen}")
    print_near_rows(scores.get("near_other_label"))
    print_classes(scores["per_class"])


def part_to_score(parts: Mapping[str, Examples], asked: str | None, what: str) -> str:
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
        chosen[name] = part_to_score(found, part, f"task {name}")
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
    if kind_of(model) == "multi_task":
        examples, outputs, labels = _predict_task(model, file, task, set_)
    else:
        if task is not None:
            raise ConfigError(f"--task is for models of several tasks; {model} has one")
        classifier = load_classifier(model)
        examples = read_texts(file, classifier.config.data, set_)
        with threads_for(classifier.encoder, examples):
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
    examples = read_texts(file, model.task(name).columns, set_)
    with threads_for(model.encoder, examples):
        return examples, model.predict(name, examples), model.answers[name].labels


def _answers(examples: Examples, outputs: Floats, labels: list[str]) -> Iterator[dict[str, Any]]:
    """The answer for each row: a score, or a label with the probabilities of all labels."""
    from closeknit.encoders.inference import softmax

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
