"""The ruler: what this machine can do at most, measured as a step runs: same threads, same pages.

Laws: the best of several runs counts, for a limit is what is possible; a rate that the
instruction set has no loop for is 0.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from lanewise.closing import Closing
from lanewise.plan.program import KernelObject
from lanewise.runtime.build import build_units, kernel_unit
from lanewise.runtime.library import Library
from lanewise.runtime.memory import Block, available
from lanewise.runtime.pool import ThreadPool, shared_pool
from lanewise.targets.cpu import CpuTarget, cpu_target

KINDS: Final = ("f32", "int8", "int16", "pairs")
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
    pairs: float = 0.0
    clock: float = 0.0

    def peak(self, recipe: str) -> float:
        """Multiply-adds a second that a product's recipe allows ("f64" sums: half of f32's): two
        words take two of bytes, one of 16-bit words, or half of one and two sums (`pairs`)."""
        return {
            "int8": max(self.int8, self.int16, self.f32),
            "int8x2": max(self.int8 / 2, self.int16, self.pairs, self.f32),
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


def shown(rates: Mapping[str, Any]) -> str:
    """Of a record, for people: the rates that the instruction set has a loop for."""
    return ", ".join(f"{rates[kind]:.0f} ({kind})" for kind in KINDS if rates.get(kind))


class _LwRuler(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("rounds", ctypes.c_int64),
    )  # fmt: skip


class Ruler(Closing):
    """The loops of the ruler over `nbytes` of memory (rounded to whole lines), on `threads`."""

    def __init__(
        self, threads: int, nbytes: int, pool: ThreadPool | None = None,
        target: CpuTarget | None = None,
    ) -> None:
        unit = kernel_unit(KernelObject("ruler.cpp", (), ()), export=True)
        self.library = Library(build_units([unit], target or cpu_target()))
        self.threads, self._pool = threads, shared_pool() if pool is None else pool
        whole = _STREAMS * threads
        self.nbytes = nbytes // whole * whole
        self._block = Block(self.nbytes, "the ruler")
        self.loops = _LwRuler(self._block.address, self.nbytes, 1)
        self._address = ctypes.addressof(self.loops)
        self.seconds("lw_ruler_fill")

    def seconds(self, name: str) -> float:
        """How long one call of a loop takes."""
        began = time.perf_counter()
        self._pool.run(self.library.address(name), self._address, self.threads)
        return time.perf_counter() - began

    def read(self, runs: int) -> float:
        """Bytes read in a second, the best of `runs`."""
        return self.nbytes / min(self.seconds("lw_ruler_read") for _ in range(runs))

    def close(self) -> None:
        """Give the memory back."""
        self._block.close()


def measure(
    threads: int | None = None, *, nbytes: int = 1 << 30, runs: int = 8,
    pool: ThreadPool | None = None, target: CpuTarget | None = None,
) -> Limits:
    """The limits of `threads` threads (default: the pool's) with the instructions of a target
    (default: the process's), about a second of work.

    Reads `nbytes` (less where memory is short), the best of `runs`.  Raises BuildError
    "build.*", RunError "run.memory"."""
    target = target or cpu_target()
    pool = shared_pool() if pool is None else pool
    count = pool.threads if threads is None else threads
    size = max(_LEAST, min(nbytes, available() // 4))
    with Ruler(count, size, pool, target) as ruler:
        read = ruler.read(runs)
        peaks = {kind: _peak(kind, "macs", ruler, runs) * count for kind in KINDS}
        clock = _peak("clock", "cycles", ruler, runs)
    return Limits(target.isa, count, read, **peaks, clock=clock)


def _peak(kind: str, unit: str, ruler: Ruler, runs: int) -> float:
    """Multiply-adds, or cycles, a second of one thread while all are at work."""
    each = ruler.library.function(f"lw_ruler_{kind}_{unit}", "i")()
    if not each:
        return 0.0

    def best(count: int) -> float:
        return min(ruler.seconds(f"lw_ruler_{kind}") for _ in range(count))

    ruler.loops.rounds = 1 << 10
    while best(3) < _ROUND_S / 2:
        ruler.loops.rounds *= 2
    return ruler.loops.rounds * each / best(4 * runs)
