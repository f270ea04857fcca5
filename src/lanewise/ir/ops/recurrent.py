"""Recurrent layers: a state per sequence that is read and written by the same op.

Tokens of sequence s are rows of its segment (`extents`), in order; a sequence without rows keeps
its state, rows past the sum give exactly 0.  Each op gives (next state, output).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lanewise.ir.graph import Type
from lanewise.ir.opdef import REQUIRED, Bad, OpDef, Sample, register
from lanewise.ir.ops.ragged import segments
from lanewise.ir.ops.rules import choice, fail, want_dtype, want_rank, want_shape, want_type
from lanewise.ir.values import random, wide

Types = tuple[Type, ...]
Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]


def _linear_infer(types: Types, attrs: Attrs, op: str = "linear_attention") -> Types:
    state, q, k, v, alpha, beta, extents = types
    want_dtype(op, "state", state, ("f32",))
    want_rank(op, "state", state, 4)
    slots, heads, width, inner = state.shape
    want_dtype(op, "q", q, ("f32",))
    want_rank(op, "q", q, 3)
    rows = q.shape[0]
    turned = (heads, width) == q.shape[1:] and v.shape == (rows, heads, inner)
    if turned and width != inner:
        fail("shape", op, "state", f"is {state}; its last two axes are the other way round: by "
             f"values, then keys, [slots,H,V,K] = [{slots},{heads},{inner},{width}]",
             f"declare state of shape ({slots}, {heads}, {inner}, {width}), and bind such an array")
    want_shape(op, "q", q, (rows, heads, inner))
    want_type(op, "k", k, "f32", (rows, heads, inner))
    want_type(op, "v", v, "f32", (rows, heads, width))
    for name, t, most in (("alpha", alpha, 3), ("beta", beta, 2)):
        want_dtype(op, name, t, ("f32",))
        if len(t.shape) > most or t.shape != (rows, heads, inner)[: len(t.shape)]:
            fail("shape", op, name, f"is {t}; it must be per token [{rows}], per head "
                 f"[{rows},{heads}]{f' or per channel [{rows},{heads},{inner}]' * (most - 2)}",
                 f"reshape or slice {name} to one of these")
    want_type(op, "extents", extents, "u32", (slots,))
    choice(op, attrs, "decay", ("after", "before"))
    return (state, Type("f32", v.shape))


def _chunked_infer(types: Types, attrs: Attrs) -> Types:
    return _linear_infer(types, attrs, "linear_attention_chunked")


def _linear(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    state, q, k, v, alpha, beta = (wide(a) for a in args[:6])
    out = np.zeros(types[1].shape)
    for s, at, count in segments(args[6], q.shape[0]):
        for t in range(at, at + count):
            for h in range(q.shape[1]):
                a = alpha[(t, h)[: alpha.ndim]] if alpha.ndim < 3 else alpha[t, h][None, :]
                b = beta[(t, h)[: beta.ndim]]
                old, key = state[s, h], k[t, h]
                u = (a * old if attrs["decay"] == "before" else old) @ key
                state[s, h] = a * old + b * np.outer(v[t, h] - u, key)
                out[t, h] = state[s, h] @ q[t, h]
    return state.astype(np.float32), out.astype(np.float32)


def _linear_samples(rng: np.random.Generator) -> Iterator[Sample]:
    h, width, inner = 2, 5, 3
    gates = (((7,), (7,)), ((7, h), (7, h)), ((7, h, inner), (7,)))
    for decay in ("after", "before"):
        for alpha, beta in gates:
            yield Sample(
                (
                    random(rng, "f32", (3, h, width, inner)), random(rng, "f32", (7, h, inner)),
                    random(rng, "f32", (7, h, inner)) / 2, random(rng, "f32", (7, h, width)),
                    rng.random(alpha, np.float32), rng.random(beta, np.float32),
                    np.array([2, 0, 4], np.uint32),
                ),
                {"decay": decay},
            )  # fmt: skip


_S, _Q = Type("f32", (3, 2, 5, 4)), Type("f32", (7, 2, 4))
_V, _G, _E = Type("f32", (7, 2, 5)), Type("f32", (7,)), Type("u32", (3,))
_D = {"decay": "after"}
register(
    OpDef(
        "linear_attention", ("state", "q", "k", "v", "alpha", "beta", "extents"),
        {"decay": REQUIRED}, _linear_infer, _linear,
        "(next state, o): per token and head S <- alpha S + beta (v - u) k^T, o = S q after it; "
        "u = S k of the undecayed S (decay after), or alpha S k (before); state f32 [slots, H, V, "
        "K], q and k [T, H, K], v [T, H, V], gates [T], [T, H] or (alpha) [T, H, K]",
        "kernel", _linear_samples,
        (
            Bad((_S, _Q, _Q, _V, _G, _G, Type("u32", (2,))), _D, "graph.shape"),
            Bad((_S, _Q, _Q, _Q, _G, _G, _E), _D, "graph.shape"),
            Bad((_S, _Q, _V, _V, _G, _G, _E), _D, "graph.shape"),
            Bad((Type("f16", _S.shape), _Q, _Q, _V, _G, _G, _E), _D, "graph.dtype"),
            Bad((Type("f32", (3, 2, 5)), _Q, _Q, _V, _G, _G, _E), _D, "graph.rank"),
            Bad((_S, _Q, _Q, _V, Type("f32", (3,)), _G, _E), _D, "graph.shape"),
            Bad((_S, _Q, _Q, _V, _G, _Q, _E), _D, "graph.shape"),
            Bad((_S, _Q, _Q, _V, _G, _G, _E), {"decay": "never"}, "graph.attribute"),
            Bad((_S, _Q, _Q, _V, _G, _G, _E), {}, "graph.missing_attribute"),
        ),
        writes=True, rtol=2**-20,
    )
)  # fmt: skip


def _chunked_samples(rng: np.random.Generator) -> Iterator[Sample]:
    h, width, inner, rows = 2, 5, 3, 40
    for decay in ("after", "before"):
        for gate in ((rows,), (rows, h), (rows, h, inner)):
            yield Sample(
                (
                    random(rng, "f32", (3, h, width, inner)), random(rng, "f32", (rows, h, inner)),
                    random(rng, "f32", (rows, h, inner)) / 2,
                    random(rng, "f32", (rows, h, width)), rng.random(gate, np.float32),
                    rng.random(gate[:2], np.float32), np.array([18, 0, 19], np.uint32),
                ),
                {"decay": decay},
            )  # fmt: skip


register(
    OpDef(
        "linear_attention_chunked", ("state", "q", "k", "v", "alpha", "beta", "extents"),
        {"decay": REQUIRED}, _chunked_infer, _linear,
        "linear_attention by another recipe, for prompts: rows go 16 at a time from each "
        "sequence's first",
        "kernel", _chunked_samples,
        (
            Bad((_S, _Q, _Q, _V, _G, _G, Type("u32", (2,))), _D, "graph.shape"),
            Bad((_S, _Q, _Q, _V, _G, _Q, _E), _D, "graph.shape"),
            Bad((_S, _Q, _V, _V, _G, _G, _E), _D, "graph.shape"),
            Bad((_S, _Q, _Q, _V, _G, _G, _E), {"decay": "never"}, "graph.attribute"),
        ),
        writes=True, rtol=2**-19,
    )
)  # fmt: skip


def _conv_infer(types: Types, attrs: Attrs) -> Types:
    state, x, w, extents = types
    want_dtype("conv_ring", "state", state, ("f32",))
    want_rank("conv_ring", "state", state, 3)
    slots, kept, width = state.shape
    if kept == x.shape[-1] != width:
        fail("shape", "conv_ring", "state", f"is {state}, x is {x}: its last two axes are the "
             f"other way round: by inputs, then channels, [{slots},{width},{kept}]",
             f"declare state of shape ({slots}, {width}, {kept}), and bind such an array")
    want_type("conv_ring", "x", x, "f32", (*x.shape[:1], width))
    want_type("conv_ring", "taps", w, "f32", (kept + 1, width))
    want_type("conv_ring", "extents", extents, "u32", (slots,))
    return (state, x)


def _conv(args: Sequence[Any], attrs: Attrs, types: Types) -> Any:
    state, x, w = args[0].copy(), args[1], wide(args[2])
    out = np.zeros(x.shape, np.float32)
    for s, at, count in segments(args[3], x.shape[0]):
        seen = np.concatenate([state[s], x[at : at + count]])
        for i in range(count):
            out[at + i] = (w * wide(seen[i : i + len(w)])).sum(0)
        state[s] = seen[count:]
    return state, out


def _conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for taps in (2, 4):
        yield Sample((random(rng, "f32", (3, taps - 1, 5)), random(rng, "f32", (9, 5)),
                      random(rng, "f32", (taps, 5)), np.array([5, 0, 2], np.uint32)))  # fmt: skip


_R = Type("f32", (3, 3, 5))
_CX, _CW = Type("f32", (9, 5)), Type("f32", (4, 5))
register(
    OpDef(
        "conv_ring", ("state", "x", "taps", "extents"), {}, _conv_infer, _conv,
        "(next state, y): depthwise causal convolution of x f32 [T, C] with taps [L, C], the "
        "oldest first, each sequence going on from its last L-1 inputs, state f32 [slots, L-1, C]",
        "kernel", _conv_samples,
        (
            Bad((_R, _CX, Type("f32", (3, 5)), _E), {}, "graph.shape"),
            Bad((_R, Type("f32", (9, 4)), _CW, _E), {}, "graph.shape"),
            Bad((Type("f32", (3, 5)), _CX, _CW, _E), {}, "graph.rank"),
            Bad((_R, _CX, _CW, Type("f32", (3,))), {}, "graph.dtype"),
        ),
        writes=True, rtol=2**-20,
    )
)  # fmt: skip
