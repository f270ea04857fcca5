"""Norms and softmax: over the last axis, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.rules import FLOATS, fail, number, want_dtype, want_type
from lanewise.ir.values import random, rounded, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]


def _norm_infer(op: str) -> Any:
    def infer(types: Types, attrs: Attrs) -> Types:
        want_dtype(op, "x", types[0], FLOATS)
        for name, t in zip(("gain", "bias"), types[1:], strict=False):
            if t.shape[-1:] == types[0].shape and len(t.shape) > 1:
                fail("shape", op, name, f"is {t}, x is {types[0]}: x comes first",
                     f"{op}(x, {name}, ...)")  # fmt: skip
            want_type(op, name, t, "f32", types[0].shape[-1:])
        number(op, attrs, "eps", above=0)
        return (types[0],)

    return infer


def _rms_norm(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    x = wide(args[0])
    r = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + attrs["eps"])
    return (rounded(x * r * wide(args[1]), types[0]),)


def _layer_norm(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    x = wide(args[0])
    c = x - np.mean(x, -1, keepdims=True)
    y = c / np.sqrt(np.mean(c * c, -1, keepdims=True) + attrs["eps"]) * wide(args[1])
    return (rounded(y + wide(args[2]) if len(args) > 2 else y, types[0]),)


def _norm_samples(parameters: int) -> Any:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((1,), (3, 7), (2, 3, 33)):
            vectors = [random(rng, "f32", shape[-1:]) for _ in range(parameters)]
            yield Sample((random(rng, "f32", shape), *vectors), {"eps": 1e-5})
        x = random(rng, "bf16", (2, 6))
        yield Sample((x, random(rng, "f32", (6,))), {"eps": 1e-6})
        yield Sample((np.zeros((2, 5), "f4"), random(rng, "f32", (5,))), {"eps": 1e-5})

    return samples


_X, _G, _E = Type("f32", (2, 6)), Type("f32", (6,)), {"eps": 1e-5}


def _bad() -> tuple[Bad, ...]:
    return (
        Bad((_X, Type("f32", (5,))), _E, "graph.shape"),
        Bad((_X, Type("f16", (6,))), _E, "graph.dtype"),
        Bad((_X, Type("f32", (1, 6))), _E, "graph.rank"),
        Bad((Type("u32", (2, 6)), _G), _E, "graph.dtype"),
        Bad((_X, _G), {"eps": 0.0}, "graph.attribute"),
        Bad((_X, _G), {"eps": float("nan")}, "graph.attribute"),
        Bad((_X, _G), {"eps": float("inf")}, "graph.attribute"),
        Bad((_X, _G), {"eps": "1e-5"}, "graph.attribute"),
        Bad((_X, _G), {}, "graph.missing_attribute"),
        Bad((_X,), _E, "graph.operands"),
    )


register(
    OpDef(
        "rms_norm", ("x", "gain"), {"eps": REQUIRED}, _norm_infer("rms_norm"), _rms_norm,
        "x / sqrt(mean(x^2) + eps) * gain over the last axis; gain f32 [W], eps > 0",
        "row", _norm_samples(1), _bad(), ulp=4, rtol=2**-20, rows=("x",),
    )
)  # fmt: skip
register(
    OpDef(
        "layer_norm", ("x", "gain", "bias?"), {"eps": REQUIRED}, _norm_infer("layer_norm"),
        _layer_norm,
        "(x - mean) / sqrt(variance + eps) * gain + bias over the last axis; eps > 0",
        "row", _norm_samples(2),
        (*_bad(), Bad((_X, _G, Type("f32", (5,))), _E, "graph.shape")),
        ulp=4, rtol=2**-20, rows=("x",),
    )
)  # fmt: skip


def softmax64(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Softmax of float64 rows; a row that is -inf throughout gives NaN."""
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.max(x, -1, keepdims=True))
        return e / np.sum(e, -1, keepdims=True)


def _softmax_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("softmax", "x", types[0], FLOATS)
    return (types[0],)


def _softmax(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    return (rounded(softmax64(wide(args[0])), types[0]),)


def _softmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1,), (7,), (2, 33), (2, 3, 5)):
        yield Sample((random(rng, "f32", shape),))
    yield Sample((random(rng, "f16", (2, 5)),))
    yield Sample((np.array([[1e30, -1e30, 1e30], [-np.inf, 0, 1]], "f4"),))


register(
    OpDef(
        "softmax", ("x",), {}, _softmax_infer, _softmax,
        "exp(x - max) / sum over the last axis", "row", _softmax_samples,
        (
            Bad((Type("u32", (2, 3)),), {}, "graph.dtype"),
            Bad((_X,), {"axis": 0}, "graph.unknown_attribute"),
        ),
        ulp=4, rtol=2**-20, rows=("x",),
    )
)  # fmt: skip
