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
    auc,
    classification_scores,
    csls,
    knn_accuracy,
    mcc,
    nearest_accuracy,
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


def oracle_mcc(expected, predicted):
    """Gorodkin's sums over the cells of the confusion matrix."""
    classes = sorted({*expected, *predicted})
    pairs = list(zip(expected, predicted, strict=True))
    cell = {(k, m): sum(pair == (k, m) for pair in pairs) for k in classes for m in classes}
    above = sum(
        cell[k, k] * cell[m, n] - cell[k, m] * cell[n, k]
        for k in classes
        for m in classes
        for n in classes
    )
    rows = {k: sum(cell[k, m] for m in classes) for k in classes}
    columns = {k: sum(cell[m, k] for m in classes) for k in classes}
    below_rows = sum(rows[k] * sum(rows[m] for m in classes if m != k) for k in classes)
    below_columns = sum(columns[k] * sum(columns[m] for m in classes if m != k) for k in classes)
    if not below_rows or not below_columns:
        return 0.0
    return above / (math.sqrt(below_rows) * math.sqrt(below_columns))


def oracle_auc(labels, scores):
    rows = list(zip(labels, scores, strict=True))
    pairs = [(p, n) for y, p in rows if y == 1 for w, n in rows if w == 0]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs) / len(pairs)


def oracle_csls(sources, targets, neighbours):
    def local(row, others):
        nearest = sorted((cosine(row, other) for other in others), reverse=True)[:neighbours]
        return sum(nearest) / len(nearest)

    return [
        [2 * cosine(x, y) - local(x, targets) - local(y, sources) for y in targets] for x in sources
    ]


def oracle_nearest_accuracy(nearness, correct, depth):
    found = 0
    for row, own in zip(nearness, correct, strict=True):
        order = sorted(range(len(row)), key=lambda j: (-round(row[j], 10), j in own))
        found += any(j in own for j in order[:depth])
    return found / len(correct)


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


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_mcc_is_gorodkins_coefficient_and_that_of_scikit_learn(classes):
    from sklearn.metrics import matthews_corrcoef

    generator = random.Random(classes)
    expected = [generator.randrange(classes) for _ in range(60)]
    predicted = [y if generator.random() < 0.5 else generator.randrange(classes) for y in expected]
    assert mcc(expected, predicted) == pytest.approx(oracle_mcc(expected, predicted), **EXACT)
    assert mcc(expected, predicted) == pytest.approx(
        matthews_corrcoef(expected, predicted), **EXACT
    )


def test_auc_counts_pairs_with_ties_as_halves_and_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    generator = random.Random(11)
    labels = [generator.randrange(2) for _ in range(80)]
    scores = [generator.choice([0.1, 0.25, 0.5, 0.9]) + 0.2 * y for y in labels]
    assert auc(labels, scores) == pytest.approx(oracle_auc(labels, scores), **EXACT)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), **EXACT)


@pytest.mark.parametrize("neighbours", [1, 3, 10, 50])
def test_csls_is_the_formula_of_conneau_and_others(neighbours):
    sources, targets = rows(7, 4, 20) + 0.5, 3 * rows(12, 4, 21) + 0.5
    expected = oracle_csls(sources.tolist(), targets.tolist(), neighbours)
    found = csls(sources, targets, neighbours=neighbours)
    assert found == pytest.approx(np.array(expected), **EXACT)


@pytest.mark.parametrize("block", [1, 2, 1024])
@pytest.mark.parametrize("neighbours", [None, 1, 4])
def test_the_nearest_candidates_are_those_of_ordered_lists(block, neighbours, monkeypatch):
    monkeypatch.setattr(metrics, "_BLOCK", block)
    generator = random.Random(22)
    queries, candidates = rows(9, 3, 23) + 0.3, rows(14, 3, 24) + 0.3
    candidates[6] = 2 * candidates[2]  # equally near to every query
    correct = [generator.sample(range(14), generator.randint(1, 3)) for _ in range(8)] + [[6]]
    if neighbours is None:
        nearness = [[cosine(q, c) for c in candidates.tolist()] for q in queries.tolist()]
    else:
        nearness = oracle_csls(queries.tolist(), candidates.tolist(), neighbours)
    found = nearest_accuracy(queries, candidates, correct, k=(1, 2, 5), neighbours=neighbours)
    assert found == {
        f"accuracy@{k}": pytest.approx(oracle_nearest_accuracy(nearness, correct, k))
        for k in (1, 2, 5)
    }


def test_a_class_of_two_has_auc_and_every_classifier_mcc():
    expected, logits = np.array([0, 0, 1, 1]), np.array([[3, 1], [0, 4], [0, 1], [-1, 7.0]])
    scores = classification_scores(expected, logits.argmax(axis=1), ["no", "yes"], logits)
    assert list(scores) == ["accuracy", "weighted_f1", "macro_f1", "mcc", "auc", "n", "per_class"]
    assert scores["mcc"] == pytest.approx(1 / math.sqrt(3))  # 1, 1, 0 and 2 in the four cells
    assert scores["auc"] == 0.75  # the second row is above the third only
    assert "auc" not in classification_scores(expected, expected, ["no", "yes"])
    one = np.array([1, 1, 1, 1])
    assert "auc" not in classification_scores(one, one, ["no", "yes"], logits)
    three = np.hstack([logits, logits[:, :1]])
    assert "auc" not in classification_scores(expected, expected, ["no", "yes", "other"], three)


