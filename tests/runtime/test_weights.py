"""Constants: packed once, equal when gathered back, read again, damage noticed, memory bounded."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from lanewise.checkpoint import sidecar
from lanewise.errors import BuildError, RunError
from lanewise.ir.graph import Type
from lanewise.plan.program import Constant, Program
from lanewise.quant.format import FORMATS
from lanewise.runtime import build, cache, memory, weights
from lanewise.runtime.library import Library
from lanewise.runtime.weights import load_constants, raw_size
from lanewise.targets.cpu import CpuTarget

SHAPES = {"q4_1": (40, 64), "q8_0": (48, 96), "q6_k": (16, 512), "f16": (24, 32)}


def constant(name: str, packer: str = "panels") -> Constant:
    if packer == "raw":
        return Constant(name, Type("f32", (50,)), "raw", 200)
    n, k = SHAPES[name]
    row = FORMATS[name].row_bytes(k) if name != "f16" else 2 * k
    return Constant(name, Type(name, (n, k)), "panels", -(-n // 16) * 16 * row)


def rows(name: str) -> np.ndarray:
    """Rows of blocks whose scales are finite."""
    n, k = SHAPES[name]
    random = np.random.default_rng(len(name))
    if name == "f16":
        return random.standard_normal((n, k)).astype(np.float16)
    kind = FORMATS[name]
    raw = random.integers(0, 256, (n, k // kind.block, kind.nbytes), dtype=np.uint8)
    for at in {"q4_1": (0, 2), "q8_0": (0,), "q6_k": (208,)}[name]:
        raw[:, :, at : at + 2] = (
            random.random((*raw.shape[:2], 1)).astype(np.float16).view(np.uint8)
        )
    return raw.reshape(n, -1)


class Given:
    """A source that counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, name: str) -> object:
        self.asked.append(name)
        if name == "gain":
            return np.arange(50, dtype=np.float32)
        if name == "q8_0":
            return rows(name).tobytes()
        if name == "q6_k":  # a record, as a quantised matrix is
            return type("Matrix", (), {"data": rows(name)})()
        return rows(name)


@pytest.fixture(scope="module")
def packers(tmp_path_factory: pytest.TempPathFactory, target: CpuTarget) -> Path:
    """Compiled once; every test has a copy in its own cache."""
    made = tmp_path_factory.mktemp("packers")
    with pytest.MonkeyPatch.context() as m:
        m.setenv("LANEWISE_CACHE_DIR", str(made))
        build.packer_library(list(SHAPES), target)
    return made


@pytest.fixture(autouse=True)
def warm(cache_dir: Path, packers: Path) -> None:
    shutil.copytree(packers, cache_dir)


@pytest.fixture
def program(make_program: Callable[..., Program]) -> Program:
    made = make_program()
    found = (*map(constant, SHAPES), constant("gain", "raw"))
    return Program(**{**{f: getattr(made, f) for f in made.__dataclass_fields__},
                      "constants": found})  # fmt: skip


def check_all(
    found: weights.Constants, target: CpuTarget, formats: tuple[str, ...] = tuple(SHAPES)
) -> None:
    library = Library(build.packer_library(list(SHAPES), target))
    assert found["gain"].view(np.float32).tolist() == list(range(50))
    for name in formats:
        n, k = SHAPES[name]
        gather = library.function(f"lw_gather_{name}", "vplllp")
        raw = rows(name)
        expected = raw.astype(np.float32) if name == "f16" else dequantize(raw, Kind[name.upper()])
        out = np.empty(k, np.float32)
        assert found[name].ctypes.data % 64 == 0
        for row in range(n):
            gather(found[name].ctypes.data, n, k, row, out.ctypes.data)
            assert np.array_equal(out, expected[row]), (name, row)


@pytest.mark.parametrize("where", ["memory", "map"])
def test_packed_once(cache_dir: Path, target: CpuTarget, program: Program, where: str) -> None:
    told: list[tuple[str, int, int, str]] = []
    given = Given()
    first = load_constants(
        program, given, "k", target=target, threads=3, weights_in=where,
        progress=lambda *w: told.append(w),
    )  # fmt: skip
    check_all(first, target)
    assert given.asked == [*SHAPES, "gain"]
    packed = [w for w in told if w[0] == "pack"]
    assert packed[-1][1] == packed[-1][2] and [w[3] for w in packed] == given.asked
    loaded = [w for w in told if w[0] == "load"]
    assert loaded and loaded[-1][1] == loaded[-1][2]
    again = load_constants(program, given, "k", target=target, weights_in=where)
    assert len(given.asked) == 5  # the source was left alone
    for name in program.constants:
        assert np.array_equal(first[name.name], again[name.name])
    if where == "map":
        assert not again["gain"].flags.writeable
    kept = again["q4_1"]
    again.close()
    first.close()
    assert kept.sum() > 0 and len(first) == 0


