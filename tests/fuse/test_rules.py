"""Every rule of the table: it fires in its own spec with all earlier rules on, can be held back,
means what its parts mean, and gives the bits that they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanewise.errors import UsageError
from lanewise.fuse.numerics import numerics
from lanewise.fuse.rule import fuse
from lanewise.fuse.rules import RULES
from lanewise.ir.graph import Graph
from lanewise.ir.interp import interpret
from lanewise.ir.rewrite import inline_all
from lanewise.ir.text import parse_graph
from lanewise.ir.verify import verify
from lanewise.kernels.table import accept
from lanewise.pipeline import Options
from tests.ir.graphs import bind
from tests.native import Native, same_bits

SPECS = Path(__file__).parent.parent / "specs" / "rules"
NAMES = [r.name for r in RULES]


def spec(name: str) -> Graph:
    return parse_graph((SPECS / f"{name}.txt").read_text())


def values(graph: Graph, seed: int = 1) -> dict[str, Any]:
    """Random roots; positions and slots that lie apart, options that draw."""
    out = bind(graph, np.random.default_rng(seed))
    for _, node in graph.roots("input"):
        n = node.types[0].shape[0]
        if node.name == "positions":
            out[node.name] = np.arange(60, 60 + n, dtype=np.uint32)
        elif node.name == "slots":
            out[node.name] = np.zeros(n, np.uint32)
        elif node.name == "pages":
            out[node.name] = np.arange(node.types[0].size, dtype=np.uint32)[::-1].reshape(
                node.types[0].shape
            )
    if "temperature" in out:
        out |= {"temperature": np.array([0, 0.7, 1.5], np.float32),
                "top_k": np.array([0, 9, 40], np.uint32),
                "top_p": np.array([1, 0.9, 0.8], np.float32),
                "min_p": np.zeros(3, np.float32),
                "draws": np.array([0, 0.3, 0.99], np.float32)}  # fmt: skip
    return out


def test_every_rule_has_a_spec() -> None:
    assert sorted(p.stem for p in SPECS.glob("*.txt")) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_fires_and_can_be_held(name: str) -> None:
    graph = numerics(spec(name), "int8x2")
    fused, trace = fuse(graph, RULES, accept)
    assert trace.fired[name] == 1, trace
    verify(fused)
    assert any(n.op == "fused" for n in fused.nodes)
    _, held = fuse(graph, RULES, accept, name)
    assert name not in held.fired and held.held == (name,)
    alone, trace = fuse(graph, RULES, accept, [n for n in NAMES if n != name])
    assert trace.fired == {name: 1}, "a rule must not need another one"
    # What was fused is what was there: opened again, it computes the same values.
    given = values(graph)
    want, have = interpret(graph, given), interpret(inline_all(alone), given)
    for key, value in want.outputs.items():
        np.testing.assert_array_equal(np.asarray(have[key]), np.asarray(value))


def live_of(graph: Graph) -> dict[str, int]:
    """One row less than there is room for: a row that is not live must touch nothing."""
    counts = any(n.name == "rows" for _, n in graph.roots("scalar"))
    return {"rows": graph.nodes[1].types[0].shape[0] - 1} if counts else {}


def live_part(graph: Graph, key: str, value: Any, live: dict[str, int]) -> Any:
    refs = dict(graph.outputs)
    return value[: live["rows"]] if key in refs and graph.live[refs[key]] else value


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_the_parts(name: str) -> None:
    graph = spec(name)
    given, live = values(graph), live_of(graph)
    fused = Native(graph, given).run(given, live)
    for options in (Options(hold=(name,)), Options(hold=("all",)), Options(naive=True)):
        held = Native(graph, given, options, threads=3).run(given, live)
        for key, value in fused.items():
            a, b = (live_part(graph, key, v, live) for v in (held[key], value))
            assert same_bits(a, b), f"{key} under {options}"


@pytest.mark.parametrize("name", NAMES)
def test_means_what_the_graph_means(name: str) -> None:
    """The compiled program against the interpreter over the same quantised graph."""
    graph = spec(name)
    given, live = values(graph), live_of(graph)
    want = interpret(numerics(graph, "int8x2"), given, live)
    for hold in ((), ("all",)):
        have = Native(graph, given, Options(hold=hold)).run(given, live)
        for key, value in {**want.outputs, **want.states}.items():
            if key in have:
                a, b = (live_part(graph, key, np.asarray(v, np.float64), live)
                        for v in (have[key], value))  # fmt: skip
                np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * np.abs(b).max())


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        fuse(spec("gate_up"), RULES, accept, ["gate_up", "gates"])
    assert caught.value.code == "usage.hold" and "'gates'" in str(caught.value)
    assert "gate_up" in caught.value.remedy


def test_value_that_is_read_elsewhere_is_not_swallowed() -> None:
    """A product whose result is an output, or read twice, keeps it."""
    text = (SPECS / "product_chain.txt").read_text().replace(
        'output "y" %5', 'output "y" %5\noutput "middle" %3'
    )
    graph = numerics(parse_graph(text), "int8x2")
    _, trace = fuse(graph, RULES, accept)
    assert trace.fired["product_chain"] == 0
    text = (SPECS / "gate_up.txt").read_text().replace(
        'output "y" %8', 'output "y" %8\noutput "gate" %4'
    )
    _, trace = fuse(numerics(parse_graph(text), "int8x2"), RULES, accept)
    assert trace.fired["gate_up"] == 0


def test_target_that_declines_keeps_the_parts() -> None:
    graph = numerics(spec("gate_up"), "int8x2")
    fused, trace = fuse(graph, RULES, lambda rule, body: "not here")
    assert fused == graph and trace.declined["gate_up"] == {"not here": 1}
