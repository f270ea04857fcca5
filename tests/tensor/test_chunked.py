"""linear_attention(form="chunked"): the recurrence in float64, and the bits of its recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.kernels.recipes import fma
from tests.native import same_bits
from tests.tensor.support import compile, f32, refusals, run, u32

SLOTS, H, VD, KD, ROWS, CHUNK = 3, 2, 20, 8, 60, 16
GATES = {"token": (ROWS,), "head": (ROWS, H), "channel": (ROWS, H, KD)}
F = np.float32


def step(gate: str, decay: str, form: str = "chunked"):
    def record(b: t.Builder) -> None:
        q, k = (b.input(n, t.f32, (ROWS, H, KD)) for n in "qk")
        y, _ = t.linear_attention(
            q, k, b.input("v", t.f32, (ROWS, H, VD)), b.state("s", t.f32, (SLOTS, H, VD, KD)),
            alpha=b.input("alpha", t.f32, GATES[gate]),
            beta=b.input("beta", t.f32, GATES[gate][:2]),
            query_extents=b.input("extents", t.u32, (SLOTS,)), decay=decay, form=form,
        )  # fmt: skip
        b.output("y", y)

    return record


def numbers(gate: str, seed: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    v = {"q": f32(rng, ROWS, H, KD), "k": f32(rng, ROWS, H, KD) / 3,
         "v": f32(rng, ROWS, H, VD), "alpha": rng.random(GATES[gate]).astype(F),
         "beta": rng.random(GATES[gate][:2]).astype(F),
         "s": f32(rng, SLOTS, H, VD, KD)}  # fmt: skip
    v["alpha"][5] = 0
    return v


def gate_of(x: np.ndarray, row: int, head: int) -> np.ndarray:
    """f32 [K], or one number."""
    return np.atleast_1d(x[(row, head)[: x.ndim]] if x.ndim < 3 else x[row, head])


def recurrence(v: dict[str, Any], extents: tuple[int, ...], decay: str) -> tuple[Any, Any]:
    """float64, row by row."""
    s, out, at = v["s"].astype(np.float64), np.zeros(v["v"].shape), 0
    for slot, n in enumerate(extents):
        for i in range(at, at + n):
            for h in range(H):
                k, q, value = (v[x][i, h].astype(np.float64) for x in "kqv")
                a = gate_of(v["alpha"], i, h).astype(np.float64)
                beta, old = float(gate_of(v["beta"], i, h)[0]), s[slot, h]
                u = (old * a if decay == "before" else old) @ k
                s[slot, h] = old * a + beta * np.outer(value - u, k)
                out[i, h] = s[slot, h] @ q
        at += n
    return out, s


def chain(start: np.ndarray, terms: Any) -> np.ndarray:
    for a, b in terms:
        start = fma(a, b, start)
    return start


def chunk(s: np.ndarray, v: dict[str, Any], rows: range, h: int, before: bool) -> list[np.ndarray]:
    """The recipe of docs/tensor.md: one chunk of one head, s [V, K] in place."""
    channels = v["alpha"].ndim == 3
    k, q, value = (v[x][rows.start : rows.stop, h] for x in "kqv")
    a = [np.broadcast_to(gate_of(v["alpha"], r, h), (KD,)) for r in rows]
    zero, one = np.zeros(VD, F), np.ones(KD, F)
    c: list[np.ndarray] = []
    made: list[np.ndarray] = []
    g = one
    keys = [x.copy() for x in k]  # decayed; of one alpha: the decays
    decays = [one] * len(k)
    for n in range(len(k)):
        last, g = g, (g * a[n]).astype(F)
        held = [x.copy() for x in keys], list(decays)
        for i in range(n):
            keys[i] = (keys[i] * a[n]).astype(F)
            decays[i] = (decays[i] * a[n]).astype(F)
        if channels:
            u = chain(zero, ((s[:, e], ((g if before else last) * k[n])[e]) for e in range(KD)))
            o = chain(zero, ((s[:, e], (g * q[n])[e]) for e in range(KD)))
            old = keys if before else held[0]
            kk = [chain(F(0), zip(old[i], k[n], strict=True)) for i in range(n)]
            kq = [chain(F(0), zip(keys[i], q[n], strict=True)) for i in range(n + 1)]
        else:
            u, o = (chain(zero, ((s[:, e], x[n][e]) for e in range(KD))) for x in (k, q))
            u, o = (g if before else last)[0] * u, g[0] * o
            old = decays if before else held[1]
            kk = [old[i][0] * chain(F(0), zip(k[i], k[n], strict=True)) for i in range(n)]
            kq = [decays[i][0] * chain(F(0), zip(k[i], q[n], strict=True)) for i in range(n + 1)]
        u = chain(u, zip(kk, c, strict=True))
        c.append(gate_of(v["beta"], rows[n], h)[0] * (value[n] - u))
        made.append(chain(o, zip(kq, c, strict=True)))
    final = keys if channels else [d[0] * x for d, x in zip(decays, k, strict=True)]
    for e in range(KD):
        s[:, e] = chain(g[e] * s[:, e], ((c[i], final[i][e]) for i in range(len(c))))
    return made


@pytest.mark.parametrize("decay", ["after", "before"])
@pytest.mark.parametrize("gate", GATES)
def test_it_is_the_recurrence_and_its_recipe(gate: str, decay: str) -> None:
    """Whole chunks, a part of one, none; one alpha of 0: nothing divides by it."""
    extents, v = (33, 0, 16), numbers(gate)
    first = {n: a.copy() for n, a in v.items()}
    want, state = recurrence(first, extents, decay)
    with compile(step(gate, decay)) as plan:
        y = run(plan, **v, extents=u32(*extents))["y"]
        assert "linear_attention_chunked" in plan.explain()
    assert np.abs(y - want).max() < 2e-5 and (y[49:].view(np.uint32) == 0).all()
    assert np.abs(v["s"] - state).max() < 2e-5
    assert (v["s"][1] == first["s"][1]).all()
    at = 0
    for slot, n in enumerate(extents):
        for begin in range(at, at + n, CHUNK):
            rows = range(begin, min(begin + CHUNK, at + n))
            for h in range(H):
                made = chunk(first["s"][slot, h], first, rows, h, decay == "before")
                assert same_bits(np.stack(made), y[rows.start : rows.stop, h]), (slot, rows, h)
        at += n
    assert same_bits(first["s"], v["s"])


@pytest.mark.parametrize("gate", GATES)
def test_chunks_in_two_submissions_are_chunks_in_one(gate: str) -> None:
    v = numbers(gate, 5)
    apart = {n: a.copy() for n, a in v.items()}
    with compile(step(gate, "before")) as plan:
        whole = run(plan, **v, extents=u32(0, 48, 0))["y"]
        for begin, n in ((0, 16), (16, 32)):
            rows = {x: np.roll(a, -begin, 0) if x != "s" else a for x, a in apart.items()}
            y = run(plan, **rows, extents=u32(0, n, 0))["y"]
            assert same_bits(y[:n], whole[begin : begin + n])
    assert same_bits(apart["s"], v["s"])


@pytest.mark.parametrize("decay", ["after", "before"])
def test_gates_that_a_quotient_of_decays_would_not_survive(decay: str) -> None:
    """Channels that forget within a chunk, beside some that keep, grow or turn: a quotient of
    products of alpha would be 0 / 0 or infinite."""
    rng, extents, v = np.random.default_rng(6), (40, 0, 20), numbers("channel", 6)
    kinds = np.array([0.0, 1e-30, 1e-12, 0.5, 1.0, 1.02, -0.7, 1e-38], F)
    v["alpha"][:] = np.broadcast_to(kinds, v["alpha"].shape)
    v["alpha"][rng.random(v["alpha"].shape) < 0.2] = 1
    want, state = recurrence(v, extents, decay)
    with compile(step("channel", decay)) as plan:
        y = run(plan, **v, extents=u32(*extents))["y"]
    scale = np.abs(want).max()
    assert np.abs(y - want).max() < 2e-5 * scale and np.abs(v["s"] - state).max() < 2e-5 * scale


def test_it_refuses_what_it_has_not() -> None:
    def record(form: str, beta: tuple[int, ...]):
        def body(b: t.Builder) -> None:
            q, v = b.input("q", t.f32, (ROWS, H, KD)), b.input("v", t.f32, (ROWS, H, VD))
            t.linear_attention(
                q, q, v, b.state("s", t.f32, (SLOTS, H, VD, KD)),
                alpha=b.input("alpha", t.f32, GATES["channel"]),
                beta=b.input("beta", t.f32, beta),
                query_extents=b.input("extents", t.u32, (SLOTS,)), form=form,
            )  # fmt: skip

        return body

    (unknown,) = refusals(record("parallel", (ROWS,)))
    assert unknown.code == "graph.attribute" and "'chunked'" in unknown.remedy
    (channels,) = refusals(record("chunked", GATES["channel"]))
    assert channels.code == "graph.shape" and "beta" in channels.message
    assert refusals(record("recurrent", (ROWS,))) == refusals(record("chunked", (ROWS,))) == []
