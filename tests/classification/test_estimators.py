from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from closeknit import TextClassifier
from closeknit.errors import ConfigError, DataError


@pytest.fixture
def classifier(tiny):
    return TextClassifier(
        "cross_entropy", encoder=tiny(), epochs=25, learning_rate=1e-3, batch_size=12, max_length=16
    )


def test_fit_predict_score_and_transform(classifier, small):
    texts, labels = small
    classifier.set_params(epochs=60)  # enough for any seed
    assert classifier.fit(texts, labels) is classifier
    assert classifier.classes_.tolist() == ["late", "lost", "refund"]
    predicted = classifier.predict(texts)
    chances = classifier.predict_proba(texts)
    assert chances.shape == (36, 3)
    assert np.allclose(chances.sum(1), 1.0)
    assert (classifier.classes_[chances.argmax(1)] == predicted).all()
    assert classifier.score(texts, labels) == np.mean(predicted == np.array(labels)) > 0.8
    assert classifier.transform(texts).shape == (36, 32)
    assert classifier.evaluate(texts, labels)["accuracy"] == classifier.score(texts, labels)


@pytest.mark.parametrize("kind", [str, int, bool])
def test_labels_keep_their_kind_through_saving(classifier, small, tmp_path, kind):
    texts, labels = small
    number = {"late": 10, "lost": 2, "refund": 1}
    own = [kind(number[label]) if kind is not bool else label == "lost" for label in labels]
    classifier.set_params(epochs=1).fit(texts, own)
    assert classifier.classes_.tolist() == sorted(set(own))
    classifier.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert again.classes_.tolist() == classifier.classes_.tolist()
    assert again.classes_.dtype.kind == classifier.classes_.dtype.kind
    assert (again.predict(texts) == classifier.predict(texts)).all()
    assert np.array_equal(again.predict_proba(texts), classifier.predict_proba(texts))


def test_the_default_is_the_recipe_and_it_spells_out_what_it_chose(tiny, small, tmp_path):
    made = TextClassifier(encoder=tiny(), max_length=16, learning_rate=1e-3).fit(*small)
    run = made.model_.config
    assert (run.objective.name, run.encoder.pooling) == ("auto", "mean")
    assert (run.train.epochs, run.train.batch_size) == (22, 16)
    made.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert (again.objective, again.epochs, again.batch_size, again.pooling) == (
        "auto",
        22,
        16,
        "mean",
    )
    assert np.array_equal(again.fit(*small).predict_proba(small[0]), made.predict_proba(small[0]))


def test_it_is_a_scikit_learn_estimator(classifier, small):
    texts, labels = small
    params = classifier.get_params()
    assert clone(classifier).get_params() == params
    assert classifier.get_params() == params
    scores = cross_val_score(classifier, texts, labels, cv=2)
    assert scores.shape == (2,)
    search = GridSearchCV(
        classifier, {"epochs": [1, 20], "objective": ["cross_entropy"]}, cv=2
    ).fit(texts, labels)
    assert search.best_params_["epochs"] == 20
    features = clone(classifier).set_params(epochs=1)
    pipeline = make_pipeline(features, LogisticRegression(max_iter=200)).fit(texts, labels)
    assert pipeline.score(texts, labels) > 0.5


def test_fitting_twice_gives_the_same_and_not_a_continuation(classifier, small):
    first = classifier.set_params(epochs=2).fit(*small).predict_proba(small[0])
    assert np.array_equal(first, classifier.fit(*small).predict_proba(small[0]))
    other = clone(classifier).set_params(random_state=3).fit(*small).predict_proba(small[0])
    assert not np.array_equal(first, other)


def test_a_loaded_classifier_has_the_parameters_it_was_made_with(tiny, small, tmp_path):
    made = TextClassifier(
        objective="triple_entropy", encoder=tiny(), epochs=1, batch_size=8, learning_rate=2e-3, max_length=16,
        pooling="mean", objective_options={"centers": 3}, random_state=7, train_options={"warmup": 0.2},
        encoder_options={"dropout": 0.0},
    )  # fmt: skip
    made.fit(*small).save(tmp_path / "model")
    assert TextClassifier.load(tmp_path / "model").get_params() == made.get_params()


def test_a_loaded_recipe_keeps_what_was_asked_of_it(tiny, small, tmp_path):
    asked = {"class_names": 0, "lr_scale": 1.0}  # which are the defaults of other objectives
    made = TextClassifier(encoder=tiny(), max_length=16, epochs=1, train_options=asked).fit(*small)
    made.save(tmp_path / "model")
    again = clone(TextClassifier.load(tmp_path / "model"))
    assert again.train_options == asked
    assert np.array_equal(again.fit(*small).predict_proba(small[0]), made.predict_proba(small[0]))


def test_a_validation_part_chooses_the_epoch(classifier, small):
    classifier.set_params(train_options={"patience": 2}, epochs=50)
    classifier.fit(*small, validation=(small[0][:9], small[1][:9]))
    history = classifier.model_.metrics["history"]
    assert len(history) < 50
    assert classifier.model_.metrics["validation"]["weighted_f1"] == max(
        r["weighted_f1"] for r in history
    )


