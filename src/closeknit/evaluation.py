"""What a trained encoder says of texts: embed once, without padding waste."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from closeknit.data.examples import Examples
from closeknit.encoder import Encoder
from closeknit.tokens import Tokeniser, Tokens

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Work = Callable[[Rows], tuple[Tensor, Tensor]]

BUDGETS = {"cpu": 1024, "cuda": 32768}  # tokens at once: what stays in a core's cache, what fills a GPU
CHUNK = 4096  # texts that are tokenised at once
HELD = (
    32  # batches whose results a GPU keeps before they are fetched: each fetch waits for all that is queued
)


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

    Texts are taken longest first and batched by tokens: `budget` is the most of them at once, by default what
    the device likes. On a CPU every thread that torch may use takes batches of its own. Without heads the
    logits have no columns. `half` computes in bfloat16 on a GPU. `progress` is told how many more texts are done.
    """
    encoder.eval()
    if heads is not None:
        heads.eval()
    device = next(encoder.parameters()).device
    pooled = np.empty((len(tokens), encoder.dim), dtype=np.float32)
    classes = heads["logits"].classes if heads is not None else 0
    logits = np.empty((len(tokens), int(classes)), dtype=np.float32)  # type: ignore[arg-type]

    @torch.inference_mode()
    def work(rows: Rows) -> tuple[Tensor, Tensor]:
        inputs = {name: value.to(device, non_blocking=True) for name, value in tokens.pad(rows).items()}
        points = encoder(inputs).pooled  # (R, H)
        scores = points[:, :0] if heads is None else heads["logits"](points)  # (R, C)
        return scores.float(), points.float()

    threads = torch.get_num_threads() if device.type == "cpu" else 1
    if budget is None:
        budget = BUDGETS.get(device.type, BUDGETS["cuda"])
        if threads > 1:  # some batches for every thread
            budget = min(budget, max(256, len(tokens.ids) // (4 * threads)))
    batches = list(by_length(tokens.lengths, budget))
    if len(batches) >= threads > 1:
        done = _side_by_side(work, batches, threads)
    else:
        done = _in_turn(work, batches, 1 if device.type == "cpu" else HELD)
    halved = half and device.type == "cuda"
    with torch.autocast("cuda", torch.bfloat16) if halved else contextlib.nullcontext():
        for rows, scores, points in done:
            logits[rows], pooled[rows] = scores.numpy(), points.numpy()
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
    """The pooled vectors (R, H) of texts; while some are encoded, the next are tokenised.

    `normalize` scales every vector to length 1; the other options are those of `outputs`.
    """
    vectors = np.empty((len(texts), encoder.dim), dtype=np.float32)
    starts = range(0, len(texts), CHUNK)
    with ThreadPoolExecutor(1) as ahead:

        def tokenised(start: int) -> Tokens:
            return tokeniser(Examples(list(texts[start : start + CHUNK])))

        coming = ahead.submit(tokenised, 0) if texts else None
        for start in starts:
            assert coming is not None
            tokens = coming.result()
            if start + CHUNK < len(texts):
                coming = ahead.submit(tokenised, start + CHUNK)
            found = outputs(encoder, None, tokens, budget=budget, half=half, progress=progress)[1]
            vectors[start : start + CHUNK] = found
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def by_length(lengths: npt.NDArray[np.int64], budget: int) -> Iterator[Rows]:
    """All rows, longest first, in batches of at most `budget` tokens, padding counted, or of one row.

    From a quarter of the budget on a batch ends where the rows become shorter by a sixteenth: a smaller batch
    costs less than much padding.
    """
    order = np.argsort(-lengths, kind="stable")
    falling = -lengths[order]
    start = 0
    while start < len(order):
        longest = -int(falling[start])
        alike = int(np.searchsorted(falling, -longest * 15 / 16, side="right"))
        enough, most = (start + max(1, tokens // longest) for tokens in (budget // 4, budget))
        stop = min(most, max(alike, enough))
        yield order[start:stop]
        start = stop


def _in_turn(work: Work, batches: Iterable[Rows], held: int) -> Iterator[tuple[Rows, Tensor, Tensor]]:
    """One batch after another; the results of so many are fetched together."""
    waiting: list[tuple[Rows, Tensor, Tensor]] = []
    for rows in batches:
        waiting.append((rows, *work(rows)))
        if len(waiting) == held:
            yield _fetched(waiting)
            waiting = []
    if waiting:
        yield _fetched(waiting)


def _fetched(done: list[tuple[Rows, Tensor, Tensor]]) -> tuple[Rows, Tensor, Tensor]:
    rows, scores, points = zip(*done, strict=True)
    return np.concatenate(rows), torch.cat(scores).cpu(), torch.cat(points).cpu()


def _side_by_side(work: Work, batches: list[Rows], threads: int) -> Iterator[tuple[Rows, Tensor, Tensor]]:
    """A batch for each thread: whole passes need not wait for each other, as the parts of an operation do."""
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for rows, (scores, points) in zip(batches, pool.map(work, batches), strict=True):
                yield rows, scores, points
    finally:
        torch.set_num_threads(threads)  # a thread's choice is also the default of threads that come later


def softmax(logits: Floats) -> Floats:
    """Probabilities (R, C), each row summing to 1."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: Floats = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares
