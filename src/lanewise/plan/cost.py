"""What the launches of a plan have to do: bytes of memory touched and multiply-adds, by recipe.

Laws: constants and states are memory, all else is taken to stay in the caches; a constant is read
whole (a gather: its rows), a state as far as positions are seen; rows are those that are live.
"""

from __future__ import annotations

from dataclasses import dataclass

from lanewise.ir.graph import ROOTS, Graph
from lanewise.kernels.bodies import body_of, product_of
from lanewise.kernels.table import attention_node
from lanewise.plan.plan import Launch, Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes read and written; multiply-adds of `recipe` ("f32", "f64", "int8", "int8x2" or "")."""

    nbytes: int
    macs: int
    recipe: str


def launch_cost(plan: Plan, launch: Launch, rows: int, depth: int) -> Cost:
    """The cost of a launch for `rows` live rows after `depth` positions."""
    if launch.kernel in ("pick", "attention_merge"):
        return Cost(0, 0, "")  # what they look at is in the caches
    body = body_of(plan.graph, launch.node)[1]
    nbytes = sum(_bytes(plan, launch, k, rows, depth) for k in range(len(launch.uses)))
    if launch.kernel in ("product", "group"):
        macs, recipe = _products(body, rows)
        return Cost(nbytes, macs, recipe)
    at = attention_node(body)
    if launch.kernel in ("attention", "attention_piece") and at is not None:
        _, heads, d = body.nodes[at].types[0].shape
        seen = rows * depth + rows * (rows + 1) // 2
        return Cost(nbytes, 2 * heads * d * seen, "f32")
    return Cost(nbytes, 0, "")


def _products(body: Graph, rows: int) -> tuple[int, str]:
    """(multiply-adds, recipe) of one product, or of the members of a group."""
    product = product_of(body)
    if not isinstance(product, str):
        live = min(rows, product.rows)
        return live * product.n * product.k * (1 if product.w1 is None else 2), product.act
    total, recipe = 0, ""
    for i, node in enumerate(body.nodes):
        if node.op not in ROOTS:
            macs, recipe = _products(body_of(body, i)[1], rows)
            total += macs
    return total, recipe


def _bytes(plan: Plan, launch: Launch, k: int, rows: int, depth: int) -> int:
    use = launch.uses[k]
    array = plan.arrays[use.array]
    if array.kind == "constant":
        if launch.kernel == "gather":
            return use.nbytes // array.type.shape[0] * rows
        return 0 if array.name == "rope" else use.nbytes
    if array.kind != "state" or len(array.type.shape) != 4:
        return 0
    pool = array.type.shape[1]  # [layers, positions, heads, width]
    if use.write:
        return use.nbytes * rows // pool
    attends = launch.kernel in ("attention", "attention_piece")
    return use.nbytes * min(depth + rows, pool) // pool if attends else 0
