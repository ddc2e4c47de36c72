from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data import Examples
from closeknit.data.scored_pairs import ScoredPairs
from closeknit.data.sentences import sentences_from
from closeknit.data.text_changes import SHORTEST, mask_span
from closeknit.embeddings.config import EmbeddingConfig, MethodConfig, with_recipe
from closeknit.embeddings.fit import EmbeddingFit, check_data, masked_batches
from closeknit.embeddings.model import SentenceModel, load_sentence_model
from closeknit.embeddings.scores import sts_scores
from closeknit.encoders.augmentation import drophead, head_factors, without_dropout
from closeknit.encoders.loading import load_encoder
from closeknit.errors import ConfigError, DataError, ModelError
from closeknit.objectives import InfoNCE
from closeknit.objectives.losses.text_views import Folded
from closeknit.training.batches import length_grouped
from conftest import TINY, make_tiny_encoder

TEXTS = [
    f"where is my {thing} {when}"
    for thing in ("card", "parcel", "refund", "order")
    for when in ("today", "please", "back")
]
PAIRS = [(text, text.replace("where is", "help with")) for text in TEXTS]
TRIPLETS = [(*pair, TEXTS[(i + 5) % len(TEXTS)]) for i, pair in enumerate(PAIRS)]
SCORED = ScoredPairs(
    ["my card", "my card", "my parcel", "refund please"],
    ["my card", "my parcel", "the parcel", "refund my order"],
    np.array([5.0, 1.0, 4.5, 3.0]),
    "scored",
)


def config(tiny, columns=1, kind="bert", **tables):
    encoder = {"name": tiny(kind), "max_length": 16, **tables.pop("encoder", {})}
    train = {"epochs": 2, "batch_size": 6, "lr": 1e-3, **tables.pop("train", {})}
    return with_recipe({"encoder": encoder, "train": train, **tables}, columns)


# ---------------------------------------------------------------- views


@given(st.text(min_size=SHORTEST - 3, max_size=80), st.integers(0, 12), st.integers(0, 1000))
def test_a_span_is_masked_at_the_place_that_was_drawn(text, length, seed):
    masked = mask_span(text, length, "<mask>", np.random.default_rng(seed))
    if length == 0 or len(text) < SHORTEST:
        assert masked == text
        return
    place = int(np.random.default_rng(seed).integers(len(text) - length + 1))
    assert masked == text[:place] + " <mask> " + text[place + length :]


def test_a_repeated_span_is_masked_where_it_was_drawn_not_where_it_first_occurs():
    text = "abcde" * 10
    places = {
        mask_span(text, 5, "[MASK]", np.random.default_rng(seed)).index("[MASK]")
        for seed in range(40)
    }
    assert len(places) > 10


def test_mirror_uses_the_models_own_mask_token(tiny):
    for kind in ("bert", "roberta"):
        fit = EmbeddingFit(
            sentences_from([f"{text} please help the shop now" for text in TEXTS]),
            config(tiny, kind=kind, method={"name": "mirror", "mask": 3}),
        )
        batch = fit.training.tasks[0].batch(0, 0, 1)
        token = fit.model.tokeniser.tokenizer.mask_token_id
        first, second = batch.inputs["input_ids"].chunk(2)
        assert not (first == token).any()
        assert (second == token).any(1).all()
        again = fit.training.tasks[0].batch(0, 0, 1)
        assert torch.equal(again.inputs["input_ids"], batch.inputs["input_ids"])


def test_dropped_heads_are_scaled_and_one_is_always_kept():
    torch.manual_seed(0)
    joined = torch.ones(4000, 3, 8)
    factors = head_factors(joined, 4, 0.5)[:, 0].unflatten(1, (4, 2))
    assert torch.equal(factors[..., 0], factors[..., 1])  # a head is dropped whole
    kept = (factors[..., 0] > 0).sum(1)
    assert kept.min() == 1
    assert torch.allclose(factors[..., 0].sum(1), torch.full((4000,), 4.0))  # 4 / kept, kept times
    assert head_factors(joined, 4, 0.999)[:, 0].gt(0).any(1).all()


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "albert", "electra", "distilbert", "modernbert"]
)
def test_drophead_acts_in_training_only_and_leaves_no_trace(tiny, kind):
    encoder, tokeniser = load_encoder(tiny(kind), pooling="mean", max_length=16)
    inputs = tokeniser(sentences_examples(TEXTS)).pad(range(4))
    plain = encoder.eval()(inputs).pooled
    with without_dropout(encoder), drophead(encoder, 0.5):
        assert torch.equal(encoder.eval()(inputs).pooled, plain)
        torch.manual_seed(0)
        one, two = encoder.train()(inputs).pooled, encoder.train()(inputs).pooled
        assert not torch.allclose(one, two, atol=1e-4)
    with without_dropout(encoder):
        assert torch.allclose(encoder.train()(inputs).pooled, plain, atol=1e-5)
    assert torch.equal(encoder.eval()(inputs).pooled, plain)


