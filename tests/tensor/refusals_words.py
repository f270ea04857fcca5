"""Wrong programs whose refusal was once followed to the letter and refused again: each remedy is
taken in one step.  Part of the table of `refusals`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from lanewise import tensor as t
from tests.tensor.wrong import Row, attend, out, u, w, x


def _cast(kind: object, want: str, remedy: str = "") -> Row:
    return Row(
        lambda b: out(b, t.cast(x(b, 4), kind)),  # type: ignore[arg-type]
        "attribute", "cast: dtype is", remedy or f"write {want!r}",
        lambda b: out(b, t.cast(x(b, 4), want)),
    )  # fmt: skip


def _routed(b: t.Builder, right: bool) -> None:
    values, ids = t.top_k(x(b, 4, 8), 2)
    t.route(ids if right else values, 8)
    out(b, values)


def _combined(b: t.Builder, right: bool) -> None:
    rows = x(b, 4, 8)
    values, ids = t.top_k(rows, 2)
    _, tokens, places = t.route(ids, 8)
    taken = t.gather_rows(rows, tokens)
    out(b, t.combine(taken, *((values, places) if right else (places, values))))


def _chosen(b: t.Builder, right: bool) -> None:
    values, ids = t.top_k(x(b, 8), 2)
    out(b, t.gather_rows(x(b, 4, 8, name="table"), ids if right else values))


WORDS = {
    "a cast to float16": _cast("float16", "f16"),
    "a cast to bfloat16": _cast("bfloat16", "bf16"),
    "a cast to float32": _cast("float32", "f32"),
    "a cast to half": _cast("half", "f16"),
    "a cast to NumPy's float16": _cast(np.float16, "f16"),
    "a cast to NumPy's dtype": _cast(np.dtype("float16"), "f16"),
    "a cast to ml_dtypes' float8_e5m2": _cast(ml_dtypes.float8_e5m2, "f8_e5m2"),
    "a cast to NumPy's float64": _cast(np.float64, "f32"),
    "a cast to f64": _cast("f64", "f32"),
    "a cast to nothing known": _cast("quick", "f32"),
    "a cast to NumPy's int32": _cast(np.int32, "f32", "no op makes integers"),
    "a cast to i32": _cast("i32", "f32", "no op makes integers"),
    "lengths that were computed": Row(
        lambda b: out(b, attend(b, lengths=t.exp(x(b, 1, name="n")))), "dtype", "lengths is f32",
        "declare a port for it", lambda b: out(b, attend(b, lengths=u(b, 1, name="n")))),
    "a number in a maximum": Row(
        lambda b: out(b, t.maximum(x(b, 4), 0.5)),  # type: ignore[arg-type]
        "operand", "maximum: b is 0.5", "b.constant(0.5)",
        lambda b: out(b, t.maximum(x(b, 4), b.constant(0.5)))),
    "what b.scalar returns in a maximum": Row(
        lambda b: out(b, t.maximum(x(b, 4), b.scalar("z"))),  # type: ignore
        "operand", "b is None, which is what b.scalar returns", "b.input of (1,)",
        lambda b: out(b, t.maximum(x(b, 4), x(b, 1, name="z")))),
    "values for ids of experts": Row(
        lambda b: _routed(b, False), "dtype", "route: ids is f32", "top_k gives (values, ids)",
        lambda b: _routed(b, True)),
    "values for ids of rows": Row(
        lambda b: _chosen(b, False), "dtype", "ids is f32", "top_k gives (values, ids)",
        lambda b: _chosen(b, True)),
    "weights and places in turn": Row(
        lambda b: _combined(b, False), "dtype", "combine: weights is u32",
        "combine(rows, weights, permutation)", lambda b: _combined(b, True)),
    "ids that were computed, in a sum": Row(
        lambda b: out(b, t.silu(t.argmax(x(b, 4, 8)))), "dtype", "silu: x is u32",
        "declare a port for it", lambda b: out(b, t.silu(x(b, 4, name="ids")))),
    "matrices of other counts": Row(
        lambda b: out(b, t.matmul(x(b, 2, 4, 8), x(b, 3, 8, 5, name="m"))),
        "shape", "leading axes", "b [8, N] serves all of a",
        lambda b: out(b, t.matmul(x(b, 2, 4, 8), x(b, 8, 5, name="m")))),
    "an axis of -1": Row(
        lambda b: out(b, t.reshape(x(b, 4, 8), (2, -1))), "attribute", "[2, -1]",
        "reshape(x, (2, 16))", lambda b: out(b, t.reshape(x(b, 4, 8), (2, 16)))),
    "an axis of -1 that does not divide": Row(
        lambda b: out(b, t.reshape(x(b, 4, 8), (5, -1))), "attribute", "[5, -1]",
        "positive integers", lambda b: out(b, t.reshape(x(b, 4, 8), (8, 4)))),
    "a format of another program": Row(
        lambda b: out(b, t.linear(x(b, 4, 32), w(b, 8, 32, dtype="q4_0_4_4"))),
        "dtype", "q4_0_4_4", "or a format: q4_0, q4_1",
        lambda b: out(b, t.linear(x(b, 4, 32), w(b, 8, 32, dtype="q4_0")))),
    "a scalar of NumPy's float32": Row(
        lambda b: b.scalar("s", np.float32), "scalar", "scalar 's'", "write 'f32'",  # type: ignore
        lambda b: out(b, t.scale(x(b, 4), b.scalar("s", "f32") or "s"))),
    "a scalar of uint32 by name": Row(
        lambda b: b.scalar("n", "uint32"), "scalar", "scalar 'n'", "write 'u32'",
        lambda b: out(b, t.abs((b.scalar("n", "u32"), x(b, 4))[1]))),
    "ids of a table that were cast": Row(
        lambda b: out(b, t.gather_rows(x(b, 4, 8), t.exp(x(b, 3, name="ids")))),
        "dtype", "ids is f32", "the order is gather_rows(table, ids)",
        lambda b: out(b, t.gather_rows(x(b, 4, 8), u(b, 3, name="ids")))),
}  # fmt: skip
