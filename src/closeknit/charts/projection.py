"""Vectors as points on a plane."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from closeknit.metrics import scaled_to_unit_length


def flat_map(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """A point on a plane (n, 2) for each vector (n, d), by t-SNE of their directions.

    Vectors with similar directions lie near each other. The seed is fixed, so equal vectors give
    equal maps.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    rows = np.nan_to_num(np.asarray(vectors, dtype=np.float32))
    unit = scaled_to_unit_length(rows)
    all_equal = np.ptp(unit, axis=0).max() == 0.0
    if len(unit) < 5 or all_equal:  # t-SNE has nothing to fit: show the first two dimensions
        return np.asarray(np.pad(unit, ((0, 0), (0, 2)))[:, :2], dtype=np.float64)
    perplexity = min(30.0, (len(unit) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", max_iter=500, random_state=0)
    with threadpool_limits(1):  # with so few points, several threads are slower than one
        points = tsne.fit_transform(unit)
    return np.asarray(points, dtype=np.float64)
