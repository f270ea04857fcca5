"""Patterns over ops, and a driver that rewrites until nothing matches.

A pattern looks from a value back to what made it:

    norm = op("rms_norm", value("x"), value("gain"), name="norm", once=True)
    op("quantize", norm, recipe="int8x2")

`value` takes any value; `name` captures; a name that comes twice must be the same value; `once`
asks that the value has this one reader and is no output; `either` tries two operands both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lanewise.errors import GraphError
from lanewise.ir.builder import GraphBuilder, rebuild
from lanewise.ir.graph import Graph, Node, Ref


@dataclass(frozen=True)
class Pattern:
    """What a value must be: made by one of `ops` (any, if none), of operands that match."""

    ops: tuple[str, ...] = ()
    operands: tuple[Pattern, ...] | None = None  # None: whatever they are
    name: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()
    once: bool = False
    either: bool = False


def value(name: str = "", *, once: bool = False) -> Pattern:
    """Any value."""
    return Pattern((), None, name, (), once)


def op(
    ops: str | tuple[str, ...], *operands: Pattern, name: str = "", once: bool = False,
    either: bool = False, any_operands: bool = False, **attrs: Any,
) -> Pattern:  # fmt: skip
    """A result of one of the ops, with these operands and at least these attributes."""
    names = (ops,) if isinstance(ops, str) else ops
    wanted = None if any_operands else operands
    return Pattern(names, wanted, name, tuple(attrs.items()), once, either)


@dataclass(frozen=True)
class Match:
    """Captured values by name, and the nodes that the pattern's ops took, ascending."""

    refs: Mapping[str, Ref]
    nodes: tuple[int, ...]


def match(graph: Graph, ref: Ref, pattern: Pattern) -> Match | None:
    """The first way in which the value fits the pattern."""
    for refs, nodes in _match(graph, ref, pattern, {}, frozenset()):
        return Match(refs, tuple(sorted(nodes)))
    return None


_State = tuple[dict[str, Ref], frozenset[int]]


def _match(
    graph: Graph, ref: Ref, pattern: Pattern, refs: dict[str, Ref], nodes: frozenset[int]
) -> Iterator[_State]:
    node = graph.node(ref)
    if pattern.ops and node.op not in pattern.ops:
        return
    if pattern.once and (len(graph.uses.get(ref, ())) != 1 or ref in graph.output_refs):
        return
    if any(node.attributes.get(key, _ABSENT) != wanted for key, wanted in pattern.attrs):
        return
    if pattern.name:
        if refs.get(pattern.name, ref) != ref:
            return
        refs = {**refs, pattern.name: ref}
    if not pattern.ops:
        yield refs, nodes
        return
    nodes = nodes | {ref[0]}
    if pattern.operands is None:
        yield refs, nodes
        return
    if len(pattern.operands) != len(node.operands):
        return
    yield from _operands(graph, node.operands, pattern.operands, refs, nodes)
    if pattern.either and len(node.operands) == 2:
        yield from _operands(graph, node.operands[::-1], pattern.operands, refs, nodes)


_ABSENT = object()


def _operands(
    graph: Graph, operands: Sequence[Ref], patterns: Sequence[Pattern], refs: dict[str, Ref],
    nodes: frozenset[int],
) -> Iterator[_State]:  # fmt: skip
    if not operands:
        yield refs, nodes
        return
    for r, n in _match(graph, operands[0], patterns[0], refs, nodes):
        yield from _operands(graph, operands[1:], patterns[1:], r, n)


@dataclass(frozen=True)
class Rewrite:
    """A rule of the driver.  `legal` gives the reason against a match, or None; `build` adds what
    stands for the matched value, of its type, over captured values (already moved: `at(name)`)."""

    name: str
    pattern: Pattern
    build: Callable[[GraphBuilder, Graph, Match, Callable[[str], Ref]], Ref]
    legal: Callable[[Graph, Match], str | None] = lambda graph, match: None


@dataclass(frozen=True)
class Step:
    """What the driver did with one match: it fired, or was refused for `reason`."""

    rule: str
    node: int  # in the graph of that pass
    reason: str | None


def rewrite(
    graph: Graph, rules: Sequence[Rewrite], *, budget: int = 10_000
) -> tuple[Graph, list[Step]]:
    """Apply the rules, first one first, until none fires; values that nobody reads are dropped.

    Raises GraphError "graph.budget" after `budget` firings (rules that undo each other), and
    "graph.type" if a rule builds another type than it replaces.
    """
    trace: list[Step] = []
    fired = 0
    while True:
        before, source = fired, graph

        def change(
            b: GraphBuilder, i: int, node: Node, refs: dict[Ref, Ref], source: Graph = source
        ) -> bool:
            nonlocal fired
            for rule in rules if len(node.types) == 1 else ():
                found = match(source, (i, 0), rule.pattern)
                if found is None:
                    continue
                reason = rule.legal(source, found)
                trace.append(Step(rule.name, i, reason))
                if reason is None:
                    moved = {name: refs[ref] for name, ref in found.refs.items() if ref in refs}
                    new = rule.build(b, source, found, moved.__getitem__)
                    if b.type(new) != node.types[0]:
                        raise GraphError(
                            "graph.type", f"{rule.name} built {b.type(new)} for {node.types[0]}"
                        )
                    refs[(i, 0)] = new
                    fired += 1
                    return True
            return False

        graph = rebuild(graph, change)
        if fired == before:
            return graph, trace
        if fired > budget:
            last = ", ".join(dict.fromkeys(s.rule for s in trace[-10:] if s.reason is None))
            raise GraphError("graph.budget", f"no end after {fired} rewrites; the last: {last}")
