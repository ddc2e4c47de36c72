"""An objective is a plain torch module: SoftTriple on frozen sentence vectors, in a loop of one's own."""

import torch

from closeknit import load, load_encoder
from closeknit.evaluation import outputs
from closeknit.objectives import SoftTriple

data = load("messages")
classes = data.training.classes
encoder, tokenise = load_encoder(None, pooling="mean", max_length=64)
vectors = {
    part: torch.from_numpy(outputs(encoder, None, tokenise(rows))[1])
    for part, rows in data.parts.items()
}
labels = {
    part: torch.tensor([classes.index(x) for x in rows.labels]) for part, rows in data.parts.items()
}

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
    rows = torch.nn.functional.normalize(project(vectors["test"]), dim=-1)
    centers = torch.nn.functional.normalize(objective.proxies, dim=-1)
    nearest = (rows @ centers.flatten(0, 1).T).unflatten(1, centers.shape[:2]).amax(-1).argmax(-1)
print(
    f"nearest-center accuracy on unseen messages: {(nearest == labels['test']).float().mean():.3f}"
)
