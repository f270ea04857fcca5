"""Wrong programs of states, attention and sampling: the rest of the table of `refusals`."""

from __future__ import annotations

import numpy as np

from lanewise import tensor as t
from tests.tensor.wrong import (
    GREEDY,
    WARM,
    Row,
    attend,
    both,
    delta,
    drawn,
    draws,
    one,
    out,
    recurrent,
    ring,
    s,
    u,
    w,
    written,
    x,
)

STATES = {
    "a superseded version": Row(
        lambda b: written(b, True), "stale_state", "1 write behind", "latest scatter_rows",
        lambda b: written(b, False)),
    "a layer beyond": Row(
        lambda b: t.layer_state(s(b, 2, 3), 2), "attribute", "index is 2", "from 0 to 1",
        lambda b: out(b, t.read_state(t.layer_state(s(b, 2, 3), 1)))),
    "a state without rows": Row(
        lambda b: t.scatter_rows(s(b, 4), x(b, 2), u(b, 2)), "rank", "must have rows", "[4, 1]",
        lambda b: t.scatter_rows(s(b, 4, 1), x(b, 2, 1), u(b, 2))),
    "rows of another dtype": Row(
        lambda b: t.scatter_rows(s(b, 4, 2), x(b, 2, 2, dtype=t.f16), u(b, 2)),
        "dtype", "rows is f16", "cast(rows, 'f32')",
        lambda b: t.scatter_rows(s(b, 4, 2), t.cast(x(b, 2, 2, dtype=t.f16), "f32"), u(b, 2))),
    "a tensor for a state": Row(
        lambda b: t.scatter_rows(x(b, 4, 2), x(b, 2, 2, name="r"), u(b, 2)),  # type: ignore
        "operand", "state is <Tensor", "b.state",
        lambda b: t.scatter_rows(s(b, 4, 2), x(b, 2, 2), u(b, 2))),
    "a state for a tensor": Row(
        lambda b: out(b, t.silu(s(b, 4))),  # type: ignore[arg-type]
        "operand", "x is <State", "read_state(x)",
        lambda b: out(b, t.silu(t.read_state(s(b, 4))))),
    "gates of another size": Row(
        lambda b: recurrent(b, (2,)), "shape", "per token [4]", "alpha",
        lambda b: recurrent(b, (4,))),
    "values and keys the other way round": Row(
        lambda b: delta(b, 2, 1, 8, 6), "shape", "state is f32[2,1,8,6]; its last two axes are",
        "declare state of shape (2, 1, 6, 8)", lambda b: delta(b, 2, 1, 6, 8)),
    "counts of other slots": Row(
        lambda b: delta(b, 2, 1, 6, 8, extents=3), "shape", "query_extents is u32[3]",
        "query_extents of shape (2,)", lambda b: delta(b, 2, 1, 6, 8)),
    "channels before inputs": Row(
        lambda b: ring(b, 2, 8, 3), "shape", "state is f32[2,8,3]", "of shape (2, 3, 8)",
        lambda b: ring(b, 2, 3, 8)),
    "channels before taps": Row(
        lambda b: ring(b, 2, 3, 8, taps=(8, 4)), "shape", "taps is f32[8,4]",
        "contiguous(permute(taps, 1,0))",
        lambda b: out(b, t.conv_ring(x(b, 5, 8), t.contiguous(t.permute(w(b, 8, 4), 1, 0)),
                                     s(b, 2, 3, 8), query_extents=u(b, 2))[0])),
    "a recurrent state of halves": Row(
        lambda b: out(b, t.conv_ring(x(b, 5, 8), w(b, 4, 8), s(b, 2, 3, 8, dtype=t.f16),
                                     query_extents=u(b, 2))[0]),
        "dtype", "state is f16", "declare the state so", lambda b: ring(b, 2, 3, 8)),
    "no such form": Row(
        lambda b: recurrent(b, (4,), "parallel"), "attribute", "'parallel'", "'chunked'",
        lambda b: recurrent(b, (4,), "chunked")),
}  # fmt: skip

