"""SoftTriple's loss over many centers, in bounded memory: value and gradients in one pass over the rows.

The similarities of R rows to C x K centers are worked through in chunks of rows and never all kept. As the
loss is a mean over rows, a chunk's gradients are known as soon as its similarities are: they are taken then,
and nothing has to be computed a second time. On a GPU the products run in the rows' own precision, and what
lies between them is one fused kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from closeknit.geometry import inverse_length

# Similarities held at once: two buffers of 3 MiB in float32 on a CPU, one of 64 MiB on a GPU.
CPU_ELEMENTS, GPU_BYTES = 3 * 2**18, 2**26

Gradients = tuple[Tensor, Tensor]


def center_loss(z: Tensor, w: Tensor, y: Tensor, *, gamma: float, scale: float, margin: float) -> Tensor:
    """The mean over rows z (R, D) with labels y (R,) of SoftTriple's loss for centers w (C, K, D).

    Both are scaled to length 1 here. With s_ik the cosine of row i and center k of class c,

        S_ic = sum_k softmax_k(s_ik / gamma) * s_ik
        loss = mean_i -log softmax_c(scale * (S_ic - margin * [c = y_i]))[y_i]

    Rows in half precision on a GPU are multiplied in it, with sums in float32; all else is done in float32, or
    float64 where the rows are. With p the softmax over k, dS/ds_k = p_k (1 + (s_k - S) / gamma). Rows with label -1
    have no part in the mean.
    """
    loss: Tensor = _CenterLoss.apply(z, w, y, (gamma, scale, margin), torch.is_grad_enabled())
    return loss


class _CenterLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, y: Tensor, options: tuple[float, ...], train: bool) -> Tensor:
        train = train and any(ctx.needs_input_grad[:2])
        loss, ctx.gradients = _pass(z, w, y, *options, train=train)
        ctx.save_for_backward(z, w, y)
        ctx.options = options
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        gradients: Gradients | None = ctx.gradients
        if gradients is None:  # given away by an earlier backward pass over the same graph
            gradients = _pass(*ctx.saved_tensors, *ctx.options, train=True)[1]
            assert gradients is not None
        ctx.gradients = None
        grad_z, grad_w = gradients
        return grad_z.mul_(outer[0]), grad_w.mul_(outer[0]), None, None, None


def _pass(
    z: Tensor, w: Tensor, y: Tensor, gamma: float, scale: float, margin: float, *, train: bool
) -> tuple[Tensor, Gradients | None]:
    """The loss, and the gradients of rows and centers in their own types where they are wanted."""
    kernels = _kernels(z)
    how, most = (_plain, CPU_ELEMENTS) if kernels is None else (kernels.center_loss, GPU_BYTES)
    loss, gradients = how(z, w.flatten(0, 1), y, len(w), gamma, scale, margin, train, most)
    if gradients is None:
        return loss, None
    return loss, (gradients[0].to(z.dtype), gradients[1].to(w.dtype).view(w.shape))


def _kernels(z: Tensor) -> Any:
    """The fused kernels, where a GPU and Triton are there."""
    if not z.is_cuda or z.dtype == torch.float64:
        return None
    try:
        from closeknit.kernels import centers
    except ImportError:
        return None
    return centers


# ---------------------------------------------------------------- in plain torch


def _plain(
    z: Tensor, w: Tensor, y: Tensor, C: int, gamma: float, scale: float, margin: float, train: bool, most: int
) -> tuple[Tensor, Gradients | None]:
    """Centers (C K, D) stay as they are: similarities are divided by their lengths instead."""
    exact = torch.float64 if z.dtype == torch.float64 else torch.float32
    w, R = w.to(exact), len(z)
    K = len(w) // C
    rows, row_shrink = z.to(exact), inverse_length(z)  # (R, D), (R, 1)
    rows = rows * row_shrink
    shrink = inverse_length(w).T  # (1, C K)
    height = min(R, max(1, most // len(w)))
    near_all, share_all = (torch.empty(height, len(w), dtype=exact, device=z.device) for _ in range(2))
    total_loss = torch.zeros((), dtype=exact, device=z.device)
    counts = (y >= 0).to(exact)  # (R,)
    amount = counts.sum().clamp_min(1.0)
    y = y.clamp_min(0)
    grad_w = torch.zeros_like(w) if train else w
    for start in range(0, R, height):
        chunk = slice(start, start + height)
        own, label = rows[chunk], y[chunk]
        near, share = near_all[: len(own)], share_all[: len(own)]  # (r, C K)
        torch.mm(own, w.T, out=near)
        near.mul_(shrink)
        s, p = near.view(-1, C, K), share.view(-1, C, K)
        torch.div(s, gamma, out=p)
        p.sub_(p.amax(-1, keepdim=True)).exp_()
        weight = p.sum(-1)  # (r, C)
        score = torch.einsum("rck,rck->rc", p, s) / weight  # (r, C)
        truth = F.one_hot(label, C).to(exact)  # (r, C)
        logits = scale * (score - margin * truth)  # (r, C)
        total_loss += F.cross_entropy(logits, label, reduction="none") @ counts[chunk]
        if not train:
            continue
        outer = (
            (torch.softmax(logits, -1) - truth) * (scale * counts[chunk, None] / amount) / weight
        )  # (r, C)
        s.sub_(score.unsqueeze(-1)).div_(gamma).add_(1.0).mul_(p).mul_(outer.unsqueeze(-1))
        near.mul_(shrink)
        grad_w.addmm_(near.T, own)
        slope = near @ w  # (r, D)
        slope.addcmul_((slope * own).sum(1, keepdim=True), own, value=-1.0)
        torch.mul(
            slope, row_shrink[chunk], out=own
        )  # these rows are done with: their gradient takes their place
    if not train:
        return total_loss / amount, None
    for start in range(0, len(w), 256):  # in place, some centers at a time
        chunk = slice(start, start + 256)
        own = w[chunk] * shrink[0, chunk, None]
        grad_w[chunk].addcmul_((grad_w[chunk] * own).sum(1, keepdim=True), own, value=-1.0)
    return total_loss / amount, (rows, grad_w)
