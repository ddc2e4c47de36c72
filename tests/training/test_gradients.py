"""Gradient surgery against projections of explicit vectors, and what it does inside the loop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from closeknit.data import Examples
from closeknit.encoders.loading import load_encoder
from closeknit.multitask.heads import SingleHead
from closeknit.objectives import Joint
from closeknit.objectives.joint import Term
from closeknit.objectives.losses.cross_entropy import CrossEntropy
from closeknit.training import agreement
from closeknit.training import gradients as surgery
from closeknit.training.batches import DeviceBatches, batches_per_epoch, labels_of, length_grouped
from closeknit.training.config import TrainConfig
from closeknit.training.gradients import SeparateGradients, cosines, pcgrad
from closeknit.training.loop import NotFinite, Training
from closeknit.training.processes import World
from closeknit.training.task import Task


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Work as small as this is slower on several cores, much slower where others use them too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def dot(a, b):
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def oracle_pcgrad(gradients, orders):
    """The paper's projections on lists of numbers; `orders[i]` is the order in which task i meets
    the others.
    """
    total = [0.0] * len(gradients[0])
    for i, own in enumerate(gradients):
        freed = list(own)
        for j in orders[i]:
            if j == i:
                continue
            along = dot(freed, gradients[j])
            if along < 0:
                share = along / dot(gradients[j], gradients[j])
                freed = [a - share * b for a, b in zip(freed, gradients[j], strict=True)]
        total = [a + b for a, b in zip(total, freed, strict=True)]
    return total


def drawn(tasks, seed):
    """The orders that a generator of this seed gives: a permutation of all tasks for each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(tasks, generator=generator).tolist() for _ in range(tasks)]


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def random_rows(tasks, size, seed):
    return torch.randn(
        tasks, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def close(ours, expected, relative=1e-12):
    """Whether two vectors are equal, measured by the length of the second."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    return bool((ours - expected).norm() <= relative * expected.norm())


# ---------------------------------------------------------------- the formula


def test_the_case_worked_by_hand():
    # <g_1, g_2> = -1: g_1' = [1, 0] + [-1, 1] / 2 and g_2' = [-1, 1] + [1, 0]
    assert pcgrad(rows([1.0, 0.0], [-1.0, 1.0])).tolist() == [0.5, 1.5]


@pytest.mark.parametrize("tasks", [2, 3, 5, 8])
@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_it_projects_as_the_paper_says(tasks, size):
    conflicts = 0
    for seed in range(10):
        gradients = (
            random_rows(tasks, size, seed)
            * torch.logspace(-2, 2, tasks, dtype=torch.float64)[:, None]
        )
        expected = oracle_pcgrad(gradients.tolist(), drawn(tasks, seed))
        assert torch.allclose(
            pcgrad(gradients, seeded(seed)),
            rows(*expected),
            rtol=1e-12,
            atol=1e-12 * gradients.norm().item(),
        )
        conflicts += not close(gradients.sum(0), expected, 1e-6)
    assert conflicts > 0


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_the_mean_is_the_sum_by_the_number_of_tasks(tasks):
    for seed in range(5):
        gradients = random_rows(tasks, 20, seed)
        projected = oracle_pcgrad(gradients.tolist(), drawn(tasks, seed))
        expected = rows(*[value / tasks for value in projected])
        found = pcgrad(gradients, seeded(seed), reduction="mean")
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match='reduction is max; it must be "sum" or "mean"'):
        pcgrad(gradients, reduction="max")


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_it_projects_as_the_paper_says_for_small_whole_numbers_too(tasks, size, data):
    """Equal, opposite, orthogonal and zero gradients are all met here."""
    whole = st.integers(-2, 2).map(float)
    gradients = data.draw(
        st.lists(st.lists(whole, min_size=size, max_size=size), min_size=tasks, max_size=tasks)
    )
    seed = data.draw(st.integers(0, 1000))
    expected = rows(*oracle_pcgrad(gradients, drawn(tasks, seed)))
    assert torch.allclose(pcgrad(rows(*gradients), seeded(seed)), expected, rtol=1e-12, atol=1e-12)


def test_gradients_without_a_conflict_are_added():
    gradients = random_rows(4, 50, seed=0).abs()
    assert close(pcgrad(gradients, seeded(0)), gradients.sum(0), 1e-15)
    right_angles = torch.eye(3, dtype=torch.float64)
    assert pcgrad(right_angles).tolist() == [1.0, 1.0, 1.0]


def test_one_task_keeps_its_gradient():
    gradients = random_rows(1, 9, seed=1)
    assert torch.equal(pcgrad(gradients), gradients[0])


def test_opposite_gradients_leave_nothing():
    gradients = random_rows(1, 9, seed=2)
    assert pcgrad(torch.cat([gradients, -3 * gradients])).abs().max() < 1e-15


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_zero_gradient_divides_nothing_and_changes_nothing(place):
    gradients = random_rows(2, 6, seed=5)
    gradients[1] -= 2 * gradients[0]  # a conflict
    with_zero = torch.cat(
        [gradients[:place], torch.zeros(1, 6, dtype=torch.float64), gradients[place:]]
    )
    assert close(pcgrad(with_zero, seeded(0)), oracle_pcgrad(gradients.tolist(), [[1], [0]]))
    assert torch.equal(pcgrad(torch.zeros(3, 6)), torch.zeros(6))


def test_a_gradient_too_small_to_have_a_square_is_harmless():
    gradients = rows([1.0, 0.0], [-1e-23, 1e-23], dtype=torch.float32)
    found = pcgrad(gradients)
    assert torch.isfinite(found).all()
    assert torch.allclose(found, torch.tensor([0.5, 0.5])) or torch.allclose(
        found, torch.tensor([1.0, 0.0])
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 5)])
def test_a_gradient_that_is_not_finite_shows_in_the_result(bad, place):
    for seed in range(5):
        gradients = random_rows(3, 6, seed)
        gradients[place] = bad
        assert not torch.isfinite(pcgrad(gradients, seeded(seed))).all()


def test_the_order_matters_when_three_tasks_conflict_and_comes_from_the_generator():
    gradients = rows([1.0, 0.0, 0.2], [-0.8, 0.9, 0.0], [-0.3, -0.9, 0.5])
    others = [list(itertools.permutations({0, 1, 2} - {i})) for i in range(3)]
    possible = [oracle_pcgrad(gradients.tolist(), orders) for orders in itertools.product(*others)]
    met = set()
    for seed in range(40):
        found = pcgrad(gradients, seeded(seed))
        assert torch.equal(found, pcgrad(gradients, seeded(seed)))
        near = [number for number, one in enumerate(possible) if close(found, one)]
        assert near
        met.add(near[0])
    assert len(met) > 2


@pytest.mark.parametrize("factor", [1e-4, 3.0, 65536.0])
def test_the_scale_of_the_gradients_does_not_matter(factor):
    for seed in range(5):
        gradients = random_rows(3, 8, seed)
        assert close(
            pcgrad(factor * gradients, seeded(seed)), factor * pcgrad(gradients, seeded(seed))
        )


def test_float32_gradients_give_a_float32_result():
    gradients = random_rows(3, 200, seed=3)
    found = pcgrad(gradients.float(), seeded(3))
    assert found.dtype == torch.float32
    assert close(found.double(), pcgrad(gradients, seeded(3)), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_gradients_whose_squares_are_too_large_for_them_are_projected(dtype, monkeypatch):
    monkeypatch.setattr(surgery, "_PIECE", 7)  # several, the last one smaller
    gradients = (300 * random_rows(4, 50, seed=0)).to(dtype)
    expected = oracle_pcgrad(gradients.tolist(), drawn(4, 1))
    found = pcgrad(gradients, seeded(1))
    assert found.dtype == dtype and close(found.double(), expected, 1e-2)
    assert not close(gradients.double().sum(0), expected, 0.1)
    assert torch.allclose(cosines(gradients), cosines(gradients.double()), atol=1e-5)


def test_gradients_of_another_shape_or_of_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"\(T, P\); got \(2, 3, 4\)"):
        pcgrad(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"a floating type; got torch.int64"):
        pcgrad(torch.tensor([[1, 0], [-1, 1]]))


def test_a_second_oracle_from_torchjd():
    aggregation = pytest.importorskip("torchjd.aggregation")
    conflicts = 0
    for seed in range(20):
        gradients = random_rows(2, 5, seed)  # two tasks: there is no order
        assert close(pcgrad(gradients), aggregation.PCGrad()(gradients))
        conflicts += bool(gradients[0] @ gradients[1] < 0)
    assert 0 < conflicts < 20


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest memory holds that was made inside, apart from what was
    there before.
    """

    def __init__(self, *before):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in before}
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for tensor in tree_leaves(made):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.untyped_storage().data_ptr() not in self.known
            ):
                self.numbers = max(
                    self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size()
                )
        return made


