"""Encoders of k-quants and files in another format, held against the `gguf` package's decoders."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from benchmarks import kquants, requantize, telling

BITS = {"q4_k": 4, "q5_k": 5, "q6_k": 6}
SUB = {"q4_k": 32, "q5_k": 32, "q6_k": 16}


def decoded(name: str, raw: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(raw, GGMLQuantizationType[name.upper()])


@pytest.mark.parametrize("name", kquants.ENCODERS)
def test_every_element_is_near(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((12, 512)).astype(np.float32)
    x[0, :64] = 0
    x[1] = 0
    x[2] = 3.5
    x[3] = -np.abs(x[3])
    x[4] *= 1e-2
    back = decoded(name, kquants.encode(name, x))
    assert back.shape == x.shape
    sub, levels = x.reshape(len(x), -1, SUB[name]), 1 << BITS[name]
    if name == "q6_k":
        step = np.abs(sub).max(axis=2) / (levels / 2) * 2  # +32 has no code: a whole step there
    else:
        step = (sub.max(axis=2).clip(0) - sub.min(axis=2).clip(None, 0)) / (levels - 1)
    # Rounded scales and mins are off by half of 1/63 (1/127) of the block's largest, and codes
    # are clipped where the largest would be beyond them.
    whole = np.repeat(np.abs(x).reshape(len(x), -1, 256).max(axis=2), 256 // SUB[name], axis=1)
    most = step / 2 + whole * (2.1 / (127 if name == "q6_k" else 63)) + 1e-7
    assert (np.abs(back - x).reshape(sub.shape).max(axis=2) <= most).all()
    error = np.sqrt(((back - x)[5:] ** 2).mean() / (x[5:] ** 2).mean())
    assert error < {4: 0.09, 5: 0.045, 6: 0.025}[BITS[name]]
    assert (back[1] == 0).all()


@pytest.mark.parametrize("name", kquants.ENCODERS)
def test_what_the_grid_holds_comes_back(name: str) -> None:
    """Values on a grid that every scale can express are exact: codes land in their own places."""
    rng = np.random.default_rng(2)
    low, high = (-32, 31) if name == "q6_k" else (0, (1 << BITS[name]) - 1)
    x = rng.integers(low, high + 1, (3, 256)).astype(np.float32)
    ends = x.reshape(3, -1, SUB[name])
    ends[:, :, 0], ends[:, :, 1] = low, high
    scale = 127 if name == "q6_k" else 63
    assert np.array_equal(decoded(name, kquants.encode(name, x * scale)), x * scale)


def model(path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {"token_embd.weight": (64, 256), "blk.0.attn_q.weight": (32, 256),
              "blk.0.odd.weight": (16, 96), "blk.0.odder.weight": (8, 40)}  # fmt: skip
    made = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    made["blk.0.attn_norm.weight"] = np.ones(256, np.float32)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "bc", "d"])
    writer.add_token_types([1, 1, 3])
    writer.add_file_type(7)
    for name, x in made.items():
        writer.add_tensor(name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def test_a_file_keeps_all_but_its_matrices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = model(tmp_path / "a.gguf")
    out = tmp_path / "b.gguf"
    requantize.main([str(tmp_path / "a.gguf"), "q4_k", str(out), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == out.stat().st_size
    assert {k: v["tensors"] for k, v in told["formats"].items()} == {
        "q6_k": 1, "q4_k": 1, "q8_0": 1, "f16": 1, "f32": 1,
    }  # fmt: skip
    assert told["formats"]["q4_k"]["bytes"] == 32 * 144
    found = GGUFReader(out)
    kinds = {t.name: t.tensor_type.name for t in found.tensors}
    assert kinds == {
        "token_embd.weight": "Q6_K", "blk.0.attn_q.weight": "Q4_K", "blk.0.odd.weight": "Q8_0",
        "blk.0.odder.weight": "F16", "blk.0.attn_norm.weight": "F32",
    }  # fmt: skip
    for t in found.tensors:
        back = gguf.quants.dequantize(t.data, t.tensor_type).reshape(made[t.name].shape)
        error = np.sqrt(((back - made[t.name]) ** 2).mean())
        assert error < (0.09 if t.name != "blk.0.attn_norm.weight" else 1e-30)
    fields = found.fields
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "bc", "d"]
    assert fields["tokenizer.ggml.token_type"].contents() == [1, 1, 3]
    assert fields["llama.attention.layer_norm_rms_epsilon"].contents() == np.float32(1e-5)
    assert fields["general.architecture"].contents() == "llama"
    assert "general.file_type" not in fields


def test_parts_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model(tmp_path / "a.gguf")
    outs = []
    for part in (1, 1 << 22):
        monkeypatch.setattr(requantize, "_PART", part)
        outs.append(tmp_path / f"{part}.gguf")
        requantize.requantize(str(tmp_path / "a.gguf"), "q5_1", str(outs[-1]), "q8_0")
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_table_is_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    args = telling.parser("x").parse_args([])
    telling.tell(args, {}, ("a", "long head"), [("one", "2"), ("three", "4")], ["note"])
    assert capsys.readouterr().out.splitlines() == [
        "| a     | long head |", "| ----- | --------: |", "| one   |         2 |",
        "| three |         4 |", "note",
    ]  # fmt: skip


def test_ratios_are_within_rounds() -> None:
    assert telling.ratio([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]) == 3.0
    assert telling.counts("1,16") == [1, 16]
    with pytest.raises(ValueError):
        telling.counts("1,0")
