"""Attention alone, on one thread: a prompt in multiply-adds, decode in bytes of cache.

    python benchmarks/attention.py [--isa avx512,avx2] [--kv f16,...] [--shapes 9/3x64,...]
                                   [--prompt 512,4096] [--depth 512,2048,4096] [--rounds N]
                                   [--against OTHER/TREE]

Shapes are heads/kv_heads x width.  `prompt`: the whole form over a causal prompt, a share of the
f32 multiply-adds of the ruler (masked ones do not count).  `decode`: the split form of one row
over as many layers as leave every cache, GB/s of cache read and their share of the ruler's rate;
`us` is for a layer, its merge included.  Times are the thread's own and the least of all rounds;
everything alternates, so that a busy machine slows all alike.  `--against` times the kernels of
another checkout in the same rounds, with the ratio of the two times.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "kernels"), str(ROOT / "src"), str(ROOT / "benchmarks")]

import native  # noqa: E402
from products import huge  # noqa: E402

PAGE, PIECE, TILE = 64, 256, 16
COLD = 160 << 20  # bytes of cache that no level of the machine's holds
BYTES = {"f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32}  # of a number


class Attention(ctypes.Structure):
    """LwAttention of attention.h."""

    _fields_ = (
        ("q", ctypes.c_void_p), ("qstride", ctypes.c_int64), ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p), ("table", ctypes.c_void_p), ("table_width", ctypes.c_int64),
        ("slots", ctypes.c_void_p), ("positions", ctypes.c_void_p), ("rows", ctypes.c_int64),
        ("heads", ctypes.c_int64), ("kv_heads", ctypes.c_int64), ("d", ctypes.c_int64),
        ("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("window", ctypes.c_int64),
        ("out", ctypes.c_void_p), ("ostride", ctypes.c_int64), ("partial", ctypes.c_void_p),
        ("pieces", ctypes.c_int64), ("epilogue", ctypes.c_void_p), ("env", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p), ("pages", ctypes.c_int64), ("slot_count", ctypes.c_int64),
        ("sinks", ctypes.c_void_p), ("page", ctypes.c_int64),
    )  # fmt: skip


class Ruler(ctypes.Structure):
    """LwRuler of ruler.cpp."""

    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("rounds", ctypes.c_int64))


def library(tree: Path, isa: str, kv: str) -> ctypes.CDLL:
    """The kernels of a tree, the ruler and the loops, for one instruction set and cache."""
    cpu = tree / "src" / "lanewise" / "kernels" / "cpu"
    key = hashlib.sha256(f"{isa} {kv} {native.FLAGS}".encode())
    for path in sorted([*cpu.glob("*.h"), *cpu.glob("*.cpp"), ROOT / "benchmarks/attention.cpp"]):
        key.update(path.read_bytes())
    out = native.cache_dir() / f"attention-{key.hexdigest()[:20]}.so"
    flags = [*native.TARGETS[isa], *native.FLAGS, f"-I{cpu}"]
    units = [(cpu / "attention.cpp", f"-DLW_KV={kv}"), (cpu / "ruler.cpp", "-DR"),
             (ROOT / "benchmarks/attention.cpp", "-DB")]  # fmt: skip
    if not out.exists():
        parts = [f"{out}.{i}.o" for i in range(len(units))]
        for part, (source, define) in zip(parts, units, strict=True):
            native.zig(*flags, define, "-c", str(source), "-o", part)
        native.zig("-shared", *parts, "-o", str(out))
    lib = ctypes.CDLL(str(out))
    lib.bench_attention.restype = lib.bench_ruler.restype = ctypes.c_double
    return lib


@dataclass
class Case:
    """One pool, row set and form; `jobs` differ in their layer only."""

    kv: str
    heads: int
    kv_heads: int
    d: int
    rows: int  # 1: decode at this depth
    depth: int
    layers: int
    keep: list[np.ndarray] = field(default_factory=list)

    def array(self, values: np.ndarray) -> int:
        self.keep.append(values)
        return int(values.ctypes.data)

    def jobs(self, pool: np.ndarray) -> ctypes.Array[Attention]:
        rng = np.random.default_rng(0)
        blocks = -(-self.depth // PAGE)
        layer = int(blocks * PAGE * self.kv_heads * self.d * BYTES[self.kv])
        q = rng.standard_normal((self.rows, self.heads * self.d), np.float32)
        positions = np.arange(self.depth - self.rows, self.depth, dtype=np.uint32)
        pieces = -(-self.depth // PIECE)
        partial = np.zeros(self.heads * pieces * (self.d + 2), np.float32)
        width = self.heads * self.d
        fixed = (
            self.array(np.arange(blocks, dtype=np.uint32)), blocks,
            self.array(np.zeros(self.rows, np.uint32)), self.array(positions),
            self.rows, self.heads, self.kv_heads, self.d, self.d**-0.5, 0.0, 0,
            self.array(np.zeros_like(q)), width, self.array(partial), pieces, None, None,
            self.array(native.aligned(1 << 20)), blocks, 1, None, PAGE,
        )  # fmt: skip
        query, base = self.array(q), int(pool.ctypes.data)
        jobs = [
            Attention(query, width, base + 2 * i * layer, base + (2 * i + 1) * layer, *fixed)
            for i in range(self.layers)
        ]
        return (Attention * self.layers)(*jobs)

    def bytes(self) -> float:
        """Of cache that a decode step of one layer reads."""
        return 2 * self.depth * self.kv_heads * self.d * BYTES[self.kv]

    def name(self) -> str:
        return f"{self.kv:5} {self.heads:2}/{self.kv_heads}x{self.d:<3}"


def pool_for(kv: str) -> np.ndarray:
    """Small finite values everywhere, read as any of the caches' types."""
    pool = huge(COLD + (48 << 20))
    if kv == "f32":
        pool.view(np.float32)[:] = np.random.default_rng(1).standard_normal(1 << 12, np.float32)[
            np.arange(len(pool) // 4) & 4095
        ]
    else:  # halves of about one; as codes: anything, with scales of about one
        pool[0::2] = np.random.default_rng(1).integers(0, 256, 1 << 12, np.uint8)[
            np.arange(len(pool) // 2) & 4095
        ]
        pool[1::2] = 0x3C
    return pool


class Side:
    """The kernels of one tree."""

    def __init__(self, tree: Path, isa: str, kv: str) -> None:
        self.lib = library(tree, isa, kv)
        self.header = (tree / "src/lanewise/kernels/cpu/attention.h").read_text()

    def seconds(self, form: str, kv: str, jobs: ctypes.Array[Attention], items: range) -> float:
        name = f"lw_attention_{form}_{kv}" if form else f"lw_attention_{kv}"
        call = ctypes.cast(getattr(self.lib, name), ctypes.c_void_p)
        each = ctypes.c_int64(ctypes.sizeof(Attention))
        return float(self.lib.bench_attention(call, jobs, each, ctypes.c_int64(len(jobs)),
                                              ctypes.c_int64(items.start),
                                              ctypes.c_int64(items.stop)))  # fmt: skip

    def merge_items(self, case: Case) -> int:
        return case.rows * case.heads if "items = rows * heads" in self.header else case.rows


class Limits:
    """The ruler's rates on one thread: the best seen so far."""

    def __init__(self, lib: ctypes.CDLL, pool: np.ndarray) -> None:
        self.lib, self.rounds = lib, 40_000
        size = len(pool) // 512 * 512
        self.ruler = Ruler(pool.ctypes.data, size, self.rounds)
        self.f32 = self.read = 0.0

    def look(self, what: str) -> None:
        call = ctypes.cast(getattr(self.lib, f"lw_ruler_{what}"), ctypes.c_void_p)
        seconds = float(self.lib.bench_ruler(call, ctypes.byref(self.ruler)))
        if what == "f32":
            self.f32 = max(self.f32, self.rounds * self.lib.lw_ruler_f32_macs() / seconds)
        else:
            self.read = max(self.read, self.ruler.bytes / seconds)


def prompt(case: Case, sides: list[Side], limits: Limits, jobs: ctypes.Array[Attention],
           rounds: int) -> str:  # fmt: skip
    """Some tiles of a kv head, each its least time; all weigh as in the whole prompt."""
    tiles = -(-case.rows // TILE)
    some = sorted({round(i * (tiles - 1) / 6) for i in range(7)})
    least = np.full((len(sides), len(some)), np.inf)
    for _ in range(rounds):
        limits.look("f32")
        for j, t in enumerate(some):
            for i, side in enumerate(sides):
                seconds = side.seconds("", case.kv, jobs, range(t, t + 1))
                least[i, j] = min(least[i, j], seconds)
    group = case.heads // case.kv_heads
    seen = sum(sum(range(t * TILE + 1, min(case.rows, t * TILE + TILE) + 1)) for t in some)
    macs = 2 * seen * group * case.d
    cells = [f"{macs / s / limits.f32:.3f} of the peak" for s in least.sum(1)]
    return "  ".join([*cells, *_ratio(least.sum(1))]) + f"  ({limits.f32 / 1e9:.1f} G/s)"


def decode(case: Case, sides: list[Side], limits: Limits, jobs: ctypes.Array[Attention],
           rounds: int) -> str:  # fmt: skip
    pieces = range(case.kv_heads * -(-case.depth // PIECE))
    least, merge = np.full((2, len(sides)), np.inf)
    for _ in range(rounds):
        limits.look("read")
        for i, side in enumerate(sides):
            least[i] = min(least[i], side.seconds("piece", case.kv, jobs, pieces))
            merges = range(side.merge_items(case))
            merge[i] = min(merge[i], side.seconds("merge", case.kv, jobs, merges))
    rates = case.bytes() * len(jobs) / least
    cells = [f"{(a + b) / len(jobs) * 1e6:6.1f} us {r / 1e9:5.1f} GB/s {r / limits.read:.2f} of "
             f"read, merge {b / len(jobs) * 1e6:.1f} us"
             for a, b, r in zip(least, merge, rates, strict=True)]  # fmt: skip
    return "  ".join([*cells, *_ratio(least + merge)]) + f"  ({limits.read / 1e9:.1f} GB/s)"


def _ratio(seconds: np.ndarray) -> list[str]:
    return [f"{seconds[1] / seconds[0]:.2f}x faster"] if len(seconds) > 1 else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--isa", default=",".join(i for i in native.isas() if i != "scalar"))
    parser.add_argument("--kv", default="f16,q8_0")
    parser.add_argument("--shapes", default="9/3x64,16/8x128,32/8x64")
    parser.add_argument("--prompt", default="512,4096")
    parser.add_argument("--depth", default="512,2048,4096")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    trees = [ROOT, *([options.against] if options.against else [])]
    for kv in options.kv.split(","):
        pool = pool_for(kv)
        for isa in options.isa.split(","):
            sides = [Side(tree, isa, kv) for tree in trees]
            limits = Limits(sides[0].lib, pool)
            for shape in options.shapes.split(","):
                heads, kv_heads, d = (int(v) for v in shape.replace("x", "/").split("/"))
                for rows in (int(v) for v in options.prompt.split(",") if v):
                    case = Case(kv, heads, kv_heads, d, rows, rows, 1)
                    text = prompt(case, sides, limits, case.jobs(pool), options.rounds)
                    print(f"{isa:6} {case.name()} prompt {rows:4}  {text}", flush=True)
                for depth in (int(v) for v in options.depth.split(",") if v):
                    case = Case(kv, heads, kv_heads, d, 1, depth, 1)
                    case.layers = max(1, int(COLD / case.bytes()))
                    text = decode(case, sides, limits, case.jobs(pool), options.rounds)
                    print(f"{isa:6} {case.name()} decode {depth:4}  {text}", flush=True)


if __name__ == "__main__":
    main()
