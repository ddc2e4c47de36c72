"""Clipping, the check for values that are not finite, and AdamW of all parameters in three kernels.

The kernels know tensors by their addresses, which lie in tables on the device. One program works on
one block of at most BLOCK numbers of a tensor. The address of a gradient in half precision has its
last bit set; the address 0 says that there is no gradient.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

BLOCK = 4096
SHIFT = tl.constexpr(
    32
)  # a block is its tensor's number times 2^32, plus its number in that tensor


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _at(address, like):  # type: ignore[no-untyped-def]
    """A pointer of the type of `like`; all tensors begin at a multiple of 16 bytes."""
    return tl.multiple_of(address.to(like.dtype), 16)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _read(place, inside, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of a block; without a mask, as in a full block, several are read at a time."""
    if WHOLE:  # noqa: SIM108
        found = tl.load(place)
    else:
        found = tl.load(place, mask=inside, other=0.0)
    return found


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _write(place, values, inside, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write numbers of a block."""
    if WHOLE:
        tl.store(place, values)
    else:
        tl.store(place, values, mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]
    address,
    offset,
    inside,
    whole,
    half,
    WHOLE: tl.constexpr,
):
    """Numbers of a gradient in float32, whatever their precision in memory."""
    if address % 2 == 1:
        g = _read(_at(address - 1, half) + offset, inside, WHOLE).to(tl.float32)
    else:
        g = _read(_at(address, whole) + offset, inside, WHOLE)
    return g


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _square_kernel(  # type: ignore[no-untyped-def]
    blocks,
    sizes,
    gradients,
    squares,
    half,
    BLOCK: tl.constexpr,
):
    """The sum of a block's squares."""
    block = tl.load(blocks + tl.program_id(0))
    tensor = block >> SHIFT
    address = tl.load(gradients + tensor)
    total = 0.0
    if address != 0:
        start = (block - (tensor << SHIFT)) * BLOCK
        size = tl.load(sizes + tensor)
        offset = start + tl.arange(0, BLOCK)
        if start + BLOCK <= size:
            g = _gradient(address, offset, offset < size, squares, half, True)
        else:
            g = _gradient(address, offset, offset < size, squares, half, False)
        total = tl.sum(g * g, 0)
    tl.store(squares + tl.program_id(0), total)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _verdict_kernel(  # type: ignore[no-untyped-def]
    squares,
    S,
    loss,
    not_finite,
    norm,
    factor,
    steps,
    gradients,
    first,
    second,
    N,
    clip,
    log_beta1,
    log_beta2,
    TENSORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whether the update is applied, what gradients are multiplied by, and the bias corrections of
    the moments.
    """
    place = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, S, BLOCK):
        total += tl.load(squares + start + place, mask=start + place < S, other=0.0)
    length = tl.sqrt(tl.sum(total, 0))
    tl.store(norm, length)
    known = length + tl.load(loss)
    bad = tl.where(known - known == 0.0, tl.load(not_finite), 1.0)
    tl.store(not_finite, bad)
    tl.store(factor, tl.minimum(clip / (length + 1e-6), 1.0))
    tensor = tl.arange(0, TENSORS)
    inside = tensor < N
    moved = tl.load(gradients + tensor, mask=inside, other=0) != 0
    step = tl.load(steps + tensor, mask=inside, other=1.0)
    step += tl.where(moved, 1.0 - bad, 0.0)
    tl.store(steps + tensor, step, mask=inside)
    exact = step.to(tl.float64)
    tl.store(first + tensor, (1.0 - tl.exp(exact * log_beta1)).to(tl.float32), mask=inside)
    tl.store(second + tensor, tl.sqrt(1.0 - tl.exp(exact * log_beta2)).to(tl.float32), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _apply(  # type: ignore[no-untyped-def]
    address,
    offset,
    inside,
    w,
    m,
    v,
    copy,
    half,
    factor,
    rate,
    decay,
    first,
    second,
    beta1,
    beta2,
    eps,
    WHOLE: tl.constexpr,
):
    """Moments and weights of a block, and the half-precision copy of the weights, if any."""
    g = _gradient(address, offset, inside, w, half, WHOLE) * factor
    mean = _read(m + offset, inside, WHOLE)
    mean += (1.0 - beta1) * (g - mean)
    variance = beta2 * _read(v + offset, inside, WHOLE) + (1.0 - beta2) * g * g
    weight = _read(w + offset, inside, WHOLE) * (1.0 - rate * decay)
    weight -= rate / first * (mean / (tl.sqrt(variance) / second + eps))
    _write(m + offset, mean, inside, WHOLE)
    _write(v + offset, variance, inside, WHOLE)
    _write(w + offset, weight, inside, WHOLE)
    if copy != 0:
        _write(_at(copy, half) + offset, weight.to(half.dtype.element_ty), inside, WHOLE)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _adamw_kernel(  # type: ignore[no-untyped-def]
    blocks,
    sizes,
    gradients,
    weights,
    means,
    variances,
    copies,
    rates,
    groups,
    decays,
    first,
    second,
    factor,
    not_finite,
    beta1,
    beta2,
    eps,
    half,
    BLOCK: tl.constexpr,
):
    """One block, if it has a gradient and every value was finite."""
    block = tl.load(blocks + tl.program_id(0))
    tensor = block >> SHIFT
    address = tl.load(gradients + tensor)
    if (address != 0) & (tl.load(not_finite) == 0.0):
        start = (block - (tensor << SHIFT)) * BLOCK
        size = tl.load(sizes + tensor)
        offset = start + tl.arange(0, BLOCK)
        inside = offset < size
        w = _at(tl.load(weights + tensor), rates)
        m = _at(tl.load(means + tensor), rates)
        v = _at(tl.load(variances + tensor), rates)
        copy = tl.load(copies + tensor)
        rate = tl.load(rates + tl.load(groups + tensor))
        decay = tl.load(decays + tensor)
        one = tl.load(first + tensor)
        two = tl.load(second + tensor)
        by = tl.load(factor)
        if start + BLOCK <= size:
            _apply(
                address,
                offset,
                inside,
                w,
                m,
                v,
                copy,
                half,
                by,
                rate,
                decay,
                one,
                two,
                beta1,
                beta2,
                eps,
                True,
            )
        else:
            _apply(
                address,
                offset,
                inside,
                w,
                m,
                v,
                copy,
                half,
                by,
                rate,
                decay,
                one,
                two,
                beta1,
                beta2,
                eps,
                False,
            )


def update(
    tables: dict[str, Tensor],
    gradients: Tensor,
    loss: Tensor,
    *,
    clip: float,
    logs: tuple[float, float],
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Apply the gradients at these addresses, unless they or the loss are not finite."""
    t = tables
    amount, tensors = len(t["blocks"]), len(gradients)
    _square_kernel[(amount,)](
        t["blocks"], t["sizes"], gradients, t["squares"], t["half_type"], BLOCK=BLOCK
    )
    _verdict_kernel[(1,)](
        t["squares"],
        amount,
        loss,
        t["not_finite"],
        t["norm"],
        t["clip_factor"],
        t["steps"],
        gradients,
        t["first_corrections"],
        t["second_corrections"],
        tensors,
        clip,
        *logs,
        TENSORS=triton.next_power_of_2(tensors),
        BLOCK=4096,
        num_warps=8,
    )
    _adamw_kernel[(amount,)](
        t["blocks"],
        t["sizes"],
        gradients,
        t["weights"],
        t["means"],
        t["variances"],
        t["copies"],
        t["rates"],
        t["groups"],
        t["decays"],
        t["first_corrections"],
        t["second_corrections"],
        t["clip_factor"],
        t["not_finite"],
        *betas,
        eps,
        t["half_type"],
        BLOCK=BLOCK,
        num_warps=8,
    )
