"""From logits to tokens."""

from __future__ import annotations

from lanewise.tensor.handles import Tensor
from lanewise.tensor.ops import builder_of


def argmax(logits: Tensor) -> Tensor:
    """Index of the largest of the last axis, u32; the lowest on ties; NaN never wins."""
    return builder_of("argmax", logits).op("argmax", (logits,))


def sample_rows(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor,
    draws: Tensor,
) -> Tensor:  # fmt: skip
    """One token u32 [O] per row of logits f32 [O, V], every option a tensor [O] (top_k u32):
    one plan serves any mix.  temperature 0 is argmax; top_k 0, top_p 1, min_p 0 are off."""
    b = builder_of("sample_rows", logits)
    return b.op("sample_rows", (logits, temperature, top_k, top_p, min_p, draws))
