"""The ops, as functions of tensors: each records one op, or refuses it at the caller's line.

Laws: one dtype per op, no promotion (`cast` is an op); views move no bytes, and an op that needs
packed bytes refuses them and names `contiguous`; sums are f32 or better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lanewise.dtypes import DType
from lanewise.ir.ops.rules import MATRICES
from lanewise.tensor.arguments import builder_of, checked, to_float
from lanewise.tensor.builder import Builder
from lanewise.tensor.handles import Quantized, Tensor


def _one(op: str, x: Any) -> Tensor:
    return builder_of(op, x).op(op, (x,), strided=True)


def _two(op: str, a: Any, b: Any) -> Tensor:
    return builder_of(op, a, b).op(op, (a, b), strided=True)


@checked
def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b of one dtype, NumPy broadcasting."""
    return _two("add", a, b)


@checked
def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b of one dtype, NumPy broadcasting."""
    return _two("sub", a, b)


@checked
def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b of one dtype, NumPy broadcasting."""
    return _two("mul", a, b)


@checked
def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b of one dtype, NumPy broadcasting; correctly rounded."""
    return _two("div", a, b)


@checked
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger; NaN if either is NaN; -0 < +0."""
    return _two("maximum", a, b)


@checked
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller; NaN if either is NaN; -0 < +0."""
    return _two("minimum", a, b)


@checked
def neg(x: Tensor) -> Tensor:
    """-x."""
    return _one("neg", x)


@checked
def abs(x: Tensor) -> Tensor:
    """|x|."""
    return _one("abs", x)


@checked
def square(x: Tensor) -> Tensor:
    """x * x."""
    return _one("square", x)


@checked
def sqrt(x: Tensor) -> Tensor:
    """The square root, correctly rounded; NaN below 0."""
    return _one("sqrt", x)


@checked
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return _one("rsqrt", x)


@checked
def exp(x: Tensor) -> Tensor:
    """e to the x."""
    return _one("exp", x)


@checked
def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return _one("log", x)


@checked
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return _one("tanh", x)


@checked
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _one("sigmoid", x)


@checked
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), f32 inside."""
    return _one("silu", x)


@checked
def relu(x: Tensor) -> Tensor:
    """x above 0, else +0."""
    return _one("relu", x)


@checked
def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    return _one("gelu", x)


@checked
def gelu_erf(x: Tensor) -> Tensor:
    """GELU by the error function."""
    return _one("gelu_erf", x)


@checked
def erf(x: Tensor) -> Tensor:
    """The error function."""
    return _one("erf", x)


@checked
def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    """silu(gate) * value; equal shapes."""
    b = builder_of("swiglu", gate, value)
    both = isinstance(gate, Tensor) and isinstance(value, Tensor)
    if both and not (gate.poisoned or value.poisoned) and gate.shape != value.shape:
        b.refuse("shape", f"swiglu: value is {value.type}, gate is {gate.type}: shapes must be "
                 "equal", "broadcast(value, gate.shape)")  # fmt: skip
        return b.poison(gate)
    return b.op("swiglu", (gate, value), strided=True)


@checked
def scale(x: Tensor, name: str) -> Tensor:
    """x times a declared f32 scalar."""
    b = builder_of("scale", x)
    return b.op("scale", (x, b.scalar_ref("scale", name, "f32")), strided=True)


@checked
def cast(x: Tensor, dtype: str | DType) -> Tensor:
    """x in another float dtype, nearest even; the same dtype gives x itself."""
    b = builder_of("cast", x)
    name = dtype.name if isinstance(dtype, DType) else dtype
    if name not in MATRICES:
        b.refuse("attribute", f"cast: dtype is {name!r}; it must be a float", to_float(name))
        return b.poison(x)
    return x if name == x.dtype else b.op("cast", (x,), strided=True, dtype=name)


# -- views -----------------------------------------------------------------------------------------


def _view(op: str, x: Tensor, strided: bool, **attrs: Any) -> Tensor:
    made = builder_of(op, x).op(op, (x,), strided=True, **attrs)
    if made.ref is not None:
        return Tensor(made.builder, made.ref, made.type, strided or x.strided)
    return made


