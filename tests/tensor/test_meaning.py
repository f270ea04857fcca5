"""Sentences of the layer's contract that no other file shows: what ops mean, to the bit or bound.

u = 2^-24; a sum of n terms is within gamma(n) = n u / (1 - n u) of the sum of their sizes.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import GraphError
from tests.tensor.support import compile, f32, products, run, u32

RNG = np.random.default_rng(5)
U = 2.0**-24


def gamma(n: int) -> float:
    return n * U / (1 - n * U)


def ulps(y: np.ndarray, true: np.ndarray) -> float:
    """The largest error in units of the last place of f32."""
    with np.errstate(over="ignore"):
        near = np.abs(true).astype(np.float32)
    unit = np.maximum(np.spacing(near).astype(np.float64), 2.0**-149)
    return float((np.abs(y.astype(np.float64) - true) / unit).max())


def dense(low: float, high: float, n: int = 60_001) -> np.ndarray:
    """f32 between two bounds: even ones, and ones of every size."""
    even = np.linspace(low, high, n)
    sizes = np.geomspace(1e-38, max(abs(low), abs(high)), n)
    return np.concatenate([even, sizes[sizes <= high], -sizes[-sizes >= low]]).astype(np.float32)


ERF = np.frompyfunc(math.erf, 1, 1)
FUNCTIONS = {
    "exp": (dense(-87, 88), np.exp), "log": (dense(1e-38, 3e38), np.log),
    "tanh": (dense(-20, 20), np.tanh), "rsqrt": (dense(1e-37, 3e38), lambda x: 1 / np.sqrt(x)),
    "sigmoid": (dense(-80, 80), lambda x: 1 / (1 + np.exp(-x))),
    "erf": (dense(-6, 6), lambda x: ERF(x).astype(np.float64)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_two_ulp(name):
    x, formula = FUNCTIONS[name]
    with compile(lambda b: b.output("y", getattr(t, name)(b.input("x", t.f32, x.shape)))) as plan:
        y = run(plan, x=x)["y"]
    assert ulps(y, formula(x.astype(np.float64))) <= 2


def test_quotients_and_roots_are_correctly_rounded():
    """f64 carries more than twice the digits and two: rounding it again is rounding once."""
    x = np.exp(f32(RNG, 50_000) * 20).astype(np.float32)
    z = (f32(RNG, 50_000) * np.exp(f32(RNG, 50_000) * 5)).astype(np.float32)

    def record(b: t.Builder) -> None:
        a, c = b.input("x", t.f32, x.shape), b.input("z", t.f32, z.shape)
        b.output("q", c / a)
        b.output("r", t.sqrt(a))

    with compile(record) as plan:
        made = run(plan, x=x, z=z)
    assert (made["q"] == (z.astype(np.float64) / x).astype(np.float32)).all()
    assert (made["r"] == np.sqrt(x.astype(np.float64)).astype(np.float32)).all()


def test_sums_and_products_are_within_gamma():
    n = 1537

    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (3, n))
        b.output("sum", t.reduce_sum(x))
        for name, left, right in (("f32", t.f32, t.f32), ("f16", t.f16, t.f16),
                                  ("mixed", t.f32, t.f16), ("brain", t.f32, t.bf16)):  # fmt: skip
            a, c = b.input(f"{name}.a", left, (3, n)), b.input(f"{name}.b", right, (n, 5))
            y = t.matmul(a, c)
            assert y.dtype == "f32"
            b.output(name, y)

    x, w = f32(RNG, 3, n), f32(RNG, n, 5)
    given = {"x": x}
    kinds = {"f32": (np.float32, np.float32), "f16": (np.float16, np.float16),
             "mixed": (np.float32, np.float16), "brain": (np.float32, ml_dtypes.bfloat16)}
    for name, (left, right) in kinds.items():
        given |= {f"{name}.a": x.astype(left), f"{name}.b": w.astype(right)}
    with compile(record) as plan:
        made = run(plan, **given)
    wide = x.astype(np.float64)
    assert (np.abs(made["sum"] - wide.sum(1)) <= gamma(n) * np.abs(wide).sum(1)).all()
    for name in kinds:
        a, c = (given[f"{name}.{m}"].astype(np.float64) for m in "ab")
        assert (np.abs(made[name] - a @ c) <= gamma(n) * (np.abs(a) @ np.abs(c))).all(), name


def test_a_bias_and_a_gate_in_one_op_are_their_composed_forms_to_the_bit():
    def record(b: t.Builder) -> None:
        x, w = b.input("x", t.f32, (7, 65)), b.weight("w", t.f32, (33, 65))
        bias = b.weight("b", t.f32, (33,))
        b.output("one", t.linear(x, w, bias))
        b.output("two", t.linear(x, w) + bias)
        gate, value = b.input("g", t.f32, (7, 65)), x
        b.output("glu", t.swiglu(gate, value))
        b.output("glu.two", t.silu(gate) * value)

    v = {"x": f32(RNG, 7, 65), "w": f32(RNG, 33, 65), "b": f32(RNG, 33), "g": f32(RNG, 7, 65)}
    with compile(record) as plan:
        made = run(plan, **v)
    assert (made["one"] == made["two"]).all() and (made["glu"] == made["glu.two"]).all()


def test_views_are_read_where_they_are_and_axes_count_from_the_end():
    """Elementwise ops read any view; every way to write an axis means the same."""

    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (2, 3, 4))
        turned = t.transpose(x, -1, -3)  # [4, 3, 2]
        part = t.slice(turned, -2, 1, 3)  # [4, 2, 2]
        b.output("part", t.neg(part))
        wide = t.broadcast(t.slice(part, 0, 0, 1), (4, 2, 2))
        b.output("sum", part + wide)
        b.output("packed", t.contiguous(t.permute(x, -1, 0, 1)))

    x = f32(RNG, 2, 3, 4)
    with compile(record) as plan:
        made = run(plan, x=x)
    part = np.swapaxes(x, -1, -3)[:, 1:3]
    assert (made["part"] == -part).all() and (made["sum"] == part + part[:1]).all()
    assert (made["packed"] == np.transpose(x, (2, 0, 1))).all()


def test_argmax_takes_the_lowest_of_equals_and_no_nan():
    x = np.array([[1, 3, 3, 2], [np.nan, -5, np.nan, -5], [np.inf, np.nan, np.inf, 0],
                  [-np.inf] * 4, [-0.0, 0.0, -1, -1]], np.float32)  # fmt: skip
    with compile(lambda b: b.output("y", t.argmax(b.input("x", t.f32, x.shape)))) as plan:
        assert run(plan, x=x)["y"].tolist() == [1, 1, 0, 0, 0]


def test_a_truncation_keeps_more_than_the_seed_could():
    row = RNG.permutation(1000).astype(np.float32)[None] + 1
    assert math.isinf(t.TOP_MAX_ROUNDS)
    with compile(lambda b: b.output("y", t.top_k_mask(b.input("x", t.f32, (1, 1000)), 700))) as p:
        y = run(p, x=row)["y"]
    assert (y == np.where(row > 300, row, 0)).all()


def _cached(rows: int, sequences: int = 1):
    """A step of `rows` over a cache: writes keys and values, attends, by ragged rows."""

    def record(b: t.Builder) -> None:
        lengths, extents = (b.input(n, t.u32, (sequences,)) for n in ("lengths", "extents"))
        pages = b.input("pages", t.u32, (sequences, 2))
        slots, at = t.ragged_rows(lengths, extents, rows=rows, reach=128)
        k, v = (b.state(n, t.f32, (256, 1, 4)) for n in "kv")
        x = b.input("x", t.f32, (rows, 1, 4))
        k = t.kv_write(k, x, table=pages, slots=slots, positions=at)
        v = t.kv_write(v, x * b.constant(3.0), table=pages, slots=slots, positions=at)
        q = b.input("q", t.f32, (rows, 1, 4))
        b.output("y", t.attention(q, k, v, lengths=lengths, pages=pages, query_extents=extents))

    return record


def _held() -> dict[str, np.ndarray]:
    return {n: np.zeros((256, 1, 4), np.float32) for n in "kv"}


def test_padded_rows_equal_rows_of_the_exact_length_to_the_bit():
    x, q = f32(RNG, 70, 1, 4), f32(RNG, 70, 1, 4)
    pages = u32(2, 0).reshape(1, 2)
    padded = {n: np.concatenate([a, np.full((26, 1, 4), np.nan, np.float32)])
              for n, a in (("x", x), ("q", q))}  # fmt: skip
    with compile(_cached(70)) as exact, compile(_cached(96)) as bucket:
        count = {"lengths": u32(70), "extents": u32(70), "pages": pages}
        one, two = _held(), _held()
        want = run(exact, x=x, q=q, **count, **one)["y"]
        have = run(bucket, **padded, **count, **two)["y"]
    assert (have[:70] == want).all() and (have[70:] == 0).all()
    assert all((one[n] == two[n]).all() for n in "kv")


def test_interleaved_sequences_never_see_each_other():
    """Values of one sequence are positive, of the other negative: a sign tells a leak."""
    with compile(_cached(4, 2)) as plan:
        held, signs, lengths = _held(), (1.0, -1.0), [0, 0]
        for counts in ((3, 1), (0, 4), (1, 1), (2, 2), (4, 0)):
            x = np.zeros((4, 1, 4), np.float32)
            who = [s for s in (0, 1) for _ in range(counts[s])]
            for row, s in enumerate(who):
                x[row] = signs[s] * (1 + RNG.random((1, 4)))
            lengths = [n + c for n, c in zip(lengths, counts, strict=True)]
            y = run(plan, x=x, q=f32(RNG, 4, 1, 4), lengths=u32(*lengths),
                    extents=u32(*counts), pages=u32(1, 3, 0, 2).reshape(2, 2), **held)["y"]
            for row, s in enumerate(who):
                assert (y[row] * signs[s] >= 3).all()
            assert (y[len(who) :] == 0).all()


def test_submissions_back_to_back_lose_no_result():
    """Two at once, each with memory of its own; a third is refused and touches nothing."""
    eye = np.eye(64, dtype=np.float32)
    with compile(products(64, 3), max_in_flight=2) as plan:
        for i in range(100):
            scales = [1 + i % 3, 2 + i % 2, 3]
            ys = [np.zeros((64, 64), np.float32) for _ in scales]
            fences = [plan.submit(x=s * eye, y=y) for s, y in zip(scales, ys, strict=True)]
            for fence, s, y in zip(fences, scales, ys, strict=True):
                if fence.done and fence.error is not None:
                    assert fence.error.code == "run.busy" and not y.any()
                    continue
                fence.wait(30)
                assert (y == float(s) ** 4 * eye).all()
            assert fences[0].error is None and fences[1].error is None


def test_descriptions_declare_and_tell():
    with compile(lambda b: b.output("y", t.add(
        b.declare_input(t.ValueDesc("x", t.f32, (3,))),
        b.declare_weight(t.ValueDesc("w", t.f32, (3,))),
    ))) as plan:  # fmt: skip
        assert [(p.name, p.kind, p.layout) for p in plan.ports] == [
            ("x", "input", "rows"), ("w", "weight", "rows"), ("y", "output", "rows")]  # fmt: skip
        assert isinstance(plan.ports, tuple) and isinstance(plan.scalars, tuple)
        with pytest.raises(AttributeError):
            plan.ports[0].name = "z"  # type: ignore[misc]
        assert (run(plan, x=f32(RNG, 3) * 0 + 1, w=f32(RNG, 3) * 0 + 2)["y"] == 3).all()


def test_a_value_has_as_many_outputs_as_one_likes():
    """Ports, views, states and values, each under several names; each output has its own bytes."""

    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (2, 3))
        h, s = t.neg(x), b.state("s", t.f32, (4, 3))
        s = t.scatter_rows(s, x, b.input("ids", t.u32, (2,)))
        for i in range(3):
            b.output(f"x{i}", x)
            b.output(f"h{i}", h)
            b.output(f"v{i}", t.reshape(h, (6,)))
            b.output(f"t{i}", t.transpose(x))
            b.output(f"s{i}", t.read_state(s))

    x, s = f32(RNG, 2, 3), np.zeros((4, 3), np.float32)
    for target in ("cpu", "reference"):
        with compile(record, target) as plan:
            made = run(plan, x=x, ids=u32(3, 0), s=s)
        want = {"x": x, "h": -x, "v": -x.reshape(6), "t": x.T, "s": s}
        for name, value in made.items():
            assert (value == want[name[0]]).all(), (target, name)
        assert (s[3] == x[0]).all()


def test_rows_of_two_counts_do_not_meet():
    def record(b: t.Builder) -> None:
        b.scalar("n", "u32")
        b.scalar("m", "u32")
        b.output("y", b.input("x", t.f32, (4, 2), live="n") + b.input("z", t.f32, (4, 2), live="m"))

    with pytest.raises(GraphError, match="rows counted by m and n") as caught:
        compile(record)
    error = caught.value
    assert error.code == "graph.live" and error.place.startswith(__file__)
    assert "one scalar" in error.remedy
