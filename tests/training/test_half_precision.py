"""What fp16 needs: a loss scale that has an end, and a device that can train in it."""

from __future__ import annotations

import pytest
import torch

from closeknit.acceleration.precision import choose_precision
from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.errors import TrainingError
from closeknit.training.failures import MOST_SKIPPED_IN_A_ROW
from conftest import losses_of


@pytest.fixture
def half_run(tiny, small, monkeypatch):
    """A function that builds a run in fp16, here on a CPU, which a user cannot have."""
    monkeypatch.setattr("closeknit.training.loop.choose_precision", lambda *_: "fp16")

    def build(said=None, **more):
        options = {
            "objective": {"name": "cross_entropy"},
            "encoder": {"name": tiny(), "max_length": 16},
        }
        train = {"epochs": 10, "batch_size": 9, "lr": 1e-3, **more.pop("train", {})}
        settings = RunConfig.from_dict({**options, "train": train})
        log = (said if said is not None else []).append
        return ClassifierFit(from_python(*small), settings, log=log, **more)

    return build


def spoil(fit, bad):
    """Let the gradients of the updates be infinite whose number `bad` holds true for."""
    weight = fit.training.parameters[0]
    weight.register_hook(
        lambda gradient: gradient * (float("inf") if bad(fit.training.number + 1) else 1.0)
    )


def test_a_gradient_in_fp16_that_is_never_finite_ends_the_run(half_run, tmp_path):
    fit = half_run(folder=tmp_path)
    spoil(fit, lambda number: True)
    before = [parameter.clone() for parameter in fit.training.parameters]
    with pytest.raises(
        TrainingError, match=r"step 20: in fp16 .* 20 updates in a row.*bf16 or fp32"
    ):
        losses_of(fit)
    assert fit.training.number == MOST_SKIPPED_IN_A_ROW
    assert all(torch.equal(a, b) for a, b in zip(before, fit.training.parameters, strict=True))


def test_a_short_run_in_fp16_whose_updates_were_all_skipped_is_no_success(half_run):
    fit = half_run(train={"epochs": 2})
    spoil(fit, lambda number: True)
    with pytest.raises(TrainingError, match="8 updates in a row"):
        losses_of(fit)


def test_skipped_updates_are_counted_also_over_a_resume(half_run, tmp_path):
    said: list[str] = []
    whole = half_run(said)
    spoil(whole, lambda number: number <= 16 or number == 30)
    losses_of(whole)
    (line,) = [text for text in said if "skipped" in text]
    assert line.startswith("17 of 40 updates were skipped")
    begun = half_run(folder=tmp_path, train={"checkpoint_seconds": 0.0})
    spoil(begun, lambda number: number <= 16)
    losses_of(begun, until=20)
    said.clear()
    resumed = half_run(said, folder=tmp_path, resume=True, train={"checkpoint_seconds": 0.0})
    spoil(resumed, lambda number: number == 30)
    losses_of(resumed)
    assert [text for text in said if "skipped" in text] == [line]


def test_a_run_in_fp16_without_skipped_updates_says_nothing(half_run):
    said: list[str] = []
    fit = half_run(said)
    losses_of(fit)
    assert not [text for text in said if "skipped" in text]


@pytest.mark.parametrize(
    ("launcher", "device", "expected"),
    [
        ("fp16", "cpu", "fp32"),
        ("bf16", "cpu", "bf16"),
        ("no", "cpu", "fp32"),
        ("fp16", "mps", "fp16"),
    ],
)
def test_auto_takes_what_the_launcher_says_where_the_device_can(
    monkeypatch, launcher, device, expected
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    said: list[str] = []
    assert choose_precision("auto", torch.device(device), said.append) == expected
    refused = (launcher, device) == ("fp16", "cpu")
    assert [("fp16" in line and "fp32" in line) for line in said] == [True] * refused
