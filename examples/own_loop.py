"""Use an objective, which is a plain torch module, in a training loop of your own.

SoftTriple learns on vectors of sentences that do not change.
"""

import torch

from closeknit import encode_texts, load, load_encoder
from closeknit.objectives import SoftTriple

data = load("messages")
classes = data.training.classes
encoder, tokenise = load_encoder(None, pooling="mean", max_length=64)
vectors = {}
labels = {}
for part, rows in data.parts.items():
    vectors[part] = torch.from_numpy(encode_texts(encoder, tokenise, rows.texts))
    labels[part] = torch.tensor([classes.index(label) for label in rows.labels])

torch.manual_seed(2)
project = torch.nn.Linear(encoder.dim, 128)
objective = SoftTriple(128, len(classes), centers=4, scale=10.0, margin=0.05)
optimizer = torch.optim.AdamW([*project.parameters(), *objective.parameters()], lr=1e-2)
for epoch in range(40):
    loss = objective(project(vectors["train"]), labels["train"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

with torch.no_grad():
    rows = torch.nn.functional.normalize(project(vectors["test"]), dim=-1)  # (R, D)
    centers = torch.nn.functional.normalize(objective.proxies, dim=-1)  # (C, K, D)
    similarity = (rows @ centers.flatten(0, 1).T).unflatten(1, centers.shape[:2])  # (R, C, K)
    nearest = similarity.amax(-1).argmax(-1)  # (R,)
accuracy = (nearest == labels["test"]).float().mean()
print(f"nearest-center accuracy on unseen messages: {accuracy:.3f}")
