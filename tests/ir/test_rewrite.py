"""Regions to fused nodes and back; patterns; the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.errors import GraphError
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Graph, Ref, Type
from lanewise.ir.interp import interpret
from lanewise.ir.rewrite import (
    Match,
    Rewrite,
    extract_body,
    fuse_nodes,
    inline,
    inline_all,
    match,
    op,
    rewrite,
    value,
)
from lanewise.ir.text import parse_graph, print_graph
from lanewise.ir.verify import verify
from tests.ir.graphs import bind, graphs, inner_nodes, meaning, region_outputs
from tests.ir.test_interp import bits

CHAIN = """graph chain
%n: u32[1] = scalar "n"
%x: f32[4,64] = input "x" (live="n")
%g: f32[64] = weight "g"
%a = rms_norm %x %g (eps=1e-05)
%b = quantize %a (recipe="int8x2")
%c = add %x %a
%d = neg %c
output "b" %b
output "d" %d
"""


def results(graph: Graph, values: dict[str, Any]) -> dict[str, bytes]:
    found = interpret(graph, values, {"rows": 2})
    named = {**found.outputs, **{f"state {n}": v for n, v in found.states.items()}}
    return {name: bits(v) for name, v in named.items()}


Groups = list[tuple[str, list[int], tuple[Ref, ...]]]


@st.composite
def grouped(draw: Callable[[Any], Any]) -> tuple[Graph, Groups]:
    """A graph and disjoint groups of its nodes: runs, or any subsets."""
    graph = draw(graphs())
    nodes = inner_nodes(graph)
    if draw(st.booleans()):
        cuts = sorted(draw(st.sets(st.integers(0, len(nodes)), max_size=4)))
        parts = [nodes[a:b] for a, b in pairwise(cuts)]
    else:
        owner = {i: draw(st.integers(0, 3)) for i in nodes}
        parts = [[i for i in nodes if owner[i] == g] for g in range(3)]
    groups = [(f"r{k}", p, region_outputs(graph, p)) for k, p in enumerate(parts) if p]
    return graph, groups


@settings(max_examples=100, deadline=None)
@given(grouped(), st.integers(0, 2**31))
def test_fused_and_inlined_mean_the_same(case: Any, seed: int) -> None:
    graph, groups = case
    refused: list[tuple[int, str]] = []
    fused = fuse_nodes(graph, groups, refused)
    verify(fused)
    assert sum(n.op == "fused" for n in fused.nodes) == len(groups) - len(refused)
    back = inline_all(fused)
    verify(back)
    assert meaning(back) == meaning(graph)
    assert len(back.nodes) == len(graph.nodes)
    values = bind(graph, np.random.default_rng(seed))
    assert results(fused, values) == results(graph, values) == results(back, values)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data())
def test_a_run_of_nodes_never_makes_a_cycle_and_inlines_to_itself(
    graph: Graph, data: st.DataObject
) -> None:
    nodes = inner_nodes(graph)
    a = data.draw(st.integers(0, len(nodes) - 1))
    part = nodes[a : data.draw(st.integers(a + 1, len(nodes)))]
    fused = fuse_nodes(graph, [("run", part, region_outputs(graph, part))])
    every = inner_nodes(fused)
    twice = fuse_nodes(fused, [("again", every, region_outputs(fused, every))])
    assert meaning(inline_all(twice)) == meaning(graph)
    opened = inline(twice, [len(twice.nodes) - 1])
    assert meaning(opened) == meaning(fused)  # one level


def test_bodies_keep_what_roots_say() -> None:
    graph = parse_graph(CHAIN)
    operands, body = extract_body(graph, {3, 4}, [(4, 0), (3, 0)])
    assert operands == ((1, 0), (2, 0))
    assert print_graph(body).splitlines() == [
        "graph body",
        '%0: f32[4,64] = input "0" (live="n")',
        '%1: f32[64] = weight "1"',
        "%2: f32[4,64] = rms_norm %0 %1 (eps=1e-05)",
        '%3: int8x2[4,64] = quantize %2 (recipe="int8x2")',
        'output "0" %3',
        'output "1" %2',
    ]
    operands, body = extract_body(graph, [5], [(5, 0)])
    assert operands == ((1, 0), (3, 0))
    assert [(n.op, n.attr("live")) for _, n in body.roots()] == [("input", "n"), ("input", "n")]


def test_equal_regions_have_equal_bodies() -> None:
    graph = parse_graph("""graph g
    %x: f32[2,4] = input "x"
    %k: f32[2,64,1,4] = state "k" (layout="panels")
    %p: u32[1,1] = input "p"
    %s: u32[2] = input "s"
    %r = reshape %x (shape=[2,1,4])
    %k0 = layer %k (index=0)
    %k1 = layer %k (index=1)
    %w0 = kv_write %k0 %r %p %s %s
    %w1 = kv_write %k1 %r %p %s %s
    """)
    first, second = (extract_body(graph, [i], [(i, 0)])[1] for i in (7, 8))
    assert first == second
    root = next(n for _, n in first.roots("state"))
    assert root.types[0].shape == (64, 1, 4) and root.attr("layout") == "panels"


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        ([("r", [3, 4], [(4, 0)])], "graph.fuse"),  # %a is read outside
        ([("r", [3, 5], [(3, 0)])], "graph.fuse"),  # so is %c
        ([("r", [5, 6], [])], "graph.fuse"),  # an output of the graph
        ([("r", [3], [(3, 0)]), ("s", [3, 4], [(3, 0), (4, 0)])], "graph.fuse"),  # shared
        ([("r", [1, 3], [(3, 0)])], "graph.fuse"),  # a root
        ([("r", [3], [(4, 0)])], "graph.fuse"),  # an output of another node
        ([("r", [], [])], "graph.fuse"),
        ([("r", [3, 6], [(3, 0), (6, 0)])], "graph.cycle"),  # %c stands between
    ],
)
def test_what_cannot_be_fused_is_refused(groups: Any, code: str) -> None:
    with pytest.raises(GraphError) as caught:
        fuse_nodes(parse_graph(CHAIN), groups)
    assert caught.value.code == code


def test_groups_that_are_only_together_a_cycle() -> None:
    graph = parse_graph("""graph g
    %x: f32[2] = input "x"
    %a = neg %x
    %b = exp %x
    %c = neg %b
    %d = exp %a
    output "c" %c
    output "d" %d
    """)
    groups = [("one", [1, 3], [(1, 0), (3, 0)]), ("two", [2, 4], [(2, 0), (4, 0)])]
    refused: list[tuple[int, str]] = []
    fused = fuse_nodes(graph, groups, refused)
    assert [n.op for n in fused.nodes].count("fused") == 1
    assert [g for g, _ in refused] == [1] and "cycle" in refused[0][1]


def test_readers_stay_before_writers() -> None:
    """A fused node that comes late must not carry its read past a write of the same bytes."""
    graph = parse_graph("""graph g
    %x: f32[1,1,4] = input "x"
    %p: u32[1,1] = input "p"
    %s: u32[1] = input "s"
    %k: f32[64,1,4] = state "k"
    %old = attention %x %k %k %p %s %s (scale=1.0)
    %w = kv_write %k %x %p %s %s
    %new = attention %x %w %w %p %s %s (scale=1.0)
    %sum = add %old %x
    output "sum" %sum
    output "new" %new
    output "k" %w
    """)
    fused = fuse_nodes(graph, [("late", [4, 7], [(7, 0)])])
    verify(fused)
    ops = [n.op for n in fused.nodes]
    assert ops.index("fused") < ops.index("kv_write")
    with pytest.raises(GraphError) as caught:
        fuse_nodes(graph, [("across", [4, 6], [(4, 0), (6, 0)])])
    assert caught.value.code == "graph.cycle"


def test_time_is_linear() -> None:
    b = GraphBuilder("long")
    x = b.root("input", "x", Type("f32", (4, 64)))
    k = b.root("state", "k", Type("f32", (1000, 64, 4, 16)))
    p = b.root("input", "p", Type("u32", (1, 1)))
    s = b.root("input", "s", Type("u32", (4,)))
    groups = []
    for i in range(1000):
        y = b.apply("reshape", b.apply("neg", x), shape=(4, 4, 16))
        layer = b.apply("layer", k, index=i)
        w = b.apply("kv_write", layer, y, p, s, s)
        z = b.apply("reshape", b.apply("attention", y, w, w, p, s, s, scale=1.0), shape=(4, 64))
        groups.append(("write", (y[0], layer[0], w[0]), (y, w)))
        x = b.apply("add", x, z)
    b.output("x", x)
    graph = b.finish()
    begin = time.perf_counter()
    fused = fuse_nodes(graph, groups)
    assert inline_all(fused) == graph
    assert time.perf_counter() - begin < 3  # 0.1 s on a free machine


def test_patterns() -> None:
    graph = parse_graph(CHAIN)
    norm = op("rms_norm", value("x"), value("g"), name="norm")
    found = match(graph, (4, 0), op("quantize", norm, recipe="int8x2"))
    assert found == Match({"norm": (3, 0), "x": (1, 0), "g": (2, 0)}, (3, 4))
    assert match(graph, (4, 0), op("quantize", norm, recipe="int8")) is None
    once = op("rms_norm", any_operands=True, once=True)
    assert match(graph, (4, 0), op("quantize", once)) is None  # %a has two readers
    assert match(graph, (6, 0), op("neg", op("add", any_operands=True, once=True))) is not None
    assert match(graph, (6, 0), op(("exp", "neg"), value())) is not None
    assert match(graph, (6, 0), op("neg")) is None  # no operands is not any operands
    same = op("add", value("x"), op("rms_norm", value("x"), value()))
    assert match(graph, (5, 0), same) is not None
    swapped = op("add", op("rms_norm", value("x"), value()), value("x"))
    assert match(graph, (5, 0), swapped) is None
    either = op("add", op("rms_norm", value("x"), value()), value("x"), either=True)
    found = match(graph, (5, 0), either)
    assert found is not None and found.refs == {"x": (1, 0)} and found.nodes == (3, 5)


def test_patterns_of_one_value_and_of_one_reader() -> None:
    graph = parse_graph("""graph g
    %x: f32[2] = input "x"
    %y: f32[2] = input "y"
    %xy = add %x %y
    %xx = add %x %x
    %n = neg %xy
    %m = neg %xx
    output "xy" %xy
    output "n" %n
    output "m" %m
    """)
    twice = op("add", value("a"), value("a"))
    assert match(graph, (2, 0), twice) is None and match(graph, (3, 0), twice) is not None
    once = op("neg", op("add", any_operands=True, once=True))
    assert match(graph, (4, 0), once) is None  # %xy is an output too
    assert match(graph, (5, 0), once) is not None


def negate_twice(b: GraphBuilder, graph: Graph, found: Match, at: Callable[[str], Ref]) -> Ref:
    return at("x")


def test_the_driver_runs_to_the_end_and_drops_what_is_dead() -> None:
    b = GraphBuilder("g")
    x = y = b.root("input", "x", Type("f32", (3,)))
    for _ in range(9):
        y = b.apply("neg", y)
    b.output("y", y)
    rule = Rewrite("double", op("neg", op("neg", value("x"))), negate_twice)
    graph, trace = rewrite(b.finish(), [rule])
    assert [n.op for n in graph.nodes] == ["input", "neg"]
    assert {s.rule for s in trace} == {"double"} and all(s.reason is None for s in trace)
    held = Rewrite("held", rule.pattern, negate_twice, lambda graph, found: "not today")
    b.output("x", x)
    same, trace = rewrite(b.finish(), [held])
    assert same == b.finish() and {s.reason for s in trace} == {"not today"} and len(trace) == 8


def test_the_driver_stops_rules_that_never_end() -> None:
    graph = parse_graph('graph g\n%x: f32[3] = input "x"\n%y = neg %x\noutput "y" %y')
    again = Rewrite(
        "again", op("neg", value("x")),
        lambda b, g, m, at: b.apply("neg", b.apply("abs", at("x"))),
    )  # fmt: skip
    with pytest.raises(GraphError) as caught:
        rewrite(graph, [again], budget=50)
    assert caught.value.code == "graph.budget" and "again" in caught.value.message
    wrong = Rewrite("wrong", op("neg", value("x")),
                    lambda b, g, m, at: b.apply("cast", at("x"), dtype="f16"))  # fmt: skip
    with pytest.raises(GraphError) as caught:
        rewrite(graph, [wrong])
    assert caught.value.code == "graph.type"
