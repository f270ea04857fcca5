"""The C++ driver: guard pages, undefined-behaviour traps, and AArch64 under qemu."""

from __future__ import annotations

import hashlib
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.kernels import matrices, native
from tests.kernels.test_products import bits, matrix, model

UNDEFINED = (
    "-O1", "-fsanitize=undefined", "-fno-sanitize=function,vptr", "-fsanitize-trap=undefined",
)  # fmt: skip
AARCH64 = ("-target", "aarch64-linux-musl")
FORMATS = ("q4_0", "q4_1", "q5_1", "q8_0", "q6_k", "f16", *native.SMALL)
"""Every kind of codes, biased and not, with minimums and not."""
FEW = ("q4_0", "q5_1")
"""What is compiled with traps: a check at every lane of a vector takes the compiler long."""
INTEGERS = native.QUANTS
"""What NEON with products of bytes is run on: every format, for every one has its own codes."""
# Instructions of AArch64: (bits that are fixed, their values).
SDOT = (0xFFC0F400, 0x4F80E000)  # by element
USMMLA = (0xFFE0FC00, 0x4E80AC00)
BUILDS: dict[str, tuple[str, ...]] = {
    **{isa: tuple(native.TARGETS[isa]) for isa in native.isas()},
    "undefined": (*native.TARGETS["scalar"], *UNDEFINED),
    **{f"aarch64-{isa}": (*AARCH64, *native.TARGETS[isa])
       for isa in ("neon", "neon_dotprod", "neon_i8mm")},
}  # fmt: skip
# n, k, rows, granule, cut, halves
SHAPES = (
    (17, 768, 1, 16, 0, 1), (40, 768, 3, 32, 32, 2), (5, 256, 19, 64, 0, 1),
    (70, 1280, 21, 16, 16, 1), (16, 256, 0, 16, 0, 1), (33, 768, 7, 16, 0, 1),
    (18, 2304, 33, 16, 0, 1),
)  # fmt: skip


def formats_of(build: str) -> tuple[str, ...]:
    if build == "undefined":
        return FEW
    return INTEGERS if build.endswith(("dotprod", "i8mm")) else FORMATS


def driver(build: str, formats: tuple[str, ...]) -> Path:
    """A static executable without any library, of the driver and the objects of `formats`."""
    target = BUILDS[build]
    sources = (str(native.CPU / "driver.cpp"), str(native.CPU / "activations.cpp"))
    parts = native.objects((*target, "-DLW_START"), sources) + native.objects(
        target, tuple(native.bundle(f) for f in formats)
    )
    key = hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:24]
    path = native.cache_dir() / f"driver-{key}"
    if not path.exists():
        link = [*AARCH64] if build.startswith("aarch64") else []
        part = path.with_suffix(".part")
        native.zig(*link, "-nostdlib", "-static", *map(str, parts), "-o", str(part))
        part.replace(path)
    return path


def emulator(build: str) -> list[str]:
    if not build.startswith("aarch64") or platform.machine() == "aarch64":
        return []
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("no qemu-aarch64 (apt-get install qemu-user)")
    return [qemu, "-cpu", "max"]


@pytest.mark.parametrize("build", BUILDS)
def test_driver(build: str, tmp_path: Path) -> None:
    runner = emulator(build)
    cases, wanted = [], []
    formats = formats_of(build)
    for fmt, act in native.PAIRS:
        if fmt not in formats:
            continue
        for n, k, rows, granule, cut, halves in SHAPES:
            raws = [matrix(fmt, n, k, seed) for seed in range(halves)]
            x = np.random.default_rng(k + rows).standard_normal((rows, k)).astype(np.float32)
            head = struct.pack(
                "<32s7q", f"{fmt}_{act}".encode(), n, k, rows, granule, cut, halves, raws[0].nbytes
            )
            cases.append(head + b"".join(r.tobytes() for r in raws) + x.tobytes())
            ys = [model(fmt, act, raw, x) for raw in raws]
            wanted.append((fmt, act, np.stack(ys, axis=1), matrices.decoded(fmt, raws[0])[-1]))
    (tmp_path / "in").write_bytes(b"".join(cases))
    program = str(driver(build, formats))
    subprocess.run([*runner, program, str(tmp_path / "in"), str(tmp_path / "out")], check=True)
    out = np.fromfile(tmp_path / "out", np.float32)
    for fmt, act, y, row in wanted:
        got, out = out[: y.size].reshape(y.shape), out[y.size :]
        assert np.array_equal(bits(got), bits(y)), (fmt, act, y.shape)
        assert np.array_equal(bits(out[: row.size]), bits(row))
        out = out[row.size :]
    assert out.size == 0