@pytest.mark.parametrize("function", [pcgrad, cosines])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_second_copy_of_the_gradients_is_made(function, dtype):
    tasks, size = 4, 1000
    gradients = random_rows(tasks, size, seed=0).to(dtype)
    with Largest(gradients) as seen:
        function(gradients)
    assert tasks * tasks <= seen.numbers <= size
    with Largest(gradients) as seen:
        (gradients.T + 0.0).sum()  # a copy would be seen
    assert seen.numbers == tasks * size


# ---------------------------------------------------------------- cosines, and gradients kept apart


def test_cosines_are_those_of_numpy():
    gradients = random_rows(5, 30, seed=4)
    gradients[3] = 0.0
    found = cosines(gradients).numpy()
    expected = np.zeros((5, 5))
    for i, j in itertools.product((0, 1, 2, 4), repeat=2):
        a, b = gradients[i].numpy(), gradients[j].numpy()
        expected[i, j] = np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))
    assert np.allclose(found, expected, atol=1e-14)
    assert not found[3].any() and not found[:, 3].any()


def test_cosines_never_leave_their_range():
    for seed in range(50):
        one = random_rows(1, 3, seed).float()
        found = cosines(torch.cat([one, 7 * one, -0.3 * one]))
        assert found.min() >= -1.0 and found.max() <= 1.0
        assert torch.allclose(found, rows([1, 1, -1], [1, 1, -1], [-1, -1, 1]), atol=1e-6)


