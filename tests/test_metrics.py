"""Measures of embeddings against plain loops, cases worked by hand, and what must not change
them.
"""

from __future__ import annotations

import math
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from closeknit import metrics
from closeknit.metrics import (
    alignment,
    anisotropy,
    knn_accuracy,
    pair_cosines,
    pearson,
    probe_accuracy,
    retrieval_scores,
    spearman,
    uniformity,
)

EXACT = {"abs": 1e-10, "rel": 0}


def rows(n, d, seed):
    return np.random.default_rng(seed).normal(size=(n, d))


def rotation(d, seed):
    return np.linalg.qr(rows(d, d, seed))[0]


# ---------------------------------------------------------------- oracles: lists, loops, math


def unit(v):
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def cosine(a, b):
    return sum(p * q for p, q in zip(unit(a), unit(b), strict=True))


def oracle_alignment(a, b, alpha):
    return sum(math.dist(unit(p), unit(q)) ** alpha for p, q in zip(a, b, strict=True)) / len(a)


def oracle_uniformity(z, t):
    terms = [
        math.exp(-t * math.dist(unit(z[i]), unit(z[j])) ** 2)
        for i in range(len(z))
        for j in range(i + 1, len(z))
    ]
    return math.log(sum(terms) / len(terms))


def oracle_anisotropy(z):
    terms = [cosine(z[i], z[j]) for i in range(len(z)) for j in range(i + 1, len(z))]
    return sum(terms) / len(terms)


