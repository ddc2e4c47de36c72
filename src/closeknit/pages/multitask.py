"""A folder of several tasks -> one page: curves, how the gradients agree, single-task against multi-task, mistakes."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import charts
from ..errors import DataError, ModelError
from ..mistakes import Mistake, read_mistakes
from .folder import whole_ticks
from .mistakes import SHOWN_MISTAKES, cut

History = list[dict[str, Any]]

_EQUAL = 0.5  # points between models that count as equal
_POINTS = 60  # of a curve
_PARTS = ("validation", "test")
_KINDS = {"classify": "class of a text", "pair_classify": "class of a pair", "pair_score": "score of a pair"}
_MEASURES = {
    "accuracy": "accuracy",
    "weighted_f1": "weighted F1",
    "macro_f1": "macro F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
}
_SCHEDULES: dict[str, tuple[str, tuple[str, ...]]] = {  # what each does, and the options that it reads
    "together": ("every update takes a batch of each task", ()),
    "sequential": ("all epochs of one task and then all of the next", ("order",)),
    "round_robin": ("the tasks take turns", ("order", "turn")),
    "random": ("the task of each update is drawn at random", ("power", "weights")),
    "annealed": ("drawn at random and at the end all tasks alike", ("anneal", "weights")),
}
_SURGERY = {
    "none": "none, the gradients of tasks are added as they are",
    "pcgrad": "pcgrad, what contradicts another task is projected away",
}
_STAGE = ("epochs", "batch_size", "lr", "temperature", "positives", "negatives")
_ENCODER = ("max_length", "dropout", "frozen", "lora_rank")
_TRAIN = ("epochs", "batch_size", "seed")


@dataclass(frozen=True)
class Task:
    """One task of the run, as it was set."""

    name: str
    kind: str
    head: str
    metric: str
    settings: dict[str, Any]
    colour: int

    @staticmethod
    def of(name: str, settings: dict[str, Any], number: int) -> Task:
        kind = str(settings.get("kind", "classify"))
        head = settings.get("head") or ("linear" if kind == "classify" else "dense_paired")
        metric = settings.get("metric") or ("pearson" if kind == "pair_score" else "accuracy")
        return Task(name, kind, str(head), str(metric), settings, _colour(number))

    @property
    def measure(self) -> str:
        return _MEASURES.get(self.metric, self.metric)


@dataclass(frozen=True)
class Trained:
    """A folder of several tasks, read once."""

    folder: Path
    tasks: list[Task]
    run: dict[str, Any]
    facts: dict[str, dict[str, Any]]  # answers, encoder, versions
    metrics: dict[str, dict[str, Any]]  # rows, updates, validation, test, alone
    history: History
    pretraining: History

    def scores(self, task: Task, part: str, *, alone: bool = False) -> dict[str, Any]:
        """All scores of a task; none where that part was not scored."""
        if alone:
            return _table(_table(self.metrics["alone"].get(task.name)).get(part))
        return _table(self.metrics[part].get(task.name))

    def points(self, task: Task, part: str, *, alone: bool = False) -> float | None:
        return _points(self.scores(task, part, alone=alone).get(task.metric))

    def average(self, part: str, *, alone: bool = False) -> float | None:
        """The mean over the tasks, where all have a score."""
        known = [self.points(task, part, alone=alone) for task in self.tasks]
        values = [value for value in known if value is not None]
        return sum(values) / len(values) if len(values) == len(known) else None


def multitask_contents(folder: Path) -> dict[str, Any]:
    """What the page of a folder shows; refuses a folder that holds no model of several tasks."""
    trained = _read(folder)
    names = [task.name for task in trained.tasks]
    return {
        "title": f"{_counted(len(names), 'task')} on one encoder: {', '.join(names)}",
        "summary": _summary(trained),
        "table": _score_table(trained),
        "curves": _curves(trained),
        "gradients": _gradients(trained),
        "errors": _errors(trained),
        "made": _made(trained),
    }


# ---------------------------------------------------------------- reading


def _read(folder: Path) -> Trained:
    main, scores = folder / "closeknit.json", folder / "metrics.json"
    if not main.exists():
        raise ModelError(f"{folder} is no folder of a model: it has no closeknit.json")
    facts = _read_json(main)
    if facts.get("kind") != "multi_task":
        raise ModelError(f"{folder} holds no model of several tasks: its kind is {facts.get('kind')}")
    run = _part(facts, "run", main)
    tables = {key.removeprefix("tasks."): _table(own) for key, own in run.items() if key.startswith("tasks.")}
    if not tables:
        raise ModelError(f"{main} is damaged: it names no task")
    metrics = _read_json(scores)
    return Trained(
        folder,
        [Task.of(name, own, number) for number, (name, own) in enumerate(tables.items())],
        run,
        {key: _part(facts, key, main) for key in ("answers", "encoder", "versions")},
        {key: _part(metrics, key, scores) for key in ("rows", "updates", *_PARTS, "alone")},
        _history(metrics, "history", scores),
        _history(metrics, "pretraining", scores),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except ValueError as error:
        raise ModelError(f"{path} is damaged or cut short ({error})") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: it holds no table")
    return found


def _part(whole: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    """A table in a file, empty where it is left out."""
    found = whole.get(key, {})
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: {key} is no table")
    return found


def _history(metrics: dict[str, Any], key: str, path: Path) -> History:
    found = metrics.get(key, [])
    if not isinstance(found, list):
        raise ModelError(f"{path} is damaged: {key} is no list")
    return [_table(record) for record in found]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _finite(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def _points(value: Any) -> float | None:
    """A score from 0 to 1 in points."""
    found = _finite(value)
    return None if found is None else 100 * found


# ---------------------------------------------------------------- the result


def _summary(trained: Trained) -> str:
    """The average in one sentence, against single-task models where there are some."""
    part = next((part for part in reversed(_PARTS) if trained.average(part) is not None), "")
    mean = trained.average(part) if part else None
    if mean is None:
        scored = any(trained.points(task, part) is not None for task in trained.tasks for part in _PARTS)
        return (
            "Not every task was scored, so there is no average; the table shows those that were."
            if scored
            else "No task was scored: there were neither validation nor test rows."
        )
    first, count = trained.tasks[0], len(trained.tasks)
    what = f"the average over {count} tasks is" if count > 1 else f"the {first.measure} of {first.name} is"
    said = f"On {part} rows {what} {charts.number(mean, 2)} points"
    alone = trained.average(part, alone=True)
    if alone is not None and count > 1:
        gain = charts.number(abs(mean - alone), 2)
        rival = f"the mean of the models trained on one task each ({charts.number(alone, 2)})"
        said += {
            "win": f", which beats {rival} by {gain}",
            "tie": f", which equals {rival} within {_EQUAL} points",
            "loss": f", which is {gain} below {rival}",
        }[_outcome(mean - alone)]
    groups: dict[str, list[str]] = {"win": [], "tie": [], "loss": []}
    for task in trained.tasks:
        difference = _difference(trained.points(task, part), trained.points(task, part, alone=True))
        if difference is not None:
            groups[_outcome(difference)].append(f"{task.name} ({charts.number(difference, 2, sign=True)})")
    words = {"win": "better on", "tie": "equal on", "loss": "below on"}
    told = ", ".join(f"{words[kind]} {_listed(names)}" for kind, names in groups.items() if names)
    joint = ": " if alone is not None and count > 1 else "; against models of one task each it is "
    return said + (joint + told if told else "") + "."


def _difference(own: float | None, single: float | None) -> float | None:
    return None if own is None or single is None else own - single


def _outcome(difference: float) -> str:
    return "tie" if abs(round(difference, 2)) <= _EQUAL else "win" if difference > 0 else "loss"


def _score_table(trained: Trained) -> dict[str, Any]:
    """A row a task and one for the average; only columns in which something stands."""
    parts, singles = (
        [p for p in _PARTS if any(trained.points(task, p, alone=alone) is not None for task in trained.tasks)]
        for alone in (False, True)
    )
    both = [part for part in parts if part in singles]

    def cells(own: dict[str, float | None], single: dict[str, float | None]) -> dict[str, Any]:
        differences = [_difference(own[part], single[part]) for part in both]
        return {
            "scores": [own[part] for part in parts],
            "alone": [single[part] for part in singles],
            "differences": [(gain, "tie" if gain is None else _outcome(gain)) for gain in differences],
        }

    rows = [
        {
            "task": task,
            "kind": _KINDS.get(task.kind, task.kind),
            "rows": _finite(trained.metrics["rows"].get(task.name)),
            "updates": _finite(trained.metrics["updates"].get(task.name)),
            **cells(
                {part: trained.points(task, part) for part in _PARTS},
                {part: trained.points(task, part, alone=True) for part in _PARTS},
            ),
        }
        for task in trained.tasks
    ]
    average = cells(
        {part: trained.average(part) for part in _PARTS},
        {part: trained.average(part, alone=True) for part in _PARTS},
    )
    return {
        "parts": parts,
        "alone": singles,
        "both": both,
        "equal": _EQUAL,
        "rows": rows,
        "average": average if len(rows) > 1 else None,
    }


# ---------------------------------------------------------------- curves


def _curves(trained: Trained) -> dict[str, Any] | None:
    """The metric and the loss of every task over the epochs, and the loss of the stage before."""
    tasks, history = trained.tasks, trained.history
    many = len(tasks) > 1
    metrics = [_curve(history, task.name, task.name, task.colour, 100.0) for task in tasks]
    average = _curve(history, "average", "average", 0, 100.0)
    losses = [
        _curve(history, f"loss/{task.name}" if many else "loss", task.name, task.colour) for task in tasks
    ]
    method = str(_table(trained.run.get("pretrain")).get("method") or "pretraining")
    everything = [*metrics, average] if many else metrics
    said = "points on validation rows"
    figures = [
        ("All tasks" if many else tasks[0].name, _chart(everything, "Validation scores", said)),
        ("Training loss", _chart(losses, "Training loss of each task", "training loss", loss=True)),
    ]
    for task, curve in zip(tasks, metrics, strict=True):
        if many:
            figures.append(
                (task.name, _chart([curve], f"Validation of {task.name}", f"{task.measure}, {said}"))
            )
    before = _curve(trained.pretraining, "loss", method, 0)
    figures.append((f"Before the tasks: {method}", _chart([before], "Loss of pretraining", "training loss")))
    shown = [{"name": name, "svg": svg} for name, svg in figures if svg]
    if not shown:
        return None
    known = [(value, r.get("epoch")) for r in history if (value := _finite(r.get("average"))) is not None]
    legend = [{"name": task.name, "colour": task.colour} for task in tasks]
    return {
        "figures": shown,
        "legend": [*legend, {"name": "average", "colour": 0}] if known else legend,
        "best": _finite(max(known, key=lambda pair: pair[0])[1]) if known else None,
        "weighted": any(task.settings.get("weight", 1.0) != 1.0 for task in tasks),
        "many": many,
    }


def _curve(history: History, key: str, name: str, colour: int, scale: float = 1.0) -> charts.Curve:
    """What records say under a key, thinned out where there are many; the last one stays."""
    found = [(_finite(record.get("epoch")), _finite(record.get(key))) for record in history]
    known = [(epoch, scale * value) for epoch, value in found if epoch is not None and value is not None]
    kept = known[::-1][:: max(1, math.ceil(len(known) / _POINTS))][::-1]
    notes = [f"{name}, epoch {charts.number(epoch)}: {charts.number(value)}" for epoch, value in kept]
    return charts.Curve(name, colour, [epoch for epoch, _ in kept], [value for _, value in kept], notes=notes)


def _chart(
    curves: Sequence[charts.Curve], label: str, y_name: str, *, loss: bool = False, zero: bool = False
) -> str | None:
    drawn = [curve for curve in curves if curve.x]
    if not drawn:
        return None
    epochs = sorted({x for curve in drawn for x in curve.x})
    tops, lowest = [max(curve.y) for curve in drawn], min(y for curve in drawn for y in curve.y)
    return charts.line_chart(
        drawn,
        f"{label} by epoch",
        x_name="epoch",
        y_name=y_name,
        log_y=loss and lowest > 0 and max(tops) > 5 * min(tops),
        zero=zero,
        ticks=epochs if len(epochs) == 1 else whole_ticks(int(epochs[-1])),
    )


def _gradients(trained: Trained) -> dict[str, Any] | None:
    """How the gradients of every two tasks agree, the pair that contradicts most first; nothing for one task."""
    names = {task.name for task in trained.tasks}
    pairs: History = []
    for key in dict.fromkeys(key for record in trained.history for key in record):
        kind, *both = key.split("/")
        values = [value for record in trained.history if (value := _finite(record.get(key))) is not None]
        if kind == "gradients" and len(both) == 2 and names.issuperset(both) and values:
            name, colour = " and ".join(both), _colour(len(pairs))
            pairs.append(
                {
                    "name": name,
                    "colour": colour,
                    "curve": _curve(trained.history, key, name, colour),
                    "mean": sum(values) / len(values),
                    "low": min(values),
                    "below": sum(value < 0 for value in values),
                    "of": len(values),
                }
            )
    if not pairs:
        return None
    ranked = sorted(pairs, key=lambda pair: (-pair["below"] / pair["of"], pair["mean"]))
    return {
        "svg": _chart([pair["curve"] for pair in pairs], "Cosine between gradients", "cosine", zero=True),
        "legend": pairs,
        "rows": ranked,
        "said": _agreement(ranked),
        "surgery": _table(trained.run.get("schedule")).get("surgery") == "pcgrad",
    }


def _agreement(ranked: History) -> str:
    first, last = ranked[0], ranked[-1]

    def often(pair: dict[str, Any]) -> str:
        times = f"at {pair['below']} of {_counted(pair['of'], 'evaluation')}" if pair["below"] else "at none"
        return f"{times} (mean cosine {charts.number(pair['mean'], 2)})"

    if len(ranked) == 1:
        return f"{first['name']} contradict each other {often(first)}."
    if first["below"] * last["of"] > last["below"] * first["of"]:
        return (
            f"{first['name']} contradict each other most often, {often(first)}; "
            f"{last['name']} least often, {often(last)}."
        )
    times = f"at {first['below']} of {_counted(first['of'], 'evaluation')}"
    who = f"All pairs contradict each other equally often, {times}" if first["below"] else (
        "No two tasks contradict each other at any evaluation")  # fmt: skip
    least, most = (charts.number(pair["mean"], 2) for pair in (first, last))
    return f"{who}; {first['name']} agree least (mean cosine {least}), {last['name']} most ({most})."


# ---------------------------------------------------------------- errors


def _errors(trained: Trained) -> list[dict[str, Any]]:
    """For each task that was scored or has wrong answers: its scores, its classes, and what it gets wrong."""
    found = []
    for number, task in enumerate(trained.tasks):
        path = trained.folder / "mistakes" / f"{task.name}.csv"
        part = next((part for part in reversed(_PARTS) if trained.scores(task, part)), "")
        if not part and not path.exists():
            continue
        scores = trained.scores(task, part) if part else {}
        mistakes, overlap = _wrong(task, path)
        classes = _table(scores.get("per_class"))
        found.append(
            {
                "id": f"task{number}",
                "name": task.name,
                "pairs": task.kind != "classify",
                "scores": task.kind == "pair_score",
                "said": _told(trained, task, part, scores) if part else "",
                "classes": [
                    (
                        name,
                        [_points(own.get(key)) for key in ("precision", "recall", "f1")],
                        _finite(own.get("n")),
                    )
                    for name, own in ((name, _table(own)) for name, own in classes.items())
                ],
                "stored": path.exists(),
                "told": _how_many(task, mistakes),
                "more": len(mistakes) > SHOWN_MISTAKES,
                "overlap": overlap,
                "mistakes": [(cut(one.text), cut(one.text2), one) for one in mistakes[:SHOWN_MISTAKES]],
            }
        )
    return found


def _wrong(task: Task, path: Path) -> tuple[list[Mistake], str]:
    """The wrong answers in a file, the worst first, and what is to say of their words."""
    try:
        mistakes = sorted(read_mistakes(path), key=lambda mistake: -mistake.size)
        return mistakes, _overlap(task, mistakes)
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged ({error})") from None


def _how_many(task: Task, mistakes: Sequence[Mistake]) -> str:
    what = _counted(len(mistakes), "text" if task.kind == "classify" else "pair")
    said = f"{what} {'is' if len(mistakes) == 1 else 'are'}"
    if task.kind != "pair_score" or not mistakes:
        return f"{said} misclassified"
    return f"{said} off by {charts.number(mistakes[-1].size, 2)} or more"


def _told(trained: Trained, task: Task, part: str, scores: dict[str, Any]) -> str:
    """All scores of a task in a sentence."""
    known = [(said, _points(scores.get(key))) for key, said in _MEASURES.items()]
    told = [f"{said} {charts.number(value, 2)}" for said, value in known if value is not None]
    off, answers = _finite(scores.get("mean_error")), _table(trained.facts["answers"].get(task.name))
    low, high = (_finite(answers.get(end)) for end in ("low", "high"))
    if off is not None:
        scale = "" if low is None or high is None else (
            f" on a scale from {charts.number(low)} to {charts.number(high)}")  # fmt: skip
        told.append(f"off by {charts.number(off, 2)} on average{scale}")
    rows = _finite(scores.get("n"))
    return f"{'The' if rows is None else f'{rows:,.0f}'} {part} rows: {', '.join(told)}."


def _overlap(task: Task, mistakes: Sequence[Mistake]) -> str:
    """How many words the wrong pairs share, by the side to which they are wrong."""
    sides: dict[str, list[float]] = {}
    for one in mistakes:
        if one.overlap is None or task.kind == "classify":
            continue
        side = f"wrongly called {one.predicted}"
        if task.kind == "pair_score":
            side = f"scored too {'high' if float(one.predicted) > float(one.expected) else 'low'}"
        sides.setdefault(side, []).append(one.overlap)
    told = [
        f"{100 * sum(own) / len(own):.0f} % in the {_counted(len(own), 'pair')} {side}"
        for side, own in sorted(sides.items(), key=lambda item: -len(item[1]))[:4]
    ]
    return f"Words in common, on average: {', '.join(told)}." if told else ""


# ---------------------------------------------------------------- how it was made


def _made(trained: Trained) -> dict[str, Any]:
    return {
        "pairs": _settings(trained),
        "tasks": [(task, _source(task.settings.get("data"))) for task in trained.tasks],
        "settings": trained.run,
        "versions": trained.facts["versions"],
    }


def _settings(trained: Trained) -> list[tuple[str, str]]:
    """What decides the outcome, in words; the settings of a table that the run does not have are left out."""
    names = ("schedule", "shared", "pretrain", "encoder", "train")
    schedule, shared, pretrain, encoder, train = (_table(trained.run.get(name)) for name in names)
    words, read = _SCHEDULES.get(str(schedule.get("name")), ("", ()))
    surgery, trunk = str(schedule.get("surgery") or "none"), trained.facts["encoder"]
    kept = _ENCODER if encoder.get("lora_rank") else _ENCODER[:-1]
    stage = [f"{pretrain.get('method')} on {_source(pretrain['data'])}"] if pretrain.get("data") else ["none"]
    told = [
        ("Schedule", schedule, [_value(schedule.get("name")), words, *_options(schedule, read)]),
        ("Gradient surgery", schedule, [_SURGERY.get(surgery, surgery)]),
        ("Shared layer", shared, ["linear with tanh, below all heads" if shared.get("layer") else "none"]),
        ("Dropout", shared, _options(shared, ("dropout", "layer_dropout"))),
        ("Pretraining", pretrain, stage + _options(pretrain, _STAGE) * bool(pretrain.get("data"))),
        (
            "Encoder",
            trunk,
            [str(trunk.get("name")), *_options(trunk, ("pooling",)), *_options(encoder, kept)],
        ),
        (
            "Learning rates",
            train,
            [f"encoder {_value(train.get('lr'))}", f"heads {_value(train.get('head_lr'))}"],
        ),
        *((key.replace("_", " ").capitalize(), train, [_value(train.get(key))]) for key in _TRAIN),
    ]
    return [(name, ", ".join(filter(None, parts))) for name, table, parts in told if table]


def _options(table: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Those that are set to something."""
    known = [(name, table.get(name)) for name in names]
    kept = [(name, own) for name, own in known if own not in (None, "", [], {}) and own is not False]
    return [f"{name.replace('_', ' ')} {_value(own)}" for name, own in kept]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(own)}" for key, own in value.items())
    if isinstance(value, list):
        return ", ".join(_value(own) for own in value)
    if isinstance(value, bool) or value is None:
        return {None: "by default", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _source(data: Any) -> str:
    """Where rows come from: a name, files, or files for each part."""
    if isinstance(data, dict):
        return "; ".join(f"{part}: {_source(own)}" for part, own in data.items())
    return ", ".join(str(one) for one in data) if isinstance(data, list) else str(data or "")


def _colour(number: int) -> int:
    return 1 + number % (charts.HUES - 1)  # grey is the average's


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
