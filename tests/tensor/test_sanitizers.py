"""The emitted step of the example transformer, on threads of a C++ driver, under sanitizers.

Laws: built with plain intrinsics (the scalar model, and AVX2) by a clang that has the sanitizers'
runtimes; every buffer is an allocation of its own of exactly its size; the results are, bit for
bit, those of the ordinary build.  A sanitizer that finds nothing in a step that was broken on
purpose would prove nothing, so that is tested too.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import transformer as example
from lanewise.pipeline import Options, compile_forms
from lanewise.targets.cpu import CpuTarget, cpu_target
from tests.kernels import native
from tests.native import Native, from_pages, same_bits, stored, to_pages
from tests.tensor.support import runtime

C = example.Config()
ROWS, SLOTS = 16, 2
HERE = Path(__file__).parent / "sanitize"
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
ISAS = {"scalar": ("-DLW_SCALAR",), "avx2": ("-march=x86-64-v3",)}
FLAGS = (
    "-O1", "-gline-tables-only", "-std=c++17", "-ffp-contract=off", "-fno-math-errno",
    "-fno-exceptions", "-fno-rtti", "-fno-sanitize-recover=all", f"-I{native.CPU}",
    "-include", str(HERE / "older.h"),
)  # fmt: skip
ENV = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1 report_bugs=1"}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **ENV}
    return subprocess.run(command, env=env, capture_output=True, text=True, errors="replace")


@functools.cache
def trouble(sanitizer: str) -> str:
    """Why this machine cannot build and run with a sanitizer; "" if it can."""
    if shutil.which("clang++") is None:
        return "no clang++ (apt-get install clang)"
    source, made = native.cache_dir() / "probe.cpp", native.cache_dir() / f"probe-{os.getpid()}"
    source.write_text("int main() { return 0; }\n")
    flag = f"-fsanitize={SANITIZERS[sanitizer]}"
    for command in (["clang++", flag, str(source), "-o", str(made)], [str(made)]):
        done = run(command)
        if done.returncode != 0:
            return f"clang++ {flag} does not work here: {(done.stderr.strip() or '?')[-200:]}"
    made.unlink()
    return ""


@functools.cache
def compiled(source: str, text: str, flags: tuple[str, ...]) -> Path:
    """An object, kept by what it was made of."""
    own = (HERE / "driver.cpp").read_text() + (HERE / "older.h").read_text()
    key = hashlib.sha256(f"{native._sources()} {own} {source} {text} {flags}".encode()).hexdigest()
    path = native.cache_dir() / f"sanitized-{key[:24]}.o"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.o")
        if text:
            source = str(path.with_suffix(f".{os.getpid()}.cpp"))
            Path(source).write_text(text)
        done = run(["clang++", *flags, "-c", source, "-o", str(part)])
        assert done.returncode == 0, done.stderr[-4000:]
        part.replace(path)
    return path


def executable(program: Any, isa: str, sanitizer: str, folder: Path) -> str:
    flags = (*ISAS[isa], *FLAGS, f"-fsanitize={SANITIZERS[sanitizer]}")
    units: list[tuple[str, str, tuple[str, ...]]] = [
        (str(HERE / "driver.cpp"), "", ()), ("", program.text, ()),
        (str(native.CPU / "runtime.cpp"), "", ()),
    ]  # fmt: skip
    for o in program.objects:
        units.append((str(native.CPU / o.source), "", tuple(f"-D{d}" for d in o.defines)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(lambda u: str(compiled(u[0], u[1], (*flags, *u[2]))), units))
    made = str(folder / "driver")
    done = run(["clang++", flags[-1], *parts, "-o", made, "-lpthread", "-lm"])
    assert done.returncode == 0, done.stderr[-4000:]
    return made


def steps() -> list[dict[str, np.ndarray]]:
    """A prompt of two sequences, then a token of each: what changes from step to step."""
    table = np.full((SLOTS, C.reach), 0xFFFFFFFF, np.uint32)
    table[:, 0] = [4, 1]
    made = []
    for lengths, counts in (((6, 2), (6, 2)), ((7, 3), (1, 1))):
        tokens = np.arange(ROWS, dtype=np.uint32) * 7 % C.vocab
        made.append({
            "tokens": tokens, "lengths": np.array(lengths, np.uint32), "pages": table,
            "extents": np.array(counts, np.uint32),
            "last": (np.cumsum(counts) - 1).astype(np.uint32),
            "draws": np.array([0.3, 0.8], np.float32),
        })  # fmt: skip
    return made


@functools.cache
def recording() -> tuple[Any, dict[str, Any]]:
    """(graph, values of all that stays the same)."""
    b = runtime().builder()
    example.step(b, C, ROWS)
    shape = (C.layers, 64 * C.blocks, C.kv_heads, C.head)
    values = {**example.random_weights(C), **b.values, "base": np.float32(C.base)}
    values |= {n: np.zeros(shape, np.float16) for n in "kv"}
    same = {"temperature": np.float32(0.8), "top_k": np.uint32(20), "top_p": np.float32(0.95),
            "min_p": np.float32(0.01)}  # fmt: skip
    return b.graph(), values | {n: np.full(SLOTS, x) for n, x in same.items()}


@functools.cache
def expected() -> tuple[dict[str, np.ndarray], ...]:
    """Outputs and states after each step, of the ordinary build on one thread."""
    graph, values = recording()
    model, found = Native(graph, values, threads=1), []
    state = dict(values)
    for changes in steps():
        state |= changes
        found.append(model.run(state))
        state |= {n: found[-1][n] for n in "kv"}
    return tuple(found)


def given(program: Any, target: CpuTarget, threads: int, cut: Mapping[str, int]) -> bytes:
    """The driver's input; `cut` takes bytes off the end of buffers."""
    graph, values = recording()
    layouts = {n.name: n.attributes["layout"] for _, n in graph.roots("state")}
    constants = {c.name: stored(c, values[c.name], target) for c in program.constants}
    data, at = [], {}
    for i, buffer in enumerate(program.buffers):
        name = buffer.name.removeprefix("main/")
        at[name] = i
        raw = np.zeros(buffer.nbytes, np.uint8)
        value = {**values, **steps()[0]}.get(name)
        if name in constants:
            raw = constants[name]
        elif name in layouts:
            raw = to_pages(values[name], layouts[name])
        elif value is not None:
            raw = value
        whole = raw.tobytes()
        assert len(whole) == buffer.nbytes, name
        part = whole[: len(whole) - cut.get(name, 0)]
        data.append(np.int64(len(part)).tobytes() + part)
    assert program.scalars == (("base", "f32"),)
    head = np.array([
        len(data), 1, program.arena_bytes, program.private_bytes, program.scratch_bytes, threads,
        len(steps()),
    ], np.int64)  # fmt: skip
    out = [head.tobytes(), np.float32(C.base).tobytes(), *data]
    for changes in steps():
        kept = {n: x for n, x in changes.items() if n not in cut}
        out.append(np.int64(len(kept)).tobytes())
        for name, x in kept.items():
            out.append(np.array([at[name], x.nbytes], np.int64).tobytes() + x.tobytes())
    return b"".join(out)


