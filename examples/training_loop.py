"""The loop itself: a task of one's own, and a stop that is plain Python. TextCNN, so it needs no weights."""

import numpy as np

from closeknit import Task, TrainConfig, load, load_encoder, train
from closeknit.evaluation import outputs
from closeknit.heads import build_heads
from closeknit.objectives import CrossEntropy, Joint, SoftTriple, Term
from closeknit.processes import this_world
from closeknit.samplers import batches_per_epoch, length_grouped
from closeknit.tasks import DeviceBatches, labels_of

data = load("messages")
rows, test = data.parts["train"], data.parts["test"]
classes = rows.classes
y = np.array([classes.index(label) for label in rows.labels])

encoder, tokenise = load_encoder("textcnn", vocabulary=rows)
objective = Joint(
    [
        Term("cross_entropy", 0.5, CrossEntropy(label_smoothing=0.05), "logits"),
        Term("soft_triple", 0.5, SoftTriple(encoder.dim, len(classes), centers=2), "pooled"),
    ]
)
heads = build_heads(encoder, len(classes), objective.views)
tokens = tokenise(rows)
per_epoch = batches_per_epoch(len(rows), 32)
plan = length_grouped(tokens.lengths, 32, seed=2)
world = this_world()
batches = DeviceBatches(tokens, labels_of(y, world.device), plan, per_epoch, world)
task = Task("messages", batches, per_epoch, objective, heads)

for step in train(encoder, [task], TrainConfig(epochs=20, batch_size=32)):
    if step.number % per_epoch == 0:
        logits, _ = outputs(encoder, heads, tokenise(test))
        accuracy = np.mean(
            [classes[i] == label for i, label in zip(logits.argmax(1), test.labels, strict=True)]
        )
        print(f"epoch {step.epoch:.0f}: loss {step.loss:.3f}, accuracy {accuracy:.3f}")
        if step.loss < 0.5:
            break
