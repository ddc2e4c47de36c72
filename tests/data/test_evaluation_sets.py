"""Dictionaries, concept names and answers are read from files and from Python, and checked."""

from __future__ import annotations

import json

import pytest

from closeknit.data import (
    labelled_pairs_from,
    lexicon_from,
    linking_from,
    read_labelled_pairs,
    read_lexicon,
    read_linking,
    read_scored_pairs,
)
from closeknit.data.evaluation_sets import EXAMPLES, example_file
from closeknit.data.scored_pairs import read_suites
from closeknit.errors import DataError
from conftest import write_pairs

# ---------------------------------------------------------------- dictionaries


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet", ".txt"])
def test_a_dictionary_is_read_from_every_kind_of_file(tmp_path, suffix):
    rows = [("car", "Auto"), ("house", "Haus"), ("car", "Wagen"), ("car", "Auto")]
    path = tmp_path / f"en-de{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"source": s, "target": t}) for s, t in rows))
    elif suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        source, target = (list(column) for column in zip(*rows, strict=True))
        parquet.write_table(pyarrow.table({"source": source, "target": target}), path)
    elif suffix == ".txt":
        path.write_text("car\tAuto\nhouse Haus\ncar Wagen\ncar Auto\n")
    else:
        write_pairs(path, rows, ("source", "target"))
    lexicon = read_lexicon(path)
    assert lexicon.translations == {"car": ["Auto", "Wagen"], "house": ["Haus"]}
    assert lexicon.candidates == ["Auto", "Haus", "Wagen"]
    assert (lexicon.name, len(lexicon), lexicon.left_out) == ("en-de", 2, ())


def test_translations_are_looked_for_among_given_candidates(tmp_path):
    rows = [("car", "Auto"), ("car", "Wagen"), ("house", "Haus"), ("sea", "Meer")]
    path = write_pairs(tmp_path / "x.csv", rows, ("english", "german"))
    (tmp_path / "words.txt").write_text("Haus\nWagen\nTür\nHaus\n")
    columns = {"text": "english", "text2": "german", "label": "for others"}
    lexicon = read_lexicon(path, tmp_path / "words.txt", columns=columns)
    assert lexicon.translations == {"car": ["Wagen"], "house": ["Haus"]}
    assert (lexicon.candidates, lexicon.left_out) == (["Haus", "Wagen", "Tür"], ("sea",))
    same = lexicon_from(rows, ["Haus", "Wagen", "Tür"], name="x")
    assert same == lexicon


def test_what_is_wrong_with_a_dictionary_is_said(tmp_path):
    path = write_pairs(tmp_path / "x.csv", [("car", "Auto")], ("a", "b"))
    with pytest.raises(DataError, match=r"no column source; it has a, b; name .* --text COLUMN"):
        read_lexicon(path)
    with pytest.raises(DataError, match=r"no column target; .* --text2 COLUMN"):
        read_lexicon(path, columns={"text": "a"})
    with pytest.raises(DataError, match=r"no column c; it has a, b$"):
        read_lexicon(path, columns={"text": "a", "text2": "c"})
    (tmp_path / "words.txt").write_text("voiture\n")
    columns = {"text": "a", "text2": "b"}
    with pytest.raises(DataError, match=r"no translation of its 1 words, such as 'car', is among"):
        read_lexicon(path, tmp_path / "words.txt", columns=columns)
    (tmp_path / "lines.txt").write_text("car Auto\nice cream Eis\n")
    with pytest.raises(DataError, match=r"line 2: 'ice cream Eis' is not a word and its"):
        read_lexicon(tmp_path / "lines.txt")
    (tmp_path / "empty.csv").write_text("source,target\n")
    with pytest.raises(DataError, match="is empty: it has no rows"):
        read_lexicon(tmp_path / "empty.csv")
    write_pairs(tmp_path / "blank.csv", [("car", "Auto"), ("house", " ")], ("source", "target"))
    with pytest.raises(DataError, match="empty text in row 2"):
        read_lexicon(tmp_path / "blank.csv")
    with pytest.raises(DataError, match="did you mean example-en-de"):
        read_lexicon("example-en-d")
    with pytest.raises(DataError, match=r"row 2 is \('house',\); expected \(word, translation\)"):
        lexicon_from([("car", "Auto"), ("house",)])
    with pytest.raises(DataError, match="mine is empty"):
        lexicon_from([], name="mine")


# ---------------------------------------------------------------- concepts


def test_names_of_several_concepts_and_mentions_with_several_ids(tmp_path):
    names = [("cold", "C1"), ("head cold", "C1"), ("cold", "C2"), ("flu", "C3|C4")]
    mentions = [("a cold", "C2"), ("grippe", "C4 | C9"), ("lost", "C8")]
    linking = read_linking(
        write_pairs(tmp_path / "names.csv", names, ("name", "id")),
        write_pairs(tmp_path / "said.csv", mentions, ("mention", "id")),
    )
    assert linking.names == {"cold": {"C1", "C2"}, "head cold": {"C1"}, "flu": {"C3", "C4"}}
    assert linking.mentions == [("a cold", {"C2"}), ("grippe", {"C4", "C9"})]
    assert (linking.name, len(linking), linking.left_out) == ("said", 2, ("lost",))
    assert linking_from(names, mentions, name="said") == linking
    columns = {"text": "w", "label": "n"}
    other = read_linking(
        write_pairs(tmp_path / "names.csv", [("cold", 7)], ("w", "n")),
        write_pairs(tmp_path / "said.csv", [("a cold", 7)], ("w", "n")),
        columns=columns,
    )
    assert other.mentions == [("a cold", {"7"})]


