"""A lane over a q8_0 cache: near its reference, equal bits however it runs; a tiny random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants

import lanewise as lw
from lanewise.checkpoint.gguf import Gguf
from lanewise.errors import UsageError
from tests.models.support import GOLDEN, interpreted

LAYERS, WIDTH, FFN, VOCAB, HEADS, KV = 2, 64, 96, 263, 2, 1  # heads of 32
IDS = [int(t) for t in np.random.default_rng(4).integers(0, VOCAB, 70)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of random Q8_0 weights, with the golden models' words."""
    rng, out = np.random.default_rng(3), tmp_path_factory.mktemp("q8") / "tiny.gguf"
    w = GGUFWriter(out, "llama")
    w.add_name("tiny")
    w.add_block_count(LAYERS)
    w.add_context_length(128)
    w.add_embedding_length(WIDTH)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    with Gguf(GOLDEN / "llama_tied.q8_0.gguf") as golden:
        words = {n: list(golden.metadata[f"tokenizer.ggml.{n}"]) for n in ("tokens", "merges")}
    w.add_token_list(words["tokens"])
    w.add_token_merges(words["merges"])
    w.add_eos_token_id(2)
    assert len(words["tokens"]) == VOCAB
    kind, head = GGMLQuantizationType.Q8_0, WIDTH // HEADS
    shapes = {
        "attn_q": (WIDTH, WIDTH), "attn_k": (KV * head, WIDTH), "attn_v": (KV * head, WIDTH),
        "attn_output": (WIDTH, WIDTH), "ffn_gate": (FFN, WIDTH), "ffn_up": (FFN, WIDTH),
        "ffn_down": (WIDTH, FFN),
    }  # fmt: skip
    names = {f"blk.{i}.{n}": s for i in range(LAYERS) for n, s in shapes.items()}
    for name, (n, k) in {"token_embd": (VOCAB, WIDTH), **names}.items():
        x = (rng.standard_normal((n, k)) * k**-0.5).astype(np.float32)
        w.add_tensor(f"{name}.weight", quants.quantize(x, kind), raw_dtype=kind)
    norms = [f"blk.{i}.{n}" for i in range(LAYERS) for n in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm"):
        w.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return out


def test_near_the_reference_and_not_without_the_cache_being_rounded(path: Path) -> None:
    """The references over a q8_0 cache; a code in a thousand may fall to the other side."""
    with lw.compile(path, activations="f32", kv="q8_0", threads=2) as lane:
        found = lane.logits(IDS)
    size = np.abs(found).max()
    near = np.abs(found - interpreted(path, IDS, kv="q8_0"))
    far = np.abs(found - interpreted(path, IDS, kv="f32"))
    assert near.max() <= 2e-3 * size and np.median(near) <= 1e-6 * size
    assert 1e-4 * size < far.max() <= 3e-2 * size


def test_nothing_of_how_changes_a_bit(path: Path) -> None:
    with lw.compile(path, kv="q8_0", threads=1) as lane:
        want = lane.logits(IDS)
        for chunk in (1, 3, 7, 64):
            assert np.array_equal(lane.logits(IDS, chunk=chunk), want), chunk
        text = lane.generate(IDS[:50], max_tokens=12, temperature=0)
        text.read()
        assert lane.forms["decode"].io["k"].startswith("state q8_0[2,")
    for more in ({"threads": 3}, {"hold": "all"}, {"max_chunk": 1}, {"context": 77}):
        with lw.compile(path, kv="q8_0", **more) as lane:  # type: ignore[arg-type]
            assert np.array_equal(lane.logits(IDS), want), more
            again = lane.generate(IDS[:50], max_tokens=12, temperature=0)
            again.read()
            assert again.ids == text.ids, more


def test_heads_that_hold_no_whole_groups_are_refused() -> None:
    with pytest.raises(UsageError) as e:
        lw.compile(GOLDEN / "llama_tied.q8_0.gguf", kv="q8_0")
    assert e.value.code == "usage.option" and e.value.place == "kv"
    assert "heads of 8" in e.value.remedy
