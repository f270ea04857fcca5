"""Builds kernels of ``kernels/cpu`` with the ziglang compiler and calls them through ctypes.

Objects are cached by a digest of their sources and flags in the system's temporary directory.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

import lanewise.kernels

CPU = Path(lanewise.kernels.__file__).parent / "cpu"
FLAGS = [
    "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-rtti", "-std=c++17",
    "-fPIC", "-fno-stack-protector", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
]  # fmt: skip
TARGETS = {
    "avx512": ["-mcpu=x86_64_v4+avx512vnni"],
    "avx2": ["-mcpu=x86_64_v3"],
    "scalar": ["-DLW_SCALAR"],
    "neon_i8mm": ["-mcpu=generic+dotprod+i8mm"],
    "neon_dotprod": ["-mcpu=generic+dotprod"],
    "neon": ["-mcpu=generic"],
}
FLOATS = ("f32", "f16", "bf16")
QUANTS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")
SMALL = ("f8_e4m3", "f8_e5m2")  # last: digests are numbered by the order of formats
SUPER = ("q4_k", "q5_k", "q6_k")
PAIRS = [(f, a) for f in FLOATS for a in ("f32", "f64")] + [
    (f, a) for f in QUANTS for a in ("int8x2", "int8", "f64")
] + [(f, a) for f in SMALL for a in ("f32", "f64")]


def block(fmt: str) -> int:
    """K must be a multiple of this."""
    return 256 if fmt in SUPER else 32


@functools.cache
def isas() -> tuple[str, ...]:
    """The instruction sets of TARGETS that this machine runs."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = flags.replace("\n", " ")
    have = ["scalar"]
    if platform.machine() in ("aarch64", "arm64"):
        have.insert(0, "neon")
        if " asimddp " in flags:
            have.insert(0, "neon_dotprod")
            if " i8mm " in flags:
                have.insert(0, "neon_i8mm")
        return tuple(have)
    if all(f" {x} " in flags for x in ("avx2", "fma", "f16c", "bmi2")):
        have.insert(0, "avx2")
    if all(f" {x} " in flags for x in ("avx512bw", "avx512dq", "avx512vl", "avx512_vnni")):
        have.insert(0, "avx512")
    return tuple(have)


@functools.cache
def cache_dir() -> Path:
    path = Path(tempfile.gettempdir()) / f"lanewise-kernel-tests-{os.getuid()}"
    path.mkdir(exist_ok=True)
    return path


@functools.cache
def _sources() -> str:
    digest = hashlib.sha256()
    for path in sorted([*CPU.glob("*.h"), *CPU.glob("*.cpp")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def zig(*arguments: str) -> None:
    """Runs ``zig c++`` and raises with its output where it fails."""
    env = dict(os.environ)
    env.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache_dir() / "zig"))
    env.setdefault("ZIG_LOCAL_CACHE_DIR", env["ZIG_GLOBAL_CACHE_DIR"])
    command = [sys.executable, "-m", "ziglang", "c++", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, " ".join(command) + "\n" + done.stderr


def compiled(source: str, target: tuple[str, ...]) -> Path:
    """The object of one source file."""
    flags = [*target, *FLAGS, f"-I{CPU}"]
    key = hashlib.sha256(f"{_sources()} {source} {flags}".encode()).hexdigest()[:24]
    path = cache_dir() / f"{key}.o"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.o")
        zig(*flags, "-c", source, "-o", str(part))
        part.replace(path)
    return path


def bundle(fmt: str) -> str:
    """One unit with everything of a format: cheaper than four."""
    lines = [f"#define LW_FORMAT {fmt}", "#define LW_PACK", '#include "product.cpp"',
             "#undef LW_PACK"]  # fmt: skip
    for f, act in PAIRS:
        if f == fmt:
            lines += [f"#define LW_ACT {act}", '#include "product.cpp"', "#undef LW_ACT"]
    path = cache_dir() / f"bundle_{fmt}.cpp"
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)
    return str(path)


def objects(target: tuple[str, ...], sources: tuple[str, ...]) -> list[Path]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda s: compiled(s, target), sources))


@functools.cache
def library(isa: str, fmt: str) -> ctypes.CDLL:
    """A shared library of the packers, products and quantisers of a format."""
    parts = objects(tuple(TARGETS[isa]), (bundle(fmt), str(CPU / "activations.cpp")))
    key = hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:24]
    path = cache_dir() / f"{key}.so"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.so")
        # Without -z defs an object that calls libc would pass: that is refused here.
        zig("-shared", "-nostdlib", "-Wl,-z,defs", *map(str, parts), "-o", str(temporary))
        temporary.replace(path)
    return ctypes.CDLL(str(path))


class Matmul(ctypes.Structure):
    """LwMatmul of matmul.h."""

    _fields_ = (
        ("w", ctypes.c_void_p), ("w1", ctypes.c_void_p), ("x", ctypes.c_void_p),
        ("xstride", ctypes.c_int64), ("k", ctypes.c_int64), ("n", ctypes.c_int64),
        ("rows", ctypes.c_int64), ("col0", ctypes.c_int64), ("col1", ctypes.c_int64),
        ("granule", ctypes.c_int64), ("epilogue", ctypes.c_void_p), ("env", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p), ("tuning", ctypes.c_void_p),
    )  # fmt: skip


