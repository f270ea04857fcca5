"""What newcomers write out of habit with NumPy and torch, where no refusal can be collected; and
what of it simply works.  (What can is a row of `refusals`.)
"""

from __future__ import annotations

import copy
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import GraphError, LanewiseError, UsageError
from lanewise.tensor import habits
from tests.tensor.support import compile, run, runtime


def recorded(dtype: Any = t.f32) -> tuple[t.Builder, t.Tensor]:
    b = runtime().builder("habits")
    return b, b.input("x", dtype, (4, 8))


RAISED: dict[str, tuple[Callable[[t.Tensor], object], str, str]] = {
    "an array of it": (np.asarray, "value", "b.output(name, x), run the plan"),
    "an array of several": (lambda x: np.array([x, x]), "value", "b.output"),
    "its truth": (bool, "value", "Python numbers"),
    "a choice by a comparison": (lambda x: 1 if x > 0 else 2, "value", "Python numbers"),
    "a number of it": (float, "value", "b.output"),
    "an integer of it": (int, "value", "b.output"),
    "an index of it": (lambda x: [1, 2][x], "value", "b.output"),  # type: ignore[call-overload]
    "a range of it": (lambda x: range(x), "value", "b.output"),  # type: ignore[call-overload]
    "its length": (len, "value", "x.shape[0]"),
    "its items": (list, "value", "t.slice(x, 0, i, i + 1)"),
    "several names for it": (lambda x: operator.call(lambda *a: a, *x), "value", "t.slice"),
    "its sum": (lambda x: x.sum(), "attribute", "write t.reduce_sum(x)"),
    "its mean": (lambda x: x.mean(-1), "attribute", "t.reduce_sum(x) * b.constant(1 / x.shape"),
    "its transpose": (lambda x: x.T, "attribute", "t.transpose(x)"),
    "another shape of it": (lambda x: x.reshape(32), "attribute", "t.reshape(x, shape)"),
    "a view of it": (lambda x: x.view(-1), "attribute", "t.reshape(x, shape)"),
    "another dtype of it": (lambda x: x.astype("f2"), "attribute", "write t.cast(x, 'f16')"),
    "a half of it": (lambda x: x.half(), "attribute", "write t.cast(x, 'f16')"),
    "it and another in one": (lambda x: x.concat(x), "attribute", "no op joins tensors: give"),
    "a parameter of the builder": (lambda x: x.builder.parameter("w"), "attribute",
                                   "write b.weight(name, dtype, shape)"),
    "an input of the runtime": (lambda x: x.builder.runtime.input("x"), "attribute",
                                "write b.input(name, dtype, shape), b = rt.builder()"),
    "an op as a method": (lambda x: x.exp(), "attribute", "write t.exp(x)"),
    "an op with arguments": (lambda x: x.rms_norm(), "attribute", "t.rms_norm(x, gain, eps)"),
    "an op with keywords": (lambda x: x.ragged_rows(), "attribute",
                            "t.ragged_rows(lengths, extents, rows=rows, reach=reach)"),
    "its numbers": (lambda x: x.numpy(), "attribute", "b.output(name, x)"),
    "an op of the builder": (lambda x: x.builder.relu(x), "attribute", "write t.relu(x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_what_must_be_a_number_or_is_no_method_is_raised_at_its_line(name):
    call, code, remedy = RAISED[name]
    _, x = recorded()
    with pytest.raises(GraphError) as caught:
        call(x)
    error = caught.value
    assert error.code == f"graph.{code}" and remedy in error.remedy, error
    assert error.place.startswith(__file__), error


def test_a_call_that_does_not_fit_says_how_to_call():
    _, x = recorded()
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: t.softmax(x, dim=-1), "softmax(x, axis=-1, *, scale_name=None, mask=None)"),
        (lambda: t.reshape(x, 8, 4), "reshape(x, shape)"),  # type: ignore[call-arg]
        (lambda: t.rms_norm(x), "rms_norm(x, gain, eps)"),  # type: ignore[call-arg]
        (lambda: t.reduce_sum(x, axis=0), "reduce_sum(x)"),  # type: ignore[call-arg]
        (lambda: t.reduce_sum(x, axis=0), _LAST),  # type: ignore[call-arg]
        (lambda: t.reduce_sum(x, 0), _LAST),  # type: ignore[call-arg]
        (lambda: t.argmax(x, dim=-1), "argmax(logits); it takes the last"),  # type: ignore
    )
    for call, words in calls:
        with pytest.raises(TypeError) as caught:
            call()
        assert f"it is called as {words}" in str(caught.value)