def oracle_pearson(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    own_a, own_b = sum((x - mean_a) ** 2 for x in a), sum((y - mean_b) ** 2 for y in b)
    return both / math.sqrt(own_a * own_b)


def oracle_ranks(values):
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def oracle_retrieval(queries, documents, relevant, depths):
    mrr, found = 0.0, dict.fromkeys(depths, 0.0)
    for query, own in zip(queries, relevant, strict=True):
        order = sorted(
            range(len(documents)), key=lambda j: (-round(cosine(query, documents[j]), 12), j in own)
        )
        mrr += 1 / (1 + min(order.index(j) for j in own))
        for depth in depths:
            found[depth] += sum(j in own for j in order[:depth]) / len(own)
    n = len(queries)
    return {"mrr": mrr / n} | {f"recall@{depth}": found[depth] / n for depth in depths}


def oracle_knn(train_z, train_y, test_z, test_y, k):
    right = 0
    for row, answer in zip(test_z, test_y, strict=True):
        order = sorted(range(len(train_z)), key=lambda i: (-round(cosine(row, train_z[i]), 12), i))[
            :k
        ]
        votes = [train_y[i] for i in order]
        most = max(votes.count(label) for label in votes)
        right += next(label for label in votes if votes.count(label) == most) == answer
    return right / len(test_z)


# ---------------------------------------------------------------- against the oracles


@pytest.mark.parametrize("alpha", [1, 2, 3.5])
def test_alignment_is_the_mean_power_of_distances(alpha):
    a, b = 3 * rows(9, 4, 0), rows(9, 4, 1)
    assert alignment(a, b, alpha=alpha) == pytest.approx(
        oracle_alignment(a.tolist(), b.tolist(), alpha), **EXACT
    )


@pytest.mark.parametrize("block", [1, 3, 4, 11, 12, 1024])
@pytest.mark.parametrize("t", [0.5, 2, 300])
def test_uniformity_is_the_same_in_blocks_of_any_size(block, t, monkeypatch):
    monkeypatch.setattr(metrics, "_BLOCK", block)
    z = rows(12, 5, 2) + 1  # pairs so near that even exp(-300 d²) is a number
    assert uniformity(z, t=t) == pytest.approx(oracle_uniformity(z.tolist(), t), **EXACT)


def test_uniformity_stays_finite_where_every_term_is_too_small_for_a_number():
    assert uniformity([[1.0, 0.0], [-1.0, 0.0]], t=1000) == pytest.approx(-4000)


def test_anisotropy_is_the_mean_cosine_of_all_pairs():
    z = rows(15, 6, 3) + 0.7
    assert anisotropy(z) == pytest.approx(oracle_anisotropy(z.tolist()), **EXACT)


def test_correlations_match_their_definitions_with_ties():
    generator = random.Random(4)
    a = [generator.choice([0, 1, 2, 2.5, 7]) for _ in range(40)]
    b = [x + generator.choice([-1, 0, 3]) for x in a]
    assert pearson(a, b) == pytest.approx(oracle_pearson(a, b), **EXACT)
    assert spearman(a, b) == pytest.approx(
        oracle_pearson(oracle_ranks(a), oracle_ranks(b)), **EXACT
    )


@pytest.mark.parametrize("block", [1, 3, 1024])
def test_retrieval_matches_ordered_lists(block, monkeypatch):
    monkeypatch.setattr(metrics, "_BLOCK", block)
    generator = random.Random(5)
    documents = rows(11, 3, 6)
    documents[7] = 2 * documents[1]  # equally near to every query
    queries = rows(8, 3, 7)
    relevant = [generator.sample(range(11), generator.randint(1, 4)) for _ in range(7)] + [[1, 7]]
    expected = oracle_retrieval(queries.tolist(), documents.tolist(), relevant, (1, 2, 5, 20))
    assert retrieval_scores(queries, documents, relevant, k=(1, 2, 5, 20)) == pytest.approx(
        expected, **EXACT
    )


@pytest.mark.parametrize("k", [1, 2, 4, 7, 50])
def test_neighbours_vote_as_in_plain_loops(k, monkeypatch):
    monkeypatch.setattr(metrics, "_BLOCK", 4)
    train, test = rows(17, 2, 8), rows(13, 2, 9)
    train[[3, 5]] = train[0]
    generator = random.Random(10)
    train_y = [generator.choice("abc") for _ in train]
    test_y = [generator.choice("abcd") for _ in test]
    expected = oracle_knn(train.tolist(), train_y, test.tolist(), test_y, k)
    assert knn_accuracy(train, train_y, test, test_y, k=k) == pytest.approx(expected, **EXACT)


# ---------------------------------------------------------------- by hand


def test_right_angles_and_opposites_by_hand():
    right_angle, opposite = [[2.0, 0.0], [0.0, 5.0]], [[1.0, 0.0], [-3.0, 0.0]]
    assert alignment([right_angle[0]], [right_angle[1]]) == pytest.approx(2)
    assert alignment([opposite[0]], [opposite[1]], alpha=1) == pytest.approx(2)
    assert uniformity(right_angle) == pytest.approx(-4)
    assert uniformity(opposite, t=1) == pytest.approx(-4)
    assert anisotropy([*right_angle, opposite[1]]) == pytest.approx(-1 / 3)  # cosines 0, -1 and 0
    assert pair_cosines(right_angle, opposite).tolist() == [1, 0]


def test_one_point_is_perfectly_aligned_and_not_uniform_at_all():
    z = np.tile([[0.3, 0.4, 0.5]], (7, 1))
    assert alignment(z, 2 * z) == 0
    assert uniformity(z) == pytest.approx(0, abs=1e-14)
    assert anisotropy(z) == pytest.approx(1)


def test_equal_vectors_tie_exactly_whatever_rounding_did():
    z = rows(300, 40, 14)
    assert set(pair_cosines(z, 3 * z).tolist()) == {1.0}


def test_a_row_of_zeros_has_no_direction():
    z = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert anisotropy(z) == 0
    assert alignment([z[0]], [z[1]]) == 1
    assert uniformity(z[:2]) == pytest.approx(-2)


def test_ranks_by_hand():
    assert spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert spearman([1, 2, 3], [1, 8, 27]) == pytest.approx(1)
    assert pearson([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)


@pytest.mark.parametrize("measure", [spearman, pearson])
def test_a_constant_column_correlates_with_nothing(measure):
    assert measure([1, 1, 1], [1, 2, 3]) == 0
    assert measure([1, 2, 3], [0.1, 0.1, 0.1]) == 0
    assert measure([5], [7]) == 0


def test_very_large_and_very_small_columns_still_correlate():
    assert pearson([1e-300, 2e-300, 3e-300], [-1e308, 0, 1e308]) == pytest.approx(1)


def test_retrieval_by_hand():
    documents = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    scores = retrieval_scores([[1.0, 0.0], [0.0, 1.0]], documents, [[1], [2, 0]], k=(1, 2, 3))
    assert scores == pytest.approx(
        {
            "mrr": (1 / 2 + 1) / 2,
            "recall@1": (0 + 1 / 2) / 2,
            "recall@2": (1 + 1 / 2) / 2,
            "recall@3": 1,
        }
    )


def test_an_encoder_that_maps_all_to_one_point_finds_nothing():
    z = np.tile(rows(1, 50, 11), (40, 1))
    scores = retrieval_scores(z, z, [[i] for i in range(40)])
    assert scores == {"mrr": pytest.approx(1 / 40), "recall@1": 0, "recall@5": 0, "recall@10": 0}


def test_a_tied_vote_goes_to_the_class_of_the_nearest():
    train, y = (
        [[1.0, 0.1], [1.0, 0.3], [1.0, 0.5], [1.0, 0.7], [-1.0, 0.0]],
        ["b", "a", "a", "b", "c"],
    )
    assert knn_accuracy(train, y, [[1.0, 0.0]], ["b"], k=4) == 1
    assert knn_accuracy(train, y, [[1.0, 0.0]], ["a"], k=3) == 1


def test_the_probe_sees_a_dimension_whatever_its_scale():
    z = rows(200, 4, 12) * [1e4, 1, 1, 1e-4]
    y = np.where(z[:, 3] > 0, "up", "down")
    assert probe_accuracy(z[:150], y[:150], z[150:], y[150:]) > 0.9
    assert probe_accuracy(z[:150], y[:150], z[150:], np.full(50, "neither")) == 0


# ---------------------------------------------------------------- what must not matter


vectors = arrays(
    np.float64,
    st.tuples(st.integers(2, 12), st.integers(2, 5)),
    elements=st.floats(-10, 10, width=32),
).filter(lambda z: bool((np.linalg.norm(z, axis=1) > 1e-3).all()))


@given(vectors, st.integers(0, 99))
def test_turning_scaling_and_reordering_change_nothing(z, seed):
    generator = np.random.default_rng(seed)
    turned = z @ rotation(z.shape[1], seed)
    scaled = z * generator.uniform(0.1, 9, size=(len(z), 1))
    order = generator.permutation(len(z))
    for changed in (turned, scaled, z[order]):
        assert uniformity(changed) == pytest.approx(uniformity(z), **EXACT)
        assert anisotropy(changed) == pytest.approx(anisotropy(z), **EXACT)
    partner = rows(*z.shape, seed)
    changes = [
        (turned, partner @ rotation(z.shape[1], seed)),
        (scaled, 3 * partner),
        (z[order], partner[order]),
        (partner, z),
    ]
    for first, second in changes:
        assert alignment(first, second) == pytest.approx(alignment(z, partner), **EXACT)


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=30),
    st.randoms(),
)
def test_correlations_are_bounded_symmetric_and_blind_to_units(pairs, generator):
    a, b = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    shuffled = generator.sample(pairs, len(pairs))
    for measure in (pearson, spearman):
        value = measure(a, b)
        assert -1 <= value <= 1
        assert measure(b, a) == pytest.approx(value, **EXACT)
        assert measure([3 * x + 7 for x in a], b) == pytest.approx(value, **EXACT)
        assert measure([-x for x in a], b) == pytest.approx(-value, **EXACT)
        assert measure([p[0] for p in shuffled], [p[1] for p in shuffled]) == pytest.approx(
            value, **EXACT
        )
    assert spearman([x**3 for x in a], b) == pytest.approx(spearman(a, b), **EXACT)