def test_textcnn_needs_no_pretrained_weights(small, tmp_path):
    classifier = TextClassifier(encoder="textcnn", epochs=30, batch_size=12).fit(*small)
    assert classifier.score(*small) > 0.9
    classifier.save(tmp_path / "model")
    assert (
        TextClassifier.load(tmp_path / "model").predict(small[0]) == classifier.predict(small[0])
    ).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"objective": "tripple_entropy"},
            "unknown objective tripple_entropy; did you mean triple_entropy",
        ),
        (
            {"objective_options": {"centers": 3}},
            "unknown setting objective.centers for cross_entropy",
        ),
        (
            {"train_options": {"warm_up": 0.1}},
            "unknown setting train.warm_up; did you mean train.warmup",
        ),
        ({"epochs": "ten"}, 'train.epochs is "ten"; it must be a whole number'),
        ({"random_state": None}, "random_state is None"),
        ({"pooling": "cls"}, "encoder.pooling is cls"),
        (
            {"objective_options": ["centers"]},
            "objective_options is \\['centers'\\]; it must be a dictionary",
        ),
        ({"train_options": "warmup"}, "train_options is 'warmup'; it must be a dictionary"),
    ],
)
def test_wrong_arguments_are_told_at_fit(classifier, small, arguments, words):
    with pytest.raises(ConfigError, match=words):
        classifier.set_params(**arguments).fit(*small)


@pytest.mark.parametrize(
    ("texts", "labels", "words"),
    [
        (["a", "b"], ["x", "x"], 'one class only \\("x"\\)'),
        (["a", "b"], ["x"], "2 texts, but 1 labels"),
        (["a", "b"], [0.5, 1.5], "fractional"),
        (["a", ""], ["x", "y"], "empty text in row 2"),
        ([], [], "empty"),
    ],
)
def test_wrong_data_are_told_at_fit(classifier, texts, labels, words):
    with pytest.raises(DataError, match=words):
        classifier.fit(texts, labels)


def test_an_unfitted_classifier_says_so(classifier):
    with pytest.raises(NotFittedError):
        classifier.predict(["a"])


def test_settings_may_be_numpys_and_paths(tiny, small):
    from pathlib import Path

    made = TextClassifier(
        encoder=Path(tiny()), epochs=np.int64(1), batch_size=np.int32(12), max_length=np.int64(16),
        learning_rate=np.float32(1e-3), random_state=np.int64(3), objective_options={"class_weights": np.ones(3)},
    )  # fmt: skip
    assert made.fit(*small).model_.config.train.batch_size == 12


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("cross_entropy", {"class_weights": torch.ones(3)}),
        ("cross_entropy", {"class_weights": [np.float32(1), np.float32(2), np.float32(3)]}),
        ("joint", {"terms": ({"objective": "CrossEntropy", "class_weights": np.ones(3)},)}),
    ],
)
def test_settings_may_hold_arrays_and_tensors_and_are_saved(
    tiny, small, tmp_path, objective, options
):
    made = TextClassifier(
        objective, tiny(), epochs=1, batch_size=12, max_length=16, objective_options=options
    )
    made.fit(*small).save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict(small[0]), made.predict(small[0]))


def test_texts_may_be_arrays_series_and_iterators(classifier, small):
    texts, labels = small
    expected = classifier.set_params(epochs=1).fit(texts, labels).predict_proba(texts)
    for X, y in [
        (np.array(texts), np.array(labels)),
        (pandas.Series(texts, index=range(5, 41)), pandas.Series(labels)),
        (iter(texts), iter(labels)),
        (texts, np.array(labels, dtype=object)),
    ]:
        assert np.array_equal(
            clone(classifier).fit(X, y).predict_proba(pandas.Series(texts)), expected
        )


@pytest.mark.parametrize(
    ("texts", "labels", "words"),
    [
        (["a", "b"], ["x", float("nan")], "missing"),
        (["a", "b"], [None, "x"], "missing"),
        (["a", "b"], ["x", 1], "several kinds"),
        (["a", "b"], [("x",), ("y",)], "of the kind tuple"),
        ({"a", "b"}, ["x", "y"], "is a set"),
        (None, ["x", "y"], "is a NoneType"),
        (5, ["x", "y"], "is a int"),
        ("ab", ["x", "y"], "is one string"),
        ([b"a", b"b"], ["x", "y"], "not a string but bytes in rows 1, 2"),
        (["a", "b"], None, "there are no labels"),
        (["a", "b"], {"x", "y"}, "the labels are a set"),
        (["a", "b"], {0: "x", 1: "y"}, "the labels are a dict"),
        (["a", "b"], "xy", "the labels are a str"),
        (["a", "b"], pandas.DataFrame({"label": ["x", "y"]}), "the labels are a DataFrame"),
        (["a", "b"], pandas.Series(["x", None], dtype="string"), "missing"),
    ],
)
def test_odd_input_is_refused(classifier, texts, labels, words):
    with pytest.raises(DataError, match=words):
        classifier.fit(texts, labels)


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        (0.1, "is not \\(texts, labels\\)"),
        (["a", "b", "c"], "is not \\(texts, labels\\)"),
        ((["a"], ["x", "y"]), "the validation part has 1 texts, but 2 labels"),
        ((["a", "b"], {"late", "lost"}), "the validation part: the labels are a set"),
        ((["a"], [1.0]), "the validation part: labels are fractional"),
    ],
)
def test_an_odd_validation_part_is_refused(classifier, small, validation, words):
    with pytest.raises(DataError, match=words):
        classifier.fit(*small, validation=validation)


def test_whole_numbers_in_an_object_array_stay_numbers(classifier, small, tmp_path):
    labels = np.array(
        [{"late": 3, "lost": 1, "refund": 2}[label] for label in small[1]], dtype=object
    )
    classifier.set_params(epochs=1).fit(small[0], labels).save(tmp_path / "m")
    assert TextClassifier.load(tmp_path / "m").classes_.tolist() == [1, 2, 3]