# ---------------------------------------------------------------- by hand


def test_mcc_and_auc_by_hand():
    assert mcc(["a", "a", "b", "b"], ["a", "a", "b", "b"]) == 1
    assert mcc(["a", "a", "b", "b"], ["b", "b", "a", "a"]) == -1
    assert mcc(["a", "a", "b"], ["a", "a", "a"]) == 0  # it says the same of every row
    assert mcc(["a", "a"], ["a", "a"]) == 0
    # 6 true positives, 3 true negatives, 1 false positive, 2 false negatives
    expected = [1] * 6 + [0] * 3 + [0] + [1] * 2
    predicted = [1] * 6 + [0] * 3 + [1] + [0] * 2
    assert mcc(expected, predicted) == pytest.approx((6 * 3 - 1 * 2) / math.sqrt(7 * 8 * 4 * 5))
    assert auc([0, 1, 0, 1], [1, 2, 3, 4]) == 0.75
    assert auc([True, False], [0.3, 0.3]) == 0.5


def test_csls_takes_a_hub_from_its_place_by_hand():
    # The hub at 45 degrees is nearest to both sources; each has a target 50 degrees away.
    def at(*degrees):
        return [[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees]

    sources, targets = at(0, 90), at(45, -50, 140)
    assert nearest_accuracy(sources, targets, [[1], [2]], k=(1, 2)) == {
        "accuracy@1": 0,
        "accuracy@2": 1,
    }
    scaled = nearest_accuracy(sources, targets, [[1], [2]], k=(1,), neighbours=2)
    assert scaled == {"accuracy@1": 1}


def test_an_encoder_that_maps_all_to_one_point_translates_nothing():
    z = np.tile(rows(1, 5, 25), (9, 1))
    for neighbours in (None, 3):
        found = nearest_accuracy(z, z, [[i] for i in range(9)], neighbours=neighbours)
        assert found == {"accuracy@1": 0, "accuracy@5": 0}


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


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25),
    st.permutations([0, 1, 2, 3]),
)
def test_mcc_is_bounded_symmetric_and_blind_to_names_and_order(pairs, names):
    expected, predicted = ([pair[side] for pair in pairs] for side in (0, 1))
    value = mcc(expected, predicted)
    assert value == pytest.approx(oracle_mcc(expected, predicted), **EXACT)
    assert -1 - 1e-12 <= value <= 1 + 1e-12
    assert mcc(predicted, expected) == pytest.approx(value, **EXACT)
    renamed = [[names[c] for c in column] for column in (expected, predicted)]
    assert mcc(*renamed) == pytest.approx(value, **EXACT)
    assert mcc(expected[::-1], predicted[::-1]) == pytest.approx(value, **EXACT)
    if {*expected, *predicted} <= {0, 1}:  # then it is the correlation of the two columns
        assert value == pytest.approx(pearson(expected, predicted), **EXACT)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-20, 20)), min_size=2, max_size=25).filter(
        lambda rows: len({label for label, _ in rows}) == 2
    )
)
def test_auc_is_bounded_blind_to_units_and_turns_round_with_the_labels(pairs):
    labels, scores = ([pair[side] for pair in pairs] for side in (0, 1))
    value = auc(labels, scores)
    assert value == pytest.approx(oracle_auc(labels, scores), **EXACT)
    assert 0 <= value <= 1
    assert auc(labels, [x**3 + 5 for x in scores]) == pytest.approx(value, **EXACT)
    assert auc([not y for y in labels], scores) == pytest.approx(1 - value, **EXACT)
    assert auc(labels, [-x for x in scores]) == pytest.approx(1 - value, **EXACT)


@given(st.integers(0, 99), st.integers(1, 9))
def test_csls_does_not_depend_on_the_order_or_the_length_of_rows(seed, neighbours):
    generator = np.random.default_rng(seed)
    sources, targets = rows(5, 3, seed), rows(7, 3, seed + 100)
    order = generator.permutation(7)
    turn = rotation(3, seed)
    value = csls(sources, targets, neighbours=neighbours)
    moved = csls(2 * sources @ turn, 5 * targets[order] @ turn, neighbours=neighbours)
    assert moved == pytest.approx(value[:, order], **EXACT)
    # Scaling is symmetric: it does not matter which side is called the source.
    assert pytest.approx(value, **EXACT) == csls(targets, sources, neighbours=neighbours).T


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
        "candidates have 4|documents 4": lambda: nearest_accuracy(z, rows(3, 4, 0), [[0]] * 3),
        "neighbours is 0": lambda: csls(z, z, neighbours=0),
        "targets 4": lambda: csls(z, rows(3, 4, 0)),
        "neither 0 nor 1": lambda: auc([0, 1, 2], [1, 2, 3]),
        "all rows have one label": lambda: auc([1, 1, 1], [1, 2, 3]),
        r"shapes \(2,\) and \(1,\)": lambda: mcc([0, 1], [0]),
        "training rows have 2": lambda: probe_accuracy(z, [0, 1, 1], rows(3, 4, 0), [0, 1, 1]),
    }
    for message, attempt in refusals.items():
        with pytest.raises(ValueError, match=message):
            attempt()