def test_gradients_are_taken_apart_and_given_back():
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,), (), (1, 2, 2))]
    separate = SeparateGradients(parameters, 2)
    given = {}
    for task, without in ((0, 1), (1, 3)):
        for number, parameter in enumerate(parameters):
            filled = torch.randn(parameter.shape, generator=seeded(10 * task + number))
            parameter.grad = None if number == without else filled
            given[task, number] = torch.zeros(parameter.shape) if number == without else filled
        separate.take(task)
        assert all(parameter.grad is None for parameter in parameters)
    for task in (0, 1):
        separate.give_back(separate.rows[task])
        for number, parameter in enumerate(parameters):
            assert parameter.grad is not None and torch.equal(parameter.grad, given[task, number])
    separate.take(0)  # a row is written anew, with zeros where there is no gradient now
    separate.take(0)
    assert not separate.rows[0].any() and separate.rows[1].any()


# ---------------------------------------------------------------- in the loop


CPU = World(torch.device("cpu"))


def make_training(
    tiny, small, *, dropout=0.0, copies=False, frozen=False, combine=pcgrad, **options
):
    """Two tasks on one tiny encoder in float64, that contradict each other or are copies."""
    encoder, tokeniser = load_encoder(tiny(), max_length=16, dropout=dropout, frozen=frozen)
    texts, labels = small
    tokens, names = tokeniser(Examples(texts)), sorted(set(labels))
    y = np.array([names.index(label) for label in labels])
    settings = {
        "epochs": 2,
        "batch_size": 12,
        "lr": 1e-3,
        "clip": 1e9,
        "precision": "fp32",
        "seed": 5,
        **options,
    }
    config = TrainConfig(**settings)
    per_epoch = batches_per_epoch(len(y), config.batch_size)
    tasks = []
    for number, name in enumerate(("one", "two")):
        plan = length_grouped(tokens.lengths, config.batch_size, 0 if copies else number)
        batch = DeviceBatches(tokens, labels_of(y, CPU.device), plan, per_epoch, CPU)
        with torch.random.fork_rng():
            torch.manual_seed(8)
            head = SingleHead(encoder.dim, 3)
        head.out.weight.data *= (
            0.2 if copies or not number else -0.2
        )  # what helps one task harms the other
        objective = Joint([Term("loss", 1.0, CrossEntropy(), "logits")])
        weight = 1.0 + 1.5 * number
        tasks.append(
            Task(name, batch, per_epoch, objective, nn.ModuleDict({"logits": head}), weight)
        )
    training = Training(encoder.double(), tasks, config, world=CPU, combine=combine)
    training.learners.double()
    return training