ATTENTION = {
    "no lengths": Row(
        lambda b: out(b, attend(b)), "missing_operand", "lengths is missing", "one per sequence",
        lambda b: out(b, attend(b, **one(b)))),
    "no base": Row(
        lambda b: out(b, attend(b, q=(3, 1, 8), **one(b))),
        "missing_operand", "needs base", "u32 scalar",
        lambda b: out(b, attend(both(b, ("at", "u32")), q=(3, 1, 8), base="at", **one(b)))),
    "base for several": Row(
        lambda b: out(b, attend(both(b, ("at", "u32")), q=(2, 1, 1, 8), rows=128, base="at",
                                **one(b, 2))),
        "attribute", "base belongs", "query_extents",
        lambda b: out(b, attend(b, q=(2, 1, 8), rows=128, query_extents=u(b, 2), **one(b, 2)))),
    "a capacity of part of a page": Row(
        lambda b: out(b, attend(b, rows=60, **one(b))), "shape",
        "pages of 64 positions: 64, 128, 192", "round the capacity up: declare k of shape "
        "(64, 1, 8)", lambda b: out(b, attend(b, rows=64, **one(b)))),
    "a cache to write of part of a page": Row(
        lambda b: t.kv_write(s(b, 20, 1, 8), x(b, 1, 1, 8), table=u(b, 1, 2), block=16,
                             **{n: u(b, 1, name=n) for n in ("slots", "positions")}),
        "shape", "pages of 16 positions: 16, 32, 48", "declare state of shape (32, 1, 8)",
        lambda b: t.kv_write(s(b, 32, 1, 8), x(b, 1, 1, 8), table=u(b, 1, 2), block=16,
                             **{n: u(b, 1, name=n) for n in ("slots", "positions")})),
    "heads before positions": Row(
        lambda b: out(b, attend(b, rows=2, heads=64, **one(b))), "shape", "here heads come first",
        "declare k of shape (64, 2, 8)",
        lambda b: out(b, attend(b, q=(2, 8), rows=64, heads=2, **one(b)))),
    "a cache of all layers": Row(
        lambda b: out(b, t.attention(x(b, 1, 8), s(b, 3, 64, 1, 8), s(b, 3, 64, 1, 8, name="v"),
                                     **one(b))), "rank", "its rank must be 3", "layer_state",
        lambda b: out(b, t.attention(
            x(b, 1, 8), t.layer_state(s(b, 3, 64, 1, 8), 0),
            t.layer_state(s(b, 3, 64, 1, 8, name="v"), 0), **one(b)))),
    "blocks of another size to write": Row(
        lambda b: t.kv_write(s(b, 48, 1, 8), x(b, 1, 1, 8), table=u(b, 1, 1), block=48,
                             **{n: u(b, 1, name=n) for n in ("slots", "positions")}),
        "attribute", "block is 48", "give",
        lambda b: t.kv_write(s(b, 64, 1, 8), x(b, 1, 1, 8), table=u(b, 1, 1), block=64,
                             **{n: u(b, 1, name=n) for n in ("slots", "positions")})),
    "pages of floats": Row(
        lambda b: out(b, attend(b, q=(3, 1, 8), pages=x(b, 1, 1), slots=u(b, 3),
                                positions=u(b, 3, name="p"))), "dtype", "attention: pages is f32",
        "declare pages as u32",
        lambda b: out(b, attend(b, q=(3, 1, 8), pages=u(b, 1, 1, name="x"), slots=u(b, 3),
                                positions=u(b, 3, name="p")))),
    "blocks of another size": Row(
        lambda b: out(b, attend(b, block=48, **one(b))), "attribute", "block is 48", "block=64",
        lambda b: out(b, attend(b, block=64, **one(b)))),
    "heads of 8 bits that are no whole groups": Row(
        lambda b: s(b, 64, 1, 8, dtype="q8_0"), "shape", "multiple of 32", "another width",
        lambda b: out(b, t.attention(x(b, 1, 32, name="q"), s(b, 64, 1, 32, dtype="q8_0"),
                                     s(b, 64, 1, 32, name="v", dtype="q8_0"), **one(b)))),
    "a cache of 8 bits as a tensor": Row(
        lambda b: out(b, t.read_state(s(b, 64, 1, 32, dtype="q8_0"))),
        "state_layout", "cache of 8 bits", "from_pages",
        lambda b: out(b, t.read_state(s(b, 64, 1, 32)))),
    "a view for q": Row(
        lambda b: out(b, attend(b, q=(8, 1), strided=True, **one(b))),
        "strided", "strided view", "contiguous(q)", lambda b: out(b, attend(b, **one(b)))),
    "q of five axes": Row(
        lambda b: out(b, attend(b, q=(1, 1, 1, 1, 8), **one(b))), "rank", "q is", "[B, 1, H, D]",
        lambda b: out(b, attend(b, q=(1, 1, 1, 8), **one(b)))),
    "slots alone": Row(
        lambda b: out(b, attend(b, q=(3, 1, 8), slots=u(b, 3))),
        "missing_operand", "come together", "ragged_rows",
        lambda b: out(b, attend(b, q=(3, 1, 8), slots=u(b, 3), positions=u(b, 3, name="p")))),
    "lengths that are floats": Row(
        lambda b: out(b, attend(b, **one(b, dtype=t.f32))), "dtype", "u32", "declare lengths",
        lambda b: out(b, attend(b, **one(b)))),
    "pages that do not share out": Row(
        lambda b: out(b, attend(b, q=(2, 1, 1, 8), **one(b, 2))),
        "shape", "do not share out", "bind pages",
        lambda b: out(b, attend(b, q=(2, 1, 1, 8), pages=u(b, 2, 1), **one(b, 2)))),
    "pages of other sequences": Row(
        lambda b: out(b, attend(b, q=(2, 1, 1, 8), pages=u(b, 3, 1), **one(b, 2))),
        "shape", "one row of pages per sequence", "[2, blocks]",
        lambda b: out(b, attend(b, q=(2, 1, 1, 8), pages=u(b, 2, 1), **one(b, 2)))),
    "lengths of other rows": Row(
        lambda b: out(b, attend(b, q=(3, 1, 1, 8), rows=128, **one(b, 2))),
        "shape", "one length per row", "lengths as [3]",
        lambda b: out(b, attend(b, q=(3, 1, 1, 8), rows=192, **one(b, 3)))),
    "heads that do not share out": Row(
        lambda b: out(b, attend(b, q=(3, 8), heads=2, **one(b))), "shape", "multiple", "divide 3",
        lambda b: out(b, attend(b, q=(3, 8), heads=3, **one(b)))),
    "heads of another width": Row(
        lambda b: out(b, attend(b, width=4, **one(b))), "shape", "widths", "width 8",
        lambda b: out(b, attend(b, width=8, **one(b)))),
    "values of another capacity": Row(
        lambda b: out(b, attend(b, v=(128, 1, 8), **one(b))), "shape", "v is", "(64, 1, 8)",
        lambda b: out(b, attend(b, v=(64, 1, 8), **one(b)))),
    "values of another dtype": Row(
        lambda b: out(b, t.attention(x(b, 1, 8), s(b, 64, 1, 8),
                                     s(b, 64, 1, 8, name="v", dtype=t.f16), **one(b))),
        "dtype", "v is f16[64,1,8]; its dtype must be f32", "declare the state so",
        lambda b: out(b, attend(b, **one(b)))),
    "pages of three axes": Row(
        lambda b: out(b, attend(b, pages=u(b, 1, 1, 1), **one(b))), "rank", "pages is u32[1,1,1]",
        "[1, blocks]", lambda b: out(b, attend(b, pages=u(b, 1, 1), **one(b)))),
    "a number for base": Row(
        lambda b: out(b, attend(b, q=(3, 1, 8), base=0, **one(b))), "attribute", "base is 0",
        'b.scalar("s"), "s" here',
        lambda b: out(b, attend(both(b, ("s", "u32")), q=(3, 1, 8), base="s", **one(b)))),
    "a base and a table": Row(
        lambda b: out(b, t.rope(x(both(b, ("base", "f32")), 3, 1, 8), 8, "base", u(b, 3),
                                table=w(b, 9, 8))),
        "operand", "the table has the base already", "rope(x, d, positions=positions, table=table)",
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, positions=u(b, 3), table=w(b, 9, 8)))),
    "factors that are an array": Row(
        lambda b: out(b, t.rope(x(both(b, ("base", "f32")), 3, 1, 8), 8, "base", u(b, 3),
                                factors=np.ones(4, np.float32))),  # type: ignore[arg-type]
        "operand", "factors is of type ndarray", "b.constant(factors)",
        lambda b: out(b, t.rope(x(both(b, ("base", "f32")), 3, 1, 8), 8, "base", u(b, 3),
                                factors=b.constant(np.ones(4, np.float32))))),
    "a window of less than nothing": Row(
        lambda b: out(b, attend(b, window=-1, **one(b))), "attribute", "window", "from 0",
        lambda b: out(b, attend(b, window=0, **one(b)))),
    "a negative cap": Row(
        lambda b: out(b, attend(b, softcap=-1.0, **one(b))), "attribute", "softcap", "softcap=0",
        lambda b: out(b, attend(b, softcap=0.0, **one(b)))),
    "no positions": Row(
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, "base")), "missing_operand", "positions",
        "'base', positions",
        lambda b: out(b, t.rope(x(both(b, ("base", "f32")), 3, 1, 8), 8, "base", u(b, 3)))),
    "an odd part of a head": Row(
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 7, None, u(b, 3), table=w(b, 9, 8))),
        "attribute", "rotary_dim is 7", "at most: 8",
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, None, u(b, 3), table=w(b, 9, 8)))),
    "factors of half a table": Row(
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, None, u(b, 3), table=w(b, 9, 8),
                                factors=w(b, 4, name="f"))),
        "operand", "factors and table", "rope_table(",
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, None, u(b, 3), table=w(b, 9, 8)))),
    "no such pairs": Row(
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, None, u(b, 3), table=w(b, 9, 8), style="x")),
        "attribute", "style is 'x'", "style='half'",
        lambda b: out(b, t.rope(x(b, 3, 1, 8), 8, None, u(b, 3), table=w(b, 9, 8), style="half"))),
}  # fmt: skip

