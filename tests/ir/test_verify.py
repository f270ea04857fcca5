"""The verifier: every planted fault is found, by its code; legal graphs pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from lanewise.errors import GraphError, LanewiseError, Refused
from lanewise.ir.graph import Graph, Node, Ref, Type
from lanewise.ir.text import parse_graph
from lanewise.ir.verify import verify
from tests.ir.graphs import graphs

LAYER = (Path(__file__).parents[1] / "specs" / "layer.txt").read_text()
FUSED = (Path(__file__).parents[1] / "specs" / "fused.txt").read_text()
STATES = """graph states
%pages: u32[1,1] = input "pages"
%slots: u32[2] = input "slots"
%positions: u32[2] = input "positions"
%x: f32[2,1,4] = input "x"
%k: f32[3,64,1,4] = state "k"
%k0: f32[64,1,4] = layer %k (index=0)
%k1: f32[64,1,4] = layer %k (index=1)
%w0: f32[64,1,4] = kv_write %k0 %x %pages %slots %positions
"""
ROWS = "%pages %slots %positions"


def codes(graph: Graph) -> list[str]:
    try:
        verify(graph)
    except Refused as refused:
        return [e.code for e in refused.errors]
    except LanewiseError as error:
        return [error.code]
    return []


def edited(text: str, old: str, new: str) -> Graph:
    assert text.count(old) == 1
    return parse_graph(text.replace(old, new))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_are_legal(graph: Graph) -> None:
    verify(graph)


def node(graph: Graph, index: int, **changes: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return Graph(graph.name, tuple(nodes), graph.outputs)


def test_planted_faults_of_form() -> None:
    g = parse_graph(LAYER)
    add = next(i for i, n in enumerate(g.nodes) if n.op == "add")
    later: Ref = (len(g.nodes) - 1, 0)
    a, b = g.nodes[add].operands
    assert codes(node(g, add, operands=(a, later))) == ["graph.undefined"]
    assert codes(node(g, add, operands=(a, (b[0], 1)))) == ["graph.undefined"]
    assert codes(node(g, add, operands=(a, (-1, 0)))) == ["graph.undefined"]
    assert codes(node(g, add, operands=(a,))) == ["graph.operands"]
    assert codes(node(g, add, types=(Type("f32", (4, 31)),)))[0] == "graph.type"
    assert codes(node(g, add, types=(*g.nodes[add].types, Type("f32", (1,))))) == ["graph.type"]
    assert codes(node(g, add, attrs=(("axis", 1),))) == ["graph.unknown_attribute"]
    assert codes(node(g, add, op="plus")) == ["graph.unknown_op"]
    assert codes(node(g, add, name="sum")) == ["graph.name"]
    assert codes(node(g, add, body=g)) == ["graph.body"]
    assert codes(node(g, 22, attrs=())) == ["graph.missing_attribute"]
    assert codes(node(g, 22, attrs=g.nodes[22].attrs * 2)) == ["graph.attribute"]
    assert codes(node(g, 22, attrs=(("eps", -1.0),))) == ["graph.attribute"]
    outputs = (*g.outputs, ("more", (99, 0)))
    assert codes(Graph("g", g.nodes, outputs)) == ["graph.output"]
    assert codes(Graph("g", g.nodes, g.outputs * 2)) == ["graph.duplicate_name"] * len(g.outputs)


def test_planted_faults_of_roots() -> None:
    g = parse_graph(LAYER)
    assert codes(node(g, 4, name="slots")) == ["graph.duplicate_name"]
    assert "graph.type" in codes(node(g, 0, types=(Type("u32", (2,)),)))
    assert "graph.dtype" in codes(node(g, 7, types=(Type("f31", (128, 8)),)))
    assert "graph.shape" in codes(node(g, 7, types=(Type("f32", (0, 8)),)))
    assert "graph.shape" in codes(node(g, 10, types=(Type("q8_0", (96, 31)),)))
    assert "graph.operands" in codes(node(g, 7, operands=((0, 0),)))
    assert "graph.attribute" in codes(node(g, 8, attrs=(("layout", "tiles"), ("live", ""))))
    assert codes(node(g, 2, attrs=(("live", "nobody"),)))[0] == "graph.live"


def test_values_are_of_a_size_that_can_be() -> None:
    text = 'graph g\n%x: f32[1] = input "x"\n%y = broadcast %x (shape=[2147483648,2147483648])'
    assert codes(parse_graph(text)) == ["graph.shape"]
    assert codes(parse_graph(text.replace("2147483648", "1048576"))) == []


def test_every_fault_is_reported_at_once_with_its_place() -> None:
    g = parse_graph(LAYER, source="layer.txt")
    g = node(node(g, 22, attrs=(("eps", 0.0),)), 39, operands=((39, 0), (39, 0)))
    with pytest.raises(Refused) as caught:
        verify(g)
    assert [e.code for e in caught.value.errors] == ["graph.attribute", *["graph.undefined"] * 2]
    assert "layer.txt:25: layer: %22 = rms_norm" in caught.value.errors[0].place


def test_rows_of_two_counts_do_not_mix() -> None:
    g = edited(LAYER, '%4: u32[4] = input "positions" (live="rows")',
               '%4: u32[4] = input "positions" (live="outs")')  # fmt: skip
    assert set(codes(g)) == {"graph.live"}


def test_bodies() -> None:
    g = parse_graph(FUSED)
    index = next(i for i, n in enumerate(g.nodes) if n.op == "fused")
    fused = g.nodes[index]
    body = fused.body
    assert body is not None and codes(g) == []
    assert codes(node(g, index, body=None)) == ["graph.body"]
    narrow = node(body, 6, types=(Type("f32", (4, 63)),))
    assert codes(node(g, index, body=narrow))[0] == "graph.type"
    assert codes(node(g, index, body=node(body, 1, name="7"))) == ["graph.body"]
    assert codes(node(g, index, operands=(*fused.operands, (0, 0)))) == ["graph.body"]
    assert codes(node(g, index, operands=((2, 0), *fused.operands[1:]))) == ["graph.body"]
    swapped = Graph("body", body.nodes, body.outputs[::-1])
    assert codes(node(g, index, body=swapped))[0] == "graph.type"
    as_input = node(body, 2, op="input", attrs=(("live", ""),))
    assert codes(node(g, index, body=as_input)) == ["graph.state"]
    as_state = node(body, 0, op="state", attrs=(("layout", "rows"), ("live", "rows")))
    assert codes(node(g, index, body=as_state)) == ["graph.state"]


def test_deep_bodies_are_refused() -> None:
    root = Node("input", (), (("live", ""),), (Type("f32", (1,)),), "0")
    body = Graph("b", (root,), (("0", (0, 0)),))
    for _ in range(40):
        fused = Node("fused", ((0, 0),), (("rule", "r"),), root.types, "", body)
        body = Graph("b", (root, fused), (("0", (1, 0)),))
    assert codes(body) == ["graph.body"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (f"%a = kv_write %w0 %x {ROWS}", []),
        (f"%a = kv_write %k1 %x {ROWS}", []),  # another layer
        (f"%a = kv_write %k0 %x {ROWS}", ["graph.stale_state"]),  # the version before
        (f"%a = attention %x %w0 %k1 {ROWS} (scale=1.0)", []),
        (f"%a = attention %x %k0 %k1 {ROWS} (scale=1.0)", ["graph.stale_state"]),
        ("%a = neg %k0", ["graph.stale_state"]),
        ("%a = neg %k", ["graph.stale_state"]),  # the whole state holds the layer
        ("%a = neg %k1", []),
        ("%a = layer %k (index=0)\n%b = neg %a", ["graph.stale_state"]),
        ("%a = layer %k (index=0)", []),  # nobody looks
        ("%a = layer %k (index=2)\n%b = neg %a", []),
        ('output "k" %k0', ["graph.stale_state"]),
        ('output "k" %w0', []),
        (f"%y: f32[64,1,4] = input \"y\"\n%a = kv_write %y %x {ROWS}", ["graph.state"]),
        ("%y: f32[2,2] = input \"y\"\n%a = layer %y (index=0)", ["graph.state"]),
        (f"%n = neg %k1\n%a = kv_write %n %x {ROWS}", ["graph.state"]),  # a copy is no state
    ],
)  # fmt: skip
def test_versions(more: str, expected: list[str]) -> None:
    assert codes(parse_graph(STATES + more)) == expected


def test_a_stale_reader_learns_how_far_behind() -> None:
    text = STATES + f"%w1 = kv_write %w0 %x {ROWS}\n%w2 = kv_write %w1 %x {ROWS}\n%a = neg %w0"
    with pytest.raises(GraphError) as caught:
        verify(parse_graph(text))
    assert "version 1 of state 'k' window [0], 2 writes behind" in caught.value.message


def test_versions_through_bodies() -> None:
    """A fused write supersedes too; a body that takes the root touches only its own layer."""
    body = """ {{
      graph body
      %k: f32[3,64,1,4] = state "0"
      %x: f32[2,1,4] = input "1"
      %p: u32[1,1] = input "2"
      %s: u32[2] = input "3"
      %q: u32[2] = input "4"
      %l = layer %k (index={0})
      %w = kv_write %l %x %p %s %q
      output "0" %w
    }}
    """
    call = f'%f{{0}} = fused %k %x {ROWS} (rule="r")' + body
    one, two = call.format(1), call.format(2)
    assert codes(parse_graph(STATES + one + two)) == []
    assert codes(parse_graph(STATES + one + "%a = neg %k1")) == ["graph.stale_state"]
    assert codes(parse_graph(STATES + one + "%a = neg %f1")) == []
    assert codes(parse_graph(STATES + call.format(0))) == ["graph.stale_state"]


def test_a_body_may_give_a_window_of_what_it_wrote() -> None:
    text = """graph g
    %p: u32[1,1] = input "p"
    %s: u32[2] = input "s"
    %x: f32[2,1,4] = input "x"
    %k: f32[64,1,4] = state "k"
    %f, %w = fused %k %x %p %s (rule="r") {
      graph body
      %k: f32[64,1,4] = state "0"
      %x: f32[2,1,4] = input "1"
      %p: u32[1,1] = input "2"
      %s: u32[2] = input "3"
      %a = kv_write %k %x %p %s %s
      %b = kv_write %a %x %p %s %s
      %l = layer %b (index=7)
      output "0" %l
      output "1" %b
    }
    """
    graph = parse_graph(text + "%a = neg %f")
    assert codes(graph) == []
    assert [graph.states[(4, k)].version for k in range(2)] == [2, 2]
    assert graph.states[(4, 0)].window == (7,)
    assert codes(parse_graph(text + "%n = kv_write %w %x %p %s %s\n%a = neg %f")) != []
