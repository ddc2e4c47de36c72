"""The engine of a training: how its forward passes, gradients and updates are computed.

The training loop asks its engine and knows nothing else about speed. There are three engines, and
`choose_engine` picks one:

    Engine      leaves everything to torch
    CpuEngine   on a CPU: no padding in the layers of BERT-like trunks, cheap dropout
    GpuEngine   in half precision on a GPU: copies of all weights made together, fused layers

With each of them an update is launched directly, or by a launcher that captures it in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from closeknit.acceleration.cpu_trunk import CpuTrunk, cpu_dropout
from closeknit.acceleration.fused_adamw import FusedAdamW
from closeknit.acceleration.gpu_trunk import GpuTrunk, build_gpu_trunks, gpu_dropout
from closeknit.acceleration.half_weights import HalfWeights
from closeknit.acceleration.precision import Precision
from closeknit.acceleration.torch_adamw import TorchAdamW
from closeknit.encoders.architecture import bert_like_layers
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.run_time_modules import convert_dropout, dropout_drawn_by

PLACES_IN_HEADS = 1_000_000_000  # dropout outside of fused trunks is drawn at places from here on

UpdateNumbers = tuple[
    tuple[str, ...], tuple[str, ...], Tensor
]  # names of losses, names of terms, their values


@dataclass(frozen=True)
class UpdateWork:
    """One update for an engine to run: `compute` does all of it from `inputs`.

    Updates with the same `shape` differ only in the values of their inputs, so that a CUDA graph
    can repeat them.
    """

    shape: Hashable
    width: int  # tokens of the widest text, with padding
    inputs: list[Tensor]
    compute: Callable[[Sequence[Tensor]], UpdateNumbers]


class Launcher(Protocol):
    """How the kernels of an update are started."""

    def run(self, work: UpdateWork) -> UpdateNumbers: ...


class DirectLauncher:
    """Starts the kernels of an update one by one, as torch does."""

    def run(self, work: UpdateWork) -> UpdateNumbers:
        return work.compute(work.inputs)


class Updater(Protocol):
    """Clips and applies gradients; see `TorchAdamW` and `FusedAdamW`."""

    reads_half_gradients: bool
    keeps_copies: bool
    ready_to_capture: bool

    def apply(
        self, total_loss: Tensor, half_gradients: Mapping[int, Tensor], *, clip_scale: float = 1.0
    ) -> Tensor: ...

    def read_state(self) -> None: ...

    def restart(self) -> None: ...

    def begin_capture(self) -> Tensor | None: ...

    def finish_capture(self) -> None: ...


@dataclass(frozen=True)
class UpdateParts:
    """What an update needs besides gradients."""

    optimizer: torch.optim.AdamW
    precision: Precision
    rates: Tensor  # on the device, the learning rate of each parameter group
    clip: float
    not_finite: Tensor  # on the device: 1 from the first update on that was not finite
    skips_on_device: bool  # whether such updates are skipped without a look from the host

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]


class Engine:
    """Leaves the work to torch; the other engines replace what they do faster."""

    def __init__(self, parts: UpdateParts, copies: Mapping[int, Tensor] | None = None) -> None:
        self.optimizer = parts.optimizer
        self.updater = choose_updater(parts, copies or {})
        self.launcher: Launcher = DirectLauncher()

    # -- around the forward passes

    def forward_context(self, seed: Tensor) -> contextlib.AbstractContextManager[None]:
        """Inside, forward passes are computed as by this engine, with dropout of this seed."""
        return contextlib.nullcontext()

    def begin_chunk(self, seed: int) -> None:
        """What follows is a chunk of a batch, with dropout of this seed from its start."""

    def reads(self, encoder: Encoder, views: Iterable[str]) -> None:
        """What follows is read by these views: what none of them reads need not be computed."""

    # -- one update, in the order of these methods

    def prepare_update(self) -> None:
        """Make ready what the forward passes read."""

    def clear_gradients(self) -> None:
        """Forget the gradients of the update before."""
        self.optimizer.zero_grad(set_to_none=True)

    def collect_gradients(self, *, only_batch: bool) -> None:
        """Let the parameters have the gradients of the backward pass that was just done.

        `only_batch` says that no other backward pass and no other process adds to them before the
        update.
        """

    def apply_update(self, total_loss: Tensor, *, clip_scale: float = 1.0) -> Tensor:
        """Clip and apply the gradients unless one is not finite; give their length before that.

        The largest length is `train.clip` times `clip_scale`.
        """
        return self.updater.apply(total_loss, {}, clip_scale=clip_scale)

    # -- changes from outside

    def weights_changed(self) -> None:
        """The weights were changed by something else than an update."""

    def read_optimizer_state(self) -> None:
        """The optimizer and the weights were loaded from a checkpoint."""
        self.updater.read_state()
        self.weights_changed()

    def restart(self) -> None:
        """Begin another run in the same memory."""
        self.updater.restart()
        self.weights_changed()

    # -- launching

    def run(self, work: UpdateWork) -> UpdateNumbers:
        """Do an update."""
        return self.launcher.run(work)

    def draws_dropout_by_torch(self, width: int) -> bool:
        """Whether dropout for texts of this width reads torch's seed, which all CUDA graphs
        share.
        """
        return True


class CpuEngine(Engine):
    """Fast passes of BERT-like trunks, in float32 only, and cheap dropout everywhere else."""

    def __init__(self, parts: UpdateParts, learners: nn.Module) -> None:
        super().__init__(parts)
        self.encoders = encoders_of(learners)
        self.trunks: list[CpuTrunk | None] = []
        for encoder in self.encoders:
            layers = bert_like_layers(encoder.trunk)
            self.trunks.append(None if layers is None else CpuTrunk(encoder.trunk, layers))
        convert_dropout(learners, skip=_with_fast_pass(self.encoders, self.trunks))

    @contextlib.contextmanager
    def forward_context(self, seed: Tensor) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for encoder, trunk in zip(self.encoders, self.trunks, strict=True):
                if trunk is not None:
                    stack.enter_context(encoder.use_trunk_pass(trunk))
            stack.enter_context(dropout_drawn_by(cpu_dropout))
            yield

    def reads(self, encoder: Encoder, views: Iterable[str]) -> None:
        token_views = [view for view in views if view.endswith("tokens")]
        for other, trunk in zip(self.encoders, self.trunks, strict=True):
            if trunk is not None:
                read = (
                    token_views if other is encoder else []
                )  # of a second encoder only the pooled vector
                trunk.first_only = not read and other.pooling in ("first", "own")
                trunk.skip_padding = "all_tokens" not in read


class GpuEngine(Engine):
    """Half-precision copies of all weights, fused BERT-like trunks, dropout seeded on the
    device.
    """

    def __init__(self, parts: UpdateParts, learners: nn.Module, dtype: torch.dtype) -> None:
        self.encoders = encoders_of(learners)
        self.half_weights: HalfWeights
        self.trunks: list[GpuTrunk | None]
        self.half_weights, self.trunks = build_gpu_trunks(
            [encoder.trunk for encoder in self.encoders], learners, dtype
        )
        super().__init__(parts, self.half_weights.by_master)
        self.has_triton = importlib.util.find_spec("triton") is not None
        if self.has_triton:
            convert_dropout(learners, skip=_with_fast_pass(self.encoders, self.trunks))
        self.copies_are_old = True
        self.seed = torch.zeros((), dtype=torch.int64)
        self.places_drawn = 0  # in the heads, since the seed was set

    @contextlib.contextmanager
    def forward_context(self, seed: Tensor) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.half_weights.in_use())
            for encoder, trunk in zip(self.encoders, self.trunks, strict=True):
                if trunk is not None:
                    stack.enter_context(encoder.use_trunk_pass(trunk))
            if self.has_triton:
                stack.enter_context(dropout_drawn_by(self._draw_dropout))
            self._begin(seed)
            yield

    def begin_chunk(self, seed: int) -> None:
        self._begin(torch.full_like(self.seed, seed))

    def _begin(self, seed: Tensor) -> None:
        self.seed = seed
        self.places_drawn = 0
        for trunk in self.trunks:
            if trunk is not None:
                trunk.begin(seed)

    def _draw_dropout(self, x: Tensor, p: float) -> Tensor:
        self.places_drawn += 1
        return gpu_dropout(x, self.seed, PLACES_IN_HEADS + self.places_drawn, p)

    def prepare_update(self) -> None:
        if self.copies_are_old:
            self.half_weights.refresh()
            self.copies_are_old = not self.updater.keeps_copies

    def clear_gradients(self) -> None:
        super().clear_gradients()
        self.half_weights.clear_gradients()

    def collect_gradients(self, *, only_batch: bool) -> None:
        # gradients that others are added to, or that processes exchange, have to be in float32
        if not only_batch or not self.updater.reads_half_gradients:
            self.half_weights.collect_gradients()

    def apply_update(self, total_loss: Tensor, *, clip_scale: float = 1.0) -> Tensor:
        half_gradients = self.half_weights.gradients() if self.updater.reads_half_gradients else {}
        return self.updater.apply(total_loss, half_gradients, clip_scale=clip_scale)

    def weights_changed(self) -> None:
        self.copies_are_old = True

    def draws_dropout_by_torch(self, width: int) -> bool:
        from closeknit.acceleration.triton_attention import LONGEST

        return not self.trunks or None in self.trunks or width > LONGEST


def choose_engine(parts: UpdateParts, learners: nn.Module, *, padded_left: bool) -> Engine:
    """The fastest engine for a device and a precision.

    Fused layers cannot read texts that are `padded_left`.
    """
    device = parts.precision.device
    half = parts.precision.half
    if device.type == "cpu":
        return CpuEngine(parts, learners)
    if device.type == "cuda" and half is not None and not padded_left:
        return GpuEngine(parts, learners, half)
    return Engine(parts)


def choose_updater(parts: UpdateParts, copies: Mapping[int, Tensor]) -> Updater:
    """The fused update where a GPU, Triton and the parameters allow it, else torch's."""
    aligned = all(
        p.dtype == torch.float32 and p.is_contiguous() and p.data_ptr() % 16 == 0
        for p in parts.parameters
    )
    has_triton = importlib.util.find_spec("triton") is not None
    on_gpu = parts.precision.device.type == "cuda"
    if on_gpu and has_triton and aligned and not parts.precision.scales_gradients:
        half = parts.precision.half or torch.bfloat16
        return FusedAdamW(parts.optimizer, parts.rates, parts.clip, parts.not_finite, copies, half)
    return TorchAdamW(
        parts.optimizer,
        parts.precision,
        clip=parts.clip,
        not_finite=parts.not_finite,
        skips_on_device=parts.skips_on_device,
    )


def encoders_of(learners: nn.Module) -> list[Encoder]:
    """All encoders among the modules of a training, the main one first."""
    return [module for module in learners.modules() if isinstance(module, Encoder)]


def _with_fast_pass(
    encoders: Sequence[Encoder], trunks: Sequence[CpuTrunk | GpuTrunk | None]
) -> list[nn.Module]:
    """The trunks that have a fast pass; for a batch that does not fit it, torch draws dropout."""
    pairs = zip(encoders, trunks, strict=True)
    return [encoder.trunk for encoder, trunk in pairs if trunk is not None]
