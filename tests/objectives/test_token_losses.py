"""Which rows a term reads: the first copies of texts, all tokens, or some tokens that are drawn."""

from __future__ import annotations

import math

import pytest
import torch

from closeknit.classification.config import RunConfig
from closeknit.errors import ConfigError
from closeknit.objectives import (
    OBJECTIVES,
    Consistency,
    CrossEntropy,
    Joint,
    ProxyNCA,
    SupCon,
    Term,
    View,
    build_objective,
)
from closeknit.objectives.config import ObjectiveConfig
from closeknit.settings import differences

# the metric losses that can read tokens, with options under which they may
OVER_TOKENS = {
    "triple_entropy": {},
    "soft_triple": {},
    "proxy_nca": {},
    "contrastive": {},
    "supcon": {},
    "triplet": {"mining": "semi_hard"},
}
OVER_PAIRS = ("contrastive", "supcon", "triplet")


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def unit(v):
    norm = math.sqrt(sum(x * x for x in v))
    return [x / norm for x in v]


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


# ---------------------------------------------------------------- CLLD as printed


def oracle_clld(logits, h, y, distance, *, share, over):
    """Equations 4 to 13 of the paper; the cross-entropy runs over the first `over` rows."""
    n = len(h)  # 2M
    sim = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            product = max(math.sqrt(dot(h[i], h[i])) * math.sqrt(dot(h[j], h[j])), 1e-8)
            sim[i][j] = 0.5 * (dot(h[i], h[j]) / product + 1)  # (4)
    t = [[float(i != j and y[i] == y[j]) for j in range(n)] for i in range(n)]  # (6)
    ldmm = [[distance[y[i]][y[j]] for j in range(n)] for i in range(n)]  # (7)
    simldm = [[sim[i][j] * ldmm[i][j] for j in range(n)] for i in range(n)]  # (8)
    contrast = 0.0
    for i in range(n):
        # the diagonal of the similarities is minus infinity (5), so its exponential is 0
        powers = [math.exp(simldm[i][j]) if j != i else 0.0 for j in range(n)]
        for j in range(n):
            z = t[i][j] / sum(t[i])  # (13)
            if z > 0:
                q = powers[j] / sum(powers)  # (12)
                contrast -= z * math.log(q) - z * math.log(z)
    contrast /= n  # (11)
    cross_entropy = 0.0
    for row, label in zip(logits[:over], y[:over], strict=True):
        cross_entropy -= math.log(math.exp(row[label]) / sum(math.exp(v) for v in row))
    cross_entropy /= over  # (10)
    return share * cross_entropy + (1 - share) * contrast, cross_entropy  # (9)


