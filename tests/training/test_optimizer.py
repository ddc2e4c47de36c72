"""An update against clipping and AdamW written from their formulas, in plain Python and float64."""

from __future__ import annotations

import math

import pytest
import torch

from closeknit.acceleration.precision import Precision
from closeknit.acceleration.torch_adamw import TorchAdamW

BETAS, EPSILON = (0.9, 0.999), 1e-8


def oracle_updates(weights, gradients, *, rates, decays, clip):
    """The weights after several updates: the gradient is clipped by its whole length, and weight
    decay shrinks the weights beside the step of Adam, not through the moments.
    """
    weights = [list(group) for group in weights]
    moments = [[[0.0, 0.0] for _ in group] for group in weights]
    for number, gradient in enumerate(gradients, start=1):
        length = math.sqrt(sum(g * g for group in gradient for g in group))
        factor = min(1.0, clip / (length + 1e-6))
        for group, rate in enumerate(rates):
            for place, raw in enumerate(gradient[group]):
                g = raw * factor
                first, second = moments[group][place]
                first = BETAS[0] * first + (1 - BETAS[0]) * g
                second = BETAS[1] * second + (1 - BETAS[1]) * g * g
                moments[group][place] = [first, second]
                step = (first / (1 - BETAS[0] ** number)) / (
                    math.sqrt(second / (1 - BETAS[1] ** number)) + EPSILON
                )
                before = weights[group][place]
                weights[group][place] = before - rate * decays[group] * before - rate * step
    return weights


@pytest.mark.parametrize("clip", [0.5, 1e9])
def test_updates_are_those_of_clipping_and_adamw(clip):
    generator = torch.Generator().manual_seed(3)

    def draw(size):
        return torch.randn(size, dtype=torch.float64, generator=generator)

    sizes, rates, decays = (5, 3), (0.01, 0.1), (0.1, 0.0)
    weights = [draw(size) for size in sizes]
    gradients = [[draw(size) for size in sizes] for _ in range(4)]
    learners = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = torch.optim.AdamW(
        [
            {"params": [learner], "lr": rate, "weight_decay": decay}
            for learner, rate, decay in zip(learners, rates, decays, strict=True)
        ]
    )
    update = TorchAdamW(
        optimizer,
        Precision("fp32", torch.device("cpu")),
        clip=clip,
        not_finite=torch.zeros(()),
        skips_on_device=False,
    )
    for gradient in gradients:
        for learner, values in zip(learners, gradient, strict=True):
            learner.grad = values.clone()
        length = update.apply(torch.zeros(()), {})
        expected_length = math.sqrt(sum(float(g) ** 2 for values in gradient for g in values))
        assert length.item() == pytest.approx(expected_length, rel=1e-12)
    expected = oracle_updates(
        [weight.tolist() for weight in weights],
        [[values.tolist() for values in gradient] for gradient in gradients],
        rates=rates,
        decays=decays,
        clip=clip,
    )
    for learner, values in zip(learners, expected, strict=True):
        assert learner.tolist() == pytest.approx(values, rel=1e-10)
