"""THE table of fusion rules, in order.

Laws: a rule looks only at what is legal; a value that leaves the group is one of its outputs;
bits never change, since a launch keeps each op's recipe.  Products come before row-wise rules,
because a chain costs nothing in a product's store and a pass over memory on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lanewise.fuse.rule import Group, Rule
from lanewise.ir.graph import Graph, Node, Ref
from lanewise.ir.opdef import opdef

PRODUCTS: Final = ("linear", "quant_linear", "grouped_linear", "quant_grouped_linear")


def is_elementwise(node: Node) -> bool:
    return node.op != "fused" and opdef(node.op).form == "elementwise"


def only_user(graph: Graph, ref: Ref) -> int | None:
    """The one node that reads a value, if there is just one and it is no output."""
    users = graph.uses.get(ref, ())
    return users[0] if len(users) == 1 and ref not in graph.output_refs else None


def walk(
    graph: Graph, start: int, step: Callable[[Node, Ref], bool]
) -> tuple[list[int], Ref]:
    """Follow the only user of a value while `step(user, value)` takes it."""
    nodes, ref = [start], (start, 0)
    while (user := only_user(graph, ref)) is not None:
        node = graph.nodes[user]
        if len(node.types) != 1 or not step(node, ref):
            break
        nodes.append(user)
        ref = (user, 0)
    return nodes, ref


def products(graph: Graph) -> Iterator[tuple[int, Node]]:
    for i, node in enumerate(graph.nodes):
        if node.op in PRODUCTS:
            yield i, node


def find_gate_up(graph: Graph) -> Iterator[Group]:
    for i, node in enumerate(graph.nodes):
        if node.op != "swiglu":
            continue
        gate, up = (r[0] for r in node.operands)
        a, b = graph.nodes[gate], graph.nodes[up]
        if gate == up or a.op not in PRODUCTS or a.op != b.op or a.attrs != b.attrs:
            continue
        biased = not a.op.endswith("grouped_linear") and len((*a.operands, *b.operands)) > 4
        if a.operands[0] != b.operands[0] or a.operands[2:] != b.operands[2:] or biased:
            continue
        if graph.type(a.operands[1]) != graph.type(b.operands[1]):
            continue
        if only_user(graph, (gate, 0)) != i or only_user(graph, (up, 0)) != i:
            continue
        tail, out = walk(graph, i, lambda n, r: n.op == "quantize")
        yield Group((gate, up, *tail), (out,))


def find_head_pick(graph: Graph) -> Iterator[Group]:
    for i, _ in products(graph):
        for user in graph.uses.get((i, 0), ()):
            node = graph.nodes[user]
            if node.op in ("sample_rows", "argmax") and node.operands[0] == (i, 0):
                yield Group((i, user), ((i, 0), (user, 0)))
                break


def _head_step(node: Node, ref: Ref) -> bool:
    if node.op == "kv_write":
        return node.operands[1] == ref
    return node.op in ("reshape", "rms_norm", "rope") and node.operands[0] == ref


def _head_chain(graph: Graph, start: int) -> tuple[list[int], Ref]:
    """A run of per-head steps: rank 3 values only, ends after a cache write."""
    ended = False

    def step(node: Node, ref: Ref) -> bool:
        nonlocal ended
        if ended or not _head_step(node, ref):
            return False
        ended = node.op == "kv_write"
        return ended or len(node.types[0].shape) == 3
    return walk(graph, start, step)


def find_product_heads(graph: Graph) -> Iterator[Group]:
    for i, _ in products(graph):
        nodes, out = _head_chain(graph, i)
        if len(nodes) > 2:  # more than the product and its reshape
            yield Group(tuple(nodes), (out,))


def find_product_chain(graph: Graph) -> Iterator[Group]:
    for i, node in products(graph):
        shape = node.types[0].shape
        nodes, out = _chain(graph, i, shape)
        if graph.nodes[nodes[-1]].types[0].dtype == "f32":
            nodes, out = _and_quantize(graph, nodes, out)
        if len(nodes) > 1:
            yield Group(tuple(nodes), (out,))


def _chain(graph: Graph, start: int, shape: tuple[int, ...]) -> tuple[list[int], Ref]:
    """The elementwise ops of one shape that follow a node, each the only user of the last."""
    return walk(graph, start, lambda n, r: is_elementwise(n) and n.types[0].shape == shape)


def _and_quantize(graph: Graph, nodes: list[int], out: Ref) -> tuple[list[int], Ref]:
    user = only_user(graph, out)
    if user is not None and graph.nodes[user].op == "quantize":
        return [*nodes, user], (user, 0)
    return nodes, out


def find_attention_quantize(graph: Graph) -> Iterator[Group]:
    for i, node in enumerate(graph.nodes):
        if node.op != "attention":
            continue
        nodes, out = walk(graph, i, lambda n, r: n.op in ("reshape", "quantize"))
        if graph.nodes[out[0]].op == "quantize":
            yield Group(tuple(nodes), (out,))


def find_rope_cache(graph: Graph) -> Iterator[Group]:
    for i, node in enumerate(graph.nodes):
        if node.op not in ("rms_norm", "rope") or len(node.types[0].shape) != 3:
            continue
        nodes, out = _head_chain(graph, i)
        if len(nodes) > 1:
            yield Group(tuple(nodes), (out,))


def find_residual_norm(graph: Graph) -> Iterator[Group]:
    for i, node in enumerate(graph.nodes):
        if node.op != "add":
            continue
        norms = [u for u in graph.uses.get((i, 0), ()) if graph.nodes[u].op == "rms_norm"]
        if len(norms) != 1 or graph.nodes[norms[0]].operands[0] != (i, 0):
            continue
        nodes, out = _and_quantize(graph, [i, norms[0]], (norms[0], 0))
        used_outside = len(graph.uses[(i, 0)]) > 1 or (i, 0) in graph.output_refs
        outputs = ((i, 0), out) if used_outside else (out,)
        yield Group(tuple(nodes), outputs)


def find_norm_quantize(graph: Graph) -> Iterator[Group]:
    for i, node in enumerate(graph.nodes):
        if node.op == "rms_norm":
            nodes, out = _and_quantize(graph, [i], (i, 0))
            if len(nodes) > 1:
                yield Group(tuple(nodes), (out,))


def find_elementwise_chain(graph: Graph) -> Iterator[Group]:
    """Runs of elementwise nodes of one shape, and a `quantize` that ends one."""
    for i, node in enumerate(graph.nodes):
        if not is_elementwise(node):
            continue
        shape = node.types[0].shape
        nodes, out = _chain(graph, i, shape)
        nodes, out = _and_quantize(graph, nodes, out)
        if len(nodes) > 1:
            yield Group(tuple(nodes), (out,))


def _input_of(node: Node) -> Ref | None:
    """The activations that a product, alone or with its epilogue, reads."""
    if node.op in PRODUCTS:
        return node.operands[0]
    if node.op == "fused" and node.body is not None:
        for inner in node.body.nodes:
            if inner.op in PRODUCTS:
                return node.operands[int(node.body.node(inner.operands[0]).name)]
    return None


def _depends(graph: Graph, index: int, on: int) -> bool:
    """Does node `index` (> `on`) need a result of node `on`?"""
    stack, seen = [index], {index}
    while stack:
        for operand, _ in graph.nodes[stack.pop()].operands:
            if operand == on:
                return True
            if operand > on and operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return False


def find_shared_input(graph: Graph) -> Iterator[Group]:
    families: dict[Ref, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        ref = _input_of(node)
        if ref is not None and node.op not in ("linear", "grouped_linear"):
            families.setdefault(ref, []).append(i)
    for members in families.values():
        group = [members[0]]
        for m in members[1:]:
            if not any(_depends(graph, m, g) for g in group):
                group.append(m)
        if len(group) > 1:
            outputs = tuple((g, k) for g in group for k in range(len(graph.nodes[g].types)))
            yield Group(tuple(group), outputs)


RULES: Final = (
    Rule("gate_up", "a = x·Gᵀ; b = x·Uᵀ; s = swiglu(a, b) [; quantize(s)] → one product over "
         "both matrices whose store makes s", find_gate_up),
    Rule("head_pick", "l = x·Wᵀ; t = sample_rows(l, …) | argmax(l) → one product whose store "
         "keeps each block's largest; the pick reads those", find_head_pick),
    Rule("product_heads", "h = x·Wᵀ; reshape; [rms_norm]; [rope]; [kv_write] → the product's "
         "store, a head at a time", find_product_heads),
    Rule("product_chain", "y = x·Wᵀ; y + r, … [; quantize] → the chain runs in the product's "
         "store", find_product_chain),
    Rule("attention_quantize", "a = attention(…); reshape; quantize(a) → attention whose store "
         "quantises", find_attention_quantize),
    Rule("rope_cache", "[rms_norm]; rope; kv_write → one pass a head", find_rope_cache),
    Rule("residual_norm", "y = x + r; n = rms_norm(y) [; quantize(n)] → one pass a row, both "
         "results", find_residual_norm),
    Rule("norm_quantize", "n = rms_norm(x); quantize(n) → one pass a row", find_norm_quantize),
    Rule("elementwise_chain", "elementwise ops of one shape, each the only reader of the last "
         "[; quantize] → one pass", find_elementwise_chain),
    Rule("shared_input", "x·Aᵀ; x·Bᵀ; … (with their stores) → one launch, its columns shared "
         "out as one range", find_shared_input),
)
