"""The identity of a recorded graph: what decides whether two recordings may share one plan.

SHA-256 over a version and, each with its length: ports in order, scalars, nodes in order (op,
attributes, operands by producer, types, names), outputs, constants with their bytes, the kernel
that each op selected and the digest of the kernels' sources.  Values that a submission binds, the
builder's name and source lines are not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lanewise.ir.graph import Graph

if TYPE_CHECKING:
    from lanewise.tensor.builder import Builder

VERSION = "lanewise.tensor/1"


@dataclass(frozen=True, slots=True)
class Identity:
    """A digest, hexadecimal; equal graphs have equal identities."""

    digest: str

    def __str__(self) -> str:
        return self.digest


def digest(parts: Iterable[str | bytes]) -> str:
    """SHA-256 over parts and their lengths."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


def identity_of(builder: Builder) -> Identity:
    """The identity of what was recorded; raises what was refused."""
    from lanewise.runtime.build import KERNELS, headers_digest

    graph = builder.graph()
    parts: list[str | bytes] = [VERSION, headers_digest(KERNELS)]
    parts += [repr(p) for p in builder.ports]
    parts += [repr(s) for s in builder.scalars]
    parts += node_parts(graph)
    for name, value in sorted(builder.values.items()):
        parts += [name, str(value.dtype), repr(value.shape), value.tobytes()]
    return Identity(digest(parts))


def node_parts(graph: Graph) -> list[str]:
    """What a graph's nodes and outputs are, one string each."""
    parts = [
        repr((n.op, n.operands, n.attrs, [str(t) for t in n.types], n.name)) for n in graph.nodes
    ]
    return [*parts, *(repr(o) for o in graph.outputs)]