def test_a_first_start_does_not_read_what_it_has_written(
    cache_dir: Path, target: CpuTarget, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr(weights, "_read", None)
        first = load_constants(program, Given(), "k", target=target, threads=3)
    check_all(first, target)
    again = load_constants(program, Given(), "k", target=target)
    assert list(first) == list(again) and all(np.array_equal(first[n], again[n]) for n in again)


def test_memory_is_asked_for_before_anything_is_packed(
    cache_dir: Path, target: CpuTarget, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Given()
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(RunError) as e:
        load_constants(program, given, "k", target=target)
    assert e.value.code == "run.memory" and given.asked == []
    assert not [x for x in cache.entries() if x.kind == "weights"]


def test_thread_count_changes_no_byte(
    cache_dir: Path, target: CpuTarget, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_constants(program, Given(), "whole", target=target)
    monkeypatch.setattr(sidecar, "PIECE", 192)  # many pieces, that cut panels, also of these small
    monkeypatch.setattr(weights, "_PACK", 576)  # matrices
    one = load_constants(program, Given(), "one", target=target, threads=1)
    many = load_constants(program, Given(), "many", target=target, threads=7)
    assert all(np.array_equal(one[n], many[n]) for n in one)
    assert all(np.array_equal(one[n], whole[n]) for n in one)


def test_another_key_is_another_sidecar(
    cache_dir: Path, target: CpuTarget, program: Program
) -> None:
    given = Given()
    load_constants(program, given, "a", target=target)
    load_constants(program, given, "b", target=target)
    assert len(given.asked) == 10
    assert len([e for e in cache.entries() if e.kind == "weights"]) == 2


@pytest.mark.parametrize("where", ["memory", "map"])
@pytest.mark.parametrize("damage", ["blob", "table", "header", "cut", "empty"])
def test_a_damaged_sidecar_is_made_again(
    cache_dir: Path, target: CpuTarget, program: Program, damage: str, where: str
) -> None:
    given = Given()
    load_constants(program, given, "k", target=target)
    path, _ = weights.sidecar_path(program, "k")
    raw = path.read_bytes()
    at = {"blob": 4096 + 100, "table": len(raw) - 10, "header": 20}.get(damage, 0)
    flipped = raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]
    path.write_bytes({"cut": raw[: len(raw) // 2], "empty": b""}.get(damage, flipped))
    check_all(load_constants(program, given, "k", target=target, weights_in=where), target)
    assert len(given.asked) == 10
    assert path.read_bytes() == raw


def test_old_layouts_go(
    cache_dir: Path, target: CpuTarget, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build.packer_library(list(SHAPES), target)
    with monkeypatch.context() as m:
        m.setattr(build, "headers_digest", lambda folder: "old")
        m.setattr(weights.build, "packer_library", lambda *a: library)
        load_constants(program, Given(), "k", target=target)
        old, _ = weights.sidecar_path(program, "k")
        assert old.exists()
    load_constants(program, Given(), "k", target=target)
    assert not old.exists() and weights.sidecar_path(program, "k")[0].exists()


def test_a_file_that_changes_leaves_no_sidecar_behind(
    cache_dir: Path, target: CpuTarget, program: Program
) -> None:
    for key, owner in (("a", "x.gguf"), ("a", "y.gguf"), ("b", "x.gguf"), ("c", "")):
        load_constants(program, Given(), key, target=target, owner=owner)
    found = {e.path for e in cache.entries() if e.kind == "weights"}
    kept = (("a", "y.gguf"), ("b", "x.gguf"), ("c", ""))
    assert found == {weights.sidecar_path(program, *k)[0] for k in kept}


def test_sources_that_do_not_fit(cache_dir: Path, target: CpuTarget, program: Program) -> None:
    for wrong in ("gain", "q4_1"):
        given = Given()
        with pytest.raises(RunError) as e:
            load_constants(
                program, lambda n, g=given, w=wrong: b"short" if n == w else g(n), "k",
                target=target,
            )  # fmt: skip
        assert e.value.code == "run.constant" and wrong in e.value.place
    assert not [x for x in cache.entries() if x.kind == "weights"]  # nothing half done


def test_a_manifest_that_does_not_fit(cache_dir: Path, target: CpuTarget, program: Program) -> None:
    wrong = Constant("q4_1", Type("q4_1", (40, 64)), "panels", 1000)
    changed = Program(**{**{f: getattr(program, f) for f in program.__dataclass_fields__},
                         "constants": (wrong,)})  # fmt: skip
    with pytest.raises(RunError) as e:
        load_constants(changed, Given(), "k", target=target)
    assert e.value.code == "run.constant"


def test_no_memory(
    cache_dir: Path, target: CpuTarget, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_constants(program, Given(), "k", target=target)
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(RunError) as e:
        load_constants(program, Given(), "k", target=target)
    assert e.value.code == "run.memory" and "weights" in e.value.message
    # Mapped, they need none.
    check_all(load_constants(program, Given(), "k", target=target, weights_in="map"), target)


def test_no_disk(
    cache_dir: Path, target: CpuTarget, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(BuildError) as e:
        load_constants(program, Given(), "k", target=target)
    assert e.value.code == "build.disk_full"
    total = sum(c.nbytes for c in program.constants)
    needed = re.search(r"([\d,.]+) kB are needed", e.value.message)
    assert needed and total / 1e3 <= float(needed[1].replace(",", "")) < 1.5 * total / 1e3 + 64
    assert not [x for x in cache.entries() if x.kind == "weights"]


def test_raw_sizes() -> None:
    assert raw_size(constant("q4_1")) == 40 * 2 * 20
    assert raw_size(constant("f16")) == 24 * 32 * 2
    assert raw_size(constant("gain", "raw")) == 200
