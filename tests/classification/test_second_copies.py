"""Two copies of every text: for every objective, every second view, in parts, chunks and resumed."""

from __future__ import annotations

import csv
import math
import random

import numpy as np
import pytest
import torch

from closeknit import TextClassifier
from closeknit.classification.config import RunConfig, read_config
from closeknit.classification.fit import ClassifierFit
from closeknit.data import from_python
from closeknit.data.splits import Parts
from closeknit.errors import ConfigError, DataError
from closeknit.models.memory import Lane, Stock
from closeknit.multitask.config import MultiTaskConfig
from closeknit.multitask.fit import MultiTaskFit
from closeknit.objectives import OBJECTIVES, Joint, SupCon, Term, build_objective
from closeknit.objectives.config import ObjectiveConfig
from closeknit.objectives.copies import SECOND_VIEWS, Copies
from closeknit.training.cuda_graphs import why_not_captured
from conftest import losses_of

LONG = " please help me with it today thanks"
VIEWS = [view for view in SECOND_VIEWS if view != "function"]


def noisy(texts):
    """A function of a user that draws at random."""
    return [" ".join(random.sample(text.split(), len(text.split()))) for text in texts]


@pytest.fixture
def long_rows(small):
    """Texts that are long enough for a masked span."""
    texts, labels = small
    return [text + LONG for text in texts], labels


def config(tiny, objective="supcon", kind="bert", encoder=None, **tables) -> RunConfig:
    name = "textcnn" if kind == "textcnn" else tiny(kind)
    train = {"epochs": 3, "batch_size": 12, "lr": 1e-3, **tables.pop("train", {})}
    return RunConfig.from_dict(
        {
            "encoder": {"name": name, "max_length": 24, **(encoder or {})},
            "objective": {"name": objective, "copies": 2, **tables},
            "train": train,
        }
    )


def fit_of(rows, settings, **options) -> ClassifierFit:
    view = settings.objective.options.get("second_view")
    function = noisy if view == "function" else None
    options = {"log": lambda line: None, **options}
    return ClassifierFit(from_python(*rows), settings, second_view=function, **options)


# ---------------------------------------------------------------- every objective


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_name_trains_with_two_copies_on_the_command_line(closeknit, tiny, small_csv, name):
    done = closeknit(
        "train", small_csv, "--objective", name, "--encoder", tiny(), "--out", "model",
        "--set", "objective.copies=2", "--set", "train.epochs=1", "--set", "encoder.max_length=12",
        "--set", "train.class_names=0",
    )  # fmt: skip
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("way", [{"chunk_size": 5}, {"accumulate": 2}])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_every_name_trains_with_two_copies_in_chunks_and_in_parts(tiny, small, name, way):
    train = {"epochs": 1, "class_names": 0, **way}
    fit = fit_of(small, config(tiny, name, second_view="adversarial", train=train))
    assert all(math.isfinite(loss) for loss in losses_of(fit))


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_a_batch_holds_every_text_twice_and_every_term_reads_all_rows(tiny, small, name):
    fit = fit_of(small, config(tiny, name, train={"epochs": 1, "class_names": 0}))
    (task,) = fit.training.tasks
    batch = task.batch(0, 0, 1)
    assert len(batch.labels) == 2 * len(batch.rows)
    assert batch.is_second_copy.tolist() == [False] * 12 + [True] * 12
    first, second = batch.inputs["input_ids"].chunk(2)
    assert torch.equal(first, second)
    views = fit.training.gradients.views(task, batch, fit.training.dropout_seeds)
    for view, rows in views.items():
        assert len(rows.z) >= len(batch.labels), view
        if view.endswith("tokens"):
            continue
        assert torch.equal(rows.y, torch.from_numpy(fit.y[batch.rows]).repeat(2))
        one, two = rows.z.chunk(2)
        assert not torch.allclose(one, two, atol=1e-5), view  # of both encoders of lcl, too
    assert task.objective.rows_of_a_class == 0


