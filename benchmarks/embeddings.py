"""SimCSE and Mirror-BERT from a plain language model: similarity, words and geometry before and
after.

CLOSEKNIT_DATA=FOLDER python benchmarks/embeddings.py ENCODER [TUNED ...] [--out FILE]

FOLDER holds mirror_bert_lists, nli_triplets, stsb, sts12 to sts15 and wordsim. ENCODER is a
language model without sentence training; TUNED are sentence encoders, on which the defaults are
tried. Settings were chosen on STS-B validation alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from closeknit.data import Sentences, read_scored_pairs, read_sentences
from closeknit.embeddings.config import with_recipe
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
    model, seconds = learn(
        texts,
        options.encoder,
        validation,
        method={"name": "mirror"},
        train={"lr": 5e-5, "evaluate_every": 10},
    )
    lines.append(line("Mirror-BERT, 10k sentences", model, seconds))
    model, seconds = learn(
        texts,
        options.encoder,
        validation,
        method={"name": "simcse", "temperature": 0.04},
        train={"epochs": 3, "evaluate_every": 57},
    )
    lines.append(line("SimCSE, the same sentences", model, seconds))
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
    model, seconds = learn(triplets, options.encoder, validation, method={"name": "simcse"})
    lines.append(line("supervised SimCSE alone, defaults", model, seconds))
    model, seconds = learn(words, options.encoder, None, method={"name": "mirror", "level": "word"})
    lines.append(line("Mirror-BERT for words, 10k words, defaults", model, seconds))
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
