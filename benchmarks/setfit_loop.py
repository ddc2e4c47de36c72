"""SetFit's training written out in plain torch, on the rows that recipe.py --shots draws, for machines without SetFit.

CLOSEKNIT_DATA=FOLDER python benchmarks/setfit_loop.py [--data trec …] [--shots 64] [--draws 4] [--encoder FOLDER] [--out FILE]

For every row 20 pairs of its class and 20 of others; the cosine of a pair is drawn to 1 or 0 by its squared error, batches of 16
pairs, AdamW at 2e-5 with a tenth of warm-up; then logistic regression on the unit vectors. benchmarks/few_shot.py runs SetFit
itself. A line of FILE for every run, as recipe.py writes them; runs that are there are not done again.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from recipe import jobs
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

from closeknit import catalogue
from closeknit.encoder import default_encoder
from closeknit.metrics import classification_scores
from closeknit.model import label_numbers
from closeknit.protocol import append_line, read_lines

LENGTH, ITERATIONS, PAIRS, RATE = 128, 20, 16, 2e-5


class Embedder(nn.Module):
    """Unit vectors of texts: the mean of their tokens."""

    def __init__(self, encoder: str, device: str) -> None:
        super().__init__()
        self.tokenise = AutoTokenizer.from_pretrained(encoder)
        self.trunk = AutoModel.from_pretrained(encoder, dtype=torch.float32).to(device)
        self.device = device

    def forward(self, texts: Sequence[str]) -> Tensor:
        batch = self.tokenise(
            list(texts), padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
        ).to(self.device)
        hidden, mask = self.trunk(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
        return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        self.eval()
        parts = [self(texts[i : i + 256]).cpu().numpy() for i in range(0, len(texts), 256)]
        return np.concatenate(parts)


def train(embed: Embedder, texts: Sequence[str], labels: np.ndarray[Any, Any], seed: int) -> int:
    """SetFit's first stage; gives the number of updates."""
    generator = np.random.default_rng(seed)
    pairs: list[tuple[int, int, float]] = []
    for i, label in enumerate(labels):
        same, other = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
        pairs += [(i, int(j), 1.0) for j in generator.choice(same, ITERATIONS)]
        pairs += [(i, int(j), 0.0) for j in generator.choice(other, ITERATIONS)]
    order = generator.permutation(len(pairs))
    torch.manual_seed(seed)
    embed.train()
    steps = math.ceil(len(pairs) / PAIRS)
    optimiser = torch.optim.AdamW(embed.parameters(), lr=RATE, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimiser, int(0.1 * steps), steps)
    for step in range(steps):
        own = [pairs[i] for i in order[PAIRS * step : PAIRS * (step + 1)]]
        z = embed([texts[a] for a, _, _ in own] + [texts[b] for _, b, _ in own])
        first, second = z.chunk(2)
        wanted = torch.tensor([value for *_, value in own], device=z.device)
        loss = ((first * second).sum(1) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(embed.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["trec"])
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--encoder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "recipe-few.jsonl")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = options.encoder or default_encoder()
    embed = Embedder(encoder, device)
    start = {name: value.clone() for name, value in embed.state_dict().items()}
    done = {record["key"] for record in read_lines(options.out)}
    for name in options.data:
        examples = catalogue.load(name).training
        for job in jobs(name, examples, {"SetFit's loop": {}}, options.draws, encoder, options.shots):
            if job.key in done:
                continue
            embed.load_state_dict(start)
            rows, test = examples.select(job.train), examples.select(job.test)
            labels = label_numbers(rows, list(job.labels))
            begun = time.perf_counter()
            steps = train(embed, rows.texts, labels, job.fold)
            head = LogisticRegression(max_iter=1000).fit(embed.vectors(rows.texts), labels)
            took = time.perf_counter() - begun
            said, meant = head.predict(embed.vectors(test.texts)), label_numbers(test, list(job.labels))
            scores = classification_scores(meant, said, list(job.labels))
            scores.pop("per_class")
            record = {"key": job.key, "shots": options.shots, "data": name, "variant": job.objective, "draw": job.fold,
                      "steps": steps, "seconds": round(took, 3), "error": None, **scores}  # fmt: skip
            append_line(options.out, record)
            print(record, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
