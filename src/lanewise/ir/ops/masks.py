"""Truncation and draws, row by row of the last axis, and penalties by what was said before.

Ranks are by (value descending, index ascending); a NaN ranks last.  Masks keep entries as they are
and make the others +0, so that one feeds the next and a draw: nothing renormalises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.rules import fail, integer, number, want_dtype, want_rank, want_type
from lanewise.ir.values import random, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
NO_TOKEN = 0xFFFFFFFF
LAST_DRAW = 1 - 2.0**-24
_X = Type("f32", (3, 9))


def ranked(row: Array) -> Array:
    """Indices of a row, largest first, the lower index first on ties, NaN last."""
    value = np.where(np.isnan(row), -np.inf, row)
    return np.lexsort((np.arange(len(row)), -value, np.isnan(row)))


def _mask(name: str, attr: str, check: Callable[[Types, Attrs], None],
          keep: Callable[[Array, Any], Array], values: tuple[float, ...], wrong: tuple[Any, ...],
          doc: str) -> None:  # fmt: skip
    def infer(types: Types, attrs: Attrs) -> Types:
        want_dtype(name, "x", types[0], ("f32",))
        check(types, attrs)
        return (types[0],)

    def ref(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
        rows = args[0].reshape(-1, args[0].shape[-1])
        out = np.zeros(rows.shape, np.float32)
        for r, row in enumerate(rows):
            at = keep(row, attrs[attr])
            out[r, at] = row[at]
        return (out.reshape(types[0].shape),)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for value in values:
            for shape in ((9,), (3, 9), (2, 2, 40)):
                weights = np.exp(2 * random(rng, "f32", shape)).astype(np.float32)
                yield Sample((weights,), {attr: value})
            ties = np.array([[1, 2, 2, 0, 2, 1, 0, 0, 1]], np.float32)
            yield Sample((ties,), {attr: value})

    bad = tuple(Bad((_X,), {attr: w}, "graph.attribute") for w in wrong)
    more = (Bad((Type("f16", (3, 9)),), {attr: values[0]}, "graph.dtype"),
            Bad((_X,), {}, "graph.missing_attribute"))  # fmt: skip
    register(OpDef(name, ("x",), {attr: REQUIRED}, infer, ref, doc, "row", samples, bad + more,
                   rows=("x",)))  # fmt: skip


def _k_fits(op: str) -> Callable[[Types, Attrs], None]:
    def check(types: Types, attrs: Attrs) -> None:
        integer(op, attrs, "k", 1, types[0].shape[-1])

    return check


def _share(op: str, attr: str, zero: bool) -> Callable[[Types, Attrs], None]:
    def check(types: Types, attrs: Attrs) -> None:
        value = number(op, attrs, attr)
        if not (0 <= value <= 1) or (value == 0 and not zero):
            span = "0..1" if zero else "above 0, up to 1"
            fail("attribute", op, attr, f"is {value}; it must be {span}",
                 f"give {attr} {span}; to switch it off leave {op} out")  # fmt: skip

    return check


def _keep_p(row: Array, p: float) -> Array:
    order = ranked(row)
    running = np.cumsum(row[order].astype(np.float64))
    before = np.concatenate([[0.0], running[:-1]])
    keep: Array = before < p * running[-1]
    keep[0] = True
    stop = len(keep) if keep.all() else int(np.argmin(keep))
    return order[:stop]


def _keep_min(row: Array, p: float) -> Array:
    most = row[ranked(row)[0]]
    return np.flatnonzero(row >= np.float32(p) * most)


_mask("top_k_mask", "k", _k_fits("top_k_mask"), lambda row, k: ranked(row)[:k], (1, 3, 9),
      (0, 10, -1, 2.0, True), "x where it is among the k largest of its row, else 0: exactly k")
_mask("top_p_mask", "p", _share("top_p_mask", "p", False), _keep_p, (0.3, 0.9, 1.0),
      (0.0, 1.5, -0.1, float("nan"), "1"),
      "The smallest set of largest entries whose sum reaches p of the row's total, else 0")
_mask("min_p_mask", "p", _share("min_p_mask", "p", True), _keep_min, (0.0, 0.1, 1.0),
      (1.5, -0.1, float("inf")), "x where it is at least p times the largest of its row, else 0")


def _top_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("top_k", "x", types[0], ("f32",))
    k = integer("top_k", attrs, "k", 1, types[0].shape[-1])
    shape = (*types[0].shape[:-1], k)
    return (Type("f32", shape), Type("u32", shape))


def _top(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    rows = args[0].reshape(-1, args[0].shape[-1])
    ids = np.stack([ranked(row)[: attrs["k"]] for row in rows])
    values = np.take_along_axis(rows, ids, 1)
    return values.reshape(types[0].shape), ids.astype(np.uint32).reshape(types[1].shape)


def _top_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, k in (((9,), 9), ((3, 9), 2), ((2, 2, 40), 7)):
        yield Sample((random(rng, "f32", shape),), {"k": k})
    yield Sample((np.array([[1, np.nan, 2, 2, -np.inf]], "f4"),), {"k": 4})


register(
    OpDef(
        "top_k", ("x",), {"k": REQUIRED}, _top_infer, _top,
        "(values, ids u32) of the k largest of the last axis, largest first; ties to the low index",
        "row", _top_samples,
        (
            Bad((_X,), {"k": 10}, "graph.attribute"),
            Bad((_X,), {"k": 0}, "graph.attribute"),
            Bad((Type("u32", (3, 9)),), {"k": 2}, "graph.dtype"),
            Bad((_X,), {}, "graph.missing_attribute"),
        ),
        rows=("x",),
    )
)  # fmt: skip


def _draw_infer(types: Types, attrs: Attrs) -> Types:
    want_type("sample_categorical", "weights", types[0], "f32", (*types[0].shape[:1],
              *types[0].shape[-1:]))  # fmt: skip
    want_type("sample_categorical", "draws", types[1], "f32", types[0].shape[:1])
    return (Type("u32", types[0].shape[:1]),)


def _draw(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    out = np.full(types[0].shape, NO_TOKEN, np.uint32)
    for r, (row, draw) in enumerate(zip(args[0], args[1], strict=True)):
        running = np.cumsum(row.astype(np.float64))
        if not running[-1] > 0 or np.isinf(running[-1]):
            continue
        d = min(max(float(draw), 0.0), LAST_DRAW) if draw == draw else 0.0
        above: Array = running > d * running[-1]
        out[r] = np.argmax(above) if above.any() else np.flatnonzero(row)[-1]
    return (out,)


def _draw_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for v in (1, 7, 33):
        yield Sample((rng.random((5, v), np.float32), rng.random(5, np.float32)))
    edge = np.array([[0, 1, 0, 1, 2, 0]] * 7, np.float32)  # cumulative sums 0 1 1 2 4 4
    draws = np.array([0, 0.25, 0.2499, 0.5, 2, -1, np.nan], np.float32)
    yield Sample((edge, draws))
    none = np.array([[0, 0], [np.nan, 1], [np.inf, 1]], np.float32)
    yield Sample((none, np.full(3, 0.5, np.float32)))


_W = Type("f32", (3, 9))
register(
    OpDef(
        "sample_categorical", ("weights", "draws"), {}, _draw_infer, _draw,
        "First index, ascending, whose running sum of the row's weights exceeds draw times their "
        "total; draws are clamped to [0, 1 - 2^-24]; 0xFFFFFFFF where the total is not positive "
        "and finite",
        "row", _draw_samples,
        (
            Bad((Type("f32", (9,)), Type("f32", (9,))), {}, "graph.rank"),
            Bad((_W, Type("f32", (2,))), {}, "graph.shape"),
            Bad((_W, Type("u32", (3,))), {}, "graph.dtype"),
            Bad((Type("f16", (3, 9)), Type("f32", (3,))), {}, "graph.dtype"),
        ),
        rows=("weights", "draws"),
    )
)  # fmt: skip


def _count_infer(types: Types, attrs: Attrs) -> Types:
    for name, t in zip(("counts", "history"), types, strict=False):
        want_dtype("count_tokens", name, t, ("u32",))
        want_rank("count_tokens", name, t, 1)
    want_type("count_tokens", "n", types[2], "u32", (1,))
    return (types[0],)


def _count(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    counts, history, n = args
    said = history[: int(n[0])]
    made = np.bincount(said[said < len(counts)].astype(np.int64), minlength=len(counts))
    return (made.astype(np.uint32),)


def _count_samples(rng: np.random.Generator) -> Iterator[Sample]:
    history = np.array([3, 1, 3, 9, 2**32 - 1, 0], np.uint32)
    for n in (0, 4, 6, 2**32 - 1):
        counts = rng.integers(0, 9, 5).astype(np.uint32)
        yield Sample((counts, history, np.array([n], np.uint32)))


_V, _N = Type("u32", (9,)), Type("u32", (1,))
register(
    OpDef(
        "count_tokens", ("counts", "history", "n"), {}, _count_infer, _count,
        "How often each token stands among the first n of history u32 [C], built anew in a state "
        "u32 [V]: the next version; n beyond C counts as C, ids beyond V are not counted",
        "kernel", _count_samples,
        (
            Bad((Type("f32", (9,)), _V, _N), {}, "graph.dtype"),
            Bad((_V, Type("u32", (3, 3)), _N), {}, "graph.rank"),
            Bad((_V, _V, Type("u32", (2,))), {}, "graph.shape"),
        ),
        writes=True,
    )
)  # fmt: skip


def _penalise_infer(types: Types, attrs: Attrs) -> Types:
    want_dtype("penalise", "logits", types[0], ("f32",))
    want_rank("penalise", "logits", types[0], 2)
    want_type("penalise", "counts", types[1], "u32", types[0].shape[1:])
    for name, t in zip(("repetition", "presence", "frequency"), types[2:], strict=True):
        want_type("penalise", name, t, "f32", (1,))
    return (types[0],)


def _penalise(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    x, c = wide(args[0]), args[1].astype(np.float64)
    r, presence, frequency = (float(a[0]) for a in args[2:])
    with np.errstate(all="ignore"):
        y = np.where(x > 0, x / r, x * r) - presence - frequency * c
        return (np.where(c > 0, y, x).astype(np.float32),)


def _penalise_samples(rng: np.random.Generator) -> Iterator[Sample]:
    counts = np.array([0, 1, 2, 0, 7], np.uint32)
    for values in ((1.0, 0.0, 0.0), (1.25, 0.5, 0.125), (0.5, -1.0, 2.0)):
        yield Sample((random(rng, "f32", (2, 5)), counts, *(np.array([v], "f4") for v in values)))


_F = Type("f32", (1,))
register(
    OpDef(
        "penalise", ("logits", "counts", "repetition", "presence", "frequency"), {},
        _penalise_infer, _penalise,
        "Logits f32 [R, V] of tokens that were said c > 0 times: l / repetition if l > 0, else "
        "l * repetition; then - presence - frequency * c",
        "kernel", _penalise_samples,
        (
            Bad((Type("f32", (9,)), _V, _F, _F, _F), {}, "graph.rank"),
            Bad((_W, Type("u32", (8,)), _F, _F, _F), {}, "graph.shape"),
            Bad((_W, _V, _F, _N, _F), {}, "graph.dtype"),
        ),
        rtol=2**-22, rows=("logits",),
    )
)  # fmt: skip