DISTANCE = [[5.0, 9.5, 5.0], [9.5, 5.0, 6.25], [5.0, 6.25, 4.0]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ce_copies", "over"), [("first", 5), ("all", 10)])
def test_clld_is_the_loss_that_the_paper_prints(ce_copies, over, seed):
    given = {} if ce_copies == "first" else {"ce_copies": ce_copies}
    joint = build_objective("clld", 4, 3, {"distance": DISTANCE, "ce_weight": 0.3, **given})
    joint = joint.double()
    logits, h = points(10, 3, seed=seed), points(10, 4, seed=seed + 9)
    y = torch.tensor([0, 1, 2, 0, 2] * 2)  # M texts, and the same texts once more
    total, terms = joint({"logits": View(logits, y), "projected": View(h, y)})
    expected = oracle_clld(logits.tolist(), h.tolist(), y.tolist(), DISTANCE, share=0.3, over=over)
    assert total.item() == pytest.approx(expected[0], abs=1e-12)
    assert terms["cross_entropy"].item() == pytest.approx(expected[1], abs=1e-12)


def test_the_gradient_of_clld_is_that_of_the_numbers():
    joint = build_objective("clld", 4, 3, {"distance": DISTANCE, "ce_weight": 0.3}).double()
    y = torch.tensor([0, 1, 2, 0, 2] * 2)
    logits, h = points(10, 3).requires_grad_(), points(10, 4, seed=1).requires_grad_()

    def loss(logits, h):
        return joint({"logits": View(logits, y), "projected": View(h, y)})[0]

    assert torch.autograd.gradcheck(loss, (logits, h))
    loss(logits, h).backward()
    assert logits.grad[:5].any() and not logits.grad[5:].any()


@pytest.mark.parametrize("name", ["supcon", "lcl", "proxy_nca"])
def test_every_cross_entropy_of_an_objective_reads_the_copies_that_are_asked_for(name):
    joint = build_objective(name, 4, 3, {"copies": 2, "ce_copies": "first"})
    z, y = points(8, 4), torch.tensor([0, 1, 2, 1] * 2)
    views = {view: View(points(8, 3, seed=5) if "logits" in view else z, y) for view in joint.views}
    if "weights" in views:
        views["weights"] = View(points(8, 3, seed=6).softmax(-1), y)
    _, terms = joint(views)
    first = {view: View(rows.z[:4], rows.y[:4]) for view, rows in views.items()}
    read = [term for term in joint.terms if isinstance(term.objective, CrossEntropy)]
    assert len(read) == (2 if name == "lcl" else 1)
    for term in joint.terms:
        if term in read:
            assert terms[term.name] == term.objective(*first[term.view])
        else:
            assert terms[term.name] == term.objective(
                *views[term.view], *(views[other].z for other in term.also)
            )


def test_with_one_copy_the_first_copies_are_all_rows():
    y = torch.tensor([0, 1, 2, 0])
    views = {"logits": View(points(4, 3), y), "projected": View(points(4, 4), y)}
    totals = [
        build_objective("clld", 4, 3, {"copies": 1, "ce_copies": copies})(views)[0]
        for copies in ("first", "all")
    ]
    assert totals[0] == totals[1]


def test_runs_that_were_kept_had_the_cross_entropy_of_all_passes():
    kept = ObjectiveConfig.completed({"name": "clld", "scale": 5.0})
    assert kept["ce_copies"] == "all"
    assert ObjectiveConfig.from_dict(kept).to_dict()["ce_copies"] == "all"
    assert "ce_copies" not in ObjectiveConfig.from_dict(kept).key_content()
    assert ObjectiveConfig("clld").key_content()["ce_copies"] == "first"
    for name in OBJECTIVES:
        content = ObjectiveConfig(name).key_content()
        assert ("ce_copies" in content) == (name == "clld")
        assert ("tokens" in content) == (name == "triple_entropy")
        assert "token_rows" not in content
    used = ObjectiveConfig("supcon", {"tokens": "real", "token_rows": 64, "ce_copies": "first"})
    assert {"tokens", "token_rows", "ce_copies"} <= used.key_content().keys()


def test_a_run_of_clld_that_was_begun_before_is_resumed_with_all_passes_only():
    stored = RunConfig.from_dict({"objective": {"name": "clld", "ce_copies": "all"}}).to_dict()
    del stored["objective"]["ce_copies"]  # the option did not exist
    same = RunConfig.from_dict({"objective": {"name": "clld", "ce_copies": "all"}})
    assert differences(RunConfig, stored, same.to_dict()) == []
    now = RunConfig.from_dict({"objective": {"name": "clld"}})
    said = differences(RunConfig, stored, now.to_dict())
    assert said == ["objective.ce_copies was all and is first"]


# ---------------------------------------------------------------- tokens


def views_of(joint, z, y, classes=3):
    """The rows as tokens or pooled vectors, and logits of some texts."""
    logits = View(points(4, classes, seed=9), torch.arange(4) % classes)
    return {view: logits if view == "logits" else View(z, y) for view in joint.views}


def over_tokens(name, **options):
    torch.manual_seed(0)
    options = {"tokens": "real", **OVER_TOKENS[name], **options}
    return build_objective(name, 8, 3, options).double()


@pytest.mark.parametrize("name", OVER_TOKENS)
@pytest.mark.parametrize(
    ("tokens", "view"),
    [
        ("pooled", "pooled"),
        ("real", "tokens"),
        ("content", "content_tokens"),
        ("all", "all_tokens"),
    ],
)
def test_a_metric_loss_reads_the_rows_that_tokens_names(name, tokens, view):
    joint = over_tokens(name, tokens=tokens)
    assert joint.views == ("logits", view)
    z, y = points(12, 8), torch.arange(12) % 3
    _, terms = joint(views_of(joint, z, y))
    (_, metric) = joint.terms
    assert terms[metric.name] == metric.objective(z, y)


@pytest.mark.parametrize("name", OVER_TOKENS)
def test_rows_that_stand_for_no_token_take_no_part(name):
    joint = over_tokens(name)
    z, y = points(12, 8).requires_grad_(), torch.arange(12) % 3
    gaps = torch.tensor([1, 4, 5, 11])
    whole, _ = joint(views_of(joint, z, y.index_fill(0, gaps, -1)))
    whole.backward()
    kept = torch.tensor([row for row in range(12) if row not in gaps.tolist()])
    alone, _ = joint(views_of(joint, z[kept], y[kept]))
    assert whole.item() == pytest.approx(alone.item(), abs=1e-12)
    assert not z.grad[gaps].any()
    assert z.grad[kept].any(1).all() or name == "triplet"
    nothing, _ = joint(views_of(joint, z, torch.full((12,), -1)))
    nothing.backward()
    assert torch.isfinite(nothing) and torch.isfinite(z.grad).all()


def test_a_view_may_have_gaps_only_where_nobody_has_to_look_for_them():
    for name in OVER_TOKENS:
        assert over_tokens(name).takes_gaps == (name not in OVER_PAIRS)
        assert over_tokens(name).draws_rows == (name in OVER_PAIRS)
    term = {"objective": "SoftTriple", "view": "tokens"}
    for limit, takes_gaps in ((0, True), (64, False)):
        joint = build_objective("joint", 4, 3, {"terms": [{**term, "token_rows": limit}]})
        assert joint.takes_gaps == takes_gaps


def test_proxies_are_compared_with_the_rows_that_have_a_label():
    nca = ProxyNCA(8, 3).double()
    z, y = points(6, 8).requires_grad_(), torch.tensor([0, -1, 2, 1, -1, 0])
    assert torch.autograd.gradcheck(lambda rows: nca(rows, y), (z,))
    assert nca(z, y).item() == pytest.approx(nca(z[y >= 0], y[y >= 0]).item(), abs=1e-12)
    assert nca(z, torch.full((6,), -1)).item() == 0.0


# ---------------------------------------------------------------- drawn rows


def oracle_supcon(z, y, temperature):
    values = []
    for i in range(len(z)):
        others = [a for a in range(len(z)) if a != i]
        positives = [p for p in others if y[p] == y[i]]
        if positives:
            near = {a: dot(unit(z[i]), unit(z[a])) / temperature for a in others}
            below = math.log(sum(math.exp(value) for value in near.values()))
            values.append(-sum(near[p] - below for p in positives) / len(positives))
    return sum(values) / len(values)


def oracle_contrastive(z, y, margin):
    values = []
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            d = math.dist(unit(z[i]), unit(z[j]))
            values.append(0.5 * d * d if y[i] == y[j] else 0.5 * max(0.0, margin - d) ** 2)
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["supcon", "contrastive"])
def test_the_loss_is_that_of_the_tokens_which_were_drawn(name, seed):
    """Rows with a gradient are the drawn ones; the formula over these alone gives the number."""
    joint = over_tokens(name, token_rows=7)
    z = points(30, 8).requires_grad_()
    y = torch.arange(30) % 3
    y[::5] = -1
    _, terms = joint(views_of(joint, z, y), seed=seed)
    terms[name].backward()
    drawn = z.grad.any(1).nonzero()[:, 0]
    assert len(drawn) == 7 and (y[drawn] >= 0).all()
    rows, labels = z[drawn].tolist(), y[drawn].tolist()
    expected = (
        oracle_supcon(rows, labels, 0.3)
        if name == "supcon"
        else oracle_contrastive(rows, labels, 1.0)
    )
    assert terms[name].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("name", OVER_PAIRS)
