"""Commands about vectors: embed, evaluate-embeddings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from closeknit.cli.inputs import kind_of, load_classifier, read_texts, threads_for
from closeknit.cli.options import DataSetOption, JsonOption
from closeknit.cli.output import print_json
from closeknit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from closeknit.embeddings.layers import LayerAnisotropy
    from closeknit.encoders.inference import Floats


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
            help="first, mean or own (the encoder's pooler). Default: that of the model, as its "
            "folder declares it, else mean."
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
    if (folder / MAIN).exists() and kind_of(folder) == "text_classifier":
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

    from closeknit.encoders.encoder import Encoder
    from closeknit.encoders.inference import outputs

    classifier = load_classifier(folder)
    encoder = classifier.encoder
    if pooling is not None:
        encoder = Encoder(encoder.trunk, pooling, encoder.name)
    texts = read_texts(file, classifier.config.data, set_)
    with threads_for(encoder, texts):
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

    texts = read_texts(file, None, set_)
    if texts.pairs is not None:
        raise DataError(
            f"{file} holds pairs of texts; a sentence encoder takes single texts. "
            "To read the first column only, add --set data.text2=''"
        )
    model = load_sentence_model(source, pooling=pooling, bare=True)
    with threads_for(model.encoder, texts):
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
            "Default: sts, if nothing else is named."
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
    lexicon: Annotated[
        list[str] | None,
        typer.Option(
            help="A dictionary of two languages (source, target): are the translations found, by "
            "CSLS? Repeatable."
        ),
    ] = None,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            help="The words among which the translations of a --lexicon are looked for. Default: "
            "its own targets."
        ),
    ] = None,
    entities: Annotated[
        list[str] | None,
        typer.Option(help="A table of names of concepts (name, id). Repeatable, with --mentions."),
    ] = None,
    mentions: Annotated[
        list[str] | None,
        typer.Option(
            help="A table of mentions (mention, id): is a name of the concept found among those of "
            "--entities? Repeatable."
        ),
    ] = None,
    entailment: Annotated[
        list[str] | None,
        typer.Option(
            help="A table of text, text2 and label (1 or 0): does the cosine tell answers from "
            "other texts (AUC)? Repeatable."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of the text, in files.")] = None,
    text2: Annotated[str | None, typer.Option(help="The column of the second text.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of the class, the concept id or the answer.")
    ] = None,
    score: Annotated[str | None, typer.Option(help="The column of the score of a pair.")] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="mean, first or own. Default: that of the model, else mean."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A PNG file: draw alignment against uniformity into it.")
    ] = None,
    layers: Annotated[
        Path | None,
        typer.Option(
            help="A PNG or SVG file: show and draw the anisotropy of each layer, for words in context "
            "and for texts."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare encoders by several measures.

    They are similarity of sentences and of words, geometry, k-NN, a linear probe, retrieval,
    translation of words, entity linking, and question-answer entailment.
    """
    from closeknit.embeddings import leaderboard
    from closeknit.embeddings.layers import layer_records, layers_table
    from closeknit.embeddings.score_tables import scores_table

    others = (labelled, retrieval, lexicon, candidates, entities, mentions, entailment)
    roles = {"text": text, "text2": text2, "label": label, "score": score}
    suites = suite or ([] if any(others) else ["sts"])
    of_layers = _compare_layers(models, suites, labelled or (), pooling, layers) if layers else {}
    scores = leaderboard.evaluate_embeddings(
        models,
        suites,
        labelled=labelled or (),
        retrieval=retrieval or (),
        lexicon=lexicon or (),
        candidates=candidates or (),
        entities=entities or (),
        mentions=mentions or (),
        entailment=entailment or (),
        columns={role: name for role, name in roles.items() if name is not None},
        pooling=pooling,
        plot=plot,
    )
    if json:
        rows = {name: list(map(dataclasses.asdict, found)) for name, found in scores.items()}
        for name, found in of_layers.items():
            rows[name] += layer_records(found)
        print_json(rows)
        return
    print(scores_table(scores))
    if plot:
        print(f"\nplot: {plot}")
    if layers:
        print(f"\nanisotropy of each layer\n\n{layers_table(of_layers)}")
        print(f"picture of the layers: {layers}")


def _compare_layers(
    models: Sequence[str],
    suites: Sequence[str],
    labelled: Sequence[str],
    pooling: str | None,
    picture: Path,
) -> dict[str, list[LayerAnisotropy]]:
    """The anisotropy of the models' layers on the texts of the evaluation, and its picture."""
    from closeknit.charts.png import pyplot
    from closeknit.console import say
    from closeknit.data.catalogue import load
    from closeknit.data.scored_pairs import read_suites
    from closeknit.embeddings.layers import check_picture, draw_layers, layer_anisotropy
    from closeknit.embeddings.model import load_sentence_model

    check_picture(picture)
    pyplot()
    sets = read_suites(suites, log=say) if suites else []
    texts = [text for pairs in sets for text in pairs.texts]
    texts += [text for source in labelled for text in load(source).training.texts]
    found: dict[str, list[LayerAnisotropy]] = {}
    for name in dict.fromkeys(models):
        say(f"the layers of {name}")
        found[name] = layer_anisotropy(load_sentence_model(name, pooling=pooling), texts)
    draw_layers(picture, found)
    return found
