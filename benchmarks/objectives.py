"""Time and peak memory of forward + backward of each objective, beside other libraries, on the same
points.

python benchmarks/objectives.py [--device cuda] [--only TripleEntropy] [--out FILE]

Prints a Markdown table: milliseconds (median), peak memory in addition to the inputs, the ratios of
the other side to ours, and the difference of the two losses where both compute the same formula. On
a CPU each measurement runs in its own process, whose largest resident size is read; on a GPU torch
counts the memory. TripleEntropy runs on 64 texts of 128 tokens. Its plain form keeps all
similarities at once; ours should need at most a fifth of that.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from closeknit.models.saved_model import versions
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

PML = "pytorch-metric-learning"
ST = "sentence-transformers"
Size = tuple[int, int, int, int]  # rows, dimensions, classes, centers
TRIPLE_ENTROPY_SIZES: list[Size] = [
    (8192, 384, 6, 2000),
    (8192, 768, 6, 2000),
]  # 64 texts of 128 tokens
SOFT_TRIPLE_SIZES: dict[str, list[Size]] = {
    "cpu": [(2048, 384, 6, 2000)],
    "cuda": [
        (2048, 768, 6, 2000),
        (8192, 768, 6, 2000),
        (8192, 768, 20, 2000),
        (8192, 384, 6, 2000),
        (2560, 384, 6, 2000),
    ],
}
# The other library that has the same objective, if there is one.
PEERS = {
    "CrossEntropy": None,
    "Contrastive": PML,
    "Triplet": PML,
    "ProxyNCA": PML,
    "SupCon": PML,
    "LabelAware": None,
    "LabelDistance": None,
    "InfoNCE": None,
    "NTXent": PML,
    "MultipleNegatives": ST,
}
SAME_FORMULA = {"TripleEntropy", "SupCon", "NTXent", "MultipleNegatives", "SoftTriple"}


@dataclass(frozen=True)
class Work:
    """What is measured: a call that gives a loss, and the tensors that get gradients."""

    loss: Callable[[], Tensor]
    tensors: list[Tensor]


@dataclass(frozen=True)
class Measurement:
    """Milliseconds and MiB of forward + backward, and the loss."""

    ms: float
    mib: float
    loss: float


# ---------------------------------------------------------------- what is measured


def work_of(loss: Callable[[], Tensor], module: nn.Module, *points: Tensor) -> Work:
    return Work(loss, [*points, *module.parameters()])


def rows(
    n: int, dim: int, classes: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(n, dim, generator=generator).to(device, dtype).requires_grad_()
    return z, torch.randint(classes, (n,), generator=generator).to(device)


def soft_triple(device: str, side: str, n: int, dim: int, C: int, K: int) -> Work:
    """SoftTriple on n rows, by one side."""
    half = side == "ours, bf16"
    z, y = rows(n, dim, C, device, torch.bfloat16 if half else torch.float32)
    options = {"gamma": 0.1, "margin": 0.3}
    ours = SoftTriple(dim, C, centers=K, scale=3.3, **options).to(device)
    if side == PML:
        from pytorch_metric_learning import losses

        theirs = losses.SoftTripleLoss(C, dim, centers_per_class=K, la=3.3, **options).to(device)
        theirs.fc.data = ours.proxies.detach().flatten(0, 1).T.contiguous()
        return work_of(lambda: theirs(z, y), theirs, z)
    if side == "plain":
        return work_of(lambda: plain_soft_triple(z, ours.proxies, y), ours, z)
    return work_of(lambda: ours(z, y), ours, z)


def plain_soft_triple(z: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """SoftTriple in a few lines of torch, with all similarities at once."""
    near = torch.einsum("rd,ckd->rck", F.normalize(z, dim=-1), F.normalize(w, dim=-1))
    score = (torch.softmax(near / 0.1, dim=-1) * near).sum(-1)
    return F.cross_entropy(3.3 * (score - 0.3 * F.one_hot(y, len(w)).to(score)), y)


def triple_entropy(device: str, side: str, n: int, dim: int, C: int, K: int) -> Work:
    """Cross-entropy on the logits of texts of 128 tokens, SoftTriple on all n tokens, by one
    side.
    """
    z, _ = rows(n, dim, C, device)
    logits, labels = rows(n // 128, C, C, device)
    y = labels.repeat_interleave(128)
    ours = build_objective("triple_entropy", dim, C, {"centers": K}).to(device)
    if side == "plain":
        w = next(ours.parameters())
        return work_of(
            lambda: 0.9 * F.cross_entropy(logits, labels) + 0.1 * plain_soft_triple(z, w, y),
            ours,
            z,
            logits,
        )
    views = {"logits": View(logits, labels), "tokens": View(z, y)}
    return work_of(lambda: ours(views)[0], ours, z, logits)


def on_a_batch(name: str, device: str, side: str) -> Work:
    """An objective on 512 rows (or 2 x 256 views) of 768 dimensions in 16 classes, by one side."""
    z, y = rows(512, 768, 16, device)
    if side == "ours":
        return _ours_on_a_batch(name, z, y)
    if name == "MultipleNegatives":
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

        first, second = z.unflatten(0, (2, 256))
        ranking: Any = MultipleNegativesRankingLoss(nn.Identity(), scale=20.0)
        return work_of(
            lambda: ranking.compute_loss_from_embeddings([first, second], None), ranking, z
        )
    from pytorch_metric_learning import losses

    text_of_row = torch.arange(256, device=device).repeat(2)
    theirs: dict[str, tuple[Any, Tensor]] = {
        "Contrastive": (losses.ContrastiveLoss(), y),
        "Triplet": (losses.TripletMarginLoss(margin=0.2), y),
        "ProxyNCA": (losses.ProxyNCALoss(16, 768), y),
        "SupCon": (losses.SupConLoss(temperature=0.3), y),
        "NTXent": (losses.NTXentLoss(temperature=0.3), text_of_row),
    }
    module, labels = theirs[name]
    module.to(device)
    return work_of(lambda: module(z, labels), module, z)


def _ours_on_a_batch(name: str, z: Tensor, y: Tensor) -> Work:
    weights = torch.softmax(torch.randn(512, 16, device=z.device), -1)
    views = z.unflatten(0, (2, 256))
    objectives: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "CrossEntropy": (CrossEntropy(), (z[:, :16], y)),
        "Contrastive": (Contrastive(), (z, y)),
        "Triplet": (Triplet(margin=0.2), (z, y)),
        "ProxyNCA": (ProxyNCA(768, 16, squared=True), (z, y)),
        "SupCon": (SupCon(temperature=0.3), (z, y)),
        "LabelAware": (LabelAware(), (z, y, weights)),
        "LabelDistance": (LabelDistance(16), (z, y)),
        "InfoNCE": (InfoNCE(), (views,)),
        "NTXent": (NTXent(temperature=0.3), (views,)),
        "MultipleNegatives": (MultipleNegatives(scale=20.0), (views,)),
    }
    module, arguments = objectives[name]
    module.to(z.device)
    return work_of(lambda: module(*arguments), module, z)


def cases(device: str) -> list[tuple[str, list[str]]]:
    """Each case, and the sides that are measured on it."""
    sides = ["ours", "plain", PML] if device == "cpu" else ["ours", "ours, bf16", "plain", PML]
    on_tokens = [(title("TripleEntropy", size), ["ours", "plain"]) for size in TRIPLE_ENTROPY_SIZES]
    with_centers = [(title("SoftTriple", size), sides) for size in SOFT_TRIPLE_SIZES[device]]
    on_batches = [(name, ["ours", peer] if peer else ["ours"]) for name, peer in PEERS.items()]
    return on_tokens + with_centers + on_batches


def title(objective: str, size: Size) -> str:
    return "{} {} x {}, C {}, K {}".format(objective, *size)


def build(case: str, device: str, side: str) -> Work:
    for size in TRIPLE_ENTROPY_SIZES:
        if case == title("TripleEntropy", size):
            return triple_entropy(device, side, *size)
    for size in SOFT_TRIPLE_SIZES[device]:
        if case == title("SoftTriple", size):
            return soft_triple(device, side, *size)
    return on_a_batch(case, device, side)


# ---------------------------------------------------------------- measuring


def measure(case: str, device: str, side: str) -> Measurement:
    """Builds one case and measures it in this process."""
    torch.manual_seed(2)
    work = build(case, device, side)

    def step() -> float:
        for tensor in work.tensors:
            tensor.grad = None
        loss = work.loss()
        loss.backward()
        return float(loss.detach())

    return measure_on_gpu(step, work.tensors) if device == "cuda" else measure_on_cpu(step)


def measure_on_gpu(step: Callable[[], float], tensors: Sequence[Tensor]) -> Measurement:
    for _ in range(5):
        loss = step()
    for tensor in tensors:
        tensor.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = []
    for _ in range(20):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return Measurement(statistics.median(times), mib, loss)


def measure_on_cpu(step: Callable[[], float]) -> Measurement:
    # What torch loads and starts at its first use is not counted.
    warm_up = torch.randn(64, 384, requires_grad=True)
    (torch.softmax(warm_up @ torch.randn(384, 4096), -1) @ torch.randn(4096, 8)).sum().backward()
    del warm_up
    gc.collect()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    loss = step()
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    times = []
    for _ in range(5):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return Measurement(statistics.median(times), mib, loss)


def measure_separately(case: str, device: str, side: str) -> Measurement | None:
    """Measures one case, on a CPU in a new process; None if it fails or a library is not
    installed.
    """
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
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


# ---------------------------------------------------------------- the table


def table_rows(case: str, measurements: dict[str, Measurement | None]) -> list[str]:
    """The lines of the Markdown table for one case."""
    ours = measurements["ours"]
    base = measurements.get("ours, bf16") or ours
    lines = []
    for side, one in measurements.items():
        if one is None or base is None or ours is None:
            lines.append(f"| {case} | {side} | not measured | | | | |")
            continue
        difference = ""
        if not side.startswith("ours") and case.split()[0] in SAME_FORMULA:
            difference = f"{abs(one.loss - ours.loss):.1e}"
        ratios = f"{one.ms / base.ms:.2f} | {one.mib / max(base.mib, 0.1):.2f}"
        lines.append(
            f"| {case} | {side} | {one.ms:.2f} | {one.mib:.0f} | {ratios} | {difference} |"
        )
    return lines


def page(device: str, only: str) -> str:
    """Measures all cases whose names start with `only`; gives a Markdown page."""
    lines = [
        f"# Objectives on one {device.upper()}: forward + backward",
        "",
        "Batches of 512 rows of 768 dimensions in 16 classes, unless the line says otherwise. Ratios: the other side over ours.",
        "",
        "| objective | side | ms | MiB | times ours (ms) | times ours (MiB) | difference of losses |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, sides in cases(device):
        if case.startswith(only):
            lines += table_rows(
                case, {side: measure_separately(case, device, side) for side in sides}
            )
            print(lines[-1], file=sys.stderr)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    if device == "cuda":
        machine = torch.cuda.get_device_name()
    libraries = ", ".join(f"{name} {number}" for name, number in versions().items())
    return "\n".join([*lines, "", f"{machine}; {libraries}.", ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="measure the cases whose names start with this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(asdict(measure(options.case, options.device, options.side))))
        return
    text = page(options.device, options.only)
    print(text)
    out = options.out or Path(__file__).parent / "results" / f"objectives-{options.device}.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