HELPERS = {  # ops that a function calls on the author's behalf
    "a scale of softmax that is not declared": Row(
        lambda b: out(b, t.softmax(x(b, 4, 8), scale_name="k")), "scalar",
        "softmax: no scalar 'k'", "b.scalar('k', 'f32')",
        lambda b: out(b, t.softmax(x(both(b, ("k", "f32")), 4, 8), scale_name="k"))),
    "a mask of softmax of another dtype": Row(
        lambda b: out(b, t.softmax(x(b, 4, 8), mask=x(b, 4, 8, name="m", dtype=t.f16))),
        "dtype", "softmax: mask is f16", "cast(mask, 'f32')",
        lambda b: out(b, t.softmax(x(b, 4, 8), mask=t.cast(
            x(b, 4, 8, name="m", dtype=t.f16), "f32")))),
    "a mask of softmax of another shape": Row(
        lambda b: out(b, t.softmax(x(b, 4, 8), mask=x(b, 4, name="m"))),
        "shape", "softmax: mask is f32[4]", "reshape",
        lambda b: out(b, t.softmax(x(b, 4, 8), mask=t.reshape(x(b, 4, name="m"), (4, 1))))),
    "a scale of attention that is not declared": Row(
        lambda b: out(b, attend(b, scale="c", **one(b))), "scalar", "attention: no scalar 'c'",
        "b.scalar('c', 'f32')",
        lambda b: out(b, attend(both(b, ("c", "f32")), scale="c", **one(b)))),
    "ids of a quantised table that are floats": Row(
        lambda b: out(b, t.quant_gather_rows(t.quantized(b, "w", (5, 32)), x(b, 3))),
        "dtype", "quant_gather_rows: ids is f32", "declare ids as u32",
        lambda b: out(b, t.quant_gather_rows(t.quantized(b, "w", (5, 32)), u(b, 3)))),
    "a row of 4 bits of another size": Row(
        lambda b: out(b, t.int4_matvec(x(b, 1, 7), t.int4(b, "w", 8, 16))),
        "shape", "int4_matvec: x is f32[1,7]", "int4(b, name, 7, columns)",
        lambda b: out(b, t.int4_matvec(x(b, 1, 7), t.int4(b, "w", 7, 16)))),
    "matrices of a batch that do not fit": Row(
        lambda b: out(b, t.matmul(x(b, 2, 4, 8), w(b, 2, 5, 8))), "shape",
        "matmul: b is f32[2,5,8]", "contiguous(transpose(b))",
        lambda b: out(b, t.matmul(x(b, 2, 4, 8), t.contiguous(t.transpose(w(b, 2, 5, 8)))))),
    "a sample of halves": Row(
        lambda b: out(b, t.sample(x(b, 2, 8, dtype=t.u32), GREEDY)[0]), "dtype",
        "sample: logits is u32", "declare logits as f32",
        lambda b: drawn(b, GREEDY)),
    "a sample of more than the vocabulary": Row(
        lambda b: drawn(b, t.SamplingOptions(temperature=0.8, top_k=9), draws=draws(b)),
        "attribute", "sample: top_k is 9", "top_k from 1 to 8",
        lambda b: drawn(b, t.SamplingOptions(temperature=0.8, top_k=8), draws=draws(b))),
    "angles of positions that are floats": Row(
        lambda b: out(b, t.rope(x(both(b, ("base", "f32")), 3, 1, 8), 8, "base",
                                x(b, 3, name="p"))),
        "dtype", "rope: positions is f32", "declare positions as u32",
        lambda b: out(b, t.rope(x(both(b, ("base", "f32")), 3, 1, 8), 8, "base", u(b, 3)))),
}  # fmt: skip

