"""The second views of `closeknit embeddings`: the same mechanism as in classification."""

from __future__ import annotations

import math

import pytest
import torch

from closeknit import SentenceEncoder
from closeknit.data.sentences import sentences_from
from closeknit.embeddings.config import EmbeddingConfig, MethodConfig, with_recipe
from closeknit.embeddings.fit import EmbeddingFit
from closeknit.errors import ConfigError, DataError
from closeknit.objectives.copies import SECOND_VIEWS, Copies
from conftest import losses_of

TEXTS = [
    f"please help me, where is my {thing} {when}, I want it"
    for thing in ("card", "parcel", "refund", "order")
    for when in ("today", "please", "back")
]
PAIRS = [(text, text.replace("where is", "help with")) for text in TEXTS]


def backwards(texts):
    return [" ".join(reversed(text.split())) for text in texts]


def config(tiny, columns=1, train=None, **method) -> EmbeddingConfig:
    encoder = {"name": tiny(), "max_length": 24}
    train = {"epochs": 3, "batch_size": 6, "lr": 1e-3, **(train or {})}
    return with_recipe({"encoder": encoder, "train": train, "method": method}, columns)


def fit_of(settings, texts=TEXTS, **options) -> EmbeddingFit:
    function = backwards if settings.method.second_view == "function" else None
    return EmbeddingFit(sentences_from(texts), settings, second_view=function, **options)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({}, Copies(copies=2)),
        ({"name": "mirror"}, Copies(copies=2, second_view="span")),
        ({"name": "mirror", "level": "word"}, Copies(copies=2)),
        ({"name": "mirror", "mask": 0}, Copies(copies=2)),
        ({"mask": 3}, Copies(copies=2, second_view="span", mask=3)),
        ({"name": "mirror", "second_view": "dropout"}, Copies(copies=2)),
        ({"second_view": "span"}, Copies(copies=2, second_view="span")),
        (
            {"name": "mirror", "second_view": "adversarial", "epsilon": 2.0},
            Copies(copies=2, second_view="adversarial", epsilon=2.0),
        ),
        (
            {"second_view": "drophead", "drophead": 0.2},
            Copies(copies=2, second_view="drophead", drophead=0.2),
        ),
    ],
)
def test_old_and_new_settings_say_the_same_thing_in_the_same_way(method, expected):
    assert MethodConfig(**method).copies == expected


def test_the_new_settings_do_not_change_the_key_of_a_run():
    content = EmbeddingConfig().key_content()["method"]
    assert not {"second_view", "synonyms", "synonym_share", "epsilon"} & content.keys()
    other = EmbeddingConfig(method=MethodConfig(second_view="synonyms")).key_content()["method"]
    assert other["second_view"] == "synonyms"


@pytest.mark.parametrize("view", SECOND_VIEWS)
def test_a_resumed_embedding_sees_the_same_views(tiny, tmp_path, view):
    settings = config(
        tiny, name="mirror", second_view=view, train={"checkpoint_seconds": 0.0, "chunk_size": 5}
    )
    whole = fit_of(settings)
    losses = losses_of(whole)
    assert len(losses) == 6 and all(map(math.isfinite, losses))
    head = losses_of(fit_of(settings, folder=tmp_path), until=3)
    second = fit_of(settings, folder=tmp_path, resume=True)
    assert head + losses_of(second) == losses
    a, b = (fit.training.learners.state_dict() for fit in (whole, second))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_the_views_make_different_trainings(tiny):
    first = {
        view: losses_of(fit_of(config(tiny, second_view=view)), until=1)[0] for view in SECOND_VIEWS
    }
    assert len(set(first.values())) == len(SECOND_VIEWS)
    alone = fit_of(config(tiny, noise="none", second_view="dropout"))
    harder = fit_of(config(tiny, noise="none", second_view="adversarial"))
    views = []
    for fit in (alone, harder):
        (task,) = fit.training.tasks
        with fit._noise():
            batch = task.batch(0, 0, 1)
            views.append(fit.training.gradients.views(task, batch, (1,))["pooled"].z.chunk(2))
    assert torch.allclose(*views[0], atol=1e-5)  # without noise both views are the same
    assert torch.allclose(views[0][0], views[1][0], atol=1e-5)
    assert not torch.allclose(*views[1], atol=1e-3)


def test_a_function_from_python_makes_the_second_view(tiny):
    fit = fit_of(config(tiny, second_view="function"))
    batch = fit.training.tasks[0].batch(0, 0, 1)
    first, second = batch.inputs["input_ids"].chunk(2)
    mask = batch.inputs["attention_mask"][:6].bool()
    for row in range(6):
        words = first[row][mask[row]][1:-1].tolist()
        assert sorted(second[row][second[row] > 0].tolist()[1:-1]) == sorted(words)
    model = SentenceEncoder(
        "mirror", tiny(), epochs=1, batch_size=6, max_length=24, second_view=backwards
    ).fit(TEXTS)
    assert model.model_.config.method.second_view == "function"
    short = SentenceEncoder("mirror", tiny(), max_length=24, second_view=lambda texts: texts[:-1])
    with pytest.raises(DataError, match="it must return one text for each"):
        short.fit(TEXTS)


@pytest.mark.parametrize(
    ("rows", "method", "message"),
    [
        (PAIRS, {"second_view": "span"}, "makes a second view of a single text, not of pairs"),
        (TEXTS, {"second_view": "span", "mask": 0}, "no character would be masked"),
        (TEXTS, {"second_view": "dropout", "mask": 4}, "method.mask is 4, but it masks"),
        (TEXTS, {"epsilon": 1.0}, "is for method.second_view=adversarial"),
        (TEXTS, {"synonyms": "a.tsv"}, "is for method.second_view=synonyms"),
        (TEXTS, {"synonym_share": 0.9}, "is for method.second_view=synonyms"),
        (TEXTS, {"second_view": "synonyms", "synonyms": "no.tsv"}, "no.tsv does not exist"),
        (TEXTS, {"noise": "drophead", "second_view": "drophead"}, "drops heads in both views"),
        (TEXTS, {"second_view": "spam"}, "did you mean span"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tiny, rows, method, message):
    columns = 2 if rows is PAIRS else 1
    with pytest.raises(ConfigError, match=message):
        fit_of(config(tiny, columns, **method), rows)


def test_a_second_view_on_the_command_line(closeknit, tiny, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    done = closeknit(
        "embeddings", "texts.txt", "--encoder", tiny(), "--method", "mirror", "--out", "model",
        "--set", "encoder.max_length=24", "--set", "method.second_view=synonyms",
    )  # fmt: skip
    assert (tmp_path / "model" / "closeknit.json").exists(), done.stderr
    bad = closeknit(
        "embeddings", "texts.txt", "--encoder", tiny(), "--out", "other",
        "--set", "encoder.max_length=24", "--set", "method.second_view=function", code=2,
    )  # fmt: skip
    assert "give one in Python" in bad.stderr
