"""The row kernels (vec, math, norms, attention, sampling) on every instruction set at hand.

``drivers()`` gives one callable per set: natively through ctypes, aarch64 through qemu-user where
it is installed.  Calls are made in the driver's terms: see driver_rows.cpp.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.kernels.native import CPU, FLAGS, TARGETS, cache_dir, isas, zig

HERE = Path(__file__).parent
DIGESTS = HERE.parent / "digests" / "rows.json"
UNITS = (
    ("driver_rows.cpp", ()), ("attention.cpp", ("LW_KV=f16",)), ("attention.cpp", ("LW_KV=f32",)),
    ("attention.cpp", ("LW_KV=q8_0",)), ("attention.cpp", ("LW_KV=bf16",)),
    ("sample.cpp", ()), ("runtime.cpp", ()),
)  # fmt: skip
EMULATED = ["-target", "aarch64-linux-gnu", "-mcpu=generic"]

Argument = int | float | np.ndarray[Any, Any]
Driver = Callable[..., int]


@functools.cache
def _key() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([*CPU.glob("*"), *HERE.glob("driver*")]):
        if path.suffix in (".h", ".cpp"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def _build(name: str, target: list[str], link: list[str]) -> Path:
    """All units, compiled and linked without a C library; cached by their digest."""
    out = cache_dir() / f"rows-{name}-{_key()}"
    if out.exists():
        return out
    parts = []
    for i, (source, defines) in enumerate(UNITS):
        place = HERE if source.startswith("driver") else CPU
        parts.append(str(cache_dir() / f"rows-{name}-{i}-{os.getpid()}.o"))
        zig(*target, *FLAGS, *(f"-D{d}" for d in defines), "-c", str(place / source), "-o",
            parts[-1])  # fmt: skip
    part = f"{out}.{os.getpid()}"
    zig(*link, "-nostdlib", *parts, "-o", part)
    Path(part).replace(out)
    return out


@functools.cache
def library(isa: str) -> ctypes.CDLL:
    target = list(TARGETS[isa])
    if isa == "scalar":  # its own fma too, not the hardware's
        target.append("-DLW_SOFT_FMA")
    lib = ctypes.CDLL(str(_build(isa, target, ["-shared", "-Wl,-z,defs"])))
    lib.lw_drive.restype = ctypes.c_int64
    return lib


def _native(isa: str) -> Driver:
    def drive(operation: int, *arguments: Argument) -> int:
        block = (ctypes.c_uint64 * max(1, len(arguments)))()
        for i, value in enumerate(arguments):
            block[i] = _word(value)
        return int(library(isa).lw_drive(ctypes.c_int64(operation), block))

    return drive


def _word(value: Argument) -> int:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return int(value.ctypes.data)
    if isinstance(value, float):
        return int(np.float64(value).view(np.uint64))
    return int(value) & (2**64 - 1)


class Emulated:
    """The same door through qemu-user: one process, requests on its standard input."""

    def __init__(self) -> None:
        target = [*EMULATED, "-DLW_DRIVER_MAIN"]
        program = _build("neon-main", target, [*EMULATED, "-static", "-Wl,--entry=_start"])
        self.process = subprocess.Popen(
            ["qemu-aarch64", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, operation: int, *arguments: Argument) -> int:
        request = [struct.pack("<qq", operation, len(arguments))]
        for value in arguments:
            if isinstance(value, np.ndarray):
                data = value.tobytes()
                request += [struct.pack("<qq", 2, len(data)), data, bytes(-len(data) % 8)]
            else:
                request.append(struct.pack("<qQ", 0, _word(value)))
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(b"".join(request))
        self.process.stdin.flush()
        result = struct.unpack("<q", self.process.stdout.read(8))[0]
        for value in arguments:
            if isinstance(value, np.ndarray):
                data = self.process.stdout.read((value.nbytes + 7) // 8 * 8)
                value.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8, value.nbytes)
        return int(result)


@functools.cache
def driver(isa: str) -> Driver:
    return Emulated() if isa == "qemu" else _native(isa)


@functools.cache
def sets() -> tuple[str, ...]:
    """The sets that run here, the best first; "qemu" is aarch64 under emulation."""
    emulated = platform.machine() == "x86_64" and shutil.which("qemu-aarch64")
    return (*isas(), "qemu") if emulated else isas()


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal bit for bit, any NaN being equal to any NaN."""
    assert a.dtype == b.dtype and a.shape == b.shape
    nan = np.isnan(a) & np.isnan(b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return bool((nan | equal).all())


def digest(*arrays: np.ndarray[Any, Any]) -> str:
    """SHA-256 of the bits, NaN made canonical."""
    h = hashlib.sha256()
    for a in arrays:
        a = np.ascontiguousarray(a).copy()
        if a.dtype.kind == "f":
            a[np.isnan(a)] = np.nan
        h.update(a.tobytes())
    return h.hexdigest()


def check_digest(name: str, *arrays: np.ndarray[Any, Any]) -> None:
    """The bits are those that were committed; LANEWISE_UPDATE_DIGESTS=1 commits new ones."""
    known = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    value = digest(*arrays)
    if os.environ.get("LANEWISE_UPDATE_DIGESTS"):
        DIGESTS.write_text(json.dumps({**known, name: value}, indent=1, sort_keys=True) + "\n")
    else:
        assert known.get(name) == value, f"the bits of {name} have changed"
