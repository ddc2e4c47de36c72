"""Vectors laid out on a plane."""

from __future__ import annotations

import numpy as np
import pytest

from closeknit.charts.projection import flat_map


def test_a_flat_map_keeps_groups_together_and_is_the_same_each_time():
    generator = np.random.default_rng(0)
    far = np.repeat(np.eye(2, 8) * 9, 10, axis=0) + generator.normal(size=(20, 8))
    flat = flat_map(far.astype(np.float16))
    assert flat.shape == (20, 2) and np.isfinite(flat).all()
    inside = max(
        np.linalg.norm(part - part.mean(0), axis=1).max() for part in (flat[:10], flat[10:])
    )
    assert np.linalg.norm(flat[:10].mean(0) - flat[10:].mean(0)) > inside
    assert np.array_equal(flat, flat_map(far.astype(np.float16)))


@pytest.mark.parametrize("rows", [np.zeros((1, 3)), np.zeros((30, 3)), np.ones((30, 1)), np.eye(3)])
def test_a_flat_map_of_next_to_nothing_is_still_a_map(rows):
    flat = flat_map(rows)
    assert flat.shape == (len(rows), 2) and np.isfinite(flat).all()
