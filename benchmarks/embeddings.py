"""SimCSE and Mirror-BERT from a plain language model: similarity, words and geometry before and
after.

CLOSEKNIT_DATA=FOLDER python benchmarks/embeddings.py ENCODER [TUNED ...] [--out FILE]

FOLDER holds mirror_bert_lists, nli_triplets, stsb, sts12 to sts15 and wordsim. ENCODER is a
language model without sentence training; TUNED are sentence encoders, on which the defaults are
tried. Settings were chosen on STS-B validation alone. Below each training stand its control, the
same training on random strings, and for the list of sentences the trainings on the sentences that
do not occur in the test sets, and on as many sentences drawn from the whole list.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from closeknit.data import Sentences, load_scored_pairs, read_scored_pairs, read_sentences
from closeknit.embeddings.config import with_recipe
from closeknit.embeddings.control import random_sentences
from closeknit.embeddings.evaluated_texts import without_evaluated
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.embeddings.model import SentenceModel, load_sentence_model
from closeknit.embeddings.score_tables import Score, evaluate_suite
from closeknit.models.saved_model import versions

COLUMNS = ("sts12", "sts13", "sts14", "sts15", "stsb", "simlex999", "men")
GEOMETRY = ("alignment", "uniformity", "anisotropy")


def learn(
    rows: Sentences, encoder: str, validation: Any, **tables: dict[str, Any]
) -> tuple[SentenceModel, float]:
    begun = time.perf_counter()
    settings = {
        **tables,
        "encoder": {"name": encoder, "max_length": 64, **tables.get("encoder", {})},
    }
    fit = EmbeddingFit(rows, with_recipe(settings, len(rows.columns)), validation=validation)
    for _ in fit:
        pass
    return fit.model, time.perf_counter() - begun


def line(name: str, model: SentenceModel, seconds: float | None) -> str:
    scores: list[Score] = evaluate_suite(
        model.encode, list(COLUMNS), measures=("spearman", *GEOMETRY), log=print
    )
    of = {(score.data, score.measure): score.value for score in scores}
    shown = [
        f"{100 * of[data, 'spearman']:.1f}" if (data, "spearman") in of else "" for data in COLUMNS
    ]
    sts = [of[data, "spearman"] for data in COLUMNS[:5] if (data, "spearman") in of]
    shown.insert(5, f"{100 * sum(sts) / len(sts):.1f}")
    shown += [f"{of['stsb', measure]:.3f}" for measure in GEOMETRY]
    print(name, *shown, flush=True)
    return (
        f"| {name} | " + " | ".join(shown) + f" | {'' if seconds is None else f'{seconds:.0f}'} |"
    )


def with_controls(
    name: str, rows: Sentences, encoder: str, validation: Any, **tables: dict[str, Any]
) -> tuple[list[str], SentenceModel, float]:
    """The lines of a training and of the same training on random strings; its model and seconds."""
    model, seconds = learn(rows, encoder, validation, **tables)
    seed = int(tables.get("train", {}).get("seed", 2))
    control, of_control = learn(random_sentences(rows, seed), encoder, validation, **tables)
    lines = [line(name, model, seconds), line(f"{name}: random strings", control, of_control)]
    return lines, model, seconds


def fair_sentences(texts: Sentences, validation: Any) -> tuple[Sentences, Sentences]:
    """The sentences that occur in no evaluation set, and as many drawn from the whole list."""
    evaluated = [*map(load_scored_pairs, COLUMNS[:5]), validation]
    kept, _ = without_evaluated(texts, evaluated)
    drawn = np.random.default_rng(0).choice(len(texts), len(kept), replace=False)
    return kept, texts.select(np.sort(drawn).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoder", nargs="?")
    parser.add_argument("tuned", nargs="*")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "embeddings.md"
    )
    options = parser.parse_args()
    if options.encoder is None or "CLOSEKNIT_DATA" not in os.environ:
        print(
            "embeddings.py skipped: it needs the name of a plain language model, and CLOSEKNIT_DATA"
        )
        return
    data = Path(os.environ["CLOSEKNIT_DATA"])
    validation = read_scored_pairs(data / "stsb", "validation")
    texts = read_sentences(str(data / "mirror_bert_lists" / "sentences_stsb_10k.parquet"))
    words = read_sentences(str(data / "mirror_bert_lists" / "words_en.parquet"))
    triplets = read_sentences(str(data / "nli_triplets"))
    lines = [line("before, mean pooling", load_sentence_model(options.encoder), None)]
    kept, drawn = fair_sentences(texts, validation)
    mirror: dict[str, Any] = {
        "method": {"name": "mirror"},
        "train": {"lr": 5e-5, "evaluate_every": 10},
    }
    simcse: dict[str, Any] = {
        "method": {"name": "simcse", "temperature": 0.04},
        "train": {"epochs": 3, "evaluate_every": 57},
    }
    for name, tables in (("Mirror-BERT", mirror), ("SimCSE", simcse)):
        with_control, model, seconds = with_controls(
            f"{name}, 10k sentences", texts, options.encoder, validation, **tables
        )
        lines += with_control
        for what, rows in (("without evaluated texts", kept), ("as many from the list", drawn)):
            own, took = learn(rows, options.encoder, validation, **tables)
            lines.append(line(f"{name}, {len(rows):,} sentences, {what}", own, took))
    push = {**mirror, "method": {"name": "mirror", "pull": False}}
    own, took = learn(texts, options.encoder, validation, **push)
    lines.append(line("Mirror-BERT, 10k sentences, negatives alone", own, took))
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        model, more = learn(
            triplets,
            folder,
            validation,
            method={"name": "simcse", "temperature": 0.06},
            train={
                "epochs": 6,
                "batch_size": 1024,
                "chunk_size": 0,
                "lr": 3e-4,
                "evaluate_every": 14,
            },
        )
        lines.append(line("then supervised SimCSE, 27,560 triplets", model, seconds + more))
    with_control, _, _ = with_controls(
        "supervised SimCSE alone, defaults",
        triplets,
        options.encoder,
        validation,
        method={"name": "simcse"},
    )
    lines += with_control
    with_control, _, _ = with_controls(
        "Mirror-BERT for words, 10k words, defaults",
        words,
        options.encoder,
        None,
        method={"name": "mirror", "level": "word"},
    )
    lines += with_control
    for name in options.tuned:
        lines.append(line(f"{Path(name).name}, before", load_sentence_model(name), None))
        model, seconds = learn(texts, name, None, method={"name": "simcse"})
        lines.append(line(f"{Path(name).name}, SimCSE by default, not validated", model, seconds))
        model, seconds = learn(texts, name, validation, method={"name": "simcse"})
        lines.append(line(f"{Path(name).name}, SimCSE by default, validated", model, seconds))
    head = [*COLUMNS[:5], "STS average", *COLUMNS[5:], *GEOMETRY, "s"]
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads"
    )
    report = [
        f"# Embeddings from {Path(options.encoder).name}",
        "",
        "Spearman's correlation times 100 over all pairs of a set (test parts); alignment, uniformity and anisotropy",
        "on STS-B test, smaller is better for all three. Settings and best states were chosen on STS-B validation.",
        "",
        "The list of 10,000 sentences holds 34 to 46 % of the test texts of STS12 to STS15, 8.7 % of those of STS-B and",
        "7.7 % of those of STS-B validation; the list of words holds 81 % of the words of SimLex-999 and 78 % of those of MEN;",
        "the triplets hold up to 5.6 % of the texts of a set. The STS average is the mean of the five sets shown, not of seven.",
        "",
        "| | " + " | ".join(head) + " |",
        "|---|" + "---|" * len(head),
        *lines,
        "",
        f"{device}; " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
        "",
    ]
    print("\n".join(report))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("\n".join(report), encoding="utf-8")


if __name__ == "__main__":
    main()
