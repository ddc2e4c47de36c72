"""What only a GPU can show: captured updates, fused layers and runs side by side give the numbers
of plain ones.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import torch

from closeknit.acceleration.precision import Precision
from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.data.sentences import sentences_from
from closeknit.embeddings.config import with_recipe
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.errors import TrainingError
from closeknit.studies.jobs import Job
from closeknit.studies.runners import InProcessRunner
from closeknit.training.cuda_graphs import CudaGraphs
from conftest import losses_of as run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FUSED = ("bert", "roberta", "electra", "distilbert")


def config(tiny, objective="cross_entropy", kind="bert", *, encoder=None, **train) -> RunConfig:
    settings = {"epochs": 3, "batch_size": 10, "lr": 1e-3, **train}
    name = "textcnn" if kind == "textcnn" else tiny(kind)
    return RunConfig.from_dict(
        {
            "encoder": {"name": name, "max_length": 16, **(encoder or {})},
            "objective": {"name": objective},
            "train": settings,
        }
    )


def state(fit) -> dict[str, torch.Tensor]:
    return {key: value.cpu().clone() for key, value in fit.training.learners.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def gradients(fit, *, fused: bool) -> dict[str, torch.Tensor]:
    training, task = fit.training, fit.training.tasks[0]
    engine = training.engine
    engine.clear_gradients()
    if fused:
        engine.half_weights.refresh()
    with engine.forward_context(training.step_values.seed) if fused else contextlib.nullcontext():
        training.gradients.of_batch(task, task.batch(0, 0, 1), 1.0, training.dropout_seeds)
        if fused:
            engine.collect_gradients(only_batch=False)
    named = training.learners.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize("kind", FUSED)
def test_fused_layers_are_as_near_to_float32_as_autocast_is(tiny, small, kind):
    fit = ClassifierFit(
        from_python(*small), config(tiny, kind=kind, encoder={"dropout": 0.0}, precision="bf16")
    )
    assert fit.training.engine.trunks[0] is not None
    fused, plain = gradients(fit, fused=True), gradients(fit, fused=False)
    fit.training.gradients.precision = Precision("fp32", fit.training.world.device)
    exact = gradients(fit, fused=False)
    assert fused.keys() == plain.keys() == exact.keys()
    errors = []
    for name, true in exact.items():
        if float(true.norm()) > 1e-4:  # of a key's bias only rounding is left
            errors.append(
                [float((found[name] - true).norm() / true.norm()) for found in (fused, plain)]
            )
    ours, theirs = np.mean(errors, axis=0)
    assert ours < 1.2 * theirs + 1e-3 and ours < 0.05


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_text_may_contain_the_padding_token(tiny, kind):
    """Positions are those that the encoder is served with: RoBERTa does not count padding tokens
    within a text.
    """
    texts = ["my card [PAD] was stolen", "where is my [PAD] [PAD] refund", "parcel late"] * 4
    examples = from_python(texts, ["lost", "refund", "late"] * 4)
    fit = ClassifierFit(
        examples, config(tiny, kind=kind, encoder={"dropout": 0.0}, precision="bf16", batch_size=12)
    )
    training, task = fit.training, fit.training.tasks[0]
    inputs = task.batch(0, 0, 1).to(training.world.device).inputs
    mask = inputs["attention_mask"].bool()
    assert bool((inputs["input_ids"] == fit.tokens.pad_id)[mask].any())
    with torch.no_grad():
        expected = training.encoder(inputs).hidden[mask]
        training.engine.prepare_update()
        with training.engine.forward_context(training.step_values.seed):
            assert training.encoder.trunk_pass.fits(inputs)
            found = training.encoder(inputs).hidden[mask]
    assert torch.allclose(found, expected, atol=0.1)  # another position would differ by about 1


@pytest.mark.parametrize(
    "objective",
    [
        "auto",
        "cross_entropy",
        "triple_entropy",
        "soft_triple",
        "supcon",
        "contrastive",
        "triplet",
        "proxy_nca",
        "lcl",
        "clld",
    ],
)
def test_captured_updates_give_the_numbers_of_launched_ones(tiny, small, objective):
    examples = from_python(*small)
    told: list[str] = []
    first = ClassifierFit(
        examples, config(tiny, objective, encoder={"dropout": 0.0}), log=told.append
    )
    losses = run(first)
    graphs = first.training.engine.launcher
    assert isinstance(graphs, CudaGraphs) and graphs.captured and not graphs.failed, told
    again = ClassifierFit(examples, config(tiny, objective, encoder={"dropout": 0.0}))
    assert run(again) == losses and same(state(again), state(first))
    launched = ClassifierFit(
        examples, config(tiny, objective, encoder={"dropout": 0.0}, graphs=False)
    )
    assert run(launched) == pytest.approx(losses, rel=0.02, abs=0.01)


def test_dropout_is_new_in_every_update_and_the_same_for_the_same_seed(tiny, small):
    examples = from_python(*small)
    runs = [
        run(ClassifierFit(examples, config(tiny, lr=1e-12, head_lr=1e-12, seed=seed)))
        for seed in (2, 2, 3)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == len(runs[0])
    still = run(
        ClassifierFit(
            examples, config(tiny, lr=1e-12, head_lr=1e-12, encoder={"dropout": 0.0}, batch_size=36)
        )
    )
    assert max(still) - min(still) < 1e-3


@pytest.mark.parametrize("kind", ["bert", "albert", "xlnet", "modernbert", "textcnn"])
@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp16"])
def test_a_resumed_run_ends_with_the_same_bits(tiny, small, tmp_path, kind, precision):
    settings = config(tiny, "triple_entropy", kind, precision=precision, checkpoint_seconds=0.0)
    whole = ClassifierFit(from_python(*small), settings)
    losses = run(whole)
    first = ClassifierFit(from_python(*small), settings, folder=tmp_path)
    head = run(first, until=7)
    first.save_state()
    second = ClassifierFit(from_python(*small), settings, folder=tmp_path, resume=True)
    assert head + run(second) == losses
    assert same(state(second), state(whole))
    assert second.session.history == whole.session.history


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"chunk_size": 4}, {"precision": "fp16"}])
def test_what_cannot_be_captured_is_said_and_done(tiny, small, options):
    told: list[str] = []
    losses = run(ClassifierFit(from_python(*small), config(tiny, **options), log=told.append))
    assert np.isfinite(losses).all()
    assert sum("kernel by kernel" in line for line in told) == 1


def test_texts_too_long_for_the_fused_layers_are_captured_too(tiny, small, monkeypatch):
    from closeknit.acceleration import triton_attention as attention

    monkeypatch.setattr(attention, "LONGEST", 4)
    fit = ClassifierFit(from_python(*small), config(tiny))
    assert np.isfinite(run(fit)).all() and fit.training.engine.launcher.captured


def test_a_run_that_diverges_is_stopped_at_its_first_bad_update(tiny, small):
    settings = config(tiny, lr=1e20, head_lr=1e30, clip=1e30, epochs=40, warmup=0.0)
    fit = ClassifierFit(from_python(*small), settings)
    with pytest.raises(TrainingError, match=r"step \d+: .*not finite|became nan|became inf"):
        run(fit)
    assert all(
        torch.isfinite(value).all() for value in state(fit).values() if value.is_floating_point()
    )


@pytest.mark.parametrize(
    "kind", ["bert", "albert"]
)  # with fused layers, and with torch's own dropout
def test_runs_side_by_side_are_what_they_are_alone(tiny, small, kind):
    examples = from_python(*small)
    rows = np.arange(len(examples))

    def jobs():
        return [
            Job("small", 36, name, seed, fold, rows[rows % 3 != fold], rows[rows % 3 == fold],
                tuple(examples.classes), config(tiny, name, kind, seed=seed, lr=1e-2), f"{name}-{seed}-{fold}", keep_details=True)
            for seed in (2, 3) for name in ("cross_entropy", "triple_entropy", "auto") for fold in range(3)
        ]  # fmt: skip

    found = []
    for lanes in (1, 3):
        runner = InProcessRunner({"small": examples}, 1, lanes)
        waiting, outcomes = jobs(), {}
        while len(outcomes) < len(jobs()):
            while waiting and runner.capacity > 0:
                runner.submit(waiting.pop(0))
            outcome = runner.next_outcome()
            outcomes[outcome.key] = outcome
        runner.close()
        found.append(outcomes)
    for job in jobs():
        alone = ClassifierFit(examples.select(job.train), job.config, labels=job.labels)
        run(alone)
        for outcomes in found:
            assert outcomes[job.key].error is None
            assert outcomes[job.key].details["history"] == alone.session.history


def test_a_run_pads_as_if_it_were_alone_after_one_with_longer_texts(tiny, small, monkeypatch):
    """A lane keeps what the first run has captured, but not its widths: dropout draws by places in
    the padded batch.
    """
    from closeknit.training import cuda_graphs as graphs

    monkeypatch.setattr(graphs, "CAPTURE_COST", 0)  # as many widths as there are
    texts, labels = small
    long = [" ".join([text] * (1 + i % 4)) for i, text in enumerate(texts)]
    examples = from_python([*texts, *long], [*labels, *labels])
    settings = config(tiny, encoder={"max_length": 64})
    short, both = np.arange(len(texts)), np.arange(2 * len(texts))
    job = Job(
        "mixed",
        36,
        "cross_entropy",
        2,
        0,
        both,
        short[:6],
        tuple(examples.classes),
        settings,
        "",
        keep_details=True,
    )
    expected = {}
    for name, rows in (("both", both), ("short", short)):
        alone = ClassifierFit(examples.select(rows), settings, labels=job.labels)
        run(alone)
        expected[name] = alone.session.history
    runner = InProcessRunner({"mixed": examples}, 1, 1)
    for name, rows in (("both", both), ("short", short), ("both", both)):
        runner.submit(dataclasses.replace(job, train=rows, key=name))
        assert runner.next_outcome().details["history"] == expected[name]


@pytest.mark.parametrize("method", ["simcse", "mirror", "multiple_negatives"])
def test_sentence_encoders_learn_by_captured_updates(tiny, method):
    texts = [
        f"where is my {a} {b}"
        for a in ("card", "parcel", "refund", "order")
        for b in ("today", "please", "back")
    ]
    rows = [(text, text.replace("where is", "help with")) for text in texts]
    pairs = method == "multiple_negatives"
    settings = with_recipe(
        {
            "encoder": {"name": tiny("bert"), "max_length": 16},
            "train": {"epochs": 8, "batch_size": 6, "lr": 1e-3},
            "method": {"name": method, **({"mask": 0} if method == "mirror" else {})},
        },
        2 if pairs else 1,
    )
    fits = [EmbeddingFit(sentences_from(rows if pairs else texts), settings) for _ in range(2)]
    losses = [run(fit) for fit in fits]
    assert losses[0] == losses[1] and np.isfinite(losses[0]).all()
    graphs = fits[0].training.engine.launcher
    assert isinstance(graphs, CudaGraphs) and graphs.captured
