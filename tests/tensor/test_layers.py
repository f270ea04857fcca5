"""Recurrences, experts, quantised matrices, angles: against float64, and members alone bitwise."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.ir.ops.moe import decode_int4
from lanewise.quant.format import FORMATS
from tests.tensor.support import compile, f32, refusals, run, u32

SLOTS, H, VD, KD, T = 3, 2, 20, 8, 10


def delta(decay: str, alpha_shape, beta_shape):
    def record(b: t.Builder) -> None:
        q, k = (b.input(n, t.f32, (T, H, KD)) for n in "qk")
        v = b.input("v", t.f32, (T, H, VD))
        state = b.state("s", t.f32, (SLOTS, H, VD, KD))
        out, after = t.linear_attention(
            q, k, v, state, alpha=b.input("alpha", t.f32, alpha_shape),
            beta=b.input("beta", t.f32, beta_shape),
            query_extents=b.input("extents", t.u32, (SLOTS,)), decay=decay,
        )  # fmt: skip
        b.output("y", out)
        b.output("last", t.read_state(after))

    return record


def recurrence(v, extents, decay):
    """float64, by matrices: S (alpha I - beta k k^T) + beta v k^T, or with alpha S k."""
    state = v["s"].astype(np.float64)
    out, at = np.zeros(v["v"].shape), 0
    for s, n in enumerate(extents):
        for i in range(at, at + n):
            for h in range(H):
                k, value = v["k"][i, h].astype(np.float64), v["v"][i, h].astype(np.float64)
                a = np.broadcast_to(np.atleast_1d(v["alpha"][i].astype(np.float64))[
                    min(h, v["alpha"][i].ravel().size - 1) if v["alpha"].ndim == 2 else ...
                ], (KD,)) if v["alpha"].ndim < 3 else v["alpha"][i, h].astype(np.float64)
                beta = float(v["beta"][i] if v["beta"].ndim == 1 else v["beta"][i, h])
                kk = np.outer(k, k)
                decayed = state[s, h] @ np.diag(a)
                if decay == "after":
                    state[s, h] = decayed - beta * state[s, h] @ kk + beta * np.outer(value, k)
                else:
                    state[s, h] = decayed @ (np.eye(KD) - beta * kk) + beta * np.outer(value, k)
                out[i, h] = state[s, h] @ v["q"][i, h]
        at += n
    return out, state


def gates(rng, *shape):
    return rng.random(shape).astype(np.float32)


@pytest.mark.parametrize(("decay", "alpha", "beta"), [
    ("after", (T,), (T,)), ("before", (T, H), (T, H)), ("before", (T, H, KD), (T,)),
])  # fmt: skip
def test_linear_attention_is_the_published_recurrence(decay, alpha, beta):
    rng = np.random.default_rng(3)
    v = {"q": f32(rng, T, H, KD), "k": f32(rng, T, H, KD) / 3, "v": f32(rng, T, H, VD),
         "alpha": gates(rng, *alpha), "beta": gates(rng, *beta),
         "s": f32(rng, SLOTS, H, VD, KD)}  # fmt: skip
    first = {n: a.copy() for n, a in v.items()}
    want, state = recurrence(first, (4, 0, 5), decay)
    with compile(delta(decay, alpha, beta)) as plan:
        made = run(plan, **v, extents=u32(4, 0, 5))
        assert np.abs(made["y"] - want).max() < 2e-5 and (made["y"][9:] == 0).all()
        assert np.abs(v["s"] - state).max() < 2e-5 and (made["last"] == v["s"]).all()
        assert (v["s"][1] == first["s"][1]).all()  # no row: untouched
        # the same tokens one by one, the state carried by the buffer: the same bits
        alone = {n: a.copy() for n, a in first.items()}
        for i in range(4):
            step = {n: np.roll(a, -i, 0) if n != "s" else a for n, a in alone.items()}
            y = run(plan, **step, extents=u32(1, 0, 0))["y"]
            assert (y[0] == made["y"][i]).all()
        assert (alone["s"][0] == v["s"][0]).all()
        # counts beyond the rows are cut
        cut = {n: a.copy() for n, a in first.items()}
        whole = {n: a.copy() for n, a in first.items()}
        assert (run(plan, **cut, extents=u32(2**32 - 1, 3, 3))["y"]
                == run(plan, **whole, extents=u32(T, 0, 0))["y"]).all()


def test_conv_ring_goes_on_where_it_stopped():
    taps, width = 4, 33

    def record(b: t.Builder) -> None:
        y, after = t.conv_ring(
            b.input("x", t.f32, (T, width)), b.weight("taps", t.f32, (taps, width)),
            b.state("s", t.f32, (2, taps - 1, width)),
            query_extents=b.input("extents", t.u32, (2,)),
        )  # fmt: skip
        b.output("y", y)
        assert after.version == 1

    rng = np.random.default_rng(1)
    x, w, s = f32(rng, T, width), f32(rng, taps, width), f32(rng, 2, taps - 1, width)
    whole, parts = s.copy(), s.copy()
    seen = np.concatenate([s[1], x]).astype(np.float64)
    with compile(record) as plan:
        y = run(plan, x=x, taps=w, s=whole, extents=u32(0, 7))["y"]
        want = np.stack([(w * seen[i : i + taps]).sum(0) for i in range(7)])
        assert np.abs(y[:7] - want).max() < 1e-5 and (y[7:] == 0).all()
        assert (whole[0] == s[0]).all() and (whole[1] == x[4:7]).all()
        for at, n in ((0, 1), (1, 2), (3, 4)):
            part = run(plan, x=np.roll(x, -at, 0), taps=w, s=parts, extents=u32(0, n))["y"]
            assert (part[:n] == y[at : at + n]).all()
        assert (parts == whole).all()


def test_a_mixture_of_experts():
    """Experts scaled by their index; a token's own row decides, whoever is beside it."""
    rows, k, e, inner, n = 6, 2, 4, 24, 70

    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (rows, inner))
        scores = t.softmax(t.linear(x, b.weight("router", t.f32, (e, inner))))
        values, ids = t.top_k(scores, k)
        counts, tokens, order = t.route(ids, e)
        made = t.grouped_matmul(t.gather_rows(x, tokens), b.weight("w", t.f16, (e, inner, n)),
                                counts)  # fmt: skip
        b.output("y", t.combine(made, values, order))
        b.output("ids", t.reshape(ids, (rows * k,)))

    rng = np.random.default_rng(6)
    x, router = f32(rng, rows, inner), f32(rng, e, inner)
    same = f32(rng, inner, n).astype(np.float16)
    w = np.stack([same * np.float16(2.0**i) for i in range(e)])
    z = x.astype(np.float64) @ router.T
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    want, chosen = np.zeros((rows, n)), []
    for r in range(rows):
        top = np.argsort(-p[r], kind="stable")[:k]
        chosen += top.tolist()
        for i in top:
            want[r] += p[r, i] * 2.0**i * (x[r].astype(np.float64) @ same.astype(np.float64))
    with compile(record) as plan:
        made = run(plan, x=x, router=router, w=w)
        assert made["ids"].tolist() == chosen
        assert np.abs(made["y"] - want).max() < 1e-4
        other = x.copy()
        other[1:] = f32(rng, rows - 1, inner)
        assert (run(plan, x=other, router=router, w=w)["y"][0] == made["y"][0]).all()


