"""Time and peak memory of forward + backward of each objective, beside its peers, on the same points.

python benchmarks/objectives.py [--device cuda] [--only TripleEntropy] [--out FILE]

Prints a Markdown table: milliseconds (median), peak memory above the inputs, the peer's on the same work, the
ratios, and how far the two values lie apart where both compute the same formula. On a CPU every case runs in a
process of its own, whose largest resident size is read; on a GPU torch's own count is. TripleEntropy stands on
64 texts of 128 tokens; its plain form keeps all similarities at once, ours is to need a fifth of that at the most.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.model import versions
from closeknit.objectives import (
    Contrastive,
    CrossEntropy,
    InfoNCE,
    LabelAware,
    LabelDistance,
    MultipleNegatives,
    NTXent,
    ProxyNCA,
    SoftTriple,
    SupCon,
    Triplet,
    build_objective,
)  # fmt: skip
from closeknit.objectives.view import View

Work = tuple[nn.Module, Callable[[], Tensor], list[Tensor]]


def rows(
    n: int, dim: int, classes: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(n, dim, generator=generator).to(device, dtype).requires_grad_()
    return z, torch.randint(classes, (n,), generator=generator).to(device)


def soft_triple(device: str, side: str, n: int, dim: int, C: int, K: int) -> Work:
    half = side == "ours, bf16"
    z, y = rows(n, dim, C, device, torch.bfloat16 if half else torch.float32)
    options = {"gamma": 0.1, "margin": 0.3}
    ours = SoftTriple(dim, C, centers=K, scale=3.3, **options).to(device)
    if side == "pytorch-metric-learning":
        from pytorch_metric_learning import losses

        theirs = losses.SoftTripleLoss(C, dim, centers_per_class=K, la=3.3, **options).to(device)
        theirs.fc.data = ours.proxies.detach().flatten(0, 1).T.contiguous()
        return theirs, lambda: theirs(z, y), [z]
    if side == "plain":
        return ours, lambda: plain(z, ours.proxies, y), [z]
    return ours, lambda: ours(z, y), [z]


def plain(z: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """SoftTriple as one would write it: all similarities at once."""
    near = torch.einsum("rd,ckd->rck", F.normalize(z, dim=-1), F.normalize(w, dim=-1))
    score = (torch.softmax(near / 0.1, dim=-1) * near).sum(-1)
    return F.cross_entropy(3.3 * (score - 0.3 * F.one_hot(y, len(w)).to(score)), y)


def triple_entropy(device: str, side: str, n: int, dim: int, C: int, K: int) -> Work:
    """Cross-entropy on the logits of texts of 128 tokens, SoftTriple on all n tokens."""
    z, _ = rows(n, dim, C, device)
    logits, labels = rows(n // 128, C, C, device)
    y = labels.repeat_interleave(128)
    ours = build_objective("triple_entropy", dim, C, {"centers": K}).to(device)
    if side == "plain":
        w = next(ours.parameters())
        return ours, lambda: 0.9 * F.cross_entropy(logits, labels) + 0.1 * plain(z, w, y), [z, logits]
    return ours, lambda: ours({"logits": View(logits, labels), "tokens": View(z, y)})[0], [z, logits]


def batch(name: str) -> Callable[[str, str], Work]:
    """An objective on a batch of 512 rows (or 2 x 256 views) of 768 dimensions, 16 classes."""

    def build(device: str, side: str) -> Work:
        z, y = rows(512, 768, 16, device)
        weights = torch.softmax(torch.randn(512, 16, device=device), -1)
        views = z.unflatten(0, (2, 256))
        ours: dict[str, tuple[nn.Module, Callable[[Any], Tensor]]] = {
            "CrossEntropy": (CrossEntropy(), lambda o: o(z[:, :16], y)),
            "Contrastive": (Contrastive(), lambda o: o(z, y)),
            "Triplet": (Triplet(margin=0.2), lambda o: o(z, y)),
            "ProxyNCA": (ProxyNCA(768, 16, squared=True), lambda o: o(z, y)),
            "SupCon": (SupCon(temperature=0.3), lambda o: o(z, y)),
            "LabelAware": (LabelAware(), lambda o: o(z, y, weights)),
            "LabelDistance": (LabelDistance(16), lambda o: o(z, y)),
            "InfoNCE": (InfoNCE(), lambda o: o(views)),
            "NTXent": (NTXent(temperature=0.3), lambda o: o(views)),
            "MultipleNegatives": (MultipleNegatives(scale=20.0), lambda o: o(views)),
        }
        if side == "ours":
            module, call = ours[name]
            module.to(device)
            return module, lambda: call(module), [z]
        from pytorch_metric_learning import losses

        own = torch.arange(256, device=device).repeat(2)
        if name == "MultipleNegatives":
            from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

            ranking: Any = MultipleNegativesRankingLoss(nn.Identity(), scale=20.0)
            return ranking, lambda: ranking.compute_loss_from_embeddings([views[0], views[1]], None), [z]
        theirs: dict[str, tuple[Any, Callable[[Any], Tensor]]] = {
            "Contrastive": (losses.ContrastiveLoss(), lambda o: o(z, y)),
            "Triplet": (losses.TripletMarginLoss(margin=0.2), lambda o: o(z, y)),
            "ProxyNCA": (losses.ProxyNCALoss(16, 768), lambda o: o(z, y)),
            "SupCon": (losses.SupConLoss(temperature=0.3), lambda o: o(z, y)),
            "NTXent": (losses.NTXentLoss(temperature=0.3), lambda o: o(z, own)),
        }
        module, call = theirs[name]
        module.to(device)
        return module, lambda: call(module), [z]

    return build


PML, ST = "pytorch-metric-learning", "sentence-transformers"
TRIPLE_ENTROPY = [(8192, 384, 6, 2000), (8192, 768, 6, 2000)]  # 64 texts of 128 tokens
SIZES = {
    "cpu": [(2048, 384, 6, 2000)],
    "cuda": [
        (2048, 768, 6, 2000),
        (8192, 768, 6, 2000),
        (8192, 768, 20, 2000),
        (8192, 384, 6, 2000),
        (2560, 384, 6, 2000),
    ],
}
PEERS = {
    "Contrastive": PML,
    "Triplet": PML,
    "ProxyNCA": PML,
    "SupCon": PML,
    "NTXent": PML,
    "MultipleNegatives": ST,
}
SAME = {"TripleEntropy", "SupCon", "NTXent", "MultipleNegatives", "SoftTriple"}
BATCH = ["CrossEntropy", "Contrastive", "Triplet", "ProxyNCA", "SupCon", "LabelAware", "LabelDistance", "InfoNCE",
         "NTXent", "MultipleNegatives"]  # fmt: skip


def cases(device: str) -> list[tuple[str, list[str]]]:
    sides = ["ours", "plain", PML] if device == "cpu" else ["ours", "ours, bf16", "plain", PML]
    found = [(named("TripleEntropy", size), ["ours", "plain"]) for size in TRIPLE_ENTROPY]
    found += [(named("SoftTriple", size), sides) for size in SIZES[device]]
    return found + [(name, ["ours", *([PEERS[name]] if name in PEERS else [])]) for name in BATCH]


def named(objective: str, size: tuple[int, int, int, int]) -> str:
    return "{} {} x {}, C {}, K {}".format(objective, *size)


def build(case: str, device: str, side: str) -> Work:
    for size in TRIPLE_ENTROPY:
        if case == named("TripleEntropy", size):
            return triple_entropy(device, side, *size)
    for size in SIZES[device]:
        if case == named("SoftTriple", size):
            return soft_triple(device, side, *size)
    return batch(case)(device, side)


def measure(case: str, device: str, side: str) -> dict[str, float]:
    torch.manual_seed(2)
    module, call, points = build(case, device, side)
    tensors = [*points, *module.parameters()]

    def step() -> float:
        for tensor in tensors:
            tensor.grad = None
        loss = call()
        loss.backward()
        return float(loss.detach())

    gpu = device == "cuda"
    if gpu:
        for _ in range(5):
            value = step()
        for tensor in tensors:
            tensor.grad = None
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        memory = (torch.cuda.max_memory_allocated() - held) / 2**20
        times = []
        for _ in range(20):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            step()
            ended.record()
            torch.cuda.synchronize()
            times.append(begun.elapsed_time(ended))
        return {"ms": statistics.median(times), "mib": memory, "loss": value}
    learnt = torch.randn(
        64, 384, requires_grad=True
    )  # what torch loads and starts on first use is not counted
    (torch.softmax(learnt @ torch.randn(384, 4096), -1) @ torch.randn(4096, 8)).sum().backward()
    del learnt
    gc.collect()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    value = step()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    times = []
    for _ in range(5):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return {"ms": statistics.median(times), "mib": memory, "loss": value}


def measured(case: str, device: str, side: str) -> dict[str, float] | None:
    if device == "cuda":
        try:
            return measure(case, device, side)
        except ImportError:
            return None
        finally:
            gc.collect()
            torch.cuda.empty_cache()
    command = [sys.executable, __file__, "--case", case, "--side", side, "--device", device]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options.device, options.side)))
        return
    lines = [
        f"# Objectives on one {options.device.upper()}: forward + backward",
        "",
        "Batches of 512 rows of 768 dimensions in 16 classes, unless the line says otherwise. Ratios: the other side over ours.",
        "",
        "| objective | side | ms | MiB | times ours (ms) | times ours (MiB) | value apart |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, sides in cases(options.device):
        if not case.startswith(options.only):
            continue
        found = {side: measured(case, options.device, side) for side in sides}
        base = found.get("ours, bf16") or found["ours"]
        for side, one in found.items():
            if one is None or base is None:
                lines.append(f"| {case} | {side} | not measured | | | | |")
                continue
            apart = ""
            if side not in ("ours", "ours, bf16") and case.split()[0] in SAME:
                apart = f"{abs(one['loss'] - found['ours']['loss']):.1e}"  # type: ignore[index]
            ratio = f"{one['ms'] / base['ms']:.2f} | {one['mib'] / max(base['mib'], 0.1):.2f}"
            lines.append(f"| {case} | {side} | {one['ms']:.2f} | {one['mib']:.0f} | {ratio} | {apart} |")
        print(lines[-1], file=sys.stderr)
    device = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    lines += [
        "",
        f"{device}; " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
        "",
    ]
    print("\n".join(lines))
    out = options.out or Path(__file__).parent / "results" / f"objectives-{options.device}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
