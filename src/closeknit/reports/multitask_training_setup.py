"""How a model of several tasks was trained: schedule, layers, learning rates and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from closeknit.reports.multitask_folder import MultitaskFolder, as_table

# What each schedule does, and the options that it reads.
_SCHEDULE_WORDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "together": ("every update uses a batch of each task", ()),
    "mixed": (
        "every batch holds rows of all tasks, and the loss is the mean of the tasks' losses",
        ("power", "weights"),
    ),
    "sequential": ("all epochs of one task, then all epochs of the next", ("order",)),
    "round_robin": ("the tasks take turns", ("order", "turn")),
    "random": ("the task of each update is drawn at random", ("power", "weights")),
    "annealed": (
        "the task of each update is drawn at random, at the end with equal probabilities",
        ("anneal", "weights"),
    ),
}
_SURGERY_WORDS = {
    "none": "none, the gradients of the tasks are added",
    "pcgrad": "pcgrad, the part of a gradient that conflicts with another task is removed",
}
_PRETRAINING_OPTIONS = (
    "epochs",
    "batch_size",
    "lr",
    "temperature",
    "similarity",
    "positives",
    "negatives",
)
_TRAINING_SETTINGS = ("epochs", "batch_size", "seed")


def setup_view(trained: MultitaskFolder) -> dict[str, Any]:
    """The settings in words and in full, the data of each task, and library versions."""
    return {
        "pairs": _settings_in_words(trained),
        "tasks": [(task, _source(task.settings.get("data"))) for task in trained.tasks],
        "settings": trained.run,
        "versions": trained.facts["versions"],
    }


def _settings_in_words(trained: MultitaskFolder) -> list[tuple[str, str]]:
    """Names and words for what decides the outcome.

    The settings of a table that the run does not have are left out.
    """
    run = trained.run
    schedule = as_table(run.get("schedule"))
    shared = as_table(run.get("shared"))
    stages = pretraining_stages(run)
    train = as_table(run.get("train"))
    trunk = trained.facts["encoder"]
    described = [
        ("Schedule", schedule, _schedule(schedule)),
        ("Gradient surgery", schedule, [_surgery(schedule)]),
        ("Shared layer", shared, [_shared_layer(shared)]),
        ("Dropout", shared, _options(shared, ("dropout", "layer_dropout"))),
        *(
            (
                f"Pretraining {place}" if len(stages) > 1 else "Pretraining",
                stage,
                _pretraining(stage),
            )
            for place, stage in enumerate(stages, 1)
        ),
        ("Encoder", trunk, _encoder(trunk, as_table(run.get("encoder")))),
        ("Learning rates", train, _learning_rates(train, trained.metrics["rates"])),
    ]
    for key in _TRAINING_SETTINGS:
        described.append((key.replace("_", " ").capitalize(), train, [_value(train.get(key))]))
    return [
        (name, ", ".join(part for part in parts if part))
        for name, table, parts in described
        if table
    ]


def pretraining_stages(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of each stage before the tasks, which are called pretrain and pretrain.2."""
    names = [name for name in run if name == "pretrain" or name.startswith("pretrain.")]
    return [as_table(run[name]) for name in names]


def _schedule(schedule: dict[str, Any]) -> list[str]:
    words, options = _SCHEDULE_WORDS.get(str(schedule.get("name")), ("", ()))
    return [_value(schedule.get("name")), words, *_options(schedule, options)]


def _surgery(schedule: dict[str, Any]) -> str:
    name = str(schedule.get("surgery") or "none")
    words = _SURGERY_WORDS.get(name, name)
    if name != "none" and schedule.get("surgery_reduction") == "mean":
        return f"{words}, and the mean of the tasks' gradients is taken"
    return words


def _shared_layer(shared: dict[str, Any]) -> str:
    return "linear with tanh, below all heads" if shared.get("layer") else "none"


def _pretraining(pretrain: dict[str, Any]) -> list[str]:
    if not pretrain.get("data"):
        return ["none"]
    method = f"{pretrain.get('method')} on {_source(pretrain['data'])}"
    read = [name for name in _PRETRAINING_OPTIONS if pretrain.get(name) != "cosine"]
    return [method, *_options(pretrain, read)]


def _encoder(trunk: dict[str, Any], encoder: dict[str, Any]) -> list[str]:
    names = ["max_length", "dropout", "frozen"]
    if encoder.get("lora_rank"):
        names.append("lora_rank")
    return [str(trunk.get("name")), *_options(trunk, ("pooling",)), *_options(encoder, names)]


def _learning_rates(train: dict[str, Any], used: dict[str, Any]) -> list[str]:
    """The rates that were used, where the settings left them to the defaults."""
    encoder = _value(used.get("encoder", train.get("lr")))
    heads = _value(used.get("heads", train.get("head_lr")))
    return [f"encoder {encoder}", f"heads {heads}"]


def _options(table: dict[str, Any], names: Sequence[str]) -> list[str]:
    """The options of these names that are set."""
    parts = []
    for name in names:
        value = table.get(name)
        is_set = value not in (None, "", [], {}) and value is not False
        if is_set:
            parts.append(f"{name.replace('_', ' ')} {_value(value)}")
    return parts


def _value(value: Any) -> str:
    """A setting in words."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(_value(part) for part in value)
    if value is None:
        return "by default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _source(data: Any) -> str:
    """Where rows come from: a name, files, or files for each part."""
    if isinstance(data, dict):
        return "; ".join(f"{part}: {_source(files)}" for part, files in data.items())
    if isinstance(data, list):
        return ", ".join(str(file) for file in data)
    return str(data or "")
