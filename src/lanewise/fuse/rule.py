"""A fusion rule is a row: name, picture, finder.  Whether it pays is the target's to say.

A rule finds groups of nodes that may run as one launch and gives only groups that are legal:
what a group computes is what its nodes compute, in every case.  The target may decline a group;
it then stays as its parts.  `held` rules are left out.  `Trace` counts what happened, and why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lanewise.errors import UsageError
from lanewise.ir.graph import Graph, Ref
from lanewise.ir.rewrite import extract_body, fuse_nodes


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that become one `fused` node, and those of their results that are read outside."""

    nodes: tuple[int, ...]
    outputs: tuple[Ref, ...]


@dataclass(frozen=True)
class Rule:
    """One row of the table.  `doc` draws before → after; `find` yields legal groups, in order,
    possibly overlapping (the first taken wins)."""

    name: str
    doc: str
    find: Callable[[Graph], Iterator[Group]]
    since: str = "0.1"


@dataclass
class Trace:
    """What fusion did: per rule the groups fused, and (reason, how often) of those declined."""

    fired: dict[str, int] = field(default_factory=dict[str, int])
    declined: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    held: tuple[str, ...] = ()

    def decline(self, rule: str, reason: str) -> None:
        reasons = self.declined.setdefault(rule, {})
        reasons[reason] = reasons.get(reason, 0) + 1


# (rule name, body) -> None to accept, or the reason why the target has no launch for it
Accept = Callable[[str, Graph], str | None]


def held_rules(rules: Sequence[Rule], hold: Iterable[str] | str) -> tuple[str, ...]:
    """Names to hold back, checked: "all", or names of the table (UsageError "usage.hold")."""
    names = [r.name for r in rules]
    wanted = [hold] if isinstance(hold, str) else list(hold)
    if "all" in wanted:
        return tuple(names)
    unknown = [n for n in wanted if n and n not in names]
    if unknown:
        raise UsageError(
            "usage.hold", f"there is no fusion rule {', '.join(map(repr, unknown))}",
            remedy=f"the rules are: {', '.join(names)}, or all",
        )
    return tuple(n for n in names if n in wanted)


def fuse(
    graph: Graph, rules: Sequence[Rule], accept: Accept, hold: Iterable[str] | str = ()
) -> tuple[Graph, Trace]:
    """Apply the table, each rule once over the whole graph, in order."""
    trace = Trace(held=held_rules(rules, hold))
    for rule in rules:
        if rule.name in trace.held:
            continue
        taken: set[int] = set()
        groups: list[tuple[str, tuple[int, ...], tuple[Ref, ...]]] = []
        for group in rule.find(graph):
            if taken.intersection(group.nodes):
                continue
            _, body = extract_body(graph, group.nodes, group.outputs)
            reason = accept(rule.name, body)
            if reason is not None:
                trace.decline(rule.name, reason)
                continue
            taken.update(group.nodes)
            groups.append((rule.name, group.nodes, group.outputs))
        trace.fired[rule.name] = len(groups)
        if groups:
            graph = fuse_nodes(graph, groups)
    return graph, trace
