"""Close classes against answers worked out by hand, and against oracles in plain Python."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.classification.label_relations import (
    DESCRIBE,
    MERGE,
    find_splits,
    relate_directions,
    relate_labels,
)
from closeknit.objectives.losses.label_distance import read_distances


def arrays(*rows):
    expected, predicted = zip(*rows, strict=True)
    return np.array(expected), np.array(predicted)


def test_closeness_is_the_mean_share_of_both_directions():
    # 4 rows of a, of which 1 is answered b; 2 rows of b, of which 1 is answered a
    expected, predicted = arrays((0, 0), (0, 0), (0, 0), (0, 1), (1, 1), (1, 0), (2, 2))
    found = relate_labels(["a", "b", "c"], expected, predicted)
    assert found.closeness[0, 1] == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert found.closeness[0, 2] == found.closeness[1, 2] == 0
    closest = found.pairs[0]
    assert (closest.first, closest.second) == ("a", "b")
    assert (closest.first_as_second, closest.second_as_first) == (1, 1)
    assert closest.share == pytest.approx(2 / 6)
    assert closest.told_apart is None and closest.advice == ""  # only two rows of b


def test_probabilities_tell_more_than_answers():
    probabilities = np.array([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    found = relate_labels(
        ["a", "b", "c"], np.array([0, 1, 2]), np.array([0, 1, 2]), probabilities=probabilities
    )
    assert found.closeness[0, 1] == pytest.approx((0.4 + 0.1) / 2)
    assert found.counts is not None and found.counts[0, 1] == 0


def test_a_class_without_rows_takes_the_other_direction_alone():
    found = relate_labels(["a", "b"], np.array([0, 0]), np.array([0, 1]))
    assert found.closeness[0, 1] == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40),
    st.booleans(),
)
def test_closeness_equals_loops_over_rows(answers, soft):
    classes = 4
    expected, predicted = arrays(*answers)
    rng = np.random.default_rng(len(answers))
    probabilities = rng.dirichlet(np.ones(classes), len(answers)) if soft else None
    found = relate_labels(list("abcd"), expected, predicted, probabilities=probabilities)
    for i in range(classes):
        for j in range(classes):
            means = []
            for one, other in ((i, j), (j, i)):
                rows = [r for r in range(len(answers)) if expected[r] == one]
                if rows and probabilities is not None:
                    means.append(sum(probabilities[r][other] for r in rows) / len(rows))
                elif rows:
                    means.append(sum(predicted[r] == other for r in rows) / len(rows))
            wanted = sum(means) / len(means) if means and i != j else 0.0
            assert found.closeness[i, j] == pytest.approx(wanted, abs=1e-12)


def answers_of(counts):
    rows = [(i, j) for i, row in enumerate(counts) for j, n in enumerate(row) for _ in range(n)]
    return arrays(*rows)


@pytest.mark.parametrize(
    ("counts", "advice"),
    [
        ([[6, 4], [4, 6]], MERGE),  # told apart in 60 %
        ([[9, 1], [1, 9]], DESCRIBE),  # 10 % confused
        ([[10, 0], [9, 1]], DESCRIBE),  # one class takes the rows of the other: not the same thing
        ([[40, 1], [0, 40]], ""),
        ([[3, 1], [1, 3]], ""),  # too few rows
    ],
)
def test_advice(counts, advice):
    found = relate_labels(["a", "b"], *answers_of(counts))
    assert found.pairs[0].advice == advice
    assert [pair.first for pair in found.pairs_to(advice)] == ["a"]


def test_examples_are_the_most_certain_mistakes():
    probabilities = np.array([[0.4, 0.6], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8]])
    found = relate_labels(
        ["a", "b"],
        np.array([0, 0, 0, 1]),
        np.array([1, 1, 1, 1]),
        probabilities=probabilities,
        texts=["unsure", "sure", "half", "right"],
    )
    assert [example.text for example in found.pairs[0].examples] == ["sure", "half"]


def test_the_tree_joins_the_closest_classes_first():
    found = relate_directions(["a", "b", "c", "d"], np.array([[1, 0], [1, 0.1], [-1, 0], [-1, 1]]))
    first = found.merges()[0]
    assert {first[0], first[1]} == {0, 1}
    assert len(found.merges()) == 3
    assert sorted(found.order()) == [0, 1, 2, 3]
    assert abs(found.order().index(0) - found.order().index(1)) == 1
    names = [line.rsplit("─ ", 1)[-1] for line in found.tree().splitlines() if "─ " in line]
    assert sorted(names) == ["a", "b", "c", "d"]


def test_a_single_class_has_no_tree_and_no_pairs():
    found = relate_labels(["only"], np.array([0, 0]), np.array([0, 0]))
    assert found.pairs == [] and found.merges() == [] and found.tree() == "─ only"


def test_two_groups_within_a_class_are_found_and_one_cloud_is_not():
    rng = np.random.default_rng(0)
    centers = np.eye(8)[:3] * 4
    two = np.concatenate(
        [centers[0] + rng.normal(size=(20, 8)), centers[1] + rng.normal(size=(15, 8))]
    )
    one = centers[2] + rng.normal(size=(40, 8))
    vectors = np.concatenate([two, one])
    expected = np.array([0] * 35 + [1] * 40)
    texts = [f"row {i}" for i in range(75)]
    found = find_splits(["two", "one"], expected, vectors, texts)
    assert [split.label for split in found] == ["two"]
    assert sorted(found[0].rows) == [15, 20]
    first, second = found[0].examples
    groups = [{int(text.split()[1]) < 20 for text in part} for part in (first, second)]
    assert all(len(group) == 1 for group in groups) and groups[0] != groups[1]


def test_wrong_answers_are_no_group_of_their_own():
    rng = np.random.default_rng(0)
    vectors = np.concatenate(
        [rng.normal(size=(30, 8)) + 5 * np.eye(8)[0], rng.normal(size=(30, 8)) - 5]
    )
    expected = np.zeros(60, dtype=np.int64)
    predicted = np.array([0] * 30 + [1] * 30)
    assert relate_labels(["a", "b"], expected, predicted, vectors=vectors).splits == []
    assert relate_labels(["a", "b"], expected, expected, vectors=vectors).splits != []


def test_saved_distances_are_read_by_the_objective(tmp_path):
    labels = ["a, b", "ü", "c"]
    found = relate_labels(labels, *answers_of([[6, 4, 0], [2, 8, 0], [0, 0, 5]]))
    found.save(tmp_path / "new")
    distances = np.array(read_distances(str(tmp_path / "new" / "label-distance.csv"), labels))
    assert distances == pytest.approx(found.distance(), abs=1e-6)
    assert distances[0, 1] == pytest.approx(10.0) and distances[2, 2] == pytest.approx(5.0)
    with (tmp_path / "new" / "closeness.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == ["", *labels]


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def golden(request):
    return request.config.rootpath / "tests" / "golden" / "format1"


def run_labels(capsys, *arguments):
    from closeknit.cli import app

    app(["labels", *map(str, arguments)], standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["classifier", "mean", "neighbours", "textcnn"])
def test_the_command_reads_every_kind_of_classifier(golden, capsys, name):
    shown = run_labels(capsys, golden / "models" / name)
    assert "closeness from the weights" in shown and "┬" in shown


def test_the_command_reads_labelled_texts_and_writes_a_page(golden, capsys, tmp_path):
    model = golden / "models" / "classifier"
    data = next(path for path in sorted((golden / "inputs").glob("*.csv")) if "texts" in path.name)
    shown = run_labels(capsys, model, data, "--out", tmp_path / "out")
    assert "the closest pairs" in shown
    page = (tmp_path / "out" / "labels.html").read_text("utf-8")
    assert "<svg" in page and "Told apart" in page
    found = json.loads(run_labels(capsys, model, data, "--json", "--top", "1"))
    assert len(found["pairs"]) == 1 and len(found["closeness"]) == len(found["labels"])


def test_the_command_reads_the_runs_of_a_study(golden, capsys):
    study = golden / "studies" / "plain"
    assert "run" in run_labels(capsys, study)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models/sentences"], "holds a model of the kind"),
        (["models/tasks"], "holds a model of the kind"),
        (["models/classifier", "--objective", "supcon"], "is for studies"),
        (["models/classifier", "--part", "test"], "need labelled texts"),
        (["studies/plain", "--objective", "supcn"], "the study has no objective supcn"),
        (["studies/plain", "nothing"], "the study has no data set nothing"),
        (["studies/plain", "--part", "test"], "a study knows its own"),
        (["inputs"], "closeknit.json"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(golden, capsys, arguments, words):
    from closeknit.errors import CloseknitError

    with pytest.raises(CloseknitError) as raised:
        run_labels(capsys, golden / arguments[0], *arguments[1:])
    assert words in str(raised.value)
