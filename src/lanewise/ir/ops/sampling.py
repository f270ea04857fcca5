"""From logits to tokens, row by row, every option per row.

`sample_rows`: 1/T, softmax, top-k (value descending, index ascending; 0 = off), top-p (the
smallest set that reaches p * total, the crossing entry kept; 1 = off), min-p (>= p * max; 0 =
off), then the first index, ascending, whose running sum exceeds draw * total.  T = 0 is argmax, and
so is what is below or NaN.  A top-p of 0 or below keeps one entry, NaN is off; a min-p above 1 or
NaN is 1.  A row with a NaN or +inf logit has no distribution, nor has, at T > 0, one whose logits
are all -inf: its token is 0xFFFFFFFF.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import Bad, OpDef, Sample, register
from lanewise.ir.ops.rules import FLOATS, want_dtype, want_rank, want_type, without_last
from lanewise.ir.values import random, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
NO_TOKEN = 0xFFFFFFFF
LAST_DRAW = 1 - 2.0**-24  # draws are clamped to [0, LAST_DRAW]


def _argmax_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("argmax", "x", types[0], FLOATS)
    return (Type("u32", without_last(types[0].shape)),)


def _argmax(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    x = wide(args[0])
    best: Array = np.asarray(np.argmax(np.where(np.isnan(x), -np.inf, x), -1))
    # a row whose numbers are all -inf: its first number, not its first NaN
    lost = np.isnan(np.take_along_axis(x, best[..., None], -1))[..., 0]
    number = ~np.isnan(x)
    best = np.where(lost & number.any(-1), np.argmax(number, -1), best)
    return (best.reshape(types[0].shape).astype(np.uint32),)


def _argmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((1,), (7,), (3, 33), (2, 3, 5)):
        yield Sample((random(rng, "f32", shape),))
    nan, inf = np.nan, np.inf
    rows = [[1, 3, 3], [nan, -1, -2], [nan, nan, nan], [nan, -inf, -inf], [-0.0, 0, -1]]
    yield Sample((np.array(rows, "f4"),))


register(
    OpDef(
        "argmax", ("x",), {}, _argmax_infer, _argmax,
        "Index of the largest of the last axis, u32; the lowest on ties; NaN never wins (0 if "
        "all are NaN)",
        "row", _argmax_samples,
        (
            Bad((Type("u32", (2, 3)),), {}, "graph.dtype"),
            Bad((Type("f32", (2, 3)),), {"axis": 0}, "graph.unknown_attribute"),
        ),
        rows=("x",),
    )
)  # fmt: skip


def sample_weights(logits: Array, t: float, k: int, top_p: float, min_p: float) -> Array:
    """What is left of one row's probabilities, not renormalised, float64 [V]."""
    with np.errstate(invalid="ignore"):  # -inf / inf
        z = logits / t
        p = np.exp(z - np.max(z))
        p /= np.sum(p)
    order = np.lexsort((np.arange(len(p)), -p))
    if 0 < k < len(p):
        p[order[k:]] = 0
    if top_p < 1:
        running = np.cumsum(p[order])
        # kept while the sum *before* an entry has not reached the bound
        p[order[1:][running[:-1] >= top_p * np.sum(p)]] = 0
    p[p < (min_p if min_p < 1 else 1) * np.max(p)] = 0
    return p


def _pick(weights: Array, draw: float) -> int:
    running = np.cumsum(weights)
    draw = min(max(draw, 0.0), LAST_DRAW) if draw == draw else 0.0
    return int(np.argmax(running > draw * running[-1]))


def _sample_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("sample_rows", "logits", types[0], ("f32",))
    want_rank("sample_rows", "logits", types[0], 2)
    rows = types[0].shape[:1]
    for name, t in zip(_OPTIONS, types[1:], strict=True):
        want_type("sample_rows", name, t, "u32" if name == "top_k" else "f32", rows)
    return (Type("u32", rows),)


def _sample(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    logits = wide(args[0])
    out = np.full(types[0].shape, NO_TOKEN, np.uint32)
    for r, (row, t, k, top_p, min_p, draw) in enumerate(zip(logits, *args[1:], strict=True)):
        if np.isnan(row).any() or np.max(row) == np.inf:
            continue
        if not t > 0:
            out[r] = np.argmax(row)
        elif np.max(row) > -np.inf:
            weights = sample_weights(row, float(t), int(k), float(top_p), float(min_p))
            lost = np.isnan(weights).any()
            out[r] = np.argmax(row) if lost else _pick(weights, float(draw))
    return (out,)


def _sample_samples(rng: np.random.Generator) -> Iterator[Sample]:
    f4, u4 = "f4", "u4"
    for v in (1, 7, 33):
        yield Sample(
            (
                random(rng, "f32", (5, v)) * 3, np.array([0, 1, 0.7, 1, 1.5], f4),
                np.array([0, 3, 0, 1, 2**31], u4), np.array([1, 1, 0.9, 1, 0.5], f4),
                np.array([0, 0, 0.05, 0, 1], f4), rng.random(5, np.float32),
            )
        )  # fmt: skip
    nan, inf = np.nan, np.inf
    rows = [[nan, 1], [inf, 0], [-inf, 0], [-inf, -inf], [-inf, -inf], [1, 2], [1, 2]]
    t = np.array([1, 1, 1, 1, 0, -1, nan], f4)
    ones = np.ones(7, f4)
    yield Sample((np.array(rows, f4), t, np.zeros(7, u4), ones, np.zeros(7, f4), ones / 4))
    p, m = np.array([0, -1, nan, 1, 1, 1, 1], f4), np.array([0, 0, 0, -1, 0, 2, nan], f4)
    yield Sample((np.tile(np.array([1, 2], f4), (7, 1)), ones, np.zeros(7, u4), p, m, ones / 4))


_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "draws")
_L, _F, _U = Type("f32", (3, 9)), Type("f32", (3,)), Type("u32", (3,))
register(
    OpDef(
        "sample_rows", ("logits", *_OPTIONS), {}, _sample_infer, _sample,
        "One token, u32 [O], for each row of logits f32 [O, V]; the module says in which order "
        "the options act",
        "row", _sample_samples,
        (
            Bad((Type("f16", (3, 9)), _F, _U, _F, _F, _F), {}, "graph.dtype"),
            Bad((Type("f32", (9,)), _F, _U, _F, _F, _F), {}, "graph.rank"),
            Bad((_L, _F, _F, _F, _F, _F), {}, "graph.dtype"),
            Bad((_L, _F, _U, _F, _F, Type("f32", (2,))), {}, "graph.shape"),
            Bad((_L, Type("f32", (3, 1)), _U, _F, _F, _F), {}, "graph.rank"),
            Bad((_L, _F, _U, _F, _F), {}, "graph.operands"),
        ),
        rows=("logits", *_OPTIONS),
    )
)  # fmt: skip