def test_supervised_contrast_is_the_papers_sum_over_2k_rows(tiny, small):
    """Every text and its copy are rows: 2K - 1 others each, and the copy is a positive."""
    fit = fit_of(small, config(tiny, "supcon", temperature=0.5, ce_weight=0.0))
    (task,) = fit.training.tasks
    batch = task.batch(0, 0, 1)
    views = fit.training.gradients.views(task, batch, fit.training.dropout_seeds)
    loss, _ = task.objective(views)
    z = [
        [v / math.sqrt(sum(x * x for x in row)) for v in row] for row in views["pooled"].z.tolist()
    ]
    y = [fit.y[row] for row in batch.rows] * 2
    rows = range(len(z))
    near = [[sum(a * b for a, b in zip(z[i], z[j], strict=True)) / 0.5 for j in rows] for i in rows]
    total = 0.0
    for i in rows:
        positives = [j for j in rows if j != i and y[j] == y[i]]
        bottom = math.log(sum(math.exp(near[i][j]) for j in rows if j != i))
        total += sum(bottom - near[i][j] for j in positives) / len(positives)
    assert loss.item() == pytest.approx(total / len(z), rel=1e-5)


def test_copies_can_be_one_for_objectives_that_have_two(tiny, small):
    fit = fit_of(small, config(tiny, "clld", copies=1, adaptive=False, train={"epochs": 1}))
    assert len(fit.training.tasks[0].batch(0, 0, 1).labels) == 12
    with pytest.raises(ConfigError, match=r"consistency compares two passes.*copies to 2"):
        build_objective("auto", 4, 3, {"copies": 1})
    alone = build_objective("auto", 4, 3, {"copies": 1, "consistency": 0.0})
    assert alone.copies == 1 and alone.rows_of_a_class == 2


def test_joint_without_terms_is_cross_entropy():
    assert [term.name for term in build_objective("joint", 4, 3, {}).terms] == ["CrossEntropy"]


def test_options_at_their_defaults_do_not_change_the_key_of_a_run():
    for name, row in OBJECTIVES.items():
        content = ObjectiveConfig(name).key_content()
        new = {"second_view", "mask", "synonyms", "synonym_share", "drophead", "epsilon"}
        assert not new & content.keys()
        assert ("copies" in content) == (name == "joint")
        usual = 2 if name in ("auto", "clld") else 1
        assert row.options["copies"] == usual
        other = ObjectiveConfig(name, {"copies": 3 - usual}).key_content()
        assert other["copies"] == 3 - usual


# ---------------------------------------------------------------- every second view


@pytest.mark.parametrize("view", SECOND_VIEWS)
def test_a_resumed_run_sees_the_same_views(tiny, long_rows, tmp_path, view):
    """Stopped in the middle and resumed: the same losses and weights, bit by bit."""
    train = {"checkpoint_seconds": 0.0, "validation": 0.25, "chunk_size": 0}
    settings = config(tiny, second_view=view, train=train)
    whole = fit_of(long_rows, settings)
    losses = losses_of(whole)
    assert len(losses) == 9
    head = losses_of(fit_of(long_rows, settings, folder=tmp_path), until=4)
    second = fit_of(long_rows, settings, folder=tmp_path, resume=True)
    assert head + losses_of(second) == losses
    a, b = whole.training.learners.state_dict(), second.training.learners.state_dict()
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("view", ["span", "synonyms", "function"])
def test_only_the_second_copy_has_a_changed_text_and_another_one_each_epoch(tiny, long_rows, view):
    fit = fit_of(long_rows, config(tiny, second_view=view, train={"batch_size": 36}))
    batch, again, later = (fit.training.tasks[0].batch(number, 0, 1) for number in (0, 0, 1))
    width = batch.inputs["input_ids"].shape[1]
    first, second = batch.inputs["input_ids"].chunk(2)
    own = fit.tokens.pad(batch.rows)["input_ids"]
    assert torch.equal(first[:, : own.shape[1]], own)
    assert (first != second).any(1).all()
    assert torch.equal(batch.inputs["input_ids"], again.inputs["input_ids"])
    assert batch.labels.tolist() == [*fit.y[batch.rows]] * 2
    by_row = {row: ids.tolist() for row, ids in zip(batch.rows, second, strict=True)}
    moved = [
        by_row[row][: min(width, len(ids))] != ids.tolist()[: min(width, len(ids))]
        for row, ids in zip(later.rows, later.inputs["input_ids"].chunk(2)[1], strict=True)
    ]
    assert np.mean(moved) > 0.5


