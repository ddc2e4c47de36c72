"""The command that shows which classes a model, or the runs of a study, consider close."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from closeknit.cli.inputs import kind_of, load_classifier
from closeknit.cli.options import DataSetOption, JsonOption, chosen_columns
from closeknit.cli.output import print_json
from closeknit.cli.use import part_to_score
from closeknit.errors import ConfigError

if TYPE_CHECKING:
    from closeknit.classification.label_relations import ClassPair, LabelRelations


def labels(
    source: Annotated[
        Path,
        typer.Argument(help="A folder that `closeknit train` or `closeknit compare` wrote."),
    ],
    data: Annotated[
        str | None,
        typer.Argument(
            help="Labelled texts for a model: a file, a folder or the name of a data set. Without "
            "them, the weights of the classifier are compared. For a study: a data set of it."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="The part of the data. Default: test, else all, validation or train."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="The objective of a study whose runs are read. Default: the baseline."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for labels.html, closeness.csv and label-distance.csv."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many pairs to print.", min=1)] = 10,
    set_: DataSetOption = None,
    json: JsonOption = False,
) -> None:
    """Show which classes a model confuses, as a tree.

    The runs of a study can be read too. Pairs to merge, to split or to describe better are named.

    The file label-distance.csv can be given to the objective clld, which then holds close classes
    further apart: --objective clld --set objective.distance=label-distance.csv
    """
    from closeknit.reports.label_page import advice_sentences, write_label_page

    if out is not None and out.is_file():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if (source / "study.json").exists():
        relations, subject = _of_study(source, data, objective, part, set_)
    else:
        relations, subject = _of_model(source, data, objective, part, set_)
    sentences = advice_sentences(relations)
    if json:
        print_json(_as_json(relations, subject, sentences, top))
    else:
        _print_relations(relations, subject, sentences, top)
    if out is not None:
        relations.save(out)
        page = write_label_page(relations, out, subject)
        if not json:
            print(f"\npage: {page}")


def _of_study(
    folder: Path,
    data: str | None,
    objective: str | None,
    part: str | None,
    set_: list[str] | None,
) -> tuple[LabelRelations, str]:
    from closeknit.reports.label_page import study_label_relations

    if part is not None or set_:
        raise ConfigError("--part and --set are for the data of a model; a study knows its own")
    return study_label_relations(folder, objective, data)


def _of_model(
    folder: Path,
    data: str | None,
    objective: str | None,
    part: str | None,
    set_: list[str] | None,
) -> tuple[LabelRelations, str]:
    from closeknit.data import catalogue

    if objective is not None:
        raise ConfigError(f"--objective is for studies; {folder} holds one model")
    kind = kind_of(folder)
    if kind != "text_classifier":
        raise ConfigError(
            f"{folder} holds a model of the kind {kind}; this command reads classifiers of one task"
        )
    classifier = load_classifier(folder)
    if data is None:
        if part is not None or set_:
            raise ConfigError("--part and --set need labelled texts: name a file or a data set")
        return classifier.label_relations(), f"the model {folder}"
    loaded = catalogue.load(data, chosen_columns(classifier.config.data, set_))
    chosen = part_to_score(loaded.parts, part, data)
    relations = classifier.label_relations(loaded.parts[chosen])
    return relations, f"{folder} on {loaded.name} {chosen}"


# ---------------------------------------------------------------- output


def _print_relations(
    relations: LabelRelations, subject: str, sentences: list[str], top: int
) -> None:
    print(f"{subject}: closeness from {relations.basis}\n")
    print(relations.tree())
    pairs = [pair for pair in relations.pairs if pair.closeness > 0][:top]
    if pairs:
        print("\nthe closest pairs:")
    for pair in pairs:
        _print_pair(pair, counted=relations.counts is not None)
    for sentence in sentences:
        print(f"\n{sentence}")


def _print_pair(pair: ClassPair, *, counted: bool) -> None:
    line = f"  {pair.closeness:.3f}  {pair.first} | {pair.second}"
    if counted:
        line += (
            f"  confused {100 * pair.share:.1f} % "
            f"({pair.first_as_second} rows of the first, {pair.second_as_first} of the second)"
        )
        line += f"  {pair.advice}" if pair.advice else ""
    print(line)
    for example in pair.examples[:2]:
        print(
            f"         {example.expected}, answered {example.predicted}: {clipped_line(example.text)}"
        )


def clipped_line(text: str, letters: int = 90) -> str:
    """The text on one line, without its end if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 1].rstrip()}…"


def _as_json(
    relations: LabelRelations, subject: str, sentences: list[str], top: int
) -> dict[str, Any]:
    return {
        "subject": subject,
        "basis": relations.basis,
        "labels": relations.labels,
        "closeness": [[round(float(cell), 6) for cell in row] for row in relations.closeness],
        "merges": relations.merges(),
        "pairs": [dataclasses.asdict(pair) for pair in relations.pairs[:top]],
        "splits": [dataclasses.asdict(split) for split in relations.splits],
        "advice": sentences,
    }
