"""What GGUF checkpoints of plain decoders share: hyperparameter keys and tensor names.

Key and tensor names: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md) and the
`gguf` package's constants.
"""

from __future__ import annotations

import math
from typing import Final

from lanewise.checkpoint.source import Checkpoint, values
from lanewise.errors import collect
from lanewise.lane.spec import ModelSpec, Rope
from lanewise.models.checks import Expected, Hyper

# Bounds of sanity, far above any model in use: nothing is sized by an unchecked count.
MAX_LAYERS: Final = 1024
MAX_WIDTH: Final = 1 << 17
MAX_FFN: Final = 1 << 20
MAX_HEADS: Final = 4096
MAX_HEAD_DIM: Final = 1024
MAX_VOCAB: Final = 1 << 24
MAX_CONTEXT: Final = 1 << 28

ROPE_FACTORS: Final = "rope_freqs.weight"  # Llama 3's divisors of the rotary frequencies
PROJECTIONS: Final = (
    "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
)


def read_decoder(
    checkpoint: Checkpoint, architecture: str, *, style: str, qk_norm: bool = False
) -> ModelSpec:
    """The spec of a plain decoder from its metadata; refusals are collected and raised."""
    h = Hyper(checkpoint.metadata, architecture)
    heads = h.count("attention.head_count", MAX_HEADS)
    kv_heads = h.count("attention.head_count_kv", MAX_HEADS, default=heads)
    width = h.count("embedding_length", MAX_WIDTH)
    if heads % kv_heads:
        h.refuse("attention.head_count_kv", f"{heads} heads do not share {kv_heads} evenly")
    default_dim = width // heads if width % heads == 0 else None
    head_dim = h.count("attention.key_length", MAX_HEAD_DIM, default=default_dim)
    if h.count("attention.value_length", MAX_HEAD_DIM, default=head_dim) != head_dim:
        h.refuse("attention.value_length", f"it differs from the key's {head_dim}")
    name = checkpoint.metadata.get("general.name", "")
    h.absent("expert_count", "a mixture of experts")
    spec = ModelSpec(
        architecture=architecture,
        name=name[:128] if isinstance(name, str) else "",
        layers=h.count("block_count", MAX_LAYERS),
        width=width,
        ffn=h.count("feed_forward_length", MAX_FFN),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_vocab(h, checkpoint),
        context=h.count("context_length", MAX_CONTEXT),
        eps=h.number("attention.layer_norm_rms_epsilon", 1e-12, 0.1),
        scale=h.number("attention.scale", 1e-6, 1e3, default=1.0 / math.sqrt(head_dim)),
        rope=_rope(h, checkpoint, style, head_dim),
        window=h.count("attention.sliding_window", MAX_CONTEXT, default=0, low=0),
        tied="output.weight" not in checkpoint.tensors,
        qk_norm=qk_norm,
        biases=tuple(n for n in PROJECTIONS if f"blk.0.{n}.bias" in checkpoint.tensors),
    )
    collect(h.errors)
    return spec


def _vocab(h: Hyper, checkpoint: Checkpoint) -> int:
    """The rows of the embedding (a missing embedding is refused with the tensors)."""
    table = checkpoint.tensors.get("token_embd.weight")
    rows = table.shape[0] if table is not None and len(table.shape) == 2 else 1
    if not 1 <= rows <= MAX_VOCAB:
        h.refuse("vocab_size", f"the embedding has {rows} rows, not 1 to {MAX_VOCAB}")
        return 1
    return rows


def _rope(h: Hyper, checkpoint: Checkpoint, style: str, head_dim: int) -> Rope:
    rotary = h.count("rope.dimension_count", head_dim, default=head_dim, low=2)
    if rotary % 2:
        h.refuse("rope.dimension_count", f"it is {rotary}: an odd number of channels cannot turn")
    base = h.number("rope.freq_base", 1.0, 1e12, default=10000.0)
    scale = 1.0
    kind = h.word("rope.scaling.type", "none")
    if kind == "linear" or h.get("rope.scale_linear") is not None:
        legacy = h.get("rope.scaling.factor") is None and kind != "linear"
        key = "rope.scale_linear" if legacy else "rope.scaling.factor"
        scale = h.number(key, 1e-3, 1e6)
    elif kind not in ("none", ""):
        h.refuse("rope.scaling.type", f"we do not run {kind[:32]!r} rope scaling",
                 "none and linear run; Llama 3's factors (rope_freqs.weight) run too")
    return Rope(style, base, rotary, scale, _factors(h, checkpoint, rotary // 2))


def _factors(h: Hyper, checkpoint: Checkpoint, pairs: int) -> tuple[float, ...]:
    tensor = checkpoint.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return ()
    if tuple(tensor.shape) != (pairs,) or tensor.format != "f32":
        h.refuse("rope.dimension_count", f"{ROPE_FACTORS} is {tensor.format}"
                 f" {list(tensor.shape)}, not f32 [{pairs}]")
        return ()
    factors = tuple(map(float, values(checkpoint, ROPE_FACTORS)))
    if not all(math.isfinite(f) and f > 0 for f in factors):
        h.refuse("rope.dimension_count", f"{ROPE_FACTORS} holds a factor that is not above 0")
        return ()
    return factors


def decoder_tensors(spec: ModelSpec) -> tuple[Expected, ...]:
    """Every tensor that the step reads."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    width, ffn = spec.width, spec.ffn
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "attn_q": (q, width), "attn_k": (kv, width), "attn_v": (kv, width),
        "attn_output": (width, q),
        "ffn_norm": (width,),
        "ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn),
    }
    if spec.qk_norm:
        shapes |= {"attn_q_norm": (spec.head_dim,), "attn_k_norm": (spec.head_dim,)}
    found = [Expected("token_embd.weight", (spec.vocab, width))]
    for i in range(spec.layers):
        found += [Expected(f"blk.{i}.{name}.weight", shape) for name, shape in shapes.items()]
        found += [Expected(f"blk.{i}.{name}.bias", shapes[name][:1]) for name in spec.biases]
    found.append(Expected("output_norm.weight", (width,)))
    if not spec.tied:
        found.append(Expected("output.weight", (spec.vocab, width)))
    return tuple(found)
