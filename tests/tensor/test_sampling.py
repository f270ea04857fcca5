"""Sampling through the Builder: boundaries, the order of steps, penalties, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import UsageError
from tests.tensor.support import compile, f32, refusals, run, u32

V, R = 12, 16


def test_draws_fall_exactly_on_cumulative_sums():
    """Weights of eighths: sums are exact, and a draw at one belongs to the next entry."""

    def record(b: t.Builder) -> None:
        w, d = b.input("w", t.f32, (R, 5)), b.input("d", t.f32, (R,))
        b.output("token", t.sample_categorical(w, d))
        b.output("two", t.sample_categorical(t.top_k_mask(w, 2), d))

    weights = np.array([0, 1, 0, 4, 3], np.float32) / 8  # sums 0 1/8 1/8 5/8 1
    below = np.float32(2**-24)
    cases = [(0, 1, 3), (-3, 1, 3), (1 / 8 - below, 1, 3), (1 / 8, 3, 3), (1 / 8 + below, 3, 3),
             (4 / 7 - 2**-20, 3, 3), (4 / 7 + 2**-20, 3, 4), (5 / 8 - below, 3, 4), (5 / 8, 4, 4),
             (1 - below, 4, 4), (1, 4, 4), (7, 4, 4)]  # fmt: skip
    draws = np.zeros(R, np.float32)
    draws[: len(cases)] = [c[0] for c in cases]
    with compile(record) as plan:
        made = run(plan, w=np.tile(weights, (R, 1)), d=draws)
    assert made["token"][: len(cases)].tolist() == [c[1] for c in cases]
    assert made["two"][: len(cases)].tolist() == [c[2] for c in cases]


def test_masks_keep_exactly_what_they_say():
    """Ties go to the low index; a sum that reaches p exactly keeps no further entry."""
    row = np.array([[1, 4, 2, 0, 8, 1]], np.float32) / 16  # ranks: 4 1 2 0 5 3

    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (1, 6))
        for k in (1, 4, 6):
            b.output(f"k{k}", t.top_k_mask(x, k))
        for p in (0.5, 0.75, 0.7501, 1.0):
            b.output(f"p{p}", t.top_p_mask(x, p))
        b.output("m", t.min_p_mask(x, 0.25))
        b.output("kp", t.top_p_mask(t.top_k_mask(x, 2), 0.6))  # of what is left: 8 of 12

    kept = {"k1": [4], "k4": [0, 1, 2, 4], "k6": range(6), "p0.5": [4], "p0.75": [1, 4],
            "p0.7501": [1, 2, 4], "p1.0": [0, 1, 2, 4, 5], "m": [1, 2, 4], "kp": [4]}  # fmt: skip
    with compile(record) as plan:
        for name, value in run(plan, x=row).items():
            want = np.zeros(6)
            want[list(kept[name])] = row[0, list(kept[name])]
            assert value[0].tolist() == want.tolist(), name


def policy(logits, draw, o: t.SamplingOptions, counts=None):
    """One row in float64, straight from the words of the spec."""
    z = logits.astype(np.float64)
    if counts is not None:
        r = o.repetition or 1
        for i in np.flatnonzero(counts):
            z[i] = z[i] / r if z[i] > 0 else z[i] * r
            z[i] -= o.presence + o.frequency * counts[i]
    if o.temperature == 0:
        return int(np.argmax(z))
    p = np.exp((z - z.max()) / o.temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if o.top_k:
        for i in order[o.top_k :]:
            p[i] = 0
    if o.top_p:
        total, running = p.sum(), 0.0
        for i in order:
            p[i] = p[i] if running < o.top_p * total else 0
            running += p[i]
    if o.min_p:
        p[p < o.min_p * p.max()] = 0
    running = 0.0
    for i, w in enumerate(p):
        running += w
        if running > draw * p.sum():
            return i
    raise AssertionError


@pytest.mark.parametrize("options", [
    t.SamplingOptions(),
    t.SamplingOptions(temperature=0.7, top_k=5, top_p=0.8, min_p=0.05),
    t.SamplingOptions(temperature=1.5, repetition=1.3, presence=0.25, frequency=0.125),
    t.SamplingOptions(repetition=2.0, frequency=0.5),
], ids=["greedy", "truncated", "penalised", "greedy penalised"])  # fmt: skip
def test_a_policy_is_its_steps_in_order(options):
    def record(b: t.Builder) -> None:
        logits = b.input("logits", t.f32, (R, V))
        t.declare_sampling_scalars(b, options, "p.")
        more = {} if options.greedy else {"draws": b.input("draws", t.f32, (R,))}
        if options.penalised:
            more |= {"history": b.state("history", t.u32, (8,)),
                     "counts": b.state("counts", t.u32, (V,))}  # fmt: skip
        token, counts = t.sample(logits, options, prefix="p.", **more)
        assert (counts is not None) == options.penalised
        b.output("token", token)

    rng = np.random.default_rng(4)
    logits, draws = f32(rng, R, V) * 2, np.linspace(0.01, 0.99, R, dtype=np.float32)
    history, counts = u32(3, 3, 1, 7, 3, 2**32 - 1, 5, 6), np.full(V, 9, np.uint32)
    values = {"logits": logits, **options.scalars("p.", 6, 8)}
    said = None
    if not options.greedy:
        values["draws"] = draws
    if options.penalised:
        values |= {"history": history, "counts": counts}
        said = np.bincount(history[:5], minlength=V)  # the sixth is beyond the vocabulary
    for target in ("cpu", "reference"):
        counts[:] = 9
        with compile(record, target) as plan:
            tokens = run(plan, **values)["token"].tolist()
        assert tokens == [policy(logits[r], draws[r], options, said) for r in range(R)]
        assert said is None or (counts == said).all()


def test_penalties_commute_with_temperature():
    """A penalty is subtracted before 1/T: halving T doubles its effect on z / T, not on z."""
    options = t.SamplingOptions(temperature=0.5, presence=1.0)

    def record(b: t.Builder) -> None:
        t.declare_sampling_scalars(b, options)
        token, _ = t.sample(
            b.input("logits", t.f32, (R, 2)), options, draws=b.input("draws", t.f32, (R,)),
            history=b.state("history", t.u32, (1,)), counts=b.state("counts", t.u32, (2,)),
        )  # fmt: skip
        b.output("token", token)

    draws = np.linspace(0, 0.99, R, dtype=np.float32)
    logits = np.tile(np.array([1, 0], np.float32), (R, 1))  # equal once 1 is taken off the first
    with compile(record) as plan:
        tokens = run(plan, logits=logits, draws=draws, history=u32(0), counts=u32(0, 0),
                     **options.scalars("", 1, 1))["token"]  # fmt: skip
    assert tokens.tolist() == [int(d >= 0.5) for d in draws]


def test_a_policy_is_refused_not_clamped():
    nan, inf = float("nan"), float("inf")
    for wrong in ({"temperature": nan}, {"temperature": -1}, {"temperature": 1e-4},
                  {"temperature": inf}, {"top_k": -1}, {"top_k": 1.5}, {"top_p": 1.5},
                  {"top_p": -0.1}, {"top_p": nan}, {"min_p": 2}, {"repetition": nan},
                  {"repetition": -1}, {"presence": inf}, {"frequency": nan}):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            t.SamplingOptions(**wrong).validate()
        assert caught.value.place == next(iter(wrong)) and caught.value.remedy
    t.SamplingOptions(temperature=t.MIN_TEMPERATURE, top_p=1.0).validate()
    with pytest.raises(UsageError, match="holds 4"):
        t.SamplingOptions(presence=1).scalars("", 5, 4)


def test_what_a_policy_does_not_read_is_refused():
    def record(b: t.Builder) -> None:
        logits, draws = b.input("l", t.f32, (1, V)), b.input("d", t.f32, (1,))
        counts = b.state("c", t.u32, (V,))
        t.sample(logits, t.SamplingOptions(), draws=draws)
        t.sample(logits, t.SamplingOptions(temperature=1.0))
        t.sample(logits, t.SamplingOptions(presence=1.0))
        t.sample(logits, t.SamplingOptions(), counts=counts)
        t.sample(logits, t.SamplingOptions(top_p=2.0))
        t.top_k_mask(logits, V + 1)
        t.top_p_mask(logits, 0.0)

    found = refusals(record)
    assert [e.code.removeprefix("graph.") for e in found] == [
        "operand", "missing_operand", "missing_operand", "operand", "attribute", "attribute",
        "attribute",
    ]  # fmt: skip
    assert all("draws" in e.message for e in found[:2])


def test_strict_looks_at_device_data():
    rt = t.Runtime("cpu", threads=1, strict=True)
    b = rt.builder()
    table, ids = b.input("table", t.f32, (5, 2)), b.input("ids", t.u32, (3,))
    b.output("rows", t.gather_rows(table, ids))
    b.output("token", t.sample_categorical(table, b.input("draws", t.f32, (5,))))
    values = {"table": np.ones((5, 2), np.float32), "ids": u32(0, 4, 2),
              "draws": np.zeros(5, np.float32)}  # fmt: skip
    with b.compile() as plan:
        run(plan, **values)
        for name, bad in (("ids", u32(0, 1, 5)), ("draws", np.array([0, 0, 1, 0, 0], "f4")),
                          ("draws", np.array([0, 0, np.nan, 0, 0], "f4"))):  # fmt: skip
            with pytest.raises(Exception, match=rf"'{name}'\[2\]") as caught:
                run(plan, **{**values, name: bad})
            assert caught.value.code == "run.data"
    rt.close()


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_row_without_a_weight_gives_no_token(target: str, fused: bool) -> None:
    """Logits of -inf alone, as they stand and as a product's: `sample` and `sample_rows` agree."""
    names = {"t": t.f32, "k": t.u32, "p": t.f32, "m": t.f32, "d": t.f32}
    o = t.SamplingOptions(temperature=1.0)

    def record(b: t.Builder) -> None:
        t.declare_sampling_scalars(b, o)
        x = b.input("x", t.f32, (4, 64))
        x = t.linear(x, b.weight("w", t.f32, (64, 64))) if fused else x
        given = [b.input(n, kind, (4,)) for n, kind in names.items()]
        b.output("rows", t.sample_rows(x, *given))
        b.output("argmax", t.argmax(x))
        if not fused:
            b.output("sample", t.sample(x, o, draws=given[-1])[0])

    x = np.full((4, 64), -np.inf, np.float32)
    x[2:] = 0
    given = {"t": np.array([1, 0, 1, -1], np.float32), "k": u32(0, 0, 0, 0),
             "p": np.array([1, 1, 1, 1], np.float32), "m": np.zeros(4, np.float32),
             "d": np.array([0.6, 0.6, 0.6, 0.6], np.float32)}  # fmt: skip
    if fused:  # every product adds -inf to itself: no NaN comes of it
        given["w"] = np.ones((64, 64), np.float32)
    with compile(record, target) as plan:
        made = run(plan, x=x, **given, **o.scalars("", 0, 0))
    assert made["rows"].tolist() == [0xFFFFFFFF, 0, 38, 0]
    assert made["argmax"].tolist() == [0, 0, 0, 0]
    if not fused:
        assert made["sample"].tolist() == [0xFFFFFFFF, 0xFFFFFFFF, 38, 38]
