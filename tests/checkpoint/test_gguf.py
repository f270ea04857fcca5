"""The GGUF reader against files that the ``gguf`` package writes and reads."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from lanewise.checkpoint import open_checkpoint
from lanewise.checkpoint.gguf import Gguf
from lanewise.checkpoint.source import rows, values
from lanewise.errors import CheckpointError
from tests.checkpoint import gguf_bytes as gb


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    return path, gb.sound_file(path)


def refusal(function, *args, **kwargs) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        function(*args, **kwargs)
    return caught.value


def test_tensors(sound):
    path, raw = sound
    oracle = {t.name: t for t in gguf.GGUFReader(path).tensors}
    with open_checkpoint(path) as model:
        assert list(model.tensors) == list(oracle)
        assert model.path == path and model.size == path.stat().st_size
        for name, info in model.tensors.items():
            want = oracle[name]
            assert info.format == want.tensor_type.name.lower()
            assert info.shape == tuple(int(n) for n in want.shape[::-1])
            assert (info.offset, info.nbytes) == (want.data_offset, want.n_bytes)
            assert info.elements == want.n_elements
            got = model.raw(name)
            assert got.dtype == np.uint8 and not got.flags.writeable
            assert got.tobytes() == raw[name].tobytes()
            assert rows(model, name).shape[0] == int(np.prod(info.shape[:-1]))
        assert model.tensors["stack"].shape == (3, 2, 32)


def test_values_are_decoded(sound):
    path, raw = sound
    with open_checkpoint(path) as model:
        for name, info in model.tensors.items():
            kind = gguf.GGMLQuantizationType[info.format.upper()]
            if info.format == "iq2_xxs":
                error = refusal(values, model, name)
                assert error.code == "checkpoint.format" and "iq2_xxs" in str(error)
                continue
            with np.errstate(all="ignore"):
                want = gguf.quants.dequantize(raw[name], kind).reshape(info.shape)
            np.testing.assert_array_equal(values(model, name), want)


def test_metadata(sound):
    path, _ = sound
    with open_checkpoint(path) as model:
        meta = model.metadata
        assert meta["general.architecture"] == meta.string("general.architecture") == "llama"
        assert meta.u32("llama.block_count") == 2
        assert meta.f32("llama.attention.layer_norm_rms_epsilon") == float(np.float32(1e-5))
        assert meta.bool("tokenizer.ggml.add_bos_token") is True
        got = {k: meta[f"t.{k}"] for k in ("u8", "i8", "u16", "i16", "i32", "u64", "i64", "f64")}
        assert got == {"u8": 200, "i8": -100, "u16": 60000, "i16": -30000, "i32": -5,
                       "u64": 1 << 40, "i64": -(1 << 40), "f64": 0.1}  # fmt: skip
        assert meta.integers("t.ints").tolist() == [1, -2, 3]
        assert meta.floats("t.floats").tolist() == [0.5, 1.5]
        assert meta.bools("t.bools").tolist() == [True, False, True]
        assert meta.strings("tokenizer.ggml.tokens") == gb.TOKENS
        assert meta.strings("tokenizer.ggml.merges") == gb.MERGES
        assert meta.integers("tokenizer.ggml.token_type").tolist() == [1] * len(gb.TOKENS)
        assert str(meta.entry("tokenizer.ggml.merges")) == "string[500]"
        assert str(meta.entry("t.u8")) == "u8"
        assert "t.u8" in meta and "t.none" not in meta and len(meta) == len(list(meta))
        assert meta.get("t.none") is None


def test_metadata_refuses_by_type(sound):
    path, _ = sound
    with open_checkpoint(path) as model:
        meta = model.metadata
        for call, key in (
            (meta.u32, "general.name"), (meta.u32, "t.i8"), (meta.u32, "t.u64"),
            (meta.u32, "t.f64"), (meta.u32, "tokenizer.ggml.add_bos_token"),
            (meta.f32, "t.u8"), (meta.string, "t.u8"), (meta.bool, "t.u8"),
            (meta.strings, "general.name"), (meta.string, "tokenizer.ggml.tokens"),
            (meta.integers, "t.floats"), (meta.floats, "t.ints"), (meta.bools, "t.ints"),
        ):  # fmt: skip
            error = refusal(call, key)
            assert error.code == "checkpoint.type" and repr(key) in str(error), key
            assert error.place == str(path) and error.remedy
        for call in (meta.u32, meta.f32, meta.string, meta.bool, meta.strings, meta.integers,
                     meta.floats, meta.bools, meta.entry):  # fmt: skip
            assert refusal(call, "t.none").code == "checkpoint.key"
        assert meta.u32("t.none", 7) == 7 and meta.f32("t.none", None) is None
        assert meta.strings("t.none", []) == [] and meta.string("t.none", "d") == "d"
        assert refusal(meta.u32, "t.i8", 3).code == "checkpoint.type"  # present, so checked


def test_a_float_that_is_not_finite(tmp_path):
    path = tmp_path / "nan.gguf"
    path.write_bytes(gb.build([gb.pair("x", gb.F32, b"\0\0\xc0\x7f")]))
    with Gguf(path) as model:
        assert refusal(model.metadata.f32, "x").code == "checkpoint.type"


def test_digest_follows_header_size_time_and_data(sound, tmp_path):
    path, _ = sound
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(path, copy)
    os.utime(copy, ns=(0, 1_000_000_000))

    def digest() -> str:
        with open_checkpoint(copy) as model:
            assert model.digest == model.digest
            return model.digest

    first = digest()
    assert len(first) == 64 and digest() == first
    os.utime(copy, ns=(0, 1_000_000_001))
    second = digest()
    data = bytearray(copy.read_bytes())
    at = data.index(b"a small one")
    data[at] ^= 1
    copy.write_bytes(data)
    os.utime(copy, ns=(0, 1_000_000_001))
    third = digest()
    with copy.open("ab") as file:
        file.write(bytes(32))
    os.utime(copy, ns=(0, 1_000_000_001))
    fourth = digest()
    data = bytearray(copy.read_bytes())
    data[-64] ^= 1
    copy.write_bytes(data)
    os.utime(copy, ns=(0, 1_000_000_001))
    assert len({first, second, third, fourth, digest()}) == 5


def test_close(sound):
    path, raw = sound
    model = open_checkpoint(path)
    kept = model.raw("norm")
    model.close()
    model.close()
    assert kept.tobytes() == raw["norm"].tobytes()
    assert refusal(model.raw, "norm").code == "checkpoint.closed"
    assert refusal(model.metadata.strings, "tokenizer.ggml.tokens").code == "checkpoint.closed"
    assert refusal(model.metadata.string, "general.name").code == "checkpoint.closed"
    assert refusal(model.metadata.integers, "t.ints").code == "checkpoint.closed"
    assert refusal(lambda: model.digest).code == "checkpoint.closed"


def test_no_descriptor_is_left_open(sound):
    path, _ = sound
    gc.collect()  # other tests' maps
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        open_checkpoint(path).close()
        with pytest.raises(CheckpointError):
            open_checkpoint(__file__)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_tensor_that_is_not_there(sound):
    with open_checkpoint(sound[0]) as model:
        for call in (model.raw, lambda n: rows(model, n), lambda n: values(model, n)):
            error = refusal(call, "blk.9.none")
            assert error.code == "checkpoint.tensor" and error.remedy


def test_files_that_cannot_be_opened(tmp_path):
    assert refusal(open_checkpoint, tmp_path / "none.gguf").code == "checkpoint.missing"
    assert refusal(open_checkpoint, tmp_path).code == "checkpoint.unreadable"
    assert refusal(open_checkpoint, "a\0b").code == "checkpoint.unreadable"
    os.mkfifo(tmp_path / "pipe")
    assert refusal(open_checkpoint, tmp_path / "pipe").code == "checkpoint.unreadable"
    (tmp_path / "empty.gguf").touch()
    assert refusal(open_checkpoint, tmp_path / "empty.gguf").code == "checkpoint.truncated"


def test_version_2_reads_like_3(tmp_path):
    path = tmp_path / "v2.gguf"
    path.write_bytes(gb.build([gb.pair("n", gb.U8, b"\7")], version=2))
    with Gguf(path) as model:
        assert model.metadata.u32("n") == 7 and model.tensors["w"].shape == (2, 32)


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment(tmp_path, alignment):
    path = tmp_path / "a.gguf"
    at = -(-256 // alignment) * alignment
    pairs = [gb.pair("general.alignment", gb.U32, alignment.to_bytes(4, "little"))]
    tensors = [gb.tensor("a", (32, 2)), gb.tensor("b", (8,), 0, at)]
    data = gb.build(pairs, tensors, at, alignment=alignment) + np.arange(8, dtype="<f4").tobytes()
    path.write_bytes(data)
    with Gguf(path) as model:
        assert values(model, "b").tolist() == list(range(8))


def test_vocabulary_only(tmp_path):
    path = tmp_path / "vocab.gguf"
    path.write_bytes(gb.build([gb.pair("n", gb.STRING, gb.text("x"))], []))
    assert refusal(open_checkpoint, path).code == "checkpoint.empty"
    with open_checkpoint(path, vocabulary_only=True) as model:
        assert not model.tensors and model.metadata.string("n") == "x"


# --- split files ---


def part(number: int, count: int, tensors: list[bytes], extra: list[bytes] | None = None) -> bytes:
    pairs = [
        gb.pair("split.no", gb.U16, number.to_bytes(2, "little")),
        gb.pair("split.count", gb.U16, count.to_bytes(2, "little")),
        gb.pair("split.tensors.count", gb.I32, (3).to_bytes(4, "little")),
    ]
    return gb.build(pairs + (extra or []), tensors)


@pytest.fixture
def split(tmp_path):
    names = [tmp_path / f"m-{i + 1:05}-of-00003.gguf" for i in range(3)]
    names[0].write_bytes(part(0, 3, [], [gb.pair("who", gb.STRING, gb.text("first"))]))
    names[1].write_bytes(part(1, 3, [gb.tensor("a"), gb.tensor("b", (32, 1), 0, 256)]))
    body = bytearray(part(2, 3, [gb.tensor("c", (4,))]))
    body[-1024:-1008] = np.arange(4, dtype="<f4").tobytes()
    names[2].write_bytes(body)
    return names


def test_split_files_open_by_any_part(split):
    digests = set()
    for name in split:
        with open_checkpoint(name) as model:
            assert list(model.tensors) == ["a", "b", "c"] and model.path == split[0]
            assert model.metadata.string("who") == "first"
            assert [t.file for t in model.tensors.values()] == [1, 1, 2]
            assert values(model, "c").tolist() == [0, 1, 2, 3]
            assert model.size == sum(p.stat().st_size for p in split)
            digests.add(model.digest)
    assert len(digests) == 1


def test_split_files_that_disagree(split):
    third = split[2].read_bytes()
    split[2].unlink()
    error = refusal(open_checkpoint, split[0])
    assert error.code == "checkpoint.missing" and "00003-of-00003" in error.place
    split[2].write_bytes(part(1, 3, [gb.tensor("c")]))
    assert refusal(open_checkpoint, split[0]).code == "checkpoint.split"
    split[2].write_bytes(part(2, 3, [gb.tensor("a")]))
    assert refusal(open_checkpoint, split[1]).code == "checkpoint.duplicate"
    split[2].write_bytes(part(2, 3, [gb.tensor("c"), gb.tensor("d", (8,), 0, 256)]))
    assert refusal(open_checkpoint, split[0]).code == "checkpoint.split"
    split[2].write_bytes(third)
    alone: Path = split[1].rename(split[1].with_name("other.gguf"))
    assert refusal(open_checkpoint, alone).code == "checkpoint.split"


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc")
def test_pages_that_were_read_are_let_go(smollm2_path):
    """The header is megabytes of vocabulary: parsed, or hashed, it is not ours to keep."""

    def mapped() -> int:
        kept, counting = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if not line.split(" ", 1)[0].endswith(":"):
                counting = line.endswith(Path(smollm2_path).name)
            elif counting and line.startswith("Rss:"):
                kept += int(line.split()[1])
        return kept

    with open_checkpoint(smollm2_path) as model:
        assert mapped() == 0
        assert len(model.digest) == 64 and mapped() == 0
        assert len(model.metadata["tokenizer.ggml.merges"]) == 48900 and mapped() == 0
        assert model.raw("token_embd.weight").any() and mapped() > 1000  # counted, where it is


def test_the_demo_model(smollm2_path):
    oracle = {t.name: t for t in gguf.GGUFReader(smollm2_path).tensors}
    with open_checkpoint(smollm2_path) as model:
        assert model.metadata.u32("llama.block_count") == 30
        assert len(model.metadata.strings("tokenizer.ggml.tokens")) == 49152
        assert list(model.tensors) == list(oracle)
        for name in ("token_embd.weight", "blk.7.ffn_down.weight", "output_norm.weight"):
            want = oracle[name]
            assert model.raw(name).tobytes() == want.data.tobytes()
            got = values(model, name)
            with np.errstate(all="ignore"):
                decoded = gguf.quants.dequantize(want.data, want.tensor_type)
            np.testing.assert_array_equal(got, decoded.reshape(got.shape))


def test_a_file_that_is_cut_while_it_is_open(tmp_path):
    """Metadata and digest are refused; a map would end the process (the test with it)."""
    path = tmp_path / "cut.gguf"
    gb.sound_file(path)
    with open_checkpoint(path) as model:
        tokens = model.metadata.strings("tokenizer.ggml.tokens")
        os.truncate(path, 30)
        for read in (
            lambda: model.metadata.strings("tokenizer.ggml.tokens"),
            lambda: model.metadata["tokenizer.ggml.token_type"],
            lambda: model.metadata.string("general.architecture"),
            lambda: model.digest,
        ):
            error = refusal(read)
            assert error.code == "checkpoint.truncated" and error.remedy
        assert list(tokens) == gb.TOKENS  # what was given out stays
    assert refusal(lambda: model.metadata["general.architecture"]).code == "checkpoint.closed"


def test_no_file_is_left_open(tmp_path):
    path = tmp_path / "model.gguf"
    gb.sound_file(path)
    first = os.open(path, os.O_RDONLY)
    os.close(first)
    for close in (True, False):
        model = open_checkpoint(path)
        assert len(model.metadata["tokenizer.ggml.tokens"]) == len(gb.TOKENS)
        if close:
            model.close()
        del model
        gc.collect()
        again = os.open(path, os.O_RDONLY)
        os.close(again)
        assert again == first
