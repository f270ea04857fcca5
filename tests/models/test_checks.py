"""A checkpoint against what its family expects: every refusal by code and place, collected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanewise.checkpoint.source import TensorInfo
from lanewise.errors import LanewiseError, ModelError, Refused
from lanewise.lane.form import Cut
from lanewise.lane.spec import ModelSpec
from lanewise.models.checks import MATRIX_FORMATS
from lanewise.models.decoder import decoder_tensors
from lanewise.models.family import FAMILIES, family_of, open_model


class Fake:
    """A checkpoint in memory: 2 layers, width 64, 4 heads of 16 over 2 kv heads."""

    def __init__(self, architecture: str = "llama") -> None:
        self.path = Path("fake.gguf")
        self.metadata: dict[str, Any] = {"general.architecture": architecture}
        for key, value in {
            "block_count": 2, "context_length": 256, "embedding_length": 64,
            "feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2,
            "attention.layer_norm_rms_epsilon": 1e-5,
        }.items():
            self.metadata[f"{architecture}.{key}"] = value
        self.tensors: dict[str, TensorInfo] = {}
        self.bytes: dict[str, bytes] = {}
        qk = architecture == "qwen3"
        shapes = {
            "attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64),
            "attn_output": (64, 64), "ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64),
            "ffn_down": (64, 96), **({"attn_q_norm": (16,), "attn_k_norm": (16,)} if qk else {}),
        }
        self.put("token_embd.weight", (100, 64), "q8_0")
        self.put("output_norm.weight", (64,))
        for i in range(2):
            for name, shape in shapes.items():
                self.put(f"blk.{i}.{name}.weight", shape, "q4_1" if len(shape) == 2 else "f32")

    def put(self, name: str, shape: tuple[int, ...], format: str = "f32") -> None:
        self.tensors[name] = TensorInfo(name, format, shape, 0, 0)

    def set(self, key: str, value: Any) -> None:
        self.metadata[f"{self.metadata['general.architecture']}.{key}"] = value

    def raw(self, name: str) -> Any:
        return np.frombuffer(self.bytes[name], np.uint8)


def refusals(fake: Fake) -> list[tuple[str, str]]:
    """(code, place) of all that is refused."""
    try:
        open_model(fake)  # type: ignore[arg-type]
    except Refused as e:
        found: tuple[LanewiseError, ...] = e.errors
    except ModelError as e:
        found = (e,)
    else:
        return []
    return [(e.code, e.place) for e in found]


def spec_of(fake: Fake) -> ModelSpec:
    return open_model(fake)[1]  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_sound_checkpoint(architecture: str) -> None:
    spec = spec_of(Fake(architecture))
    assert (spec.layers, spec.width, spec.ffn, spec.vocab) == (2, 64, 96, 100)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.scale) == (4, 2, 16, 0.25)
    assert spec.tied and spec.rope.rotary == 16 and spec.rope.base == 10000.0
    assert spec.rope.style == ("half" if architecture == "qwen3" else "interleaved")
    assert spec.format_of["token_embd.weight"] == "q8_0"
    assert {n for n, _ in spec.formats} == {e.name for e in decoder_tensors(spec)}


@pytest.mark.parametrize("architecture", ["", "mamba", None, 7, "x" * 5000])
def test_unknown_architectures(architecture: Any) -> None:
    with pytest.raises(ModelError) as e:
        family_of(architecture)
    assert e.value.code == "model.architecture" and len(str(e.value)) < 400
    assert "llama" in e.value.remedy and "qwen3" in e.value.remedy


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_tensor_is_needed(architecture: str) -> None:
    whole = Fake(architecture)
    for name in whole.tensors:
        fake = Fake(architecture)
        del fake.tensors[name]
        assert ("model.missing_tensor", name) in refusals(fake)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_shape_is_checked(architecture: str) -> None:
    for name, info in Fake(architecture).tensors.items():
        for shape in ((*info.shape, 1), (info.shape[0] + 16, *info.shape[1:]), info.shape[::-1]):
            if shape == info.shape or (name == "token_embd.weight" and shape[1:] == (64,)):
                continue  # the embedding's rows are the vocabulary
            fake = Fake(architecture)
            fake.put(name, shape, info.format)
            assert refusals(fake), (name, shape)


def test_formats_that_do_not_run() -> None:
    for format in ("iq4_xs", "q2_k", "mxfp4", "i32", "f64"):
        fake = Fake()
        fake.put("blk.1.ffn_up.weight", (96, 64), format)
        fake.put("blk.1.ffn_norm.weight", (64,), "f16")
        assert refusals(fake) == [
            ("model.format", "blk.1.ffn_norm.weight"), ("model.format", "blk.1.ffn_up.weight"),
        ]
    for format in MATRIX_FORMATS:
        fake = Fake()
        fake.put("blk.1.ffn_up.weight", (96, 64), format)
        assert refusals(fake) == []


def test_many_missing_tensors_are_counted() -> None:
    fake = Fake()
    fake.set("block_count", 500)
    found = refusals(fake)
    assert len(found) == 9 and {c for c, _ in found} == {"model.missing_tensor"}


def test_kinds_of_errors_come_together() -> None:
    fake = Fake()
    del fake.tensors["output_norm.weight"]
    fake.put("blk.0.attn_q.weight", (60, 64), "q4_1")
    fake.put("blk.0.attn_k.weight", (32, 64), "iq4_nl")
    fake.put("blk.0.ffn_gate_exps.weight", (4, 96, 64), "q4_1")
    assert [c for c, _ in refusals(fake)] == [
        "model.missing_tensor", "model.shape", "model.format", "model.unknown_tensor",
    ]


BAD: list[tuple[str, Any]] = [
    ("block_count", 0), ("block_count", -1), ("block_count", 1 << 31), ("block_count", 2.0),
    ("block_count", True), ("block_count", "2"), ("block_count", np.arange(2)),
    ("block_count", None),
    ("embedding_length", 0), ("embedding_length", 1 << 40), ("embedding_length", None),
    ("feed_forward_length", [96, 96]), ("feed_forward_length", 0),
    ("attention.head_count", 0), ("attention.head_count", 1 << 20),
    ("attention.head_count_kv", 3), ("attention.head_count_kv", 0),
    ("attention.head_count_kv", np.array([2, 2])),
    ("attention.key_length", 0), ("attention.key_length", 1 << 20),
    ("attention.value_length", 8), ("attention.value_length", np.array([16, 16])),
    ("attention.layer_norm_rms_epsilon", float("nan")),
    ("attention.layer_norm_rms_epsilon", float("inf")),
    ("attention.layer_norm_rms_epsilon", 0.0), ("attention.layer_norm_rms_epsilon", -1e-5),
    ("attention.layer_norm_rms_epsilon", "small"), ("attention.layer_norm_rms_epsilon", None),
    ("rope.dimension_count", 7), ("rope.dimension_count", 0), ("rope.dimension_count", 18),
    ("rope.freq_base", float("nan")), ("rope.freq_base", 0.0), ("rope.freq_base", float("inf")),
    ("rope.scaling.type", "yarn"), ("rope.scaling.type", "longrope"), ("rope.scaling.type", 5),
    ("rope.scaling.type", "linear"), ("rope.scale_linear", 0.0),
    ("context_length", 0), ("context_length", 1 << 62), ("context_length", None),
    ("expert_count", 8), ("expert_count", np.array([8])),
    ("attention.sliding_window", -1),
]


@pytest.mark.parametrize(("key", "value"), BAD, ids=lambda v: str(v)[:32])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_nonsense_hyperparameters(architecture: str, key: str, value: Any) -> None:
    fake = Fake(architecture)
    fake.set(key, value)
    if value is None:
        del fake.metadata[f"{architecture}.{key}"]
    found = refusals(fake)
    assert found and all(code == "model.hyperparameter" for code, _ in found)
    if key != "rope.scaling.type" or value != "linear":
        assert f"{architecture}.{key}" in [place for _, place in found]


def test_all_nonsense_at_once() -> None:
    fake = Fake()
    fake.set("block_count", 0)
    fake.set("rope.freq_base", float("nan"))
    fake.set("attention.layer_norm_rms_epsilon", 5.0)
    assert len(refusals(fake)) == 3


def test_heads_that_do_not_divide_the_width_need_a_stated_head() -> None:
    fake = Fake()
    fake.set("attention.head_count", 5)
    fake.set("attention.head_count_kv", 5)
    assert ("model.hyperparameter", "llama.attention.key_length") in refusals(fake)


def rotated(change: Callable[[Fake], None]) -> ModelSpec:
    fake = Fake()
    change(fake)
    return spec_of(fake)


def test_linear_rope_scaling() -> None:
    def change(fake: Fake) -> None:
        fake.set("rope.scaling.type", "linear")
        fake.set("rope.scaling.factor", 4.0)

    spec = rotated(change)
    assert spec.rope.scale == 4.0
    plain = rotated(lambda fake: None).rope.table(64)
    assert np.array_equal(spec.rope.table(256)[::4], plain)  # a quarter of the angle
    assert rotated(lambda fake: fake.set("rope.scale_linear", 2.0)).rope.scale == 2.0
    assert rotated(lambda fake: fake.set("rope.scaling.type", "none")).rope.scale == 1.0


@pytest.mark.parametrize(("factors", "good"), [
    ([1, 1, 2, 2, 4, 4, 8, 8], True), ([1, 1, 2, 2, 4, 4, 8, 0], False),
    ([1, 1, 2, 2, 4, 4, 8, float("nan")], False), ([1, 2], False), ([1] * 7 + [-1], False),
])  # fmt: skip
def test_rope_factors(factors: list[float], good: bool) -> None:
    fake = Fake()
    fake.put("rope_freqs.weight", (len(factors),))
    fake.bytes["rope_freqs.weight"] = np.array(factors, np.float32).tobytes()
    if not good:
        assert refusals(fake)[0][0] == "model.hyperparameter"
        return
    table = spec_of(fake).rope.table(9)
    angle = 8 * 10000.0 ** (-14 / 16) / 8
    assert table[8, 7] == np.float32(np.cos(angle)) and table[8, 15] == np.float32(np.sin(angle))


def test_an_untied_head_and_biases() -> None:
    fake = Fake()
    fake.put("output.weight", (100, 64), "q6_k")
    for i in range(2):
        fake.put(f"blk.{i}.attn_q.bias", (64,))
    spec = spec_of(fake)
    assert not spec.tied and spec.biases == ("attn_q",)
    del fake.tensors["blk.1.attn_q.bias"]
    assert refusals(fake) == [("model.missing_tensor", "blk.1.attn_q.bias")]


def test_tensors_that_no_step_reads_are_reported() -> None:
    fake = Fake()
    fake.put("rope_freqs.weight", (8,))
    fake.bytes["rope_freqs.weight"] = np.ones(8, np.float32).tobytes()
    fake.put("extra.weight", (3,))
    family, spec = open_model(fake)  # type: ignore[arg-type]
    assert family.unused(spec, fake) == ("extra.weight",)  # type: ignore[arg-type]


def test_a_window_reaches_attention() -> None:
    fake = Fake()
    fake.set("attention.sliding_window", 32)
    family, spec = open_model(fake)  # type: ignore[arg-type]
    graph = family.author(spec, Cut("decode", 1))
    assert {n.attr("window") for n in graph.nodes if n.op == "attention"} == {32}


def test_a_spec_is_hashable_and_sizes_its_cache() -> None:
    spec = spec_of(Fake())
    assert hash(spec) == hash(spec_of(Fake()))
    assert spec.kv_bytes(65, "f16") == 2 * 2 * 128 * 2 * 16 * 2
    assert spec.kv_bytes(64, "f32") == 2 * 2 * 64 * 2 * 16 * 4
    assert spec.kv_bytes(64, "q8_0") == 2 * 2 * 64 * 2 * (16 + 1)  # an f16 for 32 channels
