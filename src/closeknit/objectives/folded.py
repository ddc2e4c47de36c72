"""Objectives over views of texts, fed with the rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Folded(nn.Module):
    """An objective over V views of B texts, as a term of a joint objective, which gets R = V B rows.

    y (R, 2) says for each row which view it is, and the label of its text; texts with one label are no negatives of each
    other. Every view holds the texts in the same order, whatever the order of the views.
    """

    def __init__(self, objective: nn.Module, views: int) -> None:
        super().__init__()
        self.objective, self.views = objective, views

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        order = torch.argsort(y[:, 0], stable=True)  # (R,)
        folded = z[order].unflatten(0, (self.views, -1))  # (V, B, D)
        loss: Tensor = self.objective(folded, y[order][: folded.shape[1], 1])
        return loss
