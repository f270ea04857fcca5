"""Refusals at record time: one mistake gives one, at the author's line, with what to do."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

from lanewise import tensor as t
from lanewise.errors import GraphError, Refused
from lanewise.ir.opdef import apply, ops
from lanewise.pipeline import Options, compile_forms
from tests.tensor.refusals import ROWS
from tests.tensor.support import compile, refusals, runtime

FILES = ("refusals", "refusals_layers", "refusals_words", "wrong")


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_one_bad_op_and_ten_consumers_give_one_refusal_with_its_line():
    line = 0

    def record(b: t.Builder) -> None:
        nonlocal line
        x, y = b.input("x", t.f32, (4, 8)), b.input("y", t.f16, (4, 8))
        h, line = t.add(x, y), here()
        for _ in range(10):
            h = t.silu(h) * x
        b.output("h", h)

    (error,) = refusals(record)
    assert error.code == "graph.dtype" and "add: b" in error.message and "cast" in error.remedy
    assert error.place == f"{__file__}:{line}"


def test_compile_raises_all_of_them():
    def record(b: t.Builder) -> None:
        x = b.input("x", t.f32, (4, 8))
        t.reshape(x, (5, 5))
        t.rms_norm(x, b.weight("g", t.f32, (8,)), 0.0)
        b.output("y", t.slice(x, 1, 3, 9))

    with pytest.raises(Refused) as caught:
        compile(record)
    assert [e.code for e in caught.value.errors] == [
        "graph.shape", "graph.attribute", "graph.attribute"
    ]  # fmt: skip
    assert all(e.place.startswith(__file__) for e in caught.value.errors)


def test_a_builder_that_was_refused_says_that_it_keeps_that():
    b = runtime().builder("mlp")
    x = b.input("x", t.f32, (4, 8))
    b.output("y", t.reshape(x, (5, 5)))
    with pytest.raises(GraphError, match="32 elements"):
        b.compile()
    b.output("y", t.reshape(x, (8, 4)))  # as in a notebook
    with pytest.raises(Refused) as caught:
        b.compile()
    assert [e.code for e in caught.value.errors] == ["graph.shape", "graph.refused"]
    assert "rt.builder()" in caught.value.errors[1].remedy
    assert caught.value.errors[1].place.startswith(__file__)


def _x(b: t.Builder, *shape: int, name: str = "x") -> t.Tensor:
    return b.input(name, t.f32, shape)


@pytest.mark.parametrize("name", ROWS)
def test_a_wrong_program_is_refused_once_and_the_remedy_compiles(name):
    row = ROWS[name]
    (error,) = refusals(row.wrong)
    assert error.code == f"graph.{row.code}", error
    assert row.message in error.message and row.remedy in error.remedy, error
    assert Path(error.place.split(":")[0]).stem in FILES, error
    b = runtime().builder("right")
    row.right(b)
    program, _ = compile_forms({"main": b.graph()}, Options())
    assert program.text


def _sites() -> set[tuple[str, int, int]]:
    """(file, first line, last line) of every call that refuses in the layer's source."""
    found = set()
    for path in sorted(Path(t.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "attr", "")
            if isinstance(node, ast.Call) and name == "refuse":
                found.add((path.name, node.lineno, node.end_lineno or node.lineno))
    return found


def test_the_table_walks_every_place_that_refuses(monkeypatch):
    """A refusal that is written without a row here, and so without a fix that is known to
    compile, fails this."""
    met: set[tuple[str, int]] = set()
    plain = t.Builder.refuse

    def refuse(self: t.Builder, *args: str, **kwargs: str) -> None:
        frame = inspect.currentframe()
        while frame is not None:
            met.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
            frame = frame.f_back
        plain(self, *args, **kwargs)

    monkeypatch.setattr(t.Builder, "refuse", refuse)
    for row in ROWS.values():
        refusals(row.wrong)
    other = runtime().builder()
    for foreign in (lambda b: t.add(_x(b, 4), _x(other, 4, name="a")),
                    lambda b: _x(b, 4) + _x(other, 4, name="b"),
                    lambda b: b.output("y", _x(other, 4, name="c"))):  # fmt: skip
        assert [e.code for e in refusals(foreign)] == ["graph.foreign"]
    lost = [s for s in _sites() if not any(f == s[0] and s[1] <= n <= s[2] for f, n in met)]
    assert lost == [], sorted(lost)


def test_every_refusal_of_the_registry_says_what_to_do():
    """Each op's own bad calls, found by walking the registry."""
    for op in ops().values():
        for bad in op.bad:
            with pytest.raises(GraphError) as caught:
                apply(op.name, bad.types, bad.attrs)
            assert caught.value.code == bad.code and caught.value.remedy, (op.name, bad)


def test_a_missing_argument_is_noticed_before_poison():
    def record(b: t.Builder) -> None:
        poison = t.add(_x(b, 4), _x(b, 5, name="y"))
        t.gather_rows(poison, None)

    assert [e.code for e in refusals(record)] == ["graph.shape", "graph.missing_operand"]


def test_a_superseded_state_is_refused_and_says_how_far_behind():
    lines: list[int] = []

    def record(b: t.Builder) -> None:
        s0 = b.state("s", t.f32, (2, 8, 4))
        ids, rows = b.input("ids", t.u32, (3,)), _x(b, 3, 4)
        first = t.layer_state(s0, 0)
        other = t.layer_state(s0, 1)
        s1 = t.scatter_rows(first, rows, ids)
        s2 = t.scatter_rows(s1, rows, ids)
        lines.append(here() - 1)
        t.read_state(other)  # other bytes: fine
        t.read_state(s2)
        t.read_state(first)
        t.scatter_rows(s1, rows, ids)
        t.read_state(s0)

    found = refusals(record)
    assert [e.code for e in found] == ["graph.stale_state"] * 3
    behind = ["2 writes behind", "1 write behind", "2 writes behind"]
    for error, words in zip(found, behind, strict=True):
        assert words in error.message and f"{__file__}:{lines[0]}" in error.message


def test_a_superseded_state_names_the_function_that_wrote_it():
    def record(b: t.Builder) -> None:
        k = b.state("k", t.f32, (64, 1, 8))
        at = {n: b.input(n, t.u32, (1,)) for n in ("slots", "positions")}
        t.kv_write(k, _x(b, 1, 1, 8), table=b.input("table", t.u32, (1, 1)), **at)
        t.read_state(k)

    (error,) = refusals(record)
    assert error.code == "graph.stale_state" and "kv_write" in error.message
    assert "kv_write" in error.remedy and "scatter_rows" not in f"{error.message}{error.remedy}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("given, want", [
    (0.1, np.float32(0.1)), ([1.5, 0.1], np.float32([1.5, 0.1])), (7, np.uint32(7)),
    (np.array([2**32 - 1]), np.uint32([2**32 - 1])), ([1e-300], np.float32([0])),
    (np.array([0.5, np.inf, np.nan]), np.float32([0.5, np.inf, np.nan])),
])  # fmt: skip
def test_a_constant_that_fits_is_taken(given, want):
    b = runtime().builder()
    b.constant(given, "c")
    held = b.values["constant.c"]
    assert b.errors() == () and held.dtype == want.dtype
    np.testing.assert_array_equal(held, np.atleast_1d(want))


