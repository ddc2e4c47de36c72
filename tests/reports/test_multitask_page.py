"""The page of a model of several tasks: its numbers are those of the folder, and no part that is
missing breaks it.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from closeknit.errors import CloseknitError, DataError, ModelError
from closeknit.reports.multitask_page import write_multitask_report

NASTY = '</script><script>alert(1)</script> "it\'s" <b>bold</b> & {{ 7 * 7 }}'
KINDS = {"mood": "classify", "sts": "pair_score", "dup": "pair_classify"}
METRICS = {"mood": "", "sts": "", "dup": "macro_f1"}
HEADS = {"mood": "", "sts": "paired", "dup": ""}
SHOWN = {"mood": "accuracy", "sts": "pearson", "dup": "macro_f1"}  # the metric that counts


def scores(task: str, value: float) -> dict:
    if KINDS[task] == "pair_score":
        return {"pearson": value, "spearman": value - 0.01, "mean_error": 0.6543, "n": 1379}
    other = {
        "accuracy": 0.1111,
        "weighted_f1": 0.2222,
        "macro_f1": 0.3333,
        SHOWN[task]: value,
        "n": 1234,
    }
    names = {"mood": ("sad", "glad"), "dup": ("same", "other")}[task]
    classes = [
        {"precision": 0.4321, "recall": 0.5432, "f1": 0.4813, "n": 200},
        {"precision": 0.6, "recall": 0.7, "f1": 0.6462, "n": 1034},
    ]
    return {**other, "per_class": dict(zip(names, classes, strict=True))}


def part(**values: float) -> dict:
    found: dict = {task: scores(task, value) for task, value in values.items()}
    return {**found, "average": sum(values.values()) / len(values)}


def alone(**values: float) -> dict:
    return {
        task: {"validation": scores(task, 0.01), "test": scores(task, value)}
        for task, value in values.items()
    }


def record(
    epoch: float, losses=(1.5, 0.5, 0.7), values=(0.5, 0.6, 0.7), cosines=(0.2, -0.1, 0.4)
) -> dict:
    pairs = ("mood/sts", "mood/dup", "sts/dup")
    return {
        "epoch": epoch,
        "loss": 0.9,
        **{f"loss/{task}": loss for task, loss in zip(KINDS, losses, strict=True)},
        **dict(zip(KINDS, values, strict=True)),
        "average": sum(values) / 3,
        **{f"gradients/{pair}": cosine for pair, cosine in zip(pairs, cosines, strict=True)},
    }


WHOLE = {
    "history": [
        record(1.0, cosines=(0.2, -0.1, 0.4)),
        record(2.0, values=(0.61, 0.72, 0.8), cosines=(0.1, -0.3, 0.5)),
        record(3.0, losses=(0.812, 0.2, 0.3), cosines=(-0.2, 0.05, 0.3)),
    ],
    "rows": {"mood": 8544, "sts": 5749, "dup": 141506},
    "updates": {"mood": 402, "sts": 271, "dup": 6634},
    "validation": part(mood=0.61, sts=0.72, dup=0.8),
    "test": part(mood=0.5512, sts=0.6934, dup=0.8123),
    "alone": alone(mood=0.5312, sts=0.6884, dup=0.8323),
}


def facts(names=tuple(KINDS), **tables) -> dict:
    tasks = {
        f"tasks.{name}": {
            "data": f"{name}_rows",
            "kind": KINDS[name],
            "head": HEADS[name],
            "metric": METRICS[name],
            "weight": 1.0,
            "objective": "cross_entropy",
        }
        for name in names
    }
    run = {
        **tasks,
        "encoder": {"max_length": 96, "lora_rank": 0, "frozen": False, "dropout": None},
        "schedule": {
            "name": "random",
            "order": [],
            "power": 0,
            "weights": {"dup": 2.0},
            "surgery": "none",
        },
        "shared": {"layer": True, "dropout": 0.3, "layer_dropout": 0.0},
        "train": {"epochs": 7, "batch_size": 48, "lr": 1e-5, "head_lr": None, "seed": 23},
        "pretrain": {"data": "", "method": "simcse"},
    }
    return {
        "kind": "multi_task",
        "answers": {"sts": {"labels": [], "low": 0.0, "high": 5.0}},
        "encoder": {"name": "roberta-small", "pooling": "first"},
        "run": {**run, **tables},
        "versions": {"closeknit": "0.9.1", "torch": "2.77"},
    }


def make(folder: Path, metrics: dict = WHOLE, mistakes: dict | None = None, **about) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "closeknit.json").write_text(json.dumps(facts(**about)))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    for task, rows in (mistakes or {}).items():
        (folder / "mistakes").mkdir(exist_ok=True)
        with (folder / "mistakes" / f"{task}.csv").open("w", newline="") as file:
            header = ("text", "text2", "expected", "predicted", "size", "overlap")
            csv.writer(file).writerows([header, *rows])
    return folder


def page_of(*given, **more) -> str:
    return write_multitask_report(make(*given, **more)).read_text(encoding="utf-8")


def without(*keys: str, **more) -> dict:
    return {**{key: value for key, value in WHOLE.items() if key not in keys}, **more}


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]


def lead(page: str) -> str:
    return words(re.search(r'<p class="lead">(.*?)</p>', page, re.S).group(1))


def rows(html: str) -> list[list[str]]:
    """The cells of every row, as one reads them."""
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.S)
    return [
        [words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in found
    ]


def row(html: str, first: str) -> list[str]:
    return next(cells for cells in rows(html) if cells[0] == first)


MISTAKES = {
    "mood": [("so so", "", "sad", "glad", 0.61, ""), ("oh no", "", "glad", "sad", 0.973, "")],
    "sts": [
        ("a man runs", "a man eats", "1.00", "3.50", 2.5, 0.5),
        ("a dog", "a hound", "5.00", "3.00", 2.0, 0.2),
        ("it rains", "it snows", "1.20", "2.40", 1.2, 0.3),
    ],
    "dup": [
        ("who is he", "who was he", "other", "same", 0.9, 0.9),
        ("what is it", "what was it", "other", "same", 0.8, 0.7),
        ("how old", "what age", "same", "other", 0.7, 0.05),
    ],
}


@pytest.fixture
def page(tmp_path):
    return page_of(tmp_path / "model", mistakes=MISTAKES)


# ---------------------------------------------------------------- the result


def test_everything_is_there_in_order(page):
    assert sections(page) == ["verdict", "table", "curves", "gradients", "errors", "method"]
    assert re.findall(r'<a href="#(\w+)"', page) == sections(page)
    assert "<h1>3 tasks on one encoder: mood, sts, dup</h1>" in page


def test_the_first_sentence_weighs_one_model_against_many(page):
    assert lead(page) == (
        "On test rows the average over 3 tasks is 68.56 points, which equals the mean of the models trained on one task "
        "each (68.40) within 0.5 points: better on mood (+2.00), equal on sts (+0.50), worse on dup (−2.00)."
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            (0.53, 0.67, 0.80),
            "which is 1.90 above the mean of the models trained on one task each (66.67):",
        ),
        (
            (0.57, 0.71, 0.83),
            "which is 1.77 below the mean of the models trained on one task each (70.33):",
        ),
        (
            (0.5463, 0.6883, 0.8073),
            "(68.06) within 0.5 points: better on sts (+0.51), equal on mood (+0.49) and dup (+0.50).",
        ),
    ],
)
def test_beats_equals_or_is_below(tmp_path, values, said):
    metrics = without(alone=alone(**dict(zip(KINDS, values, strict=True))))
    assert said in lead(page_of(tmp_path, metrics))


def test_without_single_task_models_there_is_no_comparison(tmp_path):
    page = page_of(tmp_path, without("alone"))
    assert lead(page) == "On test rows the average over 3 tasks is 68.56 points."
    assert "Each task alone" not in page and "Difference" not in page


def test_where_a_task_has_no_test_rows_the_average_is_that_on_validation(tmp_path):
    page = page_of(tmp_path, without("alone", test={"mood": scores("mood", 0.5512)}))
    assert lead(page) == "On validation rows the average over 3 tasks is 71.00 points."
    assert row(page, "average")[2:4] == ["71.00", "–"]
    assert row(page, "mood")[2:4] == ["61.00", "55.12"]
    assert row(page, "sts")[2:4] == ["72.00", "–"]


def test_tasks_that_were_not_all_scored_have_no_average(tmp_path):
    page = page_of(tmp_path, without("test", "alone", validation={"sts": scores("sts", 0.72)}))
    assert lead(page).startswith("Not every task was scored, so there is no average")
    assert row(page, "average")[2] == "–"


def test_single_task_models_of_some_tasks_are_compared_task_by_task(tmp_path):
    page = page_of(tmp_path, without(alone=alone(dup=0.8323)))
    assert lead(page).endswith(
        "68.56 points; compared with models of one task each it is worse on dup (−2.00)."
    )


def test_the_table_shows_the_numbers_of_the_files(page):
    table = section(page, "table")
    assert row(table, "mood") == [
        "mood", "accuracy", "61.00", "55.12", "1.00", "53.12", "+60.00", "+2.00", "class of a text linear",
        "8,544", "402",
    ]  # fmt: skip
    assert row(table, "sts")[1:4] == ["Pearson", "72.00", "69.34"]
    assert row(table, "sts")[8:] == ["score of a pair paired", "5,749", "271"]
    assert row(table, "dup")[1:4] == ["macro F1", "80.00", "81.23"]
    assert row(table, "dup")[8:] == ["class of a pair dense_paired", "141,506", "6,634"]
    assert rows(table)[-1] == [
        "average",
        "",
        "71.00",
        "68.56",
        "1.00",
        "68.40",
        "+70.00",
        "+0.17",
        "",
    ]
    assert '<td class="win">+2.00</td>' in table
    assert '<td class="tie">+0.50</td>' in table
    assert '<td class="loss">−2.00</td>' in table


# ---------------------------------------------------------------- curves


def test_curves_show_every_task_and_the_average(page):
    curves = section(page, "curves")
    notes = re.findall(r"<title>([^<]*)</title>", curves)
    assert notes.count("mood, epoch 2: 61") == 2  # among all tasks, and on its own scale
    assert notes.count("average, epoch 2: 71") == 1
    assert notes.count("mood, epoch 3: 0.812") == 1  # its loss
    assert [words(name) for name in re.findall(r"<figcaption>(.*?)</figcaption>", curves)] == [
        "All tasks", "Training loss", "mood", "sts", "dup",
    ]  # fmt: skip
    assert "the best average on validation rows, from epoch 2." in words(curves)
    assert "multiplied by the weight" not in curves


def test_a_weight_of_a_task_is_said_to_be_in_its_loss(tmp_path):
    task = {**facts()["run"]["tasks.dup"], "weight": 2.5}
    page = page_of(tmp_path, **{"tasks.dup": task})
    assert "Each loss is multiplied by the weight of its task." in page
    assert row(section(page, "method"), "dup")[-1] == "2.5"


def test_one_record_is_a_point_and_no_line(tmp_path):
    curves = section(page_of(tmp_path, without(history=[record(1.0)])), "curves")
    assert '<circle class="dot"' in curves and '<path class="line"' not in curves


def test_of_a_long_history_some_points_are_shown_and_the_last_always(tmp_path):
    history = [record(n / 100) for n in range(1, 702)]
    notes = re.findall(
        r"<title>dup, epoch ([\d.]+): 0.7</title>", page_of(tmp_path, without(history=history))
    )
    assert 30 <= len(notes) <= 60
    assert notes[-1] == "7.01"


def test_the_stage_before_the_tasks_has_its_curve(tmp_path):
    metrics = without(pretraining=[{"epoch": 1.0, "loss": 0.42}, {"epoch": 2.0, "loss": 0.31}])
    pretrain = {
        "data": "nli",
        "method": "mirror",
        "epochs": 2,
        "lr": 3e-5,
        "rows": 0,
        "positives": "yes",
    }
    page = page_of(tmp_path, metrics, pretrain=pretrain)
    assert "Before the tasks: mirror" in page and "<title>mirror, epoch 2: 0.31</title>" in page
    assert (
        row(section(page, "method"), "Pretraining")[1]
        == "mirror on nli, epochs 2, lr 3e-05, positives yes"
    )


def test_every_stage_before_the_tasks_has_its_curve_and_its_settings(tmp_path):
    records = [{"epoch": 1.0, "loss": 0.42, "stage": 1}, {"epoch": 1.0, "loss": 0.31, "stage": 2}]
    second = {"data": "pairs.csv", "method": "multiple_negatives", "similarity": "dot"}
    about = {
        "pretrain": {"data": "nli", "method": "simcse", "similarity": "cosine"},
        "pretrain.2": second,
    }
    page = page_of(tmp_path, without(pretraining=records), **about)
    assert "<title>simcse, epoch 1: 0.42</title>" in page
    assert "<title>multiple_negatives, epoch 1: 0.31</title>" in page
    method = section(page, "method")
    assert row(method, "Pretraining 1")[1] == "simcse on nli"
    assert row(method, "Pretraining 2")[1] == "multiple_negatives on pairs.csv, similarity dot"


def test_scores_on_training_rows_stand_before_the_others(tmp_path):
    found = {
        name: {**scores, "n": 1000} for name, scores in WHOLE["test"].items() if name != "average"
    }
    plain, scored = page_of(tmp_path / "a"), page_of(tmp_path / "b", without(train=found))
    assert lead(plain) == lead(scored)  # which is about rows that were not trained on

    def titles(page):
        return next(cells for cells in rows(section(page, "table")) if "Task" in cells)

    assert "train" not in titles(plain)
    assert titles(scored)[2] == "train" and titles(scored)[3:] == titles(plain)[2:]


def test_the_schedule_and_the_surgery_are_said_in_words(tmp_path):
    schedule = {"name": "mixed", "surgery": "pcgrad", "surgery_reduction": "mean"}
    method = section(page_of(tmp_path, schedule=schedule), "method")
    assert "the loss is the mean of the tasks' losses" in row(method, "Schedule")[1]
    assert "the mean of the tasks' gradients is taken" in row(method, "Gradient surgery")[1]


def test_without_validation_only_losses_are_drawn(tmp_path):
    history = [
        {k: v for k, v in record(n).items() if "loss" in k or k == "epoch"} for n in (1.0, 2.0)
    ]
    page = page_of(tmp_path, without("validation", "alone", history=history))
    assert re.findall(r"<figcaption>(.*?)</figcaption>", section(page, "curves")) == [
        "Training loss"
    ]
    assert "gradients" not in sections(page)
    assert lead(page).startswith("On test rows")
    assert row(page, "mood")[2] == "55.12"


# ---------------------------------------------------------------- gradients


def test_the_pair_that_contradicts_most_and_least_is_named(page):
    gradients = section(page, "gradients")
    assert "Below 0 (the dashed line), they conflict" in words(gradients)
    assert (
        "The gradients of mood and dup conflict most often, at 2 of 3 evaluations (mean cosine −0.12); "
        "those of sts and dup conflict least often, at no evaluation (mean cosine 0.40)."
    ) in words(gradients)
    assert rows(gradients)[1:] == [
        ["mood and dup", "−0.12", "−0.30", "2 of 3"],
        ["mood and sts", "0.03", "−0.20", "1 of 3"],
        ["sts and dup", "0.40", "0.30", "0 of 3"],
    ]
    assert "<title>mood and dup, epoch 2: −0.3</title>" in gradients
    assert "PCGrad" not in gradients


def test_tasks_that_never_contradict_are_said_to_agree(tmp_path):
    schedule = {"name": "together", "surgery": "pcgrad"}
    page = page_of(
        tmp_path, without(history=[record(1.0, cosines=(0.2, 0.1, 0.6))]), schedule=schedule
    )
    assert (
        "No two tasks have conflicting gradients at any evaluation; mood and dup agree least (mean cosine 0.10), "
        "sts and dup agree most (0.60)."
    ) in words(page)
    assert "PCGrad removed the conflicting part of every gradient" in page


def test_pairs_that_contradict_equally_often_are_told_apart_by_how_much(tmp_path):
    history = [record(1.0, cosines=(-0.2, -0.1, 0.6)), record(2.0, cosines=(0.1, 0.2, -0.4))]
    assert (
        "The gradients of all pairs conflict equally often, at 1 of 2 evaluations; mood and sts agree least "
        "(mean cosine −0.05), sts and dup agree most (0.10)."
    ) in words(page_of(tmp_path, without(history=history)))


def test_two_tasks_have_one_pair(tmp_path):
    history = [
        {"epoch": e, "mood": 0.5, "sts": 0.5, "average": 0.5, "gradients/mood/sts": c}
        for e, c in ((1.0, -0.5), (2.0, 0.1))
    ]
    page = page_of(tmp_path, {"history": history}, names=("mood", "sts"))
    assert (
        "The gradients of mood and sts conflict at 1 of 2 evaluations (mean cosine −0.20)."
        in words(page)
    )


# ---------------------------------------------------------------- errors


def test_classes_and_scores_are_those_of_the_test_part(page):
    errors = section(page, "errors")
    mood, sts, dup = errors.split('class="panel')[1:]
    assert "1,234 test rows: accuracy 55.12, weighted F1 22.22, macro F1 33.33." in words(mood)
    assert row(mood, "sad") == ["sad", "43.21", "54.32", "48.13", "200"]
    assert row(dup, "other") == ["other", "60.00", "70.00", "64.62", "1,034"]
    told = "1,379 test rows: Pearson 69.34, Spearman 68.34, mean absolute error 0.65 on a scale from 0 to 5."
    assert told in words(sts)
    assert "Precision" not in sts


def test_mistakes_stand_with_the_surest_first(page):
    mood, sts, dup = section(page, "errors").split('class="panel')[1:]
    assert rows(mood)[-2:] == [
        ["oh no", "glad", "sad", "97.3 %"],
        ["so so", "sad", "glad", "61.0 %"],
    ]
    assert "2 texts are misclassified. All are in mistakes/mood.csv ." in words(mood)
    assert rows(sts)[1] == ["a man runs a man eats", "1.00", "3.50", "2.50", "50 %"]
    assert (
        "3 pairs have a score that is wrong by 1.20 or more. All are in mistakes/sts.csv ."
        in words(sts)
    )
    assert rows(dup)[-1] == ["how old what age", "same", "other", "70.0 %", "5 %"]


def test_word_overlap_is_told_by_the_side_of_the_mistake(page):
    mood, sts, dup = (words(part) for part in section(page, "errors").split('class="panel')[1:])
    said = "Mean word overlap: "
    assert (
        f"{said}80 % in the 2 pairs wrongly predicted as same, 5 % in the 1 pair wrongly predicted as other."
        in dup
    )
    assert f"{said}40 % in the 2 pairs scored too high, 20 % in the 1 pair scored too low." in sts
    assert said not in mood


def test_forty_mistakes_are_shown_and_all_are_counted(tmp_path):
    many = [(f"text {n}", "", "sad", "glad", 0.5 + n / 1000, "") for n in range(1, 46)]
    errors = section(page_of(tmp_path, mistakes={"mood": many}), "errors")
    shown = re.findall(r"<td>(text \d+)</td>", errors)
    assert shown == [f"text {n}" for n in range(45, 5, -1)]
    assert (
        "45 texts are misclassified. The first 40 are shown; all are in mistakes/mood.csv"
        in words(errors)
    )


def test_no_mistakes_and_no_list_of_them_are_told_apart(tmp_path):
    errors = words(section(page_of(tmp_path, mistakes={"mood": []}), "errors"))
    assert errors.count("There are no wrong answers in mistakes/mood.csv") == 1
    assert errors.count("No wrong answers are stored for this task.") == 2


def test_a_damaged_list_of_mistakes_is_refused(tmp_path):
    folder = make(tmp_path, mistakes={"mood": [("text", "", "sad", "glad", "half", "")]})
    with pytest.raises(DataError, match=r"mood\.csv is damaged"):
        write_multitask_report(folder)


def test_a_list_of_scores_that_are_no_numbers_is_refused(tmp_path):
    folder = make(tmp_path, mistakes={"sts": [("a", "b", "1.0", "high", "2.0", "0.5")]})
    with pytest.raises(DataError, match=r"sts\.csv is damaged"):
        write_multitask_report(folder)


# ---------------------------------------------------------------- how it was made


def test_the_settings_are_told(page):
    made = section(page, "method")
    told = dict(cells for cells in rows(made) if len(cells) == 2)
    assert (
        told["Schedule"]
        == "random, the task of each update is drawn at random, power 0, weights dup 2"
    )
    assert told["Gradient surgery"] == "none, the gradients of the tasks are added"
    assert told["Shared layer"] == "linear with tanh, below all heads"
    assert told["Dropout"] == "dropout 0.3, layer dropout 0"
    assert told["Pretraining"] == "none"
    assert told["Encoder"] == "roberta-small, pooling first, max length 96"
    assert told["Learning rates"] == "encoder 1e-05, heads by default"
    assert (told["Epochs"], told["Batch size"], told["Seed"]) == ("7", "48", "23")
    assert told["torch"] == "2.77" and told["train.batch_size"] == "48"
    assert row(made, "mood")[1:] == ["mood_rows", "cross_entropy", "1.0"]
    assert row(made, "sts")[2] == "mean squared error"


def test_settings_that_were_changed_are_told_too(tmp_path):
    task = {**facts()["run"]["tasks.mood"], "data": {"train": ["a.csv", "b.csv"], "test": "c.csv"}}
    page = page_of(
        tmp_path,
        schedule={
            "name": "round_robin",
            "order": ["dup", "mood"],
            "turn": "pass",
            "surgery": "none",
        },
        shared={"layer": False, "dropout": 0.25},
        encoder={"max_length": 64, "lora_rank": 8, "frozen": True},
        **{"tasks.mood": task},
    )
    made = section(page, "method")
    assert (
        row(made, "Schedule")[1] == "round_robin, the tasks take turns, order dup, mood, turn pass"
    )
    assert row(made, "Shared layer")[1] == "none"
    assert row(made, "Dropout")[1] == "dropout 0.25"
    assert (
        row(made, "Encoder")[1]
        == "roberta-small, pooling first, max length 64, frozen yes, lora rank 8"
    )
    assert row(made, "mood")[1] == "train: a.csv, b.csv; test: c.csv"


# ---------------------------------------------------------------- parts that are missing


def test_one_task_has_no_average_no_gradients_and_the_loss_of_the_run(tmp_path):
    metrics = {
        "history": [
            {"epoch": 1.0, "loss": 0.934, "sts": 0.72, "average": 0.72, "gradients/sts/dup": 0.1}
        ],
        "validation": part(sts=0.72),
    }
    page = page_of(tmp_path, metrics, names=("sts",), mistakes={"sts": MISTAKES["sts"]})
    assert "<h1>1 task on one encoder: sts</h1>" in page
    assert lead(page) == "On validation rows the Pearson of sts is 72.00 points."
    assert sections(page) == ["verdict", "table", "curves", "errors", "method"]
    assert len(rows(section(page, "table"))) == 2
    assert "<title>sts, epoch 1: 0.934</title>" in page
    assert "the best score on validation rows, from epoch 1." in words(page)
    assert 'role="tab"' not in page


def test_a_folder_without_any_score_still_has_a_page(tmp_path):
    page = page_of(tmp_path, {})
    assert sections(page) == ["verdict", "table", "method"]
    assert lead(page) == "No task was scored: there were neither validation nor test rows."
    assert row(page, "mood") == ["mood", "accuracy", "class of a text linear", "–", "–"]


def test_a_run_that_tells_only_its_tasks_still_has_a_page(tmp_path):
    make(tmp_path)
    (tmp_path / "closeknit.json").write_text(
        '{"kind": "multi_task", "run": {"tasks.mood": {}, "tasks.dup": 3}}'
    )
    page = write_multitask_report(tmp_path).read_text()
    assert row(page, "mood")[:4] == ["mood", "accuracy", "61.00", "55.12"]
    assert "Schedule" not in page


def test_a_score_that_is_no_number_is_left_out(tmp_path):
    metrics = without("alone", "test")
    metrics["validation"] = {**part(mood=0.61, dup=0.8), "sts": {"pearson": float("nan"), "n": 5}}
    metrics["history"] = [
        record(1.0, values=(0.5, float("nan"), 0.7)),
        {"epoch": None, "mood": "high"},
        None,
    ]
    page = page_of(tmp_path, metrics)
    assert row(page, "sts")[2] == "–" and row(page, "average")[2] == "–"
    assert "nan" not in words(page).lower()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("closeknit.json", None, "is not the folder of a model: it has no closeknit.json"),
        ("closeknit.json", "{", "closeknit.json is damaged or incomplete"),
        ("closeknit.json", "[]", "closeknit.json is damaged: it holds no JSON object"),
        (
            "closeknit.json",
            '{"kind": "text_classifier"}',
            "is not a model of several tasks: its kind is text_classifier",
        ),
        (
            "closeknit.json",
            '{"kind": "multi_task", "run": 3}',
            "closeknit.json is damaged: run is not a table",
        ),
        (
            "closeknit.json",
            '{"kind": "multi_task", "run": {}}',
            "closeknit.json is damaged: it names no task",
        ),
        ("metrics.json", None, "metrics.json is missing"),
        ("metrics.json", '{"history": [', "metrics.json is damaged or incomplete"),
        ("metrics.json", b"\xff\xfe\x00", "metrics.json is damaged or incomplete"),
        ("metrics.json", "3", "metrics.json is damaged: it holds no JSON object"),
        ("metrics.json", '{"history": {}}', "metrics.json is damaged: history is not a list"),
        ("metrics.json", '{"alone": []}', "metrics.json is damaged: alone is not a table"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_a_sentence(tmp_path, file, content, said):
    path = make(tmp_path) / file
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=re.escape(said)) as caught:
        write_multitask_report(tmp_path)
    assert isinstance(caught.value, CloseknitError) and "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


# ---------------------------------------------------------------- one file, whatever is in it


@pytest.fixture
def nasty(tmp_path):
    """A folder in which every text that can be nasty is."""
    named = scores("mood", 0.5)
    named["per_class"] = {NASTY: named["per_class"]["sad"]}
    mistakes = {
        "mood": [(NASTY, "", NASTY, NASTY, 0.9, "")],
        "dup": [(NASTY, NASTY, "same", NASTY, 0.9, 0.5)],
    }
    metrics = without(test={**WHOLE["test"], "mood": named})
    task = {**facts()["run"]["tasks.mood"], "data": NASTY, "objective": NASTY}
    return make(
        tmp_path / "nasty", metrics, mistakes, **{"tasks.mood": task, "schedule": {"name": NASTY}}
    )


def test_texts_and_names_cannot_break_out(nasty):
    page = write_multitask_report(nasty).read_text()
    assert page.count("<script") == 2  # our own
    assert "<b>bold" not in page
    assert page.count("&lt;b&gt;bold&lt;/b&gt; &amp; {{ 7 * 7 }}") >= 9
    assert words(page).count(NASTY) >= 9


def test_the_file_needs_nothing_else(page):
    assert not re.search(r'(src|href)="(?!#|data:,")', page)
    assert "@import" not in page and "url(" not in page and "http" not in page


def test_ids_are_unique_and_every_reference_meets_one(page):
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    named = re.findall(r'aria-(?:labelledby|controls)="([^"]+)"', page)
    assert len(named) == 6 and set(named) <= set(ids)


def test_the_page_is_balanced_html(page):
    class Balance(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag, attrs):
            if tag not in {"meta", "link", "br", "input"}:
                self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []


def test_a_page_made_twice_is_the_same_and_leaves_nothing_behind(nasty):
    first = write_multitask_report(nasty).read_bytes()
    assert write_multitask_report(nasty).read_bytes() == first
    assert not [path for path in nasty.iterdir() if path.name.startswith(".")]


def test_a_page_is_made_without_torch(nasty):
    code = (
        "import sys; from pathlib import Path; from closeknit.reports.multitask_page import write_multitask_report;"
        "write_multitask_report(Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(nasty)]).returncode == 0


@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser_it_fits_and_tabs_and_search_work(nasty, width):
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if program is None:
        pytest.skip("no chromium on this machine")
    make(nasty, mistakes=MISTAKES)
    complaints: list[str] = []
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(write_multitask_report(nasty).as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.is_visible("#errors-task0") and tab.is_hidden("#errors-task2")
        tab.click("#errors-tab-task2")
        assert tab.is_visible("#errors-task2") and tab.is_hidden("#errors-task0")
        tab.fill("#errors-task2 input", "how old")
        shown = [
            row.inner_text()
            for row in tab.query_selector_all("#errors-task2 .mistakes tbody tr")
            if row.is_visible()
        ]
        assert len(shown) == 1 and "what age" in shown[0]
        assert tab.inner_text("#errors-task2 .count") == "1 of 3 mistakes"
        before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.click("#theme")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
        browser.close()
    assert complaints == []
