"""Makes the golden models: random tiny checkpoints and their logits by PyTorch and transformers.

    python tests/golden/make_golden.py            # needs torch, transformers, gguf, numpy

Not run by the suite: it reads what this wrote (tests/golden/*.gguf and logits.npz).  The logits
of a quantised file come from the same model with the file's own decoded weights, in float64
(transformers keeps norms and rope angles in f32, so they are good to about 1e-6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
CONTEXT = 128
TOKENS = 70  # past one page of 64 positions
ROWS = (0, 1, 2, 7, 31, 63, 64, 69)  # whose logits are kept
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ a", "i n")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """GPT-2's printable stand-in of every byte: itself, or the next code from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


VOCAB = [*SPECIAL, *byte_tokens(), *(m.replace(" ", "") for m in MERGES)]


@dataclass(frozen=True)
class Golden:
    name: str
    architecture: str
    make: Callable[[], Any]
    formats: tuple[str, ...]
    pre: str


def llama(**more: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(VOCAB), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5, **more,
    ))


def qwen3(tied: bool) -> Any:
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(VOCAB), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-6,
        max_position_embeddings=CONTEXT, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ))


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}
MODELS = (
    Golden("llama_tied", "llama", lambda: llama(tie_word_embeddings=True),
           ("F32", "F16", "Q8_0"), "gpt-2"),
    Golden("llama3_untied", "llama",
           lambda: llama(tie_word_embeddings=False, attention_bias=True, rope_parameters=LLAMA3),
           ("F32",), "gpt-2"),
    Golden("qwen3_untied", "qwen3", lambda: qwen3(False), ("F32",), "qwen2"),
    Golden("qwen3_tied", "qwen3", lambda: qwen3(True), ("F16", "Q8_0"), "qwen2"),
)

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
             "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def randomise(model: Any, rng: np.random.Generator) -> None:
    """Weights that keep activations near 1, gains and biases that are not trivial."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            shape = tuple(p.shape)
            if len(shape) == 2:
                spread = 0.5 if "embed" in name else shape[1] ** -0.5
                values = rng.standard_normal(shape) * spread
            else:
                values = rng.uniform(0.5, 1.5, shape) if "norm" in name else (
                    rng.standard_normal(shape) * 0.3)
            p.copy_(torch.tensor(values.astype(np.float32)))


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k of a llama file: halves of every head interleaved, as converters store it."""
    dim = rows.shape[0] // heads
    order = np.arange(rows.shape[0]).reshape(heads, 2, dim // 2).swapaxes(1, 2).reshape(-1)
    return rows[order]


def stored(data: np.ndarray, kind: GGMLQuantizationType) -> tuple[np.ndarray, np.ndarray]:
    """(bytes as stored, the f32 that they decode to)."""
    if data.ndim == 1 or kind == GGMLQuantizationType.F32:
        return data, data
    if kind == GGMLQuantizationType.F16:
        half = data.astype(np.float16)
        return half, half.astype(np.float32)
    raw = quants.quantize(data, kind)
    return raw, quants.dequantize(raw, kind)


def write(golden: Golden, model: Any, format: str, path: Path) -> None:
    """Write the model's file, and give the model the numbers that the file holds."""
    kind, config = GGMLQuantizationType[format], model.config
    w = GGUFWriter(path, golden.architecture)
    w.add_name(f"golden {golden.name}")
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if golden.architecture == "qwen3":
        w.add_key_length(config.head_dim)
        w.add_value_length(config.head_dim)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(golden.pre)
    w.add_token_list(VOCAB)
    w.add_token_types([3] * len(SPECIAL) + [1] * (len(VOCAB) - len(SPECIAL)))
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(0)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT)
    rotary = model.model.rotary_emb
    if rotary.rope_type == "llama3":
        dim = config.hidden_size // config.num_attention_heads
        plain = config.rope_parameters["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
        factors = plain / rotary.inv_freq.double().numpy()
        w.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    with torch.no_grad():
        for name, p in model.named_parameters():
            raw, back = stored(p.float().numpy(), kind)
            p.copy_(torch.tensor(back))
            if golden.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
                many = config.num_attention_heads
                raw = permuted(raw, many if "q_proj" in name else config.num_key_value_heads)
            quantised = raw.dtype == np.uint8
            w.add_tensor(gguf_name(name), raw, raw_dtype=kind if quantised else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> None:
    rng = np.random.default_rng(20)
    tokens = rng.integers(len(SPECIAL), len(VOCAB), TOKENS)
    kept: dict[str, np.ndarray] = {
        "tokens": tokens.astype(np.uint32), "rows": np.array(ROWS, np.uint32),
    }
    for golden in MODELS:
        model = golden.make().eval()
        randomise(model, rng)
        fresh = {k: v.clone() for k, v in model.state_dict().items()}
        for format in golden.formats:
            model = model.float()
            model.load_state_dict(fresh)
            name = f"{golden.name}.{format.lower()}"
            write(golden, model, format, HERE / f"{name}.gguf")
            with torch.no_grad():
                logits = model.double()(torch.tensor(tokens)[None]).logits[0]
            kept[name] = logits.numpy()[list(ROWS)].astype(np.float32)
            print(f"{name}: {(HERE / f'{name}.gguf').stat().st_size} bytes,"
                  f" logits within {np.abs(kept[name]).max():.2f}")
    np.savez(HERE / "logits.npz", **kept)


if __name__ == "__main__":
    main()