EPILOGUE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32,
    ctypes.c_int64, ctypes.c_int32,
)  # fmt: skip
SCRATCH = 1 << 20


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Bytes at a 64-byte boundary, filled with 0xA5, so that forgotten writes show."""
    raw = np.full(nbytes + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


@dataclass
class Kernels:
    """The product kernels of one format on one instruction set."""

    isa: str
    fmt: str
    lib: ctypes.CDLL = field(init=False)

    def __post_init__(self) -> None:
        self.lib = library(self.isa, self.fmt)

    def packed_bytes(self, n: int, k: int) -> int:
        call = getattr(self.lib, f"lw_packed_bytes_{self.fmt}")
        call.restype = ctypes.c_int64
        return int(call(ctypes.c_int64(n), ctypes.c_int64(k)))

    def pack(self, raw: npt.NDArray[np.uint8], n: int, k: int) -> npt.NDArray[np.uint8]:
        """GGUF rows [n, row bytes] to packed bytes, in two calls as two threads would."""
        out = aligned(self.packed_bytes(n, k))
        raw = np.ascontiguousarray(raw)
        panels = (n + 15) // 16
        call = getattr(self.lib, f"lw_pack_{self.fmt}")
        for a, b in ((0, panels // 2), (panels // 2, panels)):
            call(ctypes.c_void_p(raw.ctypes.data), ctypes.c_void_p(out.ctypes.data),
                 *(ctypes.c_int64(v) for v in (n, k, a, b)))  # fmt: skip
        return out

    def gather(self, packed: npt.NDArray[np.uint8], n: int, k: int, row: int) -> np.ndarray:
        out = np.full(k, np.nan, np.float32)
        getattr(self.lib, f"lw_gather_{self.fmt}")(
            ctypes.c_void_p(packed.ctypes.data), *(ctypes.c_int64(v) for v in (n, k, row)),
            ctypes.c_void_p(out.ctypes.data))  # fmt: skip
        return out

    def activations(self, x: npt.NDArray[np.float32], kind: str) -> tuple[np.ndarray, int]:
        """Rows as the kernel takes them, and the bytes between them."""
        m, k = x.shape
        if kind not in ("int8x2", "int8"):
            return np.ascontiguousarray(x), 4 * k
        size = getattr(self.lib, f"lw_act_bytes_{kind}")
        size.restype = ctypes.c_int64
        stride = int(size(ctypes.c_int64(k)))
        out = aligned(max(m, 1) * stride)
        for r in range(m):
            row = np.ascontiguousarray(x[r])
            getattr(self.lib, f"lw_quantize_{kind}")(
                ctypes.c_void_p(row.ctypes.data), ctypes.c_int64(k),
                ctypes.c_void_p(out.ctypes.data + r * stride))  # fmt: skip
        return out, stride

    def product(
        self,
        act: str,
        packed: npt.NDArray[np.uint8],
        x: npt.NDArray[np.float32],
        n: int,
        *,
        packed1: npt.NDArray[np.uint8] | None = None,
        granule: int = 16,
        cuts: tuple[int, ...] = (),
        tuning: tuple[int, int, int, int] | None = None,
    ) -> npt.NDArray[np.float32]:
        """[M, n] (or [M, 2, n] with packed1); `cuts`: columns where one thread's share ends;
        `tuning`: ahead, units, chunk, pairs."""
        m, k = x.shape
        halves = 2 if packed1 is not None else 1
        out = np.full((m, halves, n), np.nan, np.float32)
        seen = np.zeros((m, n), np.int32)

        def epilogue(env, tile, ld, row0, rows, col0, cols):  # type: ignore[no-untyped-def]
            view = np.ctypeslib.as_array(
                ctypes.cast(tile, ctypes.POINTER(ctypes.c_float)), (rows, ld)
            )
            for h in range(halves):
                part = view[:, h * cols : (h + 1) * cols]
                out[row0 : row0 + rows, h, col0 : col0 + cols] = part
            seen[row0 : row0 + rows, col0 : col0 + cols] += 1
            assert cols == granule or col0 + cols in (n, *cuts)

        rows, stride = self.activations(x, act)
        scratch = aligned(SCRATCH)
        figures = None if tuning is None else (ctypes.c_int32 * 4)(*tuning)
        callback = EPILOGUE(epilogue)
        edges = (0, *cuts, n)
        for a, b in itertools.pairwise(edges):
            call = Matmul(
                packed.ctypes.data, packed1.ctypes.data if packed1 is not None else None,
                rows.ctypes.data, stride, k, n, m, a, b, granule,
                ctypes.cast(callback, ctypes.c_void_p), None, scratch.ctypes.data,
                ctypes.addressof(figures) if figures is not None else None,
            )  # fmt: skip
            getattr(self.lib, f"lw_matmul_{self.fmt}_{act}")(ctypes.byref(call))
        assert (seen == 1).all(), "every output reaches the epilogue once"
        return out if packed1 is not None else out[:, 0]
