"""Every objective against an oracle written from its formula: lists, loops and math, in float64."""

from __future__ import annotations

import math

import pytest
import torch

from closeknit.errors import ConfigError
from closeknit.objectives import (
    BinaryCrossEntropy,
    Consistency,
    Contrastive,
    InfoNCE,
    LabelAware,
    LabelDistance,
    MeanSquared,
    MultipleNegatives,
    NTXent,
    ProxyNCA,
    SupCon,
    Triplet,
    View,
    build_objective,
)


def unit(v):
    norm = math.sqrt(sum(x * x for x in v))
    return [x / norm for x in v]


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def oracle_contrastive(z, y, *, margin):
    values = []
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            d = math.dist(unit(z[i]), unit(z[j]))
            values.append(0.5 * d * d if y[i] == y[j] else 0.5 * max(0.0, margin - d) ** 2)
    return sum(values) / len(values)


def oracle_triplet(z, y, *, margin, mining):
    def d(i, j):
        return math.dist(unit(z[i]), unit(z[j])) ** 2

    n, values = len(z), []
    for a in range(n):
        positives = [p for p in range(n) if p != a and y[p] == y[a]]
        negatives = [q for q in range(n) if y[q] != y[a]]
        if mining == "hard":
            if positives and negatives:
                gap = max(d(a, p) for p in positives) - min(d(a, q) for q in negatives) + margin
                values.append(max(0.0, gap))
            continue
        for p in positives:
            for q in negatives:
                if mining == "all" or d(a, p) < d(a, q) < d(a, p) + margin:
                    values.append(max(0.0, d(a, p) - d(a, q) + margin))
    return sum(values) / len(values) if values else 0.0


def oracle_proxy_nca(z, proxies, y, *, scale, squared):
    total = 0.0
    for row, label in zip(z, y, strict=True):
        d = [math.dist(unit(row), unit(p)) ** (2 if squared else 1) for p in proxies]
        below = sum(math.exp(-scale * d[c]) for c in range(len(proxies)) if c != label)
        total -= math.log(math.exp(-scale * d[label]) / below)
    return total / len(z)


def oracle_supcon(z, y, *, temperature, weights=None):
    """SupCon; with weights, the label-aware form."""
    n, values = len(z), []
    for i in range(n):
        partners = [p for p in range(n) if p != i and y[p] == y[i]]
        if not partners:
            continue
        w = weights[i] if weights else [1.0] * (max(y) + 1)
        below = sum(
            w[y[a]] * math.exp(dot(unit(z[i]), unit(z[a])) / temperature)
            for a in range(n)
            if a != i
        )
        own = [
            w[y[i]] * (dot(unit(z[i]), unit(z[p])) / temperature - math.log(below))
            for p in partners
        ]
        values.append(-sum(own) / len(partners))
    return sum(values) / len(values)


def oracle_label_distance(z, y, distance):
    n, values = len(z), []
    for i in range(n):
        partners = [p for p in range(n) if p != i and y[p] == y[i]]
        if not partners:
            continue
        s = [0.5 * (dot(unit(z[i]), unit(z[j])) + 1) * distance[y[i]][y[j]] for j in range(n)]
        below = sum(math.exp(s[j]) for j in range(n) if j != i)
        share = 1 / len(partners)
        values.append(
            sum(share * (math.log(share) - math.log(math.exp(s[p]) / below)) for p in partners)
        )
    return sum(values) / len(values)


def oracle_ranking(z, *, scale, cosine=True, hard_weight=0.0, y=None, negative_y=None):
    """The first view of each text choosing its second among all second (and third) views."""

    def near(a, b):
        return scale * (dot(unit(a), unit(b)) if cosine else dot(a, b))

    B, total = len(z[0]), 0.0
    for i in range(B):
        columns = []
        for view in range(1, len(z)):
            for j in range(B):
                if y is not None and j != i and y[j] == y[i]:
                    continue
                if view == 2 and negative_y is not None and negative_y[j] == y[i]:
                    continue
                bonus = hard_weight if view == 2 and j == i else 0.0
                columns.append(math.exp(near(z[0][i], z[view][j]) + bonus))
        total -= math.log(math.exp(near(z[0][i], z[1][i])) / sum(columns))
    return total / B


