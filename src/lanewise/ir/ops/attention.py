"""Rotary positions and attention over a paged cache.

Rows are ragged: each carries its slot (sequence) and position.  Position p of slot s lies in row
table[s, p // page] * page + p % page of the pool; page is 64, or what the op says.  What cannot be
(a position beyond the table, a slot beyond it, a page beyond the pool) is absent: such a row gives
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.norm import softmax64
from lanewise.ir.ops.rules import (
    choice,
    fail,
    integer,
    number,
    want_blocks,
    want_dtype,
    want_rank,
    want_shape,
    want_type,
)  # fmt: skip
from lanewise.ir.values import random, rounded, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
PAGE = 64  # positions of a page, if nothing else is said
SMALL_PAGES = (16, 32)  # and what else there is, beside the multiples of 64
CACHES = ("f16", "bf16", "f32", "q8_0")  # how keys and values are stored
_CHUNK = 64  # rows whose scores are held at a time


def _rope_infer(types: Types, attrs: Attrs) -> Types:
    x, positions, table = types
    want_dtype("rope", "x", x, ("f32",))
    want_rank("rope", "x", x, 3)
    want_type("rope", "positions", positions, "u32", x.shape[:1])
    rotary = integer("rope", attrs, "rotary", 2)
    if rotary % 2 or rotary > x.shape[2]:
        fail("attribute", "rope", "rotary", f"is {rotary}; it must be even and <= {x.shape[2]}",
             f"give the head width's even part at most: {x.shape[2] // 2 * 2}")  # fmt: skip
    choice("rope", attrs, "style", ("half", "interleaved"))
    want_dtype("rope", "table", table, ("f32",))
    want_rank("rope", "table", table, 2)
    want_shape("rope", "table", table, (table.shape[0], rotary))
    return (x,)


def _rope(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    x, positions, table = wide(args[0]), args[1], wide(args[2])
    half = attrs["rotary"] // 2
    known = positions < table.shape[0]
    angles = table[np.where(known, positions, 0).astype(np.int64)][:, None, :]
    cos, sin = angles[..., :half], angles[..., half:]
    if attrs["style"] == "half":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = x[..., first], x[..., second]
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = b * cos + a * sin
    return (rounded(np.where(known[:, None, None], y, x), types[0]),)


def rope_table(positions: int, rotary: int, base: float = 10000.0) -> Array:
    """f32 [positions, rotary]: cosines, then sines, of p / base^(2i/rotary)."""
    frequency = base ** (-2 * np.arange(rotary // 2) / rotary)
    angles = np.arange(positions)[:, None] * frequency
    return np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def _rope_samples(rng: np.random.Generator) -> Iterator[Sample]:
    positions = np.array([0, 3, 9, 2**32 - 1], np.uint32)
    for style in ("half", "interleaved"):
        for d, rotary in ((8, 8), (6, 4), (2, 2)):
            x = random(rng, "f32", (4, 3, d))
            attrs = {"style": style, "rotary": rotary}
            yield Sample((x, positions, rope_table(9, rotary)), attrs)


_X, _P, _T = Type("f32", (4, 3, 8)), Type("u32", (4,)), Type("f32", (9, 8))
_ROPE = {"style": "half", "rotary": 8}
register(
    OpDef(
        "rope", ("x", "positions", "table"), {"style": REQUIRED, "rotary": REQUIRED},
        _rope_infer, _rope,
        "Each pair (a, b) of the first `rotary` channels of x [R, H, D] turned: (a cos - b sin, "
        "b cos + a sin); pairs (i, i + rotary/2) if style is half, (2i, 2i+1) if interleaved; "
        "row p of table f32 [C, rotary]: cosines, then sines; position >= C: x as it is",
        "row", _rope_samples,
        (
            Bad((_X, Type("u32", (3,)), _T), _ROPE, "graph.shape"),
            Bad((_X, Type("f32", (4,)), _T), _ROPE, "graph.dtype"),
            Bad((_X, _P, Type("f32", (9, 4))), _ROPE, "graph.shape"),
            Bad((_X, _P, Type("f16", (9, 8))), _ROPE, "graph.dtype"),
            Bad((Type("f32", (4, 24)), _P, _T), _ROPE, "graph.rank"),
            Bad((Type("f16", (4, 3, 8)), _P, _T), _ROPE, "graph.dtype"),
            Bad((_X, _P, _T), {"style": "half", "rotary": 7}, "graph.attribute"),
            Bad((_X, _P, _T), {"style": "half", "rotary": 10}, "graph.attribute"),
            Bad((_X, _P, _T), {"style": "pairs", "rotary": 8}, "graph.attribute"),
            Bad((_X, _P, _T), {"rotary": 8}, "graph.missing_attribute"),
        ),
        ulp=2, rtol=2**-22, rows=("x", "positions"),
    )
)  # fmt: skip


def page_of(op: str, attrs: Attrs) -> int:
    """The positions of a page: 16, 32 or a multiple of 64."""
    page = integer(op, attrs, "page", 1)
    if page not in SMALL_PAGES and page % PAGE:
        fail("attribute", op, "page", f"is {page}; a page holds 16, 32 or a multiple of 64",
             f"give {min((16, 32, -(-page // PAGE) * PAGE), key=lambda n: abs(n - page))}")
    return page


def want_cache(op: str, operand: str, t: Type, page: int) -> None:
    """A cache of one layer: f16, bf16, f32 or q8_0 [P*page, kv heads, head width]."""
    want_dtype(op, operand, t, CACHES)
    if len(t.shape) != 3:
        fail("rank", op, operand, f"is {t}; its rank must be 3",
             "[capacity, kv heads, width]; of several layers take one by `layer_state`")
    if t.shape[0] % page:
        more = " (here heads come first)" if t.shape[1] % page == 0 else ""
        fail("shape", op, operand, f"is {t}; it must be [capacity, kv heads, width]{more}, of a "
             f"capacity of whole pages of {page} positions: {page}, {2 * page}, {3 * page}, ...",
             whole_pages(operand, t, page))  # fmt: skip
    want_blocks(op, operand, t)


def whole_pages(operand: str, t: Type, page: int) -> str:
    """What makes a cache [capacity, kv heads, width] of whole pages."""
    capacity, heads, width = t.shape
    if heads % page == 0:
        return f"declare {operand} of shape {(heads, capacity, width)}"
    rounded = -(-capacity // page) * page
    return (f"round the capacity up: declare {operand} of shape {(rounded, heads, width)}; "
            f"lengths say how many of the {rounded} positions hold tokens")  # fmt: skip


def want_rows(op: str, types: Types, rows: int) -> None:
    """The row operands (table u32 [S, B], slots u32 [R], positions u32 [R])."""
    want_dtype(op, "table", types[0], ("u32",))
    want_rank(op, "table", types[0], 2)
    want_type(op, "slots", types[1], "u32", (rows,))
    want_type(op, "positions", types[2], "u32", (rows,))


def _attention_infer(types: Types, attrs: Attrs) -> Types:
    q, k, v = types[:3]
    want_dtype("attention", "q", q, ("f32",))
    want_rank("attention", "q", q, 3)
    want_cache("attention", "k", k, page_of("attention", attrs))
    if k.shape[2] != q.shape[2]:
        fail("shape", "attention", "k", f"is {k}, q is {q}: head widths must be equal",
             f"reshape q to heads of {k.shape[2]}, or declare k and v of width {q.shape[2]}")
    if q.shape[1] % k.shape[1]:
        fail("shape", "attention", "k", f"is {k}, q is {q}: heads must be a multiple of kv heads",
             f"declare k and v of as many heads as divide {q.shape[1]}")  # fmt: skip
    want_type("attention", "v", v, k.dtype, k.shape)
    want_rows("attention", types[3:6], q.shape[0])
    for sinks in types[6:]:
        want_type("attention", "sinks", sinks, "f32", q.shape[1:2])
    number("attention", attrs, "scale")
    integer("attention", attrs, "window", 0)
    if number("attention", attrs, "softcap") < 0:
        fail("attribute", "attention", "softcap", f"is {attrs['softcap']}; it must be >= 0",
             "softcap=0 leaves scores as they are")  # fmt: skip
    return (q,)


def _visible(position: Array, span: int, window: int) -> Array:
    """[rows, span]: which positions each row attends."""
    j = np.arange(span)[None, :]
    seen: Array = j <= position[:, None]
    return seen & (j > position[:, None] - window) if window else seen


def _attend(
    q: Array, k: Array, v: Array, seen: Array, attrs: Attrs, sinks: Array | None
) -> Array:
    """q [n, H, D], k and v [T, Hkv, D], seen [n, T], sinks [H] -> [n, H, D], all float64."""
    n, heads, d = q.shape
    grouped = q.reshape(n, k.shape[1], heads // k.shape[1], d)
    scores = np.einsum("nkgd,tkd->nkgt", grouped, k, optimize=True) * attrs["scale"]
    if attrs["softcap"]:
        scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
    scores = np.where(seen[:, None, None, :], scores, -np.inf)
    if sinks is None:
        weights = softmax64(scores)
    else:  # one more logit, whose weight goes nowhere
        more = np.broadcast_to(sinks.reshape(*scores.shape[1:3], 1), (*scores.shape[:3], 1))
        weights = softmax64(np.concatenate([scores, more], -1))[..., :-1]
    number: Array = np.isfinite(v)
    out = np.einsum("nkgt,tkd->nkgd", weights, np.where(number, v, 0), optimize=True)
    # an unseen position adds nothing, whatever its bytes hold: 0 times infinity is no term
    wild: Array = ~np.all(number, axis=(1, 2))
    for r in np.flatnonzero((seen & wild).any(1)):
        at = seen[r]
        out[r] = np.einsum("kgt,tkd->kgd", weights[r][..., at], v[at])
    return out.reshape(n, heads, d)


def _attention(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    q, k, v, table, slots, positions = args[:6]
    sinks = wide(args[6]) if len(args) > 6 else None
    out = np.zeros(q.shape, np.float64)
    size = int(attrs["page"])
    blocks, pages = table.shape[1], k.shape[0] // size
    legal = (positions < blocks * size) & (slots < table.shape[0])
    for slot in np.unique(slots[legal]):
        mine = np.flatnonzero(legal & (slots == slot))
        for rows in np.split(mine, range(_CHUNK, len(mine), _CHUNK)):
            span = int(positions[rows].max()) + 1
            seen = _visible(positions[rows].astype(np.int64), span, attrs["window"])
            page = table[slot, np.arange(span) // size].astype(np.int64)
            absent = page >= pages
            # a row that would read an absent page is absent
            there: Array = ~np.any(seen & absent, axis=1)
            index = np.where(absent, 0, page) * size + np.arange(span) % size
            keep = rows[there]
            if len(keep):
                out[keep] = _attend(
                    wide(q[keep]), wide(k[index]), wide(v[index]), seen[there], attrs, sinks
                )
    return (rounded(out + 0.0, types[0]),)


def _attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    table = np.array([[2, 0], [1, 9]], np.uint32)  # page 9 is beyond the pool
    slots = np.array([0, 0, 0, 1, 1, 7], np.uint32)
    positions = np.array([0, 70, 127, 63, 64, 3], np.uint32)
    for dtype, heads, kv_heads, d, more in (
        ("f32", 4, 2, 8, {}),
        ("f16", 3, 1, 5, {"window": 9}),
        ("f32", 2, 2, 4, {"softcap": 2.0}),
        ("q8_0", 4, 2, 32, {"window": 70}),
        ("bf16", 4, 2, 20, {}),
    ):
        k, v = (random(rng, dtype, (192, kv_heads, d)) for _ in range(2))
        q = random(rng, "f32", (6, heads, d))
        rows = (q, k, v, table, slots, positions)
        yield Sample(rows, {"scale": d**-0.5, **more})
        yield Sample((*rows, 2 * random(rng, "f32", (heads,))), {"scale": d**-0.5, **more})
    ids = rng.permutation(12)[:10].reshape(2, 5).astype(np.uint32)
    for page, dtype in ((16, "bf16"), (32, "q8_0"), (16, "f32"), (192, "f16")):
        k, v = (random(rng, dtype, (192, 2, 32)) for _ in range(2))
        small = ids % (192 // page) if page > 16 else ids
        rows = (random(rng, "f32", (6, 4, 32)), k, v, small, slots, positions % (5 * page))
        yield Sample(rows, {"scale": 0.2, "page": page, "window": 33})


_Q, _K = Type("f32", (2, 4, 8)), Type("f16", (128, 2, 8))
_ROWS = (Type("u32", (1, 2)), Type("u32", (2,)), Type("u32", (2,)))
_S = {"scale": 0.25}
register(
    OpDef(
        "attention", ("q", "k", "v", "table", "slots", "positions", "sinks?"),
        {"scale": REQUIRED, "window": 0, "softcap": 0.0, "page": PAGE},
        _attention_infer, _attention,
        "Row r of q f32 [R, H, D] attends positions 0..positions[r] of slot slots[r] (the last "
        "`window` of them, if window > 0) in k and v [P*page, Hkv, D]; head h reads kv head "
        "h // (H / Hkv); scores are scale * q.k, then softcap * tanh(score / softcap) if > 0; "
        "sinks f32 [H]: a logit of each head that joins the softmax and brings no value",
        "kernel", _attention_samples,
        (
            Bad((Type("f16", (2, 4, 8)), _K, _K, *_ROWS), _S, "graph.dtype"),
            Bad((Type("f32", (2, 32)), _K, _K, *_ROWS), _S, "graph.rank"),
            Bad((_Q, Type("bf16", (128, 2, 8)), _K, *_ROWS), _S, "graph.dtype"),
            Bad((_Q, Type("u32", (128, 2, 8)), _K, *_ROWS), _S, "graph.dtype"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": 1.0, "page": 48}, "graph.attribute"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": 1.0, "page": 0}, "graph.attribute"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": 1.0, "page": 192}, "graph.shape"),
            Bad((_Q, Type("q8_0", (128, 2, 8)), _K, *_ROWS), _S, "graph.shape"),
            Bad((_Q, Type("f16", (3, 128, 2, 8)), _K, *_ROWS), _S, "graph.rank"),
            Bad((_Q, Type("f16", (100, 2, 8)), _K, *_ROWS), _S, "graph.shape"),
            Bad((_Q, Type("f16", (128, 3, 8)), _K, *_ROWS), _S, "graph.shape"),
            Bad((_Q, Type("f16", (128, 2, 4)), _K, *_ROWS), _S, "graph.shape"),
            Bad((_Q, _K, Type("f32", (128, 2, 8)), *_ROWS), _S, "graph.dtype"),
            Bad((_Q, _K, Type("f16", (64, 2, 8)), *_ROWS), _S, "graph.shape"),
            Bad((_Q, _K, _K, Type("u32", (2,)), *_ROWS[1:]), _S, "graph.rank"),
            Bad((_Q, _K, _K, Type("i32", (1, 2)), *_ROWS[1:]), _S, "graph.dtype"),
            Bad((_Q, _K, _K, _ROWS[0], Type("u32", (3,)), _ROWS[2]), _S, "graph.shape"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": float("inf")}, "graph.attribute"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": 1.0, "window": -1}, "graph.attribute"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": 1.0, "window": 1.5}, "graph.attribute"),
            Bad((_Q, _K, _K, *_ROWS), {"scale": 1.0, "softcap": -1.0}, "graph.attribute"),
            Bad((_Q, _K, _K, *_ROWS, Type("f32", (2,))), _S, "graph.shape"),
            Bad((_Q, _K, _K, *_ROWS, Type("f16", (4,))), _S, "graph.dtype"),
            Bad((_Q, _K, _K, *_ROWS), {}, "graph.missing_attribute"),
        ),
        rtol=2**-18, rows=("q", "slots", "positions"),
    )
)  # fmt: skip
