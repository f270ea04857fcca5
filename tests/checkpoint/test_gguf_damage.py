"""Damaged and hostile GGUF files: one named error or a sound opening, quickly, in little memory."""

from __future__ import annotations

import resource
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lanewise.checkpoint.gguf import Gguf
from lanewise.checkpoint.gguf_file import LIMITS
from lanewise.errors import CheckpointError
from tests.checkpoint import gguf_bytes as gb

SECOND = 1.0  # of CPU time: others may use the machine
MEMORY = 200 << 20
HUGE = [0xFFFFFFFFFFFFFFFF, 1 << 63, (1 << 63) - 1, 1 << 61, 1 << 40, 1 << 32]


def open_and_read_all(path: Path) -> str:
    """'' if the file opened and all of it could be read, else the code of the refusal."""
    try:
        with Gguf(path) as model:
            for key in model.metadata:
                model.metadata[key]
            for name in model.tensors:
                model.raw(name).sum()
            assert len(model.digest) == 64
    except CheckpointError as error:
        assert error.code.startswith("checkpoint.") and error.remedy and error.place
        return error.code
    return ""


def measured(path: Path) -> str:
    begin = time.process_time()
    code = open_and_read_all(path)
    assert time.process_time() - begin < SECOND
    return code


def q(value: int) -> bytes:
    return struct.pack("<Q", value)


