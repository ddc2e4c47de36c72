"""The kernels of a transformer's layer around its matrix products and its attention.

Normalisation with the sum and the dropout before it, GELU with a bias, sums of columns, and the
gradient of an embedding.

Numbers of rows are in 64 bits: a row's number times its width is a place in a tensor, and a tensor
can have more than 2^31 numbers.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from closeknit.acceleration.triton_dropout import is_kept

TOKENS_AT_ONCE = 32  # tokens of one id whose gradients are added up at once


@triton.jit(do_not_specialize=["site"])  # type: ignore[untyped-decorator,unused-ignore]
def _norm_kernel(  # type: ignore[no-untyped-def]
    a,
    bias,
    rest,
    gain,
    shift,
    total,
    out,
    half,
    mean,
    shrink,
    seed,
    site,
    p,
    eps,
    N,
    H,
    ADD: tl.constexpr,
    DROP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS rows: the normalisation of rest + dropout(a + bias); without a, the dropout of the
    normalisation of rest.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, BLOCK)
    column = place < H
    inside = (row < N)[:, None] & column[None, :]
    offset = row[:, None] * H + place[None, :]
    z = tl.load(rest + offset, mask=inside, other=0.0)
    if ADD:
        x = tl.load(a + offset, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(bias + place, mask=column, other=0.0)[None, :]
        if DROP:
            x = tl.where(is_kept(seed, site, offset, p), x / (1.0 - p), 0.0)
        z += x
        tl.store(total + offset, z, mask=inside)
    middle = tl.sum(tl.where(inside, z, 0.0), 1) / H
    centered = tl.where(inside, z - middle[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centered * centered, 1) / H + eps)
    y = centered * inverse[:, None] * tl.load(gain + place, mask=column, other=0.0)[None, :]
    y += tl.load(shift + place, mask=column, other=0.0)[None, :]
    if DROP and not ADD:
        y = tl.where(is_kept(seed, site, offset, p), y / (1.0 - p), 0.0)
    tl.store(out + offset, y, mask=inside)
    tl.store(half + offset, y.to(half.dtype.element_ty), mask=inside)
    tl.store(mean + row, middle, mask=row < N)
    tl.store(shrink + row, inverse, mask=row < N)


@triton.jit(do_not_specialize=["site"])  # type: ignore[untyped-decorator,unused-ignore]
def _norm_back_kernel(  # type: ignore[no-untyped-def]
    grad_out,
    grad_half,
    total,
    gain,
    mean,
    shrink,
    grad_rest,
    grad_a,
    sums,
    seed,
    site,
    p,
    N,
    H,
    ADD: tl.constexpr,
    DROP: tl.constexpr,
    OUT: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS rows: the gradients of what was added, and their sums over these rows for gain, shift
    and bias.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, BLOCK)
    column = place < H
    inside = (row < N)[:, None] & column[None, :]
    offset = row[:, None] * H + place[None, :]
    dy = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    if OUT:
        dy += tl.load(grad_out + offset, mask=inside, other=0.0)
    if HALF:
        dy += tl.load(grad_half + offset, mask=inside, other=0.0).to(tl.float32)
    if DROP and not ADD:
        dy = tl.where(is_kept(seed, site, offset, p), dy / (1.0 - p), 0.0)
    inverse = tl.load(shrink + row, mask=row < N, other=0.0)[:, None]
    middle = tl.load(mean + row, mask=row < N, other=0.0)[:, None]
    unit = tl.where(
        inside, (tl.load(total + offset, mask=inside, other=0.0) - middle) * inverse, 0.0
    )
    own = sums + tl.program_id(0).to(tl.int64) * 3 * H + place
    tl.store(own, tl.sum(dy * unit, 0), mask=column)
    tl.store(own + H, tl.sum(dy, 0), mask=column)
    slope = dy * tl.load(gain + place, mask=column, other=0.0)[None, :]
    slope = inverse * (
        slope - tl.sum(slope, 1)[:, None] / H - unit * (tl.sum(slope * unit, 1)[:, None] / H)
    )
    tl.store(grad_rest + offset, slope, mask=inside)
    if ADD:
        if DROP:
            slope = tl.where(is_kept(seed, site, offset, p), slope / (1.0 - p), 0.0)
        tl.store(grad_a + offset, slope.to(grad_a.dtype.element_ty), mask=inside)
        tl.store(own + 2 * H, tl.sum(tl.where(inside, slope, 0.0), 0), mask=column)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gelu_kernel(x, bias, out, total, C, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """gelu(x + bias) of BLOCK numbers."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    place = start + tl.arange(0, BLOCK)
    inside = place < total
    own = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    # one division in 64 bits for the block, the others in 32 bits
    column = ((start % C).to(tl.int32) + tl.arange(0, BLOCK)) % C
    own += tl.load(bias + column, mask=inside, other=0.0)
    y = 0.5 * own * (1.0 + tl.erf(own * 0.7071067811865476))
    tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gelu_back_kernel(  # type: ignore[no-untyped-def]
    grad,
    x,
    bias,
    out,
    sums,
    N,
    C,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS rows and BLOCK columns: the gradient of x, and its sums over these rows for the bias."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < N)[:, None] & (column < C)[None, :]
    offset = row[:, None] * C + column[None, :]
    own = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    own += tl.load(bias + column, mask=column < C, other=0.0)[None, :]
    below = 0.5 * (1.0 + tl.erf(own * 0.7071067811865476))
    density = tl.exp(-0.5 * own * own) * 0.3989422804014327
    slope = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32) * (below + own * density)
    tl.store(out + offset, slope.to(out.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0).to(tl.int64) * C + column, tl.sum(slope, 0), mask=column < C)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _column_kernel(  # type: ignore[no-untyped-def]
    x,
    out,
    N,
    C,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums of BLOCK columns over all rows."""
    row = tl.arange(0, ROWS).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, N, ROWS):
        at = start + row
        inside = (at < N)[:, None] & (column < C)[None, :]
        total += tl.load(x + at[:, None] * C + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < C)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scatter_kernel(  # type: ignore[no-untyped-def]
    ids,
    order,
    grad,
    out,
    N,
    H,
    skipped,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Tokens are sorted by id: the first one with an id adds up the gradients of all that have
    it.
    """
    token = tl.program_id(0)
    own = tl.load(ids + token)
    before = tl.load(ids + token - 1, mask=token > 0, other=-1)
    if (own != before) & (own != skipped):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < H
        total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        start = token
        more = 1
        while more > 0:
            at = start + tl.arange(0, ROWS)
            same = tl.load(ids + at, mask=at < N, other=-1) == own
            source = tl.load(order + at, mask=same, other=0)
            spot = source[:, None] * H + column[None, :]
            total += tl.load(grad + spot, mask=same[:, None] & inside[None, :], other=0.0)
            start += ROWS
            more = tl.sum(same.to(tl.int32), 0) // ROWS  # only after a full block there can be more
        tl.store(out + own * H + column, tl.sum(total, 0), mask=inside)


# ---------------------------------------------------------------- from tensors to tensors


def norm(
    a: Tensor | None,
    bias: Tensor | None,
    rest: Tensor,
    gain: Tensor,
    shift: Tensor,
    eps: float,
    seed: Tensor,
    site: int,
    p: float,
    half: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(normalised (N, H), the same in half precision, what was normalised, its means and inverse
    deviations).
    """
    N, H = rest.shape
    out = torch.empty_like(rest)
    small = torch.empty(N, H, dtype=half, device=rest.device)
    total = rest if a is None else torch.empty_like(rest)
    mean, shrink = torch.empty(2, N, dtype=torch.float32, device=rest.device)
    block = triton.next_power_of_2(H)
    rows = _rows(block)
    _norm_kernel[(triton.cdiv(N, rows),)](
        rest if a is None else a,
        shift if bias is None else bias,
        rest,
        gain,
        shift,
        total,
        out,
        small,
        mean,
        shrink,
        seed,
        site,
        p,
        eps,
        N,
        H,
        ADD=a is not None,
        DROP=p > 0,
        ROWS=rows,
        BLOCK=block,
        num_warps=4,
    )
    return out, small, total, mean, shrink


def norm_back(
    grad_out: Tensor | None,
    grad_half: Tensor | None,
    total: Tensor,
    gain: Tensor,
    mean: Tensor,
    shrink: Tensor,
    seed: Tensor,
    site: int,
    p: float,
    half: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(gradient of rest (N, H), of a in `half` where it is given, sums (3, H) for gain, shift and
    bias).
    """
    N, H = total.shape
    block = triton.next_power_of_2(H)
    rows = _rows(block)
    parts = triton.cdiv(N, rows)
    grad_rest = torch.empty_like(total)
    grad_a = None if half is None else torch.empty(N, H, dtype=half, device=total.device)
    sums = torch.empty(parts, 3 * H, dtype=torch.float32, device=total.device)
    _norm_back_kernel[(parts,)](
        total if grad_out is None else grad_out,
        total if grad_half is None else grad_half,
        total,
        gain,
        mean,
        shrink,
        grad_rest,
        grad_rest if grad_a is None else grad_a,
        sums,
        seed,
        site,
        p,
        N,
        H,
        ADD=grad_a is not None,
        DROP=p > 0,
        OUT=grad_out is not None,
        HALF=grad_half is not None,
        ROWS=rows,
        BLOCK=block,
        num_warps=4,
    )
    return grad_rest, grad_a, column_sums(sums, 3 * H if grad_a is not None else 2 * H)


def gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) of x (N, C), in x's precision."""
    out = torch.empty_like(x)
    _gelu_kernel[(triton.cdiv(x.numel(), 2048),)](x, bias, out, x.numel(), x.shape[1], BLOCK=2048)
    return out


def gelu_back(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x (N, C) and of the bias (C,)."""
    (N, C), rows, block = x.shape, 32, 128
    out = torch.empty_like(x)
    sums = torch.empty(triton.cdiv(N, rows), C, dtype=torch.float32, device=x.device)
    _gelu_back_kernel[(len(sums), triton.cdiv(C, block))](
        grad, x, bias, out, sums, N, C, ROWS=rows, BLOCK=block
    )
    return out, column_sums(sums, C)


def column_sums(x: Tensor, columns: int) -> Tensor:
    """The sums (columns,) of the first columns of x (P, C)."""
    out = torch.empty(columns, dtype=torch.float32, device=x.device)
    _column_kernel[(triton.cdiv(columns, 32),)](x, out, len(x), x.shape[1], ROWS=64, BLOCK=32)
    return out


def scatter(ids: Tensor, grad: Tensor, rows: int, skipped: int) -> Tensor:
    """The gradient (rows, H) of an embedding from those of its tokens (N, H), always added in the
    same order.
    """
    N, H = grad.shape
    out = torch.zeros(rows, H, dtype=torch.float32, device=grad.device)
    known, order = torch.sort(ids, stable=True)
    _scatter_kernel[(N, triton.cdiv(H, 128))](
        known, order, grad, out, N, H, skipped, ROWS=TOKENS_AT_ONCE, COLUMNS=128
    )
    return out


def _rows(block: int) -> int:
    """How many rows of so many numbers one program works on."""
    return max(1, 4096 // block)
