"""What the rows' shape rules share: refusals that name the op and the operand.

Codes: graph.rank, graph.shape, graph.dtype, graph.attribute.  A rule never guesses: an operand
that does not fit is refused with what it is, what it had to be and what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, NoReturn, cast

from lanewise.errors import GraphError
from lanewise.ir.graph import Type
from lanewise.quant.format import FORMATS

FLOATS = ("f32", "f16", "bf16")
SMALL = ("f8_e4m3", "f8_e5m2")  # floats to store: only casts and products read their values
MATRICES = FLOATS + SMALL  # of the weights of products
INTEGERS = ("u32", "i32")
SCALARS = MATRICES + INTEGERS
RECIPES = ("int8x2", "int8")  # quantised activations
GROUP = 32  # elements of a row that share one activation scale

# format -> elements of a block: a row of a quantised matrix is whole blocks
BLOCKS: Mapping[str, int] = {
    f.name: f.block for f in FORMATS.values() if f.quantised and f.decode is not None
}


def fail(reason: str, op: str, operand: str, message: str, remedy: str) -> NoReturn:
    """Refuse; the remedy is what to write instead."""
    raise GraphError(f"graph.{reason}", f"{op}: {operand} {message}", remedy=remedy)


def is_format(dtype: str) -> bool:
    """Is it the name of a checkpoint's quantised format?"""
    return dtype in BLOCKS


def want_dtype(op: str, operand: str, type: Type, allowed: Sequence[str]) -> None:
    if type.dtype not in allowed:
        floats = [a for a in allowed if a in FLOATS]
        if type.dtype in (*FLOATS, *SMALL) and floats:
            remedy = f"cast({operand}, {floats[0]!r})"
        elif is_format(type.dtype) and floats:
            remedy = "formats are for `linear` and `gather_rows`: declare it as f32"
        else:
            remedy = f"declare {operand} as {_or(allowed)}"
        fail("dtype", op, operand, f"is {type}; its dtype must be {_or(allowed)}", remedy)


def want_rank(op: str, operand: str, type: Type, *ranks: int) -> None:
    if len(type.shape) not in ranks:
        fail("rank", op, operand, f"is {type}; its rank must be {_or(ranks)}",
             f"reshape({operand}, {_of_rank(type.shape, ranks)})")  # fmt: skip


def _of_rank(own: tuple[int, ...], ranks: tuple[int, ...]) -> str:
    """A shape of so many axes, where one suggests itself."""
    rank = ranks[0]
    plain = tuple(d for d in own if d > 1) or (1,)
    if len(ranks) == 1 and len(own) > rank == len(plain):
        return str(plain)
    if ranks == (2,):
        return str((math.prod(own[:-1]), own[-1]))
    return f"a shape of {_or(ranks)} axes"


def want_shape(op: str, operand: str, type: Type, shape: Sequence[int]) -> None:
    if type.shape != tuple(shape):
        fail("shape", op, operand, f"is {type}; its shape must be [{_list(shape)}]",
             fit(operand, type, shape))  # fmt: skip


def fit(operand: str, type: Type, shape: Sequence[int]) -> str:
    """What makes an operand of a shape, if an op does; else a declaration."""
    own, want = type.shape, tuple(shape)
    if regroups(own, want):
        return f"reshape({operand}, {want})"
    axes = reordered(own, want)
    if axes is not None:
        return f"contiguous(permute({operand}, {_list(axes)}))"
    ends = own[::-1], want[::-1]
    if len(own) <= len(want) and all(a in (1, b) for a, b in zip(*ends, strict=False)):
        return f"contiguous(broadcast({operand}, {want}))"
    return f"give {operand} of shape {want}: declare it so, or `slice` it"