def sentences_examples(texts):
    from closeknit.data import Examples

    return Examples(list(texts))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "albert", "modernbert"])
def test_drophead_drops_the_heads_below_an_adapter(tiny, kind):
    """The adapter's own layers read the dropped heads too."""
    encoder, tokeniser = load_encoder(tiny(kind), max_length=16, lora_rank=2, dropout=0.0)
    inputs = tokeniser(Examples(TEXTS[:4])).pad(range(4))
    encoder.train()
    whole = encoder(dict(inputs)).pooled
    with drophead(encoder, 0.5):
        first, second = (encoder(dict(inputs)).pooled for _ in range(2))
        encoder.eval()
        assert torch.equal(encoder(dict(inputs)).pooled, whole)
    assert not torch.equal(first, second) and not torch.equal(first, whole)


@pytest.mark.parametrize("name", ["simcse", "mirror"])
def test_two_views_of_an_encoder_without_dropout_differ(tiny, tmp_path, capsys, name):
    """Mirror's second view has a masked span, so that the encoder can stay without dropout."""
    plain = make_tiny_encoder(tmp_path / "plain", "bert", dropout=0.0)
    tables = {"method": {"name": name}, "encoder": {"name": str(plain)}}
    rows = sentences_from(TEXTS)
    fit = EmbeddingFit(rows, config(tiny, **tables))
    said = capsys.readouterr().err
    if name == "simcse":
        assert "encoder.dropout is set to 0.1" in said and "plain has no dropout" in said
        assert fit.config.encoder.dropout == fit.model.config.encoder.dropout == 0.1
        batch = fit.training.tasks[0].batch(0, 0, 1)
        first, second = fit.model.encoder.train()(batch.inputs).pooled.chunk(2)
        assert not torch.equal(first, second)
    else:
        assert "dropout" not in said and fit.config.encoder.dropout is None


def test_dropout_of_0_is_refused_where_two_views_rest_on_it(tiny):
    zero = {"encoder": {"dropout": 0.0}}
    with pytest.raises(ConfigError, match=r"encoder\.dropout is 0, but simcse compares two views"):
        EmbeddingFit(sentences_from(TEXTS), config(tiny, **zero))
    for other in ({"method": {"noise": "drophead"}}, {"method": {"noise": "none"}}):
        EmbeddingFit(sentences_from(TEXTS), config(tiny, **zero, **other))
    EmbeddingFit(sentences_from(PAIRS), config(tiny, 2, **zero))


def test_drophead_says_where_it_does_not_know_its_way(tiny):
    fit = EmbeddingFit(
        sentences_from(TEXTS), config(tiny, kind="xlnet", method={"noise": "drophead"})
    )
    with pytest.raises(ConfigError, match="use dropout"):
        next(iter(fit))


# ---------------------------------------------------------------- the objective over views


def test_folding_does_not_depend_on_the_order_in_which_views_come():
    torch.manual_seed(0)
    z, groups = torch.randn(3, 5, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 2, 3])
    negatives = torch.tensor([-1, 0, -1, 2, -1])  # the text that each hard negative belongs to
    expected = InfoNCE()(z, torch.stack([groups, groups, negatives]))
    labels = torch.cat([groups, groups, negatives])
    y = torch.stack([torch.arange(3).repeat_interleave(5), labels], 1)
    folded = Folded(InfoNCE(), 3)
    assert folded(z.flatten(0, 1), y) == expected
    shares = [torch.arange(5)[:2], torch.arange(5)[2:]]  # as two processes send them
    order = torch.cat([torch.cat([view * 5 + share for view in range(3)]) for share in shares])
    assert torch.allclose(folded(z.flatten(0, 1)[order], y[order]), expected, atol=1e-12)


