"""Rows of one submission at one place of a cache: the last wins, whoever writes it.

What is wanted is what the rows write of which nothing comes later: the others are given no place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from tests.tensor.support import f32, u32

ROWS, HKV, D, CAP, WIDTH = 96, 2, 64, 256, 128
ABSENT = 0xFFFFFFFF
DTYPES = {
    "f32": ((CAP, HKV, D), np.float32), "f16": ((CAP, HKV, D), np.float16),
    "bf16": ((CAP, HKV, D), ml_dtypes.bfloat16), "q8_0": ((CAP, HKV, D // 32 * 34), np.uint8),
}  # fmt: skip
Record = Callable[[t.Builder, str], None]


def places(b: t.Builder) -> dict[str, Any]:
    return {"table": b.input("table", t.u32, (3, 2)), "slots": b.input("slots", t.u32, (ROWS,)),
            "positions": b.input("at", t.u32, (ROWS,))}  # fmt: skip


def plain(b: t.Builder, dtype: str) -> None:
    """K and V, each a pass over the rows."""
    at, x = places(b), b.input("x", t.f32, (ROWS, HKV, D))
    k, v = (b.state(n, dtype, (CAP, HKV, D)) for n in "kv")
    k, v = t.kv_write(k, x, **at), t.kv_write(v, x, **at)
    _seen(b, k, v, at)


def turned(b: t.Builder, dtype: str) -> None:
    """The norm and the rotation of a head with its write."""
    at, x = places(b), b.input("x", t.f32, (ROWS, HKV, D))
    normed = t.rms_norm(x, b.weight("g", t.f32, (D,)), 1e-5)
    k = t.rope(normed, D, positions=b.input("turns", t.u32, (ROWS,)),
               table=b.input("angles", t.f32, (8, D)))  # fmt: skip
    k = t.kv_write(b.state("k", dtype, (CAP, HKV, D)), k, **at)
    v = t.kv_write(b.state("v", dtype, (CAP, HKV, D)), x, **at)
    _seen(b, k, v, at)


def stored(b: t.Builder, dtype: str) -> None:
    """The writes in the stores of their products."""
    at, x, made = places(b), b.input("x", t.f32, (ROWS, WIDTH)), {}
    for n in "kv":
        y = t.linear(x, b.weight(f"w{n}", t.f32, (HKV * D, WIDTH)))
        made[n] = t.reshape(y, (ROWS, HKV, D))
    k = t.rope(made["k"], D, positions=b.input("turns", t.u32, (ROWS,)),
               table=b.input("angles", t.f32, (8, D)))  # fmt: skip
    k = t.kv_write(b.state("k", dtype, (CAP, HKV, D)), k, **at)
    v = t.kv_write(b.state("v", dtype, (CAP, HKV, D)), made["v"], **at)
    _seen(b, k, v, at)


def twice(b: t.Builder, dtype: str) -> None:
    """Two products that write each cache, one after the other."""
    at, x = places(b), b.input("x", t.f32, (ROWS, WIDTH))
    caches = {n: b.state(n, dtype, (CAP, HKV, D)) for n in "kv"}
    for weight, n in (("wk", "k"), ("wv", "v"), ("uk", "k"), ("uv", "v")):
        y = t.linear(x, b.weight(weight, t.f32, (HKV * D, WIDTH)))
        caches[n] = t.kv_write(caches[n], t.reshape(y, (ROWS, HKV, D)), **at)
    _seen(b, caches["k"], caches["v"], at)


def scattered(b: t.Builder, dtype: str) -> None:
    """`scatter_rows` of a cache: its ids are positions."""
    x, ids = b.input("x", t.f32, (ROWS, HKV, D)), b.input("at", t.u32, (ROWS,))
    k, v = (t.scatter_rows(b.state(n, dtype, (CAP, HKV, D)), x, ids) for n in "kv")
    at = {"table": b.input("table", t.u32, (3, 2)), "slots": b.input("slots", t.u32, (ROWS,)),
          "positions": ids}  # fmt: skip
    _seen(b, k, v, at)


def _seen(b: t.Builder, k: t.State, v: t.State, at: dict[str, Any]) -> None:
    q = b.input("q", t.f32, (ROWS, 2 * HKV, D))
    b.output("y", t.attention(q, k, v, pages=at["table"], slots=at["slots"],
                              positions=at["positions"]))  # fmt: skip


def numbers(record: Record) -> dict[str, np.ndarray]:
    """Three sequences; the first two share a page, and their rows fall on few positions of it."""
    rng = np.random.default_rng(7)
    shape = (ROWS, HKV, D) if record not in (stored, twice) else (ROWS, WIDTH)
    given = {"x": f32(rng, *shape), "q": f32(rng, ROWS, 2 * HKV, D), "g": f32(rng, D),
             "turns": rng.integers(0, 8, ROWS).astype(np.uint32), "angles": f32(rng, 8, D),
             **{n: f32(rng, HKV * D, WIDTH) for n in ("wk", "wv", "uk", "uv")}}  # fmt: skip
    given["table"] = u32(2, 0, 2, 3, 1, 1).reshape(3, 2)
    given["slots"] = rng.integers(0, 3, ROWS).astype(np.uint32)
    given["at"] = rng.choice(u32(0, 5, 63, 64, 66, 127), ROWS)
    return given


def lasting(record: Record, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with no place for a row that a later one covers."""
    pages = given["table"][given["slots"], given["at"] // 64]
    where = [int(x) for x in pages * 64 + given["at"] % 64]
    where = given["at"].tolist() if record is scattered else where
    covered = [w in where[i + 1 :] for i, w in enumerate(where)]
    assert 60 < sum(covered) < ROWS
    return {**given, "at": np.where(covered, np.uint32(ABSENT), given["at"])}


def writes(
    record: Record, dtype: str, given: dict[str, np.ndarray], rt: t.Runtime, times: int,
    **options: Any,
) -> list[np.ndarray]:  # fmt: skip
    """What K and V hold after runs from nothing, in positions' order: each outcome once."""
    b = rt.builder()
    record(b, dtype)
    shape, kind = DTYPES[dtype]
    found: dict[bytes, list[np.ndarray]] = {}
    with b.compile(**options) as plan:
        bound = {p.name: given[p.name] for p in plan.ports if p.name in given}
        layouts = {p.name: p.layout for p in plan.ports}
        y = np.zeros((ROWS, 2 * HKV, D), np.float32)
        for _ in range(times):
            states = {n: np.zeros(shape, kind) for n in "kv"}
            plan.run(**bound, **states, y=y)
            found[b"".join(states[n].tobytes() for n in "kv")] = [states[n] for n in "kv"]
    return [
        np.stack([t.from_pages(x, layouts[n], "q8_0" if dtype == "q8_0" else "").astype(np.float32)
                  for n, x in zip("kv", pair, strict=True)])
        for pair in found.values()
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("record", [plain, turned, stored, twice, scattered])
def test_the_last_row_wins_on_any_number_of_threads(record: Record, dtype: str) -> None:
    given = numbers(record)
    (want,) = writes(record, dtype, lasting(record, given), t.Runtime("cpu", threads=1), 1)
    assert np.count_nonzero(want.any((2, 3))) > 8
    for naive in (False, True):
        for threads in (1, 2, 8):
            rt = t.Runtime("cpu", threads=threads)
            times = 1 if threads == 1 else 40
            (have,) = writes(record, dtype, given, rt, times, naive=naive)
            assert (have == want).all(), (naive, threads)


@pytest.mark.parametrize("record", [plain, scattered])
def test_the_reference_has_the_same_winners(record: Record) -> None:
    given = numbers(record)
    for dtype in DTYPES:
        (want,) = writes(record, dtype, given, t.Runtime("cpu", threads=2), 1)
        (have,) = writes(record, dtype, given, t.Runtime("reference"), 1)
        assert (have == want).all(), dtype


def test_the_winner_is_the_last_row() -> None:
    """Eight rows of two sequences at one position of a page that they share, by their numbers."""
    for threads in (1, 2, 8):
        b = t.Runtime("cpu", threads=threads, strict=True).builder()
        t.kv_write(b.state("k", t.f32, (64, 2, 512)), b.input("x", t.f32, (8, 2, 512)),
                   table=b.input("pages", t.u32, (2, 1)), slots=b.input("slots", t.u32, (8,)),
                   positions=b.input("at", t.u32, (8,)))  # fmt: skip
        x = np.arange(1, 9, dtype=np.float32)[:, None, None] * np.ones((8, 2, 512), np.float32)
        with b.compile() as plan:
            for _ in range(200):
                k = np.zeros((64, 2, 512), np.float32)
                plan.run(
                    k=k,
                    x=x,
                    pages=np.zeros((2, 1), np.uint32),
                    slots=u32(0, 0, 0, 0, 1, 1, 1, 1),
                    at=np.full(8, 5, np.uint32),
                )
                (layout,) = (p.layout for p in plan.ports if p.kind == "state")
                assert (t.from_pages(k, layout)[5] == 8).all()


@pytest.mark.parametrize(("record", "rule"), [(turned, "rope_cache"), (stored, "product_heads")])
def test_these_steps_are_fused(record: Record, rule: str) -> None:
    b = t.Runtime("cpu", threads=1).builder()
    record(b, "f32")
    with b.compile() as plan:
        assert f"{rule}: " in plan.explain()
