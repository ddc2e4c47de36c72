"""Multiple negatives ranking as the objective of a task with pairs of two classes.

The pairs of the positive class are learnt: the second text of each pair is to be nearer to its
first text than the second texts of the other pairs of the batch. All rows, also those of the other
class, serve to choose the threshold above which two texts belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from closeknit.data.examples import Examples
from closeknit.data.sentences import sentences_from
from closeknit.encoders.inference import Floats
from closeknit.errors import ConfigError, DataError, did_you_mean
from closeknit.objectives.losses.text_views import MultipleNegatives

MULTIPLE_NEGATIVES = "multiple_negatives"

# The label that means "these texts belong together", where the settings name none.
USUAL_POSITIVES = ("yes", "1", "true", "duplicate", "paraphrase", "equivalent", "entailment")

# The factor on the similarity where the settings give none. The vectors of a dot product have
# lengths of their own.
DEFAULT_SCALES = {"cosine": 20.0, "dot": 1.0}

# Candidates for a threshold lie between similarities that differ by more than this.
_SMALLEST_GAP = 1e-6


def ranking_loss(options: Mapping[str, Any]) -> MultipleNegatives:
    """The loss with these options; unknown options and wrong values are refused."""
    for name in options:
        if name not in ("similarity", "scale"):
            near = did_you_mean(name, ("similarity", "scale"))
            raise ConfigError(f"{MULTIPLE_NEGATIVES} has no option options.{name}{near}")
    similarity = options.get("similarity", "cosine")
    if similarity not in DEFAULT_SCALES:
        raise ConfigError(
            f'options.similarity is {similarity}; it must be "cosine" or "dot"'
            f"{did_you_mean(str(similarity), tuple(DEFAULT_SCALES))}"
        )
    scale = options.get("scale", DEFAULT_SCALES[similarity])
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not np.isfinite(scale) or scale <= 0:
        raise ConfigError(f"options.scale is {scale}; it must be a number above 0")
    return MultipleNegatives(scale=float(scale), similarity=str(similarity))


def positive_class(labels: Sequence[str], named: str) -> int:
    """The number of the class of pairs that belong together; `named` is the label, if it is set."""
    if len(labels) != 2:
        raise DataError(
            f"{MULTIPLE_NEGATIVES} needs two classes, pairs that belong together and pairs that do "
            f"not; there are {len(labels)}: {', '.join(labels[:5])}"
        )
    if named:
        if named not in labels:
            raise DataError(f"positive is {named}, which no row has{did_you_mean(named, labels)}")
        return list(labels).index(named)
    usual = [number for number, label in enumerate(labels) if label.lower() in USUAL_POSITIVES]
    if len(usual) != 1:
        raise DataError(
            f"the labels are {' and '.join(labels)}; name the one of pairs that belong together "
            "with --set data.positive=LABEL"
        )
    return usual[0]


def groups_of_positives(examples: Examples) -> npt.NDArray[np.int64]:
    """The group of each pair: pairs of one group are never negatives of each other.

    Pairs that share a text are one group, directly or through other pairs. These are the true
    duplicates of a batch.
    """
    assert examples.pairs is not None
    rows = list(zip(examples.texts, examples.pairs, strict=True))
    groups = sentences_from(rows, name=examples.name).groups if rows else np.zeros(0, np.int64)
    if len(np.unique(groups)) < 2:
        raise DataError(
            f"{examples.name} has {len(rows)} training pairs that belong together, and no two of "
            f"them without a common text; {MULTIPLE_NEGATIVES} then has no negatives"
        )
    return groups


def targets_of_pairs(
    groups: npt.NDArray[np.int64], device: torch.device
) -> Callable[[Tensor], Tensor]:
    """A function from R pairs to the view and the group (2 R, 2) of each of their texts."""
    on_device = torch.from_numpy(groups).to(device)

    def targets(share: Tensor) -> Tensor:
        view = torch.arange(2, device=share.device).repeat_interleave(len(share))
        return torch.stack([view, on_device[share].repeat(2)], dim=1)

    return targets


def best_threshold(
    similarity: Floats, is_positive: npt.NDArray[np.bool_], measure: str = "accuracy"
) -> float:
    """The threshold with the best accuracy, weighted F1, macro F1 or Matthews correlation.

    The AUC does not depend on a threshold; for it the accuracy decides. A pair is positive if its
    similarity is above the threshold. Among equally good thresholds the middle one is taken.
    """
    order = np.argsort(similarity, kind="stable")
    values = similarity[order].astype(np.float64)
    positives_below = np.concatenate([[0], np.cumsum(is_positive[order])])  # of the first k pairs
    gap_before = np.diff(values)
    allowed = np.concatenate([[True], gap_before > _SMALLEST_GAP, [True]])
    split = np.flatnonzero(allowed)  # so many pairs are below the threshold
    scores = _scores_of_splits(split, positives_below, measure)
    best = split[scores >= scores.max() - 1e-12]
    k = int(best[len(best) // 2])
    if k == 0:
        return float(values[0] - 1.0)
    if k == len(values):
        return float(values[-1] + 1.0)
    return float((values[k - 1] + values[k]) / 2)


def _scores_of_splits(
    split: npt.NDArray[np.int64], positives_below: npt.NDArray[np.int64], measure: str
) -> npt.NDArray[np.float64]:
    """The measure if the first k pairs are called negative and the others positive, for each k."""
    rows = len(positives_below) - 1
    positives = int(positives_below[-1])
    missed = positives_below[split]
    found = positives - missed
    right_negatives = split - missed
    wrong = rows - found - right_negatives
    if measure in ("accuracy", "auc"):
        return np.asarray((found + right_negatives) / rows, dtype=np.float64)
    if measure == "mcc":
        return _matthews(found, right_negatives, split, positives, rows)
    f1_positive = 2 * found / np.maximum(2 * found + wrong, 1)
    f1_negative = 2 * right_negatives / np.maximum(2 * right_negatives + wrong, 1)
    if measure == "macro_f1":
        return np.asarray((f1_positive + f1_negative) / 2, dtype=np.float64)
    weighted = positives * f1_positive + (rows - positives) * f1_negative
    return np.asarray(weighted / rows, dtype=np.float64)


def _matthews(
    found: npt.NDArray[np.int64],
    right_negatives: npt.NDArray[np.int64],
    called_negative: npt.NDArray[np.int64],
    positives: int,
    rows: int,
) -> npt.NDArray[np.float64]:
    """The Matthews correlation coefficient; 0 where one class is never called or never right."""
    negatives = rows - positives
    called_positive = rows - called_negative
    wrongly_positive = negatives - right_negatives
    wrongly_negative = positives - found
    top = found * right_negatives - wrongly_positive * wrongly_negative
    square = positives * negatives * called_positive.astype(np.float64) * called_negative
    return np.where(square > 0, top / np.sqrt(np.maximum(square, 1.0)), 0.0)
