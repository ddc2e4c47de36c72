"""Attention of all heads in one kernel forward and one kernel back, for texts that are not long."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from closeknit.acceleration.triton_dropout import is_kept
from closeknit.acceleration.triton_layers import column_sums

LONGEST = 128  # tokens of a text that these kernels take


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _scores(q, k, length, scale, place):  # type: ignore[no-untyped-def]
    """The attention (T, T) of one head; each row sums to 1."""
    s = tl.dot(q, tl.trans(k)) * scale
    s = tl.where(place[None, :] < length, s, -float("inf"))
    share = tl.exp(s - tl.max(s, 1)[:, None])
    return share / tl.sum(share, 1)[:, None]


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _with_bias(x, bias, inside):  # type: ignore[no-untyped-def]
    """Rows of a half-precision product (T, D), plus their bias."""
    own = tl.load(x, mask=inside, other=0.0)
    return (own.to(tl.float32) + tl.load(bias)[None, :]).to(own.dtype)


@triton.jit(do_not_specialize=["site"])  # type: ignore[untyped-decorator,unused-ignore]
def _attend_kernel(  # type: ignore[no-untyped-def]
    qkv,
    biases,
    lengths,
    out,
    seed,
    site,
    p,
    scale,
    T,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one text."""
    row, head = tl.program_id(0), tl.program_id(1)
    H = HEADS * D
    place, column = tl.arange(0, BLOCK), head * D + tl.arange(0, D)
    inside = (place < T)[:, None]
    token = row.to(tl.int64) * T + place
    own = qkv + token[:, None] * (3 * H) + column[None, :]
    q = _with_bias(own, biases + column, inside)
    k = _with_bias(own + H, biases + H + column, inside)
    v = _with_bias(own + 2 * H, biases + 2 * H + column, inside)
    share = _scores(q, k, tl.load(lengths + row), scale, place)
    if DROP:
        drawn = ((row * HEADS + head) * BLOCK + place[:, None]) * BLOCK + place[None, :]
        share = tl.where(is_kept(seed, site, drawn, p), share / (1.0 - p), 0.0)
    mixed = tl.dot(share.to(v.dtype), v)
    tl.store(
        out + token[:, None] * H + column[None, :], mixed.to(out.dtype.element_ty), mask=inside
    )


@triton.jit(do_not_specialize=["site"])  # type: ignore[untyped-decorator,unused-ignore]
def _attend_back_kernel(  # type: ignore[no-untyped-def]
    qkv,
    biases,
    lengths,
    grad,
    out,
    sums,
    seed,
    site,
    p,
    scale,
    T,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one text: gradients of its queries, keys and values, and their sums over the text
    for the biases.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    H = HEADS * D
    place, column = tl.arange(0, BLOCK), head * D + tl.arange(0, D)
    inside = (place < T)[:, None]
    token = row.to(tl.int64) * T + place
    spot = token[:, None] * (3 * H) + column[None, :]
    q = _with_bias(qkv + spot, biases + column, inside)
    k = _with_bias(qkv + spot + H, biases + H + column, inside)
    v = _with_bias(qkv + spot + 2 * H, biases + 2 * H + column, inside)
    do = tl.load(grad + token[:, None] * H + column[None, :], mask=inside, other=0.0)
    share = _scores(q, k, tl.load(lengths + row), scale, place)
    slope = tl.dot(do, tl.trans(v))
    used = share
    if DROP:
        drawn = ((row * HEADS + head) * BLOCK + place[:, None]) * BLOCK + place[None, :]
        keep = is_kept(seed, site, drawn, p)
        used = tl.where(keep, share / (1.0 - p), 0.0)
        slope = tl.where(keep, slope / (1.0 - p), 0.0)
    half = out.dtype.element_ty
    dv = tl.dot(tl.trans(used.to(half)), do)
    slope = share * (slope - tl.sum(slope * share, 1)[:, None]) * scale
    slope = tl.where(inside, slope, 0.0).to(half)  # rows beyond the text have no gradient
    dq = tl.dot(slope, k)
    dk = tl.dot(tl.trans(slope), q)
    tl.store(out + spot, dq.to(half), mask=inside)
    tl.store(out + spot + H, dk.to(half), mask=inside)
    tl.store(out + spot + 2 * H, dv.to(half), mask=inside)
    own = sums + row.to(tl.int64) * 3 * H + column
    tl.store(own, tl.sum(dq, 0))
    tl.store(own + H, tl.sum(tl.where(inside, dk, 0.0), 0))
    tl.store(own + 2 * H, tl.sum(tl.where(inside, dv, 0.0), 0))


def attend(
    qkv: Tensor,
    biases: Tensor,
    lengths: Tensor,
    T: int,
    heads: int,
    seed: Tensor,
    site: int,
    p: float,
) -> Tensor:
    """Attention (N, H) over texts of T tokens, of which the first `lengths` (R,) are real; qkv (N,
    3 H) and biases (3 H,).
    """
    out = torch.empty(len(qkv), qkv.shape[1] // 3, dtype=qkv.dtype, device=qkv.device)
    _attend_kernel[(len(lengths), heads)](
        qkv, biases, lengths, out, seed, site, p, **_options(qkv, T, heads, p)
    )
    return out


def attend_back(
    qkv: Tensor,
    biases: Tensor,
    lengths: Tensor,
    grad: Tensor,
    T: int,
    heads: int,
    seed: Tensor,
    site: int,
    p: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of qkv (N, 3 H) and of the biases (3 H,) from that of the attention's result
    (N, H).
    """
    out = torch.empty_like(qkv)
    sums = torch.empty(len(lengths), qkv.shape[1], dtype=torch.float32, device=qkv.device)
    _attend_back_kernel[(len(lengths), heads)](
        qkv, biases, lengths, grad, out, sums, seed, site, p, **_options(qkv, T, heads, p)
    )
    return out, column_sums(sums, qkv.shape[1])


def _options(qkv: Tensor, T: int, heads: int, p: float) -> dict[str, Any]:
    """What both attention kernels are launched with."""
    D = qkv.shape[1] // 3 // heads
    block = max(16, triton.next_power_of_2(T))
    warps = 8 if block >= 128 else 4 if block >= 64 else 2
    return {
        "scale": D**-0.5,
        "T": T,
        "HEADS": heads,
        "D": D,
        "DROP": p > 0,
        "BLOCK": block,
        "num_warps": warps,
    }