STRUCTURE: list[tuple[str, str, bytes]] = [
    ("not a gguf", "magic", b"PK\3\4" + bytes(64)),
    ("only part of the magic", "truncated", b"GGU"),
    ("nothing after the magic", "truncated", b"GGUF"),
    ("version 1", "version", gb.build(version=1)),
    ("version 4", "version", gb.build(version=4)),
    ("version 0", "version", gb.build(version=0)),
    ("big endian", "endian", struct.pack(">4sIQQ", b"GGUF", 3, 1, 1) + bytes(64)),
    ("no tensors", "empty", gb.build(tensors=[])),
    ("more tensors than there are", "shape", gb.build(tensor_count=2)),
    ("more pairs than there are", "count", gb.build(pair_count=1)),
    ("an array of arrays", "nested", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.ARRAY, 1, b""))])),
    ("arrays without end", "nested", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.ARRAY, 1, b"") * 100000)])),
    ("a type that is not", "type", gb.build([gb.pair("a", 13, b"")])),
    ("an array of a type that is not", "type", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(99, 1, b""))])),
    ("a bool of 2", "type", gb.build([gb.pair("a", gb.BOOL, b"\2")])),
    ("an array with a bool of 2", "type", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.BOOL, 3, b"\0\1\2"))])),
    ("the same key twice", "duplicate", gb.build([gb.pair("a", gb.U8, b"\1")] * 2)),
    ("the same tensor twice", "duplicate", gb.build(tensors=[
        gb.tensor("w"), gb.tensor("w", offset=256)])),
    ("a key that is not UTF-8", "utf8", gb.build([gb.pair(b"\xff\xfe", gb.U8, b"\1")])),
    ("text that is not UTF-8", "utf8", gb.build([gb.pair("a", gb.STRING, gb.text(b"\xc3"))])),
    ("an array with text that is not UTF-8", "utf8", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.STRING, 2, gb.text("ok") + gb.text(b"\x80")))])),
    ("a name that is not UTF-8", "utf8", gb.build(tensors=[gb.tensor(b"\xed\xa0\x80")])),
    ("a very long name", "count", gb.build(tensors=[gb.tensor("n" * 1025)])),
    ("an alignment of 0", "alignment", gb.build([
        gb.pair("general.alignment", gb.U32, bytes(4))])),
    ("an alignment of 48", "alignment", gb.build([
        gb.pair("general.alignment", gb.U32, struct.pack("<I", 48))])),
    ("an alignment of 2^31", "truncated", gb.build([
        gb.pair("general.alignment", gb.U32, struct.pack("<I", 1 << 31))])),
    ("an alignment that is text", "type", gb.build([
        gb.pair("general.alignment", gb.STRING, gb.text("32"))])),
    ("an alignment that is an array", "type", gb.build([
        gb.pair("general.alignment", gb.ARRAY, gb.array(gb.U32, 1, struct.pack("<I", 32)))])),
    ("no axes", "shape", gb.build(tensors=[gb.tensor(dims=())])),
    ("five axes", "shape", gb.build(tensors=[gb.tensor(dims=(2,) * 5)])),
    ("4294967295 axes", "shape", gb.build(tensors=[gb.tensor(axes=0xFFFFFFFF)])),
    ("an axis of 0", "shape", gb.build(tensors=[gb.tensor(dims=(32, 0))])),
    ("rows that are not whole blocks", "shape", gb.build(tensors=[
        gb.tensor(dims=(33, 2), kind=2)])),
    ("an unknown tensor type", "type", gb.build(tensors=[gb.tensor(kind=99)])),
    ("a removed tensor type", "format", gb.build(tensors=[gb.tensor(kind=31)])),
    ("a misaligned tensor", "alignment", gb.build(tensors=[gb.tensor(offset=4)])),
    ("a tensor that begins beyond the end", "truncated", gb.build(tensors=[
        gb.tensor(offset=1 << 20)])),
    ("a tensor that ends beyond the end", "truncated", gb.build(tensors=[gb.tensor(dims=(32, 9))])),
    ("two tensors in one place", "overlap", gb.build(tensors=[gb.tensor("a"), gb.tensor("b")])),
    ("two tensors that overlap by a block", "overlap", gb.build(tensors=[
        gb.tensor("a"), gb.tensor("b", offset=224)])),
    ("bytes between two tensors", "gap", gb.build(tensors=[
        gb.tensor("a"), gb.tensor("b", offset=288)])),
    ("bytes before the first tensor", "gap", gb.build(tensors=[gb.tensor(offset=32)])),
    *((f"{n} tensors", "count", gb.build(tensor_count=n)) for n in HUGE),
    *((f"{n} pairs", "count", gb.build(pair_count=n)) for n in HUGE),
    *((f"an axis of {n}", "truncated", gb.build(tensors=[gb.tensor(dims=(32, n))])) for n in HUGE),
    *((f"axes whose product overflows, {n}", "truncated",
       gb.build(tensors=[gb.tensor(dims=(n & ~255 or 256, n, n, n), kind=12)])) for n in HUGE),
    *((f"an offset of {n & ~31}", "truncated", gb.build(tensors=[
        gb.tensor(offset=n & ~31)])) for n in HUGE),
    *((f"a key of {n} bytes", "count", gb.build([q(n) + bytes(32)])) for n in HUGE),
    *((f"text of {n} bytes", "count", gb.build([gb.pair("a", gb.STRING, q(n))])) for n in HUGE),
    *((f"an array of {n} bytes", "count", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.U8, n, b""))])) for n in HUGE),
    *((f"an array of {n} f64", "count", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.F64, n, b""))])) for n in HUGE),
    *((f"an array of {n} strings", "count", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.STRING, n, b""))])) for n in HUGE),
    *((f"an array with a string of {n} bytes", "truncated", gb.build([
        gb.pair("a", gb.ARRAY, gb.array(gb.STRING, 3, gb.text("ok") + q(n)))])) for n in HUGE),
]  # fmt: skip


@pytest.mark.parametrize(("code", "data"), [row[1:] for row in STRUCTURE],
                         ids=[row[0] for row in STRUCTURE])  # fmt: skip
