"""Fine-tune, score, save and load a classifier on the bundled messages."""

import tempfile

from closeknit import TextClassifier, load
from closeknit.data import few_shot

data = load("messages")
train, test = data.parts["train"], data.parts["test"]
train = train.select(few_shot(train.labels, 12, seed=2))  # 12 per class keep this under a minute

classifier = TextClassifier(
    objective="triple_entropy",
    objective_options={"ce_weight": 0.9, "centers": 10},
    epochs=3,
    batch_size=16,
    learning_rate=2e-4,
    verbose=True,
)
classifier.fit(train.texts, train.labels)
print(f"accuracy on {len(test)} unseen messages: {classifier.score(test.texts, test.labels):.3f}")

with tempfile.TemporaryDirectory() as folder:
    classifier.save(folder)
    loaded = TextClassifier.load(folder)
for text in ("the box came empty and crushed", "when will my money be back on the account?"):
    print(loaded.predict([text])[0], "<-", text)
