"""Rows of a step from counts per sequence, and writes of whole rows into a state.

A ragged step holds the rows of sequence 0, then those of sequence 1, and so on: `extents` counts
them.  Device data cannot be refused, so what cannot be is defined: rows past the sum, and rows
whose position would be negative, are absent (slot and position 0xFFFFFFFF).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.attention import CACHES
from lanewise.ir.ops.rules import (
    FLOATS,
    fail,
    integer,
    want_blocks,
    want_dtype,
    want_rank,
    want_type,
)  # fmt: skip
from lanewise.ir.ops.state import stored
from lanewise.ir.values import DTYPES, random

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
ABSENT = 0xFFFFFFFF


def segments(extents: Array, rows: int) -> Iterator[tuple[int, int, int]]:
    """(sequence, first row, count) of every sequence, cut at `rows`."""
    at = 0
    for s, count in enumerate(extents.tolist()):
        count = min(count, rows - at)
        yield s, at, count
        at += count


def _ragged_infer(types: Types, attrs: Attrs) -> Types:
    lengths, extents = types
    want_dtype("ragged_rows", "lengths", lengths, ("u32",))
    want_rank("ragged_rows", "lengths", lengths, 1)
    want_type("ragged_rows", "extents", extents, "u32", lengths.shape)
    rows = integer("ragged_rows", attrs, "rows", 1)
    integer("ragged_rows", attrs, "reach", 1)
    return (Type("u32", (rows,)), Type("u32", (rows,)))


def _ragged(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    rows = types[0].shape[0]
    slots, positions = (np.full(rows, ABSENT, np.uint32) for _ in range(2))
    for s, at, count in segments(args[1], rows):
        length, extent = min(int(args[0][s]), attrs["reach"]), int(args[1][s])
        for i in range(count):
            p = length - extent + i
            if p >= 0:
                slots[at + i], positions[at + i] = s, p
    return slots, positions


def _ragged_samples(rng: np.random.Generator) -> Iterator[Sample]:
    u4 = np.uint32
    yield Sample((np.array([5, 0, 64, 9], u4), np.array([2, 0, 3, 1], u4)),
                 {"rows": 9, "reach": 128})  # fmt: skip
    yield Sample((np.array([1, 700], u4), np.array([3, 2], u4)), {"rows": 4, "reach": 64})
    yield Sample((np.array([0], u4), np.array([2**32 - 1], u4)), {"rows": 2, "reach": 64})


_U = Type("u32", (3,))
_RAGGED = {"rows": 4, "reach": 64}
register(
    OpDef(
        "ragged_rows", ("lengths", "extents"), {"rows": REQUIRED, "reach": REQUIRED},
        _ragged_infer, _ragged,
        "(slots, positions) u32 [rows]: row i of the extents[s] rows of sequence s sits at "
        "position min(lengths[s], reach) - extents[s] + i",
        "kernel", _ragged_samples,
        (
            Bad((_U, Type("u32", (2,))), _RAGGED, "graph.shape"),
            Bad((_U, Type("f32", (3,))), _RAGGED, "graph.dtype"),
            Bad((Type("u32", (3, 1)), _U), _RAGGED, "graph.rank"),
            Bad((_U, _U), {"rows": 0, "reach": 64}, "graph.attribute"),
            Bad((_U, _U), {"rows": 4}, "graph.missing_attribute"),
        ),
    )
)  # fmt: skip


def _prefill_infer(types: Types, attrs: Attrs) -> Types:
    want_type("prefill_rows", "lengths", types[0], "u32", (1,))
    want_type("prefill_rows", "base", types[1], "u32", (1,))
    integer("prefill_rows", attrs, "reach", 1)
    return (Type("u32", (integer("prefill_rows", attrs, "rows", 1),)),)


def _prefill(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    length = min(int(args[0][0]), attrs["reach"])
    rows = np.arange(types[0].shape[0], dtype=np.int64) + int(args[1][0])
    last = np.minimum(rows, length - 1)
    return (np.where(last < 0, ABSENT, last).astype(np.uint32),)


def _prefill_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for length, base in ((9, 0), (9, 6), (0, 3), (500, 60)):
        values = (np.array([length], np.uint32), np.array([base], np.uint32))
        yield Sample(values, {"rows": 5, "reach": 64})


_ONE = Type("u32", (1,))
register(
    OpDef(
        "prefill_rows", ("lengths", "base"), {"rows": REQUIRED, "reach": REQUIRED},
        _prefill_infer, _prefill,
        "Positions u32 [rows] of one sequence's rows: min(base + row, min(length, reach) - 1); "
        "absent if the length is 0",
        "kernel", _prefill_samples,
        (
            Bad((_U, _ONE), _RAGGED, "graph.shape"),
            Bad((_ONE, Type("f32", (1,))), _RAGGED, "graph.dtype"),
            Bad((_ONE, Type("u32", (1, 1))), _RAGGED, "graph.rank"),
            Bad((_ONE, _ONE), {"rows": 4, "reach": -1}, "graph.attribute"),
        ),
    )
)  # fmt: skip


def _scatter_infer(types: Types, attrs: Attrs) -> Types:
    state, x, ids = types
    caches = CACHES if len(state.shape) == 3 else ()
    want_dtype("scatter_rows", "state", state, (*FLOATS, "u32", *caches))
    want_blocks("scatter_rows", "state", state)
    if len(state.shape) < 2:
        fail("rank", "scatter_rows", "state", f"is {state}; it must have rows",
             f"declare it as [{state.size}, 1]")  # fmt: skip
    if x.dtype != state.dtype and not (x.dtype == "f32" and state.dtype in (*FLOATS, *caches)):
        fail("dtype", "scatter_rows", "rows", f"is {x}, state is {state}: dtypes must be equal",
             f"cast(rows, {state.dtype!r})" if x.dtype in FLOATS and state.dtype in FLOATS else
             f"declare rows as {state.dtype}")  # fmt: skip
    want_type("scatter_rows", "rows", x, x.dtype, (*x.shape[:1], *state.shape[1:]))
    want_type("scatter_rows", "ids", ids, "u32", x.shape[:1])
    return (state,)


def _store(state: Array, x: Array, ids: Array) -> None:
    values = stored(state, x)
    for row in np.flatnonzero(ids < state.shape[0]):
        state[ids[row]] = values[row]


def _scatter(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    state = args[0].copy()
    _store(state, *args[1:])
    return (state,)


def _scatter_samples(rng: np.random.Generator) -> Iterator[Sample]:
    ids = np.array([3, 0, 3, 5, 2**32 - 1, 4, 0], np.uint32)
    for dtype in FLOATS:
        yield Sample((random(rng, dtype, (5, 2, 3)), random(rng, dtype, (7, 2, 3)), ids))
    big = np.array([[7e4, 1e-9], [np.nan, -0.0]], "f4")
    yield Sample((np.zeros((2, 2), "f2"), big, np.array([0, 1], np.uint32)))
    words = rng.integers(0, 2**32, (2, 4), np.uint32)
    yield Sample((np.zeros((3, 4), DTYPES["u32"]), words, np.array([2, 9], np.uint32)))


_S, _R, _I = Type("f16", (5, 2, 3)), Type("f32", (4, 2, 3)), Type("u32", (4,))
register(
    OpDef(
        "scatter_rows", ("state", "rows", "ids"), {}, _scatter_infer, _scatter,
        "Row r stored as row ids[r] of a state [C, ...] of the same dtype (f32 rows are rounded to "
        "a half state's, or a q8_0 one's [C, H, D]); id >= C writes nothing, the last of equal ids "
        "wins; the next version",
        "kernel", _scatter_samples,
        (
            Bad((Type("f32", (5,)), _R, _I), {}, "graph.rank"),
            Bad((_S, Type("bf16", (4, 2, 3)), _I), {}, "graph.dtype"),
            Bad((_S, Type("f32", (4, 2, 4)), _I), {}, "graph.shape"),
            Bad((_S, _R, Type("u32", (3,))), {}, "graph.shape"),
            Bad((_S, _R, Type("i32", (4,))), {}, "graph.dtype"),
        ),
        writes=True, rows=("rows", "ids"), inplace=_store,
    )
)  # fmt: skip


def _last_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("last_ids", "ids", types[0], ("u32",))
    want_rank("last_ids", "ids", types[0], 1)
    return (types[0],)


def _last(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    out = args[0].copy()
    seen: set[int] = set()
    for i in range(len(out) - 1, -1, -1):
        if int(out[i]) in seen:
            out[i] = ABSENT
        seen.add(int(args[0][i]))
    return (out,)


def _last_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((np.array([3, 1, 3, 3, 0, ABSENT, 1], np.uint32),))
    yield Sample((np.array([7], np.uint32),))


register(
    OpDef(
        "last_ids", ("ids",), {}, _last_infer, _last,
        "ids u32 [R] with every id that comes again later made 0xFFFFFFFF: writes by them need no "
        "order among rows",
        "kernel", _last_samples,
        (
            Bad((Type("f32", (4,)),), {}, "graph.dtype"),
            Bad((Type("u32", (2, 2)),), {}, "graph.rank"),
        ),
        rows=("ids",),
    )
)  # fmt: skip
