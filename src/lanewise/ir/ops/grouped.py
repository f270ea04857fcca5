"""Products of several matrices, by row: `linear` where each expert has a matrix of its own.

Rows come sorted by expert.  Counts are device data: rows past their sum are exactly 0 and read no
weight, counts beyond the rows are cut.  A row's numbers are those of its expert's own product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import Bad, OpDef, Sample, register
from lanewise.ir.ops.ragged import segments
from lanewise.ir.ops.rules import (
    RECIPES,
    choice,
    fail,
    want_blocks,
    want_dtype,
    want_rank,
    want_type,
    want_weight,
)  # fmt: skip
from lanewise.ir.values import ActArray, QuantArray, dequantised, opened, random, rounded, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]


def _want_matrices(op: str, types: Types, formats_only: bool) -> Types:
    x, w, counts = types
    want_weight(op, "w", w, formats_only)
    want_rank(op, "w", w, 3)
    if w.shape[2] != x.shape[1]:
        fail("shape", op, "w", f"is {w}; its rows must have {x.shape[1]} elements",
             f"declare w as [experts, outputs, {x.shape[1]}]")  # fmt: skip
    want_blocks(op, "w", w)
    want_type(op, "counts", counts, "u32", w.shape[:1])
    return (Type("f32", (x.shape[0], w.shape[1])),)


def _products(x: Array, w: Any, counts: Array, type: Type) -> tuple[Any, ...]:
    """x [T, K] float64, each segment times the rows of its matrix of w [E, N, K]."""
    matrices, y = opened(w), np.zeros(type.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        for e, at, count in segments(counts, x.shape[0]):
            if count:
                y[at : at + count] = x[at : at + count] @ matrices[e].astype(np.float64).T
    return (rounded(y, type),)


def _grouped_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("grouped_linear", "x", types[0], ("f32",))
    want_rank("grouped_linear", "x", types[0], 2)
    choice("grouped_linear", attrs, "sums", ("f32", "f64"))
    return _want_matrices("grouped_linear", types, False)


def _grouped(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return _products(wide(args[0]), args[1], args[2], types[0])


def _counts(*values: int) -> Array:
    return np.array(values, np.uint32)


def _grouped_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, counts in (("f32", (2, 0, 5)), ("f16", (9, 9, 9)), ("bf16", (0, 0, 1)),
                          ("f8_e4m3", (3, 5, 0))):  # fmt: skip
        w = random(rng, dtype, (3, 20, 6))
        yield Sample((random(rng, "f32", (8, 6)), w, _counts(*counts)))
    for fmt, counts in (("q8_0", (1, 3)), ("q4_1", (0, 0)), ("q4_0", (2**32 - 1, 7))):
        w = QuantArray.encode(random(rng, "f32", (2, 18, 64)), fmt)
        yield Sample((random(rng, "f32", (6, 64)), w, _counts(*counts)), {"sums": "f64"})


_X, _W, _C = Type("f32", (8, 64)), Type("f16", (3, 5, 64)), Type("u32", (3,))
_Q = Type("q4_0", (3, 5, 64))
register(
    OpDef(
        "grouped_linear", ("x", "w", "counts"), {"sums": "f32"}, _grouped_infer, _grouped,
        "x f32 [T, K], sorted by expert, times the rows of each expert's matrix of w [E, N, K] (a "
        "float dtype or a format); counts u32 [E]: f32 [T, N]; rows past the sum are 0",
        "product", _grouped_samples,
        (
            Bad((Type("f16", (8, 64)), _W, _C), {}, "graph.dtype"),
            Bad((Type("f32", (8, 8, 8)), _W, _C), {}, "graph.rank"),
            Bad((_X, Type("f16", (5, 64)), _C), {}, "graph.rank"),
            Bad((_X, Type("q4_0", (3, 5, 32)), _C), {}, "graph.shape"),
            Bad((Type("f32", (8, 40)), Type("q4_0", (3, 5, 40)), _C), {}, "graph.shape"),
            Bad((_X, Type("u32", (3, 5, 64)), _C), {}, "graph.dtype"),
            Bad((_X, _Q, Type("u32", (4,))), {}, "graph.shape"),
            Bad((_X, _Q, Type("i32", (3,))), {}, "graph.dtype"),
            Bad((_X, _Q, _C), {"sums": "f16"}, "graph.attribute"),
            Bad((_X, _Q), {}, "graph.operands"),
        ),
        rtol=2**-20, rows=("x",),
    )
)  # fmt: skip


def _quant_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("quant_grouped_linear", "xq", types[0], RECIPES)
    want_rank("quant_grouped_linear", "xq", types[0], 2)
    return _want_matrices("quant_grouped_linear", types, True)


def _quant(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return _products(dequantised(args[0]), args[1], args[2], types[0])


def _quant_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for recipe in RECIPES:
        x = ActArray.encode(random(rng, "f32", (5, 64)), recipe)
        w = QuantArray.encode(random(rng, "f32", (3, 5, 64)), "q4_1")
        yield Sample((x, w, _counts(1, 0, 3)))


_XQ = Type("int8x2", (8, 64))
register(
    OpDef(
        "quant_grouped_linear", ("xq", "w", "counts"), {}, _quant_infer, _quant,
        "Quantised activations [T, K], sorted by expert, times the rows of each expert's matrix of "
        "a quantised w [E, N, K]: f32 [T, N]; see grouped_linear",
        "product", _quant_samples,
        (
            Bad((_X, _Q, _C), {}, "graph.dtype"),
            Bad((_XQ, _W, _C), {}, "graph.dtype"),
            Bad((_XQ, Type("q4_0", (5, 64)), _C), {}, "graph.rank"),
            Bad((Type("int8", (64,)), _Q, _C), {}, "graph.rank"),
            Bad((_XQ, _Q, Type("u32", (2,))), {}, "graph.shape"),
        ),
        rtol=2**-20, rows=("xq",),
    )
)  # fmt: skip

