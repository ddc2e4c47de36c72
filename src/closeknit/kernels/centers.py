"""SoftTriple's loss over many centers on a GPU, in Triton; `centers` has the same in plain torch."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

BLOCK = 2048  # centers of a class looked at in one go


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _unit_kernel(x, out, shrink, D, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row: scaled to length 1 in out's type, and one over the length it had; zeros stay zeros."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < D
    own = tl.load(x + row * D + place, mask=inside, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(own * own, 0))
    inverse = tl.where(length > 1.2e-38, 1.0 / length, 0.0)
    tl.store(out + row * D + place, (own * inverse).to(out.dtype.element_ty), mask=inside)
    tl.store(shrink + row, inverse)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _through_unit_kernel(gradient, unit, shrink, out, D, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row: the gradient before the scaling to length 1, from the one after it."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < D
    slope = tl.load(gradient + row * D + place, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(unit + row * D + place, mask=inside, other=0.0).to(tl.float32)
    slope = (slope - tl.sum(slope * own, 0) * own) * tl.load(shrink + row)
    tl.store(out + row * D + place, slope.to(out.dtype.element_ty), mask=inside)


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
    amount,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    TRAIN: tl.constexpr,
):
    """One row: its loss from its C x K similarities, which become the loss's derivatives in place."""
    row = tl.program_id(0).to(tl.int64)
    own = near + row * C * K
    label = tl.load(labels + row)
    counts = label >= 0
    classes = tl.arange(0, CLASSES)
    score = tl.zeros([CLASSES], dtype=tl.float32)
    log_sum = tl.zeros([CLASSES], dtype=tl.float32)
    for c in range(0, C):  # maximum, sum and weighted sum over the class's centers, kept online
        top = -float("inf")
        total = 0.0
        weighted = 0.0
        for start in range(0, K, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < K
            s = tl.load(own + c * K + place, mask=inside, other=0.0).to(tl.float32)
            x = tl.where(inside, s * inverse_gamma, -float("inf"))
            higher = tl.maximum(top, tl.max(x, 0))
            share = tl.exp(x - higher)
            shrink = tl.exp(top - higher)
            total = total * shrink + tl.sum(share, 0)
            weighted = weighted * shrink + tl.sum(share * s, 0)
            top = higher
        score = tl.where(classes == c, weighted / total, score)
        log_sum = tl.where(classes == c, top + tl.log(total), log_sum)
    truth = tl.where(classes == label, 1.0, 0.0)
    logit = tl.where(classes < C, scale * (score - margin * truth), -float("inf"))
    highest = tl.max(logit, 0)
    odds = tl.exp(logit - highest)
    all_odds = tl.sum(odds, 0)
    right = tl.sum(tl.where(classes == label, logit, 0.0), 0)
    tl.store(losses + row, tl.where(counts, highest + tl.log(all_odds) - right, 0.0))
    if TRAIN:
        outer = tl.where(counts, (odds / all_odds - truth) * scale / tl.load(amount), 0.0)
        for c in range(0, C):
            chosen = classes == c
            g = tl.sum(tl.where(chosen, outer, 0.0), 0)
            S = tl.sum(tl.where(chosen, score, 0.0), 0)
            log_total = tl.sum(tl.where(chosen, log_sum, 0.0), 0)
            for start in range(0, K, BLOCK):
                place = start + tl.arange(0, BLOCK)
                inside = place < K
                s = tl.load(own + c * K + place, mask=inside, other=0.0).to(tl.float32)
                slope = g * tl.exp(s * inverse_gamma - log_total) * (1.0 + (s - S) * inverse_gamma)
                tl.store(own + c * K + place, slope.to(near.dtype.element_ty), mask=inside)


# torch learnt in 2.8 to multiply halves and keep their sum in float32
_SUMS_IN_FLOAT32 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


def center_loss(
    z: Tensor, w: Tensor, y: Tensor, C: int, gamma: float, scale: float, margin: float, train: bool, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """The mean loss of rows z (R, D) for centers w (C K, D), and the gradients of both; `most` bytes of similarities at once."""
    product = z.dtype if z.dtype in (torch.bfloat16, torch.float16) else torch.float32
    R, K = len(z), len(w) // C
    rows, row_shrink = _unit(z, product)
    units, center_shrink = _unit(w, product)
    chunks = -(-R * len(w) * rows.element_size() // most)
    height = -(-R // chunks)
    buffer = torch.empty(height, len(w), dtype=product, device=z.device)
    losses = torch.empty(R, dtype=torch.float32, device=z.device)
    amount = (y >= 0).sum().clamp_min(1).float()
    grad_rows = torch.empty(rows.shape, dtype=torch.float32, device=z.device) if train else rows
    grad_units = torch.empty(w.shape, dtype=torch.float32, device=z.device) if train else w
    block = int(min(BLOCK, max(16, triton.next_power_of_2(K))))
    for start in range(0, R, height):
        own = rows[start : start + height]  # (r, D)
        near = buffer[: len(own)]  # (r, C K)
        torch.mm(own, units.T, out=near)
        _row_kernel[(len(own),)](
            near,
            y[start : start + height],
            losses[start : start + height],
            C,
            K,
            1.0 / gamma,
            scale,
            margin,
            amount,
            CLASSES=triton.next_power_of_2(C),
            BLOCK=block,
            TRAIN=train,
            num_warps=8 if block >= 1024 else 1,
        )
        if train:
            _product(near, units, grad_rows[start : start + height], add=False)
            _product(near.T, own, grad_units, add=start > 0)
    loss = losses.sum() / amount
    if not train:
        return loss, None
    del buffer  # room for what follows
    _through_unit(grad_units, units, center_shrink, grad_units)
    grad_z = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    _through_unit(grad_rows, rows, row_shrink, grad_z)
    return loss, (grad_z, grad_units)


def _unit(x: Tensor, product: torch.dtype) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=product, device=x.device)
    shrink = torch.empty(len(x), dtype=torch.float32, device=x.device)
    _unit_kernel[(len(x),)](x, out, shrink, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out, shrink


def _through_unit(gradient: Tensor, unit: Tensor, shrink: Tensor, out: Tensor) -> None:
    _through_unit_kernel[(len(unit),)](
        gradient, unit, shrink, out, unit.shape[1], BLOCK=triton.next_power_of_2(unit.shape[1])
    )


def _product(a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
    """a @ b into out, or added to it, summed in float32."""
    if a.dtype == out.dtype or _SUMS_IN_FLOAT32:
        kind = {} if a.dtype == out.dtype else {"out_dtype": out.dtype}
        if add:
            torch.addmm(out, a, b, out=out, **kind)  # type: ignore[call-overload]
        else:
            torch.mm(a, b, out=out, **kind)  # type: ignore[call-overload]
    elif add:
        out.add_(a @ b)
    else:
        out.copy_(a @ b)