def test_views_and_groups_reach_the_objective(tiny):
    rows = sentences_from(TRIPLETS)
    fit = EmbeddingFit(rows, config(tiny, 3))
    batch = fit.training.tasks[0].batch(0, 0, 1)
    assert batch.labels.shape == (3 * 6, 2)
    assert batch.labels[:, 0].tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert batch.labels[:6, 1].tolist() == rows.groups[batch.rows].tolist()
    texts = [rows.columns[view][row] for view in range(3) for row in batch.rows]
    tokens = fit.model.tokeniser(sentences_examples(texts))
    assert torch.equal(batch.inputs["input_ids"], tokens.pad(range(18))["input_ids"])


# ---------------------------------------------------------------- gradient caching


def gradients(fit, chunk, monkeypatch=None):
    """Gradients of the first step with this chunk size."""
    training = fit.training
    training.gradients.chunk_size = chunk
    training.learners.train()
    training.optimizer.zero_grad()
    (task,) = training.tasks
    batch = task.batch(0, 0, 1)
    loss, _ = training.gradients.of_batch(task, batch, 0.7, training.dropout_seeds)
    return float(loss.detach()), {
        n: p.grad.clone() for n, p in training.learners.named_parameters() if p.grad is not None
    }


def whole_graph(fit, chunk):
    """The same chunks under the same dropout, with all their graphs kept: what caching must
    equal.
    """
    from closeknit.objectives.view import View

    training = fit.training
    training.learners.train()
    training.optimizer.zero_grad()
    (task,) = training.tasks
    parts = [
        training.gradients.views(task, piece, training.dropout_seeds, n)
        for n, piece in enumerate(task.batch(0, 0, 1).chunks(chunk))
    ]
    views = {
        name: View(torch.cat([p[name].z for p in parts]), torch.cat([p[name].y for p in parts]))
        for name in task.objective.views
    }
    loss, _ = task.objective(views, 0.0)
    (0.7 * loss).backward()
    return float(loss.detach()), {
        n: p.grad.clone() for n, p in training.learners.named_parameters() if p.grad is not None
    }


def same_gradients(a, b):
    assert a[0] == pytest.approx(b[0], abs=1e-5)
    assert a[1].keys() == b[1].keys()
    for name, value in a[1].items():
        assert torch.allclose(value, b[1][name], atol=1e-6, rtol=1e-4), name


@pytest.mark.parametrize("method", ["simcse", "mirror", "multiple_negatives"])
def test_a_chunked_step_has_the_gradients_of_the_whole_one_with_dropout_on(tiny, method):
    columns = 2 if method == "multiple_negatives" else 1
    rows = sentences_from(PAIRS if columns == 2 else TEXTS)
    settings = config(
        tiny,
        columns,
        method={"name": method},
        train={"batch_size": 12},
        encoder={"pooling": "first"},
    )
    fit = EmbeddingFit(rows, settings)
    same_gradients(gradients(fit, 5), whole_graph(fit, 5))


@pytest.mark.parametrize("name", ["supcon", "lcl", "clld", "triple_entropy"])
def test_chunks_work_for_every_objective_that_compares_rows(tiny, small, name):
    from closeknit.classification.config import RunConfig
    from closeknit.classification.fit import ClassifierFit
    from closeknit.data import from_python

    tables = {
        "encoder": {"name": tiny(), "max_length": 16},
        "objective": {"name": name},
        "train": {"epochs": 1, "batch_size": 18},
    }
    fit = ClassifierFit(from_python(*small), RunConfig.from_dict(tables), log=lambda text: None)
    same_gradients(gradients(fit, 7), whole_graph(fit, 7))


def test_without_dropout_chunks_change_nothing(tiny):
    rows = sentences_from(TEXTS)
    tables = {"method": {"noise": "none"}, "encoder": {"dropout": 0.0}}
    fit = EmbeddingFit(rows, config(tiny, **tables, train={"batch_size": 12}))
    same_gradients(gradients(fit, 0), gradients(fit, 5))


@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_chunks_read_the_padding_of_the_whole_batch(tiny, kind):
    from closeknit.classification.config import RunConfig
    from closeknit.classification.fit import ClassifierFit
    from closeknit.data import from_python

    texts = [text * (1 + i % 3) for i, text in enumerate(["card lost ", "where is my parcel "] * 6)]
    tables = {
        "encoder": {"name": tiny(kind), "max_length": 16, "dropout": 0.0},
        "objective": {"name": "triple_entropy", "tokens": "all", "ce_weight": 0.0},
        "train": {"epochs": 1, "batch_size": 12},
    }
    fit = ClassifierFit(
        from_python(texts, ["a", "b"] * 6), RunConfig.from_dict(tables), log=lambda text: None
    )
    same_gradients(gradients(fit, 0), gradients(fit, 2))


