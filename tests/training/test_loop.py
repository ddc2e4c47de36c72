from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.errors import ConfigError, ModelError, TrainingError
from closeknit.training.config import TrainConfig
from closeknit.training.loop import NotFinite, train
from closeknit.training.optimizer import rate_factor
from conftest import losses_of as run


def config(
    tiny, objective="triple_entropy", kind="bert", *, encoder=None, options=None, **train
) -> RunConfig:
    settings = {"epochs": 3, "batch_size": 10, "lr": 1e-3, "checkpoint_seconds": 0.0, **train}
    name = "textcnn" if kind == "textcnn" else tiny(kind)
    return RunConfig.from_dict(
        {
            "encoder": {"name": name, "max_length": 16, **(encoder or {})},
            "objective": {"name": objective, **(options or {})},
            "train": settings,
        }
    )


def weights(fit_or_training) -> dict[str, torch.Tensor]:
    training = getattr(fit_or_training, "training", fit_or_training)
    return {key: value.clone() for key, value in training.learners.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "albert", "electra", "distilbert", "xlnet", "modernbert", "textcnn"]
)
def test_every_architecture_learns_with_every_part_trained(tiny, small, kind):
    fit = ClassifierFit(from_python(*small), config(tiny, kind=kind, epochs=20, lr=3e-3))
    before = weights(fit)
    losses = run(fit)
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])
    moved = [key for key, value in weights(fit).items() if not torch.equal(value, before[key])]
    for part in (
        "encoder.trunk",
        "classify_heads.logits.out",
        "classify_objective.objectives.soft_triple.proxies",
    ):
        assert any(key.startswith(part) for key in moved), part


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tiny, small):
    runs = []
    for seed in (2, 2, 3):
        torch.rand(7)  # the state of the global generator must not matter
        np.random.rand(3)
        fit = ClassifierFit(from_python(*small), config(tiny, seed=seed))
        runs.append((run(fit), weights(fit)))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])
    assert runs[0][0] != runs[2][0]


def test_training_leaves_the_global_random_state_alone(tiny, small):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ClassifierFit(from_python(*small), config(tiny, epochs=1)).run()
    assert torch.equal(torch.rand(3), expected)


def test_objectives_start_from_the_same_head_and_see_the_same_batches(tiny, small):
    fits = [
        ClassifierFit(from_python(*small), config(tiny, objective=name))
        for name in ("cross_entropy", "triple_entropy")
    ]
    a, b = (weights(fit) for fit in fits)
    shared = [key for key in a if not key.startswith("classify_objective")]
    assert shared and all(torch.equal(a[key], b[key]) for key in shared)
    for number in range(6):
        rows = [fit.training.tasks[0].batch(number, 0, 1).rows for fit in fits]
        assert np.array_equal(*rows)


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_a_resumed_run_ends_with_the_same_bits(tiny, small, tmp_path, validation):
    settings = config(tiny, epochs=4, validation=validation)
    whole = ClassifierFit(from_python(*small), settings)
    losses = run(whole)
    for stop in (1, 4, 7, len(losses) - 1):
        folder = tmp_path / str(stop)
        first = ClassifierFit(from_python(*small), settings, folder=folder)
        head = run(first, until=stop)
        second = ClassifierFit(from_python(*small), settings, folder=folder, resume=True)
        tail = run(second)
        assert head + tail == losses
        assert same(weights(second), weights(whole))
        assert second.session.history == whole.session.history
        assert second.model.metrics == whole.model.metrics


def test_what_a_checkpoint_holds_can_be_read_without_pickle(tiny, small, tmp_path):
    from safetensors.torch import load_file

    fit = ClassifierFit(from_python(*small), config(tiny), folder=tmp_path)
    run(fit, until=3)
    (state,) = tmp_path.iterdir()
    assert sorted(path.name for path in state.iterdir()) == ["state.json", "state.safetensors"]
    keys = load_file(state / "state.safetensors").keys()
    assert any("proxies" in key for key in keys)
    assert any(key.endswith("exp_avg_sq") for key in keys)


