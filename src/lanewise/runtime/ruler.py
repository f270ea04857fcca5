"""The ruler: what this machine can do at most, measured as a step runs: same threads, same pages.

Laws: the best of several runs counts, for a limit is what is possible; a rate that the
instruction set has no loop for is 0.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from lanewise.plan.program import KernelObject
from lanewise.runtime.build import build_units, kernel_unit
from lanewise.runtime.library import Library
from lanewise.runtime.memory import Block, available
from lanewise.runtime.pool import ThreadPool, shared_pool
from lanewise.targets.cpu import CpuTarget, cpu_target

KINDS: Final = ("f32", "int8", "int16")
_LEAST: Final = 64 << 20
_STREAMS: Final = 8 * 64
_ROUND_S: Final = 0.004  # of one run of multiply-adds: short, to fall between neighbours


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes read and multiply-adds done in a second by `threads` threads together; `clock`: the
    cycles of one of them meanwhile (0: unknown), as a chain of dependent operations tells them."""

    isa: str
    threads: int
    read: float
    f32: float
    int8: float
    int16: float
    clock: float = 0.0

    def peak(self, recipe: str) -> float:
        """Multiply-adds a second that a product's recipe allows ("f64" sums: half of f32's): two
        words take two of bytes, or one of 16-bit words."""
        return {
            "int8": max(self.int8, self.int16, self.f32),
            "int8x2": max(self.int8 / 2, self.int16, self.f32),
            "f32": self.f32,
            "f64": self.f32 / 2,
        }[recipe]

    def per_cycle(self, rate: float) -> float | None:
        """Multiply-adds per cycle and core of a rate of all threads; None where no clock is."""
        return rate / self.clock / self.threads if self.clock else None

    def record(self) -> dict[str, Any]:
        """For JSON: rates in 10^9 a second, the clock in GHz."""
        told = asdict(self)
        return {k: round(v / 1e9, 2) if isinstance(v, float) else v for k, v in told.items()}


class _LwRuler(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("rounds", ctypes.c_int64),
    )  # fmt: skip


def measure(
    threads: int | None = None, *, nbytes: int = 1 << 30, runs: int = 8,
    pool: ThreadPool | None = None, target: CpuTarget | None = None,
) -> Limits:
    """The limits of `threads` threads (default: the pool's) with the instructions of a target
    (default: the process's), about a second of work.

    Reads `nbytes` (less where memory is short), the best of `runs`.  Raises BuildError
    "build.*", RunError "run.memory"."""
    target = target or cpu_target()
    unit = kernel_unit(KernelObject("ruler.cpp", (), ()), export=True)
    library = Library(build_units([unit], target))
    pool = shared_pool() if pool is None else pool
    count = pool.threads if threads is None else threads
    whole = _STREAMS * count
    size = max(_LEAST, min(nbytes, available() // 4)) // whole * whole
    block = Block(size, "the ruler")
    ruler = _LwRuler(block.address, size, 1)
    address = ctypes.addressof(ruler)

    def seconds(name: str) -> float:
        began = time.perf_counter()
        pool.run(library.address(name), address, count)
        return time.perf_counter() - began

    try:
        seconds("lw_ruler_fill")
        read = size / min(seconds("lw_ruler_read") for _ in range(runs))
        peaks = {kind: _peak(kind, "macs", library, ruler, seconds, runs) * count for kind in KINDS}
        clock = _peak("clock", "cycles", library, ruler, seconds, runs)
    finally:
        block.close()
    return Limits(target.isa, count, read, **peaks, clock=clock)


def _peak(
    kind: str, unit: str, library: Library, ruler: _LwRuler, seconds: Callable[[str], float],
    runs: int,
) -> float:
    """Multiply-adds, or cycles, a second of one thread while all are at work."""
    each = library.function(f"lw_ruler_{kind}_{unit}", "i")()
    if not each:
        return 0.0

    def best(count: int) -> float:
        return min(seconds(f"lw_ruler_{kind}") for _ in range(count))

    ruler.rounds = 1 << 10
    while best(3) < _ROUND_S / 2:
        ruler.rounds *= 2
    return ruler.rounds * each / best(4 * runs)