def oracle_push(z, *, temperature, y=None):
    """The log of the sum over the views of the other texts, over rows that have any."""
    B = len(z[0])
    rows, values = [*z[0], *z[1]], []
    for i in range(2 * B):
        below = [
            math.exp(dot(unit(rows[i]), unit(rows[a])) / temperature)
            for a in range(2 * B)
            if a % B != i % B and (y is None or y[a % B] != y[i % B])
        ]
        if below:
            values.append(math.log(sum(below)))
    return sum(values) / len(values)


def oracle_nt_xent(z, *, temperature, y=None):
    B = len(z[0])
    rows, total = [*z[0], *z[1]], 0.0
    for i in range(2 * B):
        partner, below = (i + B) % (2 * B), 0.0
        for a in range(2 * B):
            if a == partner or (a != i and (y is None or y[a % B] != y[i % B])):
                below += math.exp(dot(unit(rows[i]), unit(rows[a])) / temperature)
        total -= math.log(math.exp(dot(unit(rows[i]), unit(rows[partner])) / temperature) / below)
    return total / (2 * B)


# One row alone in its class (the last but three, and the last), so that rows without a positive are always met.
Y = torch.tensor([0, 1, 0, 2, 1, 0, 3])


def points(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
def test_contrast_of_rows(seed):
    z, y = points(7, 5, seed=seed), Y.tolist()
    weights = torch.softmax(points(7, 4, seed=seed + 10), -1)
    for ours, expected in [
        (Contrastive(margin=1.3)(z, Y), oracle_contrastive(z.tolist(), y, margin=1.3)),
        (SupCon(temperature=0.45)(z, Y), oracle_supcon(z.tolist(), y, temperature=0.45)),
        (
            LabelAware(temperature=0.45)(z, Y, weights),
            oracle_supcon(z.tolist(), y, temperature=0.45, weights=weights.tolist()),
        ),
    ]:
        assert ours.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mining", ["all", "hard", "semi_hard"])
def test_triplets(seed, mining):
    z = points(7, 5, seed=seed)
    expected = oracle_triplet(z.tolist(), Y.tolist(), margin=0.7, mining=mining)
    assert expected > 0
    assert Triplet(margin=0.7, mining=mining)(z, Y).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("squared", [False, True])
def test_proxy_nca(seed, squared):
    z = points(7, 5, seed=seed)
    nca = ProxyNCA(5, 4, scale=2.5, squared=squared).double()
    nca.proxies.data *= 0.3  # the length of a proxy must not matter
    expected = oracle_proxy_nca(
        z.tolist(), nca.proxies.tolist(), Y.tolist(), scale=2.5, squared=squared
    )
    assert nca(z, Y).item() == pytest.approx(expected, abs=1e-10)


def test_proxy_nca_drops_no_row_for_underflow():
    nca = ProxyNCA(2, 2, scale=60.0, squared=True)
    nca.proxies.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert nca(torch.tensor([[-1.0, 0.0]]), torch.tensor([0])).item() == pytest.approx(240.0)


@pytest.mark.parametrize("seed", range(3))
def test_label_distance(seed):
    z, matrix = points(7, 5, seed=seed), points(4, 4, seed=seed + 20).abs() * 4
    objective = LabelDistance(4, scale=3.0).double()
    objective.set_distance(matrix)
    expected = oracle_label_distance(z.tolist(), Y.tolist(), matrix.tolist())
    assert objective(z, Y).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("labelled", [False, True])
def test_views_of_texts(seed, labelled):
    y = torch.tensor([0, 1, 0, 2, 1]) if labelled else None
    names = y.tolist() if y is not None else None
    for V in (2, 3):
        z = points(V, 5, 4, seed=seed)
        expected = oracle_ranking(z.tolist(), scale=1 / 0.3, hard_weight=0.8, y=names)
        assert InfoNCE(temperature=0.3, hard_weight=0.8)(z, y).item() == pytest.approx(
            expected, abs=1e-10
        )
        for similarity in ("cosine", "dot"):
            expected = oracle_ranking(z.tolist(), scale=3.0, cosine=similarity == "cosine", y=names)
            ours = MultipleNegatives(scale=3.0, similarity=similarity)(z, y)
            assert ours.item() == pytest.approx(expected, abs=1e-10)
    z = points(2, 5, 4, seed=seed)
    expected = oracle_nt_xent(z.tolist(), temperature=0.2, y=names)
    assert NTXent(temperature=0.2)(z, y).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_a_hard_negative_that_belongs_to_a_row_is_no_negative_of_it(seed):
    z = points(3, 5, 4, seed=seed)
    y = [0, 1, 0, 2, 3]
    # The first row's negative is its own positive, the third's is the second's, the others' are none.
    negatives = [0, -1, 1, -1, -1]
    labels = torch.tensor([y, y, negatives])
    expected = oracle_ranking(z.tolist(), scale=1 / 0.3, hard_weight=0.8, y=y, negative_y=negatives)
    found = InfoNCE(temperature=0.3, hard_weight=0.8)(z, labels)
    assert found.item() == pytest.approx(expected, abs=1e-10)
    expected = oracle_ranking(z.tolist(), scale=3.0, y=y, negative_y=negatives)
    assert MultipleNegatives(scale=3.0)(z, labels).item() == pytest.approx(expected, abs=1e-10)
    unnamed = torch.tensor([y, y, [-1] * 5])  # negatives that belong to no row
    assert torch.equal(InfoNCE()(z, unnamed), InfoNCE()(z, torch.tensor(y)))
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda views: InfoNCE(temperature=0.5)(views, labels), (z,))