def own_gradients(training, task, number=0):
    """A task's gradients of a batch, by autograd alone: (those of all encoder parameters, flat;
    those of its head).
    """
    batch = task.batch(number, 0, 1)
    head = task.heads["logits"]
    loss = nn.functional.cross_entropy(head(training.encoder(batch.inputs).pooled), batch.labels)
    shared, heads = list(training.encoder.parameters()), list(head.parameters())
    found = torch.autograd.grad(task.weight * loss, shared + heads, allow_unused=True)
    found = [
        torch.zeros_like(parameter) if one is None else one
        for parameter, one in zip(shared + heads, found, strict=True)
    ]
    flat = torch.cat([one.flatten() for one in found[: len(shared)]])
    return flat, torch.cat([one.flatten() for one in found[len(shared) :]])


def flat_gradient(module):
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()]
    )


def state_of(training):
    return {key: value.clone() for key, value in training.learners.state_dict().items()}


def test_an_update_projects_shared_gradients_and_leaves_those_of_heads(tiny, small):
    training = make_training(tiny, small)
    (one, head_one), (two, head_two) = (own_gradients(training, task) for task in training.tasks)
    cosine = (one @ two / (one.norm() * two.norm())).item()
    assert cosine < -0.05
    next(iter(training))
    found = flat_gradient(training.encoder)
    # two tasks: g_1 freed of g_2 plus g_2 freed of g_1
    expected = one - (one @ two) / (two @ two) * two + two - (two @ one) / (one @ one) * one
    assert close(found, expected, 1e-10)
    assert close(flat_gradient(training.tasks[0].heads), head_one, 1e-10)
    assert close(flat_gradient(training.tasks[1].heads), head_two, 1e-10)
    # with the heads in the norm it would be something else, and so would a plain sum
    long_one, long_two = one @ one + head_one @ head_one, two @ two + head_two @ head_two
    mixed = one - (one @ two) / long_two * two + two - (two @ one) / long_one * one
    assert not close(found, mixed, 1e-3) and not close(found, one + two, 1e-3)


def test_without_surgery_the_gradients_are_added(tiny, small):
    training = make_training(tiny, small, combine=None)
    (one, _), (two, _) = (own_gradients(training, task) for task in training.tasks)
    next(iter(training))
    assert close(flat_gradient(training.encoder), one + two, 1e-10)


def test_surgery_on_batches_in_parts_is_that_on_whole_ones(tiny, small):
    ends = []
    for parts in (1, 2, 5):
        training = make_training(tiny, small, accumulate=parts)
        norms = [step.grad_norm for step in training]
        ends.append((norms, state_of(training)))
    assert len(ends[0][0]) == 6
    for norms, end in ends[1:]:
        assert norms == pytest.approx(ends[0][0], rel=1e-7)
        for key, value in end.items():
            assert torch.allclose(value, ends[0][1][key], atol=1e-7), key


def test_the_same_run_twice_has_the_same_bits(tiny, small):
    ends = []
    for _ in range(2):
        torch.rand(3)  # the order of projections comes from the run's own seed
        training = make_training(tiny, small, dropout=0.1)
        ends.append(([step.loss for step in training], state_of(training)))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(value, ends[1][1][key]) for key, value in ends[0][1].items())


def test_a_gradient_that_is_not_finite_stops_the_run_under_surgery(tiny, small):
    training = make_training(tiny, small)
    next(iter(training))
    kept = state_of(training)
    training.tasks[1].heads["logits"].register_full_backward_hook(
        lambda module, inward, outward: (inward[0] * math.nan,)
    )
    with pytest.raises(NotFinite, match="the gradient is not finite"):
        next(iter(training))
    assert all(torch.equal(value, kept[key]) for key, value in state_of(training).items())


