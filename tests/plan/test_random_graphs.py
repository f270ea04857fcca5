"""Random graphs, compiled: the clever plan gives the naive plan's bits, whatever is held, on any
number of threads; and the interpreter's values within what rounding may do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanewise.errors import LanewiseError
from lanewise.fuse.numerics import numerics
from lanewise.ir.graph import Graph
from lanewise.ir.interp import interpret
from lanewise.pipeline import Options
from tests.ir.graphs import bind, graphs
from tests.native import Native, same_bits

EXAMPLES = 12


def outputs_of_their_own(graph: Graph) -> Graph:
    """Without outputs that are inputs, views or another output: these are refused by name."""
    seen: set[Any] = set()
    kept = []
    for name, ref in graph.outputs:
        node = graph.node(ref)
        if node.op in ("input", "reshape", "layer", "state") or ref in seen:
            continue
        seen.add(ref)
        kept.append((name, ref))
    return Graph(graph.name, graph.nodes, tuple(kept))


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(graphs(most=12), st.integers(1, 3), st.sampled_from(["int8x2", "int8", "f32"]))
def test_compiled_is_naive_is_interpreted(graph: Graph, rows: int, activations: str) -> None:
    graph = outputs_of_their_own(graph)
    if not graph.outputs:
        return
    values = bind(graph, np.random.default_rng(7))
    live = {"rows": rows}
    try:
        clever = Native(graph, values, Options(activations=activations))
    except LanewiseError as error:
        # A value that is an output and also the base of a view that is one: named, not wrong.
        assert error.code in ("plan.output",), error
        return
    have = clever.run(values, live)
    for options, threads in ((Options(activations=activations, naive=True), 1),
                             (Options(activations=activations, hold=("all",)), 3)):  # fmt: skip
        other = Native(graph, values, options, threads=threads).run(values, live)
        for name, ref in graph.outputs:
            if graph.node(ref).op == "kv_write":
                continue
            n = rows if graph.live[ref] else graph.type(ref).shape[0]
            assert same_bits(have[name][:n], other[name][:n]), name
        for name in {"k", "v"} & set(have):
            assert same_bits(have[name], other[name]), name
    want = interpret(numerics(graph, activations), values, live)
    for name, ref in graph.outputs:
        if graph.node(ref).op == "kv_write" or graph.type(ref).dtype not in ("f32", "f16", "bf16"):
            continue
        n = rows if graph.live[ref] else graph.type(ref).shape[0]
        a = have[name][:n].astype(np.float64)
        b = np.asarray(want[name], np.float64)[:n]
        fine = np.isfinite(a) & np.isfinite(b)
        assert (np.isfinite(a) == np.isfinite(b)).mean() > 0.99
        # One step of a quantisation (1 of 127) may flip on a rounding; chains of ops widen it.
        limit = 0.05 if activations == "int8" else 0.02
        scale = max(1.0, float(np.abs(b[fine]).max(initial=0.0)))
        assert np.median(np.abs(a - b)[fine], axis=None) <= limit * scale if fine.any() else True


@pytest.mark.parametrize("layers", [8, 16, 32])
def test_planning_grows_linearly(layers: int) -> None:
    """Counted, not timed: launches, places and text grow with the layers, no faster."""
    from lanewise.ir.builder import GraphBuilder
    from lanewise.ir.graph import Type
    from lanewise.pipeline import compile_forms

    b = GraphBuilder("deep")
    x = b.root("input", "x", Type("f32", (1, 64)))
    for i in range(layers):
        gain = b.root("weight", f"gain.{i}", Type("f32", (64,)))
        w = b.root("weight", f"w.{i}", Type("q8_0", (64, 64)))
        x = b.apply("add", x, b.apply("linear", b.apply("rms_norm", x, gain, eps=1e-5), w))
    b.output("y", x)
    program, plans = compile_forms({"deep": b.finish()})
    plan = plans["deep"]
    assert len(plan.launches) == 2 * layers
    assert plan.memory.allocated <= 3 * 64 * 4, "three rows are enough for any depth"
    functions = program.text.count("static void launch_")
    assert functions <= 5 + 2, "equal layers are printed once"