def test_what_is_wrong_with_concepts_is_said(tmp_path):
    names = write_pairs(tmp_path / "names.csv", [("cold", "C1")], ("name", "id"))
    said = write_pairs(tmp_path / "said.csv", [("a cold", "D1")], ("mention", "id"))
    with pytest.raises(DataError, match=r"no concept of its 1 mentions .* 'a cold', D1; do both"):
        read_linking(names, said)
    bare = write_pairs(tmp_path / "bare.csv", [("a cold",)], ("mention",))
    with pytest.raises(DataError, match=r"bare.csv has no column id; it has mention; .*--label"):
        read_linking(names, bare)
    gap = write_pairs(tmp_path / "gap.csv", [("a cold", "C1"), ("b", "")], ("mention", "id"))
    with pytest.raises(DataError, match=r"gap.csv: the concept id in row 2 is missing"):
        read_linking(names, gap)
    with pytest.raises(DataError, match=r"mentions: the concept id in row 1 is missing"):
        linking_from([("cold", 1)], [("a cold", "1|")])


# ---------------------------------------------------------------- answers


def test_labels_of_answers_have_several_spellings(tmp_path):
    labels = ["1", "no", "TRUE", "not_entailment", "0", "entailment"]
    rows = [(f"q{i}", f"a{i}", label) for i, label in enumerate(labels)]
    path = write_pairs(tmp_path / "qa.csv", rows, ("question", "sentence", "label"))
    pairs = read_labelled_pairs(path)
    assert (pairs.labels, pairs.first[0], pairs.second[5]) == ([1, 0, 1, 0, 0, 1], "q0", "a5")
    assert labelled_pairs_from([("q", "a", True), ("q", "b", 0.0)]).labels == [1, 0]


def test_what_is_wrong_with_answers_is_said(tmp_path):
    two = write_pairs(tmp_path / "two.csv", [("q", "a")], ("text", "text2"))
    with pytest.raises(DataError, match=r"no column label; it has text, text2; .*--label COLUMN"):
        read_labelled_pairs(two)
    one = write_pairs(tmp_path / "one.csv", [("q", "a", 1)] * 3, ("text", "text2", "label"))
    with pytest.raises(DataError, match=r"one.csv: all 3 rows have the label 1; AUC compares"):
        read_labelled_pairs(one)
    for label in ("2", "neutral", ""):
        with pytest.raises(DataError, match=f"label in row 2 is '{label}'; it must be 1 where"):
            labelled_pairs_from([("q", "a", 1), ("q", "b", label)])


# ---------------------------------------------------------------- scored pairs


def test_pairs_of_one_score_are_left_out_and_the_others_kept(tmp_path):
    rows = [("a", "b", 3), ("c", "d", 3)]
    flat = write_pairs(tmp_path / "flat.csv", rows)
    good = write_pairs(tmp_path / "good.csv", [*rows, ("e", "f", 4)])
    told = []
    (kept,) = read_suites([flat, good], log=told.append)
    assert (kept.name, len(kept)) == ("good", 3)
    assert told == [
        "skipped: flat: the score of all 2 pairs is 3; a correlation needs scores that differ"
    ]
    with pytest.raises(DataError, match="nothing to score: flat: the score of all 2 pairs is 3"):
        read_suites([flat], log=told.append)
    assert read_suites([flat], log=told.append, may_be_empty=True) == []


def test_the_columns_of_sick_are_known_and_others_can_be_named(tmp_path):
    header = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score")
    path = write_pairs(tmp_path / "sick.tsv", [(1, "a kid", "a child", 4.5)], header)
    assert read_scored_pairs(path).scores.tolist() == [4.5]
    path = write_pairs(tmp_path / "x.csv", [("p", "q", 1), ("p", "r", 2)], ("l", "r", "gold"))
    columns = {"text": "l", "text2": "r", "score": "gold"}
    (pairs,) = read_suites([path], log=print, columns=columns)
    assert (pairs.second, pairs.scores.tolist()) == (["q", "r"], [1.0, 2.0])


# ---------------------------------------------------------------- the examples of the package


def test_every_example_can_be_read():
    for name, option in EXAMPLES.items():
        path = example_file(name)
        if option == "suite":
            (pairs,) = read_suites([name], log=print)
            assert (pairs.name, len(pairs)) == (name, 40)
        elif option == "lexicon":
            lexicon = read_lexicon(name)
            assert len(lexicon) == 60
            assert any(len(own) > 1 for own in lexicon.translations.values())
        elif option == "entailment":
            pairs = read_labelled_pairs(name)
            assert len(pairs) == 48 and sum(pairs.labels) == 24
        else:
            assert len(read_linking("example-names", "example-mentions")) == 48
        assert path.stem == name
    assert set(EXAMPLES) == {path.stem for path in example_file(name).parent.glob("*.csv")}
