"""Anisotropy of every layer of an encoder: do its vectors lie in a narrow cone?

For words in context, one token is drawn from each text, and the mean cosine of these tokens is
computed (Ethayarajh 2019). Whole texts are represented by the mean of their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from closeknit.charts.png import layer_curves
from closeknit.data.examples import Examples
from closeknit.embeddings.model import SentenceModel
from closeknit.encoders.inference import BUDGETS, by_length
from closeknit.errors import ConfigError, DataError
from closeknit.metrics import anisotropy

MOST_TEXTS = 2000
PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class LayerAnisotropy:
    """The anisotropy of one layer; layer 0 is the sum of the embeddings, before the first layer."""

    layer: int
    words: float  # mean cosine of tokens of different texts
    texts: float  # mean cosine of the mean vectors of different texts
    n: int  # texts


def layer_anisotropy(
    model: SentenceModel, texts: Sequence[str], *, most: int = MOST_TEXTS, seed: int = 0
) -> list[LayerAnisotropy]:
    """The anisotropy of every layer, for words in context and for whole texts.

    Equal texts count once. If there are more than `most`, that many are drawn. One token is drawn
    from each text, without special tokens; a word that is split into several tokens is represented
    by one of them. Texts without any token are left out. Both draws depend on the seed alone.
    """
    generator = np.random.default_rng(seed)
    chosen = list(dict.fromkeys(texts))
    if len(chosen) > most:
        drawn = generator.choice(len(chosen), most, replace=False)
        chosen = [chosen[i] for i in np.sort(drawn)]
    words, whole = _vectors_of_layers(model, chosen, generator)
    if words.shape[1] < 2:
        raise DataError(
            f"{words.shape[1]} different texts with tokens were given; the anisotropy of layers needs "
            "at least two"
        )
    return [
        LayerAnisotropy(layer, anisotropy(words[layer]), anisotropy(whole[layer]), words.shape[1])
        for layer in range(len(words))
    ]


@torch.inference_mode()
def _vectors_of_layers(
    model: SentenceModel, texts: Sequence[str], generator: np.random.Generator
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """For every layer, one token of each text, and the mean of each text's tokens; (L, n, H)
    each.
    """
    encoder = model.encoder.eval()
    device = next(encoder.parameters()).device
    tokens = model.tokeniser(Examples(list(texts)))
    draws = generator.random(len(texts))  # decides about the token of each text
    words: dict[int, npt.NDArray[np.float32]] = {}
    whole: dict[int, npt.NDArray[np.float32]] = {}
    for rows in by_length(tokens.lengths, BUDGETS.get(device.type, BUDGETS["cuda"])):
        inputs = {name: value.to(device) for name, value in tokens.pad(rows).items()}
        mask = inputs["attention_mask"].bool()  # (r, T)
        content = mask & ~inputs.pop("special")  # (r, T)
        trunk: Any = encoder.trunk
        layers = torch.stack(
            trunk(**inputs, output_hidden_states=True).hidden_states
        )  # (L, r, T, H)
        weights = mask[None, :, :, None].to(layers.dtype)
        means = ((layers * weights).sum(2) / weights.sum(2)).float().cpu().numpy()  # (L, r, H)
        for i, row in enumerate(rows.tolist()):
            places = content[i].nonzero()[:, 0].tolist()
            if places:
                place = places[int(draws[row] * len(places))]
                words[row] = layers[:, i, place].float().cpu().numpy()  # (L, H)
                whole[row] = means[:, i]
    order = sorted(words)
    if not order:
        return np.empty((0, 0, 0), np.float32), np.empty((0, 0, 0), np.float32)
    return (
        np.stack([words[row] for row in order], axis=1),
        np.stack([whole[row] for row in order], axis=1),
    )


# ---------------------------------------------------------------- several models


def check_picture(path: Path) -> None:
    """Refuse a picture that is neither a PNG nor an SVG file."""
    if path.suffix not in PICTURES:
        raise ConfigError(
            f"{path}: the picture is a PNG or SVG file; its name must end in .png or .svg"
        )


def draw_layers(path: str | Path, models: Mapping[str, Sequence[LayerAnisotropy]]) -> None:
    """Draw the anisotropy of each layer of several models, as a PNG or an SVG file."""
    path = Path(path)
    check_picture(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    curves = {
        name: ([row.words for row in rows], [row.texts for row in rows])
        for name, rows in models.items()
    }
    layer_curves(path, curves)


def layer_records(rows: Sequence[LayerAnisotropy]) -> list[dict[str, Any]]:
    """The anisotropy of a model's layers as rows like those of the other scores."""
    return [
        {"data": f"layer {row.layer}", "measure": measure, "value": value, "n": row.n}
        for row in rows
        for measure, value in (("word_anisotropy", row.words), ("text_anisotropy", row.texts))
    ]


def layers_table(models: Mapping[str, Sequence[LayerAnisotropy]]) -> str:
    """A Markdown table with a row per layer and two columns per model."""
    names = [name.replace("|", "\\|") for name in models]
    head = ["layer", *(f"{name}: {kind}" for name in names for kind in ("words", "texts"))]
    lines = ["| " + " | ".join(head) + " |", "| ---: |" + " ---: |" * (len(head) - 1)]
    for layer in range(max(map(len, models.values()))):
        cells = [str(layer)]
        for rows in models.values():
            known = layer < len(rows)
            cells += (
                [f"{rows[layer].words:.3f}", f"{rows[layer].texts:.3f}"] if known else ["–", "–"]
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
