"""SoftTriple: rows compared with several learnt centers per class, in bounded memory.

The similarities of R rows to C x K centers are computed in chunks of rows and never all kept.
Because the loss is a mean over rows, the gradients of a chunk are known as soon as its similarities
are. They are computed in the forward pass, so that nothing has to be computed twice. On a GPU the
matrix products run in the precision of the rows, and one fused kernel (`soft_triple_kernel`) does
everything between the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from closeknit.objectives.checks import not_negative, one_label_each, positive
from closeknit.objectives.geometry import at_least_float32, in_own_precision, inverse_length, unit
from closeknit.objectives.joint import MetricPart
from closeknit.objectives.view import view_of_tokens

# How many similarities are held at once: on a CPU two buffers of 3 MiB in float32, on a GPU one of
# 64 MiB.
CPU_ELEMENTS = 3 * 2**18
GPU_BYTES = 2**26
CENTERS_AT_ONCE = 256  # when the gradients of the centers are finished, in place

Gradients = tuple[Tensor, Tensor]


class SoftTriple(nn.Module):
    """Softmax over classes that each keep several learnt centers (Qian et al., ICCV 2019).

    Rows z_i and centers w_ck are compared on the unit sphere. The score of a class is a soft
    maximum over its K centers, and the true class has to win by a margin:

        s_ic = sum_k softmax_k(<z_i, w_ck> / gamma) * <z_i, w_ck>
        loss = mean_i -log softmax_c(scale * (s_ic - margin * [c = y_i]))[y_i]
             + tau * sum_c sum_{k<l} sqrt(2 + 1e-5 - 2 <w_ck, w_cl>) / (C K (K - 1))

    The last term draws the centers of a class together, so that spare centers merge. Without a
    margin, a row that is orthogonal to every center gives log C. A row with label -1 takes no part
    in the mean.
    """

    takes_gaps = True  # rows with label -1 take no part in the loss

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        centers: int = 10,
        gamma: float = 0.1,
        scale: float = 20.0,
        margin: float = 0.01,
        tau: float = 0.0,
    ) -> None:
        super().__init__()
        positive("centers", centers)
        self.gamma = positive("gamma", gamma)
        self.scale = positive("scale", scale)
        self.margin = not_negative("margin", margin)
        self.tau = not_negative("tau", tau)
        # Unit length at the start, so that a learning rate means the same in every dimension.
        self.proxies = nn.Parameter(unit(torch.randn(classes, centers, dim)))

    @in_own_precision
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        one_label_each(y, len(z))
        K = self.proxies.shape[1]
        if len(y) == 0:
            return at_least_float32(z).sum() * 0.0 + self.proxies.sum() * 0.0
        loss = center_loss(
            z, self.proxies, y.long(), gamma=self.gamma, scale=self.scale, margin=self.margin
        )  # ()
        if self.tau > 0 and K > 1:
            loss = loss + self.tau * _CenterSpread.apply(unit(self.proxies.to(loss)))
        return loss


class _CenterSpread(torch.autograd.Function):
    """sum_c sum_{k<l} sqrt(2 + 1e-5 - 2 <w_ck, w_cl>) / (C K (K - 1)) of unit centers w (C, K, D).

    The classes are worked through one at a time, each with its gradient, so that no more than the
    (K, K) distances of one class are kept.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        C, K, _ = w.shape
        pairs = C * K * (K - 1)
        total = w.new_zeros(())
        gradient = torch.empty_like(w)
        for centers, target in zip(w, gradient, strict=True):  # (K, D) each
            distance = (
                (centers @ centers.T).mul_(-2.0).add_(2.0 + 1e-5).sqrt_().fill_diagonal_(0.0)
            )  # (K, K)
            total += 0.5 * distance.sum() / pairs
            inverse = distance.reciprocal_().fill_diagonal_(0.0)
            torch.mm(inverse, centers, out=target).div_(-pairs)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        (gradient,) = ctx.saved_tensors
        scaled: Tensor = gradient * outer[0]
        return scaled


# ---------------------------------------------------------------- the loss without its last term


@dataclass(frozen=True)
class CenterOptions:
    """The constants in SoftTriple's formula."""

    gamma: float
    scale: float
    margin: float


def center_loss(
    z: Tensor, w: Tensor, y: Tensor, *, gamma: float, scale: float, margin: float
) -> Tensor:
    """SoftTriple without its last term: rows z (R, D), labels y (R,), centers w (C, K, D).

    This function scales rows and centers to length 1. With s_ik the cosine of row i and center k of
    class c,

        S_ic = sum_k softmax_k(s_ik / gamma) * s_ik
        loss = mean_i -log softmax_c(scale * (S_ic - margin * [c = y_i]))[y_i]

    On a GPU, rows in half precision are multiplied in half precision and summed in float32;
    everything else is computed in float32, or in float64 if the rows are in float64. With p the
    softmax over k, dS/ds_k = p_k (1 + (s_k - S) / gamma). Rows with label -1 take no part in the
    mean.
    """
    options = CenterOptions(gamma, scale, margin)
    loss: Tensor = _CenterLoss.apply(z, w, y, options, torch.is_grad_enabled())
    return loss