def test_a_damaged_checkpoint_is_named(tiny, small, tmp_path):
    fit = ClassifierFit(from_python(*small), config(tiny), folder=tmp_path)
    run(fit, until=3)
    (state,) = tmp_path.iterdir()
    (state / "state.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"state\.safetensors is damaged"):
        run(ClassifierFit(from_python(*small), config(tiny), folder=tmp_path, resume=True))


def test_a_batch_in_parts_gives_the_gradient_of_the_whole(tiny, small):
    results = []
    for parts in (1, 3, 10):
        settings = config(
            tiny,
            objective="cross_entropy",
            accumulate=parts,
            encoder={"dropout": 0.0},
            batch_size=12,
        )
        fit = ClassifierFit(from_python(*small), settings)
        results.append((run(fit), weights(fit)))
    for losses, end in results[1:]:
        assert losses == pytest.approx(results[0][0], rel=1e-4)
        for key, value in end.items():
            assert torch.allclose(value, results[0][1][key], atol=2e-4), key


WEIGHED = {
    "cross_entropy": {"class_weights": [0.1, 1.0, 7.0]},
    "triple_entropy": {"class_weights": [0.1, 1.0, 7.0], "centers": 3, "ce_weight": 0.5},
}


@pytest.mark.parametrize("name", WEIGHED)
def test_parts_count_by_the_weights_of_their_classes_and_by_their_tokens(tiny, small, name):
    """One row per part is the extreme: a mean within a part would undo every class weight."""
    texts, labels = small
    texts = [text * (1 + 2 * (place % 4)) for place, text in enumerate(texts)]  # of many lengths
    results = []
    for parts in (1, 3, 12):
        settings = config(
            tiny,
            objective=name,
            options=WEIGHED[name],
            accumulate=parts,
            encoder={"dropout": 0.0},
            batch_size=12,
        )
        fit = ClassifierFit(from_python(texts, labels), settings)
        results.append((run(fit), weights(fit)))
    for losses, end in results[1:]:
        assert losses == pytest.approx(results[0][0], rel=1e-4)
        for key, value in end.items():
            assert torch.allclose(value, results[0][1][key], atol=3e-4), key


def test_parts_whose_classes_all_weigh_nothing_count_for_nothing(tiny, small):
    settings = config(
        tiny,
        objective="cross_entropy",
        options={"class_weights": [0.0, 1.0, 1.0]},
        accumulate=8,
        epochs=1,
    )
    fit = ClassifierFit(from_python(*small), settings)
    assert all(math.isfinite(loss) and loss > 0 for loss in run(fit))


def test_more_parts_than_the_last_batch_has_rows(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, accumulate=10, batch_size=35, epochs=1))
    assert all(math.isfinite(loss) for loss in run(fit))


def test_adapters_learn_faster_than_whole_weights_and_their_heads_do_not(tiny, small):
    """At the rate of full fine-tuning adapters end 5 to 9 points lower."""

    def rates(**given):
        settings = config(tiny, "cross_entropy", encoder={"lora_rank": 2}, **given)
        fit = ClassifierFit(from_python(*small), settings)
        named = zip(fit.training.groups, fit.training.rates, strict=True)
        found = {group["name"]: rate for group, rate in named}
        return found["encoder"], found["heads"]

    full = 5e-5 * 768 / 32
    assert rates(lr=None) == pytest.approx((20 * full, 10 * full))
    assert rates(lr=None, lr_scale=0.5) == pytest.approx((10 * full, 5 * full))
    assert rates(lr=1e-4) == pytest.approx((1e-4, 1e-3))
    assert rates(lr=None, head_lr=1e-3) == pytest.approx((20 * full, 1e-3))


def test_rates_of_encoder_heads_and_proxies_are_their_own(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, lr=1e-4, head_lr=2e-3, objective_lr=5e-2))
    rates = {rate: set() for rate in fit.training.rates}
    names = {id(p): name for name, p in fit.training.learners.named_parameters()}
    for group, rate in zip(fit.training.groups, fit.training.rates, strict=True):
        rates[rate] |= {names[id(p)].split(".")[0] for p in group["params"]}
        decays = {p.dim() > 1 for p in group["params"]}
        assert not (group["weight_decay"] and False in decays), "biases and norms must not decay"
    assert rates == {1e-4: {"encoder"}, 2e-3: {"classify_heads"}, 5e-2: {"classify_objective"}}
    default = ClassifierFit(from_python(*small), config(tiny, lr=None))
    assert default.training.rates[0] == pytest.approx(5e-5 * 768 / 32)
    assert (
        ClassifierFit(from_python(*small), config(tiny, kind="textcnn", lr=None)).training.rates[0]
        == 1e-3
    )