# ---------------------------------------------------------------- fits


@pytest.mark.parametrize(
    ("rows", "method"),
    [(TEXTS, "simcse"), (TEXTS, "mirror"), (PAIRS, "simcse"), (PAIRS, "multiple_negatives"), (TRIPLETS, "simcse"),
     (TRIPLETS, "multiple_negatives")],
)  # fmt: skip
def test_every_method_learns(tiny, rows, method):
    data = sentences_from(rows)
    settings = config(
        tiny, len(data.columns), method={"name": method, "temperature": 0.1}, train={"epochs": 15}
    )
    fit = EmbeddingFit(data, settings)
    losses = [step.loss for step in fit]
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:4])
    assert fit.model.encode(["my card"]).shape == (1, 32)


def test_negatives_alone_spread_the_texts(tiny):
    from closeknit.metrics import uniformity

    settings = config(tiny, method={"name": "mirror", "noise": "none"}, train={"epochs": 20})
    fit = EmbeddingFit(sentences_from(TEXTS), settings)
    before = uniformity(fit.model.encode(TEXTS))
    batch = fit.training.tasks[0].batch(0, 0, 1)
    with fit._noise():
        pooled = fit.model.encoder.train()(batch.inputs).pooled
        assert torch.equal(*pooled.chunk(2))  # the two views are one
    for _ in fit:
        pass
    assert uniformity(fit.model.encode(TEXTS)) < before


@pytest.mark.parametrize("kind", sorted(TINY))
def test_without_dropout_two_passes_are_one_and_it_comes_back(tiny, kind):
    from closeknit.data import Examples

    encoder, tokeniser = load_encoder(tiny(kind), max_length=16, dropout=0.3)
    inputs = tokeniser(Examples(TEXTS)).pad(np.arange(len(TEXTS)))
    encoder.train()
    with without_dropout(encoder):
        first, second = encoder(inputs).hidden, encoder(inputs).hidden
    assert torch.equal(first, second)
    if kind == "modernbert":
        assert {
            m.attention_dropout for m in encoder.modules() if hasattr(m, "attention_dropout")
        } == {0.3}
    assert not torch.equal(encoder(inputs).hidden, first)


@pytest.mark.parametrize(
    ("method", "pooling", "columns", "use"),
    [
        ("simcse", "first", 1, "train"),
        ("simcse", "first", 3, "keep"),
        ("simcse", "mean", 1, "none"),
        ("mirror", "first", 1, "none"),
        ("multiple_negatives", "first", 2, "none"),
    ],
)
def test_the_dense_layer_is_used_as_simcse_uses_it(tiny, method, pooling, columns, use, tmp_path):
    rows = [TEXTS, PAIRS, TRIPLETS][columns - 1]
    settings = config(
        tiny, columns, method={"name": method}, encoder={"pooling": pooling}, train={"epochs": 1}
    )
    fit = EmbeddingFit(sentences_from(rows), settings)
    assert fit.head_use == use
    for _ in fit:
        pass
    assert (fit.model.dense is not None) == (use == "keep")
    fit.model.save(tmp_path / "m")
    again = SentenceModel.load(tmp_path / "m")
    assert np.array_equal(again.encode(TEXTS), fit.model.encode(TEXTS))


def test_the_folder_opens_in_sentence_transformers_with_the_same_vectors(tiny, tmp_path):
    st_library = pytest.importorskip("sentence_transformers")
    for pooling, rows in (("mean", TEXTS), ("first", TRIPLETS)):
        data = sentences_from(rows)
        settings = config(
            tiny, len(data.columns), encoder={"pooling": pooling}, train={"epochs": 1}
        )
        model = EmbeddingFit(data, settings, validation=SCORED).run()
        model.save(tmp_path / pooling)
        theirs = st_library.SentenceTransformer(str(tmp_path / pooling), device="cpu").encode(TEXTS)
        assert np.allclose(theirs, model.encode(TEXTS), atol=1e-5)
        card = (tmp_path / pooling / "README.md").read_text()
        assert "spearman" in card and "| before |" in card


