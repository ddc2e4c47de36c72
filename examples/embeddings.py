"""Train a sentence encoder on sentences without labels, with SimCSE on the bundled messages.

Uniformity and anisotropy are printed before and after: python examples/embeddings.py
"""

from __future__ import annotations

from closeknit import SentenceEncoder, encode_texts, load, load_encoder
from closeknit.metrics import anisotropy, uniformity

data = load("messages")
texts = data.parts["train"].texts[:256]
others = data.parts["test"].texts[:100]

pretrained, tokenise = load_encoder(None, pooling="first", max_length=32)
before = encode_texts(pretrained, tokenise, others)
encoder = SentenceEncoder(method="simcse", pooling="first", max_length=32, epochs=1).fit(texts)
after = encoder.encode(others)

print(f"uniformity  {uniformity(before):.2f} before, {uniformity(after):.2f} after")
print(f"anisotropy  {anisotropy(before):.2f} before, {anisotropy(after):.2f} after")
question = "my card never came"
nearest = encoder.similarity([question], others)[0].argmax()
print(f"nearest to {question!r}: {others[nearest]!r}")
