"""Products alone: GEMV in GB/s of packed weights, GEMM in multiply-adds per cycle and core.

    python benchmarks/products.py [--isa avx512,avx2] [--formats q4_1,...] [--acts int8x2,...]
                                  [--shapes 576x1536,...] [--threads 1,2] [--rows 1,512]

Shapes are N x K.  GEMV streams enough copies of the matrix to leave every cache; its ratio is to
the best plain read of the same round (1 or 4 streams a thread).  Each figure is the median of
``--rounds``.  Not a test: a noisy neighbour moves these figures by a third.  On a busy machine,
``--cpu-time`` counts each thread's own time: sound for what the cores do, flattering for memory
where the other thread waits.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import statistics
import sys
import threading
from pathlib import Path

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


def measure(bench: Bench, threads: int, row_counts: list[int], rounds: int) -> str:
    lib, cells = bench.lib, []
    macs = bench.n * bench.k
    for rows in row_counts:
        if rows <= 16:
            rates, ratios = [], []
            for _ in range(rounds):
                best = max(read_rate(lib, bench.weights, threads, s) for s in (1, 4))
                rate = bench.bytes / bench.seconds(rows, threads, bench.copies, 1)
                rates.append(rate / 1e9)
                ratios.append(rate / best)
            cells.append(f"M={rows} {statistics.median(rates):5.1f} GB/s (best {max(rates):4.1f})"
                         f" {statistics.median(ratios):4.2f} of read")  # fmt: skip
        else:
            reps = max(1, round(3e8 / (macs * rows)))
            mac = []
            for _ in range(rounds):
                seconds = bench.seconds(rows, threads, 1, reps)
                mac.append(macs * rows / seconds / lib.bench_clock() / threads)
            cells.append(f"M={rows} {statistics.median(mac):5.1f} MAC/c (best {max(mac):4.1f})")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default=",".join(i for i in native.isas() if i != "scalar"))
    parser.add_argument("--formats", default="q4_1,q4_0,q8_0")
    parser.add_argument("--acts", default="int8x2,int8")
    parser.add_argument("--shapes", default="576x1536,1024x3072,2048x8192")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rows", default="1,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    lib = loops()
    if options.cpu_time:
        lib.bench_cpu_time()
    print(f"clock {lib.bench_clock() / 1e9:.2f} GHz")
    for fmt in options.formats.split(","):
        for act in options.acts.split(","):
            for shape in options.shapes.split(","):
                n, k = (int(v) for v in shape.split("x"))
                for isa in options.isa.split(","):
                    if (fmt, act) not in native.PAIRS:
                        continue
                    bench = Bench(lib, isa, fmt, act, n, k)
                    for threads in (int(v) for v in options.threads.split(",")):
                        rows = [int(v) for v in options.rows.split(",")]
                        text = measure(bench, threads, rows, options.rounds)
                        print(f"{fmt:5} {act:6} {shape:>10} {isa:6} {threads}T  {text}", flush=True)


if __name__ == "__main__":
    main()
