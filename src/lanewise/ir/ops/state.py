"""States: windows and writes.

A value of a state is a version of a window of its root.  `layer` takes a window; a write gives
the next version of the window that it was handed: later readers read that one, and every other
version of overlapping bytes is stale (verify.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.attention import CACHES, PAGE, page_of, want_cache, want_rows
from lanewise.ir.ops.rules import FLOATS, INTEGERS, fail, integer, want_dtype, want_type
from lanewise.ir.values import random
from lanewise.quant.caches import CacheArray, cache_array

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
ABSENT = 0xFFFFFFFF  # the position of a row that is not live


def _layer_infer(types: Types, attrs: Attrs) -> Types:
    shape = types[0].shape
    caches = CACHES if len(shape) == 4 else ()
    want_dtype("layer", "state", types[0], (*FLOATS, *INTEGERS, *caches))
    if len(shape) < 2:
        fail("rank", "layer", "state", f"is {types[0]}; its rank must be 2 or more",
             f"declare it as [layers, {types[0].shape[0]}]")  # fmt: skip
    integer("layer", attrs, "index", 0, shape[0] - 1)
    return (Type(types[0].dtype, shape[1:]),)


def _layer(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return (args[0][attrs["index"]],)


def _layer_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((random(rng, "f16", (3, 64, 2, 4)),), {"index": 2})
    yield Sample((random(rng, "f32", (1, 5)),), {"index": 0})
    yield Sample((random(rng, "q8_0", (2, 64, 1, 32)),), {"index": 1})


_L = Type("f16", (3, 64, 2, 4))
register(
    OpDef(
        "layer", ("state",), {"index": REQUIRED}, _layer_infer, _layer,
        "Window `index` of a state's leading axis: a state value of the same version chain",
        "view", _layer_samples,
        (
            Bad((_L,), {"index": 3}, "graph.attribute"),
            Bad((_L,), {"index": -1}, "graph.attribute"),
            Bad((_L,), {"index": True}, "graph.attribute"),
            Bad((_L,), {}, "graph.missing_attribute"),
            Bad((Type("f16", (64,)),), {"index": 0}, "graph.rank"),
            Bad((Type("q8_0", (3, 64)),), {"index": 0}, "graph.dtype"),
        ),
    )
)  # fmt: skip


def _write_infer(types: Types, attrs: Attrs) -> Types:
    state, x = types[:2]
    want_cache("kv_write", "state", state, page_of("kv_write", attrs))
    want_type("kv_write", "x", x, "f32", (*x.shape[:1], *state.shape[1:]))
    want_rows("kv_write", types[2:], x.shape[0])
    return (state,)


def stored(state: Array, x: Array) -> Array:
    """What a state holds of rows that are written to it."""
    if isinstance(state, CacheArray):
        return cache_array(x)
    with np.errstate(over="ignore"):
        return x.astype(state.dtype)


def write_rows(
    state: Array, x: Array, table: Array, slots: Array, positions: Array, *, page: int = PAGE
) -> None:
    """kv_write in place; of two rows at one position the last wins."""
    size, blocks, pages = page, table.shape[1], state.shape[0] // page
    legal = np.flatnonzero((positions < blocks * size) & (slots < table.shape[0]))
    at = positions[legal].astype(np.int64)
    ids = table[slots[legal].astype(np.int64), at // size].astype(np.int64)
    index = ids * size + at % size
    values = stored(state, x)
    for row, i in zip(legal[ids < pages], index[ids < pages], strict=True):
        state[i] = values[row]


def _write(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    state = args[0].copy()
    write_rows(state, *args[1:], **attrs)
    return (state,)


def _write_samples(rng: np.random.Generator) -> Iterator[Sample]:
    table = np.array([[2, 0], [1, 9]], np.uint32)
    slots = np.array([0, 0, 1, 1, 7, 0, 0], np.uint32)
    positions = np.array([0, 65, 63, 64, 1, ABSENT, 128], np.uint32)
    for dtype, d, page in (
        ("f16", 3, 64), ("f32", 3, 64), ("q8_0", 64, 64), ("bf16", 20, 64), ("f16", 5, 32),
        ("q8_0", 32, 16), ("bf16", 3, 192), ("f32", 17, 16),
    ):  # fmt: skip
        state = random(rng, dtype, (192, 2, d))
        rows = (state, random(rng, "f32", (7, 2, d)), table, slots, positions)
        yield Sample(rows, {"page": page})
    big = np.full((1, 1, 1), 1e6, "f4")
    zero = np.zeros(1, np.uint32)
    yield Sample((np.zeros((64, 1, 1), "f2"), big, np.zeros((1, 1), np.uint32), zero, zero))


_C, _X = Type("f16", (128, 2, 8)), Type("f32", (3, 2, 8))
_ROWS = (Type("u32", (1, 2)), Type("u32", (3,)), Type("u32", (3,)))
register(
    OpDef(
        "kv_write", ("state", "x", "table", "slots", "positions"), {"page": PAGE},
        _write_infer, _write,
        "Row r of x f32 [R, Hkv, D] stored at positions[r] of slot slots[r] of a cache "
        "[P*page, Hkv, D], rounded to its dtype; position >= B*page, slot >= S or id >= P writes "
        "nothing; of rows at one place the last wins; gives the next version",
        "kernel", _write_samples,
        (
            Bad((Type("u32", (128, 2, 8)), _X, *_ROWS), {}, "graph.dtype"),
            Bad((_C, _X, *_ROWS), {"page": 24}, "graph.attribute"),
            Bad((_C, _X, *_ROWS), {"page": 192}, "graph.shape"),
            Bad((Type("q8_0", (128, 2, 8)), _X, *_ROWS), {}, "graph.shape"),
            Bad((Type("f16", (3, 128, 2, 8)), _X, *_ROWS), {}, "graph.rank"),
            Bad((Type("f16", (100, 2, 8)), _X, *_ROWS), {}, "graph.shape"),
            Bad((_C, Type("f16", (3, 2, 8)), *_ROWS), {}, "graph.dtype"),
            Bad((_C, Type("f32", (3, 2, 4)), *_ROWS), {}, "graph.shape"),
            Bad((_C, Type("f32", (3, 16)), *_ROWS), {}, "graph.rank"),
            Bad((_C, _X, Type("u32", (2,)), *_ROWS[1:]), {}, "graph.rank"),
            Bad((_C, _X, _ROWS[0], Type("u32", (2,)), _ROWS[2]), {}, "graph.shape"),
            Bad((_C, _X, _ROWS[0], _ROWS[1], Type("f32", (3,))), {}, "graph.dtype"),
        ),
        writes=True, rows=("x", "slots", "positions"), inplace=write_rows,
    )
)  # fmt: skip