def regroups(own: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Does `reshape` only split or merge axes, or add or drop axes of size 1?  (Else it brings
    numbers of one row into others.)"""
    ends: set[int] = set(accumulate(own, mul))
    wanted: set[int] = set(accumulate(want, mul))
    return math.prod(own) == math.prod(want) and (ends <= wanted or wanted <= ends)


def reordered(own: tuple[int, ...], want: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes to permute by to get one shape from another, if that does it."""
    if sorted(own) != sorted(want):
        return None
    left = [i for i, extent in enumerate(own) if extent != want[i]][::-1]
    return tuple(i if extent == own[i] else left.pop([own[j] for j in left].index(extent))
                 for i, extent in enumerate(want))  # fmt: skip


def want_type(op: str, operand: str, type: Type, dtype: str, shape: Sequence[int]) -> None:
    want_dtype(op, operand, type, (dtype,))
    want_rank(op, operand, type, len(shape))
    want_shape(op, operand, type, shape)


def want_weight(op: str, operand: str, type: Type, formats_only: bool) -> None:
    """The dtype of a product's weight: a float or a Format."""
    if not is_format(type.dtype) and (formats_only or type.dtype not in MATRICES):
        kinds = "a quantised format" if formats_only else f"{', '.join(MATRICES)} or a format"
        fail("dtype", op, operand, f"is {type}; its dtype must be {kinds}",
             f"declare {operand} as {'q8_0' if formats_only else 'f32'}, or another of them")


def want_matrix(op: str, operand: str, type: Type, k: int, *, formats_only: bool = False) -> int:
    """A weight [N, K] of a float dtype or a Format; gives N."""
    want_weight(op, operand, type, formats_only)
    want_rank(op, operand, type, 2)
    if type.shape[1] != k:
        turned = type.shape[0] == k and not is_format(type.dtype)
        fail("shape", op, operand, f"is {type}; its rows must have {k} elements",
             f"store it as [outputs, inputs]: [{type.shape[1]},{k}]" if turned else
             f"declare {operand} as [outputs, {k}], or bring x to {type.shape[1]} channels")
    want_blocks(op, operand, type)
    return type.shape[0]


def want_blocks(op: str, operand: str, type: Type) -> None:
    block = BLOCKS.get(type.dtype, 1)
    if type.shape[-1] % block:
        fail("shape", op, operand, f"is {type}; rows of {type.dtype} are blocks of {block}",
             f"rows of {-(-type.shape[-1] // block) * block} elements, or another format")


def integer(op: str, attrs: Mapping[str, Any], name: str, low: int, high: int = 2**31) -> int:
    """An integer attribute in low..high."""
    value = attrs[name]
    if not isinstance(value, int) or isinstance(value, bool):
        fail("attribute", op, name, f"is {value!r}; it must be an integer",
             f"give {name} as an int from {low}")  # fmt: skip
    if not low <= value <= high:
        fail("attribute", op, name, f"is {value}; it must be in {low}..{high}",
             f"give {name} from {low} to {high}")  # fmt: skip
    return value


def number(
    op: str, attrs: Mapping[str, Any], name: str, *, above: float | None = None
) -> float:
    """A finite number; `above` is a bound that it must exceed."""
    value = attrs[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        fail("attribute", op, name, f"is {value!r}; it must be a number",
             f"give {name} as a float")  # fmt: skip
    if not abs(value) <= 1.7976931348623157e308:  # an integer may be beyond any float
        fail("attribute", op, name, f"is {value}; it must be finite", f"give {name} a finite value")
    if above is not None and not value > above:
        fail("attribute", op, name, f"is {value}; it must be > {above}",
             f"give {name} above {above}")  # fmt: skip
    return float(value)


def choice(op: str, attrs: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    value = attrs[name]
    if value not in allowed:
        fail("attribute", op, name, f"is {value!r}; it must be {_or(allowed)}",
             f"give {name}={allowed[0]!r}, or another of them")  # fmt: skip
    return value


def integers(op: str, attrs: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A tuple of integers (a list is as good)."""
    value = attrs[name]
    values = cast(tuple[Any, ...], value) if isinstance(value, (tuple, list)) else (None,)
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        fail("attribute", op, name, f"is {value!r}; it must be a tuple of integers",
             f"give {name} as (2, 3)")  # fmt: skip
    return tuple(int(v) for v in values if v is not None)


def axis(op: str, name: str, value: int, rank: int) -> int:
    """An axis counted from the front; negative ones count from the end."""
    if not -rank <= value < rank:
        fail("attribute", op, name, f"has axis {value}; the operand has rank {rank}",
             f"name axes from {-rank} to {rank - 1}")  # fmt: skip
    return value % rank


def broadcast_shapes(op: str, names: Sequence[str], types: Sequence[Type]) -> tuple[int, ...]:
    """The NumPy broadcast of the operands' shapes."""
    rank = max(len(t.shape) for t in types)
    out = [1] * rank
    for name, t in zip(names, types, strict=True):
        for i, d in enumerate(t.shape, rank - len(t.shape)):
            if out[i] == 1:
                out[i] = d
            elif d not in (1, out[i]):
                fail("shape", op, name, f"is {t}; it does not broadcast to [{_list(out)}]",
                     "axes are aligned from the last, and each must be equal or 1: `reshape` or "
                     "`transpose` one of them")  # fmt: skip
    return tuple(out)


def without_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape less its last axis; a scalar is (1,)."""
    return shape[:-1] or (1,)


def _or(names: Sequence[Any]) -> str:
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last


def _list(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
