"""Use Closeknit's training loop with a joint objective of your own, and stop when you like.

TextCNN keeps it quick, because it needs no pretrained encoder.
"""

import numpy as np

from closeknit import (
    Joint,
    Term,
    TrainConfig,
    load,
    load_encoder,
    make_task,
    predict_logits,
    train,
)
from closeknit.objectives import CrossEntropy, SoftTriple

data = load("messages")
rows, test = data.parts["train"], data.parts["test"]
classes = rows.classes
expected = np.array([classes.index(label) for label in test.labels])

encoder, tokenise = load_encoder("textcnn", vocabulary=rows)
soft_triple = SoftTriple(encoder.dim, len(classes), centers=2)
objective = Joint(
    [
        Term("cross_entropy", 0.5, CrossEntropy(label_smoothing=0.05), "logits"),
        Term("soft_triple", 0.5, soft_triple, "pooled"),
    ]
)
task = make_task(rows, encoder=encoder, tokenise=tokenise, objective=objective, batch_size=32)

for step in train(encoder, [task], TrainConfig(epochs=20)):
    if step.number % task.per_epoch == 0:
        predicted = predict_logits(encoder, tokenise, task, test).argmax(axis=1)
        accuracy = np.mean(predicted == expected)
        print(f"epoch {step.epoch:.0f}: loss {step.loss:.3f}, accuracy {accuracy:.3f}")
        if step.loss < 0.5:
            break