def test_structural_damage_has_a_name(tmp_path, code, data):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        got = measured(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == f"checkpoint.{code}"
    assert peak < 4 << 20


def test_the_sound_ones_are_sound(tmp_path):
    """The builder's defaults open: the refusals above are for what was changed."""
    path = tmp_path / "good.gguf"
    for data in (gb.build(), gb.build([gb.pair("a", gb.ARRAY, gb.array(gb.STRING, 0, b""))]),
                 gb.build(tensors=[gb.tensor("a"), gb.tensor("b", offset=256)])):  # fmt: skip
        path.write_bytes(data)
        assert measured(path) == ""


def test_the_limit_of_strings_is_of_all_arrays_together(tmp_path, monkeypatch):
    monkeypatch.setitem(LIMITS, "strings", 10)
    path = tmp_path / "many.gguf"
    for second, code in ((4, ""), (5, "checkpoint.count")):
        path.write_bytes(gb.build([
            gb.pair(key, gb.ARRAY, gb.array(gb.STRING, count, bytes(8 * count)))
            for key, count in (("a", 6), ("b", second))
        ]))  # fmt: skip
        assert open_and_read_all(path) == code


def test_names_cannot_drive_the_terminal(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(gb.build([gb.pair("\x1b[2J", 77, b"")]))
    with pytest.raises(CheckpointError) as caught:
        Gguf(path)
    assert "\x1b" not in str(caught.value) and "\\x1b[2J" in str(caught.value)


def damaged_copies(data: bytes, header: int, seed: int):
    """75 truncations and 125 copies with one to four flipped bits in the header, most of them in
    its dense parts (the first pairs, the table of tensors)."""
    rng = np.random.default_rng(seed)
    table = data.index(b"blk.0.f32.weight") - 8
    parts = ((0, 600), (table, header), (0, header))
    for cut in np.linspace(0, len(data) - 1, 75).astype(int):
        yield f"cut at {cut}", data[:cut]
    for i in range(125):
        copy = bytearray(data)
        places = rng.integers(*parts[i % 3], 1 + i % 4)
        for at in places:
            copy[at] ^= 1 << int(rng.integers(8))
        yield f"flip {i} at {places.tolist()}", bytes(copy)


def test_two_hundred_damaged_copies(tmp_path):
    path = tmp_path / "sound.gguf"
    gb.sound_file(path)
    data = path.read_bytes()
    with Gguf(path) as model:
        header = min(t.offset for t in model.tensors.values())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: dict[str, int] = {}
    bad = tmp_path / "bad.gguf"
    for what, copy in damaged_copies(data, header, 1):
        bad.write_bytes(copy)
        code = measured(bad)
        outcomes[code] = outcomes.get(code, 0) + 1
        if what.startswith("cut"):
            assert code == "checkpoint.truncated", what
    assert sum(outcomes.values()) == 200
    assert len(outcomes) > 5, outcomes  # the flips do reach many checks
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < MEMORY


def test_the_demo_model_with_a_damaged_header(smollm2_path, tmp_path):
    """Its own header over a hole for the weights: flips where the structure is dense."""
    with Gguf(smollm2_path) as model:
        first, size = min(t.offset for t in model.tensors.values()), model.size
    with smollm2_path.open("rb") as file:
        data = file.read(first)
    table = data.index(b"blk.0.attn_norm.weight") - 200
    rng = np.random.default_rng(2)
    bad = tmp_path / "bad.gguf"
    codes = set()
    for i in range(40):
        copy = bytearray(data)
        low, high = ((0, 2000), (table, first), (0, first))[i % 3]
        copy[int(rng.integers(low, high))] ^= 1 << int(rng.integers(8))
        bad.write_bytes(copy)
        with bad.open("r+b") as file:
            file.truncate(size)
        begin = time.process_time()
        try:
            with Gguf(bad) as model:
                for key in model.metadata:
                    model.metadata[key]
        except CheckpointError as error:
            codes.add(error.code)
        assert time.process_time() - begin < SECOND
    assert codes


@pytest.mark.parametrize("what", ["pairs", "tensors", "strings"])
def test_the_most_that_is_allowed_is_quick(tmp_path, what):
    """Files at the limits: legal, if of no use."""
    n = LIMITS[what]
    if what == "pairs":
        data = gb.build([gb.pair(f"{i}", gb.U8, b"\1") for i in range(n)])
    elif what == "tensors":
        tensors = [gb.tensor(f"{i}", (1,), 24, 32 * i) for i in range(n)]
        data = gb.build(tensors=tensors, data=32 * n)
    else:
        data = gb.build([gb.pair("a", gb.ARRAY, gb.array(gb.STRING, n, bytes(8 * n)))])
    path = tmp_path / "most.gguf"
    path.write_bytes(data)
    del data
    tracemalloc.start()
    try:
        with Gguf(path) as model:
            assert len(model.tensors) == (n if what == "tensors" else 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    begin = time.process_time()
    Gguf(path).close()
    assert time.process_time() - begin < 3 * SECOND  # about 0.5 s when alone
