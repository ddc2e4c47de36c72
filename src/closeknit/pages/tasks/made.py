"""How a model of several tasks was made, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .reading import Trained, as_table

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


def made_view(trained: Trained) -> dict[str, Any]:
    return {
        "pairs": _settings(trained),
        "tasks": [(task, _source(task.settings.get("data"))) for task in trained.tasks],
        "settings": trained.run,
        "versions": trained.facts["versions"],
    }


def _settings(trained: Trained) -> list[tuple[str, str]]:
    """What decides the outcome, in words; the settings of a table that the run does not have are left out."""
    names = ("schedule", "shared", "pretrain", "encoder", "train")
    schedule, shared, pretrain, encoder, train = (as_table(trained.run.get(name)) for name in names)
    rates = trained.metrics["rates"]  # as they were, where the settings leave them to the defaults
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
            [
                f"encoder {_value(rates.get('encoder', train.get('lr')))}",
                f"heads {_value(rates.get('heads', train.get('head_lr')))}",
            ],
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
