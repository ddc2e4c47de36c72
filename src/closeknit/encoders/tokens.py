"""The token ids of many texts, and padded batches of any of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The token ids of many texts in one flat array, with what is needed to pad them."""

    ids: npt.NDArray[np.int64]  # (all tokens,)
    special: npt.NDArray[np.bool_]  # (all tokens,) true for classification tokens, separators, ...
    types: npt.NDArray[np.int64] | None  # (all tokens,) which of the two texts of a pair
    offsets: npt.NDArray[np.int64]  # (rows + 1,) where each row starts
    pad_id: int
    pad_type: int = 0
    pad_left: bool = False
    truncated: npt.NDArray[np.bool_] | None = None  # (rows,) whose text was longer; None: not known

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each row."""
        return np.diff(self.offsets)

    def truncated_share(self, rows: int | None = None) -> float:
        """The share of the texts that were longer than the maximum, of all or the first `rows`."""
        if self.truncated is None or len(self) == 0:
            return 0.0
        return float(self.truncated[:rows].mean())

    def select(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Tokens:
        """The tokens of these rows only."""
        spans = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]

        def take(flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([flat[span] for span in spans]) if spans else flat[:0]

        numbers = np.asarray(rows, dtype=np.int64)
        lengths = self.lengths[numbers]
        return Tokens(
            ids=take(self.ids),
            special=take(self.special),
            types=None if self.types is None else take(self.types),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            pad_id=self.pad_id,
            pad_type=self.pad_type,
            pad_left=self.pad_left,
            truncated=None if self.truncated is None else self.truncated[numbers],
        )

    def pad(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """The inputs of the encoder for these rows, padded to the longest of them."""
        rows = np.asarray(rows, dtype=np.int64)
        return Shelf(self).lay(torch.from_numpy(rows), int(self.lengths[rows].max()))


def truncation_note(share: float, max_length: int) -> str:
    """The line that says which share of the training texts is cut, and which setting decides."""
    percent = f"{100 * share:.0f} %" if share >= 0.005 else "less than 1 %"
    return (
        f"{percent} of the training texts are longer than {max_length} tokens and are cut there; "
        "encoder.max_length sets the limit"
    )


class Shelf:
    """Tokens on a device; making padded batches of them reads nothing back to the CPU."""

    def __init__(self, tokens: Tokens, device: torch.device | None = None) -> None:
        self.tokens = tokens

        def on_device(flat: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(flat).to(device)

        self.ids = on_device(tokens.ids)
        self.special = on_device(tokens.special)
        self.offsets = on_device(tokens.offsets)
        self.types = None if tokens.types is None else on_device(tokens.types)

    def lay(self, rows: Tensor, width: int) -> dict[str, Tensor]:
        """The inputs of the encoder for these rows (R,), padded to T = `width` tokens."""
        start = self.offsets[rows][:, None]  # (R, 1)
        lengths = self.offsets[rows + 1][:, None] - start  # (R, 1)
        position = torch.arange(width, device=rows.device)  # (T,)
        if self.tokens.pad_left:
            padding = width - lengths  # (R, 1)
            is_token = position >= padding  # (R, T)
            source = start + position - padding  # (R, T)
        else:
            is_token = position < lengths
            source = start + position
        source = torch.where(is_token, source, 0)
        inputs = {
            "input_ids": torch.where(is_token, self.ids[source], self.tokens.pad_id),
            "attention_mask": is_token.long(),
            "special": self.special[source] | ~is_token,
        }
        if self.types is not None:
            inputs["token_type_ids"] = torch.where(
                is_token, self.types[source], self.tokens.pad_type
            )
        return inputs


def stacked(parts: Sequence[Tokens]) -> Tokens:
    """The rows of several Tokens, one after the other."""
    first = parts[0]
    types: npt.NDArray[np.int64] | None = None
    if first.types is not None:
        types = np.concatenate([part.types for part in parts if part.types is not None])
    truncated: npt.NDArray[np.bool_] | None = None
    if first.truncated is not None:
        truncated = np.concatenate([part.truncated for part in parts if part.truncated is not None])
    lengths = np.concatenate([part.lengths for part in parts])
    return Tokens(
        ids=np.concatenate([part.ids for part in parts]),
        special=np.concatenate([part.special for part in parts]),
        types=types,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        pad_id=first.pad_id,
        pad_type=first.pad_type,
        pad_left=first.pad_left,
        truncated=truncated,
    )
