"""Fine-tuning on a GPU against the Hugging Face Trainer: one run, and a whole study of 5 folds x 4
seeds x 2 objectives.

CLOSEKNIT_DATA=FOLDER python benchmarks/gpu.py [--only minilm roberta softtriple study] [--repeats
3] [--encoder FOLDER]

Prints Markdown tables and writes them to results/gpu-*.md. Both sides have the same texts of TREC,
model, batch size (64), epochs (10), precision (bf16), optimizer (fused AdamW) and rates; the
Trainer pads by DataCollatorWithPadding.

minilm      800 texts, from the loading of the model to the last update; the bundled encoder. In turns, after one run each.
roberta     the same with random weights in the shape of RoBERTa-base.
softtriple  what SoftTriple over all tokens with 2000 centers a class adds to an update of 64 x 40 tokens.
study       `closeknit compare` as a command on 1,000 texts, cross_entropy and triple_entropy, beside one script that trains
            and scores the same 40 runs one after another with the Trainer (plain PyTorch SoftTriple for the second).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from closeknit.training.cuda_graphs import CudaGraphs

RESULTS = Path(__file__).parent / "results"
BATCH, EPOCHS, RATE, LENGTH = 64, 10, 1e-4, 128


def load(rows: int) -> tuple[Any, Any]:
    """(training, test) texts of TREC, so many of the first."""
    from closeknit.data import catalogue

    data = catalogue.load("trec")
    train = data.training
    return train.select(
        np.sort(np.random.default_rng(0).permutation(len(train))[:rows])
    ), data.parts["test"]


def settings(encoder: str, objective: str = "cross_entropy", **train: Any) -> Any:
    from closeknit.classification.config import RunConfig

    options = {
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "lr": RATE,
        "positives": 0,
        "precision": "bf16",
        **train,
    }
    return RunConfig.from_dict(
        {"encoder": {"name": encoder}, "objective": {"name": objective}, "train": options}
    )


def ours(train: Any, test: Any, encoder: str, rate: float) -> tuple[float, float]:
    import torch

    from closeknit.classification.fit import ClassifierFit

    torch.cuda.synchronize()
    begun = time.perf_counter()
    fit = ClassifierFit(train, settings(encoder, lr=rate))
    for _ in fit:
        pass
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    return seconds, fit.model.evaluate(test)["weighted_f1"]


# ---------------------------------------------------------------- the peer


class SoftTriple:
    """The plain PyTorch form, made where it is used so that torch is imported late."""

    @staticmethod
    def make(dim: int, classes: int, centers: int = 2000) -> Any:
        import torch
        import torch.nn.functional as F

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                start = F.normalize(torch.randn(classes, centers, dim), dim=-1)
                self.proxies = torch.nn.Parameter(start)

            def forward(self, z: Any, y: Any) -> Any:
                near = torch.einsum(
                    "rd,ckd->rck", F.normalize(z, dim=-1), F.normalize(self.proxies, dim=-1)
                )
                score = (torch.softmax(near / 0.1, dim=-1) * near).sum(-1)
                return F.cross_entropy(20.0 * (score - 0.01 * F.one_hot(y, classes)), y)

        return Module()


def trainer(
    train: Any,
    test: Any,
    encoder: str,
    rate: float,
    objective: str = "cross_entropy",
    seed: int = 2,
) -> tuple[float, float]:
    """(seconds of loading and training, weighted F1 on the test texts)."""
    import torch
    from sklearn.metrics import f1_score
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from closeknit.encoders.loading import quiet_transformers

    classes = sorted(set(train.required_labels))

    class Joint(Trainer):  # type: ignore[type-arg]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> Any:
            if objective == "cross_entropy":
                return super().compute_loss(model, inputs, return_outputs)
            found = model(**inputs, output_hidden_states=True)
            real = inputs["attention_mask"].bool()
            labels = inputs["labels"][:, None].expand_as(real)[real]
            hidden = found.hidden_states[-1][real]
            return 0.1 * found.loss + 0.9 * model.soft_triple(hidden.float(), labels)

    torch.cuda.synchronize()
    begun = time.perf_counter()
    torch.manual_seed(seed)
    with quiet_transformers(), tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        made = tokenizer(train.texts, truncation=True, max_length=LENGTH)
        rows = [
            {"input_ids": ids, "attention_mask": mask, "labels": classes.index(label)}
            for ids, mask, label in zip(
                made["input_ids"], made["attention_mask"], train.required_labels, strict=True
            )
        ]
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            encoder, num_labels=len(classes), dtype=torch.float32
        )
        if objective != "cross_entropy":
            model.soft_triple = SoftTriple.make(model.config.hidden_size, len(classes)).cuda()
        fast = ("classifier", "bert.pooler", "soft_triple")
        named = list(model.named_parameters())
        groups = [
            {"params": [p for n, p in named if not n.startswith(fast)], "lr": rate},
            {"params": [p for n, p in named if n.startswith(fast)], "lr": 10 * rate},
        ]
        arguments = TrainingArguments(
            folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=rate, bf16=True, seed=seed,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, warmup_steps=0.06,
        )  # fmt: skip
        optimizer = torch.optim.AdamW(groups, weight_decay=0.01, fused=True)
        Joint(
            model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer),
            optimizers=(optimizer, None),
        ).train()  # fmt: skip
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    model.eval()
    guessed: list[int] = []
    with torch.inference_mode():
        for start in range(0, len(test), 256):
            batch = tokenizer(
                test.texts[start : start + 256], padding=True, truncation=True, return_tensors="pt"
            )
            guessed += model(**batch.to("cuda")).logits.argmax(-1).tolist()
    expected = [classes.index(label) for label in test.required_labels]
    return seconds, float(f1_score(expected, guessed, average="weighted"))


# ---------------------------------------------------------------- the claims


def one_run(name: str, encoder: str, rate: float, repeats: int) -> str:
    train, test = load(800)
    sides = {"Closeknit": ours, "Hugging Face Trainer": trainer}
    first = {side: run(train, test, encoder, rate)[0] for side, run in sides.items()}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, run in sides.items():
            found[side].append(run(train, test, encoder, rate))
    medians = {side: statistics.median(s for s, _ in runs) for side, runs in found.items()}
    lines = [
        f"# One run on a GPU: {name}, 800 TREC texts x {EPOCHS} epochs, batches of {BATCH}, bf16",
        "",
        f"Seconds from the loading of the model to the last update; median of {repeats} runs in turns, after one run each.",
        "",
        "| | seconds | ratio | weighted F1 on the test texts | the first run of the process |",
        "|---|---|---|---|---|",
    ]
    base = medians["Closeknit"]
    for side, runs in found.items():
        lines.append(
            f"| {side} | {medians[side]:.3f} | {medians[side] / base:.2f} | {runs[-1][1]:.4f} | {first[side]:.1f} |"
        )
    return "\n".join([*lines, "", floors(train, encoder), machine()])


def floors(train: Any, encoder: str) -> str:
    """What the arithmetic and the traffic of an update would take at the rates that this GPU
    reaches.
    """
    import torch

    from closeknit.classification.fit import ClassifierFit

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    rate = 2 * 8192**3 / timed(lambda: a @ a, 20)
    flat = torch.empty(2**28, device="cuda")
    other = torch.empty_like(flat)
    traffic = 2 * flat.nbytes / timed(lambda: other.copy_(flat), 20)
    fit = ClassifierFit(train, settings(encoder))
    for _ in fit:
        pass
    graphs = fit.training.engine.launcher
    assert isinstance(graphs, CudaGraphs)
    amount = sum(p.numel() for p in fit.training.parameters)
    inner = sum(
        p.numel() for n, p in fit.model.encoder.trunk.named_parameters() if "embeddings" not in n
    )
    lines = [
        f"Measured floors of this GPU: {rate / 1e12:.0f} TFLOP/s (bf16 products), {traffic / 1e12:.1f} TB/s (copies).",
        "",
        "| captured update | ms a replay | arithmetic at that rate, ms | traffic of AdamW at that rate, ms |",
        "|---|---|---|---|",
    ]
    for shape, captured in graphs.captured.items():
        _, rows, width = shape[0]
        lines.append(
            f"| {rows} x {width} | {1e3 * timed(captured.graph.replay, 50):.2f} | {1e3 * 6 * inner * rows * width / rate:.2f} "
            f"| {1e3 * 30 * amount / traffic:.2f} |"
        )
    return "\n".join([*lines, ""])


def timed(work: Any, times: int) -> float:
    """Seconds of some work on the GPU, the mean of so many times."""
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times


def softtriple(encoder: str) -> str:
    """Updates of 64 texts of 40 tokens, with and without the term."""
    from closeknit.classification.fit import ClassifierFit
    from closeknit.data import Examples

    generator = np.random.default_rng(0)
    words = np.array(
        "where is my card order today please back the a not arrived broken new old".split()
    )
    texts = [" ".join(words[generator.integers(len(words), size=38)]) for _ in range(128)]
    rows = Examples(texts, labels=[f"class {i % 6}" for i in range(128)])
    lines = [
        "# What SoftTriple over all tokens adds to an update: MiniLM, 64 x 40 tokens, 6 classes of 2000 centers, bf16",
        "",
        "| objective | ms an update | of which is added |",
        "|---|---|---|",
    ]
    base = 0.0
    for objective in ("cross_entropy", "triple_entropy"):
        options = {"centers": 2000} if objective == "triple_entropy" else {}
        config = settings(encoder, objective)
        from closeknit.classification.config import RunConfig

        told = config.to_dict()
        told["objective"] = {"name": objective, **options}
        fit = ClassifierFit(rows, RunConfig.from_dict(told))
        for _ in fit:
            pass
        graphs = fit.training.engine.launcher
        assert isinstance(graphs, CudaGraphs)
        (captured,) = graphs.captured.values()
        took = 1e3 * timed(captured.graph.replay, 100)
        base = base or took
        lines.append(f"| {objective} | {took:.3f} | {(took - base) / took:.1%} |")
    return "\n".join([*lines, "", machine()])


def study(encoder: str) -> str:
    """The command, and one process that does the same with the Trainer."""
    options = [
        "--encoder",
        encoder,
        "--lr",
        str(RATE),
        "--epochs",
        str(EPOCHS),
        "--batch-size",
        str(BATCH),
    ]
    lines = [
        "# A study on a GPU: 5 folds x 4 seeds x 2 objectives on 1,000 TREC texts, MiniLM, bf16",
        "",
        "Seconds of the whole command, with the start of Python, torch, transformers and CUDA, and without.",
        "",
        "| | seconds | ratio | without that start | ratio | weighted F1: cross_entropy, triple_entropy |",
        "|---|---|---|---|---|---|",
    ]
    code = (
        "import torch; from transformers import AutoModel, AutoTokenizer, BertModel; "
        "torch.zeros(1, 1).cuda() @ torch.zeros(1, 1).cuda()"
    )
    start = min(_seconds([sys.executable, "-c", code]) for _ in range(2))
    took: dict[str, float] = {}
    scores: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "closeknit", "compare", "trec", *options, "--out"]
        for number in range(2):  # the second finds its kernels compiled
            took["Closeknit"] = _seconds([*command, f"{folder}/{number}"])
        found = [
            json.loads(line) for line in Path(f"{folder}/1/results.jsonl").read_text().splitlines()
        ]
        names = ("cross_entropy", "triple_entropy")
        scores["Closeknit"] = [
            float(np.mean([r["weighted_f1"] for r in found if r["objective"] == name]))
            for name in names
        ]
        path = Path(folder) / "peer.json"
        script = [sys.executable, __file__, "--peer-study", str(path), "--encoder", encoder]
        took["Hugging Face Trainer"] = _seconds(script)
        scores["Hugging Face Trainer"] = json.loads(path.read_text())
    base = took["Closeknit"]
    for side, seconds in took.items():
        shown = ", ".join(f"{100 * score:.2f}" for score in scores[side])
        lines.append(
            f"| {side} | {seconds:.1f} | {seconds / base:.1f} | {seconds - start:.1f} "
            f"| {(seconds - start) / (base - start):.1f} | {shown} |"
        )
    lines.append(f"| that start alone | {start:.1f} | | | | |")
    return "\n".join([*lines, "", machine()])


def peer_study(encoder: str, path: Path) -> None:
    from sklearn.model_selection import StratifiedKFold

    train, _ = load(1000)
    scores: list[float] = []
    for objective in ("cross_entropy", "triple_entropy"):
        found = []
        for seed in (2, 16, 128, 2048):
            folds = StratifiedKFold(5, shuffle=True, random_state=seed)
            for kept, tested in folds.split(train.texts, train.required_labels):
                found.append(
                    trainer(
                        train.select(kept), train.select(tested), encoder, RATE, objective, seed
                    )[1]
                )
        scores.append(float(np.mean(found)))
    path.write_text(json.dumps(scores))


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} failed: {done.stderr[-2000:]}")
    return time.perf_counter() - begun


def machine() -> str:
    import torch

    from closeknit.models.saved_model import versions

    shown = ", ".join(f"{name} {number}" for name, number in versions().items())
    return f"{torch.cuda.get_device_name()}; {shown}.\n"


def roberta(folder: str) -> str:
    """Random weights in the shape of RoBERTa-base, with the bundled encoder's tokenizer."""
    import torch
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    from closeknit.encoders.loading import default_encoder, quiet_transformers

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, pad_token_id=0
    )
    with quiet_transformers():
        RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
        AutoTokenizer.from_pretrained(default_encoder()).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    claims = ("minilm", "roberta", "softtriple", "study")
    parser.add_argument("--only", nargs="+", choices=claims, default=list(claims))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--encoder", help="MiniLM's folder, where the bundled one is not installed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--peer-study", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("gpu.py: skipped, it needs a GPU")
        return
    from closeknit.data import load as known
    from closeknit.encoders import encoder as encoders
    from closeknit.errors import CloseknitError

    encoder = options.encoder or encoders.default_encoder()
    encoders.default_encoder = lambda: encoder  # type: ignore[assignment]
    if options.peer_study:
        peer_study(encoder, options.peer_study)
        return
    try:
        known("trec")
    except CloseknitError as error:
        print(f"gpu.py: skipped, it needs the TREC texts ({error})")
        return
    for claim in options.only:
        if claim == "minilm":
            table = one_run("all-MiniLM-L6-v2", encoder, RATE, options.repeats)
        elif claim == "roberta":
            with tempfile.TemporaryDirectory() as folder:
                table = one_run("the shape of RoBERTa-base", roberta(folder), 2e-5, options.repeats)
        elif claim == "softtriple":
            table = softtriple(encoder)
        else:
            table = study(encoder)
        print(table, flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"gpu-{claim}.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
