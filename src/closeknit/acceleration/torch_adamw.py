"""Clipping, the check for values that are not finite, and the AdamW update, by torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from closeknit.acceleration.precision import Precision


class TorchAdamW:
    """Applies the gradients that the parameters of an optimizer have.

    With `skips_on_device` an update that is not finite sets the tensor `not_finite` to 1, and the
    optimizer then applies neither it nor any update after it, until the tensor is 0 again. This
    reads nothing from the device. Without it, every update is looked at before it is applied.
    """

    reads_half_gradients = False  # gradients have to be in the parameters, in float32
    keeps_copies = (
        False  # half-precision copies of the weights have to be made anew after an update
    )
    ready_to_capture = False  # torch makes the optimizer's moments in the first update

    def __init__(
        self,
        optimizer: torch.optim.AdamW,
        precision: Precision,
        *,
        clip: float,
        not_finite: Tensor,
        skips_on_device: bool,
    ) -> None:
        self.optimizer = optimizer
        self.precision = precision
        self.clip = clip
        self.not_finite = not_finite
        self.skips_on_device = skips_on_device
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def apply(
        self, total_loss: Tensor, half_gradients: Mapping[int, Tensor], *, clip_scale: float = 1.0
    ) -> Tensor:
        """Clip and apply the gradients unless one is not finite; give their length before that."""
        scaler = self.precision.scaler
        scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip * clip_scale, foreach=True)
        if self.skips_on_device:
            bad = (~torch.isfinite(total_loss + norm)).float()
            self.not_finite.copy_(torch.maximum(self.not_finite, bad))
            # where this is 1, torch's fused update leaves everything as it is
            self.optimizer.found_inf = self.not_finite  # type: ignore[attr-defined]
            self.optimizer.step()
        elif bool(torch.isfinite(total_loss)) and (
            scaler.is_enabled() or bool(torch.isfinite(norm))
        ):
            scaler.step(self.optimizer)
            scaler.update()
        return norm

    def read_state(self) -> None:
        """The optimizer's own state is what is used here."""

    def restart(self) -> None:
        """Begin anew, in the same memory, which captured updates write to."""
        for state in self.optimizer.state.values():
            for moment in state.values():
                moment.zero_()

    def begin_capture(self) -> Tensor | None:
        """A graph needs no memory from here."""
        return None

    def finish_capture(self) -> None:
        """Nothing has to be written after a capture."""