def test_the_rate_rises_then_falls():
    factors = [rate_factor(done, 100, 0.1, "linear") for done in range(100)]
    assert factors[:3] == pytest.approx([1 / 11, 2 / 11, 3 / 11])
    assert factors[10] == 1.0
    assert factors[99] == pytest.approx(1 / 90)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    cosine = [rate_factor(done, 100, 0.0, "cosine") for done in range(100)]
    assert cosine[0] == 1.0
    assert cosine[50] == pytest.approx(0.5)
    assert 0 < cosine[99] < 0.001
    assert {rate_factor(done, 50, 0.0, "constant") for done in range(50)} == {1.0}


def test_early_stopping_keeps_the_best_state(tiny, small):
    settings = config(
        tiny, objective="cross_entropy", epochs=40, lr=2e-3, validation=0.3, patience=3
    )
    fit = ClassifierFit(from_python(*small), settings)
    run(fit)
    scores = [record["weighted_f1"] for record in fit.session.history]
    best = scores.index(max(scores))
    assert len(scores) == best + 1 + 3 < 40
    tokens, expected = fit.validation
    from closeknit.encoders.inference import outputs

    logits, _ = outputs(fit.model.encoder, fit.model.heads, tokens)
    assert (logits.argmax(1) == expected).mean() == pytest.approx(
        fit.session.history[best]["accuracy"]
    )
    assert fit.model.metrics["validation"]["weighted_f1"] == max(scores)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(
    tiny, small, tmp_path
):
    fit = ClassifierFit(from_python(*small), config(tiny), folder=tmp_path)
    kept = None
    with pytest.raises(NotFinite) as error:
        for step in fit:
            if step.number == 4:
                kept = weights(fit)
                fit.training.tasks[0].objective.terms[0].objective.forward = lambda *_: (
                    torch.tensor(float("nan"), requires_grad=True)
                )
    message = str(error.value)
    for words in (
        "step 5",
        "loss became nan",
        "training rows",
        "learning rate",
        "last good state is kept",
    ):
        assert words in message
    assert same(weights(fit), kept)
    again = ClassifierFit(from_python(*small), config(tiny), folder=tmp_path, resume=True)
    next(iter(again))
    assert again.training.number == 5


@pytest.mark.parametrize("check_every", [3, 100])
def test_a_late_check_finds_the_first_bad_update_and_none_after_it_applied(
    tiny, small, tmp_path, check_every
):
    whole = ClassifierFit(from_python(*small), config(tiny))
    run(whole)
    fit = ClassifierFit(
        from_python(*small), config(tiny, checkpoint_seconds=900.0), folder=tmp_path
    )
    fit.training.finite.check_every = check_every  # as on a GPU, where a check waits
    objective = fit.training.tasks[0].objective.terms[0].objective
    forward, kept, seen = objective.forward, None, 0
    with pytest.raises(NotFinite, match="step 5: the loss became nan"):
        for step in fit:
            seen = step.number
            if step.number == 4:
                kept = weights(fit)
                objective.forward = lambda *_: torch.tensor(float("nan"), requires_grad=True)
            elif step.number == 5:
                objective.forward = forward  # the updates after it would be good ones
    assert seen >= 5 and fit.training.number == 4
    assert same(weights(fit), kept)
    again = ClassifierFit(from_python(*small), config(tiny), folder=tmp_path, resume=True)
    run(again)
    assert again.session.history == whole.session.history and same(weights(again), weights(whole))


def test_a_step_has_its_numbers_whenever_they_are_read(tiny, small):
    at_once = [
        (step.loss, step.grad_norm, dict(step.terms))
        for step in ClassifierFit(from_python(*small), config(tiny))
    ]
    later = [
        (step.loss, step.grad_norm, dict(step.terms))
        for step in list(ClassifierFit(from_python(*small), config(tiny)))
    ]
    assert at_once == later and len({loss for loss, _, _ in at_once}) == len(at_once)


def test_a_run_that_diverges_says_so(tiny, small):
    with pytest.raises(TrainingError, match=r"step \d+: .*not finite|became nan|became inf"):
        run(
            ClassifierFit(
                from_python(*small),
                config(tiny, lr=1e20, head_lr=1e30, clip=1e30, epochs=10, warmup=0.0),
            )
        )


def test_full_memory_is_answered_with_what_to_lower(tiny, small, monkeypatch):
    fit = ClassifierFit(from_python(*small), config(tiny))

    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fit.training.gradients, "views", full)
    with pytest.raises(
        TrainingError,
        match=r"memory is full with 10 texts.*train\.chunk_size=5 .*train\.batch_size",
    ):
        run(fit)


def test_full_memory_with_one_text_at_a_time_is_answered_with_its_length(tiny, small, monkeypatch):
    fit = ClassifierFit(from_python(*small), config(tiny, chunk_size=1))

    def full(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fit.training.gradients, "views", full)
    with pytest.raises(TrainingError, match=r"1 texts.*Lower encoder\.max_length$"):
        run(fit)