@checked
def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in row-major order; packed operands only."""
    return builder_of("reshape", x).op("reshape", (x,), shape=tuple(shape))


@checked
def permute(x: Tensor, *axes: int) -> Tensor:
    """Axis i of the result is axis axes[i] of x; a view."""
    if x.ref is not None and [a % len(x.shape) for a in axes] == list(range(len(x.shape))):
        return x
    return _view("permute", x, True, axes=tuple(axes))


@checked
def transpose(x: Tensor, axis_a: int = -2, axis_b: int = -1) -> Tensor:
    """Two axes exchanged; a view."""
    return _view("transpose", x, True, axes=(axis_a, axis_b))


@checked
def slice(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    """Elements start <= i < end of one axis, unit step; a view."""
    b = builder_of("slice", x)
    rank = len(x.shape)
    if x.ref is None:
        return b.poison(x)
    if not isinstance(axis, int) or not -rank <= axis < rank:
        b.refuse("attribute", f"slice: axis is {axis!r}; x is {x.type}",
                 f"an axis from {-rank} to {rank - 1}")  # fmt: skip
        return b.poison(x)
    axis %= rank
    if start < 0 or end < 0:
        size = x.shape[axis]
        b.refuse("attribute", f"slice: {start}:{end} counts from the end; x is {x.type}",
                 f"from the front: slice(x, {axis}, {start % size}, "
                 f"{end if end >= 0 else end % size})")  # fmt: skip
        return b.poison(x)
    starts = tuple(start if a == axis else 0 for a in range(rank))
    stops = tuple(end if a == axis else d for a, d in enumerate(x.shape))
    if (start, end) == (0, x.shape[axis]):
        return x
    packed = math.prod(x.shape[:axis]) == 1
    return _view("slice", x, not packed, starts=starts, stops=stops)


@checked
def broadcast(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated along axes of size 1 and new leading ones (stride 0); a view."""
    if x.ref is not None and tuple(shape) == x.shape:
        return x
    return _view("broadcast", x, True, shape=tuple(shape))


@checked
def contiguous(x: Tensor) -> Tensor:
    """x packed; x itself if it is."""
    b = builder_of("contiguous", x)
    if not isinstance(x, Tensor) or x.ref is None:
        return b.op("contiguous", (x,), strided=True)
    return Tensor(b, x.ref, x.type) if x.strided else x


# -- products, gathers, norms ----------------------------------------------------------------------


@checked
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a [..., M, K] times b [K, N], or b [..., K, N] of the same leading axes: f32 [..., M, N].

    a is f32, or f16 or bf16 as b is; b is f32, f16, bf16, f8_e4m3 or f8_e5m2.
    """
    builder = builder_of("matmul", a, b)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.poisoned or b.poisoned:
        return builder.op("matmul", (a, b))
    if a.dtype in ("f16", "bf16") and b.dtype == a.dtype:
        a = cast(a, "f32")
    if len(a.shape) < 3 or a.strided or b.strided:
        return builder.op("matmul", (a, b))
    *lead, m, k = a.shape
    if len(b.shape) == 2:
        made = builder.op("matmul", (reshape(a, (math.prod(lead) * m, k)), b))
        return made if made.poisoned else reshape(made, (*lead, m, b.shape[1]))
    if tuple(lead) != b.shape[:-2]:
        own, other = tuple(lead), b.shape[:-2]
        pairs = zip(reversed(own), reversed(other), strict=False)
        fits = all(i == j or 1 in (i, j) for i, j in pairs)
        builder.refuse("shape", f"matmul: b is {b.type}, a is {a.type}: leading axes must be "
                       "equal", "contiguous(broadcast(...)) of the smaller one" if fits else
                       f"{list(own)} and {list(other)} do not broadcast: one of them has other "
                       f"axes; b [{k}, N] serves all of a")  # fmt: skip
        return builder.poison(a)
    if b.shape[-2] != k:
        turned = f"contiguous(transpose(b)) is [...,{k},{b.shape[-2]}]"
        builder.refuse("shape", f"matmul: b is {b.type}, a is {a.type}: inner sizes must be equal",
                       turned if b.shape[-1] == k else f"b [..., {k}, N]")  # fmt: skip
        return builder.poison(a)
    count = math.prod(lead)
    rows = reshape(a, (count * m, k))
    each = builder.constant(np.full(count, m, np.uint32), f"rows.{count}.{m}")
    matrices = reshape(b, (count, *b.shape[-2:]))
    made = builder.op("grouped_matmul", (rows, matrices, each), as_="matmul",
                      names={"x": "a", "w": "b"})  # fmt: skip
    return made if made.poisoned else reshape(made, (*lead, m, b.shape[-1]))


def declared_weight(b: Builder, op: str, w: Any) -> bool:
    """Refuse a matrix that a plan could not pack."""
    if isinstance(w, Tensor) and w.ref is not None and w.ref not in b.weights:
        other = op.replace("linear", "matmul")
        as_it_lies = "w" if w.strided else "contiguous(transpose(w))"
        b.refuse("weight", f"{op}: w is {w.type}, no declared weight", "declare it with "
                 f"`b.weight`, as rows of outputs; or {other}(x, {as_it_lies}), which takes any "
                 f"tensor{', of w before it was transposed' * w.strided}")  # fmt: skip
        return False
    return True


@checked
def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x f32 [M, K] times the rows of a declared weight w [N, K] (any float dtype or format), plus
    bias f32 [N]: f32 [M, N]."""
    b = builder_of("linear", x, w)
    if isinstance(w, Tensor) and x.ref in b.weights and w.ref is not None and (
        w.ref not in b.weights
    ):  # fmt: skip
        b.refuse("operand", f"linear: x is {x.type}, a declared weight, and w is none: the weight "
                 "comes second", "linear(x, w)")  # fmt: skip
        return b.poison(w)
    if w is not None and not declared_weight(b, "linear", w):
        return b.poison(x)
    return b.op("linear", (x, w) if bias is None else (x, w, bias))


