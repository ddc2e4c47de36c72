"""SoftTriple's loss over many centers on a GPU, in Triton; `soft_triple` has it in torch too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from closeknit.objectives.losses.soft_triple import precision_until_backward

if TYPE_CHECKING:
    from closeknit.objectives.losses.soft_triple import CenterOptions, Gradients

BLOCK = 2048  # how many centers of a class a program reads at once

# From version 2.8 on, torch can multiply in half precision and write the sums in float32.
_TORCH_SUMS_IN_FLOAT32 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _unit_kernel(x, out, inverse_lengths, D, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row: scales it to length 1, in the precision of `out`, and stores one over its length.

    A row of zeros stays zero.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < D
    values = tl.load(x + row * D + column, mask=inside, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(values * values, 0))
    inverse = tl.where(length > 1.2e-38, 1.0 / length, 0.0)
    tl.store(out + row * D + column, (values * inverse).to(out.dtype.element_ty), mask=inside)
    tl.store(inverse_lengths + row, inverse)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _unit_backward_kernel(gradient, unit, inverse_lengths, out, D, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row: its gradient before it was scaled to length 1, from its gradient after that."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < D
    after = tl.load(gradient + row * D + column, mask=inside, other=0.0).to(tl.float32)
    direction = tl.load(unit + row * D + column, mask=inside, other=0.0).to(tl.float32)
    before = (after - tl.sum(after * direction, 0) * direction) * tl.load(inverse_lengths + row)
    tl.store(out + row * D + column, before.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _row_kernel(  # type: ignore[no-untyped-def]
    near,
    labels,
    losses,
    C,
    K,
    inverse_gamma,
    scale,
    margin,
    divisor,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    WITH_GRADIENTS: tl.constexpr,
):
    """One row: its loss from its C x K similarities `near`.

    With gradients, the similarities are overwritten with the gradient of (loss / divisor) by them.
    """
    row = tl.program_id(0).to(tl.int64)
    similarities = near + row * C * K
    label = tl.load(labels + row)
    has_label = label >= 0
    classes = tl.arange(0, CLASSES)
    score = tl.zeros([CLASSES], dtype=tl.float32)
    log_sum = tl.zeros([CLASSES], dtype=tl.float32)
    for c in range(0, C):  # a running maximum, sum and weighted sum over the centers of the class
        top = -float("inf")
        total = 0.0
        weighted = 0.0
        for start in range(0, K, BLOCK):
            center = start + tl.arange(0, BLOCK)
            inside = center < K
            s = tl.load(similarities + c * K + center, mask=inside, other=0.0).to(tl.float32)
            x = tl.where(inside, s * inverse_gamma, -float("inf"))
            new_top = tl.maximum(top, tl.max(x, 0))
            power = tl.exp(x - new_top)
            shrink = tl.exp(top - new_top)
            total = total * shrink + tl.sum(power, 0)
            weighted = weighted * shrink + tl.sum(power * s, 0)
            top = new_top
        score = tl.where(classes == c, weighted / total, score)
        log_sum = tl.where(classes == c, top + tl.log(total), log_sum)
    is_true_class = tl.where(classes == label, 1.0, 0.0)
    logit = tl.where(classes < C, scale * (score - margin * is_true_class), -float("inf"))
    highest = tl.max(logit, 0)
    power_of_class = tl.exp(logit - highest)
    sum_of_powers = tl.sum(power_of_class, 0)
    logit_of_true_class = tl.sum(tl.where(classes == label, logit, 0.0), 0)
    loss = highest + tl.log(sum_of_powers) - logit_of_true_class
    tl.store(losses + row, tl.where(has_label, loss, 0.0))
    if WITH_GRADIENTS:
        grad_score = (power_of_class / sum_of_powers - is_true_class) * scale / tl.load(divisor)
        grad_score = tl.where(has_label, grad_score, 0.0)
        for c in range(0, C):
            is_class = classes == c
            g = tl.sum(tl.where(is_class, grad_score, 0.0), 0)
            S = tl.sum(tl.where(is_class, score, 0.0), 0)
            log_total = tl.sum(tl.where(is_class, log_sum, 0.0), 0)
            for start in range(0, K, BLOCK):
                center = start + tl.arange(0, BLOCK)
                inside = center < K
                s = tl.load(similarities + c * K + center, mask=inside, other=0.0).to(tl.float32)
                p = tl.exp(s * inverse_gamma - log_total)
                gradient = g * p * (1.0 + (s - S) * inverse_gamma)
                tl.store(
                    similarities + c * K + center, gradient.to(near.dtype.element_ty), mask=inside
                )


def loss_and_gradients(
    z: Tensor,
    w: Tensor,
    y: Tensor,
    C: int,
    options: CenterOptions,
    needs_gradients: bool,
    max_bytes: int,
) -> tuple[Tensor, Gradients | None]:
    """The mean loss of rows z (R, D) for centers w (C K, D), and the gradients of both.

    At most `max_bytes` of similarities are held at once.
    """
    precision = z.dtype if z.dtype in (torch.bfloat16, torch.float16) else torch.float32
    R = len(z)
    unit_rows, row_inverse_lengths = _unit(z, precision)
    unit_centers, center_inverse_lengths = _unit(w, precision)
    chunks = -(-R * len(w) * unit_rows.element_size() // max_bytes)
    height = -(-R // chunks)
    buffer = torch.empty(height, len(w), dtype=precision, device=z.device)
    losses = torch.empty(R, dtype=torch.float32, device=z.device)
    count = (y >= 0).sum().clamp_min(1).float()
    # Divided by the number of rows, slopes leave the range of float16: they are divided later.
    divisor = torch.ones_like(count) if precision == torch.float16 else count
    grad_rows = (
        torch.empty(unit_rows.shape, dtype=torch.float32, device=z.device) if needs_gradients else z
    )
    grad_centers = (
        torch.empty(w.shape, dtype=torch.float32, device=z.device) if needs_gradients else w
    )
    for start in range(0, R, height):
        chunk = slice(start, start + height)
        z_chunk = unit_rows[chunk]  # (r, D)
        near = buffer[: len(z_chunk)]  # (r, C K)
        torch.mm(z_chunk, unit_centers.T, out=near)
        _run_row_kernel(near, y[chunk], losses[chunk], C, options, divisor, needs_gradients)
        if needs_gradients:  # `near` now holds the gradient of the similarities
            _multiply(near, unit_centers, grad_rows[chunk], add=False)
            _multiply(near.T, z_chunk, grad_centers, add=start > 0)
    loss = losses.sum() / count
    if not needs_gradients:
        return loss, None
    del buffer  # makes room for what follows
    left = divisor / count  # 1, except in float16
    _unit_backward(grad_centers, unit_centers, center_inverse_lengths * left, grad_centers)
    grad_z = torch.empty(z.shape, dtype=precision_until_backward(z), device=z.device)
    _unit_backward(grad_rows, unit_rows, row_inverse_lengths * left, grad_z)
    return loss, (grad_z, grad_centers)


def _run_row_kernel(
    near: Tensor,
    y: Tensor,
    losses: Tensor,
    C: int,
    options: CenterOptions,
    divisor: Tensor,
    needs_gradients: bool,
) -> None:
    """Writes the loss of each row of near (r, C K); `_row_kernel` says what becomes of near."""
    K = near.shape[1] // C
    block = int(min(BLOCK, max(16, triton.next_power_of_2(K))))
    _row_kernel[(len(near),)](
        near,
        y,
        losses,
        C,
        K,
        1.0 / options.gamma,
        options.scale,
        options.margin,
        divisor,
        CLASSES=triton.next_power_of_2(C),
        BLOCK=block,
        WITH_GRADIENTS=needs_gradients,
        num_warps=8 if block >= 1024 else 1,
    )


def _unit(x: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of x scaled to length 1, in this precision, and one over the length of each."""
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=precision, device=x.device)
    inverse_lengths = torch.empty(len(x), dtype=torch.float32, device=x.device)
    _unit_kernel[(len(x),)](
        x, out, inverse_lengths, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1])
    )
    return out, inverse_lengths


def _unit_backward(gradient: Tensor, unit: Tensor, inverse_lengths: Tensor, out: Tensor) -> None:
    """Writes to `out` the gradient of the rows before they were scaled to length 1."""
    D = unit.shape[1]
    _unit_backward_kernel[(len(unit),)](
        gradient, unit, inverse_lengths, out, D, BLOCK=triton.next_power_of_2(D)
    )


def _multiply(a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
    """Writes a @ b to `out`, or adds it to `out`; the sums are in float32 where torch can do it.

    Sums of float16 always are: they can leave its range.
    """
    if a.dtype == torch.float16 and not _TORCH_SUMS_IN_FLOAT32:
        a = a.float()
        b = b.float()
    if a.dtype == out.dtype or _TORCH_SUMS_IN_FLOAT32:
        precision = {} if a.dtype == out.dtype else {"out_dtype": out.dtype}
        if add:
            torch.addmm(out, a, b, out=out, **precision)  # type: ignore[call-overload]
        else:
            torch.mm(a, b, out=out, **precision)  # type: ignore[call-overload]
    elif add:
        out.add_(a @ b)
    else:
        out.copy_(a @ b)