@pytest.mark.parametrize("view", ["span", "synonyms"])
def test_parts_of_a_batch_hold_the_changed_texts_of_the_whole(tiny, long_rows, view):
    fit = fit_of(long_rows, config(tiny, second_view=view))
    batch = fit.training.tasks[0].batch
    whole = batch(1, 0, 1)
    rows = []
    for part in range(2):
        piece = batch(1, part, 2)
        rows += piece.inputs["input_ids"].chunk(2)[1].tolist()
    expected = whole.inputs["input_ids"].chunk(2)[1].tolist()
    assert [[i for i in row if i] for row in rows] == [[i for i in row if i] for row in expected]


def test_both_texts_of_a_pair_are_changed(tiny, long_rows):
    texts, labels = long_rows
    pairs = list(zip(texts, texts, strict=True))
    settings = config(tiny, second_view="span", encoder={"max_length": 48})
    fit = fit_of((pairs, labels), settings)
    mask = fit.model.tokeniser.tokenizer.mask_token_id
    first, second = fit.training.tasks[0].batch(0, 0, 1).inputs["input_ids"].chunk(2)
    assert not (first == mask).any()
    assert ((second == mask).sum(1) == 2).all()


@pytest.mark.parametrize("view", ["dropout", "adversarial", "drophead"])
def test_chunks_have_the_gradients_of_the_chunks_with_all_graphs(tiny, small, view):
    from closeknit.objectives.view import View

    fit = fit_of(small, config(tiny, "lcl", second_view=view, train={"chunk_size": 7}))
    training = fit.training
    (task,) = training.tasks
    batch = task.batch(0, 0, 1)
    seeds = training.dropout_seeds
    found = []
    for cached in (True, False):
        training.optimizer.zero_grad()
        if cached:
            training.gradients.of_batch(task, batch, 1.0, seeds)
        else:
            parts = [
                training.gradients.views(task, chunk, seeds, number)
                for number, chunk in enumerate(batch.chunks(7))
            ]
            views = {
                name: View(
                    torch.cat([p[name].z for p in parts]), torch.cat([p[name].y for p in parts])
                )
                for name in task.objective.views
            }
            task.objective(views, 0.0)[0].backward()
        named = training.learners.named_parameters()
        found.append({name: p.grad.clone() for name, p in named if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-6, rtol=1e-4), name


@pytest.mark.parametrize("view", VIEWS)
def test_a_lane_learns_what_a_run_alone_does(tiny, long_rows, view):
    examples = from_python(*long_rows)
    rows = np.arange(len(examples))[::-2].copy()
    settings = config(tiny, second_view=view, train={"epochs": 1})
    alone = ClassifierFit(examples.select(rows), settings)
    lane = Lane(Stock(examples))
    lane.rows = rows
    shared = ClassifierFit(examples.select(rows), settings, stock=lane.stock, lane=lane)
    assert losses_of(shared) == pytest.approx(losses_of(alone), rel=1e-5)


@pytest.mark.parametrize("view", ["synonyms", "adversarial", "function"])
def test_textcnn_takes_the_views_that_it_can(small, tiny, view):
    fit = fit_of(small, config(tiny, kind="textcnn", second_view=view, train={"epochs": 1}))
    assert all(math.isfinite(loss) for loss in losses_of(fit))


def test_an_adversarial_view_of_vectors_alone(tiny, small):
    fit = fit_of(small, config(tiny, second_view="adversarial", ce_weight=0.0))
    assert fit.objective.views == ("pooled",)
    assert all(math.isfinite(loss) for loss in losses_of(fit))


@pytest.mark.parametrize("view", SECOND_VIEWS)
def test_updates_that_cannot_be_captured_say_why(tiny, long_rows, view):
    reasons = {
        "dropout": None,
        "adversarial": "the second view of a text changes how the encoder computes",
        "drophead": "the second view of a text changes how the encoder computes",
    }
    fit = fit_of(long_rows, config(tiny, second_view=view))
    assert why_not_captured(fit.training) == reasons.get(view, "batches are made anew from texts")


def test_low_rank_adapters_do_not_hide_the_attention_heads(tiny, small):
    pytest.importorskip("peft")
    options = {"second_view": "drophead", "encoder": {"lora_rank": 2}, "train": {"epochs": 1}}
    assert all(math.isfinite(loss) for loss in losses_of(fit_of(small, config(tiny, **options))))


@pytest.mark.parametrize("view", ["synonyms", "adversarial"])
def test_a_task_among_several_has_the_second_view_too(tiny, long_rows, view):
    options = {"copies": 2, "second_view": view}
    task = {"kind": "classify", "objective": "supcon", "options": options}
    settings = MultiTaskConfig.from_dict(
        {
            "tasks": {"one": task, "two": {"kind": "classify"}},
            "encoder": {"name": tiny(), "max_length": 24},
            "train": {"epochs": 1, "batch_size": 12, "validation": 0.0},
        }
    )
    parts = {name: Parts(from_python(*long_rows), None, None) for name in ("one", "two")}
    fit = MultiTaskFit(parts, settings, log=lambda text: None)
    batch = fit.training.tasks[0].batch(0, 0, 1)
    first, second = batch.inputs["input_ids"].chunk(2)
    assert torch.equal(first, second) == (view == "adversarial")
    assert len(fit.training.tasks[1].batch(0, 0, 1).labels) == 12
    assert all(math.isfinite(loss) for loss in losses_of(fit))


# ---------------------------------------------------------------- from Python


def test_a_function_from_python_makes_the_second_view(tiny, small, tmp_path):
    seen = []

    def shout(texts):
        seen.extend(texts)
        return [text.upper() + " now" for text in texts]

    model = TextClassifier(
        "supcon", tiny(), epochs=1, batch_size=12, max_length=16, second_view=shout
    ).fit(*small)
    assert sorted(seen) == sorted(small[0])
    model.save(tmp_path / "model")
    again = TextClassifier.load(tmp_path / "model")
    assert again.objective_options == {"copies": 2, "second_view": "function"}
    assert again.predict(small[0][:3]).tolist() == model.predict(small[0][:3]).tolist()
    with pytest.raises(ConfigError, match="there is no function: give one in Python"):
        again.fit(*small)
    by_name = TextClassifier("supcon", tiny(), epochs=1, max_length=16, second_view="synonyms")
    assert by_name.fit(*small).model_.config.objective.options["second_view"] == "synonyms"


def test_a_function_that_returns_another_number_of_rows_is_refused(tiny, small):
    model = TextClassifier(
        "supcon",
        tiny(),
        epochs=1,
        batch_size=12,
        max_length=16,
        second_view=lambda texts: texts[1:],
    )
    with pytest.raises(DataError, match="returned 11 rows for 12 texts; it must return one text"):
        model.fit(*small)


def test_a_task_of_ones_own_loop_has_the_second_view_too(tiny, small):
    from closeknit import load_encoder, make_task

    encoder, tokenise = load_encoder(tiny(), max_length=16)
    copies = Copies(copies=2, second_view="function", function=lambda texts: ["card"] * len(texts))
    joint = Joint([Term("supcon", 1.0, SupCon(), "pooled")], copies=copies)
    task = make_task(*small, encoder=encoder, tokenise=tokenise, objective=joint, batch_size=6)
    second = task.batch(0, 0, 1).inputs["input_ids"].chunk(2)[1]
    card = tokenise.tokenizer.convert_tokens_to_ids("card")
    assert (second[:, 1] == card).all()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bert", {"copies": 3}, "objective.copies is 3; it must be 1 or 2"),
        ("bert", {"copies": 1, "second_view": "span"}, "there is no second copy; set objective.copies"),
        ("bert", {"second_view": "spam"}, "objective.second_view is spam; did you mean span"),
        ("bert", {"mask": 7}, "objective.mask is 7, but it is for objective.second_view=span"),
        ("bert", {"second_view": "span", "mask": 0}, "whole number above 0"),
        ("bert", {"second_view": "adversarial", "epsilon": 0.0}, "objective.epsilon is 0.0"),
        ("bert", {"second_view": "drophead", "drophead": 1.0}, "must be between 0 and 1"),
        ("bert", {"second_view": "synonyms", "synonym_share": 0.0}, "must be above 0 and at most 1"),
        ("bert", {"second_view": "synonyms", "synonyms": 3}, "must be the name of a file"),
        ("bert", {"second_view": "synonyms", "synonyms": "no.tsv"}, "no.tsv does not exist"),
        ("textcnn", {"second_view": "span"}, "no mask token; use another second view"),
        ("textcnn", {"second_view": "drophead"}, "does not know the attention heads"),
        ("xlnet", {"second_view": "drophead"}, "does not know the attention heads"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(tiny, small, kind, options, message):
    with pytest.raises(ConfigError, match=message):
        fit_of(small, config(tiny, kind=kind, **options))


def test_a_function_without_its_name_is_refused(tiny, small):
    settings = config(tiny, second_view="span")
    with pytest.raises(ConfigError, match="a function for the second view is given, but"):
        ClassifierFit(from_python(*small), settings, second_view=noisy)


@pytest.mark.parametrize(
    ("lines", "message"),
    [("big\tlarge\n\nold\tancient\n", "line 2 of the synonym file"), ("big\n", "holds one word")],
)
def test_a_bad_synonym_file_ends_the_command_with_a_sentence(
    closeknit, tiny, small_csv, tmp_path, lines, message
):
    path = tmp_path / "mine.tsv"
    path.write_text(lines, encoding="utf-8")
    done = closeknit(
        "train", small_csv, "--objective", "supcon", "--encoder", tiny(), "--out", "model",
        "--set", "encoder.max_length=12", "--set", "objective.copies=2",
        "--set", "objective.second_view=synonyms",
        "--set", f'objective.synonyms="{path}"', code=2,
    )  # fmt: skip
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_function_cannot_come_from_the_command_line(closeknit, tiny, small_csv):
    done = closeknit(
        "train", small_csv, "--objective", "supcon", "--encoder", tiny(), "--out", "model",
        "--set", "encoder.max_length=12", "--set", "objective.copies=2",
        "--set", "objective.second_view=function", code=2,
    )  # fmt: skip
    assert "give one in Python" in done.stderr


def test_synonyms_of_the_user_are_used(tiny, tmp_path, small):
    path = tmp_path / "mine.tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerow(["card", "parcel"])
    options = {"second_view": "synonyms", "synonyms": str(path), "synonym_share": 1.0}
    fit = fit_of(small, config(tiny, **options, train={"batch_size": 36}))
    batch = fit.training.tasks[0].batch(0, 0, 1)
    ids = {
        word: fit.model.tokeniser.tokenizer.convert_tokens_to_ids(word)
        for word in ("card", "parcel")
    }
    first, second = batch.inputs["input_ids"].chunk(2)
    assert torch.equal((first == ids["card"]), (second == ids["parcel"]))


def test_the_key_of_a_run_file_tells_views_apart():
    plain = read_config(None, ["objective.name=supcon", "objective.copies=2"])
    other = read_config(
        None, ["objective.name=supcon", "objective.copies=2", "objective.second_view=span"]
    )
    assert plain.key_content()["objective"] != other.key_content()["objective"]
