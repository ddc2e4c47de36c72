"""The views of a batch: what objectives read of the encoder's output and of the heads."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from closeknit.encoders.encoder import Encoded
from closeknit.objectives.view import View


def read_views(
    inputs: dict[str, Tensor],
    encoded: Encoded,
    y: Tensor,
    heads: nn.ModuleDict,
    wanted: Iterable[str],
    *,
    gaps: bool = False,
    part: bool = False,
) -> dict[str, View]:
    """The views of a batch that its objective asks for, in the precision of the encoder.

    What several views need is computed once. With `gaps`, a view of tokens has one row for every
    position of the batch, and label -1 where no token is chosen: then its shape does not depend on
    the texts. In a `part` of a batch, a chunk or the share of a process, all padding counts as the
    batch's, because the part is as wide as the batch.
    """
    wanted = list(wanted)
    whole_texts: dict[str, Tensor] = {}  # rows with the label of the text
    if "logits" in wanted or "head_weights" in wanted:
        whole_texts["logits"] = heads["logits"](encoded.pooled)  # (R, C)
    if "weights" in wanted or "weighting_logits" in wanted:
        whole_texts["weighting_logits"] = heads["weighting"](inputs)  # (R, C)
    views: dict[str, View] = {}
    for name in wanted:
        if name in whole_texts:
            views[name] = View(whole_texts[name], y)
        elif name == "projected":
            views[name] = View(heads[name](encoded.pooled), y)
        elif name == "pooled":
            views[name] = View(encoded.pooled, y)
        elif name == "weights":
            views[name] = View(torch.softmax(whole_texts["weighting_logits"], dim=-1), y)
        elif name == "head_weights":
            views[name] = View(torch.softmax(whole_texts["logits"].detach(), dim=-1), y)
        elif name == "masked_tokens":
            is_masked = y >= 0  # (R, T)
            views[name] = View(heads[name](encoded.hidden[is_masked]), y[is_masked])
        elif name.endswith("tokens"):
            is_chosen = _chosen_tokens(encoded.mask, encoded.special, name, part)
            views[name] = _token_view(encoded, y, is_chosen, gaps)
    return {name: views[name] for name in wanted}


def _token_view(encoded: Encoded, y: Tensor, is_chosen: Tensor, gaps: bool) -> View:
    """The chosen tokens (R, T), each with the label of its text."""
    if gaps:
        labels = torch.where(is_chosen, y[:, None], -1)  # (R, T)
        return View(_in_product_precision(encoded.hidden).flatten(0, 1), labels.flatten())
    text_of_token = is_chosen.nonzero()[:, 0]  # (n,)
    return View(_in_product_precision(encoded.hidden[is_chosen]), y[text_of_token])


def _in_product_precision(z: Tensor) -> Tensor:
    """Tokens in the precision of matrix products: half precision under autocast on a GPU."""
    if z.is_cuda and torch.is_autocast_enabled("cuda"):
        return z.to(torch.get_autocast_dtype("cuda"))
    return z


def _chosen_tokens(mask: Tensor, special: Tensor, view: str, part: bool) -> Tensor:
    """A mask (R, T) of the tokens that a view takes."""
    if view == "tokens":
        return mask
    if view == "content_tokens":
        return mask & ~special
    if part:
        return torch.ones_like(mask)
    # All positions up to the longest text of this batch, even if the tensors are wider.
    return mask.any(0).expand_as(mask)


def tokens_in_view(inputs: dict[str, Tensor], y: Tensor, view: str, *, part: bool) -> Tensor | None:
    """The number of tokens () that a view reads of a batch; None for a view of whole texts.

    `part` says that the batch is one process's share of a whole.
    """
    if view == "masked_tokens":
        return (y >= 0).sum()
    if not view.endswith("tokens"):
        return None
    mask = inputs["attention_mask"].bool()  # (R, T)
    return _chosen_tokens(mask, inputs["special"], view, part).sum()
