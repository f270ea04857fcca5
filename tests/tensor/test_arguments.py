"""Every argument of every function that records, replaced by what a user might give instead.

Whatever comes: nothing but our own errors, each with a code, the caller's line and a remedy; one
mistake gives one refusal (to each builder that is concerned); nothing is poisoned in silence.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import GraphError, LanewiseError
from lanewise.ir.graph import Type
from tests.tensor.calls import calls, recording_functions
from tests.tensor.support import runtime

FUNCTIONS = recording_functions()


def junk(b: t.Builder, other: t.Builder) -> dict[str, Any]:
    return {
        "none": None, "five": 5, "negative": -3, "real": 2.5, "nan": float("nan"), "true": True,
        "huge": 2**80, "text": "junk", "array": np.ones((4, 8), np.float32), "list": [1, 2],
        "texts": ("a",), "dict": {}, "object": object(), "numpy": np.int64(1),
        "state": b.state("junk.state", t.f32, (3, 4)),
        "tensor": b.input("junk.tensor", t.f32, (3, 5, 7)),
        "words": b.input("junk.words", t.u32, (3,)),
        "half": b.input("junk.half", t.f16, (4, 8)),
        "strided": t.transpose(b.input("junk.strided", t.f32, (8, 4))),
        "foreign": other.input("o", t.f32, (4, 8)),
        "poison": t.Tensor(b, None, Type("f32", (1,))),
        "quantized": t.quantized(b, "junk.quantized", (2, 32)),
    }  # fmt: skip


JUNK = tuple(junk(runtime().builder(), runtime().builder()))


def replaced(name: str, slot: int | str, kind: str) -> tuple[Any, list[LanewiseError], list[Any]]:
    """(results or None, what was refused, to whom) of a call with one argument replaced."""
    b, other = runtime().builder(), runtime().builder()
    values, options = calls(b)[name]
    args, kwargs, given = list(values), dict(options), junk(b, other)[kind]
    if isinstance(slot, int):
        args[slot] = given
    else:
        kwargs[slot] = given
    try:
        made = FUNCTIONS[name](*args, **kwargs)
    except LanewiseError as error:
        return None, [error], [b]
    made = made if isinstance(made, tuple) else (made,)
    owners = [x for x in (b, other) if x.errors()]
    return made, [e for x in owners for e in x.errors()], owners


def slots(name: str) -> list[int | str]:
    values, options = calls(runtime().builder())[name]
    given = list(inspect.signature(FUNCTIONS[name]).parameters)
    rest = [n for n in given[len(values) :] if n not in options and name != "permute"]
    return [*range(len(values)), *options, *rest]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_of_another_kind_is_one_refusal(name):
    b = runtime().builder()
    values, options = calls(b)[name]
    FUNCTIONS[name](*values, **options)
    assert b.errors() == ()
    for slot in slots(name):
        for kind in JUNK:
            made, errors, owners = replaced(name, slot, kind)
            where = f"{name}, {slot}: {kind}: {errors}"
            assert len(errors) <= max(1, len(owners)), where
            for error in errors:
                assert isinstance(error, GraphError) and error.code.startswith("graph."), where
                assert error.remedy and error.place.startswith(__file__), where
                assert len(error.message) < 400, where
            if kind != "poison" and made is not None and not errors:
                assert not any(getattr(x, "poisoned", False) for x in made), where


def test_nobody_can_collect_without_a_builder():
    for call in (lambda: t.add(np.ones(3), 2), lambda: t.silu(None), lambda: t.int4(3, "w", 8, 8)):
        with pytest.raises(GraphError) as caught:
            call()
        assert caught.value.code == "graph.operand" and "b.input" in caught.value.remedy
        assert caught.value.place.startswith(__file__)


def test_both_builders_are_told_of_a_tensor_that_is_not_theirs():
    b, other = runtime().builder(), runtime().builder()
    mine, theirs = b.input("x", t.f32, (3,)), other.input("y", t.f32, (3,))
    for made in (t.add(theirs, mine), mine * theirs):
        assert made.poisoned
    assert [e.code for e in b.errors()] == [e.code for e in other.errors()] == [
        "graph.foreign", "graph.foreign"]  # fmt: skip


def test_numbers_of_numpy_are_numbers():
    """And give the same recording as Python's."""
    one, two = runtime().builder(), runtime().builder()
    for b, whole, real in ((one, int, float), (two, np.int64, np.float64)):
        x = b.input("x", t.f32, (whole(4), 8))
        x = t.slice(t.rms_norm(x, b.weight("g", t.f32, (8,)), real(1e-5)), 0, whole(1), whole(3))
        b.output("y", t.reshape(t.contiguous(x), [whole(4), whole(4)]))
    assert one.errors() == two.errors() == () and one.identity() == two.identity()


def test_arrays_of_numpy_leave_the_operators_to_tensors():
    b = runtime().builder()
    x = b.input("x", t.f32, (4,))
    made = np.ones(4, np.float32) * x
    assert isinstance(made, t.Tensor) and made.poisoned
    assert "b.constant" in b.errors()[0].remedy
    with pytest.raises(GraphError, match="no value") as caught:
        bool(x)
    assert caught.value.code == "graph.value" and caught.value.remedy
    assert x[1:2].poisoned and "t.slice" in b.errors()[-1].remedy
