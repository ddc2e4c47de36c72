"""Sentences without labels make a sentence encoder: SimCSE on the bundled messages, alignment and uniformity before and after.

python examples/embeddings.py
"""

from __future__ import annotations

from closeknit import SentenceEncoder, load
from closeknit.embeddings.model import SentenceModel
from closeknit.metrics import anisotropy, uniformity

data = load("messages")
texts, others = data.parts["train"].texts[:256], data.parts["test"].texts[:100]

before = SentenceModel.untrained(None, pooling="first", max_length=32).encode(others)
encoder = SentenceEncoder(method="simcse", pooling="first", max_length=32, epochs=1).fit(texts)
after = encoder.encode(others)

print(f"uniformity  {uniformity(before):.2f} before, {uniformity(after):.2f} after")
print(f"anisotropy  {anisotropy(before):.2f} before, {anisotropy(after):.2f} after")
question = "my card never came"
nearest = encoder.similarity([question], others)[0].argmax()
print(f"nearest to {question!r}: {others[nearest]!r}")