@pytest.mark.parametrize("combine", [None, pcgrad])
def test_what_no_task_reads_is_left_alone_under_surgery_as_without(tiny, small, combine):
    training = make_training(tiny, small, combine=combine, weight_decay=0.5)
    pooler = training.encoder.trunk.pooler.dense.weight  # pooling is `first`
    before = pooler.detach().clone()
    next(iter(training))
    assert torch.equal(pooler, before)


# ---------------------------------------------------------------- how the gradients agree


@pytest.mark.parametrize("accumulate", [1, 4])
def test_agreement_is_the_cosine_over_the_rows_of_the_first_batches(tiny, small, accumulate):
    training = make_training(
        tiny, small, batch_size=30, accumulate=accumulate
    )  # batches of 30 and of 6 rows
    batches = [[own_gradients(training, task, n)[0] for n in range(2)] for task in training.tasks]
    sizes = [[len(task.batch(n, 0, 1).rows) for n in range(2)] for task in training.tasks]
    assert [set(own) for own in sizes] == [{30, 6}, {30, 6}]
    one, two = (
        sum(size * own for size, own in zip(*task, strict=True))
        for task in zip(sizes, batches, strict=True)
    )
    expected = (one @ two / (one.norm() * two.norm())).item()
    assert training.agreement() == {("one", "two"): pytest.approx(expected, abs=1e-10)}
    expected = nn.functional.cosine_similarity(batches[0][0], batches[1][0], dim=0).item()
    assert training.agreement(batches=1) == {("one", "two"): pytest.approx(expected, abs=1e-10)}


@pytest.mark.parametrize("accumulate", [1, 5])
def test_two_copies_of_a_task_agree_wholly(tiny, small, accumulate):
    training = make_training(tiny, small, copies=True, dropout=0.3, accumulate=accumulate)
    assert training.agreement()["one", "two"] == pytest.approx(1.0, abs=1e-12)  # dropout is off


@pytest.mark.parametrize("accumulate", [1, 3])
def test_agreement_is_the_same_where_one_gradient_fits_into_memory(
    tiny, small, monkeypatch, accumulate
):
    training = make_training(tiny, small, batch_size=30, accumulate=accumulate)
    expected = training.agreement()
    made: list[int] = []

    class Watched(SeparateGradients):
        def __init__(self, parameters, tasks):
            made.append(tasks)
            super().__init__(parameters, tasks)

    monkeypatch.setattr(agreement, "SeparateGradients", Watched)
    monkeypatch.setattr(surgery, "HELD_BYTES", 1)
    assert training.agreement() == {
        ("one", "two"): pytest.approx(expected["one", "two"], abs=1e-10)
    }
    assert made == [1]  # one gradient is held, not one for each task
    assert all(parameter.grad is None for parameter in training.learners.parameters())


def test_the_products_with_present_gradients_are_those_of_the_rows():
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))]
    separate = SeparateGradients(parameters, 1)
    parameters[0].grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    separate.take(0)  # nothing for the second parameter
    parameters[0].grad, parameters[1].grad = torch.full((2, 2), 0.5), torch.ones(3)
    assert separate.products_with_present().tolist() == [5.0]


def test_asking_for_the_agreement_changes_nothing(tiny, small):
    asked, silent = (make_training(tiny, small, dropout=0.3) for _ in range(2))
    for _ in range(2):
        before, random, numbers = (
            state_of(asked),
            torch.get_rng_state(),
            np.random.get_state()[1].copy(),
        )
        first = asked.agreement()
        assert asked.agreement() == first
        assert all(torch.equal(value, before[key]) for key, value in state_of(asked).items())
        assert torch.equal(torch.get_rng_state(), random)
        assert np.array_equal(np.random.get_state()[1], numbers)
        assert all(parameter.grad is None for parameter in asked.learners.parameters())
        assert next(iter(asked)) == next(iter(silent))
        assert all(
            torch.equal(value, state_of(asked)[key]) for key, value in state_of(silent).items()
        )


def test_tasks_that_share_nothing_to_learn_need_no_surgery(tiny, small):
    training = make_training(tiny, small, frozen=True)
    assert training.agreement() == {}
    head = training.tasks[0].heads["logits"].out.weight
    before = head.detach().clone()
    next(iter(training))
    assert not torch.equal(head, before)