def test_the_seed_decides_which_tokens_are_drawn(name):
    joint = over_tokens(name, token_rows=9)
    views = views_of(joint, points(40, 8), torch.arange(40) % 3)
    values = [joint(views, seed=seed)[0].item() for seed in (0, 1, 2, 0)]
    assert values[0] == values[3] and len({*values}) == 3
    enough = over_tokens(name, token_rows=40)
    assert enough(views, seed=1)[0] == enough(views, seed=2)[0]  # all are read
    (_, term) = enough.terms
    assert enough(views)[1][term.name] == term.objective(*views["tokens"])


def test_every_token_is_drawn_as_often_as_every_other_one():
    joint = over_tokens("supcon", token_rows=10, temperature=0.5)
    counts = torch.zeros(40)
    for seed in range(400):
        z = points(40, 8).requires_grad_()
        joint(views_of(joint, z, torch.arange(40) % 3), seed=seed)[0].backward()
        counts += z.grad.any(1)
    assert counts.sum() == 4000
    assert counts.min() > 60 and counts.max() < 145  # 100 expected, standard deviation 9


# ---------------------------------------------------------------- what is refused


def build(name, **options):
    return lambda: build_objective(name, 4, 3, options)


def joint_of(**term):
    return build("joint", terms=[{"objective": "CrossEntropy"}, term], copies=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (build("supcon", tokens="pool"), "did you mean pooled"),
        (build("triple_entropy", tokens="vector"), "objective.tokens is vector"),
        (build("supcon", tokens="real", token_rows=1), "a whole number of at least 2"),
        (build("supcon", tokens="real", token_rows=True), "a whole number of at least 2"),
        (build("contrastive", token_rows=64), "tokens is pooled.*to real, content or all"),
        (build("triplet", tokens="real"), "up to 1024 tokens.*mining to hard or semi_hard"),
        (build("supcon", ce_copies="frist"), "ce_copies is frist; did you mean first"),
        (joint_of(objective="SupCon", copies="second"), "copies of the term SupCon is second"),
        (joint_of(objective="SupCon", view="tokens", copies="first"), "leave copies at all"),
        (joint_of(objective="SupCon", token_rows=64), "its view pooled holds whole texts"),
        (joint_of(objective="SupCon", view="tokens", token_rows=-1), "token_rows of the term"),
        (joint_of(objective="SupCon", view="tokens", token_rows=1.5), "token_rows of the term"),
        (
            lambda: Joint([Term("x", 1.0, Consistency(), "logits", copies="first")], copies=2),
            "compares two passes of a text: leave copies at all",
        ),
    ],
)
def test_choices_of_rows_that_cannot_be_made_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def test_terms_of_ones_own_choose_their_rows():
    terms = [
        {"objective": "CrossEntropy", "copies": "first"},
        {"objective": "SupCon", "view": "tokens", "token_rows": 6},
    ]
    joint = build_objective("joint", 8, 3, {"terms": terms, "copies": 2}).double()
    logits, z = points(8, 3), points(20, 8).requires_grad_()
    y = torch.arange(4) % 3
    views = {
        "logits": View(logits, y.repeat(2)),
        "tokens": View(z, torch.arange(20) % 3),
    }
    _, values = joint(views, seed=4)
    assert values["CrossEntropy"] == CrossEntropy()(logits[:4], y)
    values["SupCon"].backward()
    drawn = z.grad.any(1).nonzero()[:, 0]
    assert len(drawn) == 6
    assert torch.equal(values["SupCon"], SupCon()(z[drawn], views["tokens"].y[drawn]))
