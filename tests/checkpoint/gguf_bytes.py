"""GGUF files for tests: a sound one by the ``gguf`` package, and any others byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
TOKENS = ["<unk>", "", "a", "ß", "日本", "\n", "nul\0inside", "x" * 300, *map(str, range(400))]
MERGES = [f"m{i} n{i}" for i in range(500)]


def sound_file(path: Path) -> dict[str, np.ndarray]:
    """Write a small checkpoint with every kind of value and several formats; its raw tensors."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("a small one")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_add_bos_token(True)
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_int32("t.i32", -5)
    writer.add_uint64("t.u64", 1 << 40)
    writer.add_int64("t.i64", -(1 << 40))
    writer.add_float64("t.f64", 0.1)
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, 1.5])
    writer.add_array("t.bools", [True, False, True])
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * len(TOKENS))
    writer.add_token_merges(MERGES)
    raw: dict[str, np.ndarray] = {}
    for i, kind in enumerate(
        (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)
    ):
        data = rng.standard_normal((6 + i, 64)).astype(np.float32)
        name = f"blk.0.{kind.name.lower()}.weight"
        raw[name] = gguf.quants.quantize(data, kind)
        writer.add_tensor(name, raw[name], raw_dtype=kind)
    for kind, nbytes in ((Kind.Q4_K, 144), (Kind.Q6_K, 210), (Kind.IQ2_XXS, 66)):
        name = f"blk.1.{kind.name.lower()}.weight"
        raw[name] = rng.integers(0, 256, (5, nbytes), np.uint8)
        writer.add_tensor(name, raw[name], raw_dtype=kind)
    raw["norm"] = np.arange(7, dtype=np.float32)
    writer.add_tensor("norm", raw["norm"])
    raw["stack"] = rng.standard_normal((3, 2, 32)).astype(np.float16)
    writer.add_tensor("stack", raw["stack"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return raw


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(
    name: str | bytes = "w",
    dims: tuple[int, ...] = (32, 2),
    kind: int = 0,
    offset: int = 0,
    axes: int | None = None,
) -> bytes:
    """A row of the table; ``dims`` in GGUF's order, the contiguous axis first."""
    axes = len(dims) if axes is None else axes
    return (
        text(name)
        + struct.pack("<I", axes)
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def build(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: int = 1024,
    **changes: Any,
) -> bytes:
    """A file; by default one f32 tensor w of 2 x 32.  ``changes``: magic, version, counts."""
    pairs = [] if pairs is None else pairs
    tensors = [tensor()] if tensors is None else tensors
    head = struct.pack(
        "<4sIQQ",
        changes.get("magic", b"GGUF"),
        changes.get("version", 3),
        changes.get("tensor_count", len(tensors)),
        changes.get("pair_count", len(pairs)),
    )
    out = head + b"".join(pairs) + b"".join(tensors)
    alignment = changes.get("alignment", 32)
    return out + bytes(-len(out) % alignment) + bytes(data)
