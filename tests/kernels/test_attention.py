"""Attention: near float64, equal to its NumPy model, and one set of bits however it is cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lanewise.kernels.layout import attention_scratch
from lanewise.kernels.recipes_rows import attention_head
from tests.kernels.attention_cases import Case, make
from tests.kernels.rows import check_digest, driver, same_bits, sets

LENGTHS = [0, 1, 62, 63, 64, 65, 127, 128, 254, 255, 256, 257, 511, 512, 1000]
BEST = sets()[0]


def model(case: Case) -> np.ndarray:
    """Every row and head by the recipe."""
    out = np.zeros_like(case.q)
    group = case.q.shape[1] // case.k.shape[2]
    for r, (s, p) in enumerate(zip(case.slots, case.positions, strict=True)):
        for h in range(case.q.shape[1]):
            k, v = (x[s, :, h // group].astype(np.float32) for x in (case.k, case.v))
            out[r, h] = attention_head(
                case.q[r, h], k, v, int(p), case.scale, case.softcap, case.window,
                None if case.sinks is None else case.sinks[h],
            )  # fmt: skip
    return out


@pytest.mark.parametrize("dtype", ["f2", "bf16", "f4", "q8_0"])
@pytest.mark.parametrize(("heads", "kv"), [(1, 1), (3, 1), (8, 2), (8, 1), (6, 6)])
def test_near_float64(heads: int, kv: int, dtype: str) -> None:
    case = make(rows=LENGTHS, heads=heads, kv=kv, dtype=dtype, seed=heads)
    error = np.abs(case.run(BEST) - case.exact()).max()
    assert error < 2e-6, error


@pytest.mark.parametrize("isa", sets())
@pytest.mark.parametrize(
    "options",
    [
        {"rows": [0, 63, 64, 255, 256, 257]},
        {"rows": [300, 301, 302, 303, 304, 305, 306], "dtype": "f4"},
        {"rows": [70, 5], "slots": [1, 0], "heads": 4, "kv": 2, "d": 128},
        {"rows": [600], "heads": 1, "kv": 1, "window": 100},
        {"rows": [254, 255, 256, 257], "window": 3, "softcap": 5.0, "spread": 3.0},
        {"rows": [*range(250, 264)], "window": 3, "softcap": 5.0, "spread": 3.0},
        {"rows": [*range(250, 264)], "window": 3, "scale": -0.2},
        {"rows": [100, 300], "spread": 60.0},
        {"rows": [90, 91], "heads": 9, "kv": 1, "d": 80, "dtype": "f4"},
        {"rows": [65, 66, 67], "heads": 2, "kv": 2, "d": 5},
        {"rows": [20], "heads": 2, "kv": 1, "d": 256, "spread": 20.0},
        {"rows": [0, 63, 64, 255, 256, 257], "dtype": "q8_0"},
        {"rows": [300, 301, 302, 303], "dtype": "q8_0", "heads": 4, "kv": 2, "d": 96},
        {"rows": [0, 63, 256, 257, 600], "heads": 4, "kv": 2, "sink": 3.0},
        {"rows": [70, 71, 72], "heads": 9, "kv": 1, "d": 5, "sink": -2.0, "window": 9},
        {"rows": [130], "dtype": "q8_0", "heads": 9, "kv": 1, "d": 256, "window": 70},
        {"rows": [0, 63, 64, 255, 256, 257], "dtype": "bf16"},
        {"rows": [300, 301, 302, 303], "dtype": "bf16", "heads": 9, "kv": 1, "d": 72, "page": 16},
        {"rows": [300], "dtype": "q8_0", "heads": 4, "kv": 2, "d": 96, "page": 32, "window": 50},
    ],
    ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items() if k != "rows"),
)
def test_every_set_gives_the_bits_of_the_model(isa: str, options: dict) -> None:
    case = make(**options)
    expected = model(case)
    assert same_bits(case.run(isa), expected)
    assert same_bits(case.run(isa, form=1), expected)


@pytest.mark.parametrize(("name", "types"), [
    ("attention", ("f2", "f4")), ("attention_q8_0", ("q8_0",)), ("attention_bf16", ("bf16",)),
])  # fmt: skip
def test_digest(name: str, types: tuple[str, ...]) -> None:
    cases = [make(rows=LENGTHS, dtype=t, window=w) for t in types for w in (0, 70)]
    check_digest(name, *(c.run(BEST) for c in cases))


@pytest.mark.parametrize("window", [0, 1, 64, 100])
@pytest.mark.parametrize(("heads", "d"), [(3, 64), (1, 128), (9, 72)])
def test_rows_together_are_rows_alone(heads: int, d: int, window: int) -> None:
    """A prompt of 40 positions across a piece's end, other slots between, in one call or many."""
    rows = [*range(230, 270), 12, 13, 5, *range(40, 47)]
    slots = [*[0] * 40, 1, 1, 1, *[1] * 7]
    case = make(rows=rows, slots=slots, heads=heads, d=d, window=window)
    together = case.run(BEST)
    for r in (0, 1, 15, 16, 25, 26, 39, 40, 41, 42, 43, 49):
        assert same_bits(case.rows(r).run(BEST)[0], together[r]), r
    assert same_bits(case.rows(np.arange(20)).run(BEST), together[:20])


