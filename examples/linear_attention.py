"""A hybrid layer: a short convolution, then gated delta attention, states carried by the caller.

The state of a sequence is a matrix per head, whatever its length: no cache grows.  One program
serves prompts, single steps and any mix, by how many rows each sequence contributes.

    python examples/linear_attention.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lanewise import tensor as t

ROWS, SLOTS, HEADS, KEY, VALUE, TAPS = 12, 2, 4, 16, 32, 4
WIDTH = HEADS * KEY


def layer(b: t.Builder) -> None:
    """Record the layer: x f32 [T, W] -> y f32 [T, H, V]."""
    x = b.input("x", t.f32, (ROWS, WIDTH))
    extents = b.input("extents", t.u32, (SLOTS,))
    mixed, _ = t.conv_ring(x, b.weight("taps", t.f32, (TAPS, WIDTH)),
                           b.state("ring", t.f32, (SLOTS, TAPS - 1, WIDTH)), query_extents=extents)
    mixed = t.silu(mixed)

    def project(name: str, inner: int) -> t.Tensor:
        return t.linear(mixed, b.weight(name, t.f16, (HEADS * inner, WIDTH)))

    q, k = (t.reshape(project(n, KEY), (ROWS, HEADS, KEY)) for n in ("q", "k"))
    k = t.rms_norm(k, b.constant(np.full(KEY, KEY**-0.5, np.float32)), 1e-6)  # of length 1
    v = t.reshape(project("v", VALUE), (ROWS, HEADS, VALUE))
    alpha, beta = (t.sigmoid(project(n, 1)) for n in ("alpha", "beta"))
    y, _ = t.linear_attention(
        q, k, v, b.state("memory", t.f32, (SLOTS, HEADS, VALUE, KEY)), alpha=alpha, beta=beta,
        query_extents=extents, decay="before",
    )  # fmt: skip
    b.output("y", y)


def random_weights(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    sizes = {"q": KEY, "k": KEY, "v": VALUE, "alpha": 1, "beta": 1}
    made = {n: rng.standard_normal((HEADS * s, WIDTH)) / WIDTH**0.5 for n, s in sizes.items()}
    return {"taps": rng.standard_normal((TAPS, WIDTH)).astype(np.float32),
            **{n: w.astype(np.float16) for n, w in made.items()}}


def run(plan: t.Plan, weights: dict[str, Any], x: np.ndarray[Any, Any], chunk: int
        ) -> np.ndarray[Any, Any]:
    """One sequence, in slot 1, cut into chunks: [T, H, V]."""
    states = {"ring": np.zeros((SLOTS, TAPS - 1, WIDTH), np.float32),
              "memory": np.zeros((SLOTS, HEADS, VALUE, KEY), np.float32)}
    parts: list[np.ndarray[Any, Any]] = []
    for at in range(0, len(x), chunk):
        rows = np.zeros((ROWS, WIDTH), np.float32)
        count = len(x[at : at + chunk])
        rows[:count] = x[at : at + chunk]
        y = np.zeros((ROWS, HEADS, VALUE), np.float32)
        plan.run(weights, **states, x=rows, extents=np.array([0, count], np.uint32), y=y)
        parts.append(y[:count])
    return np.concatenate(parts)


def main() -> None:
    x = np.random.default_rng(1).standard_normal((30, WIDTH)).astype(np.float32)
    with t.Runtime("cpu") as rt:
        b = rt.builder("hybrid")
        layer(b)
        with b.compile() as plan:
            results = [run(plan, random_weights(), x, chunk) for chunk in (1, 5, ROWS)]
    assert all((r == results[0]).all() for r in results)
    print("30 tokens: one by one, by five and by twelve give the same bits")


if __name__ == "__main__":
    main()