def test_other_errors_are_not_taken_for_full_memory(tiny, small, monkeypatch):
    fit = ClassifierFit(from_python(*small), config(tiny))

    def broken(*_):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(fit.training.gradients, "views", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(fit)


def test_bf16_trains_on_the_cpu_and_the_objective_answers_in_float32(tiny, small):
    fit = ClassifierFit(from_python(*small), config(tiny, precision="bf16", epochs=8))
    seen = []
    objective = fit.training.tasks[0].objective
    objective.register_forward_hook(
        lambda module, views, loss: seen.append((views[0]["tokens"].z.dtype, loss[0].dtype))
    )
    losses = run(fit)
    assert set(seen) == {(torch.bfloat16, torch.float32)} or set(seen) == {
        (torch.float32, torch.float32)
    }
    assert losses[-1] < losses[0]
    assert {p.dtype for p in fit.training.parameters} == {torch.float32}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": -1}, r"train\.epochs is -1; it must not be negative"),
        ({"lr": -1.0}, r"train\.lr is -1"),
        ({"lr": math.nan}, r"train\.lr is nan"),
        ({"clip": math.inf}, r"train\.clip is inf; it must be a finite number above 0"),
        ({"weight_decay": math.nan}, r"train\.weight_decay is nan"),
        ({"warmup": 1.0}, r"train\.warmup is 1"),
        ({"schedule": "cosin"}, "did you mean cosine"),
        ({"precision": "fp61"}, "did you mean fp16"),
        ({"accumulate": 65}, "more than the 64 rows"),
        ({"patience": -1}, "must not be negative"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**settings)


def test_settings_that_do_not_go_together_are_refused(tiny, small):
    with pytest.raises(ConfigError, match="need a validation part"):
        ClassifierFit(from_python(*small), config(tiny, patience=2))
    with pytest.raises(ConfigError, match="fp16, which a CPU cannot"):
        ClassifierFit(from_python(*small), config(tiny, precision="fp16"))


@pytest.mark.parametrize("left_open", [{"epochs": 0}, {"lr_scale": 0.0}])
def test_the_loop_refuses_what_only_a_rule_of_rows_and_classes_settles(tiny, small, left_open):
    training = ClassifierFit(from_python(*small), config(tiny)).training
    with pytest.raises(ConfigError, match=f"train.{next(iter(left_open))} is 0"):
        train(training.encoder, training.tasks, TrainConfig(**left_open))


def test_lora_fits_and_saves_a_plain_model(tiny, small, tmp_path):
    from transformers import AutoModel

    from closeknit.classification.model import Model

    examples = from_python(*small)
    model = ClassifierFit(examples, config(tiny, encoder={"lora_rank": 2}, epochs=2)).run()
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert np.allclose(again.outputs(examples)[0], model.outputs(examples)[0], atol=1e-4)
    assert not any(
        "lora" in key for key in AutoModel.from_pretrained(tmp_path / "model").state_dict()
    )


def test_pairs_can_be_learnt(tiny):
    texts = [("my card was stolen", "lost card"), ("parcel late", "the parcel is late")] * 6
    texts += [("my card was stolen", "money back"), ("parcel late", "new size please")] * 6
    labels = ["same"] * 12 + ["other"] * 12
    model = ClassifierFit(
        from_python(texts, labels), config(tiny, objective="cross_entropy", epochs=25, lr=2e-3)
    ).run()
    assert model.evaluate(from_python(texts, labels))["accuracy"] > 0.9


def test_a_disk_that_is_full_is_explained_and_loses_nothing(tiny, small, tmp_path, monkeypatch):
    import errno

    from closeknit import storage
    from closeknit.training import checkpoints as training_checkpoints

    fit = ClassifierFit(from_python(*small), config(tiny), folder=tmp_path)
    run(fit, until=2)
    kept = training_checkpoints.load(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "save_file", full)
    with pytest.raises(ModelError, match=r"disk .* is full; what was saved before is untouched"):
        run(fit)
    again = training_checkpoints.load(tmp_path)
    assert kept is not None and again is not None
    assert same(kept[0], again[0]) and kept[1] == again[1]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000002"]


def test_the_config_is_not_changed_by_a_run(tiny, small):
    settings = config(tiny)
    before = dataclasses.asdict(settings)
    ClassifierFit(from_python(*small), settings).run()
    assert dataclasses.asdict(settings) == before