def test_labels_of_two_views_are_one_row():
    with pytest.raises(ConfigError, match="labels of shape"):
        NTXent()(points(2, 5, 4), torch.zeros(2, 5, dtype=torch.long))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("labelled", [False, True])
def test_negatives_alone_only_push(seed, labelled):
    y = torch.tensor([0, 1, 0, 2, 1]) if labelled else None
    names = y.tolist() if y is not None else None
    z = points(2, 5, 4, seed=seed)
    objective = NTXent(temperature=0.2, pull=False)
    expected = oracle_push(z.tolist(), temperature=0.2, y=names)
    assert objective(z, y).item() == pytest.approx(expected, abs=1e-10)
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda views: objective(views, y), (z,), atol=1e-4)


def test_negatives_alone_worked_by_hand():
    # Two texts at a right angle: each row has two views of the other text, both with cosine 0.
    views = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    objective = NTXent(temperature=1.0, pull=False)
    assert objective(views).item() == pytest.approx(math.log(2))
    # A row whose text shares its label with all others has nothing to be pushed away from.
    nothing = views.clone().requires_grad_()
    loss = objective(nothing, torch.tensor([5, 5]))
    loss.backward()
    assert loss.item() == 0.0
    assert not nothing.grad.any()


def test_pair_scores():
    scores, y = points(6), points(6, seed=1).abs()
    expected = sum((a - b) ** 2 for a, b in zip(scores.tolist(), y.tolist(), strict=True)) / 6
    assert MeanSquared()(scores[:, None], y).item() == pytest.approx(expected, abs=1e-10)
    truth = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.5])
    chance = [1 / (1 + math.exp(-s)) for s in scores.tolist()]
    each = [
        -t * math.log(p) - (1 - t) * math.log(1 - p)
        for p, t in zip(chance, truth.tolist(), strict=True)
    ]
    assert BinaryCrossEntropy()(scores, truth).item() == pytest.approx(sum(each) / 6, abs=1e-10)
    assert (
        MeanSquared()(scores[:0], y[:0]).item()
        == BinaryCrossEntropy()(scores[:0], y[:0]).item()
        == 0.0
    )