@checked
def quant_matmul(x: Tensor, w: Quantized) -> Tensor:
    """x f32 or f16 [M, K] times the rows of a quantised matrix [N, K]: f32 [M, N]."""
    b = builder_of("quant_matmul", x, w)
    x = cast(x, "f32") if x.dtype == "f16" else x
    return b.op("linear", (x, w.weight), as_="quant_matmul")


@checked
def quant_gather_rows(table: Quantized, ids: Tensor) -> Tensor:
    """Rows of a quantised matrix by id, decoded to f32."""
    return gather_rows(table.weight, ids)


@checked
def gather_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of table [V, W] by ids u32 of shape S: S + (W,); id >= V gives a zero row."""
    b = builder_of("gather_rows", table, ids)
    out = b.op("gather_rows", (table, ids))
    if out.ref is not None:
        b.watch(ids, table.shape[0], "an id")
    return out


@checked
def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Each row of the last axis by its root mean square, times gain f32; eps > 0."""
    return builder_of("rms_norm", x, gain).op("rms_norm", (x, gain), eps=eps)


@checked
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """Each row less its mean, by its deviation, times gain, plus bias; eps > 0."""
    operands = (x, gain) if bias is None else (x, gain, bias)
    return builder_of("layer_norm", x, gain).op("layer_norm", operands, eps=eps)


@checked
def softmax(
    x: Tensor, axis: int = -1, *, scale_name: str | None = None, mask: Tensor | None = None
) -> Tensor:
    """exp(x - max) over its sum along the last axis; another axis is refused.

    ``scale_name``: a declared f32 scalar that x is multiplied by first; ``mask``: added then, of
    x's dtype, NumPy broadcasting (-inf: no weight; a row of -inf alone is NaN).
    """
    b = builder_of("softmax", x)
    if x.ref is not None and axis not in (-1, len(x.shape) - 1):
        b.refuse("attribute", f"softmax: axis is {axis}; x is {x.type}: only the last is reduced",
                 "bring the axis to the end: softmax(contiguous(transpose(x, ...)))")  # fmt: skip
        return b.poison(x)
    x = x if scale_name is None else scale(x, scale_name)
    if mask is not None:
        x = b.op("add", (x, mask), strided=True, names={"a": "x", "b": "mask"})
    return b.op("softmax", (x,))


@checked
def reduce_sum(x: Tensor) -> Tensor:
    """The sum over the last axis."""
    return builder_of("reduce_sum", x).op("reduce_sum", (x,))


@checked
def reduce_max(x: Tensor) -> Tensor:
    """The largest of the last axis."""
    return builder_of("reduce_max", x).op("reduce_max", (x,))


@checked
def rope(
    x: Tensor, rotary_dim: int, base_name: str | None = None, positions: Tensor | None = None, *,
    table: Tensor | None = None, style: str = "interleaved", factors: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Turns the first `rotary_dim` channels of x f32 [R, H, D] by positions u32 [R].

    ``base_name``: a declared f32 scalar, angles p / (base^(2i/rotary_dim) factor_i), with
    ``factors`` f32 [rotary_dim / 2] if given (`rope_factors` makes them); or ``table``: f32 [C,
    rotary_dim] of cosines then sines by position (`rope_table` makes it).
    style "interleaved" pairs (2i, 2i+1), "half" (i, i + rotary_dim/2); the other channels pass
    through.
    """
    b = builder_of("rope", x, positions, table)
    if positions is None or (base_name is None) == (table is None):
        both = positions is not None and table is not None
        what = "positions is" if positions is None else "one of base_name and table is"
        what = "base_name and table are given: the table has the base already" if both else (
            f"{what} missing")  # fmt: skip
        b.refuse("operand" if both else "missing_operand", f"rope: {what}",
                 "rope(x, d, 'base', positions), or rope(x, d, positions=positions, table=table)")
        return b.poison(x)
    if table is not None and factors is not None:
        b.refuse("operand", "rope: factors and table are given: a table has them already",
                 "rope_table(positions, rotary_dim, base, factors), without factors here")
        return b.poison(x)
    if base_name is not None:
        base = b.scalar_ref("rope", base_name, "f32")
        more = () if factors is None else (factors,)
        table = b.op("rope_angles", (positions, base, *more), as_="rope", names=_ROPE,
                     rotary=rotary_dim)  # fmt: skip
        rows = positions.shape[0]
        positions = b.constant(np.arange(rows, dtype=np.uint32), f"rows.{rows}")
    elif table is not None:
        b.watch(positions, table.shape[0], "a position", absent=True)
    return b.op("rope", (x, positions, table), names=_ROPE, rotary=rotary_dim, style=style)


_ROPE = {"rotary": "rotary_dim"}
