"""Several tasks on one encoder: data, configuration, training, resuming, models on the disk, and
the command line.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from closeknit import MultiTask
from closeknit.data import Examples, sentences_from
from closeknit.data.sentences import sentences_from_labelled_pairs
from closeknit.data.splits import Parts
from closeknit.embeddings.model import load_sentence_model
from closeknit.errors import ConfigError, DataError, ModelError
from closeknit.multitask.config import MultiTaskConfig, TaskConfig
from closeknit.multitask.data import load_tasks
from closeknit.multitask.fit import MultiTaskFit
from closeknit.multitask.mistakes import word_overlap
from closeknit.multitask.model import MultiTaskModel
from closeknit.multitask.pretraining import pretraining_sentences
from closeknit.multitask.study_file import read_multitask, recipes
from conftest import run_command

KINDS = {"topic": "classify", "same": "pair_classify", "alike": "pair_score"}


@pytest.fixture
def rows(small):
    """Three tasks on the small texts: their class, whether two share it, and how many words two
    have in common.
    """
    texts, labels = (column[:18] for column in small)
    pairs = list(itertools.combinations(range(18), 2))[::4]
    joined = [(texts[i], texts[j]) for i, j in pairs]
    return {
        "topic": (texts, labels),
        "same": (joined, ["yes" if labels[i] == labels[j] else "no" for i, j in pairs]),
        "alike": (joined, [5.0 * word_overlap(*pair) for pair in joined]),
    }


@pytest.fixture
def parts(rows):
    """The same as task data, a validation part being the training rows of every second place."""

    def examples(name):
        given, answers = rows[name]
        if name == "topic":
            return Examples(given, labels=answers, name=name)
        first, second = ([pair[i] for pair in given] for i in (0, 1))
        if name == "same":
            return Examples(first, second, answers, name)
        return Examples(first, second, None, name, answers)

    whole = {name: examples(name) for name in rows}
    return {name: Parts(own, own.select(range(0, len(own), 2))) for name, own in whole.items()}


def settings(encoder: str, /, **tables) -> MultiTaskConfig:
    base = {
        "tasks": {name: {"kind": kind, "data": "given"} for name, kind in KINDS.items()},
        "encoder": {"name": encoder, "max_length": 24},
        "train": {"epochs": 2, "batch_size": 8, "lr": 1e-3, "validation": 0.0},
    }
    return MultiTaskConfig.from_dict(
        {**base, **{k: {**base.get(k, {}), **v} for k, v in tables.items()}}
    )


def drained(fit):
    for _ in fit:
        pass
    return fit


def state_of(fit):
    return {key: value.clone() for key, value in fit.training.learners.state_dict().items()}


# ---------------------------------------------------------------- training


@pytest.mark.parametrize(
    "schedule", ["together", "sequential", "round_robin", "random", "annealed"]
)
def test_every_schedule_trains_all_tasks(tiny, parts, schedule):
    fit = drained(MultiTaskFit(parts, settings(tiny(), schedule={"name": schedule})))
    assert fit.training.number == fit.steps == fit.training.steps
    assert all(count > 0 for count in fit.training.taken.values())
    assert len(fit.session.history) == 2
    for record in fit.session.history:
        assert {"topic", "same", "alike", "average", "loss"} <= record.keys()
        assert record["average"] == pytest.approx(np.mean([record[name] for name in KINDS]))
        assert {f"gradients/{a}/{b}" for a, b in itertools.combinations(KINDS, 2)} <= record.keys()


def test_a_task_is_scored_by_auc_or_mcc(tiny, parts):
    metrics = {"topic": {"metric": "mcc"}, "same": {"metric": "auc"}}
    tasks = {name: {"kind": kind, "data": "given"} for name, kind in KINDS.items()}
    tasks = {name: {**task, **metrics.get(name, {})} for name, task in tasks.items()}
    fit = drained(MultiTaskFit(parts, settings(tiny(), tasks=tasks)))
    scores = fit.model.evaluate({name: own.validation for name, own in parts.items()})
    chosen = [scores["topic"]["mcc"], scores["same"]["auc"], scores["alike"]["pearson"]]
    assert scores["average"] == pytest.approx(np.mean(chosen))
    assert "auc" not in scores["topic"] and 0 <= scores["same"]["auc"] <= 1
    tasks["topic"]["metric"] = "auc"
    with pytest.raises(ConfigError, match=r"topic.*auc is for two classes, but .* has 3"):
        MultiTaskFit(parts, settings(tiny(), tasks=tasks))


def test_the_losses_of_all_tasks_fall(tiny, parts):
    config = settings(
        tiny(), train={"epochs": 30, "lr": 1e-3}, shared={"dropout": 0.0}, encoder={"dropout": 0.0}
    )
    history = drained(MultiTaskFit(parts, config)).session.history
    for name in KINDS:
        assert history[-1][f"loss/{name}"] < 0.6 * history[0][f"loss/{name}"], name


def test_the_state_with_the_best_average_is_kept(tiny, parts):
    fit = drained(MultiTaskFit(parts, settings(tiny(), train={"epochs": 6, "lr": 5e-3})))
    averages = [record["average"] for record in fit.session.history]
    found = fit.model.evaluate({name: own.validation for name, own in parts.items()})
    assert found["average"] == pytest.approx(max(averages), abs=1e-6)
    assert max(averages) > averages[-1] or max(averages) == averages[-1]


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"schedule": {"name": "together", "surgery": "pcgrad"}},
        {"train": {"accumulate": 2, "evaluate_every": 5}},
    ],
    ids=["random", "pcgrad", "accumulate"],
)
def test_an_interrupted_run_ends_with_the_same_weights(tiny, parts, tmp_path, tables):
    config = settings(tiny(), **tables)
    whole = drained(MultiTaskFit(parts, config))
    first = MultiTaskFit(parts, config, folder=tmp_path)
    for step in first:
        if step.number == 7:
            first.save_state()
            break
    second = drained(MultiTaskFit(parts, config, folder=tmp_path, resume=True))
    assert second.session.history == whole.session.history
    for key, value in state_of(whole).items():
        assert torch.equal(value, state_of(second)[key]), key


@pytest.mark.parametrize("stop", [2, 8, 21])
def test_a_run_with_pretraining_is_taken_up_in_either_stage(tiny, parts, small, tmp_path, stop):
    sentences = sentences_from(sorted(set(small[0])))
    config = settings(tiny(), pretrain={"data": "texts", "epochs": 1, "batch_size": 4, "lr": 1e-3})
    whole = MultiTaskFit(parts, config, sentences=sentences)
    before = state_of(whole)
    drained(whole)
    assert whole.steps > whole.training.steps  # the stage counts
    assert not torch.equal(before["encoder.trunk.encoder.layer.0.output.dense.weight"],
                           whole.training.encoder.trunk.encoder.layer[0].output.dense.weight)  # fmt: skip
    assert whole.model.metrics["pretraining"]
    first = MultiTaskFit(parts, config, sentences=sentences, folder=tmp_path)
    for step in first:
        if step.number == stop:
            first.save_state()
            break
    assert stop < whole.steps
    second = drained(MultiTaskFit(parts, config, sentences=sentences, folder=tmp_path, resume=True))
    assert second.session.history == whole.session.history
    for key, value in state_of(whole).items():
        assert torch.equal(value, state_of(second)[key]), key


def test_after_pretraining_the_tasks_are_learnt_with_dropout_from_the_first_update(
    tiny, parts, small
):
    config = settings(
        tiny(), pretrain={"data": "texts", "epochs": 1, "batch_size": 4}, train={"epochs": 1}
    )
    fit = MultiTaskFit(parts, config, sentences=sentences_from(sorted(set(small[0]))))
    for step in fit:
        if step.number < fit.steps:  # after the last one the tasks have been scored
            assert all(module.training for module in fit.training.learners.modules()), step.number


def test_pretraining_changes_what_the_tasks_start_from(tiny, parts, small):
    config = settings(
        tiny(), pretrain={"data": "texts", "epochs": 1, "batch_size": 4}, train={"epochs": 1}
    )
    told: list[str] = []
    fit = MultiTaskFit(
        parts, config, sentences=sentences_from(sorted(set(small[0]))), log=told.append
    )
    next(iter(fit))
    assert told[-1].startswith("first simcse on 18 rows")
    assert fit.model.encoder.trunk is fit.pretrainings[0].model.encoder.trunk
    assert fit.model.encoder.pooling == "first"


def test_a_task_that_the_order_leaves_out_keeps_its_head(tiny, parts):
    told: list[str] = []
    config = settings(tiny(), schedule={"name": "sequential", "order": ["topic"]})
    fit = MultiTaskFit(parts, config, log=told.append)
    before = {key: value.clone() for key, value in fit.model.heads["alike"].state_dict().items()}
    drained(fit)
    assert fit.training.taken == {"topic": 6, "same": 0, "alike": 0}
    for key, value in fit.model.heads["alike"].state_dict().items():
        assert torch.equal(value, before[key])
    assert any("same is scored but not trained" in line for line in told)


def test_a_task_that_the_order_leaves_out_does_not_choose_the_best_state(tiny, parts):
    told: list[str] = []
    config = settings(tiny(), schedule={"name": "sequential", "order": ["topic", "alike"]})
    fit = drained(MultiTaskFit(parts, config, log=told.append))
    for record in fit.session.history:
        assert record["average"] == pytest.approx(np.mean([record["topic"], record["alike"]]))
        assert "same" in record
        assert [key for key in record if key.startswith("gradients/")] == ["gradients/topic/alike"]
    assert any("same is scored but not trained" in line for line in told)


def test_a_frozen_encoder_stays_as_it_is_while_heads_and_shared_layer_learn(tiny, parts):
    fit = MultiTaskFit(parts, settings(tiny(), encoder={"frozen": True}))
    before = state_of(fit)
    drained(fit)
    after = state_of(fit)
    trunk = [key for key in before if key.startswith("encoder.trunk.")]
    assert trunk and all(torch.equal(before[key], after[key]) for key in trunk)
    assert not torch.equal(before["encoder.top.linear.weight"], after["encoder.top.linear.weight"])
    frozen = MultiTaskFit(
        parts, settings(tiny(), encoder={"frozen": True}, shared={"layer": False})
    )
    drained(frozen)  # nothing is shared, so that no gradients are compared
    assert not any(key.startswith("gradients") for key in frozen.session.history[0])


def test_the_shared_layer_learns_at_the_rate_of_heads(tiny, parts):
    fit = MultiTaskFit(parts, settings(tiny(), train={"lr": 1e-4, "head_lr": 5e-3}))
    layer = fit.model.encoder.top.linear.weight
    group = next(group for group in fit.training.groups if any(p is layer for p in group["params"]))
    assert group["lr"] == 5e-3
    trunk = next(fit.model.encoder.trunk.parameters())
    assert (
        next(g for g in fit.training.groups if any(p is trunk for p in g["params"]))["lr"] == 1e-4
    )


def test_weights_of_tasks_scale_their_losses(tiny, parts):
    def losses(weight):
        config = settings(tiny(), schedule={"name": "together"})
        tasks = {**config.tasks, "same": dataclasses.replace(config.tasks["same"], weight=weight)}
        return next(iter(MultiTaskFit(parts, dataclasses.replace(config, tasks=tasks)))).losses

    one, three = losses(1.0), losses(3.0)
    assert three["same"] == pytest.approx(3 * one["same"])
    assert three["topic"] == pytest.approx(one["topic"])


@pytest.mark.parametrize("weight", [0.1, 10.0])
def test_the_weight_of_a_task_that_gives_an_update_alone_survives_clipping(tiny, parts, weight):
    """AdamW adds w times the clipped gradient to its moments, not the clipped gradient of w."""

    def first_update(weight):
        config = settings(tiny(), schedule={"name": "sequential"}, train={"clip": 0.01})
        topic = dataclasses.replace(config.tasks["topic"], weight=weight)
        fit = MultiTaskFit(
            parts, dataclasses.replace(config, tasks={**config.tasks, "topic": topic})
        )
        step = next(iter(fit))
        # clipping changes the gradients in their place
        return step.grad_norm, [
            p.grad.clone() for p in fit.training.parameters if p.grad is not None
        ]

    norm, plain = first_update(1.0)
    weighted_norm, weighted = first_update(weight)
    assert norm > 0.01 and weighted_norm == pytest.approx(weight * norm, rel=1e-5)
    for one, other in zip(plain, weighted, strict=True):
        assert torch.allclose(weight * one, other, rtol=1e-4, atol=1e-7)


def test_a_task_may_have_any_objective_that_trains_a_head(tiny, parts):
    tasks = {
        "topic": {
            "kind": "classify",
            "data": "x",
            "objective": "triple_entropy",
            "options": {"centers": 3},
        },
        "alike": {"kind": "pair_score", "data": "x"},
    }
    config = settings(tiny(), tasks=tasks)
    config = dataclasses.replace(config, tasks={name: config.tasks[name] for name in tasks})
    fit = MultiTaskFit({name: parts[name] for name in tasks}, config)
    proxies = [key for key in state_of(fit) if key.startswith("topic_objective")]
    assert proxies
    step = next(step for step in fit if "topic" in step.losses)
    assert {"topic/cross_entropy", "topic/soft_triple"} <= step.terms.keys()


def test_an_objective_that_compares_rows_meets_two_of_a_class_in_every_batch(tiny, small):
    texts, _ = small
    labels = [f"class {number // 2}" for number in range(len(texts))]  # two rows of each
    data = {"topic": Parts(Examples(texts, labels=labels, name="topic"))}

    def met(objective):
        task = {"kind": "classify", "data": "x", "objective": objective}
        fit = MultiTaskFit(
            data, dataclasses.replace(settings(tiny()), tasks={"topic": TaskConfig(**task)})
        )
        (own,) = fit.training.tasks
        return [Counter(own.batch(number, 0, 1).labels.tolist()) for number in range(own.per_epoch)]

    assert all(set(counts.values()) == {2} for counts in met("supcon"))
    assert any(1 in counts.values() for counts in met("cross_entropy"))


@pytest.mark.parametrize("encoder", ["roberta", "xlnet", "textcnn"])
def test_other_encoders(tiny, parts, encoder, tmp_path):
    name = "textcnn" if encoder == "textcnn" else tiny(encoder)
    model = drained(MultiTaskFit(parts, settings(name, train={"epochs": 1}))).model
    model.save(tmp_path / "model")
    again = MultiTaskModel.load(tmp_path / "model")
    for task, own in parts.items():
        assert np.allclose(
            model.predict(task, own.train), again.predict(task, own.train), atol=1e-5
        )
    texts = parts["topic"].train.texts
    vectors = load_sentence_model(tmp_path / "model").encode(texts)
    assert np.allclose(vectors, MultiTask.load(tmp_path / "model").encode(texts), atol=1e-5)


def test_one_task_alone_is_the_same_code(tiny, parts):
    config = settings(tiny()).only("alike")
    fit = drained(MultiTaskFit({"alike": parts["alike"]}, config))
    assert fit.steps == 2 * -(-len(parts["alike"].train) // 8)
    assert list(fit.session.history[0]) == ["epoch", "loss", "alike", "average"]


def test_without_validation_parts_the_last_state_is_kept(tiny, parts):
    bare = {name: Parts(own.train) for name, own in parts.items()}
    fit = drained(MultiTaskFit(bare, settings(tiny())))
    assert fit.session.best is None and "average" not in fit.session.history[0]
    mixed = {**bare, "topic": parts["topic"]}
    with pytest.raises(ConfigError, match="same has no validation part"):
        MultiTaskFit(mixed, settings(tiny()))


def test_batches_of_pairs_hold_both_orders(tiny, parts):
    fit = MultiTaskFit(parts, settings(tiny()))
    task = next(task for task in fit.training.tasks if task.name == "same")
    batch = task.batch(0, 0, 1)
    pairs = len(batch.rows)
    assert len(batch.inputs["input_ids"]) == 2 * pairs and len(batch.labels) == pairs
    own = parts["same"].train
    tokenizer = fit.model.tokeniser.tokenizer
    for place, row in enumerate(batch.rows):
        for at, (a, b) in (
            (place, (own.texts[row], own.pairs[row])),
            (pairs + place, (own.pairs[row], own.texts[row])),
        ):
            expected = tokenizer(a, b)["input_ids"]
            mask = batch.inputs["attention_mask"][at].bool()
            assert batch.inputs["input_ids"][at][mask].tolist() == expected
    assert batch.labels.tolist() == [["no", "yes"].index(own.labels[row]) for row in batch.rows]


def test_scores_come_in_the_range_of_the_data(tiny, parts):
    model = drained(MultiTaskFit(parts, settings(tiny(), train={"epochs": 1, "lr": 0.1}))).model
    found = model.predict("alike", parts["alike"].train)
    truth = parts["alike"].train.scores
    assert found.shape == (len(truth),)
    assert found.min() >= min(truth) - 1e-6 and found.max() <= max(truth) + 1e-6
    given = np.array([[0.0], [1.0], [-99.0], [99.0]], dtype=np.float32)
    mean, spread = np.mean(truth), np.std(truth)
    assert model.answers["alike"].scores(given) == pytest.approx(
        [mean, mean + spread, min(truth), max(truth)], rel=1e-5
    )


# ---------------------------------------------------------------- models on the disk


@pytest.fixture
def saved(tiny, parts, tmp_path):
    model = drained(MultiTaskFit(parts, settings(tiny(), train={"epochs": 1}))).model
    model.analyse(parts)
    model.save(tmp_path / "model")
    return model, tmp_path / "model"


def test_a_saved_model_answers_the_same(saved, parts):
    model, folder = saved
    again = MultiTaskModel.load(folder)
    assert again.config == model.config
    for name, own in parts.items():
        assert np.allclose(
            model.predict(name, own.train), again.predict(name, own.train), atol=1e-6
        )
    card = (folder / "README.md").read_text()
    assert "| topic | classify | late, lost, refund |" in card and 'model.predict("topic"' in card
    with (folder / "mistakes" / "same.csv").open(newline="") as file:
        wrong = list(csv.DictReader(file))
    chosen = model.predict("same", parts["same"].validation).argmax(axis=1)
    expected = [["no", "yes"].index(label) for label in parts["same"].validation.labels]
    assert len(wrong) == int(np.sum(chosen != np.array(expected)))


def test_other_libraries_open_the_folder_with_the_same_vectors(saved, parts):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    _, folder = saved
    texts = parts["topic"].train.texts[:5]
    ours = MultiTask.load(folder).encode(texts)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.allclose(ours, theirs, atol=1e-5)
    assert np.allclose(ours, load_sentence_model(folder).encode(texts), atol=1e-5)


def test_a_folder_of_another_kind_or_a_damaged_one_is_refused(saved, tmp_path):
    from closeknit import TextClassifier

    _, folder = saved
    with pytest.raises(ModelError, match="a model of several tasks, not a text classifier"):
        TextClassifier.load(folder)
    facts = json.loads((folder / "closeknit.json").read_text())
    del facts["answers"]["same"]
    (folder / "closeknit.json").write_text(json.dumps(facts))
    with pytest.raises(ModelError, match="damaged"):
        MultiTaskModel.load(folder)
    with pytest.raises(ModelError, match="does not exist"):
        MultiTaskModel.load(tmp_path / "nowhere")


# ---------------------------------------------------------------- data


def write_csv(path: Path, header, lines) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(lines)
    return str(path)


@pytest.fixture
def files(rows, tmp_path):
    topic = write_csv(tmp_path / "topic.csv", ["text", "label"], zip(*rows["topic"], strict=True))
    judged, scored = (
        [(*pair, y) for pair, y in zip(*rows[name], strict=True)] for name in ("same", "alike")
    )
    same = write_csv(tmp_path / "same.csv", ["text1", "text2", "label"], judged)
    alike = write_csv(tmp_path / "alike.csv", ["text", "text2", "score"], scored)
    return {"topic": topic, "same": same, "alike": alike}


def with_data(files, **more) -> MultiTaskConfig:
    tasks = {
        name: {"kind": KINDS[name], "data": files[name], **more.get(name, {})} for name in files
    }
    return MultiTaskConfig.from_dict(
        {"tasks": tasks, "train": {"validation": more.get("validation", 0.2)}}
    )


def test_data_are_read_by_kind_and_held_out_where_there_is_no_validation_part(files, rows):
    data = load_tasks(
        with_data(files, same={"leaks": "keep"}, alike={"leaks": "keep"})
    )  # of the same pairs
    for name, own in data.items():
        assert len(own.train) + len(own.validation) == len(rows[name][0])
        assert len(own.validation) == pytest.approx(0.2 * len(rows[name][0]), abs=1)
        assert (own.train.scores is None) == (name != "alike") and (own.train.labels is None) == (
            name == "alike"
        )
        assert (own.train.pairs is None) == (name == "topic")
    assert load_tasks(with_data(files, validation=0.0))["topic"].validation is None


def test_rows_that_are_tested_on_are_not_trained_on(tmp_path):
    header = ["text", "text2", "label"]
    rows = [
        ("One two!", "three", "x"),
        ("three", "one  TWO", "y"),
        ("new", "row", "x"),
        ("other", "row", "y"),
    ]
    train = write_csv(tmp_path / "a.csv", header, rows)
    test = write_csv(tmp_path / "b.csv", header, [("Three", "one two", "x"), ("four", "five", "y")])
    told: list[str] = []
    task = {"kind": "pair_classify", "data": {"train": [train], "test": test}}
    config = MultiTaskConfig.from_dict({"tasks": {"pair": task}, "train": {"validation": 0.0}})
    own = load_tasks(config, log=told.append)["pair"]
    assert own.train.texts == ["new", "other"] and len(own.test) == 2
    assert "2 of 4 training rows" in told[0]
    kept = MultiTaskConfig.from_dict(
        {"tasks": {"pair": {**task, "leaks": "keep"}}, "train": {"validation": 0.0}}
    )
    assert len(load_tasks(kept)["pair"].train) == 4


def test_a_part_that_is_held_out_is_not_trained_on_either(tmp_path):
    texts = [(f"text {i % 10}", "xy"[i % 2]) for i in range(40)]
    signs = [("😀" * (1 + i), "xy"[i % 2]) for i in range(12)]  # which have no words
    train = write_csv(tmp_path / "a.csv", ["text", "label"], texts + signs)
    test = write_csv(tmp_path / "b.csv", ["text", "label"], [("😀", "x"), ("new", "y")])
    task = {"kind": "classify", "data": {"train": [train], "test": test}}
    config = MultiTaskConfig.from_dict({"tasks": {"t": task}, "train": {"validation": 0.1}})
    own = load_tasks(config)["t"]
    assert not set(own.train.texts) & {*own.validation.texts, "😀"}
    assert len({*own.train.texts, *own.validation.texts} & {text for text, _ in signs}) == 11


def test_what_a_task_is_scored_on_no_other_task_learns_from(files, rows):
    """The same pairs are judged for one task and scored for another; single texts are no pairs."""
    told: list[str] = []
    data = load_tasks(with_data(files), log=told.append)
    same, alike = (
        {*zip(own.train.texts, own.train.pairs, strict=True)}
        for own in (data["same"], data["alike"])
    )
    for trained, other in ((same, "alike"), (alike, "same")):
        held = data[other].validation
        assert trained and not trained & {*zip(held.texts, held.pairs, strict=True)}
    assert len(data["topic"].train) + len(data["topic"].validation) == len(rows["topic"][0])
    assert ["part of another task and are left out (tasks." in line for line in told] == [
        True,
        True,
    ]
    kept = load_tasks(with_data(files, same={"leaks": "keep"}))
    assert len(kept["same"].train) + len(kept["same"].validation) == len(rows["same"][0])
    fewer = load_tasks(with_data(files, alike={"rows": 20}))  # drawn from what is left
    assert len(fewer["alike"].train) == 20
    texts = write_csv(
        Path(files["topic"]).parent / "held.csv",
        ["text", "label"],
        zip(*rows["topic"], strict=True),
    )
    split = {
        "kind": "classify",
        "data": {"train": [files["topic"]], "validation": texts},
        "leaks": "keep",
    }
    tasks = {"a": {"data": files["topic"]}, "b": split}
    with pytest.raises(
        DataError,
        match=r"^task a: every training row is also in .* of another task .*a\.leaks=keep",
    ):
        load_tasks(MultiTaskConfig.from_dict({"tasks": tasks}))


def test_a_task_remembers_its_columns(closeknit, tiny, tmp_path):
    rows = [(f"where is my {thing}", thing) for thing in ("card", "parcel")] * 10
    write_csv(tmp_path / "a.csv", ["message", "topic"], rows)
    (tmp_path / "study.toml").write_text(
        f'[encoder]\nname = "{tiny()}"\nmax_length = 16\n[train]\nepochs = 1\nvalidation = 0.2\n'
        '[tasks.t]\nkind = "classify"\ndata = "a.csv"\ntext = "message"\nlabel = "topic"\nleaks = "keep"\n'
    )
    closeknit("multitask", "study.toml", "--out", "m")
    assert len(closeknit("predict", "m", "a.csv", "--task", "t").stdout.splitlines()) == 20
    assert "accuracy" in closeknit("evaluate", "m", "a.csv", "--task", "t").stdout


def test_numbers_of_numpy_are_numbers(tiny, rows):
    texts, labels = rows["topic"]
    pairs, scores = rows["alike"]
    numbers = [np.int64(sorted(set(labels)).index(label)) for label in labels]
    data = {"topic": (texts, numbers), "alike": (pairs, [np.float32(score) for score in scores])}
    model = MultiTask(encoder=tiny(), epochs=1, batch_size=8, max_length=24).fit(data)
    assert model.model_.task("alike").kind == "pair_score"
    assert {type(label) for label in model.classes("topic")} == {int}


def test_tables_of_pandas_are_asked_about_as_they_are_learnt_from(tiny, rows):
    import pandas

    pairs, scores = rows["alike"]
    table = pandas.DataFrame(pairs, columns=["text", "text2"])
    model = MultiTask(encoder=tiny(), epochs=1, batch_size=8, max_length=24)
    model.fit(
        {"alike": (table, pandas.Series(scores)), "topic": tuple(map(pandas.Series, rows["topic"]))}
    )
    assert np.array_equal(model.predict("alike", table[:3]), model.predict("alike", pairs[:3]))
    assert len(model.predict("topic", table["text"][:3])) == 3


def test_several_files_make_one_part_and_may_lie_in_the_data_folder(tmp_path, monkeypatch):
    for name in "ab":
        write_csv(
            tmp_path / f"{name}.csv",
            ["text", "label"],
            [(f"{name} one", "x"), (f"{name} two", "y")],
        )
    monkeypatch.setenv("CLOSEKNIT_DATA", str(tmp_path))
    task = {"kind": "classify", "data": {"train": ["a.csv", "b.csv"]}}
    config = MultiTaskConfig.from_dict({"tasks": {"t": task}, "train": {"validation": 0.0}})
    assert load_tasks(config)["t"].train.texts == ["a one", "a two", "b one", "b two"]


def test_rows_and_scale_take_fewer(files, rows):
    own = load_tasks(with_data(files, same={"rows": 10}, validation=0.0))
    assert len(own["same"].train) == 10 and len(own["alike"].train) == len(rows["alike"][0])
    held = load_tasks(with_data(files, same={"rows": 10}, validation=0.2))["same"]
    assert len(held.train) == 10 and len(held.validation) == round(0.2 * len(rows["same"][0]))
    scaled = load_tasks(with_data(files, validation=0.0).scaled(0.5))
    assert len(scaled["alike"].train) == round(0.5 * len(rows["alike"][0]))
    least = load_tasks(with_data(files, validation=0.0).scaled(0.001))
    assert len(least["alike"].train) == 16


def test_missing_scores_are_named_or_dropped(tmp_path):
    file = write_csv(
        tmp_path / "s.csv",
        ["text", "text2", "score"],
        [
            ("a", "b", "1"),
            ("c", "d", ""),
            ("e", "f", "nan"),
            ("g", "h", "3"),
            ("i", "j", "2"),
            ("k", "l", "0"),
        ],
    )
    with pytest.raises(DataError, match=r"task sts: .*rows 2, 3.*tasks\.sts\.empty=drop"):
        load_tasks(
            MultiTaskConfig.from_dict({"tasks": {"sts": {"kind": "pair_score", "data": file}}})
        )
    config = MultiTaskConfig.from_dict(
        {
            "tasks": {"sts": {"kind": "pair_score", "data": file, "empty": "drop"}},
            "train": {"validation": 0.0},
        }
    )
    assert load_tasks(config)["sts"].train.scores == [1.0, 3.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("same", {"data": "topic"}, "single texts; pair_classify needs pairs"),
        ("alike", {"data": "same"}, "no column score.*tasks.alike.score=COLUMN"),
        ("topic", {"data": "nowhere.csv"}, "task topic: nowhere.csv does not exist"),
        ("topic", {"data": "same"}, "holds pairs of texts; a task of the kind classify"),
        ("topic", {"data": {"trian": "x.csv"}}, "task topic: .*did you mean train"),
        ("topic", {"data": 3}, "give a name, or a table"),
        ("topic", {"data": ""}, "tasks.topic.data is not given"),
        ("topic", {"data": {"train": 5}}, "task topic: data names a part by 5; give a file or a list of files"),
        ("topic", {"data": {"train": [1, 2]}}, r"task topic: data names a part by \[1, 2\]"),
        ("topic", {"data": {"train": {"a": "x.csv"}}}, "task topic: data names a part by .*give a file"),
        ("topic", {"label": "nolabel"}, "no column nolabel"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_are_refused_with_the_task_named(files, name, changes, words):
    changed = {
        key: files.get(value, value) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    with pytest.raises((DataError, ConfigError), match=words):
        load_tasks(with_data(files, **{name: changed}))


def test_one_class_or_one_score_is_refused(tmp_path):
    file = write_csv(tmp_path / "one.csv", ["text", "label"], [(text, "x") for text in "abcd"])
    with pytest.raises(DataError, match="one class only"):
        load_tasks(
            MultiTaskConfig.from_dict(
                {"tasks": {"t": {"data": file}}, "train": {"validation": 0.0}}
            )
        )
    file = write_csv(
        tmp_path / "flat.csv", ["text", "text2", "score"], [(text, "b", 2) for text in "cdef"]
    )
    with pytest.raises(DataError, match="all scores are 2"):
        load_tasks(MultiTaskConfig.from_dict(
            {"tasks": {"t": {"data": file, "kind": "pair_score"}}, "train": {"validation": 0.0}}))  # fmt: skip


def test_a_share_that_leaves_nothing_to_learn_from_is_refused(tiny, rows):
    pairs, scores = (column[:5] for column in rows["alike"])
    model = MultiTask(encoder=tiny(), train_options={"validation": 0.9})
    with pytest.raises(
        DataError, match=r"task alike: train.validation is 0.9: 4 of 5 rows are held out"
    ):
        model.fit({"alike": (pairs, scores)})


def test_judged_pairs_become_pairs_or_triplets(tmp_path):
    file = write_csv(
        tmp_path / "nli.csv",
        ["text", "text2", "label"],
        [("p", "e1", "entailment"), ("p", "e2", "entailment"), ("p", "c", "contradiction"), ("p", "n", "neutral"),
         ("q", "e3", "entailment"), ("r", "c2", "contradiction")],
    )  # fmt: skip
    pairs = sentences_from_labelled_pairs(file, "entailment")
    assert list(zip(*pairs.columns, strict=True)) == [("p", "e1"), ("p", "e2"), ("q", "e3")]
    triplets = sentences_from_labelled_pairs(file, "entailment", "contradiction")
    assert list(zip(*triplets.columns, strict=True)) == [("p", "e1", "c"), ("p", "e2", "c")]
    with pytest.raises(DataError, match="no label entailmnet; did you mean entailment"):
        sentences_from_labelled_pairs(file, "entailmnet")
    config = MultiTaskConfig.from_dict(
        {
            "tasks": {"t": {"data": file}},
            "pretrain": {"data": file, "positives": "entailment", "rows": 2},
        }
    )
    (drawn,) = pretraining_sentences(config, {})
    assert len(drawn) == 2


# ---------------------------------------------------------------- configuration

TABLE_2 = {  # epochs, batch size, dropout
    1: (10, 32, 0.3), 2: (3, 32, 0.5), 3: (3, 32, 0.5), 4: (3, 16, 0.5), 5: (3, 32, 0.5), 6: (5, 32, 0.5), 7: (5, 32, 0.5),
    8: (5, 64, 0.5), 9: (5, 64, 0.5), 10: (5, 64, 0.5), 11: (5, 64, 0.3), 12: (5, 8, 0.1), 13: (5, 64, 0.5),
    14: (5, 64, 0.1), 15: (5, 64, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("number", range(1, 16))
def test_the_recipes_are_the_experiments_of_the_paper(number):
    config = read_multitask(f"exp{number:02d}")
    assert (config.train.epochs, config.train.batch_size, config.shared.dropout) == TABLE_2[number]
    assert config.train.lr == config.train.head_lr == 1e-5
    assert config.shared.layer == (number >= 4)
    heads = {name: task.shape for name, task in config.tasks.items()}
    pairs = "linear" if number == 1 else "paired"
    assert heads == {
        "sst": "linear",
        "sts": "dense_paired" if number >= 11 else pairs,
        "qqp": "dense_paired" if number >= 9 else pairs,
    }
    kinds = (
        ["sequential"] * 2 + ["round_robin"] * 4 + ["random"] * 5 + ["together"] + ["random"] * 3
    )
    assert config.schedule.name == kinds[number - 1]
    assert (config.schedule.surgery == "pcgrad") == (number == 12)
    assert bool(config.stages) == (number == 15)
    assert config.encoder.frozen == (number == 1)
    assert {f"exp{n:02d}" for n in range(1, 16)} <= set(recipes())


def flat(name):
    """The settings of a recipe by table and name."""
    tables = read_multitask(name).to_dict()
    return {(table, key): value for table, own in tables.items() for key, value in own.items()}


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("exp02", "exp03-control", {"schedule.name", "schedule.turn"}),  # by passes, as 3
        ("exp03-control", "exp03", {"schedule.order"}),
        ("exp03", "exp05-control", {"shared.layer"}),
        ("exp05-control", "exp05", {"schedule.order"}),
        ("exp04", "exp05", {"train.batch_size"}),
        ("exp06-control", "exp06", {"shared.layer_dropout"}),
        ("exp05", "exp07-control", {"train.epochs"}),
        ("exp07-control", "exp07", {"schedule.name", "schedule.turn", "schedule.order", "schedule.power"}),
        ("exp07", "exp08", {"train.batch_size"}),
        ("exp08", "exp09", {"tasks.qqp.head"}),
        ("exp09", "exp10-control", {"tasks.qqp.activation"}),
        ("exp10-control", "exp10", {"schedule.weights"}),
        ("exp10", "exp13", {"tasks.sts.head", "tasks.sts.activation"}),
        ("exp13", "exp11", {"shared.dropout"}),
        ("exp11", "exp14", {"shared.dropout"}),
        ("exp12-control", "exp12", {"schedule.surgery"}),
        ("exp12", "exp12-mean", {"schedule.surgery_reduction"}),
        ("exp14", "exp14-joined", {"tasks.sts.head", "tasks.qqp.head"}),
        ("exp14", "exp14-mixed", {"schedule.name"}),
        ("exp14", "exp14-ranking", {"tasks.qqp.objective", "tasks.qqp.head"}),
    ],
)  # fmt: skip
def test_recipes_that_are_compared_differ_in_one_thing(one, other, differs):
    first, second = flat(one), flat(other)
    found = {".".join(key) for key in first | second if first.get(key) != second.get(key)}
    assert found == differs


def test_the_stages_before_the_tasks_of_experiment_15_have_the_batches_of_the_paper():
    config = read_multitask("exp15")
    (stage,) = config.stages
    assert (stage.epochs, stage.batch_size, stage.lr) == (3, 64, 1e-5)
    assert dataclasses.replace(config, pretrain=read_multitask("exp14").pretrain) == read_multitask(
        "exp14"
    )
    simcse, ranking = read_multitask("exp15-stages").stages
    assert simcse == stage and ranking == dataclasses.replace(stage, method="multiple_negatives")


def test_a_configuration_survives_a_file(tiny, tmp_path):
    from closeknit.settings import to_toml

    config = settings(
        tiny(),
        schedule={
            "name": "round_robin",
            "order": ["topic", "same", "topic", "alike"],
            "turn": "pass",
        },
        pretrain={"data": "x", "method": "mirror"},
    )
    (tmp_path / "run.toml").write_text(to_toml(config.to_dict()))
    assert read_multitask(str(tmp_path / "run.toml")) == config
    assert MultiTaskConfig.from_dict(config.to_dict()) == config


def test_changes_reach_tasks_and_tables(tmp_path):
    config = read_multitask(
        "exp14", ["tasks.sts.weight=2", "train.lr=3e-5", 'tasks.qqp.data={train = ["a.csv"]}']
    )
    assert config.tasks["sts"].weight == 2 and config.train.lr == 3e-5
    weighed = read_multitask("exp14", ["schedule.weights.sts=3"])
    assert weighed.schedule.weights == {"qqp": 2.0, "sts": 3}
    assert config.tasks["qqp"].data == {"train": ["a.csv"]}
    scaled = config.scaled(0.1)
    assert scaled.train.epochs == 1 and read_multitask("exp01").scaled(0.5).train.epochs == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["tasks.stss.weight=2"], "no task stss; did you mean sts"),
        (["tasks.sts.wieght=2"], "unknown setting tasks.sts.wieght; did you mean tasks.sts.weight"),
        (["tasks.sts.weight=big"], "tasks.sts.weight is \"big\"; it must be a number"),
        (["tasks.sts.weight=0"], "tasks.sts.weight is 0"),
        (["tasks.sts.weight=inf"], "tasks.sts.weight is inf; it must be a finite number above 0"),
        (["tasks.sts.head=pared"], "tasks.sts.head is pared; did you mean paired"),
        (["tasks.sst.head=paired"], "tasks.sst: head is paired for classify; known: linear"),
        (["tasks.sts.metric=accuracy"], "metric is accuracy for pair_score; known: pearson, spearman"),
        (["tasks.sts.empty=drp"], "tasks.sts.empty is drp; did you mean drop"),
        (["tasks.sst.options={temprature = 1}"], "tasks.sst: unknown setting options.temprature"),
        (["tasks.sts.kind=score"], "kind is score"),
        (["tasks.sts=2"], "tasks.NAME.setting=value"),
        (["tasks.qqp.objective=triple_entropy"], "objective and options are for tasks that classify"),
        (["tasks.sst.objective=tripel_entropy"], "did you mean triple_entropy"),
        (["schedule.name=randm"], "did you mean random"),
        (["schedule.order=[\"sst\"]"], "schedule.order is for sequential and round_robin, not for random"),
        (["schedule.name=together"], "schedule.weights is for random, annealed and mixed, not for together"),
        (["schedule.anneal=7"], "schedule.anneal is 7; it must be from 0 to 1"),
        (["train.metric=accuracy"], "train.metric is for one task with classes"),
        (["pretrain.epochs=2"], "pretrain.epochs is set, but pretrain.data is not"),
        (["pretrain.data=snli", "pretrain.positives=a", "pretrain.negatives=a"], "are both a; a label is one or the other"),
        (["schedule.weights.nli=3"], "schedule.weights names nli, which is no task"),
        (["schedule.name=sequential", "schedule.weights={}", "schedule.power=1.0", "schedule.order=[\"nli\"]"],
         "order names nli, which is no task"),
        (["schedule.surgery=pcgrad", "schedule.weights={}"], "set schedule.name to \"together\""),
        (["shared.dropout=1.5"], "shared.dropout is 1.5"),
        (["train.chunk_size=8"], "use train.accumulate"),
        (["train.positives=2"], "train.positives is for one task"),
        (["train.class_names=3"], "train.class_names is for one task"),
        (["encoder.frozen=true", "pretrain.data=snli"], "contradict each other"),
        (["pretrain.negatives=x"], "needs pretrain.positives"),
        (["sheduel.name=x"], "unknown table"),
    ],
)  # fmt: skip
def test_mistyped_settings_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        read_multitask("exp14", changes)


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [
        (
            'schedule = "random"',
            "schedule.weights.mood=2",
            r"schedule is not a table; write \[schedule\]",
        ),
        ("[schedule]\nweights = 5", "schedule.weights.mood=2", "schedule.weights is not a table"),
        ('[tasks]\nmood = "mood.csv"', "tasks.mood.kind=classify", r"tasks\.mood is not a table"),
    ],
)
def test_changes_of_what_is_no_table_are_refused(tmp_path, text, change, words):
    study = tmp_path / "study.toml"
    study.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_multitask(str(study), [change])


@pytest.mark.parametrize(
    "name",
    ["two words", "größe", "average", "loss", "parts", "keys", "training", "a.b", "", 1, None],
)
def test_names_that_tasks_cannot_have(name):
    with pytest.raises(ConfigError, match="cannot be called"):
        MultiTaskConfig.from_dict({"tasks": {name: {"data": "x"}}})


def test_unknown_recipes_and_empty_studies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither a file nor a recipe; did you mean exp"):
        read_multitask("exp16")
    with pytest.raises(ConfigError, match="does not exist"):
        read_multitask("nowhere.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ConfigError, match="there is no task"):
        read_multitask(str(tmp_path / "empty.toml"))
    with pytest.raises(ConfigError, match="--scale is 0"):
        read_multitask("exp14").scaled(0.0)


# ---------------------------------------------------------------- from Python


def test_the_estimator_tells_kinds_from_the_data(tiny, rows, tmp_path):
    numbers = {
        **rows,
        "same": (rows["same"][0], [int(label == "yes") for label in rows["same"][1]]),
    }
    model = MultiTask({"alike": {"head": "paired"}}, encoder=tiny(), max_length=24, epochs=2, batch_size=8,
                      learning_rate=1e-3, schedule={"name": "together", "surgery": "pcgrad"}).fit(numbers)  # fmt: skip
    assert {name: task.kind for name, task in model.model_.config.tasks.items()} == KINDS
    assert model.model_.config.tasks["alike"].shape == "paired"
    assert set(model.predict("same", rows["same"][0][:5]).tolist()) <= {0, 1}
    assert model.classes("topic") == ["late", "lost", "refund"]
    assert model.predict_proba("topic", rows["topic"][0][:4]).sum(axis=1) == pytest.approx(
        np.ones(4), abs=1e-5
    )
    scores = model.evaluate(numbers)
    assert scores["average"] == pytest.approx(
        np.mean(
            [scores["topic"]["accuracy"], scores["same"]["accuracy"], scores["alike"]["pearson"]]
        )
    )
    model.save(tmp_path / "m")
    again = MultiTask.load(tmp_path / "m")
    assert (
        again.predict("same", rows["same"][0]).tolist()
        == model.predict("same", rows["same"][0]).tolist()
    )
    from sklearn.base import clone

    assert clone(again).get_params()["epochs"] == 2


def test_the_estimator_learns_from_sentences_first(tiny, rows, small):
    model = MultiTask(
        encoder=tiny(),
        max_length=24,
        epochs=1,
        batch_size=8,
        pretrain={"batch_size": 4, "epochs": 1},
    )
    model.fit({"topic": rows["topic"]}, sentences=sorted(set(small[0])))
    assert model.model_.metrics["pretraining"]
    with pytest.raises(ConfigError, match="no sentences"):
        model.fit({"topic": rows["topic"]})
    for nothing in ({}, [rows["topic"]]):
        with pytest.raises(DataError, match="the data are a dictionary"):
            model.evaluate(nothing)


def test_the_estimator_heeds_what_says_how_many_sentences_and_refuses_what_says_which(
    tiny, rows, small, capsys
):
    sentences = sorted(set(small[0]))
    model = MultiTask(
        encoder=tiny(),
        max_length=24,
        epochs=1,
        batch_size=8,
        pretrain={"rows": 6, "epochs": 1, "batch_size": 4},
    )
    model.fit({"topic": rows["topic"]}, sentences=sentences)
    assert "first simcse on 6 rows" in capsys.readouterr().err
    model.set_params(pretrain={"positives": "yes"})
    with pytest.raises(ConfigError, match="pretrain has no positives here; give fit the sentences"):
        model.fit({"topic": rows["topic"]}, sentences=sentences)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "dictionary"),
        ({"t": (["a"], ["x", "y"])}, "1 texts and 2 answers"),
        ({"t": ([], [])}, "empty"),
        ({"t": ["a", "b", "c"]}, "not two lists"),
        ({"t": (["a", "b"], [0.5, 1.5])}, "fractional number"),
        ({"t": ([("a", "b"), ("c", "d")], [0.5, "high"])}, "not a number"),
        ({"t": ([("a", "b"), ("c", "d")], [0.5, float("nan")])}, "row 2 is nan, not finite"),
        ({"t": ([("a", "b")], [1.5])}, "1 rows to train on; that is too few"),
    ],
)
def test_the_estimator_refuses_what_it_cannot_learn_from(tiny, data, words):
    with pytest.raises(DataError, match=words):
        MultiTask(encoder=tiny()).fit(data)


def test_the_estimator_refuses_names_it_has_no_data_for(tiny, rows):
    with pytest.raises(DataError, match="no data for the task topics"):
        MultiTask({"topics": {}}, encoder=tiny()).fit(rows)
    with pytest.raises(DataError, match="the validation part is a dictionary"):
        MultiTask(encoder=tiny()).fit(rows, rows["topic"])
    with pytest.raises(DataError, match="names tpic, which is no task; did you mean topic"):
        MultiTask(encoder=tiny()).fit(rows, {"tpic": rows["topic"]})


# ---------------------------------------------------------------- the command line


@pytest.fixture
def study(files, tiny, tmp_path):
    lines = [
        f'[tasks.{name}]\nkind = "{KINDS[name]}"\ndata = "{path}"\n' for name, path in files.items()
    ]
    lines.append(
        f'[encoder]\nname = "{tiny()}"\nmax_length = 24\n[train]\nepochs = 2\nbatch_size = 8\nvalidation = 0.2\n'
    )
    (tmp_path / "study.toml").write_text("\n".join(lines))
    return tmp_path / "study.toml"


def test_the_command_trains_scores_predicts_and_reports(closeknit, study, files, tmp_path, rows):
    out = tmp_path / "out"
    done = closeknit("multitask", study, "--out", out, "--alone")
    assert "validation alone" in done.stdout and "average" in done.stdout
    assert "all tasks together\n" in done.stderr
    page = (out / "report.html").read_text()
    assert "alike" in page and "alone" in page
    metrics = json.loads((out / "metrics.json").read_text())
    assert set(metrics["alone"]) == set(KINDS)
    assert (out / "alone" / "alike" / "closeknit.json").exists()

    scored = closeknit("evaluate", out, "--json")
    found = json.loads(scored.stdout)
    for name, measure in (
        ("topic", "accuracy"),
        ("same", "accuracy"),
        ("alike", "pearson"),
        ("average", None),
    ):
        before = metrics["validation"][name]
        assert (found[name] if measure is None else found[name][measure]) == pytest.approx(
            before if measure is None else before[measure], abs=1e-6
        )
    one = closeknit("evaluate", out, files["same"], "--task", "same", "--json")
    assert json.loads(one.stdout)["same"]["n"] == len(rows["same"][0])

    answers = closeknit(
        "predict", out, files["alike"], "--task", "alike", "--json"
    ).stdout.splitlines()
    assert len(answers) == len(rows["alike"][0]) and 0.0 <= json.loads(answers[0])["score"] <= 5.0
    classes = closeknit("predict", out, files["topic"], "--task", "topic").stdout.splitlines()
    assert classes[0].split("\t")[0] in ("late", "lost", "refund")
    for wrong, words in (
        (("predict", out, files["topic"]), "choose one with --task: topic, same, alike"),
        (("predict", out, files["topic"], "--task", "topc"), "no task topc; did you mean topic"),
        (
            ("predict", out, files["topic"], "--task", "same"),
            "single texts; pair_classify needs pairs",
        ),
        (
            ("predict", out, "-", "--task", "same"),
            "the task same is about pairs of texts; name a table",
        ),
        (("evaluate", out, files["topic"]), "name the task that the data belong to"),
        (("train", files["topic"], "--config", study), "train them with closeknit multitask"),
        (("multitask", study.parent), "is a folder; name a study file"),
        (("embeddings", files["alike"], "--out", tmp_path / "e"), "a column score"),
        (("multitask", study, "--out", out), "exists already"),
        (
            ("multitask", study, "--out", out, "--resume", "--epochs", "3"),
            "train.epochs was 2 and is 3",
        ),
        (("multitask", study, "--data", "topic"), "write it as TASK=SOURCE"),
        (("multitask", study, "--scale", "3"), "--scale is 3"),
        (("multitask", study, "--scale", "nan"), "--scale is nan"),
    ):
        assert words in closeknit(*wrong, code=2).stderr
    again = closeknit("multitask", study, "--out", out, "--resume", "--alone")
    assert "finished already" in again.stderr
    train = closeknit("evaluate", out, "--part", "train").stdout
    assert train.splitlines()[1].endswith("train") and "average" in train
    one_class = write_csv(
        tmp_path / "lost.csv", ["text", "label"], [("card lost", "lost"), ("lost it", "lost")]
    )
    closeknit("evaluate", out, one_class, "--task", "topic", "--json")
    closeknit("embed", out, files["topic"], "--out", tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (18, 32)
    Path(files["alike"]).unlink()  # the data of another task are not needed
    alone = json.loads(closeknit("evaluate", out, "--task", "same", "--json").stdout)
    assert alone["same"] == found["same"]


def test_a_run_without_anything_to_score_it_on_says_so(closeknit, study, tmp_path):
    out = tmp_path / "out"
    done = closeknit(
        "multitask", study, "--out", out, "--epochs", "1", "--set", "train.validation=0.0"
    )
    assert (
        done.stdout.startswith("the data have neither a validation nor a test set")
        and "average" not in done.stdout
    )


def test_files_are_found_beside_the_study_and_singles_join_a_finished_run(study, tmp_path):
    text = study.read_text()
    for name in KINDS:
        text = text.replace(
            str(tmp_path / f"{name}.csv"), "topics" if name == "topic" else f"{name}.csv"
        )
    study.write_text(text)
    (tmp_path / "topics").mkdir()  # a folder of parts is found too
    (tmp_path / "topic.csv").rename(tmp_path / "topics" / "all.csv")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def run(folder, *arguments, code=0):
        done = run_command(folder, arguments)
        assert done.returncode == code, done.stderr
        return done

    run(elsewhere, "multitask", "../study.toml", "--out", "model", "--epochs", "1")
    run(elsewhere, "evaluate", "model")
    command = ("multitask", study, "--out", elsewhere / "model")
    refused = run(tmp_path, *command, "--resume", "--alone", "--epochs", "2", code=2)
    assert (
        "train.epochs was 1 and is 2" in refused.stderr
        and not (elsewhere / "model" / "alone").exists()
    )
    later = run(tmp_path, *command, "--epochs", "1", "--resume", "--alone")
    assert "validation alone" in later.stdout
    assert set(MultiTaskModel.load(elsewhere / "model").metrics["alone"]) == set(KINDS)
    run(tmp_path, *command, "--epochs", "1", "--overwrite")
    assert not (elsewhere / "model" / "alone").exists()


def test_a_folder_in_which_a_run_is_at_work_is_left_to_it(closeknit, study, tmp_path):
    from closeknit.storage import lock_folder

    out = tmp_path / "out"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints" / "run.json").write_text("{}")
    handle = lock_folder(out / "checkpoints" / "lock", out)
    assert handle is not None
    try:
        refused = closeknit("multitask", study, "--out", out, "--overwrite", code=2)
        assert "another run is using" in refused.stderr
        assert (out / "checkpoints" / "run.json").exists()
    finally:
        handle.close()
    assert "not finished" in closeknit("report", out, code=2).stderr


def test_pretraining_learns_from_no_pair_that_a_task_is_scored_on(files):
    stage = {"data": files["same"], "positives": "yes"}
    told: list[str] = []

    def learnt(**tables) -> tuple[set[tuple[str, ...]], set[tuple[str, str]]]:
        config = dataclasses.replace(
            with_data({"same": files["same"]}, **tables),
            pretrain=MultiTaskConfig.from_dict({"tasks": {"t": {}}, "pretrain": stage}).pretrain,
        )
        data = load_tasks(config)
        held = data["same"].validation
        (sentences,) = pretraining_sentences(config, data, log=told.append)
        return {*zip(*sentences.columns, strict=True)}, {*zip(held.texts, held.pairs, strict=True)}

    pairs, held = learnt()
    assert pairs and not pairs & held
    assert (
        len(told) == 1
        and "also in the validation or test part of a task and are left out" in told[0]
    )
    kept, held = learnt(same={"leaks": "keep"})
    assert kept & held
    stage["negatives"] = "no"  # that two texts do not belong together is told of a pair, too
    triplets, held = learnt()
    assert triplets and not {(text, negative) for text, _, negative in triplets} & held
    texts = Path(files["same"]).parent / "texts.csv"
    write_csv(texts, ["text"], [(text,) for text, _ in sorted(held)])
    stage.clear()
    stage["data"] = str(texts)  # texts alone tell nothing
    assert len(learnt()[0]) == len({text for text, _ in held})


def test_judged_or_scored_pairs_are_not_all_learnt_as_belonging_together(tmp_path):
    rows = [("p", "e", "entailment"), ("p", "c", "contradiction"), ("q", "n", "neutral")]
    judged = write_csv(tmp_path / "nli.csv", ["text", "text2", "label"], rows)
    config = MultiTaskConfig.from_dict(
        {"tasks": {"t": {"data": judged}}, "pretrain": {"data": judged}}
    )
    with pytest.raises(DataError, match=r"contradiction, entailment, neutral.*pretrain\.positives"):
        pretraining_sentences(config, {})
    scored = write_csv(
        tmp_path / "sts.csv", ["text", "text2", "score"], [("a", "b", 1), ("c", "d", 5)]
    )
    config = MultiTaskConfig.from_dict(
        {"tasks": {"t": {"data": judged}}, "pretrain": {"data": scored}}
    )
    with pytest.raises(DataError, match="a column score"):
        pretraining_sentences(config, {})


def test_settings_of_the_stage_before_are_named_as_they_are_set(tiny, parts, small):
    sentences = sentences_from(sorted(set(small[0])))
    for setting, words in (({"method": "simsce"}, r"pretrain\.method is simsce; did you mean simcse"),
                           ({"temperature": 0.0}, r"pretrain\.temperature is 0")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            MultiTaskFit(
                parts, settings(tiny(), pretrain={"data": "x", **setting}), sentences=sentences
            )


def test_labels_that_training_lacks_name_the_task(tiny, parts):
    own = parts["topic"].train
    strange = dataclasses.replace(own, labels=["lost"] * (len(own) - 1) + ["stolen"])
    for part in ("validation", "test"):
        data = {**parts, "topic": dataclasses.replace(parts["topic"], **{part: strange})}
        with pytest.raises(DataError, match=r"task topic: .*does not know the label stolen"):
            MultiTaskFit(data, settings(tiny()))


def test_the_rates_that_a_run_had_are_told_by_what_learnt_at_them(tiny, parts):
    task = {
        "kind": "classify",
        "data": "x",
        "objective": "triple_entropy",
        "options": {"centers": 3},
    }
    train = {"epochs": 1, "lr": 1e-4, "head_lr": 2e-3, "objective_lr": 3e-2}
    config = settings(tiny(), tasks={"topic": task}, train=train).only("topic")
    model = drained(MultiTaskFit({"topic": parts["topic"]}, config)).model
    assert model.metrics["rates"] == {"encoder": 1e-4, "heads": 2e-3, "objectives": 3e-2}
    frozen = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, frozen=True))
    model = drained(MultiTaskFit({"topic": parts["topic"]}, frozen)).model
    assert model.metrics["rates"] == {"heads": 2e-3, "objectives": 3e-2}
