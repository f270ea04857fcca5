"""Contractions: products with a matrix, the quantisation of activations, gather, last-axis sums.

A product's meaning is exact arithmetic (float64 over decoded weights, one rounding): `sums` and
`recipe` name the recipe of a target, not another meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.rules import (
    FLOATS,
    GROUP,
    MATRICES,
    RECIPES,
    SCALARS,
    choice,
    fail,
    is_format,
    want_blocks,
    want_dtype,
    want_matrix,
    want_rank,
    want_type,
    without_last,
)  # fmt: skip
from lanewise.ir.values import (
    DTYPES,
    ActArray,
    QuantArray,
    dequantised,
    opened,
    random,
    rounded,
    wide,
)

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
_PIECE = 1 << 18  # elements of a matrix opened at a time


def _bias(op: str, types: Types, n: int) -> None:
    if len(types) > 2:
        want_type(op, "bias", types[2], "f32", (n,))


def _product(x: Array, w: Any, bias: Sequence[Any], type: Type) -> tuple[Any, ...]:
    """x [R, K] float64 times the rows of w; a piece of w at a time is opened, so that it stays in
    the processor's cache."""
    rows = opened(w)
    step = max(1, _PIECE // rows.shape[1])
    y = np.empty((x.shape[0], rows.shape[0]))
    with np.errstate(invalid="ignore", over="ignore"):
        for n in range(0, rows.shape[0], step):
            y[:, n : n + step] = x @ rows[n : n + step].astype(np.float64).T
    return (rounded(y + wide(bias[0]) if bias else y, type),)


def _linear_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("linear", "x", types[0], ("f32",))
    want_rank("linear", "x", types[0], 2)
    n = want_matrix("linear", "w", types[1], types[0].shape[1])
    _bias("linear", types, n)
    choice("linear", attrs, "sums", ("f32", "f64"))
    return (Type("f32", (types[0].shape[0], n)),)


def _linear(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return _product(wide(args[0]), args[1], args[2:], types[0])


def quantised_matrix(rng: np.random.Generator, fmt: str, n: int, k: int) -> QuantArray:
    """A random matrix in a checkpoint format (for samples)."""
    return QuantArray.encode(random(rng, "f32", (n, k)), fmt)


def _linear_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in MATRICES:
        yield Sample((random(rng, "f32", (3, 7)), random(rng, dtype, (5, 7))))
    bias = random(rng, "f32", (5,))
    yield Sample((random(rng, "f32", (1, 9)), random(rng, "f16", (5, 9)), bias), {"sums": "f64"})
    for fmt in ("q8_0", "q4_1"):
        w = quantised_matrix(rng, fmt, 5, 64)
        yield Sample((random(rng, "f32", (2, 64)), w, bias), {"sums": "f64"})


_X, _W, _Q = Type("f32", (2, 64)), Type("f16", (5, 64)), Type("q4_1", (5, 64))
register(
    OpDef(
        "linear", ("x", "w", "bias?"), {"sums": "f32"}, _linear_infer, _linear,
        "x f32 [R, K] times the rows of w [N, K], plus bias f32 [N]: f32 [R, N]",
        "product", _linear_samples,
        (
            Bad((Type("f16", (2, 64)), _W), {}, "graph.dtype"),
            Bad((Type("f32", (2, 8, 8)), _W), {}, "graph.rank"),
            Bad((_X, Type("f16", (5, 32))), {}, "graph.shape"),
            Bad((_X, Type("u32", (5, 64))), {}, "graph.dtype"),
            Bad((_X, Type("f16", (5, 8, 8))), {}, "graph.rank"),
            Bad((_X, _Q, Type("f32", (4,))), {}, "graph.shape"),
            Bad((_X, _Q, Type("f16", (5,))), {}, "graph.dtype"),
            Bad((Type("f32", (2, 40)), Type("q4_1", (5, 40))), {}, "graph.shape"),
            Bad((_X, _W), {"sums": "f16"}, "graph.attribute"),
            Bad((_X,), {}, "graph.operands"),
        ),
        rtol=2**-20, rows=("x",),
    )
)  # fmt: skip


def _quantize_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("quantize", "x", types[0], ("f32",))
    want_rank("quantize", "x", types[0], 2)
    if types[0].shape[1] % GROUP:
        fail("shape", "quantize", "x", f"is {types[0]}; its rows must be groups of {GROUP}",
             f"rows of {-(-types[0].shape[1] // GROUP) * GROUP} elements")  # fmt: skip
    return (Type(choice("quantize", attrs, "recipe", RECIPES), types[0].shape),)


def _quantize(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return (ActArray.encode(args[0], attrs["recipe"]),)


def _quantize_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for recipe in RECIPES:
        yield Sample((random(rng, "f32", (3, 96)),), {"recipe": recipe})
    x = random(rng, "f32", (1, 64))
    x[0, :32] = 0
    yield Sample((x,), {"recipe": "int8x2"})


register(
    OpDef(
        "quantize", ("x",), {"recipe": REQUIRED}, _quantize_infer, _quantize,
        "x f32 [R, K] as integers with one f32 scale per group of 32: s = max|x| / 16256 "
        "(int8x2) or / 127 (int8), v = round-half-even(x / s), f32 inside",
        "row", _quantize_samples,
        (
            Bad((Type("f32", (2, 40)),), {"recipe": "int8x2"}, "graph.shape"),
            Bad((Type("f16", (2, 64)),), {"recipe": "int8x2"}, "graph.dtype"),
            Bad((Type("f32", (64,)),), {"recipe": "int8x2"}, "graph.rank"),
            Bad((_X,), {"recipe": "int4"}, "graph.attribute"),
            Bad((_X,), {}, "graph.missing_attribute"),
        ),
        rows=("x",),
    )
)  # fmt: skip


def _quant_linear_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("quant_linear", "xq", types[0], RECIPES)
    want_rank("quant_linear", "xq", types[0], 2)
    n = want_matrix("quant_linear", "w", types[1], types[0].shape[1], formats_only=True)
    _bias("quant_linear", types, n)
    return (Type("f32", (types[0].shape[0], n)),)


def _quant_linear(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return _product(dequantised(args[0]), args[1], args[2:], types[0])


def _quant_linear_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for recipe in RECIPES:
        for fmt in ("q8_0", "q4_1"):
            x = ActArray.encode(random(rng, "f32", (3, 64)), recipe)
            yield Sample((x, quantised_matrix(rng, fmt, 5, 64)))
    x = ActArray.encode(random(rng, "f32", (1, 32)), "int8")
    yield Sample((x, quantised_matrix(rng, "q8_0", 3, 32), random(rng, "f32", (3,))))


_XQ = Type("int8x2", (2, 64))
register(
    OpDef(
        "quant_linear", ("xq", "w", "bias?"), {}, _quant_linear_infer, _quant_linear,
        "Quantised activations [R, K] times the rows of a quantised w [N, K]: f32 [R, N]",
        "product", _quant_linear_samples,
        (
            Bad((_X, _Q), {}, "graph.dtype"),
            Bad((_XQ, _W), {}, "graph.dtype"),
            Bad((_XQ, Type("q4_1", (5, 32))), {}, "graph.shape"),
            Bad((Type("int8", (64,)), _Q), {}, "graph.rank"),
            Bad((_XQ, _Q, Type("f32", (5, 1))), {}, "graph.rank"),
        ),
        rtol=2**-20, rows=("xq",),
    )
)  # fmt: skip


def _matmul_infer(types: Types, attrs: Attrs) -> Types:
    a, b = types
    want_dtype("matmul", "a", a, ("f32",))
    want_dtype("matmul", "b", b, MATRICES)
    want_rank("matmul", "a", a, 2)
    want_rank("matmul", "b", b, 2)
    if a.shape[1] != b.shape[0]:
        fail("shape", "matmul", "b", f"is {b}; a is {a}: inner sizes must be equal",
             f"a [M, K] times b [K, N]: b of {a.shape[1]} rows; "
             "contiguous(transpose(b)) if it is stored [N, K]")  # fmt: skip
    return (Type("f32", (a.shape[0], b.shape[1])),)


def _matmul(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    with np.errstate(invalid="ignore", over="ignore"):
        return (rounded(wide(args[0]) @ wide(args[1]), types[0]),)


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in MATRICES:
        yield Sample((random(rng, "f32", (3, 7)), random(rng, dtype, (7, 5))))
    yield Sample((random(rng, "f32", (1, 1)), random(rng, "f32", (1, 1))))


register(
    OpDef(
        "matmul", ("a", "b"), {}, _matmul_infer, _matmul,
        "a f32 [M, K] times b [K, N]: f32 [M, N]", "product", _matmul_samples,
        (
            Bad((_X, Type("f32", (5, 64))), {}, "graph.shape"),
            Bad((_X, Type("q8_0", (64, 32))), {}, "graph.dtype"),
            Bad((Type("f16", (2, 64)), Type("f16", (64, 5))), {}, "graph.dtype"),
            Bad((_X, Type("f32", (64,))), {}, "graph.rank"),
        ),
        rtol=2**-20, rows=("a",),
    )
)  # fmt: skip


def _gather_infer(types: Types, attrs: Attrs) -> Types:
    table, ids = types
    if table.dtype == "u32" and (ids.dtype in FLOATS or is_format(ids.dtype)):
        fail("dtype", "gather_rows", "table", f"is {table}, ids is {ids}: the table comes first",
             "gather_rows(table, ids)")  # fmt: skip
    if not is_format(table.dtype):
        want_dtype("gather_rows", "table", table, SCALARS)
    want_rank("gather_rows", "table", table, 2)
    want_blocks("gather_rows", "table", table)
    want_dtype("gather_rows", "ids", ids, ("u32",))
    dtype = "f32" if is_format(table.dtype) else table.dtype
    return (Type(dtype, (*ids.shape, table.shape[1])),)


def _gather(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    table, ids = args
    rows = opened(table)
    out = np.zeros((*ids.shape, rows.shape[1]), DTYPES[types[0].dtype])
    known = ids < rows.shape[0]
    out[known] = rows[ids[known].astype(np.int64)]
    return (out,)


def _gather_samples(rng: np.random.Generator) -> Iterator[Sample]:
    ids = np.array([3, 0, 4, 5, 2**32 - 1], np.uint32)
    for dtype in MATRICES:
        yield Sample((random(rng, dtype, (5, 3)), ids))
    yield Sample((random(rng, "f32", (5, 1)), ids[:4].reshape(2, 2)))
    yield Sample((quantised_matrix(rng, "q8_0", 5, 64), ids))


register(
    OpDef(
        "gather_rows", ("table", "ids"), {}, _gather_infer, _gather,
        "Row ids[...] of table [V, W]; an id >= V gives zeros; a quantised row is decoded",
        "row", _gather_samples,
        (
            Bad((_X, Type("f32", (3,))), {}, "graph.dtype"),
            Bad((_X, Type("i32", (3,))), {}, "graph.dtype"),
            Bad((Type("f32", (64,)), Type("u32", (3,))), {}, "graph.rank"),
            Bad((Type("int8x2", (2, 64)), Type("u32", (3,))), {}, "graph.dtype"),
            Bad((Type("q4_k", (2, 64)), Type("u32", (3,))), {}, "graph.shape"),
        ),
        rows=("ids",),
    )
)  # fmt: skip


def _reduce(op: str, formula: Any, doc: str, rtol: float) -> None:
    def infer(types: Types, attrs: Attrs) -> Types:
        want_dtype(op, "x", types[0], FLOATS)
        return (Type(types[0].dtype, without_last(types[0].shape)),)

    def ref(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
        return (rounded(formula(wide(args[0])).reshape(types[0].shape), types[0]),)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((1,), (7,), (2, 33), (2, 3, 1)):
            yield Sample((random(rng, "f32", shape),))
        yield Sample((random(rng, "bf16", (2, 5)),))

    bad = (
        Bad((Type("u32", (3,)),), {}, "graph.dtype"),
        Bad((_X,), {"axis": 0}, "graph.unknown_attribute"),
    )
    register(OpDef(op, ("x",), {}, infer, ref, doc, "row", samples, bad, rtol=rtol, rows=("x",)))


_reduce("reduce_sum", partial(np.sum, axis=-1), "The sum over the last axis", 2**-20)
_reduce("reduce_max", partial(np.max, axis=-1), "The largest of the last axis; NaN if any is", 0)
