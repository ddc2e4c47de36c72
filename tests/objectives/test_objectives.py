"""Objectives against oracles written from the formulas, in float64: lists, loops and math."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from closeknit import objectives
from closeknit.errors import ConfigError
from closeknit.objectives import (
    OBJECTIVES,
    Consistency,
    CrossEntropy,
    Joint,
    MultipleNegatives,
    NTXent,
    ProxyNCA,
    SoftTriple,
    Term,
    View,
    build_objective,
    describe,
    objective_options,
)  # fmt: skip
from closeknit.objectives.losses import soft_triple as soft_triple_module


def unit(v):
    norm = math.sqrt(sum(x * x for x in v))
    return [x / norm for x in v] if norm else list(v)


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def oracle_cross_entropy(logits, y, smoothing=0.0, weights=None):
    total = share = 0.0
    for row, label in zip(logits, y, strict=True):
        log_sum = math.log(sum(math.exp(v) for v in row))
        weight = weights[label] if weights else 1.0
        total += (1 - smoothing) * weight * (log_sum - row[label])
        for c, value in enumerate(row):
            total += smoothing / len(row) * (weights[c] if weights else 1.0) * (log_sum - value)
        share += weight
    return total / share


def oracle_soft_triple(z, proxies, y, *, gamma, scale, margin, tau):
    w = [[unit(center) for center in own] for own in proxies]
    total = 0.0
    for row, label in zip(z, y, strict=True):
        scores = []
        for c, own in enumerate(w):
            near = [dot(unit(row), center) for center in own]
            pull = [math.exp(n / gamma) for n in near]
            score = sum(p * n for p, n in zip(pull, near, strict=True)) / sum(pull)
            scores.append(scale * (score - (margin if c == label else 0.0)))
        total -= scores[label] - math.log(sum(math.exp(s) for s in scores))
    C, K = len(w), len(w[0])
    gaps = [
        math.sqrt(2 + 1e-5 - 2 * dot(own[k], own[m]))
        for own in w
        for k in range(K)
        for m in range(k + 1, K)
    ]
    return total / len(z) + (tau * sum(gaps) / (C * K * (K - 1)) if K > 1 else 0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("classes", "centers"), [(2, 1), (3, 2), (5, 4)])
def test_soft_triple_matches_the_formula(classes, centers, seed, monkeypatch):
    torch.manual_seed(seed)
    options = {"gamma": 0.2, "scale": 8.0, "margin": 0.05, "tau": 0.3}
    objective = SoftTriple(6, classes, centers=centers, **options).double()
    objective.proxies.data *= 1.7  # the length of a proxy must not matter
    z, y = torch.randn(7, 6, dtype=torch.float64), torch.randint(classes, (7,))
    expected = oracle_soft_triple(z.tolist(), objective.proxies.tolist(), y.tolist(), **options)
    assert objective(z, y).item() == pytest.approx(expected, abs=1e-10)
    monkeypatch.setattr(
        soft_triple_module, "CPU_ELEMENTS", 2 * classes * centers
    )  # two rows at a time
    assert objective(z, y).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("weights", [None, [1.0, 0.2, 3.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.15])
def test_cross_entropy_matches_the_formula(smoothing, weights):
    torch.manual_seed(0)
    logits, y = torch.randn(8, 3, dtype=torch.float64), torch.randint(3, (8,))
    objective = CrossEntropy(label_smoothing=smoothing, class_weights=weights)
    expected = oracle_cross_entropy(logits.tolist(), y.tolist(), smoothing, weights)
    assert objective(logits, y).item() == pytest.approx(expected, abs=1e-10)


def test_cases_worked_by_hand():
    two = torch.zeros(2, 2, dtype=torch.float64)
    assert CrossEntropy()(two, torch.tensor([0, 1])).item() == pytest.approx(math.log(2), abs=1e-12)
    soft = SoftTriple(2, 2, centers=1, scale=3.0, margin=0.5).double()
    soft.proxies.data = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    # the row lies on its own center: scores are 3 * (1 - .5) and 0
    loss = soft(torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([0])).item()
    assert loss == pytest.approx(math.log(1 + math.exp(-1.5)), abs=1e-12)


def test_one_center_without_margin_is_the_normalised_softmax():
    torch.manual_seed(0)
    soft = SoftTriple(5, 4, centers=1, scale=7.0, margin=0.0, gamma=0.03).double()
    z, y = torch.randn(9, 5, dtype=torch.float64), torch.randint(4, (9,))
    cosine = torch.nn.functional.cosine_similarity(z[:, None], soft.proxies[None, :, 0], dim=-1)
    assert soft(z, y).item() == pytest.approx(
        torch.nn.functional.cross_entropy(7.0 * cosine, y).item(), abs=1e-12
    )


def test_soft_triple_agrees_with_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    torch.manual_seed(0)
    z, y = torch.randn(9, 5, dtype=torch.float64), torch.randint(4, (9,))
    ours = SoftTriple(5, 4, centers=3, gamma=0.2, scale=9.0, margin=0.07).double()
    theirs = losses.SoftTripleLoss(
        4, 5, centers_per_class=3, la=9.0, gamma=0.2, margin=0.07
    ).double()
    theirs.fc.data = ours.proxies.detach().flatten(0, 1).T.clone()
    assert ours(z, y).item() == pytest.approx(theirs(z, y).item(), abs=1e-9)


def test_gradients_are_those_of_the_numbers(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(soft_triple_module, "CPU_ELEMENTS", 12)
    soft = SoftTriple(4, 3, centers=2, gamma=0.3, scale=5.0, margin=0.2, tau=0.4).double()
    z, y = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.randint(3, (5,))

    def loss(rows, proxies):
        return torch.func.functional_call(soft, {"proxies": proxies}, (rows, y))

    assert torch.autograd.gradcheck(loss, (z, soft.proxies))
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda rows: CrossEntropy(label_smoothing=0.1)(rows, y[:4]), (logits,)
    )


def plain_soft_triple(z, w, y):
    """Loss and gradients by autograd over all similarities at once."""
    near = torch.einsum("rd,ckd->rck", F.normalize(z.float(), dim=-1), F.normalize(w, dim=-1))
    score = (torch.softmax(near / 0.1, -1) * near).sum(-1)
    loss = F.cross_entropy(3.3 * (score - 0.3 * F.one_hot(y, len(w))), y)
    return loss, torch.autograd.grad(0.4 * loss, (z, w))


def our_soft_triple(z, w, y):
    loss = soft_triple_module.center_loss(z, w, y, gamma=0.1, scale=3.3, margin=0.3)
    assert loss.dtype == torch.float32
    once = torch.autograd.grad(0.4 * loss, (z, w), retain_graph=True)
    again = torch.autograd.grad(0.4 * loss, (z, w))  # the graph may be walked more than once
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    with torch.no_grad():  # no gradients, the same value
        assert soft_triple_module.center_loss(z, w, y, gamma=0.1, scale=3.3, margin=0.3) == loss
    return loss, once


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_plain_form_and_the_chunked_one_agree(dtype, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(soft_triple_module, "CPU_ELEMENTS", 7 * 120)
    z, w = torch.randn(50, 8).to(dtype).requires_grad_(), torch.randn(4, 30, 8, requires_grad=True)
    y = torch.randint(4, (50,))
    (plain, expected), (loss, ours) = plain_soft_triple(z, w, y), our_soft_triple(z, w, y)
    assert torch.allclose(loss, plain, atol=1e-5)
    for a, b in zip(expected, ours, strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(
            a.float(), b.float(), atol=1e-6 if dtype == torch.float32 else 1e-4, rtol=1e-2
        )


def test_slopes_in_float16_are_multiplied_by_the_loss_scale_before_they_are_rounded():
    """The mean over many rows gives slopes that float16 cannot hold without the loss scale."""
    torch.manual_seed(0)
    rows, scale = torch.randn(3000, 16) * 2000, 2.0**14
    w, y = torch.randn(3, 10, 16), torch.randint(3, (3000,))

    def slopes(z):
        z = z.detach().requires_grad_()
        loss = soft_triple_module.center_loss(z, w, y, gamma=0.1, scale=3.3, margin=0.3)
        (gradient,) = torch.autograd.grad(loss * scale, z)
        return gradient

    half = rows.half()
    expected, found = slopes(half.float()), slopes(half)
    assert found.dtype == torch.float16
    assert (expected / scale).half().count_nonzero() < 0.6 * expected.numel()  # the trap
    assert (found.float() - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("C", "K"), [(6, 2000), (77, 10), (3, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_kernels_give_the_numbers_of_the_plain_form(C, K, dtype, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(soft_triple_module, "GPU_BYTES", 2**20)
    z = torch.randn(501, 64, device="cuda").to(dtype).requires_grad_()
    w = torch.randn(C, K, 64, device="cuda", requires_grad=True)
    y = torch.randint(C, (501,), device="cuda")
    (plain, expected), (loss, ours) = plain_soft_triple(z, w, y), our_soft_triple(z, w, y)
    limit = 2e-3 if dtype == torch.float32 else 1e-2
    assert torch.allclose(loss, plain, atol=limit)
    for a, b in zip(expected, ours, strict=True):
        assert a.dtype == b.dtype
        assert (a.float() - b.float()).norm() < 2 * limit * a.float().norm()


OPTIONS = {
    "joint": {"terms": [{"objective": "CrossEntropy"}, {"objective": "SupCon", "weight": 0.5}]}
}


def rows_for(view: str, z, y, logits):
    if view in ("weights", "head_weights"):
        return View(torch.softmax(logits, -1), y)
    return View(logits if view.endswith("logits") else z, y)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize(
    "case",
    [
        "usual",
        "single row",
        "single class",
        "no positives",
        "all rows equal",
        "zero rows",
        "huge",
        "tiny",
        "one very short row",
        "very long rows",
        "half",
        "no rows",
    ],
)
def test_every_objective_keeps_its_promises(name, case):
    """One finite number, a finite gradient, and no dependence on the order of rows."""
    torch.manual_seed(0)
    rows = {"single row": 1, "no rows": 0, "no positives": 3}.get(case, 12)
    z = torch.randn(rows, 8)
    y = torch.zeros(rows, dtype=torch.long) if case == "single class" else torch.arange(rows) % 3
    z = {
        "all rows equal": z[:1].expand(rows, -1),
        "zero rows": z * 0,
        "huge": z * 1e4,
        "tiny": z * 1e-8,
    }.get(case, z)
    z = z.half() if case == "half" else z
    if case == "one very short row":
        z = torch.cat([torch.eye(1, 8) * 1e-20, z[1:]])
    if case == "very long rows":
        z = z * 1e15
    z = z.clone().requires_grad_()
    joint = build_objective(name, 8, 3, OPTIONS.get(name, {}))
    twice = name in ("auto", "clld")  # every text twice, in the same order
    if twice:
        z, y = torch.cat([z, 1.1 * z]).detach().requires_grad_(), y.repeat(2)
    project = torch.randn(8, 3)

    def value(order):
        order = torch.cat([order, order + rows]) if twice else order
        views = {
            view: rows_for(view, z[order], y[order], z[order].float() @ project)
            for view in joint.views
        }
        return joint(views)[0]

    loss = value(torch.arange(rows))
    assert loss.dim() == 0 and torch.isfinite(loss)
    assert loss.dtype == torch.float32
    loss.backward()
    assert z.grad is not None and torch.isfinite(z.grad).all()
    for parameter in joint.parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all()
    if rows > 1:
        assert value(torch.randperm(rows)).item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    if rows == 0:
        assert loss.item() == 0.0


# what compares rows or views of texts with each other, or with centers: makers, and whether they take views
COMPARING = {
    "Contrastive": (lambda: objectives.Contrastive(), False),
    "Triplet": (lambda: objectives.Triplet(margin=0.7), False),
    "semi-hard": (lambda: objectives.Triplet(mining="semi_hard"), False),
    "ProxyNCA": (lambda: objectives.ProxyNCA(8, 3), False),
    "SoftTriple": (lambda: objectives.SoftTriple(8, 3, tau=0.2), False),
    "SupCon": (lambda: objectives.SupCon(), False),
    "LabelDistance": (lambda: objectives.LabelDistance(3), False),
    "InfoNCE": (lambda: objectives.InfoNCE(), True),
    "NTXent": (lambda: objectives.NTXent(), True),
    "MultipleNegatives": (lambda: objectives.MultipleNegatives(), True),
}


@pytest.mark.parametrize("name", COMPARING)
def test_neither_length_nor_autocast_nor_the_kind_of_labels_changes_a_comparison(name):
    make, views = COMPARING[name]
    torch.manual_seed(0)
    objective, z, y = make(), torch.randn(12, 8), torch.arange(12) % 3
    z, labels = (z.view(2, 6, 8), None) if views else (z, y)
    expected = objective(z, labels)
    for factor in (1e-30, 1e-22, 1e30):
        assert objective(z * factor, labels).item() == pytest.approx(expected.item(), rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        found = objective(z=z, y=labels)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    if not views:
        assert torch.equal(objective(z, y.int()), expected)


@pytest.mark.parametrize("name", COMPARING)
def test_labels_of_another_shape_are_refused(name):
    """They would be spread over the rows, and give a number that means nothing."""
    make, views = COMPARING[name]
    z, y = torch.randn(6, 8), torch.arange(6) % 3
    z = torch.stack([z, z]) if views else z
    for labels in (y[:, None], y[:1], y.repeat(2)):
        with pytest.raises(ConfigError, match=r"6 rows need labels of shape \(6,\)"):
            make()(z, labels)


def test_merging_centers_keeps_no_more_than_one_class_at_a_time():
    C, K, D = 6, 50, 4
    objective, kept = SoftTriple(D, C, centers=K, tau=0.3), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        loss = objective(torch.randn(5, D), torch.arange(5))
    assert sum(kept) < C * K * K
    loss.backward()


def test_equal_rows_are_at_no_distance_in_single_precision():
    for seed in range(20):
        z = torch.randn(1, 768, generator=torch.Generator().manual_seed(seed)).repeat(9, 1)
        y = torch.arange(9) % 2
        assert objectives.Contrastive()(z[:2], y[:2]).item() == 0.5
        assert objectives.Triplet(mining="semi_hard")(z, y).item() == 0.0
        nca = objectives.ProxyNCA(768, 2, squared=True)
        with torch.no_grad():
            nca.proxies.copy_(torch.stack([z[0], -z[0]]))
        assert nca(z, torch.zeros(9, dtype=torch.long)).item() == pytest.approx(-4.0, abs=1e-5)


def test_pair_scores_may_stand_in_a_column():
    scores = torch.tensor([[1.0], [2.0], [4.0]])
    assert objectives.MeanSquared()(scores, scores).item() == 0.0
    yes = torch.tensor([[1.0], [0.0], [1.0]])
    assert objectives.BinaryCrossEntropy()(scores, yes) == objectives.BinaryCrossEntropy()(
        scores[:, 0], yes[:, 0]
    )


def test_no_finite_input_gives_nan():
    z = (torch.randn(2, 4, 8) * 1e19).requires_grad_()
    loss = objectives.MultipleNegatives(similarity="dot")(z)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(z.grad).all()
    logits = torch.randn(3, 2, requires_grad=True)
    weighed = objectives.CrossEntropy(label_smoothing=0.1, class_weights=[1.0, 0.0])
    loss = weighed(logits, torch.ones(3, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0.0 and torch.equal(logits.grad, torch.zeros(3, 2))


def test_a_run_holds_its_label_distances_in_single_precision():  # some devices have no other
    given = {"terms": [{"objective": "LabelDistance", "scale": 3.3}], "copies": 2}
    for run in (
        objectives.OBJECTIVES["clld"](4, 2, scale=3.3),
        objectives.OBJECTIVES["clld"](4, 2, distance=[[0.1, 3.3], [3.3, 0.1]]),
        objectives.OBJECTIVES["joint"](4, 2, **given),
    ):
        assert {tensor.dtype for tensor in run.state_dict().values()} == {torch.float32}


def test_a_label_distance_keeps_the_precision_it_is_given():
    objective, z, y = objectives.LabelDistance(2), torch.randn(6, 3).double(), torch.arange(6) % 2
    matrix = torch.rand(2, 2, dtype=torch.float64)
    objective.set_distance(matrix)
    assert torch.equal(objective.distance, matrix)
    objective.set_distance([[0.1, 3.3], [3.3, 0.1]])
    assert objective.distance.tolist() == [[0.1, 3.3], [3.3, 0.1]]
    assert objectives.LabelDistance(2).distance.dtype == torch.float32
    assert objectives.LabelDistance(2, scale=3.3).double().distance.tolist() == [[3.3] * 2] * 2
    assert objectives.LabelDistance(2, scale=3.3).double()(z, y).dtype == torch.float64
    shares, counts = objectives.LabelDistance(2), objectives.LabelDistance(2)
    shares.update(torch.tensor([[0.3, 0.1], [0.0, 0.2]]), 1.0)
    counts.update(torch.tensor([[30, 10], [0, 20]]), 1.0)
    assert torch.allclose(shares.distance, counts.distance)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_objective_goes_down_when_optimised(name):
    torch.manual_seed(0)
    joint = build_objective(name, 8, 3, OPTIONS.get(name, {}))
    z, y, logits = (
        torch.randn(12, 8, requires_grad=True),
        torch.arange(12) % 3,
        torch.zeros(12, 3, requires_grad=True),
    )
    optimizer = torch.optim.Adam([z, logits, *joint.parameters()], lr=0.05)
    values = []
    for _ in range(80):
        optimizer.zero_grad()
        loss, _ = joint({view: rows_for(view, z, y, logits) for view in joint.views})
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < values[0] - 0.25 * abs(values[0])


def test_a_joint_objective_is_the_weighted_sum_of_its_terms():
    torch.manual_seed(0)
    joint = build_objective("triple_entropy", 4, 3, {"ce_weight": 0.7, "tokens": "content"})
    assert joint.views == ("logits", "content_tokens")
    logits, tokens = (
        View(torch.randn(5, 3), torch.arange(5) % 3),
        View(torch.randn(9, 4), torch.arange(9) % 3),
    )
    total, terms = joint({"logits": logits, "content_tokens": tokens})
    assert total.item() == pytest.approx(
        0.7 * terms["cross_entropy"].item() + 0.3 * terms["soft_triple"].item()
    )
    alone = build_objective("triple_entropy", 4, 3, {"ce_weight": 1.0})
    assert alone.views == ("logits",)  # nothing is computed for a term of weight 0


def test_weights_can_move_over_the_training():
    joint = build_objective("supcon", 4, 3, {"ce_weight": 0.2, "ce_weight_end": 0.8})
    ce, metric = joint.terms
    assert [ce.weight_at(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.5, 0.8])
    assert [metric.weight_at(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([0.8, 0.5, 0.2])
    cosine = Term("x", 1.0, CrossEntropy(), "logits", end=0.0, schedule="cosine")
    assert [cosine.weight_at(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(
        [1.0, 0.853553, 0.5, 0.0], abs=1e-6
    )
    rows = View(torch.randn(6, 3), torch.arange(6) % 3)
    total, terms = joint({"logits": rows, "pooled": rows}, progress=0.5)
    assert total.item() == pytest.approx(
        0.5 * terms["cross_entropy"].item() + 0.5 * terms["supcon"].item()
    )


def test_the_metric_term_alone_needs_another_classifier():
    assert build_objective("supcon", 4, 3, {}).classifier == "head"
    alone = build_objective("supcon", 4, 3, {"ce_weight": 0.0, "classifier": "knn"})
    assert (alone.classifier, alone.views) == ("knn", ("pooled",))


def test_balanced_class_weights_are_the_inverse_of_the_frequency():
    joint = build_objective(
        "cross_entropy", 4, 3, {"class_weights": "balanced"}, counts=[10, 5, 15]
    )
    weights = joint.objectives["cross_entropy"].class_weights
    assert weights.tolist() == pytest.approx([1.0, 2.0, 30 / 45])


def test_a_joint_objective_of_ones_own():
    terms = [
        {"objective": "CrossEntropy", "weight": 0.6, "label_smoothing": 0.1},
        {"objective": "SoftTriple", "weight": 0.4, "view": "tokens", "centers": 3, "end": 0.1},
        {"objective": "SupCon", "name": "pull", "view": "projected", "weight": 0.2},
    ]
    joint = build_objective("joint", 4, 3, {"terms": terms, "copies": 2})
    assert joint.views == ("logits", "tokens", "projected")
    assert joint.objectives["SoftTriple"].proxies.shape == (3, 3, 4)
    assert joint.terms[1].weight_at(1.0) == pytest.approx(0.1)
    assert joint.copies == 2 and joint.rows_of_a_class == 0  # a text meets its own copy
    assert build_objective("joint", 4, 3, {"terms": terms}).rows_of_a_class == 2
    assert build_objective("joint", 4, 3, {"terms": terms[:2]}).rows_of_a_class == 0


def test_terms_have_the_width_of_their_view_and_class_weights_too():
    terms = [
        {"objective": "CrossEntropy", "class_weights": "balanced"},
        {"objective": "SoftTriple", "view": "logits", "centers": 2},
        {"objective": "ProxyNCA", "view": "projected"},
    ]
    joint = build_objective("joint", 4, 3, {"terms": terms}, counts=[10, 5, 15])
    assert joint.objectives["CrossEntropy"].class_weights.tolist() == pytest.approx(
        [1.0, 2.0, 30 / 45]
    )
    assert joint.objectives["SoftTriple"].proxies.shape == (3, 2, 3)
    assert joint.objectives["ProxyNCA"].proxies.shape == (3, 128)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build_objective("triple_entropi", 4, 3, {}), "did you mean triple_entropy"),
        (
            lambda: build_objective("triple_entropy", 4, 3, {"centres": 3}),
            "no option centres; did you mean centers",
        ),
        (lambda: build_objective("triple_entropy", 4, 3, {"gamma": 0}), "gamma is 0"),
        (lambda: build_objective("triple_entropy", 4, 3, {"ce_weight": 2}), "from 0 to 1"),
        (lambda: build_objective("supcon", 4, 3, {"temperature": 0}), "temperature is 0"),
        (
            lambda: build_objective("triplet", 4, 3, {"mining": "semihard"}),
            "did you mean semi_hard",
        ),
        (lambda: build_objective("lcl", 4, 3, {"weighting": "heads"}), "did you mean head"),
        (
            lambda: build_objective("lcl", 4, 3, {"weighting": "head", "ce_weight": 0}),
            "a head that is trained",
        ),
        (
            lambda: build_objective("supcon", 4, 3, {"weight_schedule": "linar"}),
            "did you mean linear",
        ),
        (lambda: build_objective("supcon", 4, 3, {"classifier": "knnn"}), "did you mean knn"),
        (lambda: build_objective("clld", 4, 3, {"update_every": 0}), "at least 1"),
        (
            lambda: build_objective("joint", 4, 3, {"terms": [{"objective": "Supcon"}]}),
            "did you mean SupCon",
        ),
        (
            lambda: build_objective(
                "joint", 4, 3, {"terms": [{"objective": "SupCon", "temprature": 1}]}
            ),
            "did you mean temperature",
        ),
        (
            lambda: build_objective("joint", 4, 3, {"terms": [{"objective": "SupCon"}] * 2}),
            "same name",
        ),
        (lambda: MultipleNegatives(similarity="euclid"), "cosine"),
        (lambda: NTXent()(torch.zeros(3, 2, 4)), "takes 2 views"),
        (lambda: ProxyNCA(4, 1), "compares classes"),
        (lambda: build_objective("cross_entropy", 4, 3, {"class_weights": "even"}), "or balanced"),
        (
            lambda: build_objective("triple_entropy", 4, 3, {"tokens": "contents"}),
            "did you mean content",
        ),
        (lambda: build_objective("triple_entropy", 4, 3, {"gamma": "x"}), "wrong type"),
        (
            lambda: build_objective("cross_entropy", 4, 3, {"class_weights": [1.0]}),
            "there are 3 classes",
        ),
        (lambda: CrossEntropy(class_weights=[-1.0, 1.0]), "negative"),
        (lambda: Term("x", 1.0, CrossEntropy(), "logit"), "did you mean logits"),
        (lambda: Joint([]), "at least one term"),
        (lambda: Joint([Term("x", 1.0, Consistency(), "logits")]), "set objective.copies to 2"),
        (lambda: build_objective("auto", 4, 2, {"contrast": -1.0}), "must not be negative"),
    ],
)
def test_bad_options_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ({"objective": "SupCon", "name": "a.b"}, "another name: .*contain"),
        ({"objective": "SupCon", "name": "keys"}, "another name: .*keys"),
        ({"objective": "SupCon", "name": ""}, "another name"),
        ({"objective": "SupCon", "view": "masked_tokens"}, "unknown view masked_tokens"),
        (
            {"objective": "SupCon", "view": "token"},
            "term 2: unknown view token; did you mean tokens",
        ),
        ({"objective": "CrossEntropy", "view": "pooled", "name": "x"}, "reads logits, not pooled"),
        ({"objective": "LabelAware", "view": "tokens"}, "LabelAware weighs whole texts"),
        ({"objective": "SupCon", "weight": math.nan}, "the weight of SupCon is nan"),
        ({"objective": "SupCon", "end": math.inf}, "the weight of SupCon is inf"),
        ({"objective": "SupCon", "end": "x"}, "wrong type"),
        ({"objective": "CrossEntropy", "name": "x", "class_weights": [1.0]}, "there are 3 classes"),
        (
            {"objective": "CrossEntropy", "name": "x", "class_weights": 2},
            "class_weights is 2; give a list",
        ),
    ],
)
def test_bad_terms_are_refused(term, words):
    with pytest.raises(ConfigError, match=words):
        build_objective("joint", 4, 3, {"terms": [{"objective": "CrossEntropy"}, term]})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: build_objective("joint", 4, 3, {"terms": [{"objective": "LabelAware"}]}),
            "that is trained",
        ),
        (
            lambda: build_objective("cross_entropy", 4, 3, {"class_weights": 2.0}),
            "give a list of weights",
        ),
        (lambda: CrossEntropy(class_weights=[1.0, math.inf]), "finite"),
        (lambda: CrossEntropy(class_weights=[[1.0], [2.0]]), "one weight for each class"),
        (
            lambda: build_objective("auto", 4, 3, {"contrast": math.inf}),
            "the weight of supcon is inf",
        ),
        (lambda: objectives.LabelDistance(3).update(torch.zeros(1, 1), 0.5), "there are 3 classes"),
        (
            lambda: objectives.LabelDistance(2).update(torch.full((2, 2), math.nan), 0.5),
            "not finite",
        ),
    ],
)
def test_what_would_go_wrong_later_is_refused_at_once(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_option_is_explained(name):
    text = describe(name)
    for option in objective_options(name):
        line = next(line for line in text.splitlines() if line.strip().startswith(option + " "))
        assert len(line.split()) > 4, f"{name}.{option} has no explanation"


# ---------------------------------------------------------------- weights of classes


def weights_of(given, labels):
    joint = build_objective("auto", 4, len(labels), {"class_weights": given}, labels=labels)
    return joint.objectives["cross_entropy"].class_weights.tolist()


def test_class_weights_go_by_name_or_by_the_sorted_order():
    assert weights_of({"b": 2.0, "a": 1.0}, ["a", "b"]) == [1.0, 2.0]
    assert weights_of([1.0, 2.0], ["a", "b"]) == [1.0, 2.0]
    assert weights_of([1.0, 2.0], ["1", "2"]) == [1.0, 2.0]
    eleven = [str(n) for n in range(11)]
    by_name = {n: float(n) + 1.0 for n in range(11)}  # numbers from Python
    assert weights_of(by_name, eleven) == [n + 1.0 for n in range(11)]
    assert weights_of(by_name, sorted(eleven)) == [1.0, 2.0, 11.0, *map(float, range(3, 11))]


@pytest.mark.parametrize("order", [sorted, lambda labels: sorted(labels, key=int)])
def test_a_list_is_refused_where_two_orders_of_the_classes_are_possible(order):
    """A file has them in the order of texts, and Python in the order of numbers."""
    labels = order([str(n) for n in range(11)])
    with pytest.raises(ConfigError, match=r"class number 3 is 2 by size and 10 as text.*\{0 = 1"):
        weights_of([1.0] * 11, labels)
    assert len(weights_of({label: 1.0 for label in labels}, labels)) == 11


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"refund": 1.0, "los": 2.0}, "unknown class los; did you mean lost"),
        ({"refund": 1.0}, "no weight for the class lost"),
        ({"refund": 1.0, "lost": "much"}, "give a list of weights"),
        (
            "balance",
            "give a list of weights, a table with a weight for each class name, or balanced",
        ),
        ([1.0], "has 1 weights; there are 2 classes"),
    ],
)
def test_class_weights_that_do_not_fit_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        weights_of(given, ["lost", "refund"])


def test_label_aware_contrast_alone_pushes_the_weight_of_the_true_class_down():
    """Its gradient is positive: the weighting network's cross-entropy has to hold the weight up."""
    torch.manual_seed(0)
    for seed in range(10):
        torch.manual_seed(seed)
        z, y = torch.randn(24, 8, dtype=torch.float64), torch.arange(24) % 3
        logits = torch.randn(24, 3, dtype=torch.float64) + F.one_hot(y, 3)
        weights = logits.softmax(-1).requires_grad_()
        objectives.LabelAware()(z, y, weights).backward()
        assert (weights.grad.gather(1, y[:, None]) > 0).all()
