"""What the tables of wrong programs share: their row, and recordings in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lanewise import tensor as t

Record = Callable[[t.Builder], object]


class Row(NamedTuple):
    wrong: Record
    code: str
    message: str
    remedy: str
    right: Record


def x(b: t.Builder, *shape: int, name: str = "x", dtype: Any = t.f32) -> t.Tensor:
    return b.input(name, dtype, shape)


def u(b: t.Builder, *shape: int, name: str = "u") -> t.Tensor:
    return b.input(name, t.u32, shape)


def w(b: t.Builder, *shape: int, name: str = "w", dtype: Any = t.f32) -> t.Tensor:
    return b.weight(name, dtype, shape)


def s(b: t.Builder, *shape: int, name: str = "s", dtype: Any = t.f32) -> t.State:
    return b.state(name, dtype, shape)


def out(b: t.Builder, y: Any) -> None:
    b.output("y", y)


def both(b: t.Builder, *scalars: tuple[str, str]) -> t.Builder:
    """The builder, with scalars declared."""
    for name, kind in scalars:
        b.scalar(name, kind)
    return b


def attend(
    b: t.Builder, *, q: tuple[int, ...] = (1, 8), rows: int = 64, heads: int = 1, width: int = 8,
    v: tuple[int, ...] | None = None, strided: bool = False, **more: Any,
) -> t.Tensor:  # fmt: skip
    query = x(b, *q, name="q")
    query = t.permute(query, 1, 0) if strided else query
    k = s(b, rows, heads, width, name="k")
    return t.attention(query, k, s(b, *(v or (rows, heads, width)), name="v"), **more)


def one(b: t.Builder, n: int = 1, dtype: Any = t.u32) -> dict[str, t.Tensor]:
    return {"lengths": b.input("lengths", dtype, (n,))}


def written(b: t.Builder, stale: bool) -> None:
    first = s(b, 4, 8)
    second = t.scatter_rows(first, x(b, 2, 8), u(b, 2))
    out(b, t.read_state(first if stale else second))


def delta(b: t.Builder, *state: int, extents: int = 2) -> None:
    """Keys of 8, values of 6."""
    q = x(b, 4, 1, 8, name="q")
    out(b, t.linear_attention(q, q, x(b, 4, 1, 6, name="v"), s(b, *state), alpha=x(b, 4, name="a"),
                              beta=x(b, 4, name="b"), query_extents=u(b, extents))[0])


def ring(b: t.Builder, *state: int, taps: tuple[int, ...] = (4, 8)) -> None:
    out(b, t.conv_ring(x(b, 5, 8), w(b, *taps), s(b, *state), query_extents=u(b, 2))[0])


def recurrent(b: t.Builder, alpha: tuple[int, ...], form: str = "recurrent") -> None:
    q = x(b, 4, 1, 8, name="q")
    out(b, t.linear_attention(q, q, q, s(b, 2, 1, 8, 8), alpha=x(b, *alpha, name="alpha"),
                              beta=x(b, 4, name="beta"), query_extents=u(b, 2), form=form)[0])


def drawn(b: t.Builder, options: t.SamplingOptions, declare: bool = True, **more: Any) -> None:
    if declare:
        t.declare_sampling_scalars(b, options)
    out(b, t.sample(x(b, 2, 8), options, **more)[0])


def draws(b: t.Builder) -> t.Tensor:
    return x(b, 2, name="draws")


GREEDY, WARM = t.SamplingOptions(), t.SamplingOptions(temperature=0.8)
