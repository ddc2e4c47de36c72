"""Train one encoder for two tasks on the bundled messages.

The first task is the kind of a message; the second whether two messages are of the same kind:
python examples/multitask.py
"""

from __future__ import annotations

import random

from closeknit import Examples, MultiTask, load

data = load("messages")
kinds = data.parts["train"].classes[:4]
draw = random.Random(2)


def of_these_kinds(rows: Examples) -> Examples:
    """The messages of the first four kinds."""
    chosen = [row for row, label in enumerate(rows.required_labels) if label in kinds]
    return rows.select(chosen)


def pairs(
    texts: list[str], labels: list[str], amount: int
) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs of messages, half of them of the same kind, and whether they are."""
    chosen, answers = [], []
    for number in range(amount):
        first = draw.randrange(len(texts))
        alike = number % 2 == 0
        others = [
            row
            for row in range(len(texts))
            if row != first and (labels[row] == labels[first]) == alike
        ]
        chosen.append((texts[first], texts[draw.choice(others)]))
        answers.append("yes" if alike else "no")
    return chosen, answers


train = of_these_kinds(data.parts["train"])
test = of_these_kinds(data.parts["test"])
tasks = {
    "kind": (train.texts, train.labels),
    "same": pairs(train.texts, train.labels, 144),
}
model = MultiTask(epochs=3, batch_size=16, learning_rate=3e-4, max_length=48, schedule="random")
model.fit(tasks)

scores = model.evaluate(
    {"kind": (test.texts, test.labels), "same": pairs(test.texts, test.labels, 60)}
)
print(f"kind: accuracy {scores['kind']['accuracy']:.2f}, chance is 0.25")
print(f"same: accuracy {scores['same']['accuracy']:.2f}, chance is 0.50")
last = model.model_.metrics["history"][-1]
print(f"cosine between the gradients of the two tasks: {last['gradients/kind/same']:+.2f}")
