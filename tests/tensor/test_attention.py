"""Attention by the Builder: every form against float64, and against each other bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from lanewise import tensor as t
from tests.tensor.support import compile, f32, run, u32

H, HKV, D, CAP = 4, 2, 8, 256
SCALE = D**-0.5


def exact(q, k, v, last, sinks=None):
    """float64: q [R, H, D] row r attends positions 0..last[r] of k, v [r][T, HKV, D]; sinks [H]
    share the softmax."""
    out = np.zeros(q.shape)
    for r, p in enumerate(last):
        if p < 0:
            continue
        for h in range(H):
            keys = k[r][: p + 1, h // (H // HKV)].astype(np.float64)
            values = v[r][: p + 1, h // (H // HKV)].astype(np.float64)
            s = keys @ q[r, h].astype(np.float64) * SCALE
            s = s if sinks is None else np.append(s, np.float64(sinks[h]))
            w = np.exp(s - s.max())
            out[r, h] = (w / w.sum())[: p + 1] @ values
    return out


def declare(b: t.Builder, q_shape, **options):
    q = b.input("q", t.f32, q_shape)
    k, v = (b.state(n, t.f32, (CAP, HKV, D)) for n in "kv")
    b.output("y", t.attention(q, k, v, **options))


def prefill_plan(rows: int) -> t.Plan:
    def record(b: t.Builder) -> None:
        b.scalar("base", "u32")
        declare(b, (rows, H, D), lengths=b.input("lengths", t.u32, (1,)), base="base")

    return compile(record)


def ragged_plan(rows: int, sequences: int, *, paged: bool = True) -> t.Plan:
    def record(b: t.Builder) -> None:
        pages = b.input("pages", t.u32, (sequences, CAP // 64)) if paged else None
        lengths, extents = (b.input(n, t.u32, (sequences,)) for n in ("lengths", "extents"))
        declare(b, (rows, H, D), lengths=lengths, pages=pages, query_extents=extents)

    return compile(record)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    k, v = f32(rng, CAP, HKV, D), f32(rng, CAP, HKV, D)
    q = f32(rng, 12, H, D)
    return q, k, v, {"k": t.to_pages(k, "pages/k"), "v": t.to_pages(v, "pages/v")}


@pytest.fixture(scope="module")
def prefill():
    return prefill_plan(12)


@pytest.fixture(scope="module")
def ragged():
    return ragged_plan(12, 3)


def test_pages_are_undone(data):
    _, k, v, held = data
    assert (t.from_pages(held["k"], "pages/k") == k).all()
    assert (t.from_pages(held["v"], "pages/v") == v).all()
    assert held["k"].reshape(CAP // 64, HKV, D, 64)[1, 1, 3, 5] == k[69, 1, 3]


def test_the_ports_say_the_layouts(prefill):
    layouts = {p.name: p.layout for p in prefill.ports if p.kind == "state"}
    assert layouts == {"k": "pages/k", "v": "pages/v"}


def test_decode_sees_what_is_below_its_length(data):
    q, k, v, held = data

    def record(b: t.Builder) -> None:
        declare(b, (H, D), lengths=b.input("lengths", t.u32, (1,)))

    with compile(record) as plan:
        for length in (0, 1, 64, 65, 256):
            y = run(plan, q=q[0], lengths=u32(length), **held)["y"]
            want = exact(q[:1], [k], [v], [length - 1])[0]
            assert np.abs(y - want).max() < 2e-6 and (length or (y == 0).all())
        over = run(plan, q=q[0], lengths=u32(999), **held)["y"]  # clamped to the reach
        assert (over == run(plan, q=q[0], lengths=u32(256), **held)["y"]).all()


def test_prefill_extends_a_cache(data, prefill):
    q, k, v, held = data
    y = run(prefill, q=q, lengths=u32(75), base=60, **held)["y"]
    last = [min(60 + s, 74) for s in range(12)]
    assert np.abs(y - exact(q, [k] * 12, [v] * 12, last)).max() < 2e-6
    assert (run(prefill, q=q, lengths=u32(0), base=3, **held)["y"] == 0).all()


def test_a_ragged_step_is_its_members_alone_bit_for_bit(data, prefill, ragged):
    """Two sequences on scattered pages, one without a row; padding is exactly 0."""
    q, k, v, _ = data
    pages = np.array([[3, 1, 9, 9], [0, 9, 9, 9], [2, 0, 9, 9]], np.uint32)
    lengths, extents = u32(75, 0, 66), u32(5, 0, 4)
    pool = {"k": np.zeros_like(k), "v": np.zeros_like(v)}
    logical = [{n: np.zeros_like(k) for n in "kv"} for _ in range(3)]
    rng = np.random.default_rng(5)
    for s in (0, 2):
        for n in "kv":  # sequences are tagged by sign and size
            own = np.abs(f32(rng, lengths[s], HKV, D)) * (1 if s else -1)
            logical[s][n][: lengths[s]] = own
            for p in range(int(lengths[s])):
                pool[n][pages[s, p // 64] * 64 + p % 64] = own[p]
    # sequences 0 and 2 share no page that either uses
    pages[2, 1] = 0
    for n in "kv":
        for p in range(64, 66):
            pool[n][p % 64] = logical[2][n][p]
    held = {n: t.to_pages(pool[n], f"pages/{n}") for n in "kv"}
    y = run(ragged, q=q, pages=pages, lengths=lengths, extents=extents, **held)["y"]
    owners, last = [0] * 5 + [2] * 4, [*range(70, 75), *range(62, 66)]
    want = exact(q[:9], [logical[s]["k"] for s in owners], [logical[s]["v"] for s in owners], last)
    assert np.abs(y[:9] - want).max() < 2e-6
    assert y[9:].view(np.uint32).max() == 0
    assert (y[:5] < 0).all() and (y[5:9] > 0).all()
    for s, at, count in ((0, 0, 5), (2, 5, 4)):
        alone = {n: t.to_pages(logical[s][n], f"pages/{n}") for n in "kv"}
        rows = np.zeros_like(q)
        rows[:count] = q[at : at + count]
        base = int(lengths[s]) - count
        whole = run(prefill, q=rows, lengths=u32(int(lengths[s])), base=base, **alone)["y"]
        assert (whole[:count] == y[at : at + count]).all()


def test_counts_that_cannot_be(data, ragged):
    q, _, _, held = data
    pages = np.tile(np.arange(4, dtype=np.uint32), (3, 1))

    def step(lengths, extents):
        return run(ragged, q=q, pages=pages, lengths=lengths, extents=extents, **held)["y"]

    clamped = step(u32(40, 50, 60), u32(10, 2**31, 9))
    assert (clamped[:10] == step(u32(40, 50, 60), u32(10, 0, 0))[:10]).all()
    early = step(u32(2, 0, 0), u32(4, 0, 0))  # rows 0 and 1 would sit at -2 and -1
    assert (early[:2] == 0).all() and (early[2:4] != 0).any(-1).all() and (early[4:] == 0).all()
    pages[0, 0] = 77  # beyond the pool: absent
    assert (step(u32(5, 0, 0), u32(1, 0, 0)) == 0).all()


def test_changing_a_later_value_moves_later_rows_only(data, prefill):
    q, _, v, held = data
    before = run(prefill, q=q, lengths=u32(75), base=60, **held)["y"]
    changed = v.copy()
    changed[66] += 1
    y = run(prefill, q=q, lengths=u32(75), base=60, k=held["k"],
            v=t.to_pages(changed, "pages/v"))["y"]  # fmt: skip
    moved = (y != before).any((1, 2))
    assert moved.tolist() == [False] * 6 + [True] * 6


def test_window_softcap_named_scale_and_batched_decode(data):
    q, k, v, held = data

    def record(b: t.Builder) -> None:
        b.scalar("scale", "f32")
        q = b.input("q", t.f32, (3, 1, H, D))
        k, v = (b.state(n, t.f32, (CAP, HKV, D)) for n in "kv")
        lengths = b.input("lengths", t.u32, (3,))
        pages = b.input("pages", t.u32, (3, 4))
        more = {"lengths": lengths, "pages": pages}
        b.output("y", t.attention(q, k, v, scale="scale", **more))
        b.output("w", t.attention(q, k, v, window=5, **more))
        b.output("c", t.attention(q, k, v, softcap=0.5, **more))

    pages = np.tile(np.arange(4, dtype=np.uint32), (3, 1))
    lengths = u32(70, 3, 200)
    with compile(record) as plan:
        made = run(plan, q=q[:3, None], lengths=lengths, pages=pages, scale=SCALE, **held)
    last = (lengths.astype(int) - 1).tolist()
    want = exact(q[:3], [k] * 3, [v] * 3, last)
    assert np.abs(made["y"][:, 0] - want).max() < 3e-6
    starts = [max(0, p - 4) for p in last]
    windowed = exact(q[:3], [k[s:] for s in starts], [v[s:] for s in starts],
                     [p - s for p, s in zip(last, starts, strict=True)])  # fmt: skip
    assert np.abs(made["w"][:, 0] - windowed).max() < 3e-6
    assert np.abs(made["c"][:, 0] - want).max() > 1e-3  # a cap of 0.5 changes it


@pytest.mark.parametrize("rows", [3, 12])  # split over positions, and whole
def test_sinks_share_the_softmax(data, rows):
    q, k, v, held = data
    sinks = np.linspace(-3, 6, H).astype(np.float32)

    def record(b: t.Builder) -> None:
        b.scalar("base", "u32")
        declare(b, (rows, H, D), lengths=b.input("lengths", t.u32, (1,)), base="base",
                sinks=b.weight("sinks", t.f32, (H,)))  # fmt: skip

    with compile(record) as plan:
        y = run(plan, q=q[:rows], lengths=u32(75), base=60, sinks=sinks, **held)["y"]
    last = [min(60 + s, 74) for s in range(rows)]
    keys, values = [k] * rows, [v] * rows
    assert np.abs(y - exact(q[:rows], keys, values, last, sinks)).max() < 2e-6
    assert np.abs(y - exact(q[:rows], keys, values, last)).max() > 1e-2


def test_the_last_of_equal_ids_wins_in_a_cache():
    """Rows are shared out among threads; the order of equal ids is not left to them."""
    rows = 64

    def record(b: t.Builder) -> None:
        k, v = (b.state(n, t.f32, (64, HKV, D)) for n in "kv")
        x, ids = b.input("x", t.f32, (rows, HKV, D)), b.input("ids", t.u32, (rows,))
        k, v = (t.scatter_rows(s, x, ids) for s in (k, v))
        b.output("y", t.attention(b.input("q", t.f32, (H, D)), k, v,
                                  lengths=b.input("lengths", t.u32, (1,))))  # fmt: skip

    x = np.zeros((rows, HKV, D), np.float32) + np.arange(rows, dtype=np.float32)[:, None, None]
    ids = np.array([r % 3 if r < 62 else 200 for r in range(rows)], np.uint32)
    with t.Runtime("cpu", threads=3) as rt:
        b = rt.builder()
        record(b)
        with b.compile() as plan:
            for _ in range(20):
                held = {n: np.zeros((64, HKV, D), np.float32) for n in "kv"}
                run(plan, x=x, ids=ids, q=np.zeros((H, D), "f4"), lengths=u32(3), **held)
                v = t.from_pages(held["v"], "pages/v")
                assert v[:3, 0, 0].tolist() == [60, 61, 59] and (v[3:] == 0).all()


def test_scattered_rows_are_a_cache_and_prefill_is_incremental_decode():
    """Two layers of one state; writes at ids out of order; f16 storage."""
    rng = np.random.default_rng(8)
    n = 70
    x = f32(rng, n, HKV, D)

    def record(rows: int):
        def body(b: t.Builder) -> None:
            b.scalar("base", "u32")
            ids, lengths = b.input("ids", t.u32, (rows,)), b.input("lengths", t.u32, (1,))
            x = b.input("x", t.f32, (rows, HKV, D))
            q = b.input("q", t.f32, (rows, H, D))
            k, v = (b.state(s, t.f16, (2, 128, HKV, D)) for s in "kv")
            for layer in range(2):
                kl = t.scatter_rows(t.layer_state(k, layer), x, ids)
                vl = t.scatter_rows(t.layer_state(v, layer), t.neg(x), ids)
                q = t.attention(q, kl, vl, lengths=lengths, base="base")
            b.output("y", q)

        return body

    q = f32(rng, n, H, D)
    ids = np.arange(n, dtype=np.uint32)
    whole = {s: np.zeros((2, 128, HKV, D), np.float16) for s in "kv"}
    with compile(record(n)) as plan:
        y = run(plan, x=x, q=q, ids=ids, lengths=u32(n), base=0, **whole)["y"]
    steps = {s: np.zeros((2, 128, HKV, D), np.float16) for s in "kv"}
    with compile(record(1)) as one:
        for p in range(n):
            at = slice(p, p + 1)
            row = run(one, x=x[at], q=q[at], ids=ids[at], lengths=u32(p + 1), base=p, **steps)
            assert (row["y"][0] == y[p]).all()
    for s in "kv":
        assert (whole[s] == steps[s]).all()
    k = t.from_pages(whole["k"], "pages/k")
    assert (k[0][:n] == x.astype(np.float16)).all() and (k[:, n:] == 0).all()
