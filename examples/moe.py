"""A mixture of experts: each token to its best two of eight, every expert's matrix read once.

The router's scores choose experts; `route` sorts the tokens by expert, `grouped_matmul` multiplies
each expert's tokens by that expert's matrices, `combine` brings the rows back, weighted.

    python examples/moe.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lanewise import tensor as t

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 16, 64, 96, 8, 2


def layer(b: t.Builder) -> None:
    """Record the layer: x f32 [T, W] -> y f32 [T, W], and how many tokens each expert got."""
    x = b.input("x", t.f32, (TOKENS, WIDTH))
    scores = t.softmax(t.linear(x, b.weight("router", t.f32, (EXPERTS, WIDTH))))
    weights, ids = t.top_k(scores, CHOSEN)
    counts, tokens, order = t.route(ids, EXPERTS)
    rows = t.gather_rows(x, tokens)
    gate, up = (t.grouped_matmul(rows, b.weight(n, t.f16, (EXPERTS, WIDTH, INNER)), counts)
                for n in ("gate", "up"))
    made = t.grouped_matmul(t.swiglu(gate, up), b.weight("down", t.f16, (EXPERTS, INNER, WIDTH)),
                            counts)
    b.output("y", t.combine(made, weights, order))
    b.output("counts", counts)


def random_values(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    f16 = {"gate": (EXPERTS, WIDTH, INNER), "up": (EXPERTS, WIDTH, INNER),
           "down": (EXPERTS, INNER, WIDTH)}
    return {
        "x": rng.standard_normal((TOKENS, WIDTH)).astype(np.float32),
        "router": rng.standard_normal((EXPERTS, WIDTH)).astype(np.float32),
        **{n: (rng.standard_normal(s) / s[1] ** 0.5).astype(np.float16) for n, s in f16.items()},
    }


def main() -> None:
    out = {"y": np.zeros((TOKENS, WIDTH), np.float32), "counts": np.zeros(EXPERTS, np.uint32)}
    with t.Runtime("cpu") as rt:
        b = rt.builder("moe")
        layer(b)
        with b.compile() as plan:
            plan.submit(random_values(), **out).wait()
    print("tokens of each expert:", *out["counts"])


if __name__ == "__main__":
    main()