def test_grouped_rows_past_the_sum_read_no_weight():
    def record(b: t.Builder) -> None:
        x, w = b.input("x", t.f32, (8, 5)), b.weight("w", t.f32, (3, 5, 6))
        b.output("y", t.grouped_matvec(x, w, b.input("counts", t.u32, (3,))))

    rng = np.random.default_rng(7)
    x, w = f32(rng, 8, 5), f32(rng, 3, 5, 6)
    with compile(record) as plan:
        y = run(plan, x=x, w=w, counts=u32(2, 0, 3))["y"]
        w[1] = np.nan  # an expert without tokens
        assert (run(plan, x=x, w=w, counts=u32(2, 0, 3))["y"] == y).all()
        x[5:] = np.nan
        again = run(plan, x=x, w=w, counts=u32(2, 0, 3))["y"]
        assert (again[:5] == y[:5]).all() and (again[5:] == 0).all()
        assert (run(plan, x=x[::-1].copy(), w=w, counts=u32(0, 0, 0))["y"] == 0).all()


def test_int8_matrices_keep_the_error_budget():
    """Half a scale an element; a block of zeros has scale 0."""
    rng = np.random.default_rng(9)
    w = f32(rng, 16, 96) * np.exp(f32(rng, 16, 1) * 3)
    w[2, 32:64] = 0
    rows = t.quantize_int8(w)
    decode = FORMATS["q8_0"].decode
    assert decode is not None
    back = decode(rows).reshape(16, 96)
    scale = np.abs(w.reshape(16, 3, 32)).max(-1) / 127
    worst = np.abs(back - w).reshape(16, 3, 32).max(-1)
    assert (worst <= scale * (0.5 + 127 * 2**-11) * 1.001).all()
    assert (back[2, 32:64] == 0).all() and (rows.reshape(16, 3, 34)[2, 1] == 0).all()
    exact = np.array([127, -64, 3, 0] * 8, np.float32)[None]
    assert (decode(t.quantize_int8(exact)) == exact).all()

    def record(b: t.Builder) -> None:
        table = t.quantized(b, "w", (16, 96))
        x = b.input("x", t.f16, (4, 96))
        b.output("y", t.quant_matmul(x, table))
        b.output("r", t.quant_gather_rows(table, b.input("ids", t.u32, (3,))))

    x = f32(rng, 4, 96).astype(np.float16)
    with compile(record, activations="f32") as plan:
        made = run(plan, x=x, w=rows, ids=u32(2, 99, 15))
    want = x.astype(np.float64) @ back.astype(np.float64).T
    assert np.abs(made["y"] - want).max() <= 1e-6 * np.abs(want).max()
    budget = np.abs(x.astype(np.float64)) @ np.repeat(scale * 0.57, 32, 1).T
    assert (np.abs(made["y"] - x.astype(np.float64) @ w.astype(np.float64).T) <= budget).all()
    assert (made["r"] == np.stack([back[2], 0 * back[0], back[15]])).all()


