"""Pictures are drawn from arrays and texts alone, whatever the texts hold."""

from __future__ import annotations

import numpy as np
import pytest

pyplot = pytest.importorskip("matplotlib.pyplot")

from closeknit.charts.png import scores_and_maps  # noqa: E402


def vectors(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 25])  # a legend of 25 classes is left out
def test_scores_and_maps_are_one_picture(tmp_path, classes):
    path = tmp_path / "picture.png"
    labels = [f"class_{i} $x$" for i in range(classes)] * 2
    scores = {"cross_entropy": [80.0, 81.0], "$a$_b": [82.0, 80.5]}
    scores_and_maps(path, scores, vectors(len(labels)), vectors(len(labels)), labels, "$5 to $10")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not pyplot.get_fignums()


def test_methods_with_different_numbers_of_runs_are_refused(tmp_path):
    scores = {"a": [80.0, 81.0], "b": [82.0]}
    with pytest.raises(ValueError, match="shorter"):
        scores_and_maps(tmp_path / "p.png", scores, vectors(4), vectors(4), list("abab"), "title")
    pyplot.close("all")
    assert not (tmp_path / "p.png").exists()