@pytest.mark.parametrize("dtype", ["f2", "bf16", "f4", "q8_0"])
def test_split_whole_shares_and_epilogue_agree(dtype: str) -> None:
    case = make(rows=[1000, 3, 257, 511, 512, 513], heads=6, kv=2, dtype=dtype, window=0)
    whole = case.run(BEST)
    for form, shares, more in ((0, 3, 0), (1, 1, 0), (1, 4, 2), (2, 2, 0), (3, 5, 0)):
        assert same_bits(case.run(BEST, form, shares, more), whole), (form, shares)
    windowed = dataclasses.replace(case, window=300)
    assert same_bits(windowed.run(BEST, 1, 3), windowed.run(BEST))


def test_scratch_fits_what_the_planner_gives() -> None:
    """Also the largest: every group, the widest head (kernels/layout.py says a mebibyte)."""
    sizes = [driver(BEST)(10, 256, group) for group in range(1, 200)]
    assert max(sizes) <= attention_scratch(256, 1)


def test_pages_out_of_order_are_pages_in_order() -> None:
    case = make(rows=[700, 200], slots=[0, 1])
    assert same_bits(case.run(BEST), dataclasses.replace(case, shuffle=0).run(BEST))
    assert same_bits(case.run(BEST), dataclasses.replace(case, shuffle=9).run(BEST))


@pytest.mark.parametrize("dtype", ["f2", "bf16", "f4", "q8_0"])
@pytest.mark.parametrize("options", [
    {"rows": [*range(245, 265), 5, 63, 64, 700]}, {"rows": [300], "window": 70, "heads": 8},
    {"rows": [17, 600], "slots": [1, 0], "heads": 9, "d": 160},
], ids=["rows", "window", "slots"])  # fmt: skip
def test_pages_of_every_size_give_the_bits_of_64(options: dict, dtype: str) -> None:
    whole = make(**options, dtype=dtype).run(BEST)
    for page in (16, 32, 128, 256, 1024):
        case = make(**options, dtype=dtype, page=page)
        for form in range(4):
            assert same_bits(case.run(BEST, form), whole), (page, form)


