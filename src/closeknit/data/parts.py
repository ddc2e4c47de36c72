"""The parts of a data set: what a model learns from, is chosen by and is scored on."""

from __future__ import annotations

from dataclasses import dataclass

from closeknit.data.examples import Examples


@dataclass(frozen=True)
class Parts:
    """The rows a model learns from, is chosen by and is scored on."""

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None

    @property
    def scored(self) -> Examples | None:
        """The part that the reported result comes from: the test part, else the validation part."""
        return self.test if self.test is not None else self.validation

    @property
    def held_out(self) -> list[Examples]:
        """The parts that the model must not learn from."""
        return [part for part in (self.validation, self.test) if part is not None]
