"""Joint objectives: a short list of terms, each a weight, an objective and the view it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ConfigError, did_you_mean

# What an objective may read of the model's output. The three kinds of tokens differ in what is
# left out: padding; padding and special tokens; nothing.
VIEWS = ("logits", "pooled", "projected", "tokens", "content_tokens", "all_tokens")


class View(NamedTuple):
    """Rows of one view of a batch, and the label of each."""

    z: Tensor  # (R, D)
    y: Tensor  # (R,)


@dataclass(frozen=True)
class Term:
    """One summand of a joint objective."""

    name: str
    weight: float
    objective: nn.Module
    view: str

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise ConfigError(f"unknown view {self.view}{did_you_mean(self.view, VIEWS)}")


class Joint(nn.Module):
    """The weighted sum of its terms. `views` says what it reads, so that nothing else is computed."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self.terms = [term for term in terms if term.weight != 0.0]
        if not self.terms:
            raise ConfigError("a joint objective needs at least one term with a weight other than 0")
        self.objectives = nn.ModuleDict({term.name: term.objective for term in self.terms})
        self.views = tuple(dict.fromkeys(term.view for term in self.terms))

    def forward(self, views: Mapping[str, View]) -> tuple[Tensor, dict[str, Tensor]]:
        """The total (), and each term's own value before its weight."""
        values = {term.name: term.objective(*views[term.view]) for term in self.terms}
        total = torch.stack([term.weight * values[term.name] for term in self.terms]).sum()
        return total, values
