"""The Graph record: nodes of registered ops in straight line, frozen, printable and hashed.

A node names its operands by `Ref`, a pair (index of the node, index of its output), always of an
earlier node, so that a graph is plain data: equal graphs compare and hash equal, and text round
trips.  Roots are the ops in `ROOTS`.  A value of a state is a *version*: a write returns the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from lanewise.ir.states import StateValue, Write

Ref = tuple[int, int]
AttrValue = int | float | str | bool | tuple[int, ...]
Attrs = tuple[tuple[str, AttrValue], ...]

# op -> who owns the bytes.  input: the caller, per submission; weight: the checkpoint; constant:
# computed once from numbers that the graph's author holds; state: the caller, carried on from
# one submission to the next; scalar: a number of the submission, never part of a shape.
ROOTS = ("input", "weight", "constant", "state", "scalar")


@dataclass(frozen=True, slots=True)
class Type:
    """A value's type: `dtype` is a scalar type ("f32"), a Format ("q4_1") or an activation
    recipe ("int8x2"); `shape` is logical, all dimensions > 0."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """The number of elements."""
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an op; `name` is a root's name, `body` the graph that a `fused` node
    stands for (its roots are inputs named by position: "0", "1", ...)."""

    op: str
    operands: tuple[Ref, ...] = ()
    attrs: Attrs = ()
    types: tuple[Type, ...] = ()
    name: str = ""
    body: Graph | None = None
    # where the author's code made it; no part of the node's identity
    site: str = field(default="", compare=False)

    def attr(self, name: str) -> Any:
        """The value of one attribute (KeyError if the op has none of that name)."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def attributes(self) -> Mapping[str, Any]:
        return MappingProxyType(dict(self.attrs))


@dataclass(frozen=True)
class Graph:
    """Nodes in order, and named outputs; every operand of a node comes before it."""

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, Ref], ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.nodes, self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        """Whole, without what was computed and kept: hashes differ from process to process."""
        return (Graph, (self.name, self.nodes, self.outputs))

    def type(self, ref: Ref) -> Type:
        return self.nodes[ref[0]].types[ref[1]]

    def node(self, ref: Ref) -> Node:
        return self.nodes[ref[0]]

    def roots(self, *ops: str) -> Iterator[tuple[int, Node]]:
        """(index, node) of every root of the named ops (all, if none is named)."""
        for i, node in enumerate(self.nodes):
            if node.op in (ops or ROOTS):
                yield i, node

    @cached_property
    def uses(self) -> Mapping[Ref, tuple[int, ...]]:
        """Ref -> indices of the nodes that read it (outputs do not count), ascending."""
        uses: dict[Ref, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for ref in dict.fromkeys(node.operands):
                uses.setdefault(ref, []).append(i)
        return MappingProxyType({ref: tuple(users) for ref, users in uses.items()})

    @cached_property
    def output_refs(self) -> frozenset[Ref]:
        return frozenset(ref for _, ref in self.outputs)

    @cached_property
    def live(self) -> Mapping[Ref, str]:
        """Ref -> name of the scalar that counts the live rows of its leading axis, "" = all."""
        from lanewise.ir.live import live_names

        return live_names(self)

    @cached_property
    def states(self) -> Mapping[Ref, StateValue]:
        """Every value of a state: its root, window and version."""
        from lanewise.ir.states import state_values

        return state_values(self)

    @cached_property
    def writes(self) -> tuple[Write, ...]:
        """Of a body: what its nodes write, by operand of the fused node."""
        from lanewise.ir.states import body_writes

        return body_writes(self)

    @cached_property
    def touches(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Of a body: (operand, window) of every state that its nodes read or write."""
        from lanewise.ir.states import body_touches

        return body_touches(self)

    @cached_property
    def identity(self) -> str:
        """SHA-256 over the graph's text, hexadecimal."""
        from lanewise.ir.text import print_graph

        return hashlib.sha256(print_graph(self).encode()).hexdigest()

    def __str__(self) -> str:
        from lanewise.ir.text import print_graph

        return print_graph(self)


def freeze_attrs(attrs: Mapping[str, Any]) -> Attrs:
    """Attributes sorted by name, lists made tuples."""
    return tuple((k, _frozen(v)) for k, v in sorted(attrs.items()))


def _frozen(value: Any) -> AttrValue:
    return tuple(cast(list[int], value)) if isinstance(value, list) else value
