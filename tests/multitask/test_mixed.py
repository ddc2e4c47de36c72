"""Mixed batches, several stages of pretraining, and scores on training rows."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_multitask import (  # noqa: F401
    drained,
    files,
    parts,
    rows,
    settings,
    state_of,
)

from closeknit import MultiTask
from closeknit.data import sentences_from
from closeknit.errors import ConfigError
from closeknit.multitask.config import MultiTaskConfig
from closeknit.multitask.fit import MultiTaskFit
from closeknit.multitask.model import TRAIN_ROWS, some_rows
from closeknit.multitask.study_file import read_multitask
from closeknit.settings import to_toml
from closeknit.training.schedules import Mixture, ScheduleConfig

# ---------------------------------------------------------------- mixed batches


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), min_size=1),
    st.integers(1, 20),
    st.floats(0.0, 1.0),
    st.integers(0, 1000),
)
def test_every_batch_holds_the_tasks_in_proportion(rows, batch_size, power, seed):  # noqa: F811
    mixture = Mixture.of(ScheduleConfig("mixed", power=power), rows, batch_size, seed)
    total = sum(rows.values())
    for epoch in range(2):
        sizes = mixture.sizes(epoch)
        whole = sizes.sum(axis=0)
        assert whole.sum() == total and whole.max() <= batch_size
        assert whole.max() - whole.min() <= 1
        for size, count in zip(sizes, mixture.counts.values(), strict=True):
            assert size.sum() == count and size.max() - size.min() <= 1
    if power == 1.0:
        assert dict(mixture.counts) == rows
    schedule = mixture.schedule(2)
    taken = dict.fromkeys(rows, 0)
    plans = {name: mixture.plan(name, np.arange(rows[name]), seed) for name in rows}
    for number in range(schedule.steps):
        epoch, update = divmod(number, mixture.updates)
        found = 0
        for name in schedule.turns(number):
            place, within = divmod(taken[name], mixture.per_epoch(name))
            assert place == epoch
            batch = plans[name](epoch)[within]
            assert len(batch) == mixture.sizes(epoch)[list(rows).index(name), update] > 0
            found += len(batch)
            taken[name] += 1
        assert found == mixture.sizes(epoch)[:, update].sum()
    for name, plan in plans.items():
        drawn = np.concatenate(plan(0))
        uses = np.bincount(drawn, minlength=rows[name])
        assert uses.max() - uses.min() <= 1 and len(drawn) == mixture.counts[name]


def test_the_loss_of_a_mixed_batch_is_the_mean_of_the_losses_of_its_tasks(tiny, parts):  # noqa: F811
    def first_update(weight):
        config = settings(tiny(), schedule={"name": "mixed"}, train={"clip": 1e9, "batch_size": 12})
        same = dataclasses.replace(config.tasks["same"], weight=weight)
        config = dataclasses.replace(config, tasks={**config.tasks, "same": same})
        fit = MultiTaskFit(parts, config)
        own = {}
        fit.training.learners.eval()  # the same forward pass without dropout
        for module in fit.training.learners.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        batches = {}
        for task in fit.training.tasks:
            batch = batches[task.name] = task.batch(0, 0, 1)
            views = fit.training.gradients.views(task, batch, (1,))
            own[task.name] = task.objective(views)[0]
        names = list(fit.training.schedule.turns(0))
        assert len(names) == 3
        assert sum(len(batch.rows) for batch in batches.values()) <= 12
        losses = [own[name] * (weight if name == "same" else 1.0) for name in names]
        mean = torch.stack(losses).mean()
        mean.backward()
        expected = {id(p): p.grad.clone() for p in fit.training.parameters if p.grad is not None}
        fit.training.optimizer.zero_grad(set_to_none=True)
        given = {name: [batches[name]] for name in names}
        turn = [task for task in fit.training.tasks if task.name in names]
        losses, _, values = fit.training.apply(turn, given)
        for p in fit.training.parameters:
            if p.grad is not None:
                assert torch.allclose(p.grad, expected[id(p)], rtol=1e-3, atol=1e-6)
        assert sum(values[: len(losses)].tolist()) == pytest.approx(mean.item(), rel=1e-4)

    first_update(1.0)
    first_update(3.0)


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"schedule": {"surgery": "pcgrad", "surgery_reduction": "mean"}},
        {"train": {"accumulate": 3}, "schedule": {"power": 0.0}},
    ],
    ids=["plain", "surgery", "accumulate"],
)
def test_an_interrupted_mixed_run_ends_with_the_same_weights(tiny, parts, tmp_path, tables):  # noqa: F811
    tables = {**tables, "schedule": {"name": "mixed", **tables.get("schedule", {})}}
    config = settings(tiny(), **tables)
    whole = drained(MultiTaskFit(parts, config))
    assert all(count > 0 for count in whole.training.taken.values())
    rows = sum(len(own.train) for own in parts.values())  # noqa: F811
    assert whole.steps == 2 * -(-rows // 8)
    first = MultiTaskFit(parts, config, folder=tmp_path)
    for step in first:
        if step.number == 13:
            first.save_state()
            break
    second = drained(MultiTaskFit(parts, config, folder=tmp_path, resume=True))
    assert second.session.history == whole.session.history
    for key, value in state_of(whole).items():
        assert torch.equal(value, state_of(second)[key]), key


def test_what_mixed_batches_cannot_bring_together_is_refused(tiny, parts):  # noqa: F811
    config = settings(tiny(), schedule={"name": "mixed"})
    topic = dataclasses.replace(config.tasks["topic"], objective="supcon")
    compared = dataclasses.replace(config, tasks={**config.tasks, "topic": topic})
    with pytest.raises(ConfigError, match="the objective of topic compares rows of a class"):
        MultiTaskFit(parts, compared)
    same = dataclasses.replace(config.tasks["same"], objective="multiple_negatives")
    ranked = dataclasses.replace(config, tasks={**config.tasks, "same": same})
    with pytest.raises(ConfigError, match=r"has 1 pairs of same .* raise train\.batch_size"):
        MultiTaskFit(parts, ranked)
    drained(
        MultiTaskFit(
            parts,
            dataclasses.replace(ranked, train=dataclasses.replace(config.train, batch_size=24)),
        )
    )


# ---------------------------------------------------------------- several stages of pretraining

STAGES = [
    {"data": "texts", "epochs": 1, "batch_size": 4, "lr": 1e-3},
    {"data": "pairs", "method": "multiple_negatives", "epochs": 2, "batch_size": 4, "lr": 1e-3},
]


def staged(encoder: str, stages=STAGES) -> MultiTaskConfig:
    tables = settings(encoder).to_dict()
    del tables["pretrain"]
    return MultiTaskConfig.from_dict({**tables, "pretrain": stages})


@pytest.mark.parametrize("stop", [3, 8, 17])
def test_a_run_with_several_stages_is_taken_up_in_any_of_them(tiny, parts, small, tmp_path, stop):  # noqa: F811
    texts = sorted(set(small[0]))
    stages = [
        sentences_from(texts),
        sentences_from(list(zip(texts[:16:2], texts[1::2], strict=False))),
    ]
    config = staged(tiny())

    def fit(**options):
        return MultiTaskFit(parts, config, sentences=stages, **options)

    whole = fit()
    assert [own.steps for own in whole.pretrainings] == [5, 4]
    drained(whole)
    trunks = {id(own.model.encoder.trunk) for own in whole.pretrainings}
    assert trunks == {id(whole.model.encoder.trunk)}
    records = whole.model.metrics["pretraining"]
    assert [record["stage"] for record in records] == [1, 2, 2]
    first = fit(folder=tmp_path)
    for step in first:
        if step.number == stop:
            first.save_state()
            break
    second = drained(fit(folder=tmp_path, resume=True))
    assert second.session.history == whole.session.history
    assert second.model.metrics["pretraining"] == records
    for key, value in state_of(whole).items():
        assert torch.equal(value, state_of(second)[key]), key


def test_every_stage_is_trained_with_dropout_and_changes_the_next(tiny, parts, small):  # noqa: F811
    texts = sorted(set(small[0]))
    stages = [
        sentences_from(texts),
        sentences_from(list(zip(texts[::2], texts[1::2], strict=False))),
    ]
    told: list[str] = []
    fit = MultiTaskFit(parts, staged(tiny()), sentences=stages, log=told.append)
    weight = fit.model.encoder.trunk.encoder.layer[0].output.dense.weight
    seen = [weight.detach().clone()]
    for step in fit:
        if step.number in (4, 8):
            own = fit.pretrainings[0 if step.number == 4 else 1].training.learners
            assert all(module.training for module in own.modules())
            seen.append(weight.detach().clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    methods = [line.split(" on ")[0] for line in told if "of the" in line]
    assert methods == ["first simcse", "then multiple_negatives"]


def test_stages_are_read_from_a_list_or_numbered_tables(tmp_path):
    tasks = '[tasks.t]\nkind = "classify"\ndata = "trec"\n'
    file = tmp_path / "study.toml"
    file.write_text(
        tasks + '[[pretrain]]\ndata = "snli"\n[[pretrain]]\ndata = "stsb"\n'
        'method = "multiple_negatives"\nsimilarity = "dot"\n'
    )
    config = read_multitask(str(file), ["pretrain.2.lr=0.5", "pretrain.rows=7"])
    assert [stage.data for stage in config.stages] == ["snli", "stsb"]
    assert [stage.lr for stage in config.stages] == [None, 0.5]
    assert [stage.rows for stage in config.stages] == [7, 0]
    assert list(config.to_dict())[-3:] == ["pretrain", "pretrain.2", "trial"]
    (tmp_path / "run.toml").write_text(to_toml(config.to_dict()))
    assert read_multitask(str(tmp_path / "run.toml")) == config
    assert MultiTaskConfig.from_dict(config.to_dict()) == config
    file.write_text(tasks + '[pretrain]\ndata = "snli"\n')
    single = read_multitask(str(file))
    assert [name for name in single.to_dict() if name.startswith("pretrain")] == ["pretrain"]
    assert "similarity" not in single.key_content()["pretrain"]
    assert single.scaled(0.5).stages == single.stages
    for text, words in (
        ("[[pretrain]]\ndata = \"a\"\n[[pretrain]]\nrows = 0\n", "pretrain.2.data is not given"),
        ("[pretrain]\ndata = \"a\"\n[pretrain.3]\ndata = \"b\"\n", "numbered 3; after"),
        ("[[pretrain]]\ndata = \"a\"\n[[pretrain]]\ndat = \"b\"\n", "unknown setting pretrain.2.dat"),
        ("[pretrain]\ndata = \"a\"\nsimilarity = \"dot\"\n", "for multiple_negatives, not for simcse"),
    ):  # fmt: skip
        file.write_text(tasks + text)
        with pytest.raises(ConfigError, match=words):
            read_multitask(str(file))


def test_stages_are_given_in_python(tiny, rows, tmp_path):  # noqa: F811
    texts = rows["topic"][0]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    options = {"epochs": 1, "batch_size": 4}
    stages = [options, {**options, "method": "multiple_negatives", "similarity": "dot"}]
    model = MultiTask(encoder=tiny(), epochs=1, batch_size=8, max_length=24, pretrain=stages)
    model.fit({"topic": rows["topic"]}, sentences=[texts, pairs])
    assert [stage.method for stage in model.model_.config.stages] == [
        "simcse",
        "multiple_negatives",
    ]
    model.save(tmp_path / "model")
    again = MultiTask.load(tmp_path / "model")
    assert [stage["similarity"] for stage in again.pretrain] == ["cosine", "dot"]
    with pytest.raises(
        ConfigError, match="pretrain has 2 stages, but fit was given sentences for 1"
    ):
        model.fit({"topic": rows["topic"]}, sentences=[texts])


# ---------------------------------------------------------------- scores on training rows


def test_training_rows_are_scored_beside_the_others(tiny, parts):  # noqa: F811
    model = drained(MultiTaskFit(parts, settings(tiny(), train={"epochs": 1}))).model
    model.analyse(parts)
    found = model.metrics["train"]
    for name, own in parts.items():
        measure = model.task(name).measure
        assert found[name][measure] == pytest.approx(model.score(name, own.train)[measure])
    assert found["average"] == pytest.approx(model.average({n: found[n] for n in parts}))


def test_a_bounded_number_of_training_rows_is_scored(parts):  # noqa: F811
    own = parts["topic"].train
    assert some_rows(own) is own and TRAIN_ROWS == 1000
    fewer = some_rows(own, 5)
    assert len(fewer) == 5 and fewer.texts == some_rows(own, 5).texts
    assert set(fewer.texts) <= set(own.texts)


def test_the_command_trains_mixed_batches_with_ranking_and_shows_training_scores(
    closeknit,
    tiny,
    files,  # noqa: F811
    tmp_path,
):
    lines = [
        f'[encoder]\nname = "{tiny()}"\nmax_length = 24\n[schedule]\nname = "mixed"',
        "[train]\nepochs = 2\nbatch_size = 32\nvalidation = 0.2\nlr = 1e-3",
        f'[tasks.topic]\nkind = "classify"\ndata = "{files["topic"]}"\nleaks = "keep"',
        f'[tasks.same]\nkind = "pair_classify"\ndata = "{files["same"]}"\nleaks = "keep"',
        'objective = "multiple_negatives"\noptions = { similarity = "dot" }\npositive = "yes"',
        f'[tasks.alike]\nkind = "pair_score"\ndata = "{files["alike"]}"\nleaks = "keep"',
        'head = "joined"\noutput_activation = "gelu"',
    ]
    (tmp_path / "study.toml").write_text("\n".join(lines))
    shown = closeknit("multitask", "study.toml", "--out", "m").stdout
    assert shown.splitlines()[0].split() == ["task", "metric", "train", "validation"]
    metrics = json.loads((tmp_path / "m" / "metrics.json").read_text())
    assert metrics["train"].keys() == {"topic", "same", "alike", "average"}
    assert len(closeknit("predict", "m", files["same"], "--task", "same").stdout.splitlines()) > 0
    assert (
        "finished already" in closeknit("multitask", "study.toml", "--out", "m", "--resume").stderr
    )
    assert "similarity" in (tmp_path / "m" / "report.html").read_text()
    for change, words in (
        ("tasks.same.positive=maybe", "task same: positive is maybe, which no row has"),
        ("tasks.same.options.margin=2", "tasks.NAME.setting"),
        ("tasks.topic.output_activation=sigmoid", "output_activation is sigmoid"),
        ("tasks.alike.head=paired", "output_activation is gelu, but it is for the heads linear"),
        ("schedule.surgery_reduction=mean", "schedule.surgery is none"),
    ):
        said = closeknit("multitask", "study.toml", "--out", "n", "--set", change, code=2).stderr
        assert words in said and "Traceback" not in said