def test_cases_worked_by_hand():
    def rows(*values):
        return torch.tensor(values, dtype=torch.float64)

    right = rows([3.0, 0.0], [0.0, 2.0])
    assert Contrastive()(right, torch.tensor([0, 0])).item() == pytest.approx(1.0)  # d^2 = 2
    assert Contrastive()(right, torch.tensor([0, 1])).item() == 0.0  # d = 1.414, beyond the margin
    trio = rows([1.0, 0.0], [0.0, 1.0], [-1.0, 0.0])
    # row 0 has the gap 2 - 4 + 3 = 1, row 1 has 2 - 2 + 3 = 3, row 2 has no positive
    assert Triplet(margin=3.0)(trio, torch.tensor([0, 0, 1])).item() == pytest.approx(2.0)
    pairs, y = rows([1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]), torch.tensor([0, 0, 1, 1])
    assert SupCon(temperature=1.0)(pairs, y).item() == pytest.approx(
        -math.log(math.e / (math.e + 2))
    )
    # similarities 1 and 1/2, times 2: the one positive against two negatives
    assert LabelDistance(2, scale=2.0)(pairs, y).item() == pytest.approx(
        math.log(1 + 2 * math.exp(-1))
    )
    sure = rows([1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0])  # weights: nothing is ever mistaken
    assert LabelAware(temperature=1.0)(pairs, y, sure).item() == pytest.approx(0.0, abs=1e-12)
    nca = ProxyNCA(2, 2).double()
    nca.proxies.data = rows([1.0, 0.0], [0.0, 1.0])
    assert nca(rows([5.0, 0.0]), torch.tensor([0])).item() == pytest.approx(-math.sqrt(2))
    views = torch.stack([rows([1.0, 0.0], [0.0, 1.0])] * 2)
    assert InfoNCE(temperature=1.0)(views).item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert NTXent(temperature=1.0)(views).item() == pytest.approx(math.log(math.e + 2) - 1)
    assert MultipleNegatives(scale=1.0)(views).item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_identities_between_objectives():
    z, y = points(7, 5), Y
    supcon = SupCon(temperature=0.4)(z, y).item()
    counts = [int((y == label).sum()) - 1 for label in y if (y == label).sum() > 1]
    spread = sum(math.log(n) for n in counts) / len(counts)
    # one distance for all classes is the KL form of SupCon at temperature 2 / distance
    assert LabelDistance(4, scale=5.0).double()(z, y).item() == pytest.approx(
        supcon - spread, abs=1e-9
    )
    # equal weights are SupCon times a constant, and a constant
    equal = torch.full((7, 4), 0.25, dtype=torch.float64)
    assert LabelAware(temperature=0.4)(z, y, equal).item() == pytest.approx(
        0.25 * (supcon - math.log(4)), abs=1e-9
    )
    # with every text a class of its own, NT-Xent is SupCon on the two views
    views, own = points(2, 5, 4), torch.arange(5).repeat(2)
    both = SupCon(temperature=0.3)(views.flatten(0, 1), own).item()
    assert NTXent(temperature=0.3)(views).item() == pytest.approx(both, abs=1e-10)
    # InfoNCE at temperature t is multiple negatives at scale 1 / t
    assert InfoNCE(temperature=0.2)(views).item() == pytest.approx(
        MultipleNegatives(scale=5.0)(views).item()
    )


def test_second_oracles_from_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    z, views = points(7, 5), points(2, 5, 4)
    assert SupCon(temperature=0.4)(z, Y).item() == pytest.approx(
        losses.SupConLoss(temperature=0.4)(z, Y).item(), abs=1e-8
    )
    theirs = losses.NTXentLoss(temperature=0.3)(
        views.flatten(0, 1), torch.arange(5).repeat(2)
    ).item()
    assert NTXent(temperature=0.3)(views).item() == pytest.approx(theirs, abs=1e-8)


def oracle_consistency(logits):
    def chances(row):
        total = sum(math.exp(x) for x in row)
        return [math.exp(x) / total for x in row]

    half, values = len(logits) // 2, []
    for a, b in zip(logits[:half], logits[half:], strict=True):
        p, q = chances(a), chances(b)
        there = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
        back = sum(y * math.log(y / x) for x, y in zip(p, q, strict=True))
        values.append((there + back) / 2)
    return sum(values) / len(values)


