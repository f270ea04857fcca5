"""References against formulas written another way: loops, mpmath-free closed forms, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lanewise.ir.opdef import apply, opdef
from lanewise.ir.ops.attention import rope_table
from lanewise.ir.ops.sampling import NO_TOKEN
from lanewise.ir.values import value_type

U = np.uint32


def run(op: str, *args: Any, **attrs: Any) -> Any:
    full, types = apply(op, tuple(map(value_type, args)), attrs)
    (result,) = opdef(op).ref(args, full, types)
    return result


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope_turns_pairs_by_complex_numbers(style: str) -> None:
    rotary, d = 6, 8
    x, table = floats(5, 2, d), rope_table(4, rotary, 100.0)
    positions = np.array([0, 1, 3, 4, 2**32 - 1], U)
    y = run("rope", x, positions, table, style=style, rotary=rotary)
    for r, p in enumerate(positions):
        for h in range(2):
            for i in range(rotary // 2):
                a, b = (i, i + rotary // 2) if style == "half" else (2 * i, 2 * i + 1)
                pair = complex(x[r, h, a], x[r, h, b])
                angle = float(p) * 100.0 ** (-2 * i / rotary) if p < 4 else 0.0
                turned = pair * complex(math.cos(angle), math.sin(angle))
                got = complex(y[r, h, a], y[r, h, b])
                assert abs(got - turned) < 1e-6
    assert (y[..., rotary:] == x[..., rotary:]).all()
    assert (y[3:] == x[3:]).all()


def loop_attention(
    q: Any, k: Any, v: Any, table: Any, slots: Any, positions: Any, scale: float,
    window: int = 0, softcap: float = 0.0,
) -> Any:  # fmt: skip
    """One row and head at a time, one position at a time."""
    out = np.zeros(q.shape)
    group = q.shape[1] // k.shape[1]
    for r in range(q.shape[0]):
        p, s = int(positions[r]), int(slots[r])
        if p >= table.shape[1] * 64 or s >= table.shape[0]:
            continue
        first = max(0, p + 1 - window) if window else 0
        where = [int(table[s, j // 64]) * 64 + j % 64 for j in range(first, p + 1)]
        if max(where) >= k.shape[0]:
            continue
        for h in range(q.shape[1]):
            kv = h // group
            scores = [scale * math.fsum(q[r, h].astype(float) * k[i, kv]) for i in where]
            if softcap:
                scores = [softcap * math.tanh(x / softcap) for x in scores]
            top = max(scores)
            weights = [math.exp(x - top) for x in scores]
            for w, i in zip(weights, where, strict=True):
                out[r, h] += w / math.fsum(weights) * v[i, kv].astype(float)
    return out


@pytest.mark.parametrize(
    ("heads", "kv_heads", "more"),
    [(2, 2, {}), (6, 2, {}), (4, 1, {"window": 5}), (2, 1, {"window": 70}),
     (3, 1, {"softcap": 1.5}), (2, 2, {"window": 3, "softcap": 4.0})],
)  # fmt: skip
def test_attention_equals_loops(heads: int, kv_heads: int, more: dict[str, Any]) -> None:
    q = floats(9, heads, 5)
    k, v = (floats(256, kv_heads, 5, seed=s, dtype=np.float16) for s in (1, 2))
    table = np.array([[3, 1], [0, 7], [2, 3]], U)  # page 7 is beyond the pool
    slots = np.array([0, 0, 0, 1, 1, 2, 3, 0, 2], U)
    positions = np.array([0, 64, 127, 63, 64, 100, 5, 128, 2**32 - 1], U)
    got = run("attention", q, k, v, table, slots, positions, scale=0.4, **more)
    want = loop_attention(q, k, v, table, slots, positions, 0.4, **more)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert (got[6:] == 0).all()  # no slot 3, position 128 is beyond the table
    if more.get("window") != 70:
        # row 4 is at the absent page 7: absent; row 3 ends before it
        assert (got[4] == 0).all() and (got[3] != 0).any()


def test_attention_a_window_that_leaves_an_absent_page_behind() -> None:
    table = np.array([[9, 0]], U)
    k = floats(64, 1, 2)
    position = np.array([70], U)
    zero = np.zeros(1, U)
    q = floats(1, 1, 2)
    assert (run("attention", q, k, k, table, zero, position, scale=1.0) == 0).all()
    assert (run("attention", q, k, k, table, zero, position, scale=1.0, window=7) != 0).all()


def test_attention_ignores_what_unseen_positions_hold() -> None:
    k, v = floats(64, 1, 4), floats(64, 1, 4, seed=1)
    args = (np.zeros((1, 1), U), np.zeros(2, U), np.array([3, 9], U))
    q = floats(2, 1, 4, seed=2)
    clean = run("attention", q, k, v, *args, scale=0.5)
    k[10:], v[10:] = np.nan, np.inf
    assert run("attention", q, k, v, *args, scale=0.5).tobytes() == clean.tobytes()
    v[6] = np.inf  # row 1 sees it, row 0 does not
    got = run("attention", q, k, v, *args, scale=0.5)
    assert got[0].tobytes() == clean[0].tobytes() and np.isinf(got[1]).all()
    near = run("attention", q, k, v, *args, scale=0.5, window=3)  # nobody sees it
    assert np.isfinite(near).all()


def test_attention_paged_equals_contiguous() -> None:
    k, v = floats(192, 2, 4), floats(192, 2, 4, seed=1)
    q, slots = floats(4, 2, 4, seed=2), np.zeros(4, U)
    positions = np.array([0, 63, 64, 191], U)
    order = np.array([2, 0, 1])  # block b of the sequence in page order[b]
    index = (order[:, None] * 64 + np.arange(64)).reshape(-1)
    pk, pv = np.empty_like(k), np.empty_like(v)
    pk[index], pv[index] = k, v
    plain = run("attention", q, k, v, np.array([[0, 1, 2]], U), slots, positions, scale=1.0)
    paged = run("attention", q, pk, pv, order[None].astype(U), slots, positions, scale=1.0)
    assert plain.tobytes() == paged.tobytes()


def test_kv_write_places_rows_and_drops_the_absent() -> None:
    state = floats(128, 2, 3, dtype=np.float16)
    x = floats(8, 2, 3, seed=1)
    table = np.array([[1, 0], [0, 5]], U)
    slots = np.array([0, 0, 1, 1, 2, 0, 0, 0], U)
    positions = np.array([0, 70, 5, 64, 0, 128, 0xFFFFFFFF, 0], U)
    before = state.copy()
    got = run("kv_write", state, x, table, slots, positions)
    want = before.copy()
    want[70 - 64] = x[1].astype(np.float16)  # slot 0, block 1 is page 0
    want[5] = x[2].astype(np.float16)
    want[64] = x[7].astype(np.float16)  # slot 0, block 0 is page 1; row 7 comes after row 0
    assert got.tobytes() == want.tobytes()
    assert state.tobytes() == before.tobytes()


def test_gather_rows_beyond_the_table_is_zero() -> None:
    table = floats(4, 3)
    got = run("gather_rows", table, np.array([[3, 4], [2**31, 0]], U))
    assert (got[0, 0] == table[3]).all() and (got[1, 1] == table[0]).all()
    assert (got[0, 1] == 0).all() and (got[1, 0] == 0).all()


def test_norms_by_hand() -> None:
    x = np.array([[3.0, 4.0]], np.float32)
    one = np.ones(2, np.float32)
    rms = run("rms_norm", x, one, eps=1e-9)
    np.testing.assert_allclose(rms, x / math.sqrt(12.5), rtol=1e-6)
    ln = run("layer_norm", x, np.full(2, 2, np.float32), one, eps=1e-12)
    np.testing.assert_allclose(ln, [[-1, 3]], rtol=1e-5)


def test_sums_of_products_are_exact() -> None:
    """Terms that cancel: f32 sums would lose the small one."""
    x = np.array([[2.0**30, 1.0, -(2.0**30)]], np.float32)
    w = np.ones((1, 3), np.float32)
    assert run("linear", x, w)[0, 0] == 1.0
    assert run("matmul", x, w.T.copy())[0, 0] == 1.0
    assert run("linear", x, w, np.array([0.5], np.float32), sums="f64")[0, 0] == 1.5
    assert run("reduce_sum", x)[0] == 1.0


def test_cast_of_every_half() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    halves = bits.view(np.float16)
    wide = run("cast", halves, dtype="f32")
    back = run("cast", wide, dtype="f16")
    number = ~np.isnan(halves)
    assert (back.view(np.uint16)[number] == bits[number]).all()
    assert np.isnan(wide[~number]).all() and np.isnan(back[~number]).all()


def test_cast_to_bf16_rounds_to_even() -> None:
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    got = run("cast", x, dtype="bf16").view(np.uint16)
    assert got.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]


def test_elementwise_results_are_rounded_once() -> None:
    """1 + 2^-8 + tiny in bf16: rounding to f32 first would tie to even and lose the tiny part."""
    from lanewise.ir.graph import Type
    from lanewise.ir.values import rounded

    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 2.0**-8, -1e-320, 1e300])
    got = rounded(x, Type("bf16", (5,))).astype(np.float64)
    assert got.tolist() == [1 + 2.0**-7, 1.0, 1.0, -0.0, np.inf]


def test_extremes_order_zeros_and_keep_nan() -> None:
    a = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    b = np.array([-0.0, 0.0, 1.0, np.nan], np.float32)
    high, low = run("maximum", a, b), run("minimum", a, b)
    assert np.signbit(high[:2]).tolist() == [False, False]
    assert np.signbit(low[:2]).tolist() == [True, True]
    assert np.isnan(high[2:]).all() and np.isnan(low[2:]).all()


def test_activations_at_their_limits() -> None:
    x = np.array([-np.inf, -200, -5, -0.0, 0.0, 5, 200, np.inf], np.float32)
    assert run("sigmoid", x)[[0, 7]].tolist() == [0.0, 1.0]
    for op in ("silu", "gelu", "gelu_erf"):
        y = run(op, x)
        assert y[0] == 0 and np.signbit(y[0]) and y[7] == np.inf and y[6] == 200
        assert np.signbit(y[3]) and not np.signbit(y[4])
    assert run("gelu", np.array([1.0], np.float32))[0] == np.float32(0.8411919906082768)
    assert run("gelu_erf", np.array([1.0], np.float32))[0] == np.float32(0.8413447460685429)
    assert run("silu", np.array([1.0], np.float32))[0] == np.float32(0.7310585786300049)


def test_argmax_ties_and_nan() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[1, 3, 3], [nan, -1, -2], [nan, nan, nan], [nan, -inf, -inf], [-inf, -inf, 0]])
    assert run("argmax", x.astype(np.float32)).tolist() == [1, 1, 0, 1, 2]


def sample(logits: Any, t: float = 1, k: int = 0, p: float = 1, m: float = 0, u: float = 0) -> int:
    def f(v: float) -> Any:
        return np.array([v], np.float32)

    row = np.array([logits], np.float32)
    return int(run("sample_rows", row, f(t), np.array([k], U), f(p), f(m), f(u))[0])


def test_sample_rows_draws_on_the_running_sum() -> None:
    logits = np.log([0.25, 0.5, 0.25])
    picks = [sample(logits, u=u) for u in (0, 0.24, 0.26, 0.74, 0.76, 0.999, 1.0, 7.0, -1.0)]
    assert picks == [0, 0, 1, 1, 2, 2, 2, 2, 0]
    even = np.zeros(4)  # four quarters: a draw on the sum itself goes to the next
    assert [sample(even, u=u) for u in (0.25, 0.5, 0.75)] == [1, 2, 3]


def test_sample_rows_masks() -> None:
    logits = np.log([0.1, 0.4, 0.3, 0.2])
    assert [sample(logits, k=1, u=u) for u in (0, 0.99)] == [1, 1]
    assert [sample(logits, k=2, u=u) for u in (0, 0.6, 0.99)] == [1, 2, 2]
    assert [sample(logits, p=0.35, u=u) for u in (0, 0.99)] == [1, 1]
    assert [sample(logits, p=0.5, u=u) for u in (0, 0.99)] == [1, 2]  # the crossing entry stays
    assert [sample(logits, m=0.6, u=u) for u in (0, 0.99)] == [1, 2]
    assert [sample(logits, m=1, u=u) for u in (0, 0.99)] == [1, 1]  # the largest always stays
    assert [sample(np.zeros(4), k=2, u=u) for u in (0, 0.99)] == [0, 1]  # ties to the low index
    assert sample(logits, k=2**32 - 1, u=0.05) == 0
    # top-p counts what top-k left: 0.4 is more than half of 0.7
    assert [sample(logits, k=2, p=0.5, u=u) for u in (0, 0.99)] == [1, 1]


def test_sample_rows_temperature() -> None:
    assert sample([1, 5, 5, 2], t=0, u=0.99) == 1
    logits = np.log([0.2, 0.8])
    share = 0.2**2 / (0.2**2 + 0.8**2)  # T = 1/2 squares the odds
    assert [sample(logits, t=0.5, u=u) for u in (share - 0.01, share + 0.01)] == [0, 1]


def test_sample_rows_without_a_distribution() -> None:
    for bad in (np.nan, np.inf):
        assert sample([0, bad, 1]) == NO_TOKEN
        assert sample([0, bad, 1], t=0) == NO_TOKEN
    assert sample([-np.inf, 0, -np.inf], u=0.5) == 1
    assert sample([-np.inf, -np.inf], u=0.5) == NO_TOKEN
    assert sample([-np.inf, -np.inf], t=0) == 0 == sample([2, 1], t=-1, u=0.9)
    assert sample([1, 2, -np.inf], t=np.inf, u=0) == 1 and sample([1, 2], t=np.inf, u=0.4) == 0
    assert sample([1, 2], p=0, u=0) == 1 == sample([1, 2], m=2, u=0)


def test_quantised_products_multiply_what_was_stored() -> None:
    from lanewise.ir.ops.contract import quantised_matrix

    rng = np.random.default_rng(5)
    w = quantised_matrix(rng, "q4_1", 6, 64)
    x = floats(3, 64)
    rows = w.decode()
    want = np.array([[math.fsum(a.astype(float) * b) for b in rows] for a in x])
    np.testing.assert_allclose(run("linear", x, w, sums="f64"), want, rtol=1e-6)
    for recipe, bits in (("int8x2", 14), ("int8", 7)):
        xq = run("quantize", x, recipe=recipe)
        stored = xq.v.reshape(3, 2, 32) * xq.scale.astype(float)[..., None]
        assert np.abs(stored.reshape(3, 64) - x).max() <= np.abs(x).max() / 2**bits
        want = np.array([[math.fsum(a * b) for b in rows] for a in stored.reshape(3, 64)])
        np.testing.assert_allclose(run("quant_linear", xq, w), want, rtol=1e-6)