@pytest.mark.parametrize(("low", "span"), [(-1.0, 2.0), (0.0, 1e-4), (5.0, 3.0), (100.0, 0.1),
                                           (-100.0, 0.1), (-1000.0, 2.0)])  # fmt: skip
def test_int4_matrices_hold_their_bound_far_from_zero(low, span):
    """A 30th of a group's range, also where a zero beyond 2048 is coarse in f16."""
    rng = np.random.default_rng(11)
    k, n = 32, 12
    w = (low + span * rng.random((k, n))).astype(np.float32)
    w.reshape(-1)[128:256] = np.float16(low)  # a constant group
    planes = t.quantize_int4(w)
    back = decode_int4(*planes.values(), k * n)
    for g in range(3):
        part = slice(g * 128, (g + 1) * 128)
        own = w.reshape(-1)[part]
        step = np.spacing(np.float32(abs(low) + span)) * 2
        bound = (own.max() - own.min()) / 30 * 1.002 + step
        assert np.abs(back[part] - own).max() <= bound, g
    assert planes["scales"][1] == 0 and planes["zeros"][1] == np.float16(low)

    def record(b: t.Builder) -> None:
        m = t.int4(b, "w", k, n)
        assert m.weights == k * n
        b.output("y", t.int4_matmul(b.input("x", t.f32, (5, k)), m))

    x = f32(rng, 5, k)
    with compile(record) as plan:
        y = run(plan, x=x, **{f"w.{p}": a for p, a in planes.items()})["y"]
    want = x.astype(np.float64) @ back.reshape(k, n).astype(np.float64)
    assert np.abs(y - want).max() <= 1e-5 * np.abs(x).sum(1).max() * np.abs(back).max()


def test_rope_by_a_named_base_is_rope_by_its_table():
    def record(b: t.Builder) -> None:
        b.scalar("base", "f32")
        x, at = b.input("x", t.f32, (4, 2, 10)), b.input("at", t.u32, (4,))
        table = b.weight("table", t.f32, (300, 8))
        for style in ("interleaved", "half"):
            b.output(style, t.rope(x, 8, "base", at, style=style))
            b.output(f"{style}.table", t.rope(x, 8, positions=at, table=table, style=style))

    x, at = f32(np.random.default_rng(0), 4, 2, 10), u32(0, 1, 77, 299)
    with compile(record) as plan:
        made = run(plan, x=x, at=at, table=t.rope_table(300, 8, 500.0), base=500.0)
    angle = at[:, None, None] * 500.0 ** (-np.arange(4) / 4)
    pair = x[..., :8].astype(np.float64).reshape(4, 2, 4, 2)
    turned = (pair[..., 0] + 1j * pair[..., 1]) * np.exp(1j * angle)
    want = np.stack([turned.real, turned.imag], -1).reshape(4, 2, 8)
    assert np.abs(made["interleaved"][..., :8] - want).max() < 1e-6
    assert (made["interleaved"][..., 8:] == x[..., 8:]).all() and (made["half"][0] == x[0]).all()
    for style in ("interleaved", "half"):
        assert np.abs(made[style] - made[f"{style}.table"]).max() < 1e-6


