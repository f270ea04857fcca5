"""Elementwise rows: every operand of one dtype, NumPy broadcasting, float64 inside.

A result is rounded once, to the dtype of the operands.  NaN in gives NaN out; maximum and
minimum of a NaN and a number are NaN too, and order -0 below +0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, Infer, OpDef, Sample, register
from lanewise.ir.ops.rules import (
    FLOATS,
    MATRICES,
    broadcast_shapes,
    choice,
    fail,
    want_dtype,
    want_type,
)  # fmt: skip
from lanewise.ir.values import random, rounded, wide

Array = np.ndarray[Any, Any]
_ERF = np.frompyfunc(math.erf, 1, 1)
_F32_23 = Type("f32", (2, 3))


def _infer(op: str, names: tuple[str, ...]) -> Infer:
    def infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
        for name, t in zip(names, types, strict=True):
            want_dtype(op, name, t, FLOATS)
            if t.dtype != types[0].dtype:
                fail(
                    "dtype", op, name, f"is {t}, {names[0]} is {types[0]}: dtypes must be equal",
                    f"cast({name}, {types[0].dtype!r})",
                )  # fmt: skip
        return (Type(types[0].dtype, broadcast_shapes(op, names, types)),)

    return infer


def _reference(formula: Callable[..., Array]) -> Any:
    def ref(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
        with np.errstate(all="ignore"):
            return (rounded(formula(*map(wide, args)), types[0]),)

    return ref


def _row(op: str, names: tuple[str, ...], formula: Callable[..., Array], doc: str,
         ulp: float) -> None:  # fmt: skip
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        n = len(names)
        for dtype in FLOATS:
            for shape in ((1,), (5,), (3, 7), (2, 1, 33)):
                yield Sample(tuple(random(rng, dtype, shape) for _ in range(n)))
        special = np.array([0, -0.0, 1, -1, 1e-30, -80, 88, 1e30, np.inf, -np.inf, np.nan], "f4")
        if n == 1:
            yield Sample((special,))
        else:
            yield Sample((special[:, None], special))
            yield Sample((random(rng, "f32", (4, 1)), random(rng, "f32", (3, 1, 6))))

    bad = [
        Bad((Type("u32", (2, 3)),) * len(names), {}, "graph.dtype"),
        Bad((Type("q8_0", (2, 32)),) * len(names), {}, "graph.dtype"),
        Bad((Type("f8_e4m3", (2, 3)),) * len(names), {}, "graph.dtype"),
        Bad((_F32_23,) * (len(names) + 1), {}, "graph.operands"),
        Bad((_F32_23,) * len(names), {"axis": 1}, "graph.unknown_attribute"),
    ]
    if len(names) == 2:
        bad.append(Bad((_F32_23, Type("f16", (2, 3))), {}, "graph.dtype"))
        bad.append(Bad((_F32_23, Type("f32", (3, 2))), {}, "graph.shape"))
    register(
        OpDef(op, names, {}, _infer(op, names), _reference(formula), doc, "elementwise",
              samples, tuple(bad), ulp=ulp)
    )  # fmt: skip


def _sigmoid(x: Array) -> Array:
    # exp of a negative number on both sides: no overflow, full relative precision
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _silu(x: Array) -> Array:
    return np.where(np.isneginf(x), -0.0, x * _sigmoid(x))


def _gelu(x: Array) -> Array:
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.where(np.isneginf(x), -0.0, x * _sigmoid(2 * u))  # (1 + tanh u)/2 = sigmoid(2u)


def _swiglu(gate: Array, up: Array) -> Array:
    return _silu(gate) * up


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _relu(x: Array) -> Array:
    return np.where(x > 0, x, np.where(np.isnan(x), x, 0.0))


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x), np.float64)


def _gelu_erf(x: Array) -> Array:
    tail = np.asarray(np.frompyfunc(math.erfc, 1, 1)(-x / math.sqrt(2)), np.float64)
    return np.where(np.isneginf(x), -0.0, 0.5 * x * tail)


def _extreme(bigger: bool) -> Callable[[Array, Array], Array]:
    def pick(a: Array, b: Array) -> Array:
        first = np.signbit(a) != bigger  # of two equal numbers: which zero
        best = np.maximum(a, b) if bigger else np.minimum(a, b)
        return np.where(a == b, np.where(first, a, b), best)

    return pick


_TWO = ("a", "b")
_row("add", _TWO, np.add, "a + b", 0.5)
_row("sub", _TWO, np.subtract, "a - b", 0.5)
_row("mul", _TWO, np.multiply, "a * b", 0.5)
_row("div", _TWO, np.divide, "a / b; x / 0 is an infinity, 0 / 0 is NaN", 0.5)
_row("maximum", _TWO, _extreme(True), "The larger; NaN if either is; -0 < +0", 0)
_row("minimum", _TWO, _extreme(False), "The smaller; NaN if either is; -0 < +0", 0)
_row("swiglu", ("gate", "up"), _swiglu, "silu(gate) * up", 4)
_ONE = ("x",)
_row("neg", _ONE, np.negative, "-x", 0)
_row("abs", _ONE, np.abs, "|x|", 0)
_row("square", _ONE, np.square, "x * x", 0.5)
_row("sqrt", _ONE, np.sqrt, "The square root; NaN below 0", 0.5)
_row("rsqrt", _ONE, _rsqrt, "1 / sqrt(x)", 2)
_row("exp", _ONE, np.exp, "e to the x", 2)
_row("log", _ONE, np.log, "The natural logarithm; NaN below 0, -inf at 0", 2)
_row("tanh", _ONE, np.tanh, "The hyperbolic tangent", 2)
_row("sigmoid", _ONE, _sigmoid, "1 / (1 + exp(-x))", 2)
_row("silu", _ONE, _silu, "x * sigmoid(x); -0 at -inf", 3)
_row("relu", _ONE, _relu, "x above 0, else +0", 0)
_row("gelu", _ONE, _gelu, "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); -0 at -inf", 4)
_row("gelu_erf", _ONE, _gelu_erf, "0.5 x (1 + erf(x / sqrt 2)); -0 at -inf", 4)
_row("erf", _ONE, _erf, "The error function", 2)


def _scale_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("scale", "x", types[0], FLOATS)
    want_type("scale", "s", types[1], "f32", (1,))
    return (types[0],)


def _scale_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype in FLOATS:
        yield Sample((random(rng, dtype, (3, 5)), random(rng, "f32", (1,))))


register(
    OpDef(
        "scale", ("x", "s"), {}, _scale_infer, _reference(np.multiply),
        "x times one f32 number; the dtype of x", "elementwise", _scale_samples,
        (
            Bad((_F32_23, Type("f32", (3,))), {}, "graph.shape"),
            Bad((_F32_23, Type("u32", (1,))), {}, "graph.dtype"),
            Bad((_F32_23, Type("f32", (1, 1))), {}, "graph.rank"),
            Bad((Type("u32", (2, 3)), Type("f32", (1,))), {}, "graph.dtype"),
        ),
        ulp=0.5,
    )
)  # fmt: skip


def _cast_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("cast", "x", types[0], MATRICES)
    return (Type(choice("cast", attrs, "dtype", MATRICES), types[0].shape),)


def _cast(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    return (rounded(args[0], types[0]),)


def _cast_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for source in MATRICES:
        for dtype in MATRICES:
            x = rng.standard_normal((3, 5)) * 100
            yield Sample((rounded(x, Type(source, x.shape)),), {"dtype": dtype})
    edge = [65504, 65519.99, 65520, 1e-8, 6e-8, 3e38, np.inf, np.nan, -0.0, 2049, 257]
    edge += [464, 465, -464, -480, 57344, 61439, 61440, 2**-10, 2**-17, 3 * 2**-10, 2**-6 * 0.97]
    for dtype in MATRICES:
        yield Sample((np.array(edge, "f4"),), {"dtype": dtype})


register(
    OpDef(
        "cast", ("x",), {"dtype": REQUIRED}, _cast_infer, _cast,
        "x in another float dtype: nearest even; beyond its range there is infinity (f8_e4m3, "
        "which has none: NaN); NaN stays NaN",
        "elementwise", _cast_samples,
        (
            Bad((_F32_23,), {}, "graph.missing_attribute"),
            Bad((_F32_23,), {"dtype": "u32"}, "graph.attribute"),
            Bad((_F32_23,), {"dtype": 3}, "graph.attribute"),
            Bad((Type("u32", (2, 3)),), {"dtype": "f32"}, "graph.dtype"),
        ),
    )
)  # fmt: skip
