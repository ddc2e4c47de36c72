"""The soft maximum over a class's centers: SoftTriple's inner loop, in bounded memory, forward and backward.

The similarities of R rows to C x K centers are worked through in chunks of rows and never all kept; the
backward pass computes them again. On a GPU the chunks are small enough to stay in its cache, the products
run in the rows' own precision, and what lies between them is one fused kernel each way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Similarities held at once: 4 MiB in float32 on a CPU, 64 MiB in bf16 on a GPU.
CPU_ELEMENTS, GPU_ELEMENTS = 2**20, 2**25


def soft_maximum(z: Tensor, w: Tensor, gamma: float) -> Tensor:
    """The soft maximum over centers of each row's cosine to each class.

    For rows z (R, D) and centers w (C, K, D), both scaled to length 1 here:

        S_ic = sum_k softmax_k(<z_i, w_ck> / gamma) * <z_i, w_ck>      -> (R, C)

    Rows in half precision on a GPU are multiplied in it, with sums in float32; all else is done in
    float32, or float64 where the rows are. With p the softmax, dS/ds_k = p_k (1 + (s_k - S) / gamma).
    """
    scores: Tensor = _SoftMaximum.apply(z, w, gamma)
    return scores


class _SoftMaximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, gamma: float) -> Tensor:
        exact = torch.float64 if z.dtype == torch.float64 else torch.float32
        product = z.dtype if z.is_cuda and z.dtype in (torch.bfloat16, torch.float16) else exact
        rows, row_length = _unit(z, exact, product)  # (R, D), (R, 1)
        centers, center_length = _unit(w.flatten(0, 1), exact, product)  # (C K, D), (C K, 1)
        C, K, _ = w.shape
        scores = torch.empty(len(z), C, dtype=exact, device=z.device)  # (R, C)
        log_sum = torch.empty_like(scores)  # (R, C)
        for chunk in _chunks(rows, C * K):
            near = (rows[chunk] @ centers.T).view(-1, C, K)  # (r, C, K)
            _reduce(near, gamma, scores[chunk], log_sum[chunk])
        ctx.save_for_backward(rows, row_length, centers, center_length, scores, log_sum)
        ctx.gamma, ctx.shape, ctx.dtypes = gamma, w.shape, (z.dtype, w.dtype)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, row_length, centers, center_length, scores, log_sum = ctx.saved_tensors
        gradient = gradients[0].contiguous()  # (R, C)
        C, K, _ = ctx.shape
        grad_rows = torch.zeros(rows.shape, dtype=scores.dtype, device=rows.device)  # (R, D)
        grad_centers = torch.zeros(centers.shape, dtype=scores.dtype, device=rows.device)  # (C K, D)
        near = slope = rows
        for chunk in _chunks(rows, C * K):
            near = (rows[chunk] @ centers.T).view(-1, C, K)  # (r, C, K)
            _slope(near, ctx.gamma, scores[chunk], log_sum[chunk], gradient[chunk])  # in place
            slope = near.flatten(1)  # (r, C K)
            _product(slope, centers, grad_rows[chunk])
            _product(slope.T, rows[chunk], grad_centers, add=True)
        del near, slope  # room for what follows
        z_type, w_type = ctx.dtypes
        grad_z = _through_unit(grad_rows, rows, row_length).to(z_type)
        grad_w = _through_unit(grad_centers, centers, center_length).to(w_type)
        return grad_z, grad_w.view(ctx.shape), None


def _unit(x: Tensor, exact: torch.dtype, product: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of length 1 in the products' precision, and the lengths they had; zeros stay zeros."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=exact)
    return (x / length.clamp_min(torch.finfo(exact).tiny)).to(product), length


def _through_unit(gradient: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient before the scaling to length 1, from the one after it; none for a row of zeros."""
    smallest = torch.finfo(length.dtype).tiny
    shrink = torch.where(length > smallest, 1.0 / length.clamp_min(smallest), 0.0)
    step = 16384 if gradient.is_cuda else 1024
    for start in range(0, len(gradient), step):  # in place, some rows at a time
        part = slice(start, start + step)
        own, exact = gradient[part], unit[part].to(gradient.dtype)
        own.addcmul_((own * exact).sum(1, keepdim=True), exact, value=-1.0).mul_(shrink[part])
    return gradient


def _chunks(rows: Tensor, centers: int) -> list[slice]:
    most = GPU_ELEMENTS if rows.is_cuda else CPU_ELEMENTS
    height = max(1, most * 2 // (centers * rows.element_size()) if rows.is_cuda else most // centers)
    return [slice(start, start + height) for start in range(0, len(rows), height)]


def _product(a: Tensor, b: Tensor, out: Tensor, add: bool = False) -> None:
    """a @ b into out, or added to it, summed in out's precision."""
    if a.dtype == out.dtype:
        torch.addmm(out, a, b, beta=float(add), out=out)
    elif _SUMS_IN_FLOAT32:
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=float(add), out=out)  # type: ignore[call-overload]
    else:
        out.mul_(float(add)).add_(a @ b)


# torch learnt in 2.8 to multiply halves and keep their sum in float32
_SUMS_IN_FLOAT32 = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


def _reduce(near: Tensor, gamma: float, scores: Tensor, log_sum: Tensor) -> None:
    """Fill the soft maxima (r, C) and the logarithms of the softmax's sums."""
    kernels = _kernels(near)
    if kernels is not None:
        kernels.reduce(near, gamma, scores, log_sum)
        return
    near = near.to(scores.dtype)
    torch.logsumexp(near / gamma, dim=-1, out=log_sum)
    share = near.div(gamma).sub_(log_sum.unsqueeze(-1)).exp_()
    scores.copy_(torch.einsum("rck,rck->rc", share, near))


def _slope(near: Tensor, gamma: float, scores: Tensor, log_sum: Tensor, gradient: Tensor) -> None:
    """Turn similarities into the loss's derivative with respect to them, in place."""
    kernels = _kernels(near)
    if kernels is not None:
        kernels.slope(near, gamma, scores, log_sum, gradient)
        return
    exact = near.to(scores.dtype)
    share = exact.div(gamma).sub_(log_sum.unsqueeze(-1)).exp_().mul_(gradient.unsqueeze(-1))
    slope = exact.sub(scores.unsqueeze(-1)).div_(gamma).add_(1.0).mul_(share)
    near.copy_(slope)


def _kernels(near: Tensor) -> Any:
    """The fused kernels, where a GPU and Triton are there."""
    if not near.is_cuda or near.dtype == torch.float64:
        return None
    try:
        from . import kernels
    except ImportError:
        return None
    return kernels
