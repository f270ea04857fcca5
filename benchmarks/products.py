"""Products alone: GEMV in GB/s of packed weights, GEMM in multiply-adds per cycle and core.

    python benchmarks/products.py [--isa avx512,avx2] [--formats q4_1,...] [--acts int8x2,...]
                                  [--shapes 576x1536,...] [--threads 1,2] [--rows 1,512] [--json]

Shapes are N x K.  GEMV streams enough copies of the matrix to leave every cache; its ratio is to
the best plain read of the same round (1 or 4 streams a thread).  GEMM's share of the peak is to
what the ruler's loops of the same instruction set and recipe reach in a cycle.  Each figure is the
median of ``--rounds``.  Not a test: a noisy neighbour moves these figures by a third.  On a busy
machine, ``--cpu-time`` counts each thread's own time: sound for what the cores do, flattering for
memory where the other thread waits.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import mmap
import statistics
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "kernels"), str(ROOT / "src")]

import native  # noqa: E402
from matrices import raw_matrix  # noqa: E402

HUGE = 2 << 20


def huge(nbytes: int) -> np.ndarray:
    """Bytes in 2 MiB pages where the system gives them."""
    size = (nbytes + 2 * HUGE - 1) // HUGE * HUGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8)
    return data[-data.ctypes.data % HUGE :]


def loops() -> ctypes.CDLL:
    source = ROOT / "benchmarks" / "products.cpp"
    path = native.cache_dir() / "products_bench.so"
    native.zig("-O2", "-shared", "-fPIC", "-nostdlib", f"-I{native.CPU}", "-std=c++17",
               str(source), "-o", str(path))  # fmt: skip
    lib = ctypes.CDLL(str(path))
    for name in ("bench_products", "bench_read", "bench_clock"):
        getattr(lib, name).restype = ctypes.c_double
    return lib


def run_threads(count: int, call) -> float:  # type: ignore[no-untyped-def]
    """call(thread, waiting pointer) -> seconds, on `count` threads that start together."""
    waiting = ctypes.c_int32(count)
    seconds = [0.0] * count

    def work(t: int) -> None:
        seconds[t] = call(t, ctypes.byref(waiting))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(seconds)


class Bench:
    """Weights, activations and scratch of one (format, activation, shape)."""

    def __init__(self, lib: ctypes.CDLL, isa: str, fmt: str, act: str, n: int, k: int) -> None:
        self.lib, self.n, self.k = lib, n, k
        self.kernels = native.Kernels(isa, fmt)
        self.function = ctypes.cast(
            getattr(self.kernels.lib, f"lw_matmul_{fmt}_{act}"), ctypes.c_void_p
        )
        rng = np.random.default_rng(0)
        packed = self.kernels.pack(raw_matrix(fmt, n, k, rng), n, k)
        self.bytes = len(packed)
        self.copies = max(2, (192 << 20) // len(packed))
        self.weights = huge(self.copies * len(packed))
        for i in range(self.copies):
            self.weights[i * len(packed) : (i + 1) * len(packed)] = packed
        self.x = rng.standard_normal((512, k)).astype(np.float32)
        self.rows, self.stride = self.kernels.activations(self.x, act)
        self.scratch = [native.aligned(native.SCRATCH) for _ in range(8)]
        self.out = [np.zeros(512 * 256, np.float32) for _ in range(8)]

    def seconds(self, rows: int, threads: int, copies: int, reps: int, granule: int = 32) -> float:
        """Of one product of `rows`, the mean over copies * reps."""
        edges = [round(self.n / granule * t / threads) * granule for t in range(threads)] + [self.n]

        def call(t: int, waiting) -> float:  # type: ignore[no-untyped-def]
            jobs = (native.Matmul * copies)()
            for i in range(copies):
                jobs[i] = native.Matmul(
                    self.weights.ctypes.data + i * self.bytes, None, self.rows.ctypes.data,
                    self.stride, self.k, self.n, rows, edges[t], edges[t + 1], granule, None,
                    self.out[t].ctypes.data, self.scratch[t].ctypes.data, None,
                )  # fmt: skip
            return float(self.lib.bench_products(self.function, jobs, ctypes.c_int64(copies),
                                                 ctypes.c_int64(reps), waiting))  # fmt: skip

        return run_threads(threads, call) / copies / reps


def read_rate(lib: ctypes.CDLL, data: np.ndarray, threads: int, streams: int) -> float:
    size = len(data) // threads // 64 * 64

    def call(t: int, waiting) -> float:  # type: ignore[no-untyped-def]
        return float(lib.bench_read(ctypes.c_void_p(data.ctypes.data + t * size),
                                    ctypes.c_int64(size), ctypes.c_int64(streams),
                                    waiting))  # fmt: skip

    return size * threads / run_threads(threads, call)


@functools.cache
def peak(isa: str, threads: int, act: str) -> float | None:
    """Multiply-adds that a core could do in a cycle, by the ruler; None where it has no clock."""
    limits = _limits(isa, threads)
    return limits.per_cycle(limits.peak(act))


@functools.cache
def _limits(isa: str, threads: int) -> Any:
    from lanewise.runtime import ruler
    from lanewise.targets.cpu import detect

    return ruler.measure(threads, nbytes=64 << 20, target=detect(isa))


def measure(
    bench: Bench, threads: int, row_counts: list[int], rounds: int, most: float | None
) -> list[dict[str, Any]]:
    """For each count of rows: GB/s and the share of the read rate, or multiply-adds per cycle and
    core and the share of the peak (`most` of them)."""
    return [
        (_vector if rows <= 16 else _matrix)(bench, threads, rows, rounds, most)
        for rows in row_counts
    ]


def _vector(
    bench: Bench, threads: int, rows: int, rounds: int, most: float | None
) -> dict[str, Any]:
    rates, ratios = [], []
    for _ in range(rounds):
        best = max(read_rate(bench.lib, bench.weights, threads, s) for s in (1, 4))
        rate = bench.bytes / bench.seconds(rows, threads, bench.copies, 1)
        rates.append(rate / 1e9)
        ratios.append(rate / best)
    return {"rows": rows, "gb_s": statistics.median(rates), "best": max(rates),
            "of_read": statistics.median(ratios)}  # fmt: skip


def _matrix(
    bench: Bench, threads: int, rows: int, rounds: int, most: float | None
) -> dict[str, Any]:
    macs = bench.n * bench.k * rows
    reps = max(1, round(3e8 / macs))
    found = []
    for _ in range(rounds):
        seconds = bench.seconds(rows, threads, 1, reps)
        found.append(macs / seconds / bench.lib.bench_clock() / threads)
    middle = statistics.median(found)
    return {"rows": rows, "macs_per_cycle": middle, "best": max(found),
            "of_peak": middle / most if most else None}  # fmt: skip


def told(x: dict[str, Any]) -> str:
    """A measurement for people."""
    if "gb_s" in x:
        return (f"M={x['rows']} {x['gb_s']:5.1f} GB/s (best {x['best']:4.1f})"
                f" {x['of_read']:4.2f} of read")  # fmt: skip
    share = "" if x["of_peak"] is None else f" {x['of_peak']:4.2f} of peak"
    return f"M={x['rows']} {x['macs_per_cycle']:5.1f} MAC/c (best {x['best']:4.1f}){share}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", default=",".join(i for i in native.isas() if i != "scalar"))
    parser.add_argument("--formats", default="q4_1,q4_0,q8_0")
    parser.add_argument("--acts", default="int8x2,int8")
    parser.add_argument("--shapes", default="576x1536,1024x3072,2048x8192")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rows", default="1,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(words)
    lib = loops()
    if options.cpu_time:
        lib.bench_cpu_time()
    clock = lib.bench_clock() / 1e9
    if not options.json:
        print(f"clock {clock:.2f} GHz")
    rows = [int(v) for v in options.rows.split(",")]
    found = []
    for fmt, act, shape, isa in itertools.product(
        *(x.split(",") for x in (options.formats, options.acts, options.shapes, options.isa))
    ):
        if (fmt, act) not in native.PAIRS:
            continue
        bench = Bench(lib, isa, fmt, act, *(int(v) for v in shape.split("x")))
        for threads in (int(v) for v in options.threads.split(",")):
            most = peak(isa, threads, act) if max(rows) > 16 else None
            results = measure(bench, threads, rows, options.rounds, most)
            found.append({"format": fmt, "activations": act, "shape": shape, "isa": isa,
                          "threads": threads, "peak": most, "products": results})  # fmt: skip
            if not options.json:
                cells = "  ".join(map(told, results))
                print(f"{fmt:5} {act:6} {shape:>10} {isa:6} {threads}T  {cells}", flush=True)
    if options.json:
        print(json.dumps({"ghz": clock, "rows": found}))


if __name__ == "__main__":
    main()
