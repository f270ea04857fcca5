"""`Runtime(strict=True)`: device data that a kernel would treat as absent is refused by place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import LanewiseError
from tests.tensor.support import outputs, u32

ABSENT = 2**32 - 1


def x(b: t.Builder, name: str, *shape: int) -> t.Tensor:
    return b.input(name, t.f32, shape)


def u(b: t.Builder, name: str, *shape: int) -> t.Tensor:
    return b.input(name, t.u32, shape)


def gather(b: t.Builder) -> None:
    b.output("y", t.gather_rows(x(b, "table", 5, 2), u(b, "ids", 3)))


def scatter(b: t.Builder) -> None:
    t.scatter_rows(b.state("s", t.f32, (5, 2)), x(b, "x", 3, 2), u(b, "ids", 3))


def draw(b: t.Builder) -> None:
    b.output("y", t.sample_categorical(x(b, "w", 3, 2), x(b, "draws", 3)))


def cache(b: t.Builder) -> tuple[t.State, t.State]:
    return b.state("k", t.f32, (128, 1, 4)), b.state("v", t.f32, (128, 1, 4))


def decode(b: t.Builder) -> None:
    b.output("y", t.attention(x(b, "q", 2, 1, 1, 4), *cache(b), lengths=u(b, "lengths", 2),
                              pages=u(b, "pages", 2, 1)))  # fmt: skip


def ragged(b: t.Builder) -> None:
    b.output("y", t.attention(
        x(b, "q", 3, 1, 4), *cache(b), lengths=u(b, "lengths", 2), pages=u(b, "pages", 2, 1),
        query_extents=u(b, "extents", 2),
    ))  # fmt: skip


def prefill(b: t.Builder) -> None:
    b.scalar("base", "u32")
    b.output("y", t.attention(x(b, "q", 3, 1, 4), *cache(b), lengths=u(b, "lengths", 1),
                              base="base"))  # fmt: skip


def placed(b: t.Builder) -> None:
    where: dict[str, Any] = {"slots": u(b, "slots", 3), "positions": u(b, "positions", 3)}
    k, v = cache(b)
    table = u(b, "pages", 2, 1)
    k = t.kv_write(k, x(b, "x", 3, 1, 4), table=table, **where)
    b.output("y", t.attention(x(b, "q", 3, 1, 4), k, v, pages=table, **where))


def experts(b: t.Builder) -> None:
    b.output("y", t.grouped_matmul(x(b, "x", 3, 2), x(b, "w", 2, 2, 4), u(b, "counts", 2)))


def routed(b: t.Builder) -> None:
    b.output("y", t.route(u(b, "chosen", 3, 2), 4)[0])


def convolved(b: t.Builder) -> None:
    b.output("y", t.conv_ring(x(b, "x", 3, 2), x(b, "taps", 2, 2), b.state("s", t.f32, (2, 1, 2)),
                              query_extents=u(b, "extents", 2))[0])  # fmt: skip


def recurrent(b: t.Builder) -> None:
    q = x(b, "q", 3, 1, 2)
    b.output("y", t.linear_attention(
        q, q, q, b.state("s", t.f32, (2, 1, 2, 2)), alpha=x(b, "alpha", 3), beta=x(b, "beta", 3),
        query_extents=u(b, "extents", 2),
    )[0])  # fmt: skip


def turned(b: t.Builder) -> None:
    b.output("y", t.rope(x(b, "x", 3, 1, 4), 4, positions=u(b, "positions", 3),
                         table=x(b, "table", 9, 4)))  # fmt: skip


def sampled(b: t.Builder) -> None:
    b.output("y", t.sample_rows(
        x(b, "logits", 2, 3), x(b, "t", 2), u(b, "top_k", 2), x(b, "top_p", 2), x(b, "min_p", 2),
        x(b, "draws", 2),
    ))  # fmt: skip


def policy(b: t.Builder) -> None:
    options = t.SamplingOptions(temperature=0.5, top_k=2)
    t.declare_sampling_scalars(b, options)
    b.output("y", t.sample(x(b, "logits", 2, 3), options, draws=x(b, "draws", 2))[0])


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# recording, port, what is good, what is refused, what the refusal says
CASES: list[tuple[Callable[[t.Builder], None], str, np.ndarray, np.ndarray, str]] = [
    (gather, "ids", u32(0, 4, 4), u32(0, 5, 9), r"\[1\] is 5: an id below 5 .* \(2 such\)"),
    (scatter, "ids", u32(0, ABSENT, 4), u32(0, 4, 5), r"\[2\] is 5: an id below 5"),
    (draw, "draws", floats(0, 0.5, 0.9), floats(0, 1, 0), r"\[1\] is 1.0: a draw of 0 <= x < 1 is"),
    (draw, "draws", floats(0, 0.5, 0.9), floats(0, np.nan, 0), r"\[1\] is nan"),
    (draw, "w", np.ones((3, 2), np.float32), floats(0, 1, np.nan, 1, -1, 0).reshape(3, 2),
     r"\[1, 0\] is nan: a weight of 0 <= x < inf is wanted \(2 such\)"),
    (sampled, "logits", floats(0, -np.inf, -3, 1, 2, 3).reshape(2, 3),
     floats(0, np.nan, 0, 0, 0, np.inf).reshape(2, 3), r"\[0, 1\] is nan: a logit .* \(2 such\)"),
    (sampled, "t", floats(0, 1), floats(0, np.nan), r"\[1\] is nan: a temperature"),
    (sampled, "t", floats(0, 1), floats(1, -1), r"\[1\] is -1.0: a temperature of 0 <= x < inf"),
    (sampled, "min_p", floats(0, 1), floats(-0.5, 0), r"\[0\] is -0.5: a min_p of 0 <= x < inf"),
    (sampled, "top_p", floats(1, 1), floats(1, np.nan), r"\[1\] is nan: a top_p"),
    (policy, "logits", floats(0, -np.inf, -3, 1, 2, 3).reshape(2, 3),
     floats(0, np.nan, 0, 0, 0, 0).reshape(2, 3), r"\[0, 1\] is nan: a logit below inf"),
    (decode, "lengths", u32(64, 0), u32(3, 65), r"\[1\] is 65: a length below 65"),
    (decode, "pages", u32(1, 0).reshape(2, 1), u32(0, 2).reshape(2, 1), r"\[1, 0\] is 2: a page"),
    (ragged, "extents", u32(1, 2), u32(2, 2), "sums to 4: rows in all are at most 3"),
    (ragged, "extents", u32(0, 2), u32(3, 0), "at most 'lengths' is wanted"),
    (ragged, "lengths", u32(1, 64), u32(1, 65), r"\[1\] is 65: a length"),
    (prefill, "lengths", u32(128), u32(129), r"\[0\] is 129: a length below 129"),
    (placed, "slots", u32(1, ABSENT, 0), u32(2, 0, 0), r"\[0\] is 2: a slot below 2"),
    (placed, "positions", u32(63, ABSENT, 0), u32(0, 64, 0), r"\[1\] is 64: a position below 64"),
    (placed, "pages", u32(1, 0).reshape(2, 1), u32(0, 2).reshape(2, 1), r"\[1, 0\] is 2: a page"),
    (experts, "counts", u32(0, 3), u32(2, 2), "sums to 4"),
    (experts, "counts", u32(0, 3), u32(ABSENT, 2), "sums to 4294967297"),
    (routed, "chosen", u32(0, 1, 2, 3, 0, ABSENT).reshape(3, 2),
     u32(0, 1, 2, 4, 0, 0).reshape(3, 2), r"\[1, 1\] is 4: an expert below 4"),
    (convolved, "extents", u32(3, 0), u32(3, 1), "sums to 4"),
    (recurrent, "extents", u32(3, 0), u32(3, 1), "sums to 4"),
    (turned, "positions", u32(0, 8, ABSENT), u32(0, 9, 8), r"\[1\] is 9: a position below 9"),
]  # fmt: skip


def bindings(plan: t.Plan) -> dict[str, Any]:
    """Numbers that are good everywhere."""
    given: dict[str, Any] = {s.name: 0 for s in plan.scalars}
    for port in plan.ports:
        kind = np.uint32 if port.dtype == "u32" else np.float32
        given[port.name] = np.zeros(port.shape, kind)
        if port.name == "lengths":
            given[port.name] += 2
        if port.name == "pages":
            given[port.name][:] = np.arange(len(given[port.name]))[:, None]
    return given | outputs(plan)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].__name__}-{c[1]}")
def test_what_a_kernel_would_treat_as_absent_is_refused(case):
    record, port, good, bad, message = case
    for strict in (True, False):
        with t.Runtime("cpu", threads=1, strict=strict) as rt:
            b = rt.builder()
            record(b)
            with b.compile() as plan:
                given = bindings(plan)
                plan.run({**given, port: good})
                if not strict:
                    plan.run({**given, port: bad})  # defined: absent rows
                    continue
                with pytest.raises(LanewiseError, match=message) as caught:
                    plan.submit({**given, port: bad}).wait()
                errors = getattr(caught.value, "errors", [caught.value])
                for error in errors:
                    assert error.code == "run.data" and f"'{port}'" in error.message
                    assert error.remedy and error.place.startswith(__file__)
                plan.run({**given, port: good})


def test_rows_that_a_scalar_skips_do_not_count():
    with t.Runtime("cpu", threads=1, strict=True) as rt:
        b = rt.builder()
        b.scalar("n", "u32")
        ids = b.input("ids", t.u32, (4,), live="n")
        b.output("y", t.gather_rows(b.input("table", t.f32, (5, 2)), ids))
        with b.compile() as plan:
            given = {"table": np.ones((5, 2), np.float32), "ids": u32(1, 2, 77, 77), "n": 2}
            plan.run(given, **outputs(plan))
            with pytest.raises(LanewiseError, match=r"'ids'\[2\]"):
                plan.run(given | {"n": 3}, **outputs(plan))