@pytest.mark.parametrize("page", [16, 32, 128])
def test_small_and_large_pages_that_are_absent(page: int) -> None:
    """Only rows that see them are; what is behind a window, or after a row, is not looked at."""
    case = make(rows=[40, 300, 301], page=page)
    whole, (k, _, table) = case.run(BEST), case.pool()
    pages = len(k) * min(page, 64) // page
    for bad in (pages, 2**32 - 1):
        broken = table.copy()
        broken[0, 300 // page] = bad
        for form in range(4):
            got = case.run(BEST, form, table=broken)
            assert same_bits(got[0], whole[0]) and not got[1:].any()
        early = table.copy()
        early[0, 0] = bad
        windowed = dataclasses.replace(case, window=20)
        got = windowed.run(BEST, table=early)
        assert same_bits(got[1:], windowed.run(BEST)[1:])
        assert got[0].any() == (page <= 40 - 19)
    far = dataclasses.replace(case, positions=np.array([40, 300, table.size * page], np.uint32))
    assert not far.run(BEST)[2].any() and same_bits(far.run(BEST)[:2], whole[:2])


@pytest.mark.parametrize("form", [0, 1, 2, 3])
def test_what_cannot_be_is_zero(form: int) -> None:
    """A slot beyond the table, a position beyond it, a page beyond the pool: that row only."""
    case = make(rows=[300, 301, 302, 40, 100])
    whole = case.run(BEST)
    _, _, table = case.pool()
    broken = table.copy()
    broken[0, 4] = 2**32 - 1  # positions 256 to 319
    got = case.run(BEST, form, table=broken)
    assert not got[:3].any() and same_bits(got[3:], whole[3:])
    assert not np.signbit(got[:3]).any()
    broken[0, 4] = len(case.pool()[0])  # the first id past the pool
    assert not case.run(BEST, form, table=broken)[:3].any()
    far = dataclasses.replace(
        case,
        slots=np.array([0, 7, 0, 0, 2**32 - 1], np.uint32),
        positions=np.array([300, 1, 2**32 - 1, 320, 0], np.uint32),
    )
    got = far.run(BEST, form)
    assert same_bits(got[0], whole[0]) and not got[1:].any()
    windowed = dataclasses.replace(case, window=20)  # does not look at the broken page's start
    early = table.copy()
    early[0, 0] = 2**32 - 1
    got = windowed.run(BEST, form, table=early)
    assert same_bits(got[:3], windowed.run(BEST)[:3]) and not got[3].any()


@pytest.mark.parametrize("sink", [-4.0, 0.0, 4.0, 30.0])
def test_sinks_are_near_float64(sink: float) -> None:
    case = make(rows=LENGTHS, heads=6, kv=2, sink=sink, window=300 if sink else 0)
    assert np.abs(case.run(BEST) - case.exact()).max() < 2e-6


def test_sinks_at_the_ends() -> None:
    """None at all and -inf are one; a sink above all scores takes all; NaN stays in its head."""
    case = make(rows=[3, 300], heads=4, kv=2)
    none = case.run(BEST)
    for form in range(4):
        sinks = np.array([-np.inf, 1e4, np.nan, 1.0], np.float32)
        got = dataclasses.replace(case, sinks=sinks).run(BEST, form)
        assert same_bits(got[:, 0], none[:, 0])
        assert not got[:, 1].any() and np.isnan(got[:, 2]).all()
        assert (np.abs(got[:, 3]) < np.abs(none[:, 3])).all()


def test_an_absent_row_with_sinks_is_zero() -> None:
    case = make(rows=[3, 300], sink=1.0)
    case.slots[1] = 9
    for form in range(4):
        got = case.run(BEST, form)
        assert got[0].all() and not got[1].any()


def test_changing_a_later_position_moves_later_rows_only() -> None:
    case = make(rows=list(range(50, 70)))
    before = case.run(BEST)
    case.v[0, 60] += 1
    after = case.run(BEST)
    assert same_bits(before[:10], after[:10])
    assert (before[10:] != after[10:]).any(axis=(1, 2)).all()


def test_infinities_and_nan_stay_in_their_rows() -> None:
    case = make(rows=[10, 11, 12])
    case.v[0, 12] = np.nan
    got = case.run(BEST)
    assert np.isfinite(got[:2]).all() and np.isnan(got[2]).all()