def test_a_resumed_fit_ends_with_the_same_bits(tiny, tmp_path):
    settings = config(
        tiny, method={"adapt_epochs": 1}, train={"epochs": 3, "checkpoint_seconds": 0.0}
    )
    rows = sentences_from(TEXTS)
    whole = EmbeddingFit(rows, settings, validation=SCORED)
    steps = [step.loss for step in whole]
    for stop in (1, 3, 6):
        first = EmbeddingFit(rows, settings, validation=SCORED, folder=tmp_path / str(stop))
        head = []
        for step in first:
            head.append(step.loss)
            if len(head) == stop:
                break
        second = EmbeddingFit(
            rows, settings, validation=SCORED, folder=tmp_path / str(stop), resume=True
        )
        tail = [step.loss for step in second]
        assert head + tail == steps
        assert np.array_equal(second.model.encode(TEXTS), whole.model.encode(TEXTS))


def test_scored_pairs_choose_the_best_state_and_the_path_is_kept(tiny):
    fit = EmbeddingFit(sentences_from(TEXTS), config(tiny, train={"epochs": 4}), validation=SCORED)
    for _ in fit:
        pass
    scores = [record["spearman"] for record in fit.session.history]
    before = fit.model.metrics["before"][
        "spearman"
    ]  # the encoder as it was is a state like the others
    assert fit.model.metrics["validation"]["spearman"] == max(before, *scores)
    assert {"alignment", "uniformity", "anisotropy"} <= fit.model.metrics["before"].keys()
    assert len(fit.session.history) == 4


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "albert", "electra", "distilbert", "modernbert"]
)
def test_masked_language_modelling_before_it_learns_the_texts(tiny, kind):
    settings = config(tiny, kind=kind, method={"adapt_epochs": 12}, train={"epochs": 1, "lr": 1e-4})
    settings = dataclasses.replace(
        settings, method=dataclasses.replace(settings.method, adapt_lr=3e-3)
    )
    fit = EmbeddingFit(sentences_from(TEXTS), settings)
    for _ in fit:
        pass
    losses = [record["loss"] for record in fit.model.metrics["adaptation"]]
    assert losses[-1] < losses[0]


def test_what_is_masked_is_what_must_be_told(tiny):
    _, tokeniser = load_encoder(tiny(), max_length=16)
    tokens = tokeniser(sentences_examples(TEXTS * 50))
    from closeknit.training.processes import World

    plan = length_grouped(tokens.lengths, 300, 2)
    batch = masked_batches(tokens, plan, 2, tokeniser, 0.3, 2, World(torch.device("cpu")))(0, 0, 1)
    told = batch.labels >= 0
    assert not (told & batch.inputs["special"]).any()
    share = told.sum() / (~batch.inputs["special"]).sum()
    assert 0.25 < share < 0.35
    mask = tokeniser.tokenizer.mask_token_id
    assert 0.7 < ((batch.inputs["input_ids"] == mask) & told).sum() / told.sum() < 0.9
    whole = tokens.pad(batch.rows)["input_ids"]
    assert torch.equal(torch.where(told, batch.labels, batch.inputs["input_ids"]), whole)


@pytest.mark.parametrize(
    ("rows", "tables", "words"),
    [
        (TEXTS, {"method": {"name": "multiple_negatives"}}, "needs pairs"),
        (PAIRS, {"method": {"name": "mirror"}}, "learns from single texts"),
        (PAIRS, {"method": {"noise": "none"}}, "pairs differ by themselves"),
        (["one", "one"], {}, "nothing to tell apart"),
        (TEXTS, {"method": {"name": "simsce"}}, "did you mean simcse"),
        (TEXTS, {"method": {"tempreature": 1.0}}, "did you mean method.temperature"),
        (TEXTS, {"method": {"temperature": -1.0}}, "above 0"),
        (TEXTS, {"train": {"patience": 2}}, "needs scored pairs"),
        (TEXTS, {"encoder": {"name": "textcnn"}}, "textcnn has no weights"),
        (TEXTS, {"objective": {}}, r"unknown table \[objective\]"),
        (TEXTS, {"method": {"head": "keep"}, "encoder": {"pooling": "own"}}, "dense layer already"),
        (TEXTS, {"method": "simcse"}, r"method is not a table; write \[method\]"),
        (TEXTS, {"train": {"batch_size": 1}}, "at least twice train.accumulate"),
        (TEXTS, {"train": {"batch_size": 6, "accumulate": 4}}, "at least twice train.accumulate"),
    ],
)
def test_what_cannot_be_learnt_is_told(tiny, rows, tables, words):
    with pytest.raises((ConfigError, DataError), match=words):
        EmbeddingFit(
            sentences_from(rows), config(tiny, len(sentences_from(rows).columns), **tables)
        )


