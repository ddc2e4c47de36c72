"""Dropout that depends on a seed on the device and on a number, `site`, for each place in the
network.

Nothing has to be kept for the backward pass, and a captured update has new masks whenever the seed
is new.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def is_kept(seed, site, offset, p):  # type: ignore[no-untyped-def]
    """Which numbers dropout keeps: a hash of the seed, of the place in the network and of the place
    in the tensor.

    It is two rounds of a 32-bit mixer, with one half of the seed in each. That is enough for masks,
    at a fraction of the cost of Philox.
    """
    key = tl.load(seed) + site.to(tl.int64) * 0x632BE59BD9B4E019
    x = offset.to(tl.uint32) ^ key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = (x ^ (x >> 16)) ^ (key >> 32).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return (x >> 8).to(tl.int32).to(tl.float32) * (1.0 / 16777216.0) >= p


@triton.jit(do_not_specialize=["site"])  # type: ignore[untyped-decorator,unused-ignore]
def _drop_kernel(x, out, seed, site, p, total, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Dropout of BLOCK numbers."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(is_kept(seed, site, place, p), value / (1.0 - p), 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


def drop(x: Tensor, seed: Tensor, site: int, p: float) -> Tensor:
    """Dropout of x at rate p; on the way back, the same function of the gradient."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _drop_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, seed, site, p, x.numel(), BLOCK=1024)
    return out
