"""The builder: sharing, names, checks at the caller's line; and what a rebuild keeps."""

from __future__ import annotations

import pickle

import pytest

from lanewise.errors import GraphError
from lanewise.ir.builder import GraphBuilder, live_nodes, rebuild, writes
from lanewise.ir.graph import Graph, Ref, Type
from lanewise.ir.rewrite import fuse_nodes
from lanewise.ir.text import parse_graph

X = Type("f32", (2, 64))


def cache(b: GraphBuilder) -> tuple[Ref, tuple[Ref, ...]]:
    state = b.root("state", "k", Type("f16", (64, 1, 4)))
    x = b.root("input", "x", Type("f32", (2, 1, 4)))
    table = b.root("input", "table", Type("u32", (1, 1)))
    rows = b.root("input", "rows", Type("u32", (2,)))
    return state, (x, table, rows, rows)


def test_equal_nodes_are_one_but_writes_are_not() -> None:
    b = GraphBuilder("g")
    x, y = b.root("input", "x", X), b.root("input", "y", X)
    assert b.apply("add", x, y) == b.apply("add", x, y)
    assert b.apply("add", x, y) != b.apply("add", y, x)
    assert b.apply("cast", x, dtype="f16") != b.apply("cast", x, dtype="bf16")
    b = GraphBuilder("g")
    state, rest = cache(b)
    assert b.apply("kv_write", state, *rest) != b.apply("kv_write", state, *rest)


def test_roots_have_all_their_attributes_and_names_of_their_own() -> None:
    b = GraphBuilder("g")
    ref = b.root("input", "x", X)
    assert b.finish().node(ref).attr("live") == ""
    assert parse_graph(str(b.finish())) == b.finish()
    for op, name, type, code in (
        ("input", "x", X, "graph.duplicate_name"),
        ("add", "y", X, "graph.unknown_op"),
        ("input", "y", Type("f32", ()), "graph.shape"),
        ("input", "y", Type("f32", (2, 0)), "graph.shape"),
    ):
        with pytest.raises(GraphError) as caught:
            b.root(op, name, type)
        assert caught.value.code == code
    with pytest.raises(GraphError) as caught:
        b.root("input", "y", X, size=3)
    assert caught.value.code == "graph.unknown_attribute"


def test_outputs_are_named_once() -> None:
    b = GraphBuilder("g")
    x = b.root("input", "x", X)
    b.output("y", x)
    with pytest.raises(GraphError) as caught:
        b.output("y", x)
    assert caught.value.code == "graph.duplicate_name"


def test_nodes_know_the_line_that_made_them() -> None:
    b = GraphBuilder("g")
    ref = b.apply("neg", b.root("input", "x", X))
    assert "test_builder.py:" in b.finish().node(ref).site


def dead() -> tuple[Graph, int, int]:
    b = GraphBuilder("g")
    state, rest = cache(b)
    unread = b.apply("neg", rest[0])
    write = b.apply("kv_write", state, *rest)
    b.output("y", b.apply("abs", rest[0]))
    return b.finish(), unread[0], write[0]


def test_a_write_is_alive_without_a_reader_and_pure_nodes_are_not() -> None:
    graph, unread, write = dead()
    assert write in live_nodes(graph) and unread not in live_nodes(graph)
    copy = rebuild(graph, lambda b, i, node, refs: False)
    assert [n.op for n in copy.nodes].count("kv_write") == 1
    assert "neg" not in [n.op for n in copy.nodes]
    fused = fuse_nodes(graph, [("r", [write], [(write, 0)])])
    assert [writes(n) for n in fused.nodes].count(True) == 1
    assert any(n.op == "fused" for n in rebuild(fused, lambda b, i, n, r: False).nodes)


def test_a_rebuild_replaces_what_it_is_told_to() -> None:
    graph, _, _ = dead()

    def change(b: GraphBuilder, i: int, node: object, refs: dict[Ref, Ref]) -> bool:
        if graph.nodes[i].op != "abs":
            return False
        refs[(i, 0)] = b.apply("square", refs[graph.nodes[i].operands[0]])
        return True

    changed = rebuild(graph, change)
    assert changed.node(changed.outputs[0][1]).op == "square"


def test_graphs_are_plain_data() -> None:
    graph, _, _ = dead()
    again = pickle.loads(pickle.dumps(graph))
    assert again == graph and hash(again) == hash(graph) and len({again, graph}) == 1
    assert graph.uses and graph.states and graph.live  # kept in the record, not part of it
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert "_hash" not in pickle.loads(pickle.dumps(graph)).__dict__
