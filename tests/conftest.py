"""What many tests share: tiny encoders of every architecture, small data, and the shared folder."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest
import torch

# Machines are shared and slow at times: no test may fail for the time it took.
hypothesis.settings.register_profile("closeknit", deadline=None, derandomize=True)
hypothesis.settings.load_profile("closeknit")

WORDS = (
    "card lost stolen refund money back parcel late where is my the a please not arrived broken size swap new old "
    "charged twice payment refused today week order number help thanks shop i you it was never came to of and"
).split()

# Small enough that a forward pass costs nothing, real enough to have every part.
ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 66, "pad_token_id": 1}
TINY = {
    "bert": {"type_vocab_size": 2},
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "albert": {"embedding_size": 16},
    "electra": {"embedding_size": 16},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2},
    "xlnet": {"d_model": 32, "d_inner": 48, "n_layer": 2, "n_head": 2, "ff_activation": "gelu"},
    "modernbert": {"global_attn_every_n_layers": 1, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3,
                   "bos_token_id": 2, "eos_token_id": 3, "local_attention": 16},
}  # fmt: skip


def make_tiny_encoder(folder: Path, kind: str, *, dropout: float | None = None) -> Path:
    """A random encoder of this architecture with a word-level tokenizer, saved in a folder."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if TINY[kind] is ROBERTA:
        special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate([*special, *dict.fromkeys(WORDS), *"?!.,"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = ("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])
    shape = ("$A:0 [SEP]:0 [CLS]:2", "$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2") if kind == "xlnet" else (
        "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single=shape[0], pair=shape[1], special_tokens=[cls, sep]
    )
    typed = kind in ("bert", "albert", "electra", "xlnet")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", padding_side="left" if kind == "xlnet" else "right",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"] if typed else ["input_ids", "attention_mask"],
        pad_token_type_id=3 if kind == "xlnet" else 0,
    )  # fmt: skip
    options = {"vocab_size": len(vocabulary), "pad_token_id": vocabulary["[PAD]"]}
    if kind not in ("distilbert", "xlnet"):
        options |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
                    "max_position_embeddings": 64}  # fmt: skip
    config = AutoConfig.for_model(kind, **{**options, **TINY[kind]})
    if dropout is not None:
        for key, value in config.to_dict().items():
            if "dropout" in key and isinstance(value, float):
                setattr(config, key, dropout)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """A function from an architecture's name to the folder of a tiny encoder of it."""
    made: dict[str, Path] = {}

    def get(kind: str = "bert") -> str:
        if kind not in made:
            made[kind] = make_tiny_encoder(tmp_path_factory.mktemp(kind), kind)
        return str(made[kind])

    return get


TEXTS = [
    ("my card was stolen", "lost"), ("i lost the card today", "lost"), ("card stolen please help", "lost"),
    ("lost my new card", "lost"), ("the card was lost", "lost"), ("card lost help", "lost"),
    ("where is my refund", "refund"), ("money back please", "refund"), ("i want the money back", "refund"),
    ("refund never came", "refund"), ("refund my order", "refund"), ("my money back today", "refund"),
    ("parcel is late", "late"), ("where is my parcel", "late"), ("the order never arrived", "late"),
    ("parcel not arrived", "late"), ("late order where is it", "late"), ("my parcel never came", "late"),
] * 2  # fmt: skip


@pytest.fixture
def small():
    """36 short texts in three classes, as (texts, labels)."""
    return [text for text, _ in TEXTS], [label for _, label in TEXTS]


@pytest.fixture
def small_csv(tmp_path: Path, small) -> Path:
    path = tmp_path / "small.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(zip(*small, strict=True))
    return path


def write_pairs(path, rows, header=("text1", "text2", "score")):
    """Write scored pairs as a CSV or TSV file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(
            [header, *rows]
        )
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data sets, where this checkout has one beside it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets are not beside this checkout")
    return folder


def losses_of(fit, until: int | None = None) -> list[float]:
    """Train, to the end or until a step, and tell the losses."""
    losses = []
    for step in fit:
        losses.append(step.loss)
        if step.number == until:
            break
    return losses


def rebuilt_objective(model) -> torch.nn.Module:
    """The objective of a saved model with what it had learnt at the end of training."""
    from closeknit.objectives import build_objective

    objective = model.config.objective
    options = {key: value for key, value in objective.options.items() if key != "class_weights"}
    joint = build_objective(
        objective.name, model.encoder.dim, len(model.labels), options, labels=model.labels
    )
    joint.load_state_dict(model.objective)
    return joint


class Done(NamedTuple):
    """What a command left: its exit code and its two streams."""

    returncode: int
    stdout: str
    stderr: str


def run_command(folder: Path, arguments: tuple[object, ...], stdin: str | None = None) -> Done:
    """The command line in this process, as `closeknit ARGUMENTS` in that folder would run it."""
    from closeknit.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["closeknit", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def closeknit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command in a folder of the test's own; an exit code other than the expected one
    fails.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(*arguments: object, stdin: str | None = None, code: int = 0) -> Done:
        done = run_command(tmp_path, arguments, stdin)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