SAMPLING = {
    "no draws": Row(
        lambda b: drawn(b, WARM), "missing_operand", "draws", "reads draws",
        lambda b: drawn(b, WARM, draws=draws(b))),
    "draws that nothing reads": Row(
        lambda b: drawn(b, GREEDY, draws=draws(b)), "operand", "nothing reads it", "leave draws",
        lambda b: drawn(b, GREEDY)),
    "scalars not declared": Row(
        lambda b: drawn(b, WARM, declare=False, draws=draws(b)), "scalar", "inverse_temperature",
        "declare_sampling_scalars", lambda b: drawn(b, WARM, draws=draws(b))),
    "a policy out of range": Row(
        lambda b: drawn(both(b, ("inverse_temperature", "f32")),
                        t.SamplingOptions(temperature=0.8, top_p=2.0), declare=False,
                        draws=draws(b)),
        "attribute", "top_p is 2.0", "up to 1",
        lambda b: drawn(b, t.SamplingOptions(temperature=0.8, top_p=1.0), draws=draws(b))),
    "more than the vocabulary": Row(
        lambda b: out(b, t.top_k_mask(x(b, 2, 8), 9)), "attribute", "k is 9", "k from 1 to 8",
        lambda b: out(b, t.top_k_mask(x(b, 2, 8), 8))),
    "p of nothing": Row(
        lambda b: out(b, t.top_p_mask(x(b, 2, 8), 0.0)), "attribute", "p is 0.0",
        "leave top_p_mask", lambda b: out(b, t.top_p_mask(x(b, 2, 8), 0.9))),
    "one draw for all": Row(
        lambda b: out(b, t.sample_categorical(x(b, 2, 8), x(b, 1, name="draws"))),
        "shape", "draws is f32[1]", "broadcast(draws, (2,))",
        lambda b: out(b, t.sample_categorical(x(b, 2, 8), t.contiguous(
            t.broadcast(x(b, 1, name="draws"), (2,)))))),
}  # fmt: skip
