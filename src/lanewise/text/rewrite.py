"""Puts the meter into a template's syntax tree.

Calls, filters, tests and arithmetic meet the environment by themselves; loops, comparisons,
slices, literals, ``~`` and constant text are wrapped here, in filters whose names have a blank, so
that no template can write them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError

from lanewise.text.filters import each, joined
from lanewise.text.meter import CHARACTER, STEP, limit, spend, weigh

_MOST_NODES = 10_000  # of a template's syntax tree; templates in use have up to 3,000
_DEEPEST_NODE = 150
#: Nodes that load other templates or change what escaping means: no chat template needs them.
_REFUSED = (
    nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block,
    nodes.ScopedEvalContextModifier, nodes.EvalContextModifier,
)  # fmt: skip

class Rewriter:
    """Rewrites one tree in place; one too large or too deep, or that loads others, is refused."""

    def __init__(self) -> None:
        self._count = 0

    def rewrite(self, node: nodes.Node, depth: int) -> nodes.Node:
        self._count += 1
        if self._count > _MOST_NODES or depth > _DEEPEST_NODE:
            raise limit("it is too large or too deeply nested")
        if isinstance(node, _REFUSED):
            raise SecurityError(f"{type(node).__name__.lower()} is not for chat templates")
        for name, value in list(node.iter_fields()):
            if isinstance(value, nodes.Node):
                setattr(node, name, self.rewrite(value, depth + 1))
            elif isinstance(value, list):
                setattr(node, name, self._each_of(value, depth))
        return self._wrap(node)

    def _each_of(self, values: list[Any], depth: int) -> list[Any]:
        out: list[Any] = []
        for value in values:
            if isinstance(value, nodes.Node):
                new = self.rewrite(value, depth + 1)
                if isinstance(new, nodes.Output):
                    out += _charged(new)
                out.append(new)
            else:
                out.append(value)
        return out

    def _wrap(self, node: nodes.Node) -> nodes.Node:
        if isinstance(node, nodes.For):
            node.iter = _filtered(node.iter, "lw each")
        elif isinstance(node, nodes.Compare):
            node.expr = _filtered(node.expr, "lw weighed")
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, "lw weighed")
        elif isinstance(node, nodes.Concat):
            parts = nodes.List(node.nodes, lineno=node.lineno)
            return _filtered(parts, "lw concat")
        elif isinstance(node, (nodes.List, nodes.Dict)) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        ) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
            return _filtered(node, "lw weighed")
        elif isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Const):
            node.arg = _filtered(node.arg, "lw weighed")  # to look up a tuple is to hash it
        elif isinstance(node, nodes.Pair) and not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, "lw weighed")
        return node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _charged(output: nodes.Output) -> list[nodes.Node]:
    """The statement that pays for an output's constant text, if it has any."""
    size = sum(len(n.data) for n in output.nodes if isinstance(n, nodes.TemplateData))
    if not size:
        return []
    charge = _filtered(nodes.Const(size, lineno=output.lineno), "lw charge")
    return [nodes.ExprStmt(charge, lineno=output.lineno)]


@pass_context
def _each(context: Any, value: Any) -> Any:
    return each(value)


@pass_context
def _weighed(context: Any, value: Any) -> Any:
    spend(STEP + weigh(value))
    return value


@pass_context
def _concat(context: Any, parts: list[Any]) -> str:
    return "".join(joined(parts, ""))


@pass_context
def _charge(context: Any, characters: int) -> None:
    spend(STEP + CHARACTER * characters)


#: What the rewritten tree calls.
FILTERS: dict[str, Callable[..., Any]] = {
    "lw charge": _charge,
    "lw concat": _concat,
    "lw each": _each,
    "lw weighed": _weighed,
}