def program_for(isa: str) -> tuple[Any, CpuTarget]:
    target = CpuTarget(isa, cpu_target().arch)
    return compile_forms({"main": recording()[0]}, Options(), target=target.name)[0], target


def drive(
    isa: str, sanitizer: str, threads: int, folder: Path, *, cut: Mapping[str, int] | None = None,
    barriers: bool = True,
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, bytes]]]:  # fmt: skip
    """Run both steps: how the driver ended, and all buffers by name after each."""
    if trouble(sanitizer):
        pytest.skip(trouble(sanitizer))
    if platform.machine() not in ("x86_64", "AMD64") or isa not in native.isas():
        pytest.skip(f"no {isa} here")
    program, target = program_for(isa)
    (folder / "in").write_bytes(given(program, target, threads, cut or {}))
    if not barriers:
        text = "\n".join(x for x in program.text.splitlines() if "lw_barrier(" not in x)
        assert text != program.text.rstrip("\n")
        program = _Other(program, text + "\n")
    made = executable(program, isa, sanitizer, folder)
    done = run([made, str(folder / "in"), str(folder / "out")])
    found, raw = [], (folder / "out").read_bytes()
    for _ in steps() if done.returncode == 0 else ():
        found.append({})
        for buffer in program.buffers:
            name = buffer.name.removeprefix("main/")
            found[-1][name], raw = raw[: buffer.nbytes], raw[buffer.nbytes :]
    return done, found


class _Other:
    """A program with another text."""

    def __init__(self, program: Any, text: str) -> None:
        self.text, self.objects, self.buffers = text, program.objects, program.buffers


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_step_is_clean_and_right(sanitizer: str, isa: str, threads: int, tmp_path: Path):
    done, found = drive(isa, sanitizer, threads, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    graph, _ = recording()
    layouts = {n.name: n.attributes["layout"] for _, n in graph.roots("state")}
    for got, want in zip(found, expected(), strict=True):
        for name, value in want.items():
            made = np.frombuffer(got[name], value.dtype).reshape(value.shape)
            made = from_pages(made, layouts[name]) if name in layouts else made
            assert same_bits(np.ascontiguousarray(made), value), name


@pytest.mark.slow
def test_the_address_sanitizer_sees_a_short_buffer(tmp_path: Path):
    done, _ = drive("scalar", "address", 1, tmp_path, cut={"tokens": 1})
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


@pytest.mark.slow
def test_the_thread_sanitizer_sees_a_missing_barrier(tmp_path: Path):
    done, _ = drive("scalar", "thread", 3, tmp_path, barriers=False)
    assert done.returncode != 0 and "data race" in done.stderr
