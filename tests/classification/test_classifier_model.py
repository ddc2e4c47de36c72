"""The model folder: loads here, in transformers and in sentence-transformers, and is never
pickled.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from closeknit import TextClassifier
from closeknit.classification.config import RunConfig
from closeknit.classification.fit import ClassifierFit
from closeknit.classification.model import Model
from closeknit.data import from_python
from closeknit.errors import DataError, ModelError
from closeknit.models.folder import is_known
from conftest import rebuilt_objective

KINDS = ["bert", "roberta", "albert", "electra", "distilbert", "xlnet", "modernbert"]


def fitted(tiny, small, kind="bert", pooling="first", objective="triple_entropy") -> Model:
    name = "textcnn" if kind == "textcnn" else tiny(kind)
    config = RunConfig.from_dict(
        {
            "encoder": {"name": name, "max_length": 16, "pooling": pooling},
            "objective": {"name": objective},
            "train": {"epochs": 2, "lr": 1e-3, "batch_size": 12},
        }
    )
    return ClassifierFit(from_python(*small), config).run()


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    """One saved BERT classifier that tests copy before they harm it."""
    from conftest import TEXTS

    small = [text for text, _ in TEXTS], [label for _, label in TEXTS]
    folder = tmp_path_factory.mktemp("saved") / "model"
    fitted(tiny, small).save(folder)
    return folder


@pytest.mark.parametrize("kind", [*KINDS, "textcnn"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_saved_model_says_the_same(tiny, small, tmp_path, kind, pooling):
    model = fitted(tiny, small, kind, pooling)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    examples = from_python(small[0])
    for a, b in zip(model.outputs(examples), again.outputs(examples), strict=True):
        assert np.array_equal(a, b)
    assert again.labels == model.labels == ["late", "lost", "refund"]
    proxies = rebuilt_objective(again).objectives["soft_triple"].proxies
    assert torch.equal(proxies, model.objective["objectives.soft_triple.proxies"])


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_the_classifier_with_the_same_logits(tiny, small, tmp_path, kind):
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    model = fitted(tiny, small, kind)
    model.save(tmp_path / "model")
    theirs, facts = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not facts["missing_keys"] and not facts["mismatched_keys"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer(small[0], return_tensors="pt", padding=True, truncation=True, max_length=16)
    with torch.no_grad():
        logits = theirs.eval()(**inputs).logits.numpy()
    examples = from_python(small[0])
    ours, pooled = model.outputs(examples)
    assert np.allclose(logits, ours, atol=1e-5)
    assert theirs.config.id2label == {0: "late", 1: "lost", 2: "refund"}
    encoder = AutoModel.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        hidden = encoder(**inputs).last_hidden_state
    first = hidden[:, -1 if kind == "xlnet" else 0].numpy()
    assert np.allclose(first, pooled, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "setting", "before", "after"),
    [
        ("bert", "problem_type", "multi_label_classification", "single_label_classification"),
        ("modernbert", "classifier_activation", "relu", "gelu"),
        ("modernbert", "classifier_pooling", "mean", "cls"),
    ],
)
def test_what_the_encoder_was_before_does_not_change_the_classifier(
    tiny, small, tmp_path, kind, setting, before, after
):
    from transformers import AutoModelForSequenceClassification

    shutil.copytree(tiny(kind), tmp_path / "encoder")
    path = tmp_path / "encoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {setting: before}))
    model = fitted(lambda _: str(tmp_path / "encoder"), small, kind)
    model.save(tmp_path / "model")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert getattr(theirs.config, setting) == after
    batch = model.tokeniser(from_python(small[0])).pad(range(4))
    with torch.no_grad():
        logits = theirs(
            **{key: value for key, value in batch.items() if key != "special"}
        ).logits.numpy()
    assert np.allclose(logits, model.outputs(from_python(small[0]))[0][:4], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("bert", "first"), ("bert", "mean"), ("bert", "own"), ("roberta", "mean"), ("xlnet", "first")],
)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_sentence_transformers_loads_the_encoder_with_the_same_vectors(
    tiny, small, tmp_path, kind, pooling
):
    library = pytest.importorskip("sentence_transformers")
    model = fitted(tiny, small, kind, pooling)
    model.save(tmp_path / "model")
    theirs = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert np.allclose(theirs.encode(small[0]), model.outputs(from_python(small[0]))[1], atol=1e-5)


def test_the_folder_tells_the_whole_story(saved):
    facts = json.loads((saved / "closeknit.json").read_text())
    assert facts["labels"] == ["late", "lost", "refund"]
    assert facts["versions"]["torch"]
    assert facts["run"]["train"]["lr"] == 1e-3
    assert facts["run"]["objective"]["centers"] == 10
    assert "[train]" in (saved / "run.toml").read_text()
    assert "history" in json.loads((saved / "metrics.json").read_text())
    assert "TextClassifier.load" in (saved / "README.md").read_text()
    assert not [
        p for p in saved.rglob("*") if p.suffix in (".bin", ".pt", ".pkl", ".pickle", ".pth")
    ]


def test_the_run_file_of_a_model_makes_the_same_run(saved):
    from closeknit.classification.config import read_config

    assert read_config(saved / "run.toml").to_dict() == Model.load(saved).config.to_dict()


def cut(folder, name, keep=0.5):
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def fewer_labels(folder):
    facts = json.loads((folder / "closeknit.json").read_text())
    facts["labels"].pop()
    (folder / "closeknit.json").write_text(json.dumps(facts))


def wider(folder):
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 96  # as many digits as before: 48
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def fewer_layers(folder):
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 1  # the weights have two
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def change(folder, key, value):
    facts = json.loads((folder / "closeknit.json").read_text())
    facts[key] = value
    (folder / "closeknit.json").write_text(json.dumps(facts))


def forget(folder, key):
    facts = json.loads((folder / "closeknit.json").read_text())
    del facts[key]
    (folder / "closeknit.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda f: (f / "closeknit.json").unlink(), "no model folder: closeknit.json is missing"),
        (lambda f: cut(f, "closeknit.json"), r"closeknit\.json is damaged"),
        (lambda f: cut(f, "model.safetensors"), r"model\.safetensors is damaged or cut short"),
        (lambda f: cut(f, "heads.safetensors"), r"heads\.safetensors is damaged or cut short"),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda f: (f / "heads.safetensors").unlink(), r"heads\.safetensors is missing"),
        (
            lambda f: (f / "tokenizer.json").write_text("{"),
            r"tokenizer\.json is damaged or cut short: 1 bytes",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
        (fewer_labels, r"heads\.safetensors: the weights do not match the configuration"),
        (
            wider,
            r"do not match config\.json; .*intermediate\.dense\.bias has the shape \(48,\), and should have \(96,\)",
        ),
        (fewer_layers, "it has no place for bert.encoder.layer.1"),
        (lambda f: change(f, "paired", None) or forget(f, "paired"), "damaged"),
        (lambda f: change(f, "labels", ["a", "a", "b"]), "not a list of different names"),
        (lambda f: change(f, "run", []), "damaged"),
        (lambda f: change(f, "format", 99), "format 99 and was written by Closeknit 0"),
        (lambda f: change(f, "kind", "cake"), "does not describe a model of Closeknit"),
        (lambda f: change(f, "encoder", {}), "is damaged"),
        (lambda f: change(f, "run", {"train": {"epochz": 3}}), "unknown setting train.epochz"),
    ],
)
def test_a_damaged_folder_is_explained(saved, tmp_path, harm, words):
    from closeknit.errors import CloseknitError

    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    harm(folder)
    with pytest.raises(CloseknitError, match=words):
        Model.load(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        Model.load(tmp_path / "nothing")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ModelError, match="not finished; continue it"):
        Model.load(tmp_path / "run")


def test_saving_again_replaces_the_folder_whole(tiny, small, tmp_path, saved):
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    model = fitted(tiny, small, "distilbert", "mean", "cross_entropy")
    model.save(folder)
    examples = from_python(small[0])
    assert np.array_equal(Model.load(folder).outputs(examples)[0], model.outputs(examples)[0])
    assert not list(folder.glob("unfinished*"))
    assert not (folder / "objective.safetensors").exists(), "nothing of the old model may stay"


def test_a_save_that_was_killed_can_be_made_again(tiny, small, tmp_path, monkeypatch):
    """While the model is written, and while its files take their places."""
    from pathlib import Path

    model, moved = fitted(tiny, small), []

    def stop(self, target):
        if Path(target).parent == tmp_path / "b":
            moved.append(target)
            if len(moved) == 3:
                raise KeyboardInterrupt
        return move(self, target)

    (tmp_path / "a" / "unfinished-model").mkdir(parents=True)
    (tmp_path / "a" / "unfinished-model" / "half.safetensors").write_bytes(b"ab")
    (tmp_path / "a" / "checkpoints").mkdir()
    model.save(tmp_path / "a")
    assert not (tmp_path / "a" / "unfinished-model").exists()
    move = Path.replace
    model.save(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            model.save(tmp_path / "b")
    model.save(tmp_path / "b")
    for folder in ("a", "b"):
        expected = model.evaluate(from_python(*small))
        assert Model.load(tmp_path / folder).evaluate(from_python(*small)) == expected


def test_files_that_are_only_looked_at_may_go(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / "README.md").unlink()
    assert Model.load(tmp_path / "model").labels == Model.load(saved).labels


def test_dollars_in_class_names_are_drawn_as_they_are(tmp_path):
    pytest.importorskip("matplotlib")
    from closeknit.charts.png import distance_map

    distance_map(tmp_path / "d.png", np.eye(4, dtype=np.float32), ["$", "$$", "$5_$10", "^$_{$"])
    assert (tmp_path / "d.png").stat().st_size > 1000


def test_saving_leaves_other_peoples_folders_alone(tiny, small, tmp_path):
    model = fitted(tiny, small)
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ModelError, match=r"holds README\.md and is no model folder"):
        model.save(tmp_path)
    with pytest.raises(ModelError, match="is a file"):
        model.save(tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == "mine"
    with pytest.raises(ModelError, match="no GPU"):
        model.save(tmp_path / "model")
        Model.load(
            tmp_path / "model", device="cuda" if not torch.cuda.is_available() else "cuda:99"
        )


def test_unknown_labels_and_the_wrong_kind_of_text_are_refused(saved, small):
    model = Model.load(saved)
    with pytest.raises(DataError, match="does not know the label refunds; did you mean refund"):
        model.evaluate(from_python(["a card", "money"], ["refunds", "lost"]))
    with pytest.raises(DataError, match="holds pairs of texts; this model takes single texts"):
        model.outputs(from_python([("a", "b")]))


def test_evaluation_gives_scikit_learns_numbers(saved, small):
    from sklearn.metrics import accuracy_score, f1_score

    model = Model.load(saved)
    texts, labels = small
    labels = ["lost", *labels[1:20], "late", *labels[21:]]
    scores = model.evaluate(from_python(texts, labels))
    predicted = [model.labels[i] for i in model.outputs(from_python(texts))[0].argmax(1)]
    assert scores["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert scores["weighted_f1"] == pytest.approx(
        f1_score(labels, predicted, average="weighted", zero_division=0)
    )
    assert scores["macro_f1"] == pytest.approx(
        f1_score(labels, predicted, average="macro", zero_division=0)
    )
    assert scores["n"] == 36
    assert sum(own["n"] for own in scores["per_class"].values()) == 36


def test_a_model_tells_which_rows_it_was_trained_on(tiny, small_csv, closeknit, tmp_path):
    """By hashes of the rows, not by texts; letters and signs make no other row."""
    words = ("--encoder", tiny(), "--set", "encoder.max_length=16", "--epochs", 1)
    closeknit("train", small_csv, "--out", "model", *words)
    _, *rows = small_csv.read_text().splitlines()
    done = closeknit("evaluate", "model", small_csv, "--json")
    trained_on = json.loads(done.stdout)["trained_on"]
    assert 0 < trained_on <= len(rows)
    assert f"{trained_on} of the {len(rows)} rows were part of the training" in done.stderr
    (tmp_path / "new.csv").write_text("text,label\nanother one,lost\nmore of it,late\n")
    done = closeknit("evaluate", "model", "new.csv", "--json")
    assert json.loads(done.stdout)["trained_on"] == 0 and "part of the training" not in done.stderr
    path = tmp_path / "model" / "trained-rows.npy"
    hashes = np.load(path, allow_pickle=False)
    assert hashes.dtype == np.uint64 and len(hashes) <= len(rows)
    assert (
        "trained-rows.npy"
        in json.loads((tmp_path / "model" / "closeknit.json").read_text())["files"]
    )
    assert is_known("trained-rows.npy")
    size = path.stat().st_size
    path.write_bytes(b"x" * size)
    assert "is damaged" in closeknit("evaluate", "model", small_csv, code=2).stderr


def test_a_saved_classifier_of_python_knows_its_training_rows_too(tiny, small, tmp_path):
    texts, labels = small
    model = TextClassifier(encoder=tiny(), epochs=1, max_length=16).fit(texts, labels)
    assert model.evaluate([text.title() + " !" for text in texts], labels)["trained_on"] == len(
        texts
    )
    model.save(tmp_path / "model")
    loaded = TextClassifier.load(tmp_path / "model")
    assert loaded.evaluate(texts, labels)["trained_on"] == len(texts)
    (tmp_path / "model" / "trained-rows.npy").unlink()  # as in models of earlier versions
    facts = json.loads((tmp_path / "model" / "closeknit.json").read_text())
    del facts["files"]["trained-rows.npy"]
    (tmp_path / "model" / "closeknit.json").write_text(json.dumps(facts))
    assert "trained_on" not in TextClassifier.load(tmp_path / "model").evaluate(texts, labels)
