"""Submissions as users get them wrong: what comes back, and that its remedy, taken, runs.

Every refusal has a code, the line of the submission, and words that lead to the fix in one step;
the plan goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import LanewiseError, Refused, RunError, UsageError
from tests.tensor.support import compile, products, runtime

Given = dict[str, Any]


class Row(NamedTuple):
    wrong: Callable[[Given], Given]
    code: str
    message: str
    remedy: str
    right: Callable[[Given], Given] = lambda g: g  # the remedy, taken


def step(b: t.Builder) -> None:
    b.scalar("scale", "f32")
    b.scalar("n", "u32")
    x = b.input("x", t.f32, (4, 8), live="n")
    h = b.input("h", t.bf16, (4, 8))
    w = b.weight("w", "q8_0", (5, 8 * 4))
    b.output("y", t.scale(x, "scale"))
    b.output("z", t.cast(h, "f32"))
    b.output("u", t.abs(b.input("t", t.f32, (2, 3, 4))))
    b.output("r", t.gather_rows(w, b.input("ids", t.u32, (2,))))
    t.scatter_rows(b.state("s", t.f32, (4, 8)), x, b.input("at", t.u32, (4,)))


@pytest.fixture(scope="module")
def plan() -> t.Plan:
    return compile(step, label="step")


def good() -> Given:
    return {
        "x": np.ones((4, 8), np.float32), "h": np.ones((4, 8), ml_dtypes.bfloat16),
        "w": t.quantize_int8(np.ones((5, 32), np.float32)), "ids": np.zeros(2, np.uint32),
        "at": np.arange(4, dtype=np.uint32), "s": np.zeros((4, 8), np.float32),
        "t": np.ones((2, 3, 4), np.float32), "u": np.zeros((2, 3, 4), np.float32),
        "y": np.zeros((4, 8), np.float32), "z": np.zeros((4, 8), np.float32),
        "r": np.zeros((2, 32), np.float32), "scale": 2.0, "n": 4,
    }  # fmt: skip


def locked(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def shifted() -> np.ndarray:
    """f32 [4, 8] that begins at an odd byte."""
    return np.zeros(129, np.uint8)[1:].view(np.float32).reshape(4, 8)


ROWS: dict[str, Row] = {
    "a name that is missing": Row(
        lambda g: {n: v for n, v in g.items() if n != "x"}, "missing", "input 'x' is not bound",
        "bind f32 [4, 8]"),
    "a scalar that is missing": Row(
        lambda g: {n: v for n, v in g.items() if n != "n"}, "missing", "scalar 'n'", "bind a u32"),
    "a name too much": Row(
        lambda g: g | {"extra": g["x"]}, "extra", "no 'extra'", "it has: x, h"),
    "float64": Row(
        lambda g: g | {"x": np.ones((4, 8))}, "dtype", "is float64, it must be float32",
        "x.astype('float32')", lambda g: g | {"x": np.ones((4, 8)).astype("float32")}),
    "bits of bf16": Row(
        lambda g: g | {"h": np.zeros((4, 8), np.uint16)}, "dtype", "is uint16",
        "x.view(ml_dtypes.bfloat16)",
        lambda g: g | {"h": np.zeros((4, 8), np.uint16).view(ml_dtypes.bfloat16)}),
    "a weight that is not encoded": Row(
        lambda g: g | {"w": np.ones((5, 32), np.float32)}, "dtype", "weight 'w' is float32",
        "quantize_int8(x)", lambda g: g | {"w": t.quantize_int8(np.ones((5, 32), np.float32))}),
    "a flat array": Row(
        lambda g: g | {"x": np.ones(32, np.float32)}, "shape", "(32,), it must be (4, 8)",
        "x.reshape(4, 8)", lambda g: g | {"x": np.ones(32, np.float32).reshape(4, 8)}),
    "fewer rows": Row(
        lambda g: g | {"x": np.ones((3, 8), np.float32)}, "shape", "(3, 8)",
        "an array of shape (4, 8)"),
    "columns first": Row(
        lambda g: g | {"x": np.asfortranarray(g["x"])}, "strides", "row-major and packed",
        "np.ascontiguousarray(x)",
        lambda g: g | {"x": np.ascontiguousarray(np.asfortranarray(g["x"]))}),
    "an output to read only": Row(
        lambda g: g | {"y": locked(g["y"])}, "readonly", "output 'y' is read-only", "written"),
    "a state to read only": Row(
        lambda g: g | {"s": locked(g["s"])}, "readonly", "state 's' is read-only", "written"),
    "an odd address": Row(
        lambda g: g | {"x": shifted()}, "alignment", "not aligned", "x.copy()",
        lambda g: g | {"x": shifted().copy()}),
    "a transposed array": Row(
        lambda g: g | {"x": np.ones((8, 4), np.float32)}, "shape", "(8, 4), it must be (4, 8)",
        "np.ascontiguousarray(x.T)",
        lambda g: g | {"x": np.ascontiguousarray(np.ones((8, 4), np.float32).T)}),
    "axes in another order": Row(
        lambda g: g | {"t": np.ones((3, 2, 4), np.float32)}, "shape", "(3, 2, 4), it must be",
        "np.ascontiguousarray(x.transpose(1, 0, 2))",
        lambda g: g | {"t": np.ascontiguousarray(np.ones((3, 2, 4), np.float32)
                                                 .transpose(1, 0, 2))}),
    "merged axes": Row(
        lambda g: g | {"t": np.ones((6, 4), np.float32)}, "shape", "(6, 4), it must be",
        "x.reshape(2, 3, 4)",
        lambda g: g | {"t": np.ones((6, 4), np.float32).reshape(2, 3, 4)}),
    "an axis of 1": Row(
        lambda g: g | {"x": np.ones((4, 1, 8), np.float32)}, "shape", "(4, 1, 8), it must be",
        "x.reshape(4, 8)", lambda g: g | {"x": np.ones((4, 1, 8), np.float32).reshape(4, 8)}),
    "as many numbers in other rows": Row(
        lambda g: g | {"x": np.ones((2, 16), np.float32)}, "shape", "(2, 16), it must be",
        "an array of shape (4, 8)"),
    "an output of float64": Row(
        lambda g: g | {"y": np.zeros((4, 8))}, "dtype", "output 'y' is float64",
        "y = np.empty((4, 8), np.float32)", lambda g: g | {"y": np.empty((4, 8), np.float32)}),
    "a transposed output": Row(
        lambda g: g | {"y": np.zeros((8, 4), np.float32)}, "shape", "output 'y' has shape (8, 4)",
        "np.empty((4, 8), np.float32)", lambda g: g | {"y": np.empty((4, 8), np.float32)}),
    "an output of columns": Row(
        lambda g: g | {"y": np.zeros((8, 4), np.float32).T}, "strides", "output 'y' has strides",
        "np.empty((4, 8), np.float32)", lambda g: g | {"y": np.empty((4, 8), np.float32)}),
    "an output at an odd address": Row(
        lambda g: g | {"y": shifted()}, "alignment", "not aligned", "np.empty((4, 8), np.float32)",
        lambda g: g | {"y": np.empty((4, 8), np.float32)}),
    "a state of float64": Row(
        lambda g: g | {"s": np.zeros((4, 8))}, "dtype", "state 's' is float64",
        "in all submissions: s = np.zeros((4, 8), np.float32)",
        lambda g: g | {"s": np.zeros((4, 8), np.float32)}),
    "a list": Row(
        lambda g: g | {"x": [[1.0] * 8] * 4}, "kind", "is list, no array",
        "np.asarray(x, np.float32)",
        lambda g: g | {"x": np.asarray([[1.0] * 8] * 4, np.float32)}),
    "a list of what NumPy has no name for": Row(
        lambda g: g | {"h": [[1.0] * 8] * 4}, "kind", "is list, no array",
        "np.asarray(x, ml_dtypes.bfloat16)",
        lambda g: g | {"h": np.asarray([[1.0] * 8] * 4, ml_dtypes.bfloat16)}),
    "a list to write into": Row(
        lambda g: g | {"y": [[0.0] * 8] * 4}, "kind", "is list, no array",
        "np.empty((4, 8), np.float32)", lambda g: g | {"y": np.empty((4, 8), np.float32)}),
    "a number for an array": Row(
        lambda g: g | {"x": 1.0}, "kind", "is float, no array",
        "np.full((4, 8), x, np.float32)", lambda g: g | {"x": np.full((4, 8), 1.0, np.float32)}),
    "numbers one by one": Row(
        lambda g: g | {"ids": (i for i in range(2))}, "kind", "is generator, no array",
        "np.asarray(list(x), np.uint32)",
        lambda g: g | {"ids": np.asarray(list(range(2)), np.uint32)}),
    "a list for a format": Row(
        lambda g: g | {"w": [[1.0] * 32] * 5}, "kind", "is list, no array", "quantize_int8(x)",
        lambda g: g | {"w": t.quantize_int8([[1.0] * 32] * 5)}),
    "bytes": Row(
        lambda g: g | {"x": np.ones((4, 8), np.float32).tobytes()}, "dtype", "is bytes",
        "np.frombuffer(x, np.float32).reshape(4, 8)",
        lambda g: g | {"x": np.frombuffer(np.ones((4, 8), np.float32).tobytes(), np.float32)
                       .reshape(4, 8)}),
    "a masked array": Row(
        lambda g: g | {"x": np.ma.ones((4, 8), np.float32)}, "kind", "has a mask", "x.filled(0)",
        lambda g: g | {"x": np.ma.ones((4, 8), np.float32).filled(0)}),
    "nothing": Row(
        lambda g: g | {"x": None}, "kind", "is NoneType, no array", "an array of f32 [4, 8]"),
    "a tensor for its numbers": Row(
        lambda g: g | {"x": runtime().builder().input("x", t.f32, (4, 8))}, "kind",
        "has no numbers", "the array that holds the numbers"),
    "output over input": Row(
        lambda g: g | {"y": g["x"]}, "overlap", "'x' and 'y' share bytes", "memory of its own to"),
    "two outputs in one": Row(
        lambda g: g | {"z": g["y"]}, "overlap", "'y' and 'z' share bytes", "memory of its own to"),
    "a float for a count": Row(
        lambda g: g | {"n": 2.0}, "scalar", "'n' is 2.0", "pass a u32"),
    "a count that is no number": Row(
        lambda g: g | {"n": float("nan")}, "scalar", "'n' is nan", "pass a u32"),
    "a negative count": Row(
        lambda g: g | {"n": -1}, "scalar", "0 to 2^32 - 1", "pass a u32"),
    "a text for a number": Row(
        lambda g: g | {"scale": "2"}, "scalar", "'2', it must be a number", "pass a f32"),
    "a number beyond f32": Row(
        lambda g: g | {"scale": 1e300}, "scalar", "1e+300, it must be a number of f32",
        "pass a f32"),
    "an array of one number": Row(
        lambda g: g | {"scale": np.array([2.0])}, "scalar", "a number of f32", "x.item()",
        lambda g: g | {"scale": np.array([2.0]).item()}),
    "a decimal number": Row(
        lambda g: g | {"scale": Decimal(2)}, "scalar", "Decimal('2')", "pass a f32: float(x)",
        lambda g: g | {"scale": float(Decimal(2))}),
    "an array for a number": Row(
        lambda g: g | {"scale": np.ones(3)}, "scalar", "it must be a number", "pass a f32"),
    "too many live rows": Row(
        lambda g: g | {"n": 5}, "scalar", "'n' is 5, the capacity is 4", "split the rows"),
    "a closed buffer": Row(
        lambda g: g | {"x": _closed()}, "closed", "input 'x'", "make a new one",
        lambda g: g | {"x": runtime().buffer(t.f32, (4, 8))}),
}  # fmt: skip


def _closed() -> t.Buffer:
    buffer = runtime().buffer(t.f32, (4, 8))
    buffer.close()
    return buffer


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_submission_is_refused_at_its_line(plan, name):
    row = ROWS[name]
    for call in (lambda g: plan.submit(g).wait(), plan.run):
        with pytest.raises(RunError) as caught:
            call(row.wrong(good()))
        error = caught.value
        assert error.code == f"run.{row.code}" and row.message in error.message, error
        assert row.remedy in error.remedy and error.place.startswith(__file__), error
    given = row.right(good())
    given["y"][...] = 7
    plan.run(given)
    value = given["x"].array if isinstance(given["x"], t.Buffer) else given["x"]
    assert (given["y"] == 2 * value).all()


@pytest.mark.parametrize("scalar, value, hint", [
    ("n", -1, ""), ("n", 1 << 32, ""), ("n", float("nan"), ""), ("n", -2.5, ""),
    ("n", 3.0, ": int(x)"), ("n", True, ": int(x)"), ("scale", True, ": float(x)"),
    ("scale", Decimal("1e300"), ""), ("scale", 1e300, ""),
])  # fmt: skip
def test_a_number_is_converted_by_its_remedy_if_that_is_enough(plan, scalar, value, hint):
    with pytest.raises(RunError, match=r"run.scalar") as caught:
        plan.run(good() | {scalar: value})
    assert caught.value.remedy == f"pass a {'u32' if scalar == 'n' else 'f32'}{hint}"


def test_all_that_is_wrong_comes_at_once_with_its_line(plan):
    given = good() | {"x": np.ones(3), "n": "many", "Id": 1}
    del given["ids"]
    with pytest.raises(Refused) as caught:
        plan.run(given)
    errors = caught.value.errors
    assert sorted(e.code for e in errors) == [
        "run.dtype", "run.extra", "run.missing", "run.scalar"]  # fmt: skip
    assert all(e.place.startswith(__file__) and e.remedy for e in errors)
    assert any(e.code == "run.extra" and "like it: 'ids'" in e.remedy for e in errors)


def refused(call: Callable[[], object]) -> LanewiseError:
    with pytest.raises(LanewiseError) as caught:
        call()
    return caught.value


def small(b: t.Builder) -> None:
    b.output("y", t.abs(b.input("x", t.f32, (2,))))


def test_wrong_calls_around_plans():
    """Each: the code, and a word of the remedy."""
    rt = runtime()

    def fresh(**options: Any) -> object:
        b = runtime().builder()
        small(b)
        return b.compile(**options)

    calls: dict[str, tuple[Callable[[], object], str, str]] = {
        "a target": (lambda: t.Runtime("gpu"), "usage.target", "cpu"),
        "threads": (lambda: t.Runtime("cpu", threads=0), "run.threads", "from 1"),
        "activations": (lambda: fresh(activations="int4"), "usage.activations", "int8x2"),
        "threads that are text": (lambda: t.Runtime("cpu", threads="4"), "run.threads", "from 1"),
        "half a thread": (lambda: t.Runtime("cpu", threads=2.5), "run.threads", "from 1"),
        "strict": (lambda: t.Runtime("cpu", strict="yes"), "usage.option", "True or False"),
        "threads of a plan": (lambda: fresh(threads=2), "usage.option", "Runtime(threads=2)"),
        "strict plans": (lambda: fresh(strict=True), "usage.option", "Runtime(strict=True)"),
        "an option of no one": (
            lambda: fresh(unroll=2), "usage.option", "activations, hold, naive, max_in_flight"),
        "an option of no one, in a cache": (
            lambda: t.PlanCache(rt).compile(small, threads=2), "usage.option", "Runtime(threads"),
        "a builder of a name": (lambda: t.Builder("x"), "usage.option", 'rt.builder("name")'),
        "a builder's name": (lambda: rt.builder(5), "usage.option", "a string"),
        "a label": (lambda: fresh(label=5), "usage.option", "a string"),
        "no builder": (lambda: rt.compile(small), "usage.option", "rt.builder()"),
        "a cache of nothing": (lambda: t.PlanCache(5), "usage.option", "PlanCache(Runtime"),
        "no recording": (lambda: t.PlanCache(rt).compile(5), "usage.option", "of a builder"),
        "a key of a list": (
            lambda: t.PlanCache(rt).compile(small, key=[1]), "usage.option", "a tuple"),
        "more memory than there is": (
            lambda: rt.buffer("f32", (1 << 50,)), "run.memory", "close other programs"),
        "a dtype of NumPy": (
            lambda: rt.buffer(np.float32, (2,)), "usage.dtype", "write 'f32'"),
        "a dtype that is a list": (lambda: rt.buffer(["f32"], (2,)), "usage.dtype", "f32"),
        "one bucket": (lambda: t.Buckets(5), "usage.buckets", "Buckets([64, 256])"),
        "a seed of text": (lambda: t.Stream("a"), "usage.option", "an integer"),
        "half a step": (lambda: t.Stream(1).draw(0.5), "usage.option", "an integer"),
        "a rule": (lambda: fresh(hold=["fast"]), "usage.hold", "the rules are"),
        "hold": (lambda: fresh(hold=3), "usage.option", "hold=("),
        "naive": (lambda: fresh(naive="yes"), "usage.option", "True or False"),
        "in flight": (lambda: fresh(max_in_flight=0), "usage.option", "from 1"),
        "in flight too": (lambda: fresh(max_in_flight=1.5), "usage.option", "from 1"),
    }  # fmt: skip
    for name, (call, code, remedy) in calls.items():
        error = refused(call)
        assert error.code == code and remedy in error.remedy, (name, error)
        assert error.place.startswith(__file__), (name, error)


def test_wrong_calls_of_plans_and_buffers(plan):
    """Each: the code, and a word of the remedy."""
    rt = runtime()
    calls: dict[str, tuple[Callable[[], object], str, str]] = {
        "bindings": (lambda: plan.run([1, 2]), "run.kind", "plan.submit(x=xs)"),
        "arrays by place": (
            lambda: plan.run(np.ones(3), np.ones(3)), "run.kind", "plan.submit({'x': xs}): x, h"),
        "submitted by place": (
            lambda: plan.submit({}, {}).wait(), "run.kind", "plan.submit(x=xs)"),
        "repack": (lambda: plan.repack("nothing"), "run.extra", "it has: x, h"),
        "a buffer's dtype": (lambda: rt.buffer("f99", (2,)), "usage.dtype", "f32"),
        "a buffer's shape": (lambda: rt.buffer("f32", (0, 2)), "usage.shape", "positive"),
        "no program": (
            lambda: runtime().builder().compile(), "graph.empty", "b.output"),
        "buckets": (lambda: t.Buckets([64]).for_(65), "usage.buckets", "larger bucket"),
        "a bucket of text": (lambda: t.Buckets([64]).for_("a"), "usage.buckets", "integer"),
        "pool": (lambda: t.BlockPool(2, 0), "usage.pool", "positive"),
        "pages": (lambda: t.BlockPool(2).free([0]), "usage.pool", "what grow gave"),
        "no pages": (lambda: t.BlockPool(2).free(5), "usage.pool", "the list that grow gave"),
        "too many pages": (lambda: t.BlockPool(2).grow(None, 200), "run.pool_empty", "free"),
        "the reference's plan": (
            lambda: compile(step, "reference").memory, "run.reference", 'Runtime("cpu")'),
    }  # fmt: skip
    for name, (call, code, remedy) in calls.items():
        error = refused(call)
        assert error.code == code and remedy in error.remedy, (name, error)
        assert error.place.startswith(__file__), (name, error)


def test_arrays_that_are_prepared_outside_of_plans():
    """What makes and reads bound bytes refuses by name too."""
    pages = np.zeros((128, 2, 8), np.float32)
    nan = np.full((2, 32), np.nan, np.float32)
    calls: dict[str, tuple[Callable[[], object], str, str]] = {
        "columns": (lambda: t.quantize_int8(np.ones((2, 40))), "usage.weights", "multiple of 32"),
        "a vector": (lambda: t.quantize_int8(np.ones(32)), "usage.weights", "[N, K]"),
        "too large": (lambda: t.quantize_int8(np.full((1, 32), 1e9)), "usage.weights", "scale"),
        "nan": (lambda: t.quantize_int8(nan), "usage.weights", "finite"),
        "nan in 4 bits": (lambda: t.quantize_int4(nan), "usage.weights", "finite"),
        "ragged rows": (
            lambda: t.quantize_int8([[1.0], [1, 2]]), "usage.weights", "an array of finite"),
        "pages of no dtype": (lambda: t.to_pages(pages, "pages/k", "f99"), "usage.layout", "q8_0"),
        "pages of a narrow head": (
            lambda: t.to_pages(pages, "pages/k", "q8_0"), "usage.layout", "multiple of 32"),
        "nothing in pages": (lambda: t.to_pages(None, "pages/k", "q8_0"), "usage.layout", "array"),
        "no bytes": (
            lambda: t.from_pages(pages, "pages/k", "q8_0"), "usage.layout", "width / 32 * 34"),
        "angles of half a position": (lambda: t.rope_table(2.5, 8), "usage.rope", "from 1"),
        "angles of nothing": (lambda: t.rope_table(-1, 8), "usage.rope", "from 1"),
        "a base of text": (lambda: t.rope_table(2, 8, base="a"), "usage.rope", "a float"),
        "a base of 0": (lambda: t.rope_table(2, 8, base=0), "usage.rope", "above 0"),
        "factors of text": (lambda: t.rope_table(2, 8, factors="a"), "usage.rope", "4 positive"),
        "both that rope_factors gives": (
            lambda: t.rope_table(2, 8, factors=t.rope_factors("linear", 8, factor=2.0)),
            "usage.rope", "magnitude=magnitude"),
        "no factor": (
            lambda: t.rope_factors("yarn", 8, factor=None), "usage.rope", "a float"),
        "text": (lambda: t.quantize_int4("w"), "usage.weights", "finite"),
        "rows": (lambda: t.to_pages(pages, "rows"), "usage.layout", "pages/k"),
        "no layout": (lambda: t.from_pages(pages, "pages/q"), "usage.layout", "pages/k"),
        "part of a page": (lambda: t.to_pages(pages[:100], "pages/k"), "usage.layout", "64"),
        "a list": (lambda: t.from_pages([1, 2], "pages/v"), "usage.layout", "an array"),
    }  # fmt: skip
    for name, (call, code, remedy) in calls.items():
        error = refused(call)
        assert error.code == code and remedy in error.remedy, (name, error)
        assert error.place.startswith(__file__), (name, error)


def test_a_busy_plan_names_itself_and_what_to_do():
    with t.Runtime("cpu", threads=1) as rt:
        b = rt.builder("busy")
        y = x = b.input("x", t.f32, (512, 512))
        for _ in range(4):
            y = t.matmul(y, x)
        b.output("y", y)
        x, y = np.eye(512, dtype=np.float32), np.zeros((512, 512), np.float32)
        with b.compile() as plan:
            fence = plan.submit(x=x, y=y)
            for call, remedy in ((lambda: plan.run(x=x, y=y), "max_in_flight=2"),
                                 (plan.close, "then close"), (plan.repack, "wait")):  # fmt: skip
                error = refused(call)
                assert error.code == "run.busy" and remedy in error.remedy
                assert "'busy'" in error.message and error.place.startswith(__file__)
            error = refused(lambda: fence.wait("long"))  # type: ignore[arg-type]
            assert error.code == "usage.option" and error.place.startswith(__file__)
            error = refused(lambda: fence.wait(0))
            assert error.code == "run.timeout" and error.place.startswith(__file__)
            error = refused(rt.close)
            assert error.code == "run.open_plans" and "busy" in error.message
            fence.wait()
        error = refused(lambda: plan.run(x=x, y=y))
        assert error.code == "run.closed" and "compile" in error.remedy


def test_submissions_in_flight_share_only_what_none_writes():
    x = np.eye(1024, dtype=np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    with compile(products(1024, 3), max_in_flight=2) as plan:
        first = plan.submit(x=x, y=y)
        for given, words in (({"x": x, "y": y}, "'y' shares bytes with 'y'"),
                             ({"x": y, "y": z}, "'x' shares bytes with 'y'"),
                             ({"x": z, "y": x}, "'y' shares bytes with 'x'")):  # fmt: skip
            error = refused(lambda given=given: plan.submit(given).wait())
            assert error.code == "run.overlap" and words in error.message, error
            assert "wait for its fence" in error.remedy and error.place.startswith(__file__)
        second = plan.submit(x=x, y=z)
        first.wait()
        second.wait()
        assert (y == x).all() and (z == x).all()
        plan.submit(x=y, y=z).wait()  # the remedy, taken


def test_a_policy_says_which_option():
    error = refused(t.SamplingOptions(top_p=2.0).validate)
    assert isinstance(error, UsageError) and error.place == "top_p" and "up to 1" in error.remedy
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency"):
        for value in ("hot", None, True):
            error = refused(t.SamplingOptions(**{name: value}).validate)
            assert isinstance(error, UsageError) and error.place == name and error.remedy
    error = refused(lambda: t.SamplingOptions(temperature=1.0).scalars("", "a", 5))  # type: ignore
    assert error.code == "usage.option" and error.place == "n" and "min(" in error.remedy
    t.SamplingOptions(temperature=np.float32(0.5), top_k=np.int64(3)).validate()


def test_numbers_of_numpy_count_pages():
    assert t.BlockPool(np.int64(4)).grow(None, np.int64(65)) == [0, 1]
    assert t.Stream(np.uint64(7)).draw(np.int64(3)) == t.Stream(7).draw(3)