@given(st.integers(0, 99))
def test_retrieval_and_votes_do_not_depend_on_the_order_or_the_length_of_rows(seed):
    generator = np.random.default_rng(seed)
    queries, documents = rows(6, 4, seed), rows(9, 4, seed + 100)
    relevant = generator.integers(9, size=(6, 2)).tolist()
    order = generator.permutation(9)
    back = np.argsort(order)
    turn = rotation(4, seed)
    moved = [[int(back[j]) for j in own] for own in relevant]
    assert retrieval_scores(2 * queries @ turn, documents[order] @ turn, moved) == pytest.approx(
        retrieval_scores(queries, documents, relevant)
    )
    train_y, test_y = generator.integers(3, size=9), generator.integers(3, size=6)
    assert knn_accuracy(
        documents[order] @ turn, train_y[order], 5 * queries @ turn, test_y, k=3
    ) == knn_accuracy(documents, train_y, queries, test_y, k=3)


# ---------------------------------------------------------------- wrong shapes


def test_what_cannot_be_measured_is_refused():
    z = rows(3, 2, 13)
    refusals = {
        "differ in shape": lambda: alignment(z, z[:2]),
        "expected vectors as rows": lambda: anisotropy(z[0]),
        "not finite": lambda: uniformity(np.where(z == z[0, 0], np.nan, z)),
        "uniformity needs two": lambda: uniformity(z[:1]),
        "anisotropy needs two": lambda: anisotropy(z[:1]),
        "two columns of one length": lambda: spearman([1, 2], [1, 2, 3]),
        "value is not finite": lambda: pearson([1, math.inf], [1, 2]),
        "queries have 2 dimensions": lambda: retrieval_scores(z, rows(3, 4, 0), [[0]] * 3),
        "relevant documents for 1": lambda: retrieval_scores(z, z, [[0]]),
        "query 1 has no relevant": lambda: retrieval_scores(z, z, [[0], [], [1]]),
        "numbers from 0 to 2": lambda: retrieval_scores(z, z, [[0], [3], [1]]),
        "every depth": lambda: retrieval_scores(z, z, [[0]] * 3, k=(0,)),
        "k is 0": lambda: knn_accuracy(z, [0, 1, 1], z, [0, 1, 1], k=0),
        "3 test rows": lambda: knn_accuracy(z, [0, 1, 1], z, [0, 1]),
        "training rows have 2": lambda: probe_accuracy(z, [0, 1, 1], rows(3, 4, 0), [0, 1, 1]),
    }
    for message, attempt in refusals.items():
        with pytest.raises(ValueError, match=message):
            attempt()