@pytest.mark.parametrize(
    ("rows", "tables", "words"),
    [
        (
            TEXTS,
            {"method": {"level": "word"}},
            "method.level is word, but it says what mirror's texts are",
        ),
        (PAIRS, {"method": {"mask": 5}}, "method.mask is 5"),
        (TEXTS, {"method": {"pull": False}}, "method.pull is False, but it is for mirror"),
        (PAIRS, {"method": {"hard_weight": 1.0}}, "method.hard_weight is 1.0"),
        (TRIPLETS, {"method": {"name": "multiple_negatives", "hard_weight": 1.0}}, "of simcse"),
        (TEXTS, {"method": {"drophead": 0.3}}, "method.noise=drophead"),
        (TEXTS, {"method": {"adapt_lr": 1e-3}}, "method.adapt_epochs"),
        (TEXTS, {"method": {"adapt_share": 0.3}}, "method.adapt_epochs"),
        (TEXTS, {"train": {"validation": 0.2}}, "validated on scored pairs"),
        (TEXTS, {"train": {"metric": "accuracy"}}, "train.metric is for one task with classes"),
    ],
)
def test_settings_that_would_do_nothing_are_told(tiny, rows, tables, words):
    data = sentences_from(rows)
    with pytest.raises(ConfigError, match=words):
        EmbeddingFit(data, config(tiny, len(data.columns), **tables))


def test_settings_that_are_used_are_taken(tiny):
    used = {
        "noise": "drophead",
        "drophead": 0.3,
        "adapt_epochs": 1,
        "adapt_lr": 1e-3,
        "adapt_share": 0.3,
    }
    assert EmbeddingFit(sentences_from(TEXTS), config(tiny, method={**used, "mask": 5})).steps == 6
    EmbeddingFit(sentences_from(TRIPLETS), config(tiny, 3, method={"hard_weight": 1.0}))
    check_data(
        sentences_from(PAIRS), MethodConfig(hard_weight=1.0), mine=True
    )  # negatives are to come


def test_settings_follow_method_and_level():
    assert MethodConfig("mirror").sharpness == 0.04 and MethodConfig("mirror").span == 5
    assert (
        MethodConfig("mirror", level="word").sharpness == 0.2
        and MethodConfig("mirror", level="word").span == 0
    )
    assert MethodConfig("simcse").sharpness == 0.05 and MethodConfig("simcse").span == 0
    assert with_recipe({}, 3).train.batch_size > with_recipe({}, 1).train.batch_size
    assert EmbeddingConfig.from_dict(EmbeddingConfig().to_dict()) == EmbeddingConfig()


# ---------------------------------------------------------------- the estimator and the commands


def test_texts_that_are_cut_are_counted_and_said(tiny, capsys):
    """Every column counts: 12 texts of 5 or 6 tokens, each with a shorter one."""
    rows = sentences_from([(text, text.split()[-1]) for text in TEXTS])
    tables = {"method": {"name": "multiple_negatives"}, "encoder": {"max_length": 6}}
    fit = EmbeddingFit(rows, config(tiny, 2, **tables))
    assert fit.model.metrics["truncated"] == 0.5
    assert "50 % of the training texts are longer than 6 tokens" in capsys.readouterr().err


def test_the_sentence_encoder_is_a_scikit_learn_transformer(tiny, tmp_path):
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from closeknit import SentenceEncoder

    encoder = SentenceEncoder(encoder=tiny(), epochs=1, batch_size=6, max_length=16)
    assert clone(encoder).get_params() == encoder.get_params()
    pipeline = make_pipeline(encoder, LogisticRegression()).fit(TEXTS, ["a", "b"] * 6)
    assert len(pipeline.predict(TEXTS)) == 12
    vectors = encoder.fit(TRIPLETS).encode(TEXTS, batch_size=2, normalize=True)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    similar = encoder.similarity(TEXTS[:3], TEXTS[:2])
    assert similar.shape == (3, 2) and similar[0, 0] == pytest.approx(1.0, abs=1e-5)
    encoder.save(tmp_path / "e")
    again = SentenceEncoder.load(tmp_path / "e")
    assert np.array_equal(again.transform(TEXTS), encoder.transform(TEXTS))
    assert again.method == "simcse"
    assert encoder.fit(PAIRS).model_.config.method.name == "multiple_negatives"
    encoder.fit(
        TEXTS,
        validation=[
            ("my card", "the card", 5.0),
            ("my card", "refund", 1.0),
            ("late", "parcel", 2.0),
        ],
    )
    assert "before" in encoder.model_.metrics
    for rows, words in (
        ([("my card", "the card", "high")], "the score in row 1 is 'high'; it must be a number"),
        ([("my card", "the card", 5.0), ("my card", 3, 1.0)], "not a string but int in row 2"),
        ([("my card", "the card")], r"must be a list of \(text, text, score\) rows"),
        (5, "must be a list"),
    ):
        with pytest.raises(DataError, match=words):
            encoder.fit(TEXTS, validation=rows)
    with pytest.raises(ConfigError, match="seed is null"):
        SentenceEncoder(encoder=tiny(), random_state=None).fit(TEXTS)
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        SentenceEncoder().encode(["a"])


