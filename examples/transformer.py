"""A small transformer written by hand: one step program for prompts, decoding and both at once.

A step takes rows of several sequences, one after the other; `extents` counts each sequence's rows
and `lengths` what its cache then holds.  Keys and values of all layers are one paged state each; a
`BlockPool` hands the pages out, a `PlanCache` keeps a plan for each bucket of rows.

    python examples/transformer.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lanewise import tensor as t


@dataclass(frozen=True)
class Config:
    vocab: int = 96
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    inner: int = 96
    sequences: int = 2
    blocks: int = 6  # pages of 64 positions, for all sequences together
    reach: int = 3  # pages of one sequence
    eps: float = 1e-5
    base: float = 1000.0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Matrices [outputs, inputs] and gains, by name."""
        q, kv, w = self.heads * self.head, self.kv_heads * self.head, self.width
        layer = {"norm": (w,), "q": (q, w), "k": (kv, w), "v": (kv, w), "o": (w, q), "mlp": (w,),
                 "gate": (self.inner, w), "up": (self.inner, w), "down": (w, self.inner)}
        named = {f"{i}.{n}": s for i in range(self.layers) for n, s in layer.items()}
        return {**named, "last_norm": (w,), "embed": (self.vocab, w)}


def step(b: t.Builder, c: Config, rows: int) -> None:
    """Record a step of `rows` rows."""
    w = {n: b.weight(n, "q8_0" if n == "embed" else t.f32 if len(s) == 1 else t.f16, s)
         for n, s in c.shapes().items()}
    b.scalar("base")
    tokens = b.input("tokens", t.u32, (rows,))
    lengths, extents, last = (
        b.input(n, t.u32, (c.sequences,)) for n in ("lengths", "extents", "last")
    )
    pages = b.input("pages", t.u32, (c.sequences, c.reach))
    k, v = (b.state(n, t.f16, (c.layers, 64 * c.blocks, c.kv_heads, c.head)) for n in "kv")
    slots, at = t.ragged_rows(lengths, extents, rows=rows, reach=64 * c.reach)
    x = t.gather_rows(w["embed"], tokens)
    for i in range(c.layers):
        h = t.rms_norm(x, w[f"{i}.norm"], c.eps)

        def heads(name: str, n: int, h: t.Tensor = h, i: int = i) -> t.Tensor:
            return t.reshape(t.linear(h, w[f"{i}.{name}"]), (rows, n, c.head))

        place = {"table": pages, "slots": slots, "positions": at}
        q = t.rope(heads("q", c.heads), c.head, "base", at)
        keys = t.rope(heads("k", c.kv_heads), c.head, "base", at)
        keys = t.kv_write(t.layer_state(k, i), keys, **place)
        values = t.kv_write(t.layer_state(v, i), heads("v", c.kv_heads), **place)
        y = t.attention(q, keys, values, pages=pages, slots=slots, positions=at)
        x = x + t.linear(t.reshape(y, (rows, c.heads * c.head)), w[f"{i}.o"])
        h = t.rms_norm(x, w[f"{i}.mlp"], c.eps)
        h = t.swiglu(t.linear(h, w[f"{i}.gate"]), t.linear(h, w[f"{i}.up"]))
        x = x + t.linear(h, w[f"{i}.down"])
    x = t.rms_norm(t.gather_rows(x, last), w["last_norm"], c.eps)
    logits = t.linear(x, w["embed"])
    b.output("logits", logits)
    options = [b.input(n, t.u32 if n == "top_k" else t.f32, (c.sequences,))
               for n in ("temperature", "top_k", "top_p", "min_p", "draws")]
    b.output("next", t.sample_rows(logits, *options))


class Generator:
    """Sequences that share one cache; each `feed` is one step of any mix of them."""

    def __init__(self, rt: t.Runtime, c: Config, weights: dict[str, Any], **options: Any) -> None:
        self.c, self.weights, self.options = c, weights, options
        self.plans, self.buckets = t.PlanCache(rt), t.Buckets((c.sequences, 16, 64))
        self.pool = t.BlockPool(c.blocks, 64)
        self.pages: list[list[int]] = [[] for _ in range(c.sequences)]
        self.lengths = [0] * c.sequences
        shape = (c.layers, 64 * c.blocks, c.kv_heads, c.head)
        self.states = {n: np.zeros(shape, np.float16) for n in "kv"}

    def feed(
        self, tokens: list[list[int]], temperature: float = 0.0, seed: int = 0
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """(next token, logits) of each sequence after its new tokens (none: not looked at)."""
        c, counts = self.c, [len(x) for x in tokens]
        rows = self.buckets.for_(sum(counts))
        table = np.full((c.sequences, c.reach), 0xFFFFFFFF, np.uint32)
        for s, n in enumerate(counts):
            self.lengths[s] += n
            self.pages[s] = self.pool.grow(self.pages[s], self.lengths[s])
            table[s, : len(self.pages[s])] = self.pages[s]
        flat = np.zeros(rows, np.uint32)
        flat[: sum(counts)] = [x for each in tokens for x in each]
        ends = np.cumsum(counts) - 1
        draws = [t.Stream.derive(seed, s).draw(n) for s, n in enumerate(self.lengths)]
        f32, u32 = np.float32, np.uint32
        every = {"temperature": f32(temperature), "top_k": u32(20), "top_p": f32(0.95),
                 "min_p": f32(0)}
        out = {"logits": np.zeros((c.sequences, c.vocab), f32), "next": np.zeros(c.sequences, u32)}
        plan = self.plans.compile(lambda b: step(b, c, rows), key=rows, **self.options)
        plan.submit(
            {n: np.full(c.sequences, x) for n, x in every.items()}, **self.weights, **self.states,
            **out, tokens=flat, lengths=np.array(self.lengths, u32), base=c.base, pages=table,
            extents=np.array(counts, u32), draws=np.array(draws, f32),
            last=np.where(np.array(counts) > 0, ends, 0xFFFFFFFF).astype(u32),
        ).wait()
        return out["next"], out["logits"]


def random_weights(c: Config, seed: int = 0) -> dict[str, Any]:
    """Weights as the plan binds them: gains f32, matrices f16, the embedding int8 blocks."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for name, shape in c.shapes().items():
        x = rng.standard_normal(shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 4)
        made[name] = (x + (len(shape) == 1)).astype(np.float32 if len(shape) == 1 else np.float16)
    made["embed"] = t.quantize_int8(made["embed"].astype(np.float32) * 4)
    return made


def main() -> None:
    c = Config()
    with t.Runtime("cpu") as rt:
        model = Generator(rt, c, random_weights(c))
        with model.plans:
            tokens, _ = model.feed([[5, 17, 3, 80], [9, 1]], temperature=0.8)
            said = [[int(x)] for x in tokens]
            for _ in range(20):
                tokens, _ = model.feed([[s[-1]] for s in said], temperature=0.8)
                for s, x in zip(said, tokens, strict=True):
                    s.append(int(x))
    for s in said:
        print(*s)


if __name__ == "__main__":
    main()
