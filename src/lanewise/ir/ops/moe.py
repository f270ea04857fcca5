"""What a mixture of experts needs: sort tokens by expert, multiply each segment, bring it back.

`route` sorts, stably: an expert's rows are in the order of their tokens.  Counts are device data:
rows past their sum are exactly 0 and read no weight, counts beyond the rows are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.ragged import ABSENT, segments
from lanewise.ir.ops.rules import MATRICES, fail, integer, want_dtype, want_rank, want_type
from lanewise.ir.values import random, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
GROUP = 128  # codes that share one scale and zero


def _grouped_infer(types: Types, attrs: Attrs) -> Types:
    x, w, counts = types
    want_dtype("grouped_matmul", "x", x, ("f32",))
    want_rank("grouped_matmul", "x", x, 2)
    want_dtype("grouped_matmul", "w", w, MATRICES)
    want_rank("grouped_matmul", "w", w, 3)
    if w.shape[1] != x.shape[1]:
        fail("shape", "grouped_matmul", "w", f"is {w}; x is {x}: inner sizes must be equal",
             f"declare w as [experts, {x.shape[1]}, outputs]")  # fmt: skip
    want_type("grouped_matmul", "counts", counts, "u32", w.shape[:1])
    return (Type("f32", (x.shape[0], w.shape[2])),)


def _grouped(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    x, out = wide(args[0]), np.zeros(types[0].shape, np.float32)
    for e, at, count in segments(args[2], x.shape[0]):
        if count:
            out[at : at + count] = x[at : at + count] @ wide(args[1][e])
    return (out,)


def _grouped_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, counts in (("f32", [2, 0, 5]), ("f16", [9, 9, 9]), ("bf16", [0, 0, 1]),
                          ("f8_e4m3", [3, 5, 0]), ("f8_e5m2", [0, 5, 9])):  # fmt: skip
        yield Sample((random(rng, "f32", (8, 6)), random(rng, dtype, (3, 6, 20)),
                      np.array(counts, np.uint32)))  # fmt: skip


_X, _W, _C = Type("f32", (8, 6)), Type("f16", (3, 6, 5)), Type("u32", (3,))
register(
    OpDef(
        "grouped_matmul", ("x", "w", "counts"), {}, _grouped_infer, _grouped,
        "x f32 [T, K], sorted by expert, times w [E, K, N] of each row's expert; counts u32 [E]",
        "kernel", _grouped_samples,
        (
            Bad((_X, Type("f16", (3, 5, 5)), _C), {}, "graph.shape"),
            Bad((_X, _W, Type("u32", (4,))), {}, "graph.shape"),
            Bad((_X, Type("f16", (6, 5)), _C), {}, "graph.rank"),
            Bad((Type("f16", (8, 6)), _W, _C), {}, "graph.dtype"),
            Bad((_X, _W, Type("f32", (3,))), {}, "graph.dtype"),
        ),
        rtol=2**-20,
    )
)  # fmt: skip


def _route_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("route", "ids", types[0], ("u32",))
    want_rank("route", "ids", types[0], 2)
    experts = integer("route", attrs, "experts", 1)
    rows = Type("u32", (types[0].size,))
    return (Type("u32", (experts,)), rows, rows)


def _route(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    flat: Array = args[0].reshape(-1).astype(np.int64)
    known = flat < attrs["experts"]
    sort_by: Array = np.asarray(np.where(known, flat, int(attrs["experts"])))
    order = np.argsort(sort_by, kind="stable")[: known.sum()]
    tokens, permutation = (np.full(flat.size, ABSENT, np.uint32) for _ in range(2))
    permutation[: len(order)] = order
    tokens[: len(order)] = order // args[0].shape[1]
    counts = np.bincount(flat[known], minlength=attrs["experts"])
    return counts.astype(np.uint32), tokens, permutation


def _route_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((rng.integers(0, 4, (6, 2)).astype(np.uint32),), {"experts": 4})
    yield Sample((rng.integers(0, 9, (5, 3)).astype(np.uint32),), {"experts": 5})


_I = Type("u32", (8, 2))
register(
    OpDef(
        "route", ("ids",), {"experts": REQUIRED}, _route_infer, _route,
        "(counts u32 [E], tokens u32 [T*k], permutation u32 [T*k]) of ids u32 [T, k]: row i of the "
        "sorted rows is token tokens[i], choice permutation[i] of the flat ids; ids beyond E take "
        "no row, and rows left over are 0xFFFFFFFF",
        "kernel", _route_samples,
        (
            Bad((Type("f32", (8, 2)),), {"experts": 4}, "graph.dtype"),
            Bad((Type("u32", (8,)),), {"experts": 4}, "graph.rank"),
            Bad((_I,), {"experts": 0}, "graph.attribute"),
            Bad((_I,), {}, "graph.missing_attribute"),
        ),
    )
)  # fmt: skip


def _combine_infer(types: Types, attrs: Attrs) -> Types:
    rows, weights, permutation = types
    want_dtype("combine", "rows", rows, ("f32",))
    want_rank("combine", "rows", rows, 2)
    want_dtype("combine", "weights", weights, ("f32",))
    want_rank("combine", "weights", weights, 2)
    if weights.size != rows.shape[0]:
        fail("shape", "combine", "weights", f"is {weights}; rows is {rows}: one weight a row",
             "weights [T, k] and rows [T*k, N], as `route` sorts them")  # fmt: skip
    want_type("combine", "permutation", permutation, "u32", rows.shape[:1])
    return (Type("f32", (weights.shape[0], rows.shape[1])),)


def _combine(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    rows, weights, out = wide(args[0]), wide(args[1]), np.zeros(types[0].shape)
    for i, p in enumerate(args[2].tolist()):
        if p < weights.size:
            out[p // weights.shape[1]] += weights.reshape(-1)[p] * rows[i]
    return (out.astype(np.float32),)


def _combine_samples(rng: np.random.Generator) -> Iterator[Sample]:
    permutation = rng.permutation(12).astype(np.uint32)
    permutation[10:] = ABSENT
    yield Sample((random(rng, "f32", (12, 7)), random(rng, "f32", (6, 2)), permutation))
    yield Sample((random(rng, "f32", (3, 1)), random(rng, "f32", (1, 3)), permutation[:3]))


_R = Type("f32", (16, 5))
register(
    OpDef(
        "combine", ("rows", "weights", "permutation"), {}, _combine_infer, _combine,
        "Per token the sum of weights [T, k] times its sorted rows [T*k, N], in ascending order of "
        "expert: f32 [T, N]; permutation as `route` gives it",
        "kernel", _combine_samples,
        (
            Bad((_R, Type("f32", (8, 3)), Type("u32", (16,))), {}, "graph.shape"),
            Bad((_R, Type("f32", (8, 2)), Type("u32", (8,))), {}, "graph.shape"),
            Bad((_R, Type("f32", (16,)), Type("u32", (16,))), {}, "graph.rank"),
            Bad((_R, Type("f16", (8, 2)), Type("u32", (16,))), {}, "graph.dtype"),
        ),
        rtol=2**-20,
    )
)  # fmt: skip


def _int4_infer(types: Types, attrs: Attrs) -> Types:
    x, codes, scales, zeros = types
    want_dtype("int4_matmul", "x", x, ("f32",))
    want_rank("int4_matmul", "x", x, 2)
    weights = x.shape[1] * integer("int4_matmul", attrs, "n", 1)
    want_type("int4_matmul", "codes", codes, "u32", (-(-weights // 8),))
    for name, t in (("scales", scales), ("zeros", zeros)):
        want_type("int4_matmul", name, t, "f16", (-(-weights // GROUP),))
    return (Type("f32", (x.shape[0], attrs["n"])),)


def decode_int4(codes: Any, scales: Any, zeros: Any, weights: int) -> Any:
    """f32 [weights]: (code - z) * s by groups of 128; a group of scale 0 is its zero."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    nibbles = (codes[:, None] >> shifts & 15).reshape(-1)[:weights].astype(np.float32)
    s, z = (np.repeat(p.astype(np.float32), GROUP)[:weights] for p in (scales, zeros))
    return np.where(s == 0, z, (nibbles - z) * s)


