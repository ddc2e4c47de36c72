"""Fused GPU kernels of the soft maximum over centers, in Triton; `centers` has the same in plain torch."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

BLOCK = 2048  # centers a program looks at in one go


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _reduce_kernel(near, scores, log_sum, K, inverse_gamma, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One (row, class): maximum, sum and weighted sum over its K centers, kept online."""
    cell = tl.program_id(0).to(tl.int64)
    top = -float("inf")
    total = 0.0
    weighted = 0.0
    for start in range(0, K, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < K
        s = tl.load(near + cell * K + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, s * inverse_gamma, -float("inf"))
        higher = tl.maximum(top, tl.max(x, 0))
        share = tl.exp(x - higher)
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(share, 0)
        weighted = weighted * shrink + tl.sum(share * s, 0)
        top = higher
    tl.store(scores + cell, weighted / total)
    tl.store(log_sum + cell, top + tl.log(total))


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _slope_kernel(near, scores, log_sum, gradient, K, inverse_gamma, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One (row, class): similarities become gradient * p * (1 + (s - S) / gamma), in place."""
    cell = tl.program_id(0).to(tl.int64)
    score = tl.load(scores + cell)
    log_total = tl.load(log_sum + cell)
    outer = tl.load(gradient + cell)
    for start in range(0, K, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < K
        s = tl.load(near + cell * K + place, mask=inside, other=0.0).to(tl.float32)
        share = tl.exp(s * inverse_gamma - log_total)
        slope = outer * share * (1.0 + (s - score) * inverse_gamma)
        tl.store(near + cell * K + place, slope.to(near.dtype.element_ty), mask=inside)


def _block(K: int) -> int:
    return int(min(BLOCK, max(16, triton.next_power_of_2(K))))


def reduce(near: Tensor, gamma: float, scores: Tensor, log_sum: Tensor) -> None:
    """Fill soft maxima and log-sums (r, C) from similarities (r, C, K)."""
    r, C, K = near.shape
    _reduce_kernel[(r * C,)](near, scores, log_sum, K, 1.0 / gamma, BLOCK=_block(K))


def slope(near: Tensor, gamma: float, scores: Tensor, log_sum: Tensor, gradient: Tensor) -> None:
    """Turn similarities (r, C, K) into derivatives, in place."""
    r, C, K = near.shape
    _slope_kernel[(r * C,)](near, scores, log_sum, gradient, K, 1.0 / gamma, BLOCK=_block(K))
