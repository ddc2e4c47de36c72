"""One encoder, two tasks on the bundled messages: which kind of message is it, and are two of the same kind?

python examples/multitask.py
"""

from __future__ import annotations

import random

from closeknit import MultiTask, load

data = load("messages")
kinds = data.parts["train"].classes[:4]
train, test = (
    data.parts[part].select(
        i for i, label in enumerate(data.parts[part].required_labels) if label in kinds
    )
    for part in ("train", "test")
)
draw = random.Random(2)


def pairs(
    texts: list[str], labels: list[str], amount: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs of messages, half of them of one kind, and whether they are."""
    chosen, answers = [], []
    for number in range(amount):
        first = draw.randrange(len(texts))
        alike = number % 2 == 0
        second = draw.choice(
            [i for i in range(len(texts)) if i != first and (labels[i] == labels[first]) == alike]
        )
        chosen.append((texts[first], texts[second]))
        answers.append("yes" if alike else "no")
    return chosen, answers


tasks = {
    "kind": (train.texts, train.labels),
    "same": pairs(train.texts, train.labels, 144),
}
model = MultiTask(
    epochs=3, batch_size=16, learning_rate=3e-4, max_length=48, schedule="random"
).fit(tasks)

scores = model.evaluate(
    {"kind": (test.texts, test.labels), "same": pairs(test.texts, test.labels, 60)}
)
print(f"kind: accuracy {scores['kind']['accuracy']:.2f}, chance is 0.25")
print(f"same: accuracy {scores['same']['accuracy']:.2f}, chance is 0.50")
last = model.model_.metrics["history"][-1]
print(f"cosine between the gradients of the two tasks: {last['gradients/kind/same']:+.2f}")