def test_a_weight_of_a_product_serves_products_and_gathers():
    def record(b: t.Builder) -> None:
        w = b.weight("w", t.f32, (8, 4))
        b.output("y", t.linear(_x(b, 3, 4), w))
        b.output("z", w + w)

    with pytest.raises(Exception, match="second weight") as caught:
        compile(record)
    assert caught.value.code == "graph.weight_use"


def test_a_state_is_k_or_v_and_is_not_read_as_rows():
    def attend(b: t.Builder, k: t.State, v: t.State) -> None:
        lengths = b.input("n", t.u32, (1,))
        b.output("y", t.attention(_x(b, 1, 4), k, v, lengths=lengths))

    def both(b: t.Builder) -> None:
        k = b.state("k", t.f32, (64, 1, 4))
        attend(b, k, k)

    def read(b: t.Builder) -> None:
        k = b.state("k", t.f32, (64, 1, 4))
        attend(b, k, b.state("v", t.f32, (64, 1, 4)))
        b.output("r", t.read_state(k))

    for record in (both, read):
        with pytest.raises(Exception, match="state_layout"):
            compile(record)


def test_the_remedies_compile():
    def record(b: t.Builder) -> None:
        x, h = _x(b, 4, 8), b.input("h", t.f16, (4, 8))
        b.output("a", t.add(x, t.cast(h, t.f32)))
        b.output("s", t.softmax(t.contiguous(t.transpose(x))))
        b.output("c", x * b.constant(2.0))
        b.output("v", t.reshape(x, (32,)))  # an output that is a view is copied
        b.output("w", x)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 8)).astype(np.float32)
    with compile(record) as plan:
        made = {p.name: np.zeros(p.shape, np.float32) for p in plan.ports if p.kind == "output"}
        plan.run(x=x, h=x.astype(np.float16), **made)
    assert (made["c"] == 2 * x).all() and (made["v"] == x.reshape(-1)).all()
    assert (made["w"] == x).all() and (made["a"] == x + x.astype("f2").astype("f4")).all()
    e = np.exp(x.T.astype(np.float64))
    assert np.abs(made["s"] - e / e.sum(-1, keepdims=True)).max() < 1e-6


def test_a_recording_that_gives_nothing():
    with pytest.raises(Exception, match="no output") as caught:
        compile(lambda b: _x(b, 4) + _x(b, 4, name="y"))
    assert caught.value.code == "graph.empty"


def test_contiguous_and_cast_are_the_identity_where_nothing_is_to_do():
    b = runtime().builder()
    x = b.input("x", t.f32, (4, 8))
    assert t.contiguous(x) is x and t.cast(x, "f32") is x and t.permute(x, 0, 1) is x
    assert t.slice(x, 0, 0, 4) is x and t.broadcast(x, (4, 8)) is x
    assert not t.slice(x, 0, 1, 3).strided and t.slice(x, 1, 1, 3).strided