def test_consistency():
    logits, objective = points(8, 3), Consistency()
    assert objective(logits).item() == pytest.approx(oracle_consistency(logits.tolist()), abs=1e-10)
    assert objective(logits[:4].repeat(2, 1)).item() == 0.0
    worked = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64)
    assert objective(worked).item() == pytest.approx(math.log(3) / 8, abs=1e-12)
    assert torch.autograd.gradcheck(objective, (logits.requires_grad_(),))
    with pytest.raises(ValueError, match="two for each text"):
        objective(logits[:3])


def test_auto_is_the_sum_of_its_terms():
    z, logits, y = points(10, 5), points(10, 3, seed=1), torch.tensor([0, 1, 2, 1, 0]).repeat(2)
    joint = build_objective("auto", 5, 3, {"contrast": 0.3, "temperature": 0.2, "consistency": 2.0})
    assert joint.copies == 2 and not list(joint.parameters())
    total, terms = joint({"logits": View(logits, y), "pooled": View(z, y)})
    plain = torch.nn.functional.cross_entropy(logits, y)
    expected = (
        plain + 0.3 * SupCon(temperature=0.2)(z, y) + 2.0 * oracle_consistency(logits.tolist())
    )
    assert total.item() == pytest.approx(expected.item(), abs=1e-10)
    assert set(terms) == {"cross_entropy", "supcon", "consistency"}


ROW_OBJECTIVES = [
    Contrastive(margin=1.3), Triplet(margin=0.7), Triplet(margin=0.7, mining="hard"),
    Triplet(margin=1.7, mining="semi_hard"), SupCon(temperature=0.4), LabelDistance(4, scale=3.0),
    ProxyNCA(5, 4, scale=2.0), ProxyNCA(5, 4, squared=True),
]  # fmt: skip


@pytest.mark.parametrize(
    "objective", ROW_OBJECTIVES, ids=lambda o: type(o).__name__ + getattr(o, "mining", "")
)
def test_gradients_of_row_objectives(objective):
    objective = objective.double()
    names = [name for name, _ in objective.named_parameters()]
    own = [p.detach().clone().requires_grad_() for p in objective.parameters()]

    def loss(rows, *more):
        return torch.func.functional_call(objective, dict(zip(names, more, strict=True)), (rows, Y))

    assert torch.autograd.gradcheck(loss, (points(7, 5).requires_grad_(), *own))


def test_gradients_reach_the_weights_and_the_views():
    weights = torch.softmax(points(7, 4, seed=3), -1).requires_grad_()
    aware = LabelAware(temperature=0.4)
    assert torch.autograd.gradcheck(
        lambda z, w: aware(z, Y, w), (points(7, 5).requires_grad_(), weights)
    )
    for objective, V in (
        (InfoNCE(temperature=0.5, hard_weight=0.3), 3),
        (MultipleNegatives(scale=2.0), 3),
        (NTXent(), 2),
    ):
        assert torch.autograd.gradcheck(objective, (points(V, 4, 3).requires_grad_(),), atol=1e-4)


@pytest.mark.parametrize(
    "objective",
    [InfoNCE(), NTXent(), NTXent(pull=False), MultipleNegatives()],
    ids=lambda o: type(o).__name__,
)
@pytest.mark.parametrize("case", ["equal", "zero", "huge", "tiny", "one text", "no text", "half"])
def test_view_objectives_stay_finite(objective, case):
    z = points(2, 6, 4).float()
    cases = {"equal": torch.ones_like(z), "zero": z * 0, "huge": z * 1e4, "tiny": z * 1e-8, "one text": z[:, :1],
             "no text": z[:, :0], "half": z.half()}  # fmt: skip
    z = cases[case].clone().requires_grad_()
    loss = objective(z)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()
    assert loss.dtype == torch.float32


@pytest.mark.parametrize(
    "objective", [*ROW_OBJECTIVES[:6], LabelAware()], ids=lambda o: type(o).__name__
)
def test_a_batch_with_nothing_to_compare_is_an_exact_zero_that_back_propagates(objective):
    z = points(3, 5).float().requires_grad_()
    y = torch.tensor([0, 1, 2])
    extra = (torch.full((3, 4), 0.25),) if isinstance(objective, LabelAware) else ()
    if isinstance(objective, Contrastive):
        z, y = z[:1], y[:1]  # pairs of other classes are something to compare
    loss = objective.float()(z, y, *extra)
    assert loss.item() == 0.0
    loss.backward()