@pytest.mark.parametrize("build", [b for b in BUILDS if "f16" in formats_of(b)])
def test_every_half_is_widened_exactly(build: str, tmp_path: Path) -> None:
    """All 65,536 of them, as one column times 1: subnormals, infinities and NaN included."""
    runner = emulator(build)
    halves = np.arange(1 << 16, dtype=np.uint16)
    head = struct.pack("<32s7q", b"f16_f32", halves.size, 1, 1, 16, 0, 1, halves.nbytes)
    (tmp_path / "in").write_bytes(head + halves.tobytes() + np.float32(1).tobytes())
    program = str(driver(build, formats_of(build)))
    subprocess.run([*runner, program, str(tmp_path / "in"), str(tmp_path / "out")], check=True)
    got = np.fromfile(tmp_path / "out", np.float32)[: halves.size]
    sign, exponent, fraction = halves >> 15, (halves >> 10 & 31).astype(int), halves & 1023
    normal = exponent > 0
    size = np.ldexp(fraction + 1024.0 * normal, np.where(normal, exponent, 1) - 25)
    want = np.where(sign, -size, size).astype(np.float32)
    want[exponent == 31] = np.where(sign, -np.inf, np.inf)[exponent == 31]
    number = (exponent < 31) | (fraction == 0)
    assert np.array_equal(got[number], want[number])
    assert np.isnan(got[~number]).all()


@pytest.mark.parametrize("build", [b for b in BUILDS if "f16" in formats_of(b)])
@pytest.mark.parametrize("fmt", native.SMALL)
def test_every_byte_is_widened_exactly(build: str, fmt: str, tmp_path: Path) -> None:
    """All 256 codes by ml_dtypes, as one column times 1."""
    runner = emulator(build)
    codes = np.arange(256, dtype=np.uint8)
    head = struct.pack("<32s7q", f"{fmt}_f32".encode(), 256, 1, 1, 16, 0, 1, 256)
    (tmp_path / "in").write_bytes(head + codes.tobytes() + np.float32(1).tobytes())
    program = str(driver(build, formats_of(build)))
    subprocess.run([*runner, program, str(tmp_path / "in"), str(tmp_path / "out")], check=True)
    got = np.fromfile(tmp_path / "out", np.float32)[:256]
    want = matrices.decoded(fmt, codes) + np.float32(0)  # a product of -0 is added to +0
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("isa", ["neon", "neon_dotprod", "neon_i8mm"])
def test_arm_compiles_to_its_products_of_bytes(isa: str) -> None:
    """On any machine, without an emulator: each set has its instructions and none of a better."""
    build = f"aarch64-{isa}"
    raw = driver(build, formats_of(build)).read_bytes()
    text = np.frombuffer(raw[: len(raw) // 4 * 4], "<u4")
    found = {name for name, (mask, value) in {"sdot": SDOT, "usmmla": USMMLA}.items()
             if ((text & np.uint32(mask)) == value).sum() > 16}  # fmt: skip
    wanted = {"neon": set(), "neon_dotprod": {"sdot"}, "neon_i8mm": {"sdot", "usmmla"}}
    assert found == wanted[isa]


def test_unknown_kernel_is_refused(tmp_path: Path) -> None:
    """Also: the driver links without the formats that it is not given."""
    build = native.isas()[-1]
    (tmp_path / "in").write_bytes(struct.pack("<32s7q", b"q8_0_int8", 16, 32, 1, 16, 0, 1, 544))
    command = [str(driver(build, ("f16",))), str(tmp_path / "in"), str(tmp_path / "out")]
    assert subprocess.run(command).returncode == 5
