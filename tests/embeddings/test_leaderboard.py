"""Encoders are scored side by side on the same data, from the command line."""

from __future__ import annotations

import pytest

from closeknit.embeddings.score_tables import evaluate_suite
from closeknit.errors import DataError

PAIRS = [
    (f"where is my {thing} {when}", f"help with my {thing} {when}")
    for thing in ("card", "parcel", "refund", "order")
    for when in ("today", "please", "back")
]


def test_files_of_one_name_are_told_apart(closeknit, tiny, tmp_path):
    for folder, score in (("a", 5), ("b", 1)):
        (tmp_path / folder).mkdir()
        rows = f"my card,the card,{score}\nmy card,my parcel,3\nrefund,a refund,4\n"
        (tmp_path / folder / "pairs.csv").write_text("text,text2,score\n" + rows)
    told = closeknit(
        "evaluate-embeddings", tiny(), "--suite", "a/pairs.csv", "--suite", "b/pairs.csv"
    ).stdout
    assert "| pairs |" in told and "| b/pairs.csv |" in told


def test_what_cannot_be_scored_is_told_before_anything_is(closeknit, tiny, tmp_path):
    (tmp_path / "pairs.csv").write_text(
        "text,text2,score\nmy card,the card,5\nmy card,my parcel,3\n"
    )
    wrong = (
        (("--labelled", "trek"), "did you mean trec?"),
        (("--retrieval", "asked.csv"), "asked.csv does not exist"),
        (("--plot", "course.foo"), "its name must end in .png"),
    )
    for options, words in wrong:
        done = closeknit("evaluate-embeddings", tiny(), "--suite", "pairs.csv", *options, code=2)
        assert words in done.stderr and "scoring" not in done.stderr
    scored = []
    with pytest.raises(DataError, match="does not exist; did you mean pairs"):
        evaluate_suite(scored.append, [tmp_path / "pairs.csv", tmp_path / "pears.csv"])
    assert not scored


def test_answers_are_looked_for_in_the_test_part_and_data_of_one_name_told_apart(
    closeknit, tiny, tmp_path
):
    for folder, rows in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        for name, part in (("train", PAIRS[6:]), ("test", PAIRS[:rows]), ("faq", PAIRS[:rows])):
            lines = "".join(f"{text},{answer}\n" for text, answer in part)
            (tmp_path / folder / f"{name}.csv").write_text("text,text2\n" + lines)
    sources = ("a/faq.csv", "b/faq.csv", "b")
    options = [word for source in sources for word in ("--retrieval", source)]
    told = closeknit("evaluate-embeddings", tiny(), *options).stdout
    for row in (
        "| faq | mrr × 100 | 2 |",
        "| b/faq.csv | mrr × 100 | 3 |",
        "| b | mrr × 100 | 3 |",
    ):
        assert row in told
