"""Shape rows: the same numbers at other places.  They take scalar dtypes only: the bytes of a
quantised value are not its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.rules import SCALARS, SMALL, axis, fail, integers, want_dtype
from lanewise.ir.values import random

_T = Type("f32", (2, 3, 4))
_QUANT = Type("q8_0", (2, 32))


def _positive(op: str, attrs: Mapping[str, Any], name: str) -> tuple[int, ...]:
    shape = integers(op, attrs, name)
    if not shape or any(d <= 0 for d in shape):
        fail("attribute", op, name, f"is {list(shape)}; every dimension must be > 0",
             f"give {name} of positive integers; a scalar is (1,)")  # fmt: skip
    return shape


def _reshape_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("reshape", "x", types[0], SCALARS)
    left = [d for d in integers("reshape", attrs, "shape") if d != -1]
    known = math.prod(left)
    if len(left) == len(attrs["shape"]) - 1 and known > 0 and types[0].size % known == 0:
        asked = tuple(types[0].size // known if d == -1 else d for d in attrs["shape"])
        fail("attribute", "reshape", "shape", f"is {list(attrs['shape'])}; every dimension must be "
             "> 0", f"reshape(x, {asked})")  # fmt: skip
    shape = _positive("reshape", attrs, "shape")
    if math.prod(shape) != types[0].size:
        fail("shape", "reshape", "x", f"is {types[0]}; it does not have the size of {list(shape)}",
             f"give a shape of {types[0].size} elements")  # fmt: skip
    return (Type(types[0].dtype, shape),)


def _reshape(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    # the shape of the result's type, not of the attribute: the interpreter may run fewer rows
    return (args[0].reshape(types[0].shape),)


def _permute_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("permute", "x", types[0], SCALARS)
    shape = types[0].shape
    axes = [axis("permute", "axes", a, len(shape)) for a in integers("permute", attrs, "axes")]
    if sorted(axes) != list(range(len(shape))):
        fail("attribute", "permute", "axes", f"is {attrs['axes']}; each axis must come once",
             f"name every axis of 0..{len(shape) - 1} once")  # fmt: skip
    return (Type(types[0].dtype, tuple(shape[a] for a in axes)),)


def _permute(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    return (args[0].transpose(attrs["axes"]),)


def _transpose_axes(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[int, int]:
    axes = integers("transpose", attrs, "axes")
    if len(axes) != 2:
        fail("attribute", "transpose", "axes", f"is {axes}; it must name two axes", "use `permute`")
    a, b = (axis("transpose", "axes", v, len(types[0].shape)) for v in axes)
    return a, b


def _transpose_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("transpose", "x", types[0], SCALARS)
    a, b = _transpose_axes(types, attrs)
    shape = list(types[0].shape)
    shape[a], shape[b] = shape[b], shape[a]
    return (Type(types[0].dtype, tuple(shape)),)


def _transpose(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    return (np.swapaxes(args[0], *attrs["axes"]),)


def _slice_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("slice", "x", types[0], SCALARS)
    shape = types[0].shape
    starts, stops = integers("slice", attrs, "starts"), integers("slice", attrs, "stops")
    for name, values in (("starts", starts), ("stops", stops)):
        if len(values) != len(shape):
            fail("attribute", "slice", name, f"has {len(values)} entries; x is {types[0]}",
                 f"give {len(shape)}, one for each axis")  # fmt: skip
    for a, b, d in zip(starts, stops, shape, strict=True):
        if not 0 <= a < b <= d:
            fail("attribute", "slice", "starts", f"and stops give {a}:{b} of an axis of {d}",
                 f"0 <= start < end <= {d}; a slice has at least one element")  # fmt: skip
    return (Type(types[0].dtype, tuple(b - a for a, b in zip(starts, stops, strict=True))),)


def _slice(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    pairs = zip(attrs["starts"], attrs["stops"], strict=True)
    return (args[0][tuple(slice(a, b) for a, b in pairs)],)


def _broadcast_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("broadcast", "x", types[0], SCALARS)
    shape = _positive("broadcast", attrs, "shape")
    tail = shape[max(0, len(shape) - len(types[0].shape)) :]
    if len(tail) != len(types[0].shape) or any(
        d not in (1, s) for d, s in zip(types[0].shape, tail, strict=True)
    ):
        fail("shape", "broadcast", "x", f"is {types[0]}; it does not broadcast to {list(shape)}",
             "axes are aligned from the last, and each must be equal or 1: `reshape` x first")
    return (Type(types[0].dtype, shape),)


def _broadcast(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    return (np.broadcast_to(args[0], types[0].shape),)


def _contiguous_infer(types: tuple[Type, ...], attrs: Mapping[str, Any]) -> tuple[Type, ...]:
    want_dtype("contiguous", "x", types[0], SCALARS)
    return (types[0],)


def _contiguous(args: Sequence[Any], attrs: Mapping[str, Any], types: tuple[Type, ...]) -> Any:
    return (np.ascontiguousarray(args[0]),)


def _row(name: str, attrs: Mapping[str, Any], infer: Any, ref: Any, form: str,
         cases: list[tuple[tuple[int, ...], dict[str, Any]]], bad: tuple[Bad, ...],
         doc: str) -> None:  # fmt: skip
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape, values in cases:
            yield Sample((random(rng, "f32", shape),), values)
        shape, values = cases[0]
        for dtype in ("bf16", *SMALL):
            yield Sample((random(rng, dtype, shape),), values)
        yield Sample((rng.integers(0, 2**32, shape, np.uint32),), values)

    first = dict(cases[0][1])
    more = (Bad((_QUANT,), first, "graph.dtype"), Bad((), first, "graph.operands"))
    register(OpDef(name, ("x",), attrs, infer, ref, doc, form, samples, bad + more))


_row(
    "reshape", {"shape": REQUIRED}, _reshape_infer, _reshape, "view",
    [((2, 6), {"shape": (3, 4)}), ((5,), {"shape": (1, 5, 1)}), ((2, 3, 7), {"shape": (42,)})],
    (
        Bad((_T,), {"shape": (5, 5)}, "graph.shape"),
        Bad((_T,), {"shape": (0, 24)}, "graph.attribute"),
        Bad((_T,), {"shape": (-1, 24)}, "graph.attribute"),
        Bad((_T,), {"shape": ()}, "graph.attribute"),
        Bad((_T,), {"shape": "24"}, "graph.attribute"),
        Bad((_T,), {}, "graph.missing_attribute"),
    ),
    "The same elements in row-major order, of another shape",
)  # fmt: skip
_row(
    "permute", {"axes": REQUIRED}, _permute_infer, _permute, "strided",
    [((2, 3, 4), {"axes": (2, 0, 1)}), ((3, 5), {"axes": (-1, 0)}), ((4,), {"axes": (0,)})],
    (
        Bad((_T,), {"axes": (0, 1)}, "graph.attribute"),
        Bad((_T,), {"axes": (0, 1, 1)}, "graph.attribute"),
        Bad((_T,), {"axes": (0, 1, 3)}, "graph.attribute"),
        Bad((_T,), {"axes": 1}, "graph.attribute"),
    ),
    "Axis i of the result is axis axes[i] of x",
)  # fmt: skip
_row(
    "transpose", {"axes": (-2, -1)}, _transpose_infer, _transpose, "strided",
    [((2, 3), {}), ((2, 3, 4), {"axes": (0, 2)}), ((1, 7), {"axes": (1, 1)})],
    (
        Bad((Type("f32", (4,)),), {}, "graph.attribute"),
        Bad((_T,), {"axes": (0, 3)}, "graph.attribute"),
        Bad((_T,), {"axes": (0, 1, 2)}, "graph.attribute"),
    ),
    "Two axes exchanged, the last two unless named",
)  # fmt: skip
_row(
    "slice", {"starts": REQUIRED, "stops": REQUIRED}, _slice_infer, _slice, "strided",
    [((4, 5), {"starts": (1, 0), "stops": (3, 5)}), ((7,), {"starts": (6,), "stops": (7,)})],
    (
        Bad((_T,), {"starts": (0, 0), "stops": (1, 1)}, "graph.attribute"),
        Bad((_T,), {"starts": (0, 0, 0), "stops": (2, 3, 5)}, "graph.attribute"),
        Bad((_T,), {"starts": (1, 0, 0), "stops": (1, 3, 4)}, "graph.attribute"),
        Bad((_T,), {"starts": (-1, 0, 0), "stops": (2, 3, 4)}, "graph.attribute"),
        Bad((_T,), {"starts": (0, 0, 0)}, "graph.missing_attribute"),
    ),
    "Elements starts[i] <= index < stops[i] of each axis, unit step",
)  # fmt: skip
_row(
    "broadcast", {"shape": REQUIRED}, _broadcast_infer, _broadcast, "strided",
    [((3, 1), {"shape": (2, 3, 5)}), ((1,), {"shape": (4,)}), ((2, 3), {"shape": (2, 3)})],
    (
        Bad((_T,), {"shape": (3, 4)}, "graph.shape"),
        Bad((_T,), {"shape": (2, 2, 3, 5)}, "graph.shape"),
        Bad((_T,), {"shape": (2, 0, 4)}, "graph.attribute"),
    ),
    "x repeated along axes of size 1 and new leading axes, NumPy alignment",
)  # fmt: skip
_row(
    "contiguous", {}, _contiguous_infer, _contiguous, "elementwise",
    [((2, 3), {}), ((5,), {})],
    (Bad((_T,), {"axes": (0,)}, "graph.unknown_attribute"),),
    "x with packed bytes, row-major",
)  # fmt: skip