# ---------------------------------------------------------------- label distance


def test_the_label_distance_follows_the_confusions():
    objective = LabelDistance(3, scale=4.0)
    assert torch.equal(objective.distance, torch.full((3, 3), 4.0))
    # row-normalised off the diagonal: (0, .2, 0), (0, 0, .5), 0; symmetrised .1 and .25; over the largest .4 and 1
    objective.update(torch.tensor([[8, 2, 0], [0, 5, 5], [0, 0, 0]]), strength=0.5)
    expected = torch.tensor([[4.0, 4.8, 4.0], [4.8, 4.0, 6.0], [4.0, 6.0, 4.0]])
    assert torch.allclose(objective.distance, expected)
    objective.update(torch.eye(3) * 7, strength=1.0)  # nothing confused
    assert torch.equal(objective.distance, torch.full((3, 3), 4.0))


def test_what_was_learned_are_the_pairs_with_another_distance():
    objective = LabelDistance(3, scale=4.0)
    assert objective.learned() == []
    objective.update(torch.tensor([[5.0, 1, 0], [0, 5, 0], [0, 0, 5]]), 1.0)
    assert objective.learned() == [(0, 1, 8.0)]


def test_permuting_the_classes_permutes_the_distance():
    order = torch.tensor([2, 0, 1])
    confusion = torch.randint(0, 9, (3, 3), generator=torch.Generator().manual_seed(0))
    a, b = LabelDistance(3), LabelDistance(3)
    a.update(confusion, 0.7)
    b.update(confusion[order][:, order], 0.7)
    assert torch.allclose(a.distance[order][:, order], b.distance)


def test_a_distance_can_be_given_by_file_matrix_or_pairs(tmp_path):
    path = tmp_path / "distance.csv"
    path.write_text("class,b,a\na,3,1\nb,1,2.5\n")

    def distance(**options):
        joint = build_objective("clld", 4, 2, options, labels=["a", "b"])
        return joint.objectives["label_distance"].distance.tolist()

    assert distance(distance=str(path)) == [[1.0, 3.0], [2.5, 1.0]]
    assert distance(distance=[[1.0, 2.0], [2.0, 1.0]]) == [[1.0, 2.0], [2.0, 1.0]]
    assert distance(confusable=[["b", "a"]], scale=3.0) == [[3.0, 6.0], [6.0, 3.0]]
    for options, words in [
        ({"distance": "no.csv"}, "does not exist"),
        ({"distance": str(tmp_path)}, "cannot be read"),
        ({"distance": {"a": {"b": 2.0}}}, "is a table"),
        ({"distance": [[1.0]]}, "there are 2 classes"),
        ({"distance": [[1.0, -2.0], [1.0, 1.0]]}, "negative"),
        ({"confusable": [["a", "c"]]}, "unknown class c"),
        ({"confusable": ["ab"]}, "list of pairs"),
        ({"confusable": [["a", "b"]], "distance": [[1.0, 1.0], [1.0, 1.0]]}, "not both"),
    ]:
        with pytest.raises(ConfigError, match=words):
            distance(**options)
    path.write_text("class,b\na,3\n")
    with pytest.raises(ConfigError, match="no row or no column for the class a"):
        distance(distance=str(path))


def test_an_adaptation_waits_and_then_comes_in_turns():
    joint = build_objective("clld", 4, 2, {"update_every": 3})
    confusion = torch.tensor([[3, 1], [1, 3]])
    assert [n for n in range(1, 21) if joint.observe(confusion, n, n / 20)] == [5, 8, 11, 14, 17]
    usual = build_objective("clld", 4, 2, {})  # with ten epochs, and an evaluation after each
    assert [n for n in range(1, 11) if usual.observe(confusion, n, n / 10)] == list(range(3, 10))
    assert not usual.observe(confusion, 1, 1.0)  # at the end it would do nothing
    assert build_objective("clld", 4, 2, {"adaptive": False}).adaptation is None
    assert build_objective("clld", 4, 2, {"distance": [[1.0, 1.0], [1.0, 1.0]]}).adaptation is None