def _int4(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    k, n = args[0].shape[1], attrs["n"]
    codes, scales, zeros = args[1:]
    w: Array = decode_int4(codes, scales, zeros, k * n).reshape(k, n)
    return ((wide(args[0]) @ w.astype(np.float64)).astype(np.float32),)


def _int4_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for m, k, n in ((1, 33, 20), (6, 20, 7)):
        groups = -(-k * n // GROUP)
        scales = (rng.random(groups) / 8).astype(np.float16)
        scales[0] = 0
        codes = rng.integers(0, 2**32, -(-k * n // 8), np.uint32)
        zeros = (rng.random(groups) * 15).astype(np.float16)
        yield Sample((random(rng, "f32", (m, k)), codes, scales, zeros), {"n": n})


_4X, _4C, _4S = Type("f32", (2, 16)), Type("u32", (32,)), Type("f16", (2,))
register(
    OpDef(
        "int4_matmul", ("x", "codes", "scales", "zeros"), {"n": REQUIRED}, _int4_infer, _int4,
        "x f32 [M, K] times a matrix [K, n] of 4-bit codes, eight in a u32 word, low nibble first; "
        "(code - zero) * scale by groups of 128 codes, a group of scale 0 is its zero",
        "kernel", _int4_samples,
        (
            Bad((_4X, Type("u32", (31,)), _4S, _4S), {"n": 16}, "graph.shape"),
            Bad((_4X, _4C, Type("f32", (2,)), _4S), {"n": 16}, "graph.dtype"),
            Bad((_4X, _4C, _4S, Type("f16", (3,))), {"n": 16}, "graph.shape"),
            Bad((Type("f32", (16,)), _4C, _4S, _4S), {"n": 16}, "graph.rank"),
            Bad((_4X, _4C, _4S, _4S), {"n": 0}, "graph.attribute"),
        ),
        rtol=2**-20,
    )
)  # fmt: skip


def _angles_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("rope_angles", "positions", types[0], ("u32",))
    want_rank("rope_angles", "positions", types[0], 1)
    want_type("rope_angles", "base", types[1], "f32", (1,))
    for factors in types[2:]:
        want_type("rope_angles", "factors", factors, "f32", (attrs["rotary"] // 2,))
    rotary = integer("rope_angles", attrs, "rotary", 2)
    if rotary % 2:
        fail("attribute", "rope_angles", "rotary", f"is {rotary}; it must be even",
             f"give {rotary + 1}, or {rotary - 1}")  # fmt: skip
    return (Type("f32", (*types[0].shape, rotary)),)


def _angles(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    half = attrs["rotary"] // 2
    exponents: Array = np.arange(half, dtype=np.float64) / -half
    frequency: Array = np.power(float(args[1][0]), exponents)
    with np.errstate(all="ignore"):
        for factors in args[2:]:
            frequency = frequency / factors.astype(np.float64)
        angles: Array = args[0].astype(np.float64)[:, None] * frequency
        angles = np.where((angles >= 0) & (angles < 2.0**33), angles, np.nan)
        return (np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32),)


def _angles_samples(rng: np.random.Generator) -> Iterator[Sample]:
    positions = np.array([0, 1, 2, 77, 4095, 131071, 1000003], np.uint32)
    for base, rotary in ((10000.0, 8), (500000.0, 64), (2.0, 2)):
        given = positions, np.array([base], np.float32)
        yield Sample(given, {"rotary": rotary})
        factors = (1 + 7 * rng.random(rotary // 2)).astype(np.float32)
        yield Sample((*given, factors), {"rotary": rotary})
    odd = np.array([1, 0, -1, np.nan], np.float32)
    yield Sample((positions, np.array([10000], np.float32), odd), {"rotary": 8})


register(
    OpDef(
        "rope_angles", ("positions", "base", "factors?"), {"rotary": REQUIRED},
        _angles_infer, _angles,
        "f32 [R, rotary]: cosines, then sines, of position / base^(2i/rotary), divided by factors "
        "f32 [rotary/2] if given, in double precision inside (NaN for an angle below 0 or from "
        "2^33): a table for `rope` of which row r serves row r",
        "kernel", _angles_samples,
        (
            Bad((Type("f32", (3,)), Type("f32", (1,))), {"rotary": 8}, "graph.dtype"),
            Bad((Type("u32", (3,)), Type("f32", (2,))), {"rotary": 8}, "graph.shape"),
            Bad((Type("u32", (3, 1)), Type("f32", (1,))), {"rotary": 8}, "graph.rank"),
            Bad((Type("u32", (3,)), Type("f32", (1,))), {"rotary": 7}, "graph.attribute"),
            Bad((Type("u32", (3,)), Type("f32", (1,)), Type("f32", (8,))), {"rotary": 8},
                "graph.shape"),
        ),
        ulp=1, rtol=2**-28,
    )
)  # fmt: skip
