"""Time from raw texts to vectors against SentenceTransformer.encode: same model, texts and pooling,
in turns.

python benchmarks/encode.py [--device cuda] [--rows 256] [--repeats 5] [--threads 2 1] [--texts
FILE] [--out FILE]

Prints a Markdown table: median seconds of both sides, the ratio, the processor seconds of both (on
a machine that is shared they are the steadier figure), and the largest difference from the float32
vectors of SentenceTransformer; one beyond the limit ends the run with exit code 1.
SentenceTransformer runs at its defaults, batches of 32. Texts are made of the bundled messages:
half short questions and half long paragraphs, then texts of one length; or they are read from
--texts, one a line. On a GPU both sides run in float32, then both in bfloat16. Last, many short
texts and a quarter of them, by Closeknit alone: the time has to grow with their number.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from closeknit.data import Examples, catalogue
from closeknit.encoders.inference import encode_texts
from closeknit.encoders.loading import default_encoder, load_encoder, quiet_transformers
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.models.saved_model import versions

LENGTH = 256  # the most tokens a text, which is what the model's own files say
# Largest difference from SentenceTransformer's float32 vectors, whose numbers reach about 1.
LIMITS = {("cpu", "float32"): 1e-5, ("cuda", "float32"): 1e-3, ("cuda", "bfloat16"): 5e-2}

Side = Callable[[list[str]], Any]


class Writer:
    """Texts of any number of words, cut from bundled messages that are joined in a random order."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.messages = catalogue.load("messages").training.texts

    def text(self, words: int) -> str:
        found: list[str] = []
        while len(found) < words:
            found += self.draw.choice(self.messages).split()
        return " ".join(found[:words])

    def short(self, n: int) -> list[str]:
        return [self.text(self.draw.randint(4, 20)) for _ in range(n)]

    def mixed(self, n: int) -> list[str]:
        """Half short questions, half paragraphs, shuffled."""
        texts = self.short(n // 2) + [
            self.text(self.draw.randint(60, 200)) for _ in range(n - n // 2)
        ]
        self.draw.shuffle(texts)
        return texts

    def uniform(self, n: int, tokeniser: Tokeniser, tokens: int = 64) -> list[str]:
        """Texts of exactly so many tokens."""
        texts: list[str] = []
        while len(texts) < n:
            drawn = [self.text(round(tokens * self.draw.uniform(0.6, 0.95))) for _ in range(1000)]
            lengths = tokeniser(Examples(drawn)).lengths
            texts += [text for text, length in zip(drawn, lengths, strict=True) if length == tokens]
        return texts[:n]


def timed(side: Side, texts: list[str]) -> tuple[float, float, Any]:
    """(seconds, processor seconds, vectors); both sides end in a NumPy array, so nothing is still
    under way.
    """
    begun, used = time.perf_counter(), time.process_time()
    vectors = side(texts)
    return time.perf_counter() - begun, time.process_time() - used, vectors


def compare(
    ours: Side, theirs: Side, texts: list[str], repeats: int
) -> tuple[dict[str, float], Any, Any]:
    """Medians of both, in turns, each first every other time; our vectors and theirs."""
    sides = {"ours": ours, "theirs": theirs}
    times: dict[str, list[float]] = {
        f"{kind} {name}": [] for name in sides for kind in ("wall", "cpu")
    }
    vectors: dict[str, Any] = {}
    for side in sides.values():
        side(texts[:32])
    for repeat in range(repeats):
        for name in sorted(sides, reverse=repeat % 2 == 1):
            wall, cpu, vectors[name] = timed(sides[name], texts)
            times[f"wall {name}"].append(wall)
            times[f"cpu {name}"].append(cpu)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians, vectors["ours"], vectors["theirs"]


def their_model(device: str, precision: str) -> Any:
    """The same weights with mean pooling alone: the scaling to length 1 that its folder adds is
    left out.
    """
    with quiet_transformers():
        whole = SentenceTransformer(default_encoder(), device=device)
    model = SentenceTransformer(modules=[whole[0], whole[1]], device=device)
    assert model.max_seq_length == LENGTH
    return model.bfloat16() if precision == "bfloat16" else model


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--many", type=int, default=10_000, help="short texts of the last part; 0 leaves it out"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device: str = options.device
    encoder, tokeniser = load_encoder(None, pooling="mean", max_length=LENGTH)
    encoder.to(device)
    writer = Writer(2)
    if options.texts:
        lines_read = options.texts.read_text(encoding="utf-8").splitlines()
        cases = {options.texts.name: [line for line in lines_read if line.strip()]}
    else:
        cases = {
            "mixed lengths": writer.mixed(options.rows),
            "one length": writer.uniform(options.rows, tokeniser),
        }
    lines = [
        f"# Texts to vectors on one {device.upper()}: Closeknit and SentenceTransformer.encode",
        "",
        f"Medians of {options.repeats} runs in turns, from strings to a NumPy array of mean-pooled vectors; in brackets "
        "the processor seconds. SentenceTransformer.encode at its defaults. Ratio: the other side over ours.",
        "",
        "| texts | tokens (least, mean, most) | type | threads | Closeknit, s | SentenceTransformer, s | ratio | vectors apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wrong: list[str] = []
    references: dict[str, Any] = {}
    for precision in ("float32", "bfloat16") if device == "cuda" else ("float32",):
        model = their_model(device, precision)
        half, limit = precision == "bfloat16", LIMITS[device, precision]

        def ours(texts: list[str], half: bool = half) -> Any:
            return encode_texts(encoder, tokeniser, texts, half=half)

        def theirs(texts: list[str], model: Any = model) -> Any:
            return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float32)

        for threads, (name, texts) in itertools.product(options.threads, cases.items()):
            torch.set_num_threads(threads)
            found, vectors, their_vectors = compare(ours, theirs, texts, options.repeats)
            reference = references.setdefault(name, their_vectors)  # the first are float32
            apart = float(np.abs(vectors - reference).max())
            lengths = tokeniser(Examples(texts)).lengths
            ratio = found["wall theirs"] / found["wall ours"]
            ratio_cpu = found["cpu theirs"] / found["cpu ours"]
            lines.append(
                f"| {len(texts)}, {name} | {lengths.min()}, {lengths.mean():.0f}, {lengths.max()} | {precision} | "
                f"{threads} | {found['wall ours']:.2f} ({found['cpu ours']:.2f}) | "
                f"{found['wall theirs']:.2f} ({found['cpu theirs']:.2f}) | {ratio:.2f} ({ratio_cpu:.2f}) | "
                f"{apart:.1e} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
            if apart > limit:
                wrong.append(f"{name}, {precision}: vectors {apart:.1e} apart, allowed {limit:.0e}")
    torch.set_num_threads(options.threads[0])
    if options.many:
        many = writer.short(options.many)
        part = many[: max(1, options.many // 4)]

        def whole(texts: list[str]) -> Any:
            return encode_texts(encoder, tokeniser, texts, half=device == "cuda")

        whole(many[:32])
        few_s, few_cpu, _ = timed(whole, part)
        all_s, all_cpu, _ = timed(whole, many)
        lines += [
            "",
            f"Closeknit alone, short texts of {tokeniser(Examples(many)).lengths.mean():.0f} tokens: {len(part):,} in "
            f"{few_s:.1f} s ({few_cpu:.1f}) and {len(many):,} in {all_s:.1f} s ({all_cpu:.1f}).",
        ]
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    found_versions = versions() | {"sentence-transformers": version("sentence-transformers")}
    shown = ", ".join(f"{name} {number}" for name, number in found_versions.items())
    lines += ["", f"all-MiniLM-L6-v2 on {machine}; {shown}.", ""]
    print("\n".join(lines))
    out = options.out or Path(__file__).parent / "results" / f"encode-{device}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines), encoding="utf-8")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
