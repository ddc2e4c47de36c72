"""Inference: the logits and vectors of many texts, with little padding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.data.examples import Examples
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.tokenisers import Tokeniser
from closeknit.encoders.tokens import Tokens
from closeknit.errors import ModelError
from closeknit.metrics import scaled_to_unit_length

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
EncodeRows = Callable[
    [Rows], tuple[Tensor, Tensor]
]  # row numbers -> their logits and pooled vectors

# Tokens per batch: on a CPU what fits into the cache of a core, on a GPU what keeps all of it busy.
BUDGETS = {"cpu": 1024, "cuda": 32768}
CHUNK = 4096  # how many texts are tokenised at once
# How many batches' results stay on a GPU before they are copied: each copy waits for all queued
# work.
BATCHES_PER_COPY = 32


def outputs(
    encoder: Encoder,
    heads: nn.ModuleDict | None,
    tokens: Tokens,
    *,
    budget: int | None = None,
    half: bool = False,
    progress: Callable[[int], object] | None = None,
) -> tuple[Floats, Floats]:
    """(logits (R, C), pooled (R, H)) of tokenised texts, in their order.

    The longest texts come first, and batches are formed by their number of tokens: at most
    `budget`, by default what suits the device. On a CPU every thread that torch may use takes
    batches of its own. Without heads the logits have no columns. `half` computes in bfloat16 on a
    GPU. `progress` is called with the number of texts that were finished since its last call.
    """
    encoder.eval()
    if heads is not None:
        heads.eval()
    device = next(encoder.parameters()).device
    pooled = np.empty((len(tokens), encoder.dim), dtype=np.float32)
    classes = heads["logits"].classes if heads is not None else 0
    logits = np.empty((len(tokens), int(classes)), dtype=np.float32)  # type: ignore[arg-type]

    @torch.inference_mode()
    def encode_rows(rows: Rows) -> tuple[Tensor, Tensor]:
        inputs = {
            name: value.to(device, non_blocking=True) for name, value in tokens.pad(rows).items()
        }
        points = encoder(inputs).pooled  # (r, H)
        scores = points[:, :0] if heads is None else heads["logits"](points)  # (r, C)
        return scores.float(), points.float()

    threads = torch.get_num_threads() if device.type == "cpu" else 1
    if budget is None:
        budget = BUDGETS.get(device.type, BUDGETS["cuda"])
        if threads > 1:  # several batches for each thread
            budget = min(budget, max(256, len(tokens.ids) // (4 * threads)))
    batches = list(by_length(tokens.lengths, budget))
    if len(batches) >= threads > 1:
        results = _in_parallel(encode_rows, batches, threads)
    else:
        results = _one_by_one(encode_rows, batches, 1 if device.type == "cpu" else BATCHES_PER_COPY)
    half_on_gpu = half and device.type == "cuda"
    with torch.autocast("cuda", torch.bfloat16) if half_on_gpu else contextlib.nullcontext():
        for rows, scores, points in results:
            logits[rows] = scores.numpy()
            pooled[rows] = points.numpy()
            if progress is not None:
                progress(len(rows))
    return logits, pooled


def encode_texts(
    encoder: Encoder,
    tokeniser: Tokeniser,
    texts: Sequence[str],
    *,
    normalize: bool = False,
    budget: int | None = None,
    half: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Floats:
    """The pooled vectors (R, H) of texts; while some texts are encoded, the next are tokenised.

    `normalize` scales every vector to length 1; the other options are those of `outputs`.
    """
    vectors = np.empty((len(texts), encoder.dim), dtype=np.float32)
    starts = range(0, len(texts), CHUNK)
    with ThreadPoolExecutor(1) as background:

        def tokenise(start: int) -> Tokens:
            return tokeniser(Examples(list(texts[start : start + CHUNK])))

        next_tokens = background.submit(tokenise, 0) if texts else None
        for start in starts:
            assert next_tokens is not None
            tokens = next_tokens.result()
            if start + CHUNK < len(texts):
                next_tokens = background.submit(tokenise, start + CHUNK)
            _, pooled = outputs(encoder, None, tokens, budget=budget, half=half, progress=progress)
            vectors[start : start + CHUNK] = pooled
    return scaled_to_unit_length(vectors) if normalize else vectors


def by_length(lengths: npt.NDArray[np.int64], budget: int) -> Iterator[Rows]:
    """All rows, longest first, in batches of at most `budget` tokens with padding, or of one row.

    Once a batch holds a quarter of the budget, it ends where the rows become shorter by a
    sixteenth: a smaller batch costs less than much padding.
    """
    order = np.argsort(-lengths, kind="stable")
    negative_lengths = -lengths[order]  # ascending, for a binary search
    start = 0
    while start < len(order):
        longest = -int(negative_lengths[start])
        similar_until = int(np.searchsorted(negative_lengths, -longest * 15 / 16, side="right"))
        quarter_until = start + max(1, budget // 4 // longest)
        budget_until = start + max(1, budget // longest)
        stop = min(budget_until, max(similar_until, quarter_until))
        yield order[start:stop]
        start = stop


def _one_by_one(
    encode_rows: EncodeRows, batches: Iterable[Rows], batches_per_copy: int
) -> Iterator[tuple[Rows, Tensor, Tensor]]:
    """One batch after another; the results of `batches_per_copy` batches are copied together."""
    waiting: list[tuple[Rows, Tensor, Tensor]] = []
    for rows in batches:
        waiting.append((rows, *encode_rows(rows)))
        if len(waiting) == batches_per_copy:
            yield _on_cpu(waiting)
            waiting = []
    if waiting:
        yield _on_cpu(waiting)


def _on_cpu(results: list[tuple[Rows, Tensor, Tensor]]) -> tuple[Rows, Tensor, Tensor]:
    """The results of several batches as one, on the CPU."""
    rows, scores, points = zip(*results, strict=True)
    return np.concatenate(rows), torch.cat(scores).cpu(), torch.cat(points).cpu()


def _in_parallel(
    encode_rows: EncodeRows, batches: list[Rows], threads: int
) -> Iterator[tuple[Rows, Tensor, Tensor]]:
    """A batch per thread; whole forward passes do not wait for each other."""
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            results = pool.map(encode_rows, batches)
            for rows, (scores, points) in zip(batches, results, strict=True):
                yield rows, scores, points
    finally:
        # What a thread sets is also the default of later threads, so this sets it back.
        torch.set_num_threads(threads)


def softmax(logits: Floats) -> Floats:
    """Probabilities (R, C), each row summing to 1."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return probabilities


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def existing_device(asked: str | None) -> str:
    device = asked or best_device()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {device} was asked for, but there is no GPU here")
    return device
