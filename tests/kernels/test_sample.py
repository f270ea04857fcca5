"""Sampling: the model's token for any options, and the boundaries exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.kernels.recipes_rows import NO_TOKEN, sample, softmax, sums
from tests.kernels.native import aligned
from tests.kernels.rows import check_digest, driver, sets

ISAS = sets()
BEST = ISAS[0]
LAST = 1 - 2.0**-24


@dataclasses.dataclass(frozen=True)
class Options:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def tokens(isa: str, logits: np.ndarray, o: Options, draws: object) -> list[int]:
    drive = driver(isa)
    d = np.atleast_1d(np.asarray(draws, np.float32))
    out = np.full(len(d), 12345, np.uint32)
    scratch = aligned(drive(11, len(logits)))
    drive(8, logits, len(logits), o.temperature, o.top_k, o.top_p, o.min_p, d, len(d), out, scratch)
    return [int(t) for t in out]


def expected(logits: np.ndarray, o: Options, draws: np.ndarray) -> list[int]:
    return [sample(logits, *dataclasses.astuple(o), float(d)) for d in draws]


def row(n: int, seed: int, spread: float = 4.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


CASES = [
    Options(), Options(0.0), Options(0.7), Options(1.5, 40, 0.9, 0.05), Options(1.0, 1),
    Options(1.0, 0, 0.5), Options(1.0, 0, 0.999), Options(1.0, 0, 1e-9), Options(1.0, 0, 0.0),
    Options(1.0, 0, 1.0, 0.1), Options(1.0, 0, 1.0, 1.0), Options(1.0, 0, 1.0, 7.0),
    Options(0.01), Options(100.0, 0, 0.95), Options(1.0, 100), Options(1.0, 2**32 - 1),
    Options(2.0, 300, 0.8), Options(1e-42),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
def test_every_set_draws_as_the_model(isa: str) -> None:
    draws = np.array([0, 0.1, 0.5, 0.9, LAST, 1.0, -1.0, 2.0, np.nan, 0.999], np.float32)
    for n in (1, 2, 15, 16, 17, 100, 1000):
        for i, o in enumerate(CASES):
            x = row(n, n + i)
            assert tokens(isa, x, o, draws) == expected(x, o, draws), (n, o)
            x = np.round(x)  # ties
            assert tokens(isa, x, o, draws) == expected(x, o, draws), (n, o)


def test_a_long_row() -> None:
    draws = np.array([0, 0.3, 0.77, LAST], np.float32)
    for spread in (0.0, 0.1, 2.0):
        x = row(50_000, 3, spread)
        for o in CASES:
            assert tokens(BEST, x, o, draws) == expected(x, o, draws), (spread, o)


NEAR = [
    Options(0.8, 40, 0.95, 0.05), Options(1.0, 1), Options(1.0, 40), Options(1.0, 512, 0.7),
    Options(1.0, 513), Options(2.0, 100, 1.0, 0.2), Options(1.0, 40, 0.0), Options(0.3, 7, 0.999),
    Options(np.inf, 40), Options(1e-42, 40), Options(30.0, 40, 0.9),
]  # fmt: skip


def far_and_near() -> dict[str, np.ndarray]:
    """Long rows in which the few that top-k keeps are easy, or hard, to tell from the others."""
    x = row(20_000, 5, 3.0)
    rows = {"plain": x, "even": row(16_384, 6, 0.5), "flat": np.zeros(20_000, np.float32)}
    rows["ties"] = np.round(x)
    rows["one"] = np.where(np.arange(20_000) == 19_999, 50, x).astype(np.float32)
    rows["nothing"] = np.where(np.arange(20_000) % 400 == 3, x, -np.inf).astype(np.float32)
    edge = np.full(20_011, -80, np.float32)  # the last that counts, and many as likely as it
    edge[[5, 700, 20_010]] = 3.0, 2.5, 2.0
    for at, shift in ((100, -1e-6), (4000, 0.0), (9000, 1e-6)):
        edge[at : at + 60] = np.float32(3.0 - np.log(1024.0) + shift)
    rows["edge"] = edge
    rows["low"] = np.where(edge > 0, edge, edge * 0.1).astype(np.float32)
    return rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", far_and_near())
def test_a_top_k_of_a_long_row(isa: str, name: str) -> None:
    draws = np.array([0, 0.3, 0.5, 0.77, 0.9, 0.999, LAST], np.float32)
    x = far_and_near()[name]
    for o in NEAR:
        assert tokens(isa, x, o, draws) == expected(x, o, draws), o


@pytest.mark.parametrize("isa", ISAS)
def test_a_top_k_of_a_long_row_is_cut_and_drawn_where_the_model_does(isa: str) -> None:
    """Draws and top-p on either side of the running sums: a rounding elsewhere shows."""
    x = row(20_000, 8, 3.0)
    p = softmax(x)
    kept = np.sort(np.lexsort((np.arange(len(p)), -p))[:40])
    running = np.cumsum(p[kept], dtype=np.float32)
    at = (running / running[-1]).astype(np.float32)
    draws = np.concatenate([np.nextafter(at, np.float32(0)), at, np.nextafter(at, np.float32(2))])
    assert tokens(isa, x, Options(1.0, 40), draws) == expected(x, Options(1.0, 40), draws)
    falling = np.cumsum(np.sort(p[kept])[::-1], dtype=np.float32)
    reach = (falling / sums(np.where(np.isin(np.arange(len(p)), kept), p, 0))).astype(np.float32)
    for bound in (*reach[:20], *np.nextafter(reach[:20], np.float32(0))):
        o = Options(1.0, 40, float(bound))
        assert tokens(isa, x, o, [0.3, LAST]) == expected(x, o, np.array([0.3, LAST], "f4")), bound


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_options(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 70))
    x = np.array(data.draw(st.lists(st.floats(-30, 30, width=32), min_size=n, max_size=n)), "f4")
    o = Options(
        data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])), data.draw(st.integers(0, n + 2)),
        data.draw(st.floats(0, 1, width=32)), data.draw(st.floats(0, 1, width=32)),
    )  # fmt: skip
    draws = np.array([0, data.draw(st.floats(0, 1, width=32, exclude_max=True)), LAST], "f4")
    assert tokens(BEST, x, o, draws) == expected(x, o, draws)


def test_a_draw_on_a_cumulative_sum_takes_the_next() -> None:
    """Four equal logits: the sums are exactly 1/4, 1/2, 3/4, 1."""
    x = np.zeros(4, np.float32)
    below = np.nextafter(np.float32([0.25, 0.5, 0.75]), np.float32(0))
    assert tokens(BEST, x, Options(), [0, 0.25, 0.5, 0.75]) == [0, 1, 2, 3]
    assert tokens(BEST, x, Options(), [*below, LAST, 1.0]) == [0, 1, 2, 3, 3]


def test_top_p_keeps_the_entry_that_crosses() -> None:
    """Probabilities exactly 1/2, 1/4, 1/8, 1/8 (in another order)."""
    x = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float64)).astype(np.float32)
    p = softmax(x)
    order = np.lexsort((np.arange(4), -p))
    for kept in range(1, 5):
        reach = float(np.cumsum(p[order], dtype=np.float32)[kept - 1] / sums(p))
        o = Options(top_p=min(reach, 1.0))
        seen = set(tokens(BEST, x, o, np.linspace(0, LAST, 999)))
        assert seen == {int(i) for i in order[:kept]}, kept


def test_top_k_breaks_ties_by_index() -> None:
    x = np.array([1, 2, 2, 2, 0], np.float32)
    assert set(tokens(BEST, x, Options(top_k=2), np.linspace(0, LAST, 99))) == {1, 2}
    many = np.zeros(5000, np.float32)
    assert set(tokens(BEST, many, Options(top_k=70), np.linspace(0, LAST, 999))) == set(range(70))


def test_min_p_keeps_what_equals_its_bound() -> None:
    x = np.log(np.array([1.0, 0.5, 0.25], np.float64)).astype(np.float32)
    p = softmax(x)
    exact = float(p[1] / p[0])
    draws = np.linspace(0, LAST, 99)
    if np.float32(exact) * p[0] == p[1]:
        assert set(tokens(BEST, x, Options(min_p=exact), draws)) == {0, 1}
    assert set(tokens(BEST, x, Options(min_p=exact * 1.001), draws)) == {0}


@pytest.mark.parametrize("isa", ISAS)
def test_argmax_and_rows_without_a_distribution(isa: str) -> None:
    nan, inf = np.nan, np.inf

    def top(*x: float) -> int:
        a = np.array(x, np.float32)
        return driver(isa)(9, a, len(a))

    assert top(1, 3, 3) == 1
    assert top(nan, -1, -2) == 1
    assert top(nan, nan) == 0
    assert top(nan, -inf, -inf) == 1
    assert top(-0.0, 0, -1) == 0
    assert top(*[0] * 40, 1, 1, *[0] * 40) == 40
    assert top(1, inf, inf) == 1
    for o in (Options(0.0), Options(1.0), Options(1.0, 2, 0.5, 0.1)):
        for bad in ([1, nan, 2], [1, inf, 2], [nan] * 20, []):
            assert tokens(isa, np.array(bad, np.float32), o, [0.5]) == [NO_TOKEN]
        for n in (1, 2, 40):  # nothing has a weight: no token, but an argmax
            none = np.full(n, -inf, np.float32)
            assert tokens(isa, none, o, [0.5]) == [NO_TOKEN if o.temperature else 0]
        assert tokens(isa, np.array([-inf, 1, -inf], np.float32), o, [0, LAST]) == [1, 1]


@pytest.mark.parametrize("isa", ISAS)
def test_options_out_of_range_are_defined(isa: str) -> None:
    nan, x = np.nan, np.array([0, 1, 0.5, -np.inf], np.float32)
    draws = [0, 0.3, 0.7, LAST]
    same = [(Options(-1.0), Options(0.0)), (Options(nan), Options(0.0)),
            (Options(top_p=-1.0), Options(top_p=0.0)), (Options(top_p=nan), Options(top_p=1.0)),
            (Options(min_p=-1.0), Options(min_p=0.0)), (Options(min_p=2.0), Options(min_p=1.0)),
            (Options(min_p=nan), Options(min_p=1.0))]  # fmt: skip
    for odd, o in same:
        assert tokens(isa, x, odd, draws) == tokens(isa, x, o, draws) == expected(x, odd, draws)
    assert tokens(isa, x, Options(top_p=0.0), draws) == [1] * 4
    for row, want in ((x, [1] * 4), (x[:3], [0, 0, 2, 2])):  # T = inf: -inf / inf overflows
        assert tokens(isa, row, Options(np.inf), draws) == expected(row, Options(np.inf), draws)
        assert tokens(isa, row, Options(np.inf), draws) == want


def test_scratch_fits_what_the_planner_gives() -> None:
    """kernels/table.py reserves 16 n + 4096 bytes; what lies behind stays as it was."""
    for n in (1, 31, 1000, 4097):
        size = driver(BEST)(11, n)
        assert size <= 16 * n + 4096
        room = aligned(size + 64)
        x, draws, out = row(n, n), np.array([0.5], np.float32), np.zeros(1, np.uint32)
        for o in CASES:
            driver(BEST)(8, x, n, *dataclasses.astuple(o), draws, 1, out, room)
            assert (room[size:] == 0xA5).all(), o


def test_digest() -> None:
    draws = np.random.default_rng(1).random(50).astype(np.float32)
    x = row(3000, 7)
    got = [t for o in CASES for t in tokens(BEST, x, o, draws)]
    check_digest("sample", np.array(got, np.uint32))