def test_labels_of_a_sentence_encoder_are_a_list_or_one_column(tiny):
    import pandas

    from closeknit import SentenceEncoder

    encoder = SentenceEncoder(encoder=tiny(), max_length=16)
    with pytest.raises(DataError, match="the labels are a DataFrame"):
        encoder.fit(TEXTS, pandas.DataFrame({"label": TEXTS, "other": TEXTS}))
    with pytest.raises(DataError, match="the labels are a set"):
        encoder.fit(TEXTS, set(TEXTS))
    with pytest.raises(DataError, match="some labels are missing"):
        encoder.fit(TEXTS, [None, *TEXTS[1:]])


def test_embeddings_on_the_command_line(closeknit, tiny, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "pairs.csv").write_text("text,text2\n" + "".join(f"{a},{b}\n" for a, b in PAIRS))
    scored = zip(SCORED.first, SCORED.second, SCORED.scores, strict=True)
    (tmp_path / "scored.csv").write_text(
        "text1,text2,score\n" + "".join(f"{a},{b},{c}\n" for a, b, c in scored)
    )
    fast = (
        "--encoder",
        tiny(),
        "--epochs",
        "1",
        "--batch-size",
        "6",
        "--set",
        "encoder.max_length=16",
    )
    done = closeknit(
        "embeddings",
        "lines.txt",
        "--out",
        "e",
        *fast,
        "--validation",
        "scored.csv",
        "--chunk-size",
        "4",
    )
    assert "before: spearman" in done.stdout and "after: spearman" in done.stdout
    assert (
        "exists already" in closeknit("embeddings", "lines.txt", "--out", "e", *fast, code=2).stderr
    )
    assert "finished already" in closeknit(
        "embeddings", "lines.txt", "--out", "e", *fast, "--validation", "scored.csv", "--chunk-size", "4", "--resume"
    ).stderr  # fmt: skip
    mined = closeknit(
        "embeddings", "pairs.csv", "--out", "p", *fast, "--mine", "--method", "multiple_negatives"
    )
    assert "mining a hard negative for each of 12 pairs" in mined.stderr
    (tmp_path / "triplets.csv").write_text(
        "text,text2,negative\n" + "".join(f"{a},{b},{c}\n" for a, b, c in TRIPLETS)
    )
    held = closeknit("embeddings", "triplets.csv", "--out", "x", *fast, "--mine", code=2).stderr
    assert "holds a negative for each pair already" in held
    (tmp_path / "flat.toml").write_text('method = "simcse"\n')
    flat = closeknit(
        "embeddings", "pairs.csv", "--out", "x", "--config", "flat.toml", code=2
    ).stderr
    assert "method is not a table" in flat
    table = closeknit(
        "evaluate-embeddings", "e", tiny(), "--suite", "scored.csv", "--retrieval", "pairs.csv", "--plot", "new/course.png"
    ).stdout  # fmt: skip
    assert "scored" in table and "mrr" in table.lower()
    assert (tmp_path / "new" / "course.png").stat().st_size > 5000
    closeknit("embed", "e", "lines.txt", "--out", "v.npy", "--normalize")
    assert np.load(tmp_path / "v.npy").shape == (12, 32)
    scores = json.loads(
        closeknit("evaluate-embeddings", "e", "--suite", "scored.csv", "--json").stdout
    )
    assert {score["measure"] for score in scores["e"]} >= {"spearman", "uniformity"}
    assert (
        "holds a sentence encoder, not a text classifier"
        in closeknit("predict", "e", "lines.txt", code=2).stderr
    )
    assert (
        "did you mean simcse"
        in closeknit("embeddings", "lines.txt", "--method", "simsce", "--out", "x", code=2).stderr
    )
    assert "needs pairs" in closeknit(
        "embeddings", "lines.txt", "--method", "multiple_negatives", "--out", "x", *fast, code=2
    ).stderr  # fmt: skip


