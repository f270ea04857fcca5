"""The interpreter: live rows, states, bindings; a decoder's layer against plain NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.errors import GraphError, Refused
from lanewise.ir.graph import Graph
from lanewise.ir.interp import interpret
from lanewise.ir.text import parse_graph
from lanewise.ir.values import ActArray, value_type
from tests.ir.graphs import ROWS, bind, graphs

SPECS = Path(__file__).parents[1] / "specs"


def bits(value: Any) -> bytes:
    if isinstance(value, ActArray):
        return value.v.tobytes() + value.scale.tobytes()
    return value.tobytes()


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 2**31), st.integers(0, ROWS))
def test_dead_rows_change_nothing(graph: Graph, seed: int, live: int) -> None:
    """What the rows past the count hold is never seen: not in a live row, not in a state."""
    values = bind(graph, np.random.default_rng(seed))
    first = interpret(graph, values, {"rows": live})
    for _, node in graph.roots("input"):
        if node.attr("live"):
            values[node.name] = values[node.name].copy()
            values[node.name][live:] = 77
    second = interpret(graph, values, {"rows": live})
    for name, value in first.outputs.items():
        assert bits(second[name]) == bits(value)
        ref = dict(graph.outputs)[name]
        if graph.live[ref]:
            assert not value[live:].any()
    for name, value in first.states.items():
        assert bits(second.states[name]) == bits(value)


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(0, 2**31))
def test_results_have_their_types_and_arguments_are_kept(graph: Graph, seed: int) -> None:
    values = bind(graph, np.random.default_rng(seed))
    before = {n: bits(v) for n, v in values.items() if isinstance(v, np.ndarray)}
    result = interpret(graph, values)
    for name, ref in graph.outputs:
        assert value_type(result[name]) == graph.type(ref)
    assert all(bits(values[n]) == b for n, b in before.items())


def test_a_write_is_seen_through_its_version_and_in_the_state() -> None:
    graph = parse_graph("""graph g
    %p: u32[1,1] = input "p"
    %s: u32[1] = input "s"
    %q: u32[1] = input "q"
    %x: f32[1,1,2] = input "x"
    %k: f32[2,64,1,2] = state "k"
    %k1 = layer %k (index=1)
    %before = slice %k1 (starts=[5,0,0], stops=[6,1,2])
    %w = kv_write %k1 %x %p %s %q
    %after = slice %w (starts=[5,0,0], stops=[6,1,2])
    output "before" %before
    output "after" %after
    """)
    zero = np.zeros(1, np.uint32)
    x = np.array([[[3, 4]]], np.float32)
    k = np.ones((2, 64, 1, 2), np.float32)
    values = {"p": zero[None], "s": zero, "q": zero + 5, "x": x, "k": k}
    result = interpret(graph, values)
    assert result["before"].tolist() == [[[1, 1]]]  # a copy of what was there
    assert result["after"].tolist() == x.tolist()
    want = k.copy()
    want[1, 5] = x[0]
    assert (result.states["k"] == want).all() and (k == 1).all()


def test_bindings_are_checked_together() -> None:
    graph = parse_graph("""graph g
    %n: u32[1] = scalar "n"
    %x: f32[3,2] = input "x" (live="n")
    %y: f32[3,2] = input "y" (live="n")
    %z: q8_0[2,32] = weight "z"
    %s = add %x %y
    output "s" %s
    """)
    x = np.ones((3, 2), np.float32)
    with pytest.raises(Refused) as caught:
        interpret(graph, {"x": x.astype(np.float64), "z": x}, {"n": 4})
    assert [e.code for e in caught.value.errors] == ["graph.binding"] * 4
    with pytest.raises(GraphError) as single:
        interpret(graph, {"x": x[:2], "y": x, "z": _q8(2)})
    assert single.value.code == "graph.binding" and "f32[2,2]" in single.value.message
    result = interpret(graph, {"x": x, "y": x, "z": _q8(2), "n": np.array([2], np.uint32)})
    assert result["s"].tolist() == [[2, 2], [2, 2], [0, 0]]


def _q8(rows: int) -> Any:
    from lanewise.ir.ops.contract import quantised_matrix

    return quantised_matrix(np.random.default_rng(0), "q8_0", rows, 32)


def test_products_run_on_one_thread_and_the_number_comes_back() -> None:
    from lanewise.ir import blas

    found = blas._threads()
    if found is None:
        pytest.skip("NumPy without its own OpenBLAS")
    get, put = found
    before = get()
    try:
        put(2)
        with pytest.raises(RuntimeError), blas.one_thread():
            assert get() == 1
            raise RuntimeError
        assert get() == 2
    finally:
        put(before)


def test_illegal_graphs_are_not_run() -> None:
    graph = parse_graph('graph g\n%x: f32[3] = input "x"\n%y: f32[4] = neg %x')
    with pytest.raises(GraphError) as caught:
        interpret(graph, {"x": np.zeros(3, np.float32)})
    assert caught.value.code == "graph.type"


def rms(x: Any, gain: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def turn(x: Any, positions: Any, table: Any, pairs: str) -> Any:
    d = x.shape[-1]
    half = d // 2
    index = np.arange(d).reshape(2, half) if pairs == "half" else np.arange(d).reshape(half, 2).T
    z = x[..., index[0]] + 1j * x[..., index[1]]
    turns = table[positions, :half] + 1j * table[positions, half:]
    z = z * turns[:, None, :]
    y = np.empty_like(x)
    y[..., index[0]], y[..., index[1]] = z.real, z.imag
    return y


def layer_by_hand(v: dict[str, Any], tokens: Any) -> Any:
    """The layer of tests/specs/layer.txt over one whole sequence, in float64 NumPy."""

    def w(name: str) -> Any:
        value = v[f"{name}.weight"]
        return (value if isinstance(value, np.ndarray) else value.decode()).astype(np.float64)

    def h(x: Any) -> Any:
        return x.astype(np.float16).astype(np.float64)  # the cache's dtype

    n = len(tokens)
    at = np.arange(n)
    table = v["rope"].astype(np.float64)
    x = w("token_embd")[tokens]
    y = rms(x, w("blk.0.attn_norm"))
    q = rms((y @ w("blk.0.attn_q").T).reshape(n, 4, 8), w("blk.0.attn_q_norm"))
    q = turn(q, at, table, "half")
    k = h(turn((y @ w("blk.0.attn_k").T).reshape(n, 2, 8), at, table, "interleaved"))
    u = h((y @ w("blk.0.attn_v").T).reshape(n, 2, 8))
    out = np.zeros((n, 4, 8))
    for r in range(n):
        for head in range(4):
            score = k[: r + 1, head // 2] @ q[r, head] * 8**-0.5
            p = np.exp(score - score.max())
            out[r, head] = p / p.sum() @ u[: r + 1, head // 2]
    x = x + out.reshape(n, 32) @ w("blk.0.attn_output").T
    y = rms(x, w("blk.0.ffn_norm"))
    gate, up = y @ w("blk.0.ffn_gate").T, y @ w("blk.0.ffn_up").T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w("blk.0.ffn_down").T
    return x @ w("token_embd").T


def test_a_layer_in_chunks_equals_numpy() -> None:
    """A prompt of 70 in ragged chunks of at most 4 through the cache, over page borders."""
    graph = parse_graph((SPECS / "layer.txt").read_text())
    rng = np.random.default_rng(11)
    values = bind(graph, rng)
    values["pages"] = np.array([[3, 1], [0, 2]], np.uint32)
    tokens = rng.integers(0, 96, 70, np.uint32)
    want = layer_by_hand(values, tokens)
    at, step = 0, 0
    while at < len(tokens):
        n = min(1 + step % 4, len(tokens) - at)
        step += 1
        for name, row in (("tokens", tokens[at : at + n]), ("positions", np.arange(at, at + n))):
            values[name] = np.concatenate([row, np.zeros(4 - n)]).astype(np.uint32)
        values["slots"] = np.zeros(4, np.uint32)
        values["out_rows"] = np.array([n - 1, 0], np.uint32)
        result = interpret(graph, values, {"rows": n, "outs": 1})
        values |= result.states
        at += n
        np.testing.assert_allclose(result["logits"][0], want[at - 1], rtol=2e-3, atol=2e-3)
        assert int(result["next"][0]) == int(result["logits"][0].argmax())
        assert not result["logits"][1].any()
