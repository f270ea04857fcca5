"""What this machine can do: bytes read per second from memory, and f32 multiply-adds per second.

    python benchmarks/ruler.py [--threads N] [--mib 512] [--seconds 1] [--json]

The two limits that speeds are held against: decode reads every weight once per token, a prompt
multiplies.  The loops are compiled by our own build for the instruction set that our kernels use.
The best of the runs counts, for a limit is what is possible.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

SOURCE = r"""
#include <stdint.h>
typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
#if defined(__AVX512F__)
typedef v16 vec;
#else
typedef v8 vec;
#endif
enum { LANES = sizeof(vec) / 4, CHAINS = 12 };

// Adds all of it up, in eight chains.
extern "C" float ruler_read(const float* data, int64_t count) {
  vec s[8] = {};
  for (int64_t i = 0; i + 8 * LANES <= count; i += 8 * LANES)
    for (int j = 0; j < 8; ++j) s[j] += *(const vec*)(data + i + j * LANES);
  float total = 0;
  for (int j = 0; j < 8; ++j)
    for (int l = 0; l < LANES; ++l) total += s[j][l];
  return total;
}

// `rounds` times twelve independent vector multiply-adds.
extern "C" float ruler_fma(int64_t rounds, float a, float b) {
  vec c[CHAINS], x = (vec){} + a, y = (vec){} + b;
  for (int j = 0; j < CHAINS; ++j) c[j] = (vec){} + (float)j;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < CHAINS; ++j) c[j] = __builtin_elementwise_fma(x, c[j], y);
  }
  float total = 0;
  for (int j = 0; j < CHAINS; ++j)
    for (int l = 0; l < LANES; ++l) total += c[j][l];
  return total;
}

extern "C" int32_t ruler_flops(void) { return 2 * CHAINS * LANES; }
"""


def together(threads: int, work: Callable[[int], object]) -> float:
    """Seconds that `work(t)` takes on all threads at once."""
    gate = threading.Barrier(threads + 1)

    def run(t: int) -> None:
        gate.wait()
        work(t)

    workers = [threading.Thread(target=run, args=(t,)) for t in range(threads)]
    for worker in workers:
        worker.start()
    gate.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began


def best(amount: float, seconds: float, run: Callable[[], float]) -> float:
    """The highest rate of `amount` per run, over at least three runs and `seconds`."""
    rates: list[float] = []
    end = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < end:
        rates.append(amount / run())
    return max(rates)


def measure(threads: int, mib: int, seconds: float) -> dict[str, float | int | str]:
    """GB/s read and GFLOP/s of f32 multiply-adds, with `threads` threads."""
    from lanewise.runtime.build import Unit, build_units
    from lanewise.runtime.library import Library
    from lanewise.targets import cpu

    target = cpu.cpu_target()
    library = Library(build_units([Unit("ruler.cpp", SOURCE.encode(), (), True)], target))
    read = library.function("ruler_read", "fpl")
    fma = library.function("ruler_fma", "flff")
    flops = library.function("ruler_flops", "i")()
    share = mib * (1 << 20) // 4 // threads // 1024 * 1024
    data = [np.ones(share, np.float32) for _ in range(threads)]
    gbs = best(
        4e-9 * share * threads,
        seconds,
        lambda: together(threads, lambda t: read(data[t].ctypes.data, share)),
    )
    rounds = 1 << 24
    gflops = best(
        1e-9 * rounds * flops * threads,
        seconds,
        lambda: together(threads, lambda t: fma(rounds, 0.5, 0.25)),
    )
    return {
        "isa": target.isa,
        "threads": threads,
        "read_gb_s": round(gbs, 2),
        "fma_gflop_s": round(gflops, 1),
    }


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--mib", type=int, default=512, help="what is read: far more than the caches")
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    told = measure(args.threads, args.mib, args.seconds)
    if args.json:
        print(json.dumps(told))
    else:
        print(f"{told['threads']} threads, {told['isa']}")
        print(f"read {told['read_gb_s']} GB/s, multiply-add {told['fma_gflop_s']} GFLOP/s (f32)")


if __name__ == "__main__":
    main()
