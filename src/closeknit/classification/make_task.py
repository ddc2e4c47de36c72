"""A task for the training loop, made from texts and labels in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from closeknit.data.examples import Examples, from_python, label_numbers
from closeknit.data.splits import check_classes
from closeknit.encoders.augmentation import require_dropout_for_views
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.heads import build_heads
from closeknit.encoders.inference import Floats, outputs
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.errors import ConfigError, DataError
from closeknit.objectives import Joint, build_objective
from closeknit.training import randomness
from closeknit.training.batches import DeviceBatches, batches_per_epoch, labels_of, rows_that_meet
from closeknit.training.processes import this_world
from closeknit.training.randomness import seeded
from closeknit.training.task import Task


def make_task(
    texts: Examples | Sequence[object],
    labels: Sequence[object] | None = None,
    *,
    encoder: Encoder,
    tokenise: Tokeniser,
    objective: Joint | str = "cross_entropy",
    batch_size: int = 32,
    name: str = "task",
    weight: float = 1.0,
    seed: int = 2,
) -> Task:
    """A task for `train`: which class does each text, or each pair of texts, belong to?

    `texts` are labelled examples, or a list of strings or of pairs whose classes are `labels`. The
    classes are numbered in sorted order. `objective` is a name from OBJECTIVES, or a Joint that
    says which views its terms read. `weight` counts where several tasks are trained together. The
    seed decides which rows meet in a mini-batch, and the random start of the heads and of a named
    objective.
    """
    examples = _labelled(texts, labels, name)
    classes = examples.classes
    y = label_numbers(examples, classes)  # (R,)
    world = this_world()
    if isinstance(objective, str):
        counts = Counter(examples.required_labels)
        with seeded(world, seed, randomness.OBJECTIVE):
            objective = build_objective(
                objective,
                encoder.dim,
                len(classes),
                {},
                labels=classes,
                counts=[counts[label] for label in classes],
            )
    elif not isinstance(objective, Joint):
        raise ConfigError(
            f"the objective is a {type(objective).__name__}; say which view of the model it reads: "
            'Joint([Term("mine", 1.0, objective, "pooled")])'
        )
    if objective.copies > 1:
        require_dropout_for_views(encoder, None, f"the objective of the task {name}")
    with seeded(world, seed, randomness.HEADS):
        heads = build_heads(encoder, len(classes), objective.views)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
    tokens = tokenise(examples)
    per_epoch = batches_per_epoch(len(examples), batch_size)
    batches = DeviceBatches(
        tokens,
        labels_of(y, world.device, objective.copies),
        rows_that_meet(y, tokens.lengths, batch_size, seed, objective.rows_of_a_class),
        per_epoch,
        world,
        starts=[0] * objective.copies,
    )
    return Task(name, batches, per_epoch, objective, heads, weight)


def predict_logits(
    encoder: Encoder, tokenise: Tokeniser, task: Task, texts: Examples | Sequence[object]
) -> Floats:
    """The logits (R, C) of texts or of pairs, one column per class of the task in sorted order."""
    if "logits" not in task.objective.views:
        raise ConfigError(
            f"the objective of the task {task.name} trains no classifier; use the vectors of "
            "encode_texts instead"
        )
    examples = texts if isinstance(texts, Examples) else from_python(texts, name=task.name)
    return outputs(encoder, task.heads, tokenise(examples))[0]


def _labelled(
    texts: Examples | Sequence[object], labels: Sequence[object] | None, name: str
) -> Examples:
    """The examples with at least two classes; texts without labels are refused."""
    if isinstance(texts, Examples):
        if labels is not None:
            raise DataError(f"{texts.name}: the examples have labels; give no others beside them")
        examples = texts
    else:
        examples = from_python(texts, labels, name=name)
    check_classes(examples)
    return examples