class _CenterLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, w: Tensor, y: Tensor, options: CenterOptions, grad_enabled: bool
    ) -> Tensor:
        needs_gradients = grad_enabled and any(ctx.needs_input_grad[:2])
        loss, ctx.gradients = _loss_and_gradients(z, w, y, options, needs_gradients)
        ctx.save_for_backward(z, w, y)
        ctx.options = options
        ctx.precisions = z.dtype, w.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        gradients: Gradients | None = ctx.gradients
        if gradients is None:  # an earlier backward pass over the same graph has used them up
            z, w, y = ctx.saved_tensors
            _, gradients = _loss_and_gradients(z, w, y, ctx.options, True)
            assert gradients is not None
        ctx.gradients = None
        grad_z, grad_w = (gradient.mul_(outer[0]) for gradient in gradients)
        z_type, w_type = ctx.precisions
        return grad_z.to(z_type), grad_w.to(w_type), None, None, None


def _loss_and_gradients(
    z: Tensor, w: Tensor, y: Tensor, options: CenterOptions, needs_gradients: bool
) -> tuple[Tensor, Gradients | None]:
    """The loss (), and if needed the gradients of rows and centers as they are kept until the
    backward pass.
    """
    kernel = _kernel_for(z)
    compute = _in_torch if kernel is None else kernel.loss_and_gradients
    limit = CPU_ELEMENTS if kernel is None else GPU_BYTES
    loss, gradients = compute(z, w.flatten(0, 1), y, len(w), options, needs_gradients, limit)
    if gradients is None:
        return loss, None
    grad_z, grad_w = gradients
    grad_w = grad_w.to(precision_until_backward(w)).view(w.shape)
    return loss, (grad_z.to(precision_until_backward(z)), grad_w)


def precision_until_backward(x: Tensor) -> torch.dtype:
    """In which precision the gradient of x is kept from the forward to the backward pass.

    Only the backward pass knows the loss scale, which brings small gradients into the range of
    float16. Before that they would become zero. bfloat16 has the range of float32.
    """
    return torch.float32 if x.dtype == torch.float16 else x.dtype


def _kernel_for(z: Tensor) -> Any:
    """The module of the fused kernel, if the rows are on a GPU and Triton is installed; else
    None.
    """
    if not z.is_cuda or z.dtype == torch.float64:
        return None
    try:
        from closeknit.objectives.losses import soft_triple_kernel
    except ImportError:
        return None
    return soft_triple_kernel