_LAST = ("reduce_sum(x); it takes the last axis alone: "
         "t.reduce_sum(t.contiguous(t.transpose(x)))")  # fmt: skip


def test_a_name_that_nobody_knows_is_an_attribute_error():
    b, x = recorded()
    for owner in (b, x, b.state("s", t.f32, (4, 8))):
        for name in ("nope", "__dlpack__", "__array_interface__", "_x", "sum", "exp"):
            assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match="'nope'") as caught:
            owner.nope  # noqa: B018
        assert not isinstance(caught.value, LanewiseError)


def test_handles_are_equal_if_they_are_one_object():
    b, x = recorded()
    z, s = b.input("z", t.f32, (4, 8)), b.state("s", t.f32, (4, 8))
    assert x == x and x != z and z in (x, z) and x not in (z,) and x != "x"
    assert len({x: 1, z: 2, s: 3}) == 3 and s == s and s != x and b.errors() == ()


def test_what_has_one_meaning_works():
    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (4, 8))
        b.output("square", x**2)
        b.output("real", x**2.0)
        b.output("abs", abs(x))
        b.output("sum", np.add(x, x))

    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    with compile(record) as plan:
        made = run(plan, x=x)
    want = {"square": x * x, "real": x * x, "abs": np.abs(x), "sum": x + x}
    for name, value in want.items():
        assert (made[name] == value).all(), name


def test_a_copy_of_a_handle_is_the_handle():
    b, x = recorded()
    s = b.state("s", t.f32, (4, 8))
    assert copy.copy(x) is x and copy.deepcopy({"x": [x, s]}) == {"x": [x, s]}


def test_what_belongs_to_this_process_is_not_pickled():
    b, x = recorded()
    b.output("y", t.abs(x))
    rt = runtime()
    with b.compile() as plan, t.PlanCache(rt) as cache:
        y = np.zeros((4, 8), np.float32)
        fence = plan.submit(x=y + 1, y=y)
        fence.wait()
        things = {
            "Tensor": x, "Builder": b, "Plan": plan, "Runtime": rt, "PlanCache": cache,
            "Fence": fence, "BlockPool": t.BlockPool(2), "Buffer": rt.buffer(t.f32, (2,)),
        }  # fmt: skip
        for name, thing in things.items():
            for call in (pickle.dumps, copy.copy) if name != "Tensor" else (pickle.dumps,):
                with pytest.raises(UsageError, match=f"a {name} belongs to this process") as caught:
                    call(thing)
                assert caught.value.code == "usage.pickle" and caught.value.remedy
                if call is pickle.dumps:  # copy.py is a caller of its own
                    assert caught.value.place.startswith(__file__)
    assert pickle.loads(pickle.dumps(t.SamplingOptions(top_k=3))).top_k == 3


def test_the_package_names_what_is_public_and_hints_at_the_rest():
    assert dir(t) == sorted(t.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'mean'; write t.reduce_sum\(x\)"):
        t.mean  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nope'$"):
        t.nope  # noqa: B018
    hints = {
        "input": "write b.input(name, dtype, shape), b = rt.builder()", "dropout": "write x itself",
        "concat": "; no op joins tensors", "ones": "write b.constant(np.ones(shape, np.float32))",
        "full": "np.full(shape", "zeros_like": "np.zeros(x.shape,", "Parameter": "write b.weight(",
    }  # fmt: skip
    for name, words in hints.items():
        with pytest.raises(AttributeError, match=re.escape(words)) as caught:
            getattr(t, name)
        assert f"no attribute {name!r}; {'write' if name != 'concat' else 'no op'} " in str(caught)
    for name in ("nope", "_x", "__array__"):
        assert not hasattr(runtime(), name)


def test_every_hint_names_functions_that_there_are():
    for name in habits._INSTEAD:
        words = habits.instead(name).replace("(", " ").replace(",", " ").split()
        for word in (w.lstrip("-") for w in words):
            if word.startswith("t."):
                assert hasattr(t, word[2:]), (name, word)


def test_the_same_constant_again_is_the_same_tensor():
    b, _ = recorded()
    one, two = b.constant([1.0, 2.0], "c"), b.constant(np.float32([1, 2]), "c")
    assert one.ref == two.ref and b.errors() == ()