def test_any_folder_can_be_loaded_as_a_sentence_model(tiny, tmp_path, closeknit, small_csv):
    bare = load_sentence_model(tiny())
    assert bare.encoder.pooling == "mean"
    closeknit(
        "train",
        "small.csv",
        "--encoder",
        tiny(),
        "--epochs",
        "1",
        "--out",
        "c",
        "--set",
        "encoder.max_length=16",
        "--set",
        "encoder.pooling=first",
    )
    assert load_sentence_model(tmp_path / "c").encoder.pooling == "first"  # as the folder says
    with pytest.raises(ModelError, match="holds a text classifier, not a sentence encoder"):
        SentenceModel.load(tmp_path / "c")


def test_trained_sentence_encoders_are_known_by_name_or_files(tiny, tmp_path):
    from closeknit.embeddings.model import is_sentence_encoder

    assert is_sentence_encoder(None)
    assert is_sentence_encoder("thenlper/gte-small") and is_sentence_encoder("intfloat/e5-base")
    assert not is_sentence_encoder("bert-base-uncased") and not is_sentence_encoder(tiny())
    EmbeddingFit(sentences_from(TEXTS), config(tiny, train={"epochs": 1})).run().save(
        tmp_path / "e"
    )
    assert is_sentence_encoder(str(tmp_path / "e"))


@pytest.mark.parametrize(("rows", "pooling"), [(TEXTS, "mean"), (TRIPLETS, "first")])
def test_what_makes_an_encoder_worse_is_not_kept(tiny, rows, pooling):
    said = []
    data = sentences_from(rows)
    settings = config(
        tiny,
        len(data.columns),
        encoder={"pooling": pooling},
        train={"epochs": 2, "lr": 1.0},  # throws everything about
    )
    pairs = ScoredPairs(TEXTS[:6], TEXTS[1:7], np.arange(6.0), "scored")
    fit = EmbeddingFit(data, settings, validation=pairs, log=said.append)
    before = fit.model.encode(TEXTS)
    plain = sts_scores(load_sentence_model(tiny(), pooling=pooling).encode, pairs)["spearman"]
    fit.session.evaluate = lambda: {
        "spearman": -1.0,
        "alignment": 0.0,
        "uniformity": 0.0,
        "anisotropy": 0.0,
    }
    for _ in fit:
        pass
    assert np.array_equal(
        fit.model.encode(TEXTS), before
    )  # without a dense layer that nothing has trained
    assert fit.model.metrics["before"]["spearman"] == pytest.approx(plain)
    assert said and "kept as it was" in said[-1]


def test_other_validation_pairs_are_no_resumption(closeknit, tiny, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for part, scores in (("validation", (5, 1)), ("test", (1, 5))):
        (tmp_path / "pairs").mkdir(exist_ok=True)
        rows = f"my card,the card,{scores[0]}\nmy card,my parcel,{scores[1]}\nrefund,a refund,4\n"
        (tmp_path / "pairs" / f"{part}.csv").write_text("text,text2,score\n" + rows)
    words = ("--encoder", tiny(), "--set", "encoder.max_length=16", "--epochs", "1", "--out", "out")
    folder = closeknit("embeddings", "texts.txt", *words, "--validation", "pairs").stdout
    part = closeknit(
        "embeddings", "texts.txt", *words, "--validation", "pairs/validation.csv", "--resume"
    )
    assert (
        "finished already" in part.stderr and part.stdout == folder
    )  # of a folder that part is taken
    other = closeknit(
        "embeddings", "texts.txt", *words, "--validation", "pairs/test.csv", "--resume", code=2
    )
    assert "--resume with other data" in other.stderr


def test_a_loaded_sentence_encoder_has_its_options_and_takes_single_texts(tiny, tmp_path):
    from sklearn.base import clone

    from closeknit import SentenceEncoder

    options = {
        "epochs": 1,
        "batch_size": 6,
        "max_length": 16,
        "method_options": {"temperature": 0.2},
    }
    made = SentenceEncoder("simcse", tiny(), train_options={"warmup": 0.3}, **options).fit(TEXTS)
    made.save(tmp_path / "m")
    again = SentenceEncoder.load(tmp_path / "m")
    assert again.method_options["temperature"] == 0.2 and again.train_options["warmup"] == 0.3
    assert np.array_equal(clone(again).fit(TEXTS).encode(TEXTS), made.encode(TEXTS))
    with pytest.raises(DataError, match="the texts are pairs"):
        again.encode(PAIRS)
