"""Text: what is printed parses back to the same graph; what is no graph is refused by line."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.errors import GraphError, LanewiseError, Refused
from lanewise.ir.builder import GraphBuilder
from lanewise.ir.graph import Graph, Node, Type, freeze_attrs
from lanewise.ir.opdef import apply, ops
from lanewise.ir.rewrite import fuse_nodes
from lanewise.ir.text import parse_graph, print_graph
from lanewise.ir.values import value_type
from lanewise.ir.verify import verify
from tests.ir.graphs import graphs, inner_nodes, region_outputs

SPECS = sorted((Path(__file__).parents[1] / "specs").glob("*.txt"))


def same(graph: Graph) -> None:
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_round_trip(graph: Graph) -> None:
    same(graph)


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_fused_graphs_round_trip(graph: Graph) -> None:
    nodes = inner_nodes(graph)
    fused = fuse_nodes(graph, [("all", nodes, region_outputs(graph, nodes))])
    nodes = inner_nodes(fused)
    again = fuse_nodes(fused, [("twice", nodes, region_outputs(fused, nodes))])
    same(fused)
    same(again)


COMPUTED = [op.name for op in ops().values() if op.form not in ("root", "fused")]


@pytest.mark.parametrize("name", COMPUTED)
def test_every_sample_round_trips(name: str) -> None:
    for sample in ops()[name].samples(np.random.default_rng(0)):
        types = tuple(map(value_type, sample.args))
        roots = [Node("input", (), (("live", ""),), (t,), f"a{i}") for i, t in enumerate(types)]
        attrs, results = apply(name, types, sample.attrs)
        operands = tuple((i, 0) for i in range(len(types)))
        nodes = (*roots, Node(name, operands, freeze_attrs(attrs), results))
        same(Graph("sample", nodes, (("y", (len(roots), 0)),)))


values = st.one_of(
    st.integers(-(10**17), 10**17), st.booleans(), st.text(max_size=20),
    st.floats(allow_nan=False), st.lists(st.integers(-9, 2**40), max_size=4).map(tuple),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=15), st.text(max_size=15), values)
def test_any_name_and_any_value_round_trips(graph: str, root: str, value: object) -> None:
    """Names of any characters; attribute values of every kind (`recipe` takes what it is given)."""
    node = Node("input", (), (("live", ""),), (Type("f32", (2, 32)),), root)
    attrs = freeze_attrs({"recipe": value})
    nodes = (node, Node("quantize", ((0, 0),), attrs, (Type("int8", (2, 32)),)))
    same(Graph(graph, nodes, ((root, (1, 0)),)))


def test_floats_keep_every_bit() -> None:
    for value in (1e-5, 0.1, 5e-324, 1.7976931348623157e308, float("inf"), -float("inf"), -0.0):
        attrs = (("eps", value),)
        root = Node("input", (), (("live", ""),), (Type("f32", (2,)),), "x")
        nodes = (root, Node("rms_norm", ((0, 0), (0, 0)), attrs, (Type("f32", (2,)),)))
        back = parse_graph(print_graph(Graph("g", nodes, ())))
        assert repr(back.nodes[1].attr("eps")) == repr(value)
    text = 'graph g\n%0: f32[2] = input "x"\n%1: f32[2] = rms_norm %0 %0 (eps=nan)'
    assert repr(parse_graph(text).nodes[1].attr("eps")) == "nan"


def test_a_default_is_left_out_only_if_it_is_the_same_number() -> None:
    text = (Path(SPECS[0].parent) / "fused.txt").read_text()
    for spelled in ("softcap=0", "softcap=-0.0", "window=0.0"):
        changed = parse_graph(text.replace("softcap=30.0, window=16", spelled))
        assert f"{spelled})" in print_graph(changed)
    plain = print_graph(parse_graph(text.replace("softcap=30.0, window=16", "window=0")))
    assert "window" not in plain and "softcap" not in plain


def test_the_form_that_people_read() -> None:
    b = GraphBuilder("decode")
    b.root("scalar", "rows", Type("u32", (1,)))
    x = b.root("input", "x", Type("f32", (1, 576)), live="rows")
    g = b.root("weight", "gain", Type("f32", (576,)))
    b.output("y", b.apply("rms_norm", x, g, eps=1e-5))
    assert print_graph(b.finish()).splitlines() == [
        "graph decode",
        '%0: u32[1] = scalar "rows"',
        '%1: f32[1,576] = input "x" (live="rows")',
        '%2: f32[576] = weight "gain"',
        "%3: f32[1,576] = rms_norm %1 %2 (eps=1e-05)",
        'output "y" %3',
    ]


def test_names_comments_and_inferred_types() -> None:
    text = """
    # a step by hand
    graph mine
    %x: f32[2, 3] = input "x"   # two rows
    %blk.0.y = neg %x
    %z = softmax %blk.0.y

    output "z" %z
    """
    graph = parse_graph(text)
    verify(graph)
    assert graph.nodes[2].types == (Type("f32", (2, 3)),)
    assert [n.op for n in graph.nodes] == ["input", "neg", "softmax"]
    assert parse_graph(text.replace("\n", "\r\n")) == graph


HEAD = 'graph g\n%x: f32[2,32] = input "x"\n'


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", "graph.syntax", 1),
        ("%x: f32[2] = input \"x\"", "graph.syntax", 1),
        (HEAD + "%y = frobnicate %x", "graph.unknown_op", 3),
        (HEAD + "%y = neg %z", "graph.undefined", 3),
        (HEAD + "%x = neg %x", "graph.duplicate_name", 3),
        (HEAD + "%y = neg %x (axis=1)", "graph.unknown_attribute", 3),
        (HEAD + "%y = quantize %x", "graph.missing_attribute", 3),
        (HEAD + '%y = quantize %x (recipe="int9")', "graph.attribute", 3),
        (HEAD + "%y = add %x", "graph.operands", 3),
        (HEAD + "%y, %z = neg %x", "graph.syntax", 3),
        (HEAD + "%y = neg %x %", "graph.syntax", 3),
        (HEAD + "%y = neg %x extra", "graph.syntax", 3),
        (HEAD + "%y: f32[0] = neg %x", "graph.syntax", 3),
        (HEAD + "%y: f32[2,] = neg %x", "graph.syntax", 3),
        (HEAD + "%y: f32[9999999999999999999] = neg %x", "graph.syntax", 3),
        (HEAD + "%w = weight \"w\"", "graph.syntax", 3),
        (HEAD + "%w: f32[2] = weight w", "graph.syntax", 3),
        (HEAD + 'output "y"', "graph.syntax", 3),
        (HEAD + 'output "y" %x\noutput "y" %x', "graph.duplicate_name", 4),
        (HEAD + '%y = fused %x (rule="r") {\n graph b\n', "graph.syntax", 5),
        (HEAD + '%y = fused %x (rule="r")\n', "graph.syntax", 3),
        (HEAD + '%y = quantize %x (recipe="\\x")', "graph.syntax", 3),
        (HEAD + "%y = neg %x (a=1, a=2)", "graph.syntax", 3),
        (HEAD + "neg %x", "graph.syntax", 3),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused_by_line(text: str, code: str, line: int) -> None:
    with pytest.raises(GraphError) as caught:
        parse_graph(text, source="mine")
    assert caught.value.code == code
    assert caught.value.place == f"mine:{line}"


def test_one_mistake_one_refusal_and_all_together() -> None:
    text = HEAD + "%a = wrong %x\n%b = neg %a\n%c = neg %b\n%d = also %c\noutput \"o\" %d\n"
    with pytest.raises(Refused) as caught:
        parse_graph(text)
    assert [e.place for e in caught.value.errors] == ["text:3", "text:6"]


def test_depth_and_length_are_bounded() -> None:
    deep = HEAD + '%y = fused %x (rule="r") {\ngraph b\n%x: f32[2,32] = input "0"\n' * 200
    for text in (deep, "graph g\n" + "?\n" * 100_000, 'graph g\n"' + "\\" * 200_001, "(" * 300_000):
        begin = time.perf_counter()
        with pytest.raises(LanewiseError):
            parse_graph(text)
        assert time.perf_counter() - begin < 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_is_refused_or_a_graph(data: st.DataObject) -> None:
    text = SPECS[0].read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text('%0"={}[]()\n xgraph', max_size=3)) + text[at + cut :]
    try:
        verify(parse_graph(text))
    except LanewiseError as error:
        assert error.code == "refused" or error.code.startswith("graph.")


@pytest.mark.parametrize("path", SPECS, ids=[p.stem for p in SPECS])
def test_specs_are_legal_and_canonical(path: Path) -> None:
    text = path.read_text()
    graph = parse_graph(text, source=path.name)
    verify(graph)
    assert print_graph(graph) == "".join(
        line + "\n" for line in text.splitlines() if not line.startswith("#")
    )


def test_a_thousand_nodes_take_milliseconds() -> None:
    b = GraphBuilder("long")
    x = b.root("input", "x", Type("f32", (4, 64)))
    g = b.root("weight", "g", Type("f32", (64,)))
    for i in range(500):
        x = b.apply("add", x, b.apply("rms_norm", x, g, eps=1e-5 + i))
    b.output("y", x)
    graph = b.finish()
    begin = time.perf_counter()
    text = print_graph(graph)
    middle = time.perf_counter()
    assert parse_graph(text) == graph
    end = time.perf_counter()
    # the aim is 20 ms and 100 ms on a free machine; tests run on busy ones
    assert middle - begin < 0.2 and end - middle < 1.0


def test_identity_is_of_the_text() -> None:
    graph = parse_graph(SPECS[0].read_text())
    again = parse_graph(SPECS[0].read_text())
    assert graph.identity == again.identity and len(graph.identity) == 64
    assert Graph("other", graph.nodes, graph.outputs).identity != graph.identity
