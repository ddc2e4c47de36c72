"""Lean: the passes of a training in half precision by fewer kernels, while it is in charge of its modules."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from .blocks import FusedTrunk, dropped, fuse
from .encoder import Encoder

_HEADS = 1_000_000_000  # dropout outside of fused trunks is drawn at places from here on


class Lean:
    """Copies of weights made together, fused layers, and dropout from a seed on the device.

    `whole` says whether all dropout is that: the updates of several trainings may then run side by side on one device.
    """

    def __init__(self, encoders: Sequence[Encoder], learners: nn.Module, dtype: torch.dtype) -> None:
        self.halves, trunks = fuse([encoder.trunk for encoder in encoders], learners, dtype)
        self.encoders: list[tuple[Encoder, FusedTrunk | None]] = list(zip(encoders, trunks, strict=True))
        inside = {id(m) for e, trunk in self.encoders if trunk is not None for m in e.trunk.modules()}
        self.dropouts = [
            module for module in learners.modules() if type(module) is nn.Dropout and id(module) not in inside
        ]
        if importlib.util.find_spec("triton") is None:
            self.dropouts = []
        self.whole = bool(trunks) and None not in trunks
        self.stale = True  # whether the copies differ from the weights
        self.seed = torch.zeros((), dtype=torch.int64)
        self.drawn = 0

    @contextlib.contextmanager
    def used(self, seed: Tensor) -> Iterator[None]:
        """Inside, the modules pass this way, with the dropout of this seed."""
        with self.halves.used():
            for encoder, trunk in self.encoders:
                encoder.fused = trunk
            for module in self.dropouts:
                setattr(module, "forward", self._dropout(module))  # noqa: B010
            self.begin(seed)
            try:
                yield
            finally:
                for encoder, _ in self.encoders:
                    encoder.fused = None
                for module in self.dropouts:
                    delattr(module, "forward")

    def begin(self, seed: Tensor) -> None:
        """What follows has the dropout of this seed, from its start."""
        self.seed, self.drawn = seed, 0
        for _, trunk in self.encoders:
            if trunk is not None:
                trunk.begin(seed)

    def _dropout(self, module: nn.Dropout) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if not module.training or module.p == 0:
                return x
            self.drawn += 1
            return dropped(x, self.seed, _HEADS + self.drawn, module.p)

        return forward
