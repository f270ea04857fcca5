"""The emitted step of the example transformer as an AArch64 program, run by an emulator.

Laws: every ARM set gives, bit for bit, what this machine's own set gives; the step is built for
each of them on any machine, emulator or none.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanewise.pipeline import Options, compile_forms
from lanewise.runtime.build import build
from lanewise.targets.cpu import CpuTarget
from tests.kernels import native
from tests.kernels.test_driver import AARCH64, emulator
from tests.native import from_pages, same_bits
from tests.tensor import test_sanitizers as step

ARMS = ("neon_i8mm", "neon_dotprod", "neon")


@functools.cache
def program(isa: str) -> Any:
    return compile_forms({"main": step.recording()[0]}, Options(), target=f"cpu-{isa}")[0]


@functools.cache
def executable(isa: str) -> Path:
    """The program, as the target would have it built, and the driver that runs it."""
    own = (step.HERE / "driver.cpp").read_text() + (step.HERE / "older.h").read_text()
    key = hashlib.sha256(f"{native._sources()} {own} {program(isa).text}".encode()).hexdigest()
    path = native.cache_dir() / f"step-{isa}-{key[:24]}"
    if path.exists():
        return path
    text, part = path.with_suffix(".cpp"), path.with_suffix(".part")
    text.write_text(program(isa).text)
    units = [(text, ()), (native.CPU / "runtime.cpp", ())]
    units += [(native.CPU / o.source, o.defines) for o in program(isa).objects]
    parts = [path.with_suffix(f".{i}.o") for i in range(len(units) + 1)]
    for made, (source, defines) in zip(parts, units, strict=False):
        native.zig(*CpuTarget(isa, "aarch64").compile_command(
            source, made, defines, [native.CPU], export=True))  # fmt: skip
    native.zig(*AARCH64, "-O1", f"-I{native.CPU}", "-include", str(step.HERE / "older.h"), "-c",
               str(step.HERE / "driver.cpp"), "-o", str(parts[-1]))  # fmt: skip
    native.zig(*AARCH64, "-static", "-nostdlib++", *map(str, parts), "-o", str(part))
    for made in parts:
        made.unlink()
    part.replace(path)
    return path


@pytest.mark.parametrize("isa", ARMS)
def test_it_builds(isa: str) -> None:
    raw = build(program(isa), CpuTarget(isa, "aarch64")).read_bytes()
    assert raw[:4] == b"\x7fELF" and raw[18:20] == b"\xb7\x00"  # EM_AARCH64
    assert f"cpu-{isa}" in program(isa).text


@pytest.mark.slow  # the first one makes a C library, which takes a minute
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("isa", ARMS)
def test_its_bits(isa: str, threads: int, tmp_path: Path) -> None:
    runner = emulator("aarch64")
    graph, _ = step.recording()
    # Weights are packed by this machine's packers: all give the same bytes.
    (tmp_path / "in").write_bytes(step.given(program(isa), step.cpu_target(), threads, {}))
    command = [*runner, str(executable(isa)), str(tmp_path / "in"), str(tmp_path / "out")]
    subprocess.run(command, check=True)
    layouts = {n.name: n.attributes["layout"] for _, n in graph.roots("state")}
    raw = (tmp_path / "out").read_bytes()
    for want in step.expected():
        for buffer in program(isa).buffers:
            name = buffer.name.removeprefix("main/")
            part, raw = raw[: buffer.nbytes], raw[buffer.nbytes :]
            if name in want:
                got = np.frombuffer(part, want[name].dtype).reshape(want[name].shape)
                got = from_pages(got, layouts[name]) if name in layouts else got
                assert same_bits(np.ascontiguousarray(got), want[name]), name
    assert not raw
