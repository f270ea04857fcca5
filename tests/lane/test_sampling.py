"""Draws: the pinned values of the specification, never 1.0, streams that differ."""

from __future__ import annotations

import numpy as np

from lanewise.lane.sampling import Stream

PINNED = (
    0.3381666, 0.5665615, 0.7457817, 0.9710027, 0.44435918, 0.44426465, 0.76289433, 0.87734866,
)  # fmt: skip


def test_the_pinned_draws() -> None:
    found = [np.float32(Stream(1).draw(i)) for i in range(8)]
    assert found == [np.float32(p) for p in PINNED]


def test_draws_lie_in_the_unit_interval_and_are_exact_in_f32() -> None:
    draws = np.array([Stream(9).draw(i) for i in range(1 << 16)])
    assert draws.min() >= 0 and draws.max() < 1
    assert np.array_equal(draws.astype(np.float32).astype(np.float64), draws)
    assert abs(draws.mean() - 0.5) < 0.005


def test_seeds_wrap_at_64_bits() -> None:
    assert Stream(1 + (1 << 64)).draw(3) == Stream(1).draw(3)
    assert Stream(-1).draw(0) == Stream((1 << 64) - 1).draw(0)


def test_derived_streams_differ() -> None:
    first = {Stream.derive(5, s).draw(0) for s in range(100)}
    assert len(first) == 100 and Stream.derive(5, 0) != Stream(5)