def test_products_of_several_axes():
    """A matrix for all, or one for each, as each product alone, bit for bit."""

    def record(b: t.Builder) -> None:
        a = b.input("a", t.f32, (2, 3, 4, 700))
        one, each = b.weight("one", t.bf16, (700, 9)), b.input("each", t.f32, (2, 3, 700, 9))
        b.output("shared", t.matmul(a, one))
        b.output("own", a @ each)
        first = t.reshape(t.slice(t.slice(a, 0, 1, 2), 1, 2, 3), (4, 700))
        b.output("alone", t.matmul(first, b.input("last", t.f32, (700, 9))))

    rng = np.random.default_rng(4)
    a, each = f32(rng, 2, 3, 4, 700), f32(rng, 2, 3, 700, 9)
    one = f32(rng, 700, 9).astype(ml_dtypes.bfloat16)
    with compile(record) as plan:
        made = run(plan, a=a, one=one, each=each, last=each[1, 2].copy())
    assert np.abs(made["shared"] - a.astype(np.float64) @ one.astype(np.float64)).max() < 1e-4
    assert np.abs(made["own"] - a.astype(np.float64) @ each.astype(np.float64)).max() < 1e-4
    assert (made["own"][1, 2] == made["alone"]).all()


def test_softmax_with_a_scale_and_a_mask():
    def record(b: t.Builder) -> None:
        b.scalar("s")
        x, mask = b.input("x", t.f32, (3, 40)), b.input("mask", t.f32, (1, 40))
        b.output("y", t.softmax(x, scale_name="s", mask=mask))

    x, mask = f32(np.random.default_rng(0), 3, 40), np.zeros((1, 40), np.float32)
    mask[0, 17:] = -np.inf
    with compile(record) as plan:
        y = run(plan, x=x, mask=mask, s=3.0)["y"]
    e = np.exp(3 * x[:, :17].astype(np.float64))
    assert np.abs(y[:, :17] - e / e.sum(-1, keepdims=True)).max() < 1e-6
    assert (y[:, 17:] == 0).all()


def test_layers_are_refused_by_name():
    def record(b: t.Builder) -> None:
        x, s = b.input("x", t.f32, (4, 6)), b.state("s", t.f32, (2, 2, 3))
        ids = b.input("ids", t.u32, (2,))
        t.rope(x, 4)
        t.rope(x, 4, "base", ids)
        t.conv_ring(x, x, s, query_extents=ids)
        t.grouped_matmul(x, x, ids)
        t.route(ids, 4)
        t.int4_matmul(x, "w")  # type: ignore[arg-type]
        t.quant_matmul(x, x)  # type: ignore[arg-type]

    found = refusals(record)
    assert [e.message.split(":")[0] for e in found] == [
        "rope", "rope", "conv_ring", "grouped_matmul", "route", "int4_matmul", "quant_matmul"
    ]  # fmt: skip
    assert all(e.place.startswith(__file__) for e in found)


def test_every_half_casts_in_both_directions():
    def record(b: t.Builder) -> None:
        h, x = b.input("h", t.f16, (65536,)), b.input("x", t.f32, (65536,))
        b.output("wide", t.cast(h, "f32"))
        b.output("back", t.cast(t.cast(h, "f32"), "f16"))
        b.output("half", t.cast(x, t.f16))
        b.output("brain", t.cast(x, "bf16"))

    h = np.arange(65536, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(2)
    x = rng.integers(0, 2**32, 65536, np.uint32).view(np.float32)
    x[:4] = [65519.99, 65520, 2049, np.nan]
    with compile(record) as plan, np.errstate(all="ignore"):
        made = run(plan, h=h, x=x)
        nan = np.isnan(h)
        assert (made["wide"][~nan] == h[~nan].astype(np.float32)).all()
        assert np.isnan(made["wide"][nan]).all() and np.isnan(made["back"][nan]).all()
        assert (made["back"].view(np.uint16)[~nan] == h.view(np.uint16)[~nan]).all()
        for name, kind in (("half", np.float16), ("brain", made["brain"].dtype)):
            want = x.astype(kind)
            good = ~np.isnan(want.astype(np.float32))
            assert (made[name].view(np.uint16)[good] == want.view(np.uint16)[good]).all()
            assert np.isnan(made[name].astype(np.float32)[~good]).all()
