"""Lean: the passes of a training by less work, while it is in charge of its modules: fused on a GPU, unpadded on a CPU."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from closeknit.blocks import FusedTrunk, dropped, fuse, layers_of
from closeknit.encoder import Encoder
from closeknit.halves import Halves
from closeknit.plain import PlainTrunk, thinned

_HEADS = 1_000_000_000  # dropout outside of fused trunks is drawn at places from here on


class Lean:
    """In half precision on a GPU: copies of weights made together, fused layers, dropout from a seed on the device. On a CPU in
    float32: layers without padding, cheap dropout.

    `whole` says whether all dropout is of a seed on the device: the updates of several trainings may then run side by side.
    """

    def __init__(
        self,
        encoders: Sequence[Encoder],
        learners: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.on_gpu = device.type == "cuda"
        trunks: Sequence[FusedTrunk | PlainTrunk | None]
        self.halves: Halves | None = None
        if self.on_gpu:
            self.halves, trunks = fuse([encoder.trunk for encoder in encoders], learners, dtype)
        else:
            known = [(encoder.trunk, layers_of(encoder.trunk)) for encoder in encoders]
            trunks = [
                None if layers is None else PlainTrunk(trunk, layers) for trunk, layers in known
            ]
        self.encoders = list(zip(encoders, trunks, strict=True))
        inside = {
            id(m) for e, trunk in self.encoders if trunk is not None for m in e.trunk.modules()
        }
        able = not self.on_gpu or importlib.util.find_spec("triton") is not None
        self.dropouts = [
            module
            for module in learners.modules()
            if able and type(module) is nn.Dropout and id(module) not in inside
        ]
        self.whole = self.on_gpu and bool(trunks) and None not in trunks
        self.stale = True  # whether the copies differ from the weights
        self.seed = torch.zeros((), dtype=torch.int64)
        self.drawn = 0

    @staticmethod
    def takes(width: int) -> bool:
        """Whether fused layers take texts of so many tokens; others draw their dropout as torch does."""
        from closeknit.kernels.layers import LONGEST

        return width <= LONGEST

    @contextlib.contextmanager
    def used(self, seed: Tensor) -> Iterator[None]:
        """Inside, the modules pass this way, with the dropout of this seed."""
        with contextlib.nullcontext() if self.halves is None else self.halves.used():
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

    def read(self, encoder: Encoder, views: Iterable[str]) -> None:
        """What follows is read by these views: what none of them reads need not be computed."""
        tokens = [view for view in views if view.endswith("tokens")]
        for other, trunk in self.encoders:
            if isinstance(trunk, PlainTrunk):
                own = (
                    tokens if other is encoder else []
                )  # of a second encoder only the pooled vector is read
                trunk.first_only = not own and other.pooling in ("first", "own")
                trunk.packed = "all_tokens" not in own

    def _dropout(self, module: nn.Dropout) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if not module.training or module.p == 0:
                return x
            if not self.on_gpu:
                return thinned(x, module.p)
            self.drawn += 1
            return dropped(x, self.seed, _HEADS + self.drawn, module.p)

        return forward

    # -- copies of weights, where there are any

    def refresh(self, *, kept: bool) -> None:
        """Make the copies anew if they differ from the weights; `kept` says that updates will keep them alike."""
        if self.halves is not None and self.stale:
            self.halves.refresh()
            self.stale = not kept

    def clear(self) -> None:
        if self.halves is not None:
            self.halves.clear()

    def collect(self) -> None:
        if self.halves is not None:
            self.halves.collect()

    def gradients(self) -> dict[int, Tensor]:
        return {} if self.halves is None else self.halves.gradients()
