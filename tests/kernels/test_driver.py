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
FORMATS = ("q4_0", "q4_1", "q5_1", "q8_0", "q6_k", "f16")
"""Every kind of codes, biased and not, with minimums and not."""
FEW = ("q4_0", "q5_1")
"""What is compiled with traps: a check at every lane of a vector takes the compiler long."""
BUILDS: dict[str, tuple[str, ...]] = {
    **{isa: tuple(native.TARGETS[isa]) for isa in native.isas()},
    "undefined": (*native.TARGETS["scalar"], *UNDEFINED),
    "aarch64": AARCH64,
    "aarch64-dotprod": (*AARCH64, "-mcpu=generic+dotprod"),
}
# n, k, rows, granule, cut, halves
SHAPES = (
    (17, 768, 1, 16, 0, 1), (40, 768, 3, 32, 32, 2), (5, 256, 19, 64, 0, 1),
    (70, 1280, 21, 16, 16, 1), (16, 256, 0, 16, 0, 1),
)  # fmt: skip


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
    return [qemu]


@pytest.mark.parametrize("build", BUILDS)
def test_driver(build: str, tmp_path: Path) -> None:
    runner = emulator(build)
    cases, wanted = [], []
    formats = FEW if build == "undefined" else FORMATS
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


def test_unknown_kernel_is_refused(tmp_path: Path) -> None:
    """Also: the driver links without the formats that it is not given."""
    build = native.isas()[-1]
    (tmp_path / "in").write_bytes(struct.pack("<32s7q", b"q8_0_int8", 16, 32, 1, 16, 0, 1, 544))
    command = [str(driver(build, ("f16",))), str(tmp_path / "in"), str(tmp_path / "out")]
    assert subprocess.run(command).returncode == 5
