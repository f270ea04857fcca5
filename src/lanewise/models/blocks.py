"""Step: what every family's step is made of.  Shapes: R rows (tokens in flight), S sequences of
B pages (64 positions each), O output rows, L layers, H heads, D head width, V vocabulary.

The names of inputs, states and outputs are the contract with the lane: tokens, slots, positions
u32 [R]; pages u32 [S, B]; out_rows u32 [O]; temperature, top_p, min_p, draws f32 [O]; top_k
u32 [O]; scalars rows, outs; states k (panels) and v (rows) [L, pages * 64, kv heads, D]; constant
rope f32 [context, rotary]; outputs logits f32 [O, V], next u32 [O], k.<layer>, v.<layer>.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Ref, Type
from lanewise.lane.form import Cut
from lanewise.lane.spec import PAGE, ModelSpec

SAMPLING: Final = (
    ("temperature", "f32"), ("top_k", "u32"), ("top_p", "f32"), ("min_p", "f32"), ("draws", "f32"),
)


class Step:
    """A step being authored: the builder, the spec, the cut, and the values all blocks share."""

    def __init__(
        self, b: GraphBuilder, spec: ModelSpec, cut: Cut, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.b, self.spec, self.cut = b, spec, cut
        self._shapes = shapes
        self._weights: dict[str, Ref] = {}
        b.root("scalar", "rows", Type("u32", (1,)))
        b.root("scalar", "outs", Type("u32", (1,)))
        self.tokens = self._input("tokens", "u32", cut.rows, "rows")
        slots = self._input("slots", "u32", cut.rows, "rows")
        self.positions = self._input("positions", "u32", cut.rows, "rows")
        pages = b.root("input", "pages", Type("u32", (cut.sequences, cut.blocks)), live="")
        self.out_rows = self._input("out_rows", "u32", cut.outs, "outs")
        self._where = (pages, slots, self.positions)
        self._rope = b.root("constant", "rope", Type("f32", (cut.context, spec.rope.rotary)))
        pool = (
            spec.layers, cut.sequences * cut.blocks * PAGE, spec.kv_heads, spec.head_dim,
        )
        self._k = b.root("state", "k", Type(cut.kv, pool), layout="panels")
        self._v = b.root("state", "v", Type(cut.kv, pool), layout="rows")

    def _input(self, name: str, dtype: str, rows: int, live: str) -> Ref:
        return self.b.root("input", name, Type(dtype, (rows,)), live=live)

    def op(self, name: str, *operands: Ref, **attrs: Any) -> Ref:
        return self.b.apply(name, *operands, **attrs)

    def weight(self, name: str) -> Ref:
        """A tensor of the checkpoint by its name there: one root however often it is read."""
        ref = self._weights.get(name)
        if ref is None:
            type = Type(self.spec.format_of[name], self._shapes[name])
            ref = self._weights[name] = self.b.root("weight", name, type)
        return ref

    def embed(self) -> Ref:
        """The embeddings of the tokens, f32 [R, width]."""
        x = self.op("gather_rows", self.weight("token_embd.weight"), self.tokens)
        return x if self.b.type(x).dtype == "f32" else self.op("cast", x, dtype="f32")

    def norm(self, x: Ref, name: str) -> Ref:
        """Root-mean-square norm over the last axis with the gain `name`.weight."""
        return self.op("rms_norm", x, self.weight(f"{name}.weight"), eps=self.spec.eps)

    def linear(self, x: Ref, name: str) -> Ref:
        """x times `name`.weight, plus `name`.bias if the family lists one; f32 [rows of x, N]."""
        bias = f"{name}.bias"
        more = (self.weight(bias),) if bias in self._shapes else ()
        return self.op("linear", x, self.weight(f"{name}.weight"), *more)

    def add(self, x: Ref, y: Ref) -> Ref:
        return self.op("add", x, y)

    def _heads(self, x: Ref, name: str, count: int) -> Ref:
        """A projection as heads, f32 [R, count, D], normed per head where the spec says so."""
        y = self.linear(x, name)
        y = self.op("reshape", y, shape=(self.cut.rows, count, self.spec.head_dim))
        return self.norm(y, f"{name}_norm") if f"{name}_norm.weight" in self._shapes else y

    def _turn(self, y: Ref) -> Ref:
        rope = self.spec.rope
        return self.op(
            "rope", y, self.positions, self._rope, style=rope.style, rotary=rope.rotary
        )

    def _write(self, kind: str, state: Ref, layer: int, y: Ref) -> Ref:
        """Store the rows at their positions; the layer's next version is an output."""
        version = self.op("kv_write", self.op("layer", state, index=layer), y, *self._where)
        self.b.output(f"{kind}.{layer}", version)
        return version

    def attention(self, x: Ref, layer: int) -> Ref:
        """Self-attention over the normed rows x, f32 [R, width]: projections, per-head norms,
        rope, cache write, attention over the cache, output projection."""
        spec, p = self.spec, f"blk.{layer}."
        q = self._turn(self._heads(x, f"{p}attn_q", spec.heads))
        k = self._turn(self._heads(x, f"{p}attn_k", spec.kv_heads))
        v = self._heads(x, f"{p}attn_v", spec.kv_heads)
        cache = self._write("k", self._k, layer, k), self._write("v", self._v, layer, v)
        y = self.op("attention", q, *cache, *self._where, scale=spec.scale, window=spec.window)
        y = self.op("reshape", y, shape=(self.cut.rows, spec.heads * spec.head_dim))
        return self.linear(y, f"{p}attn_output")

    def mlp(self, x: Ref, layer: int) -> Ref:
        """The gated feed-forward block, down(silu(gate(x)) * up(x)); f32 [R, width]."""
        p = f"blk.{layer}."
        gate, up = self.linear(x, f"{p}ffn_gate"), self.linear(x, f"{p}ffn_up")
        return self.linear(self.op("swiglu", gate, up), f"{p}ffn_down")

    def finish(self, x: Ref) -> None:
        """From the last layer's rows to the outputs: chosen rows, norm, head, sampler."""
        chosen = self.norm(self.op("gather_rows", x, self.out_rows), "output_norm")
        logits = self.linear(chosen, "token_embd" if self.spec.tied else "output")
        self.b.output("logits", logits)
        if self.cut.sample:
            options = [self._input(n, t, self.cut.outs, "outs") for n, t in SAMPLING]
            self.b.output("next", self.op("sample_rows", logits, *options))


def decoder(s: Step) -> None:
    """The step of a pre-norm decoder: attention and feed-forward, each around a residual."""
    x = s.embed()
    for layer in range(s.spec.layers):
        x = s.add(x, s.attention(s.norm(x, f"blk.{layer}.attn_norm"), layer))
        x = s.add(x, s.mlp(s.norm(x, f"blk.{layer}.ffn_norm"), layer))
    s.finish(x)