def _in_torch(
    z: Tensor,
    w: Tensor,
    y: Tensor,
    C: int,
    options: CenterOptions,
    needs_gradients: bool,
    max_elements: int,
) -> tuple[Tensor, Gradients | None]:
    """The loss and the gradients of rows z (R, D) and centers w (C K, D), computed by torch.

    The centers stay as they are: the similarities are divided by the lengths of the centers
    instead.
    """
    precision = torch.float64 if z.dtype == torch.float64 else torch.float32
    w = w.to(precision)
    center_scale = inverse_length(w).T  # (1, C K)
    row_scale = inverse_length(z)  # (R, 1)
    rows = z.to(precision) * row_scale  # (R, D)
    has_label = (y >= 0).to(precision)  # (R,)
    count = has_label.sum().clamp_min(1.0)
    y = y.clamp_min(0)

    height = min(len(z), max(1, max_elements // len(w)))
    similarities = torch.empty(height, len(w), dtype=precision, device=z.device)
    workspace = torch.empty(height, len(w), dtype=precision, device=z.device)
    total_loss = torch.zeros((), dtype=precision, device=z.device)
    grad_w = torch.zeros_like(w) if needs_gradients else w[:0]
    for start in range(0, len(z), height):
        chunk = slice(start, start + height)
        z_chunk = rows[chunk]  # (r, D)
        near = similarities[: len(z_chunk)]  # (r, C K)
        powers = workspace[: len(z_chunk)]  # (r, C K)
        torch.mm(z_chunk, w.T, out=near)
        near.mul_(center_scale)
        s = near.view(-1, C, len(w) // C)  # (r, C, K)
        row_weight = has_label[chunk]  # (r,)
        total_loss += _chunk_loss(
            s, powers.view_as(s), y[chunk], row_weight, count, options, needs_gradients
        )
        if needs_gradients:  # `near` now holds the gradient of the similarities
            near.mul_(center_scale)
            grad_w.addmm_(near.T, z_chunk)
            grad_rows = near @ w  # (r, D)
            grad_rows.addcmul_((grad_rows * z_chunk).sum(1, keepdim=True), z_chunk, value=-1.0)
            # These rows are not needed any more: their gradient takes their place.
            torch.mul(grad_rows, row_scale[chunk], out=z_chunk)
    if not needs_gradients:
        return total_loss / count, None
    _remove_radial_part(grad_w, w, center_scale)
    return total_loss / count, (rows, grad_w)


def _chunk_loss(
    s: Tensor,
    powers: Tensor,
    y: Tensor,
    row_weight: Tensor,
    count: Tensor,
    options: CenterOptions,
    needs_gradients: bool,
) -> Tensor:
    """The sum of the losses of a chunk of rows with similarities s (r, C, K); `powers` is a buffer.

    If gradients are needed, s is overwritten with the gradient of (loss / count) by s.
    """
    torch.div(s, options.gamma, out=powers)
    powers.sub_(powers.amax(-1, keepdim=True)).exp_()  # (r, C, K)
    sum_of_powers = powers.sum(-1)  # (r, C)
    score = torch.einsum("rck,rck->rc", powers, s) / sum_of_powers  # (r, C)
    is_true_class = F.one_hot(y, s.shape[1]).to(s.dtype)  # (r, C)
    logits = options.scale * (score - options.margin * is_true_class)  # (r, C)
    loss = F.cross_entropy(logits, y, reduction="none") @ row_weight  # ()
    if needs_gradients:
        per_row = options.scale * row_weight[:, None] / count  # (r, 1)
        grad_score = (torch.softmax(logits, -1) - is_true_class) * per_row  # (r, C)
        factor = (grad_score / sum_of_powers).unsqueeze(-1)  # (r, C, 1)
        s.sub_(score.unsqueeze(-1)).div_(options.gamma).add_(1.0).mul_(powers).mul_(factor)
    return loss


def _remove_radial_part(grad_w: Tensor, w: Tensor, center_scale: Tensor) -> None:
    """Removes, in place, the part of each center's gradient that points along the center itself."""
    for start in range(0, len(w), CENTERS_AT_ONCE):
        chunk = slice(start, start + CENTERS_AT_ONCE)
        direction = w[chunk] * center_scale[0, chunk, None]  # (c, D)
        gradient = grad_w[chunk]  # (c, D)
        gradient.addcmul_((gradient * direction).sum(1, keepdim=True), direction, value=-1.0)


# ---------------------------------------------------------------- builders for the table OBJECTIVES


def build_soft_triple(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    centers: int = 10,
    gamma: float = 0.1,
    scale: float = 20.0,
    margin: float = 0.01,
    tau: float = 0.0,
    tokens: str = "pooled",
) -> MetricPart:
    """Cross-entropy on the logits plus SoftTriple on the pooled vector.

    centers: learnt centers of each class; 1 to 100
    gamma: softness of the maximum over centers; 0.01 to 0.1
    scale: steepness of the softmax over classes; 1 to 30
    margin: by how much the true class must win; 0.01 to 1
    tau: pull that merges spare centers; 0 to 0.2
    tokens: pooled (one vector per text), real (every token, no padding), content (no padding and no
        special tokens) or all (also padding)
    """
    soft_triple = SoftTriple(
        dim, classes, centers=centers, gamma=gamma, scale=scale, margin=margin, tau=tau
    )
    return MetricPart(soft_triple, view_of_tokens(tokens))


def build_triple_entropy(
    dim: int,
    classes: int,
    labels: Sequence[str] | None,
    *,
    centers: int = 10,
    gamma: float = 0.1,
    scale: float = 3.3,
    margin: float = 0.3,
    tau: float = 0.0,
    tokens: str = "real",
) -> MetricPart:
    """Cross-entropy on the logits plus SoftTriple on every token of the text (TripleEntropy).

    centers: learnt centers of each class; 10 to 2000 (the paper's best is 2000, at more cost)
    gamma: softness of the maximum over centers; 0.01 to 0.1
    scale: steepness of the softmax over classes (the paper's lambda); 1 to 10
    margin: by how much the true class must win (the paper's delta); 0.01 to 1
    tau: pull that merges spare centers; 0 to 0.2
    tokens: real (no padding), content (no padding and no special tokens), all (also padding, as
        published) or pooled (one vector per text in their place)
    """
    soft_triple = SoftTriple(
        dim, classes, centers=centers, gamma=gamma, scale=scale, margin=margin, tau=tau
    )
    return MetricPart(soft_triple, view_of_tokens(tokens))
