"""Batched decoding over a paged cache: sequences of different lengths, pages in any order.

Each sequence holds a list of pages that a `BlockPool` handed out; the step reads them through a
page table, so that no sequence reserves more than it uses.  What a sequence computes does not
depend on who is beside it: run alone, it gives the same bits.

    python examples/paged_batch.py
"""

from __future__ import annotations

import numpy as np

from lanewise import tensor as t

HEADS, KV_HEADS, WIDTH, BLOCKS, REACH = 8, 2, 32, 16, 4


def attend(b: t.Builder, batch: int) -> None:
    """Record one decode step: a new key and value per sequence, then attention over its pages."""
    q = b.input("q", t.f32, (batch, 1, HEADS, WIDTH))
    k, v = (b.input(n, t.f32, (batch, KV_HEADS, WIDTH)) for n in ("new_k", "new_v"))
    keys, values = (b.state(n, t.f16, (64 * BLOCKS, KV_HEADS, WIDTH)) for n in ("k", "v"))
    lengths, pages = b.input("lengths", t.u32, (batch,)), b.input("pages", t.u32, (batch, REACH))
    ones = b.constant(np.ones(batch, np.uint32))
    slots, at = t.ragged_rows(lengths, ones, rows=batch, reach=64 * REACH)
    place = {"table": pages, "slots": slots, "positions": at}
    keys, values = t.kv_write(keys, k, **place), t.kv_write(values, v, **place)
    b.output("y", t.attention(q, keys, values, lengths=lengths, pages=pages))


def run(plan: t.Plan, steps: np.ndarray, order: list[int], pool: t.BlockPool) -> np.ndarray:
    """Decode the sequences named in `order`, their rows of `steps` [T, B, H + 2 KVH, W]."""
    state = {n: np.zeros((64 * BLOCKS, KV_HEADS, WIDTH), np.float16) for n in ("k", "v")}
    held: list[list[int]] = [[] for _ in order]
    out = np.zeros((len(steps), len(order), 1, HEADS, WIDTH), np.float32)
    for n, rows in enumerate(steps):
        table = np.full((len(order), REACH), 0xFFFFFFFF, np.uint32)
        for i in range(len(order)):
            held[i] = pool.grow(held[i], n + 1)
            table[i, : len(held[i])] = held[i]
        q, k, v = np.split(rows[order], (HEADS, HEADS + KV_HEADS), axis=1)
        plan.run(
            state, q=np.ascontiguousarray(q[:, None]), new_k=np.ascontiguousarray(k),
            new_v=np.ascontiguousarray(v), lengths=np.full(len(order), n + 1, np.uint32),
            pages=table, y=out[n],
        )  # fmt: skip
    for pages in held:
        pool.free(pages)
    return out


def main(length: int = 70) -> None:
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((length, 3, HEADS + 2 * KV_HEADS, WIDTH)).astype(np.float32)
    pool = t.BlockPool(BLOCKS, 64)
    with t.Runtime("cpu") as rt, t.PlanCache(rt) as plans:
        batch, one = (plans.compile(lambda b, n=n: attend(b, n), key=n) for n in (3, 1))
        together = run(batch, steps, [0, 1, 2], pool)
        for s in range(3):
            alone = run(one, steps, [s], pool)
            assert (alone[:, 0] == together[:, s]).all()
    print(f"{length} steps of 3 sequences: each has the bits that it has alone")


if __name__ == "__main__":
    main()
