"""Caches by the Builder: every dtype in pages of every size, the same bits as in pages of 64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.quant import caches
from tests.native import same_bits
from tests.tensor.support import compile, f32, refusals, run, u32

H, HKV, D, CAP, ROWS = 4, 2, 32, 512, 12
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
DTYPES = (*NUMPY, "q8_0")
LAYOUTS = {16: "/16", 32: "/32"}
LENGTHS, EXTENTS = (75, 0, 146), (5, 0, 4)
OWNERS = [0] * 5 + [2] * 4
LAST = [*range(70, 75), *range(142, 146)]


def layout(which: str, block: int) -> str:
    return f"pages/{which}{LAYOUTS.get(block, '')}"


def held(x: np.ndarray, dtype: str) -> np.ndarray:
    """What a cache keeps of f32 numbers, f32, by other means than the layer's."""
    if dtype == "q8_0":
        return np.asarray(caches.cache_array(x))
    return x.astype(NUMPY[dtype]).astype(np.float32)


def empty(dtype: str) -> np.ndarray:
    if dtype == "q8_0":
        return np.zeros((CAP, HKV, D // 32 * 34), np.uint8)
    return np.zeros((CAP, HKV, D), NUMPY[dtype])


def exact(q: np.ndarray, k: Any, v: Any) -> np.ndarray:
    """float64: row r of q [R, H, D] attends positions 0..LAST[r] of its owner's k and v."""
    out = np.zeros(q.shape)
    for r, (s, p) in enumerate(zip(OWNERS, LAST, strict=True)):
        for h in range(H):
            keys, values = (x[s][: p + 1, h // (H // HKV)].astype(np.float64) for x in (k, v))
            score = keys @ q[r, h].astype(np.float64) * D**-0.5
            w = np.exp(score - score.max())
            out[r, h] = w / w.sum() @ values
    return out


def step(dtype: str, block: int, blocks: int):
    """Rows of three sequences written to a cache of pages, then attended."""

    def record(b: t.Builder) -> None:
        q, fresh = b.input("q", t.f32, (ROWS, H, D)), {}
        lengths, extents = (b.input(n, t.u32, (3,)) for n in ("lengths", "extents"))
        pages = b.input("pages", t.u32, (3, blocks))
        slots, at = t.ragged_rows(lengths, extents, rows=ROWS, reach=blocks * block)
        for n in "kv":
            fresh[n] = t.kv_write(
                b.state(n, dtype, (CAP, HKV, D)), b.input(f"new.{n}", t.f32, (ROWS, HKV, D)),
                table=pages, slots=slots, positions=at, block=block,
            )  # fmt: skip
        b.output("y", t.attention(q, fresh["k"], fresh["v"], lengths=lengths, pages=pages,
                                  block=block, query_extents=extents))  # fmt: skip

    return record


@pytest.fixture(scope="module")
def tokens() -> dict[str, Any]:
    """q, and k and v of each sequence."""
    rng = np.random.default_rng(3)
    made = {n: [f32(rng, 160, HKV, D) for _ in range(3)] for n in "kv"}
    return {"q": f32(rng, ROWS, H, D), **made}


def filled(tokens: dict[str, Any], dtype: str, block: int, target: str = "cpu") -> Any:
    """(y, buffers, table) of a step over a cache whose earlier positions came by `to_pages`."""
    blocks = -(-160 // block)
    order = np.random.default_rng(block).permutation(CAP // block)
    table = np.full((3, blocks), 2**32 - 1, np.uint32)
    pool = {n: np.zeros((CAP, HKV, D), np.float32) for n in "kv"}
    new = {f"new.{n}": np.zeros((ROWS, HKV, D), np.float32) for n in "kv"}
    taken = row = 0
    for s in range(3):
        need = -(-LENGTHS[s] // block)
        if taken + need > len(order):  # pages of 256: two for each is one too many
            pytest.skip("the pool is too small")
        table[s, :need] = order[taken : taken + need]
        taken += need
        for p in range(LENGTHS[s]):
            old = p < LENGTHS[s] - EXTENTS[s]
            for n in "kv":
                if old:
                    pool[n][table[s, p // block] * block + p % block] = tokens[n][s][p]
                else:
                    new[f"new.{n}"][row] = tokens[n][s][p]
            row += not old
    buffers = {}
    for n in "kv":
        if dtype == "q8_0":
            buffers[n] = t.to_pages(pool[n], layout(n, block), "q8_0")
        else:
            buffers[n] = t.to_pages(pool[n].astype(NUMPY[dtype]), layout(n, block))
    with compile(step(dtype, block, blocks), target) as plan:
        assert {p.name: p.layout for p in plan.ports if p.kind == "state"} == {
            n: layout(n, block) for n in "kv"
        }
        y = run(plan, q=tokens["q"], pages=table, lengths=u32(*LENGTHS), extents=u32(*EXTENTS),
                **new, **buffers)["y"]  # fmt: skip
    return y, buffers, table


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_page_size_gives_the_bits_of_64(dtype: str, tokens: dict[str, Any]) -> None:
    y = filled(tokens, dtype, 64)[0]
    k, v = ([held(x, dtype) for x in tokens[n]] for n in "kv")
    assert np.abs(y[:9] - exact(tokens["q"][:9], k, v)).max() < 3e-6
    assert y[9:].view(np.uint32).max() == 0
    for block in (16, 32, 128, 256):
        if block == 256:
            assert CAP // block == 2  # sequences of 75 and 146 take one each
        other, buffers, table = filled(tokens, dtype, block)
        assert same_bits(other, y), block
        # what was written lies where the table says
        for n, want in (("k", k), ("v", v)):
            flat = t.from_pages(buffers[n], layout(n, block), "q8_0" if dtype == "q8_0" else "")
            for s in (0, 2):
                at = np.arange(LENGTHS[s])
                got = flat[table[s, at // block].astype(int) * block + at % block]
                assert (got.astype(np.float32) == want[s][: LENGTHS[s]]).all(), (block, n, s)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [16, 64, 128])
def test_the_reference_agrees(dtype: str, block: int, tokens: dict[str, Any]) -> None:
    y, buffers, _ = filled(tokens, dtype, block)
    want, kept, _ = filled(tokens, dtype, block, "reference")
    assert np.abs(y - want).max() < 3e-6
    assert all((buffers[n].view(np.uint8) == kept[n].view(np.uint8)).all() for n in "kv")


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
@pytest.mark.parametrize("block", [16, 64])
def test_a_prompt_is_its_tokens_one_by_one(dtype: str, block: int, tokens: dict[str, Any]) -> None:
    """Rows by `scatter_rows`, positions in order; in one submission, and token by token."""

    def record(rows: int):
        def body(b: t.Builder) -> None:
            b.scalar("base", "u32")
            q, at = b.input("q", t.f32, (rows, H, D)), b.input("at", t.u32, (rows,))
            new = [t.scatter_rows(b.state(n, dtype, (128, HKV, D)),
                                  b.input(f"new.{n}", t.f32, (rows, HKV, D)), at)
                   for n in "kv"]  # fmt: skip
            b.output("y", t.attention(q, *new, lengths=b.input("lengths", t.u32, (1,)),
                                      base="base", block=block))  # fmt: skip

        return body

    at = np.arange(60, 72, dtype=np.uint32)
    q, k, v = tokens["q"], tokens["k"][0][60:72], tokens["v"][0][60:72]
    first = {n: empty(dtype)[:128] for n in "kv"}
    apart = {n: x.copy() for n, x in first.items()}
    with compile(record(12)) as plan:
        whole = run(plan, q=q, at=at, lengths=u32(72), base=60, **{"new.k": k, "new.v": v},
                    **first)["y"]  # fmt: skip
    with compile(record(1)) as plan:
        for i in range(12):
            y = run(plan, q=q[i : i + 1], at=at[i : i + 1], lengths=u32(61 + i), base=60 + i,
                    **{"new.k": k[i : i + 1], "new.v": v[i : i + 1]}, **apart)["y"]  # fmt: skip
            assert same_bits(y[0], whole[i]), i
    assert all((first[n].view(np.uint8) == apart[n].view(np.uint8)).all() for n in "kv")
    keys = t.from_pages(first["k"], layout("k", block), "q8_0" if dtype == "q8_0" else "")
    assert (keys[60:72].astype(np.float32) == held(k, dtype)).all() and not keys[:60].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_of_a_cache(dtype: str, tokens: dict[str, Any]) -> None:
    """The second of two layers, in one buffer, is that layer alone."""
    many = {n: np.stack([tokens[n][0][:64], tokens[n][1][:64]]) for n in "kv"}

    def pages(n: str, x: np.ndarray) -> np.ndarray:
        if dtype == "q8_0":
            return t.to_pages(x, layout(n, 32), "q8_0")
        return t.to_pages(x.astype(NUMPY[dtype]), layout(n, 32))

    def record(b: t.Builder) -> None:
        q, lengths = b.input("q", t.f32, (H, D)), b.input("lengths", t.u32, (1,))
        k, v = (b.state(n, dtype, (2, 64, HKV, D)) for n in "kv")
        for i in range(2):
            b.output(f"y{i}", t.attention(q, t.layer_state(k, i), t.layer_state(v, i),
                                          lengths=lengths, block=32))  # fmt: skip

    def alone(b: t.Builder) -> None:
        k, v = (b.state(n, dtype, (64, HKV, D)) for n in "kv")
        b.output("y", t.attention(b.input("q", t.f32, (H, D)), k, v, block=32,
                                  lengths=b.input("lengths", t.u32, (1,))))  # fmt: skip

    q = tokens["q"][0]
    with compile(record) as plan:
        made = run(plan, q=q, lengths=u32(50), **{n: pages(n, x) for n, x in many.items()})
    with compile(alone) as plan:
        for i in range(2):
            y = run(plan, q=q, lengths=u32(50), **{n: pages(n, x[i]) for n, x in many.items()})
            assert same_bits(y["y"], made[f"y{i}"])


def test_pages_are_undone() -> None:
    rng = np.random.default_rng(8)
    x = f32(rng, 2, 64, HKV, 64) * 10.0 ** rng.integers(-7, 3, (2, 64, HKV, 1))
    x = x.astype(np.float32)
    for block in (16, 32, 64):
        for n in "kv":
            assert (t.from_pages(t.to_pages(x, layout(n, block)), layout(n, block)) == x).all()
            raw = t.to_pages(x, layout(n, block), "q8_0")
            assert raw.shape == (2, 64, HKV, 68) and raw.dtype == np.uint8
            assert (t.from_pages(raw, layout(n, block), "q8_0") == held(x, "q8_0")).all()
    k = t.to_pages(x, "pages/k/16").reshape(2, 4, HKV, 64, 16)
    assert k[1, 2, 1, 40, 5] == x[1, 37, 1, 40]


def test_values_of_a_cache_are_stored_as_they_are() -> None:
    """Also where a subnormal scale makes `encode` of them give others."""
    rng = np.random.default_rng(0)
    x = f32(rng, 4000, 32) * 10.0 ** rng.uniform(-8, 2, (4000, 1))
    values = np.asarray(caches.cache_array(x.astype(np.float32)))
    assert (caches.decode(*caches.encode(values)) != values).any()
    assert (caches.decode(*caches.recode(values)) == values).all()
    bad = np.asarray(caches.cache_array(np.full((1, 32), np.inf, np.float32)))
    assert np.isnan(caches.decode(*caches.recode(bad))).all()


def test_refusals() -> None:
    def record(b: t.Builder) -> None:
        q, lengths = b.input("q", t.f32, (H, D)), b.input("lengths", t.u32, (1,))
        k, v = (b.state(n, t.bf16, (96, HKV, D)) for n in "kv")
        t.attention(q, k, v, lengths=lengths, block=48)
        t.attention(q, k, v, lengths=lengths, block=0)
        t.attention(q, k, v, lengths=lengths, block=-64)
        t.attention(q, k, v, lengths=lengths)
        b.state("flat", "q8_0", (64, 64))
        b.state("narrow", "q8_0", (64, 2, 20))
        b.state("other", "q4_0", (64, 2, 32))
        t.attention(q, b.state("k8", "q8_0", (64, HKV, D)), v, lengths=lengths, block=32)

    found = refusals(record)
    assert [e.code for e in found] == ["graph.attribute"] * 3 + ["graph.shape"] * 3 + [
        "graph.dtype"] * 2  # fmt: skip
    assert all(e.place.startswith(__file__) and e.remedy for e in found)
    assert "multiple of 64" in found[0].message and "whole pages of 64" in found[3].message


def test_strict_counts_pages_of_the_size_said() -> None:
    rt = t.Runtime("cpu", threads=1, strict=True)
    b = rt.builder("strict")
    k, v = (b.state(n, t.f16, (64, HKV, D)) for n in "kv")
    pages = b.input("pages", t.u32, (1, 4))
    b.output("y", t.attention(b.input("q", t.f32, (H, D)), k, v, block=16, pages=pages,
                              lengths=b.input("lengths", t.u32, (1,))))  # fmt: skip
    held = {n: np.zeros((64, HKV, D), np.float16) for n in "kv"}
    with b.compile() as plan:
        run(plan, q=np.zeros((H, D), np.float32), pages=np.array([[3, 0, 1, 2]], np.uint32),
            lengths=u32(64), **held)  # fmt: skip
        with pytest.raises(Exception, match="a page") as caught:
            run(plan, q=np.zeros((H, D), np.float32), pages=np.array([[4, 0, 1, 2]], np.uint32),
                lengths=u32(64), **held)  # fmt: skip
        assert caught.value.code == "run.data"  # type: ignore[attr-defined]


def test_a_cache_lies_in_one_way() -> None:
    def mixed(b: t.Builder) -> None:
        q, lengths = b.input("q", t.f32, (H, D)), b.input("lengths", t.u32, (1,))
        k, v = (b.state(n, t.bf16, (64, HKV, D)) for n in "kv")
        b.output("a", t.attention(q, k, v, lengths=lengths, block=16))
        b.output("b", t.attention(q, k, v, lengths=lengths, block=32))

    def rows(b: t.Builder) -> None:
        state = b.state("k", "q8_0", (64, HKV, D))
        b.output("y", t.read_state(t.scatter_rows(state, b.input("x", t.f32, (2, HKV, D)),
                                                  b.input("at", t.u32, (2,)))))  # fmt: skip

    def unread(b: t.Builder) -> None:
        t.scatter_rows(b.state("k", "q8_0", (64, HKV, D)), b.input("x", t.f32, (2, HKV, D)),
                       b.input("at", t.u32, (2,)))  # fmt: skip

    for record, text in ((mixed, "parts of 16 positions"), (rows, "8 bits"), (unread, "8 bits")):
        with pytest.raises(Exception, match=text) as caught:
            compile(record)
        errors = getattr(caught.value, "errors", [caught.value])
        assert all(e.code.startswith("graph.") and e.remedy for e in errors), errors
