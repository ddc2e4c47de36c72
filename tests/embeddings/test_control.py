"""Random strings as a control, and scores before and after a training."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeknit.data import ScoredPairs, sentences_from
from closeknit.embeddings.control import evaluation_table, random_sentences, random_strings
from closeknit.embeddings.model import SentenceModel, load_sentence_model
from closeknit.embeddings.scores import sts_scores
from closeknit.errors import ConfigError, DataError

TEXTS = [
    f"where is my {thing} {when}"
    for thing in ("card", "parcel", "refund", "order")
    for when in ("today", "please", "back")
]
PAIRS = [(text, text.replace("where is", "help with")) for text in TEXTS]
SCORED = [
    ("my card", "the card", 5.0),
    ("my card", "my parcel", 1.0),
    ("Where is my card today?", "the parcel", 4.5),
    ("refund please", "refund my order", 3.0),
]


# ---------------------------------------------------------------- random strings


@given(st.lists(st.text(min_size=4, max_size=30), max_size=20), st.integers(0, 5))
def test_random_strings_keep_number_lengths_and_equality(texts, seed):
    drawn = random_strings(texts, seed)
    assert drawn == random_strings(texts, seed)
    assert [len(string) for string in drawn] == [len(text) for text in texts]
    for text, string in zip(texts, drawn, strict=True):
        for character, letter in zip(text, string, strict=True):
            assert letter == character if character.isspace() else "a" <= letter <= "z"
    seen = [text.strip() for text in texts if len("".join(text.split())) > 3]
    assert len(set(drawn)) <= len(set(texts))
    assert len(set(random_strings(seen, seed))) == len(set(seen))


def test_more_short_texts_than_short_strings_get_longer_ones():
    texts = [chr(0x4E00 + number) for number in range(40)]  # one character each; 26 letters
    drawn = random_strings(texts, 2)
    assert len(set(drawn)) == 40
    assert sorted(map(len, drawn)) == [1] * 26 + [2] * 14


def test_another_seed_draws_other_strings_and_groups_stay():
    rows = sentences_from(
        [("card lost", "lost card"), ("card lost", "my card"), ("late", "parcel")]
    )
    strings = random_sentences(rows, 2)
    assert [len(column) for column in strings.columns] == [3, 3]
    assert strings.columns[0][0] == strings.columns[0][1]
    assert strings.groups.tolist() == rows.groups.tolist()
    assert random_sentences(rows, 3).columns != strings.columns
    for drawn, column in zip(strings.columns, rows.columns, strict=True):
        assert not set(drawn) & set(column)


# ---------------------------------------------------------------- the table


def record(**values):
    return {
        name: [
            {"data": data, "measure": "spearman", "value": value / 100, "n": n}
            for data, value, n in zip(("men", "rw"), points, (3000, 65), strict=True)
        ]
        for name, points in values.items()
    }


def test_the_table_says_how_much_of_the_gain_the_random_strings_gave():
    table = evaluation_table(record(before=(40.0, 20.0), control=(50.0, 25.0), after=(60.0, 20.0)))
    lines = table.splitlines()
    assert lines[0].split(" | ")[2:5] == ["before", "random strings", "texts"]
    assert lines[2] == "| men | 3,000 | 40.0 | 50.0 | 60.0 | +20.0 | 50 % |"
    assert lines[3] == "| rw | 65 | 20.0 | 25.0 | 20.0 | +0.0 | – |"  # no gain to share out
    assert lines[4] == "| mean |  | 30.0 | 37.5 | 40.0 | +10.0 | 75 % |"
    little = evaluation_table(record(before=(29.1, 1.0), control=(31.3, 1.0), after=(29.9, 2.1)))
    assert little.splitlines()[2].endswith("| +0.8 | – |")  # 2.2 points of 0.8 say nothing
    without = evaluation_table(record(before=(40.0, 20.0), after=(39.0, 30.0))).splitlines()
    assert without[2] == "| men | 3,000 | 40.0 | 39.0 | -1.0 |"


# ---------------------------------------------------------------- from Python


def small_encoder(tiny, **options):
    from closeknit import SentenceEncoder

    return SentenceEncoder(encoder=tiny(), epochs=1, batch_size=6, max_length=16, **options)


def test_an_estimator_is_scored_before_and_after_and_beside_its_control(tiny):
    scored = ScoredPairs(*map(list, zip(*SCORED, strict=True)), name="scored")
    scored = ScoredPairs(scored.first, scored.second, np.array(scored.scores), "scored")
    encoder = small_encoder(tiny).fit(
        TEXTS, evaluate=scored, control="random", exclude_evaluated=True
    )
    assert encoder.model_.metrics["excluded"] == {"rows": 1, "texts": 1}
    assert encoder.model_.metrics["rows"] == 11
    (overlap,) = encoder.model_.metrics["overlap"]
    assert overlap == {"data": "scored", "contained": 1, "texts": 7}
    models = {
        "before": load_sentence_model(tiny()),
        "control": encoder.control_,
        "after": encoder.model_,
    }
    for name, model in models.items():
        (score,) = encoder.evaluation_[name]
        assert (score.data, score.n) == ("scored", 4)
        assert score.value == pytest.approx(sts_scores(model.encode, scored)["spearman"])
    assert not np.allclose(encoder.control_.encode(TEXTS), encoder.model_.encode(TEXTS))


def test_an_estimator_mines_adapts_and_scores_suites_as_the_command_line_does(tiny, tmp_path):
    rows = "".join(f"{a},{b},{c}\n" for a, b, c in SCORED)
    (tmp_path / "pairs.csv").write_text("text1,text2,score\n" + rows)
    adapted = small_encoder(tiny, method_options={"adapt_epochs": 1})
    encoder = adapted.fit(PAIRS, mine=True)
    assert encoder.model_.config.method.name == "multiple_negatives"
    assert len(encoder.model_.metrics["adaptation"]) == 1
    (score,) = encoder.evaluate(tmp_path / "pairs.csv")
    assert (score.data, score.measure, score.n) == ("pairs", "spearman", 4)
    assert not hasattr(encoder, "evaluation_")


def test_mined_pairs_and_layers_from_public_names(tiny, tmp_path):
    from closeknit import draw_layers, layer_anisotropy, load_sentence_model, mine_negatives
    from closeknit.data import sentences_from as public_sentences_from

    before = load_sentence_model(tiny())
    corpus = [*TEXTS, "never came", "broken order"]
    triplets = mine_negatives(before.encode, public_sentences_from(PAIRS), corpus)
    encoder = small_encoder(tiny).fit(triplets)
    assert encoder.model_.metrics["rows"] == 12
    found = {"before": layer_anisotropy(before, TEXTS), "after": encoder.layer_anisotropy(TEXTS)}
    assert [len(rows) for rows in found.values()] == [3, 3]
    assert found["before"] != found["after"]
    draw_layers(str(tmp_path / "layers.png"), found)
    assert (tmp_path / "layers.png").stat().st_size > 5000
    with pytest.raises(DataError, match="have their groups already"):
        small_encoder(tiny).fit(triplets, ["a"] * 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"control": "random"}, "a control needs evaluation sets"),
        ({"exclude_evaluated": True}, "the exclusion of evaluated texts needs evaluation sets"),
        ({"control": "randon", "validation": SCORED}, "control is randon; it must be random"),
    ],
)
def test_what_needs_evaluation_sets_says_so(tiny, options, words):
    with pytest.raises(ConfigError, match=words):
        small_encoder(tiny).fit(TEXTS, **options)


# ---------------------------------------------------------------- on the command line


def test_one_command_shows_texts_and_random_strings(closeknit, tiny, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    rows = "".join(f"{a},{b},{c}\n" for a, b, c in SCORED)
    (tmp_path / "scored.csv").write_text("text1,text2,score\n" + rows)
    fast = ("embeddings", "texts.txt", "--method", "mirror", "--encoder", tiny(), "--epochs", "1",
            "--batch-size", "6", "--set", "encoder.max_length=16", "--out", "e")  # fmt: skip
    assert (
        "a control needs evaluation sets" in closeknit(*fast, "--control", "random", code=2).stderr
    )
    plain = closeknit(*fast)
    assert "random strings" not in plain.stdout
    # A run that was finished without them is scored, and its control is trained, on --resume.
    asked = (*fast, "--evaluate", "scored.csv", "--control", "random", "--resume")
    done = closeknit(*asked)
    assert "evaluation texts among the training texts: scored 14.3 % (1 of 7 texts)" in done.stderr
    assert "--exclude-evaluated" in done.stderr
    assert "| data | pairs | before | random strings | texts | gain |" in done.stdout
    assert load_sentence_model(tmp_path / "e-random-strings").metrics["rows"] == 12
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert set(metrics["evaluation"]) == {"before", "control", "after"}
    value = sts_scores(
        SentenceModel.load(tmp_path / "e-random-strings").encode,
        ScoredPairs(*[list(column) for column in zip(*SCORED, strict=True)][:2],
                    np.array([score for *_, score in SCORED])),
    )["spearman"]  # fmt: skip
    assert metrics["evaluation"]["control"][0]["value"] == pytest.approx(value)
    assert "finished already" in closeknit(*asked).stderr
    changed = closeknit(*asked, "--exclude-evaluated", code=2).stderr
    assert "other data" in changed
    replaced = closeknit(
        *fast, "--evaluate", "scored.csv", "--exclude-evaluated", "--overwrite", "--json"
    )
    assert "1 of 12 rows were dropped" in replaced.stderr
    assert json.loads(replaced.stdout)["excluded"] == {"rows": 1, "texts": 1}


def test_a_stopped_control_run_is_continued(tiny, tmp_path, monkeypatch):
    from closeknit.embeddings import run
    from closeknit.embeddings.config import with_recipe
    from closeknit.errors import Stopped

    tables = {
        "encoder": {"name": tiny(), "max_length": 16},
        "method": {"name": "mirror", "pull": False},
        "train": {"epochs": 1, "batch_size": 6},
    }
    first, second, scores = zip(*SCORED, strict=True)
    scored = ScoredPairs(list(first), list(second), np.array(scores), "scored")

    def train(resume):
        return run.embed_in_folder(
            sentences_from(TEXTS),
            with_recipe(tables, 1),
            tmp_path / "e",
            evaluate=[scored],
            control="random",
            resume=resume,
        )

    whole = run._train
    trained = []

    def stopped_before_the_texts(folder, sentences, *rest):
        trained.append(sentences.name)
        if len(trained) == 2:
            raise Stopped("stopped")
        return whole(folder, sentences, *rest)

    monkeypatch.setattr(run, "_train", stopped_before_the_texts)
    with pytest.raises(Stopped):
        train(resume=False)
    assert trained == ["random strings like data", "data"]
    strings = (tmp_path / "e-random-strings" / "model.safetensors").read_bytes()
    metrics = train(resume=True)
    assert set(metrics["evaluation"]) == {"before", "control", "after"}
    assert (tmp_path / "e-random-strings" / "model.safetensors").read_bytes() == strings
    assert SentenceModel.load(tmp_path / "e").config.method.pull is False
    with pytest.raises(ConfigError, match="exists already"):
        train(resume=False)
